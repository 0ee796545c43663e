"""The process executor with real children, real signals and real deaths.

Every test ends with the same look: of all processes that began in it, none is left.
"""

import contextlib
import errno
import os
import select
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from fileq.core.errors import ConfigError
from fileq.core.outcome import Cancelled, Died, Done, Failed, Released
from fileq.handlers.task import Ran, Task
from fileq.worker.executors.process import child_pool as children
from fileq.worker.executors.process import fork_server_client as forkserver
from fileq.worker.executors.process.child_pool import ASKED_AT_ONCE
from fileq.worker.executors.process.executor import ProcessExecutor
from fileq.worker.executors.process.fork_server_client import ForkServer
from fileq.worker.executors.process.program import Program
from tests.support.executor_tasks import LOADER
from tests.support.waiting import wait_until

REPOSITORY = Path(__file__).parents[2]
MARK = "FILEQ_TEST_MARK"
Outcome = Ran | Cancelled | Released


def marked(mark: str) -> dict[int, str]:
    """The processes that were started with this mark in their environment, each with its name."""
    found = {}
    for name in filter(str.isdigit, os.listdir("/proc")):
        try:
            environment = Path(f"/proc/{name}/environ").read_bytes()
            if f"{MARK}={mark}".encode() in environment.split(b"\0"):
                found[int(name)] = Path(f"/proc/{name}/comm").read_text().strip()
        except OSError:
            continue
    return found


class Driver:
    """The executor and a pump that does nothing else."""

    def __init__(self, executor: ProcessExecutor, mark: str, events: list[tuple[str, dict[str, object]]]) -> None:
        self.executor = executor
        self.mark = mark
        self.events = events
        self.ended: dict[str, Outcome] = {}
        self._keys = 0

    def submit(self, raw: str | bytes, *, timeout_s: float = 300.0, path: bytes = b"", key: str = "") -> str:
        self._keys += 1
        key = key or f"{self._keys}:{raw[:20]!r}"
        raw = raw.encode() if isinstance(raw, str) else raw
        self.executor.submit([Task(key, raw, 0, path, (), 1, timeout_s)])
        return key

    def turn(self, longest_s: float = 0.02) -> None:
        deadline_s = self.executor.next_deadline_s()
        if deadline_s is not None:
            longest_s = max(0.0, min(longest_s, deadline_s - time.monotonic()))
        select.select([self.executor], [], [], longest_s)
        for task, ran in self.executor.collect():
            assert task.key not in self.ended, f"{task.key} ended twice"
            self.ended[task.key] = ran

    def until(self, condition: Callable[[], object], timeout_s: float = 20.0) -> None:
        """Turn until it is so."""

        def is_so() -> object:
            self.turn()
            return condition()

        wait_until(is_so, timeout_s)

    def outcome(self, key: str) -> Outcome:
        self.until(lambda: key in self.ended)
        return self.ended.pop(key)

    def run(self, raw: str | bytes, *, timeout_s: float = 300.0, path: bytes = b"") -> Outcome:
        return self.outcome(self.submit(raw, timeout_s=timeout_s, path=path))

    def pids(self, name: str) -> list[int]:
        """Of the processes of this executor, those called so."""
        return [pid for pid, comm in marked(self.mark).items() if comm == name]

    def server(self) -> int:
        """The fork server: the child of the guard. For a moment its own children have its name."""
        (guard,) = self.pids("fileq-guard")
        return int(Path(f"/proc/{guard}/task/{guard}/children").read_text())

    def told(self, event: str) -> list[dict[str, object]]:
        return [fields for name, fields in self.events if name == event]


Start = Callable[..., Driver]


@pytest.fixture
def start(monkeypatch: pytest.MonkeyPatch) -> Iterator[Start]:
    mark = uuid.uuid4().hex
    monkeypatch.setenv(MARK, mark)
    executors: list[ProcessExecutor] = []

    def started(count: int = 2, argument: str = "", max_memory: int | None = None, grace_s: float = 5.0) -> Driver:
        events: list[tuple[str, dict[str, object]]] = []
        executor = ProcessExecutor(
            count,
            Program(LOADER, argument.encode()),
            max_memory=max_memory,
            emit=lambda event, *, level="info", **fields: events.append((event, fields)),
            cancel_grace_s=grace_s,
        )
        executors.append(executor)
        return Driver(executor, mark, events)

    yield started
    for executor in executors:
        executor.close()
    assert marked(mark) == {}


# what comes back


def test_a_task_comes_back_with_the_outcome_of_its_handler(start: Start) -> None:
    assert start().run("echo hello") == Done(b"hello")


def test_a_child_is_used_for_many_tasks(start: Start) -> None:
    driver = start(1)
    assert len({driver.run("pid") for _ in range(20)}) == 1


def test_as_many_tasks_run_at_the_same_time_as_there_are_places(start: Start, tmp_path: Path) -> None:
    driver = start(4)
    keys = [driver.submit(f"stop_when_told {tmp_path}/{i}") for i in range(4)]
    driver.until(lambda: len(list(tmp_path.iterdir())) == 4)
    for key in keys:
        driver.executor.cancel(key)
        assert driver.outcome(key) == Cancelled()


def test_there_may_be_more_places_than_children_are_asked_for_at_once(start: Start) -> None:
    driver = start(ASKED_AT_ONCE + 8)
    driver.until(lambda: len(driver.pids("fileq-child")) == ASKED_AT_ONCE + 8)
    assert driver.run("echo") == Done()


def test_a_result_of_64_kib_comes_back_whole(start: Start) -> None:
    assert start().run("big 65536") == Done(b"x" * 65536)


def test_an_outcome_larger_than_any_buffer_comes_back_whole(start: Start) -> None:
    assert start().run(f"big {8 << 20}") == Done(b"x" * (8 << 20))


def test_an_outcome_too_large_to_send_is_a_failure(start: Start) -> None:
    ran = start().run(f"big {17 << 20}")
    assert isinstance(ran, Failed)
    assert ran.kind == "OutcomeTooLong"


def test_a_task_larger_than_any_buffer_reaches_its_child_while_others_go_on(start: Start) -> None:
    driver = start(2)
    key = driver.submit(b"size_of " + b"x" * (8 << 20))
    assert driver.run("echo meanwhile") == Done(b"meanwhile")
    assert driver.outcome(key) == Done(str((8 << 20) + 8).encode())


def test_a_child_that_reads_nothing_does_not_stop_the_pump(start: Start, tmp_path: Path) -> None:
    driver = start(2)
    other = driver.submit(f"wait_for {tmp_path}/go")
    child = int(driver_result(driver.run("pid")))
    os.kill(child, signal.SIGSTOP)
    stuck = driver.submit(b"size_of " + b"x" * (8 << 20))
    (tmp_path / "go").touch()
    assert driver.outcome(other) == Done(b"in peace")
    others = [driver.run("echo still here") for _ in range(20)]
    assert set(others) == {Done(b"still here")}
    os.kill(child, signal.SIGCONT)
    assert isinstance(driver.outcome(stuck), Done)


def test_a_path_that_is_not_utf_8_reaches_the_child_as_it_is(start: Start) -> None:
    assert start().run("echo", path=b"/data/\xff\xfe\n.pdf") == Done(b"/data/\xff\xfe\n.pdf")


def test_an_exception_that_cannot_be_pickled_is_a_failure_like_any(start: Start) -> None:
    ran = start().run("raise_unpicklable")
    assert isinstance(ran, Failed)
    assert ran.kind == "Unpicklable"


def test_an_error_about_a_name_that_is_not_utf_8_can_be_sent(start: Start) -> None:
    ran = start().run("raise_undecodable")
    assert isinstance(ran, Failed)
    assert ran.kind == "FileNotFoundError"


# how children are


def test_what_a_handler_prints_goes_to_the_stderr_of_the_worker(
    start: Start, capfd: pytest.CaptureFixture[str]
) -> None:
    start().run("write_to_stdout")
    captured = capfd.readouterr()
    assert "from a handler" in captured.err
    assert captured.out == ""


def test_a_handler_has_nothing_to_read_on_stdin(start: Start) -> None:
    assert start().run("stdin") == Done(b"/dev/null")


def test_a_child_leads_a_session_of_its_own(start: Start) -> None:
    assert start().run("session") == Done(b"own")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT])
def test_signals_meant_for_the_worker_end_neither_children_nor_servers(
    start: Start, tmp_path: Path, number: signal.Signals
) -> None:
    driver = start(2)
    key = driver.submit(f"wait_for {tmp_path}/go")
    driver.run("echo")
    for pid in marked(driver.mark):
        os.kill(pid, number)
    (tmp_path / "go").touch()
    assert driver.outcome(key) == Done(b"in peace")
    assert driver.told("forkserver.died") == []


def test_signals_meant_for_the_worker_do_not_end_children_whose_handler_replaced_ours(start: Start) -> None:
    driver = start(1)
    child = driver.run("pid")
    driver.run("replace_signal_handlers")
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT):
        os.kill(int(driver_result(child)), number)
    assert driver.run("pid") == child


def test_a_program_that_a_handler_starts_ignores_no_signal(start: Start) -> None:
    ignored = start().run("signals_of_a_program")
    assert isinstance(ignored, Done)
    # The C library keeps two signals beyond the named ones to itself; whether they are ignored is not ours to say.
    assert int(ignored.result, 16) & 0x7FFFFFFF == 0


# handlers are imported


@pytest.mark.parametrize(
    ("argument", "problems"),
    [
        ("fails", ("handlers[0] is wrong", "handlers[1] is wrong")),
        ("raises", ("the handlers can't be loaded: ValueError: two lines",)),
        ("exits", ("the handlers can't be loaded: the process that imports them exited with status 5",)),
        (
            "segfaults",
            ("the handlers can't be loaded: the process that imports them was killed by signal SIGSEGV",),
        ),
    ],
)
def test_handlers_that_cannot_be_imported_are_a_configuration_error(
    start: Start, argument: str, problems: tuple[str, ...]
) -> None:
    with pytest.raises(ConfigError) as caught:
        start(2, argument)
    assert caught.value.problems == problems


def test_handlers_that_take_too_long_to_import_are_a_configuration_error(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(forkserver, "LOAD_TIMEOUT_S", 0.5)
    with pytest.raises(ConfigError, match=r"^importing the handlers took more than 500ms$"):
        start(1, "hangs")


def test_a_loader_that_does_not_exist_is_a_configuration_error() -> None:
    with pytest.raises(ConfigError, match=r"the handlers can't be loaded: ModuleNotFoundError: .* 'nowhere'"):
        ProcessExecutor(1, Program("nowhere:load"))


def test_children_are_spawned_when_importing_started_threads(start: Start, tmp_path: Path) -> None:
    driver = start(2, "threads")
    assert driver.run("echo hello") == Done(b"hello")
    child = driver_result(driver.run("pid")).decode()
    assert b"fileq.worker.executors.process.child" in Path(f"/proc/{child}/cmdline").read_bytes()
    key = driver.submit(f"stop_when_told {tmp_path}/begun")
    driver.until((tmp_path / "begun").exists)
    driver.executor.cancel(key)
    assert driver.outcome(key) == Cancelled()
    assert driver.run("segfault") == Died("killed by signal SIGSEGV")


def test_children_are_forked_when_it_did_not(start: Start) -> None:
    child = driver_result(start().run("pid")).decode()
    assert b"fileq.worker.executors.process.fork_server" in Path(f"/proc/{child}/cmdline").read_bytes()


@pytest.mark.parametrize("argument", ["processes", "threads"])
def test_leftovers_are_told_from_what_importing_started(start: Start, argument: str) -> None:
    driver = start(1, argument)
    helpers = driver.pids("sleep")
    driver.run("leave plain")
    driver.run("leave session segfault")
    driver.until(lambda: sorted(driver.pids("sleep")) == sorted(helpers))


def test_what_importing_does_to_signals_and_sockets_does_not_matter(start: Start) -> None:
    driver = start(1, "handles-signals")
    later_s = time.monotonic() + 0.1  # longer than the timeout that sockets have by default now
    driver.until(lambda: time.monotonic() > later_s)
    os.kill(driver.server(), signal.SIGTERM)
    assert driver.run("echo hello") == Done(b"hello")
    assert driver.run("kill_itself") == Died("killed by signal SIGKILL")


# a child dies


@pytest.mark.parametrize(
    ("raw", "cause"),
    [
        ("segfault", "killed by signal SIGSEGV"),
        ("abort", "killed by signal SIGABRT"),
        ("kill_itself", "killed by signal SIGKILL"),
        ("exit_with 3", "exited with status 3"),
        ("exit_with 0", "exited with status 0"),
    ],
)
def test_the_death_of_a_child_ends_its_own_task_only(start: Start, tmp_path: Path, raw: str, cause: str) -> None:
    driver = start(16)
    others = [driver.submit(f"wait_for {tmp_path}/go") for _ in range(15)]
    assert driver.run(raw) == Died(cause)
    assert driver.run("echo again") == Done(b"again")
    (tmp_path / "go").touch()
    assert [driver.outcome(key) for key in others] == [Done(b"in peace")] * 15


def test_a_child_that_is_killed_from_outside_is_noticed_and_replaced(start: Start, tmp_path: Path) -> None:
    driver = start(1)
    child = int(driver_result(driver.run("pid")))
    key = driver.submit(f"hang {tmp_path}/begun")
    driver.until((tmp_path / "begun").exists)
    os.kill(child, signal.SIGKILL)
    assert driver.outcome(key) == Died("killed by signal SIGKILL")
    assert driver.run("echo again") == Done(b"again")


class LatestFirst:
    """An epoll that tells what happened last before what happened first."""

    def __init__(self, epoll: select.epoll) -> None:
        self._epoll = epoll

    def poll(self, timeout_s: float, most: int) -> list[tuple[int, int]]:
        return self._epoll.poll(timeout_s, most)[::-1]

    def __getattr__(self, name: str) -> Any:
        return getattr(self._epoll, name)


class DeafTo:
    """An epoll that does not tell of one descriptor until it is told to."""

    def __init__(self, epoll: select.epoll, fd: int) -> None:
        self._epoll = epoll
        self.fd = fd

    def poll(self, timeout_s: float, most: int) -> list[tuple[int, int]]:
        return [(fd, event) for fd, event in self._epoll.poll(timeout_s, most) if fd != self.fd]

    def __getattr__(self, name: str) -> Any:
        return getattr(self._epoll, name)


def test_a_child_that_was_given_up_before_the_fork_server_told_of_it_is_killed(start: Start, tmp_path: Path) -> None:
    driver = start(1)
    its: Any = driver.executor._children
    its.epoll = DeafTo(its.epoll, its.server_fd)
    key = driver.submit(f"hang {tmp_path}/begun")
    driver.until((tmp_path / "begun").exists)
    given_up = driver.pids("fileq-child")
    driver.executor.abandon(key)
    its.epoll.fd = -1
    assert driver.run("echo again") == Done(b"again")
    driver.until(lambda: not set(given_up) & marked(driver.mark).keys())


@pytest.mark.parametrize("order", [lambda epoll: epoll, LatestFirst])
def test_an_outcome_that_was_sent_counts_though_its_child_died_before_it_was_read(
    start: Start, order: Callable[[select.epoll], Any]
) -> None:
    driver = start(1)
    driver.executor._children.epoll = order(driver.executor._children.epoll)
    child = int(driver_result(driver.run("pid")))
    key = driver.submit("echo in time")
    wait_until(lambda: select.select([driver.executor], [], [], 0)[0])
    os.kill(child, signal.SIGKILL)
    wait_until(lambda: child not in marked(driver.mark))
    assert driver.outcome(key) == Done(b"in time")
    assert driver.run("echo again") == Done(b"again")


def test_a_task_whose_child_was_killed_before_it_read_it_is_given_to_the_next(start: Start) -> None:
    driver = start(1)
    child = int(driver_result(driver.run("pid")))
    os.kill(child, signal.SIGSTOP)
    key = driver.submit("echo unharmed")
    os.kill(child, signal.SIGKILL)
    assert driver.outcome(key) == Done(b"unharmed")


def test_a_task_for_a_child_of_whose_death_we_have_not_heard_yet_is_given_to_the_next(start: Start) -> None:
    driver = start(1)
    child = int(driver_result(driver.run("pid")))
    its: Any = driver.executor._children
    its.epoll = DeafTo(its.epoll, its.server_fd)
    os.kill(child, signal.SIGKILL)
    wait_until(lambda: child not in marked(driver.mark))
    key = driver.submit("echo unharmed")
    its.epoll.fd = -1
    assert driver.outcome(key) == Done(b"unharmed")


def test_a_child_that_is_killed_while_idle_harms_nobody(start: Start) -> None:
    driver = start(1)
    children = set()
    for _ in range(5):
        child = driver_result(driver.run("pid"))
        children.add(child)
        os.kill(int(child), signal.SIGKILL)
        driver.until(lambda: driver.pids("fileq-child") not in ([], [int(child)]))  # noqa: B023
    assert len(children) == 5


def test_a_task_waits_for_a_child_that_does_not_get_ready_and_nothing_is_held_against_it(
    start: Start, tmp_path: Path
) -> None:
    driver = start(1, f"threads {tmp_path}/obstacle")
    driver.run("echo")
    (tmp_path / "obstacle").touch()
    os.kill(driver.pids("fileq-child")[0], signal.SIGKILL)
    driver.until(lambda: len(driver.told("child.not_started")) >= 2)
    key = driver.submit("echo at last")
    driver.until(lambda: len(driver.told("child.not_started")) >= 4)
    (tmp_path / "obstacle").unlink()
    assert driver.outcome(key) == Done(b"at last")


def test_a_handler_that_closes_every_descriptor_is_not_taken_for_dead(start: Start) -> None:
    driver = start(1)
    key = driver.submit("close_everything loop", timeout_s=0.5)
    assert driver.outcome(key) == Failed("timed out after 500ms", "Timeout")


def test_a_handler_that_closed_every_descriptor_cannot_tell_its_outcome(start: Start) -> None:
    driver = start(1)
    assert driver.run("close_everything") == Died("closed its connection to the worker")
    assert driver.run("echo again") == Done(b"again")


def test_an_outcome_is_never_written_into_a_file_of_the_handler(start: Start, tmp_path: Path) -> None:
    driver = start(1)
    assert driver.run(f"close_and_reopen {tmp_path}/file") == Died("closed its connection to the worker")
    assert (tmp_path / "file").read_bytes() == b""


@pytest.mark.parametrize("garbage", ["ff" * 64, "00" * 8, "0100000001000000c1", "00000000", "08"])
def test_a_child_that_writes_garbage_is_killed_or_runs_out_of_time(start: Start, garbage: str) -> None:
    driver = start(2)
    ran = driver.run(f"write_garbage {garbage}", timeout_s=1.0)
    is_half = len(garbage) < 16
    assert ran == (Failed("timed out after 1s", "Timeout") if is_half else Died("wrote something that is no outcome"))
    assert driver.run("echo again") == Done(b"again")


def test_the_copy_of_a_handler_that_forked_does_not_speak(start: Start) -> None:
    driver = start(1)
    child = driver.run("pid")
    assert driver.run("fork_and_return") == Done(b"once")
    assert driver.run("pid") == child


# time


@pytest.mark.parametrize("raw", ["loop", "hold_the_gil", "hang", "leave plain hang", "leave orphan hold_the_gil"])
def test_at_its_timeout_a_task_is_ended_whatever_it_does(start: Start, raw: str) -> None:
    driver = start(1)
    assert driver.run(raw, timeout_s=0.3) == Failed("timed out after 300ms", "Timeout")
    assert driver.run("echo again") == Done(b"again")
    driver.until(lambda: driver.pids("sleep") == [])


def test_nobody_else_notices_a_timeout(start: Start, tmp_path: Path) -> None:
    driver = start(16)
    others = [driver.submit(f"wait_for {tmp_path}/go") for _ in range(15)]
    assert driver.run("loop", timeout_s=0.2) == Failed("timed out after 200ms", "Timeout")
    (tmp_path / "go").touch()
    assert [driver.outcome(key) for key in others] == [Done(b"in peace")] * 15


def test_the_next_deadline_is_that_of_the_task_that_ends_first(start: Start, tmp_path: Path) -> None:
    driver = start(2)
    driver.until(lambda: driver.executor.next_deadline_s() is None)
    before_s = time.monotonic()
    driver.submit(f"hang {tmp_path}/1", timeout_s=500)
    driver.submit(f"hang {tmp_path}/2", timeout_s=100)
    driver.until(lambda: len(list(tmp_path.iterdir())) == 2)
    deadline_s = driver.executor.next_deadline_s()
    assert deadline_s is not None
    assert before_s + 100 <= deadline_s <= time.monotonic() + 100


# memory


@pytest.mark.parametrize("raw", ["eat 200", "eat_below 200"])
def test_a_task_that_uses_too_much_memory_is_ended(start: Start, raw: str) -> None:
    driver = start(2, max_memory=128 << 20)
    ran = driver.run(raw)
    assert isinstance(ran, Failed)
    assert ran.kind == "MemoryLimit"
    assert ran.error.endswith("MB of memory, more than worker.max_memory, 128MB")
    assert driver.run("echo again") == Done(b"again")
    assert driver.run("eat 1", timeout_s=1.0) == Failed("timed out after 1s", "Timeout")


def test_memory_is_not_looked_at_while_nothing_runs(start: Start) -> None:
    driver = start(1, max_memory=128 << 20)
    driver.run("echo", timeout_s=0.01)
    driver.until(lambda: driver.executor.next_deadline_s() is None)


# leftovers


@pytest.mark.parametrize("how", ["plain", "session", "orphan", "thread"])
@pytest.mark.parametrize("then", ["", "raise_unpicklable", "segfault", "kill_itself", "abort"])
def test_what_a_handler_leaves_running_is_killed(start: Start, how: str, then: str) -> None:
    driver = start(1)
    ran = driver.run(f"leave {how} {then}")
    assert isinstance(ran, {"": Done, "raise_unpicklable": Failed}.get(then, Died))
    driver.until(lambda: driver.pids("sleep") == [])
    assert driver.run("echo again") == Done(b"again")


@pytest.mark.parametrize("how", ["plain", "session", "orphan", "thread"])
def test_leftovers_of_a_task_that_ended_well_are_gone_before_it_is_told(start: Start, how: str) -> None:
    driver = start(1)
    driver.run(f"leave {how}")
    assert driver.pids("sleep") == []


def test_zombies_that_a_handler_leaves_are_reaped(start: Start) -> None:
    driver = start(1)
    child = int(driver_result(driver.run("pid")))
    driver.run("leave_zombie")
    assert Path(f"/proc/{child}/task/{child}/children").read_text() == ""
    assert driver.run("pid") == Done(str(child).encode())


def test_the_resource_tracker_of_multiprocessing_stays_with_its_child(start: Start) -> None:
    driver = start(1)
    trackers = {driver.run(raw) for raw in ("share_memory", "share_memory")}
    assert len(trackers) == 1
    driver.run("leave plain")
    assert driver.pids("sleep") == []


# cancel, abandon, quit, close


def test_a_cancelled_task_that_stops_ends_as_cancelled(start: Start, tmp_path: Path) -> None:
    driver = start(1)
    child = driver.run("pid")
    key = driver.submit(f"stop_when_told {tmp_path}/begun")
    driver.until((tmp_path / "begun").exists)
    driver.executor.cancel(key)
    assert driver.outcome(key) == Cancelled()
    assert driver.run("pid") == child  # it was not killed


@pytest.mark.parametrize("raw", ["hang", "loop", "hold_the_gil", "kill_itself"])
def test_a_cancelled_task_that_does_not_stop_is_ended_and_cancelled_all_the_same(start: Start, raw: str) -> None:
    driver = start(1, grace_s=0.2)
    driver.run("echo")
    key = driver.submit(raw)
    driver.executor.cancel(key)
    assert driver.outcome(key) == Cancelled()
    assert driver.run("echo again") == Done(b"again")


def test_cancelling_after_the_handler_replaced_all_signals_still_ends_it(start: Start) -> None:
    driver = start(1, grace_s=0.2)
    driver.run("replace_signal_handlers")
    key = driver.submit("stop_when_told")
    driver.executor.cancel(key)
    assert driver.outcome(key) == Cancelled()


def test_cancelling_a_task_that_was_just_submitted_reaches_it(start: Start) -> None:
    driver = start(1, grace_s=60.0)
    child = driver.run("pid")
    for _ in range(200):
        key = driver.submit("stop_when_told")
        driver.executor.cancel(key)
        assert driver.outcome(key) == Cancelled()
    assert driver.run("pid") == child


@pytest.mark.parametrize("size", [0, 1 << 20])
def test_cancelling_a_task_that_has_not_been_read_yet_reaches_it(start: Start, tmp_path: Path, size: int) -> None:
    raw = f"stop_when_told {tmp_path}/begun {'x' * size}"
    driver = start(1, grace_s=60.0)
    child = int(driver_result(driver.run("pid")))
    os.kill(child, signal.SIGSTOP)
    key = driver.submit(raw)
    driver.executor.cancel(key)
    os.kill(child, signal.SIGCONT)
    assert driver.outcome(key) == Cancelled()
    assert driver.run("pid") == Done(str(child).encode())


def test_cancelling_a_task_of_whose_child_we_only_know_that_it_hung_up_is_no_error(start: Start) -> None:
    driver = start(1)
    child = int(driver_result(driver.run("pid")))
    its: Any = driver.executor._children
    its.epoll = DeafTo(its.epoll, its.server_fd)
    os.kill(child, signal.SIGSTOP)
    key = driver.submit(b"echo " + b"x" * (1 << 20))
    os.kill(child, signal.SIGKILL)
    driver.until(lambda: its.by_fd == {})
    driver.executor.cancel(key)
    its.epoll.fd = -1
    assert driver.outcome(key) == Cancelled()


def test_a_late_cancellation_does_not_stop_the_next_task(start: Start, tmp_path: Path) -> None:
    driver = start(1)
    child = int(driver_result(driver.run("pid")))
    for i in range(20):
        key = driver.submit("echo")
        wait_until(lambda: select.select([driver.executor], [], [], 0)[0])
        driver.executor.cancel(key)  # it has ended, but we have not heard of it
        assert driver.outcome(key) == Cancelled()
        os.kill(child, signal.SIGRTMIN + 7)
        later = driver.submit(f"wait_for {tmp_path}/{i}")
        (tmp_path / str(i)).touch()
        assert driver.outcome(later) == Done(b"in peace")


def test_cancelling_an_unknown_task_does_nothing(start: Start) -> None:
    driver = start(1)
    driver.executor.cancel("nobody")
    driver.executor.abandon("nobody")
    assert driver.run("echo") == Done()


def test_an_abandoned_task_is_ended_and_never_spoken_of_again(start: Start, tmp_path: Path) -> None:
    driver = start(1)
    key = driver.submit(f"hang {tmp_path}/begun")
    driver.until((tmp_path / "begun").exists)
    (child,) = driver.pids("fileq-child")
    driver.executor.abandon(key)
    assert driver.run("echo again") == Done(b"again")
    driver.until(lambda: child not in marked(driver.mark))
    assert key not in driver.ended


def test_an_abandoned_task_that_has_just_ended_is_not_spoken_of_either(start: Start) -> None:
    driver = start(1)
    key = driver.submit("echo")
    wait_until(lambda: select.select([driver.executor], [], [], 0)[0])
    driver.executor.abandon(key)
    assert driver.run("echo again") == Done(b"again")
    assert key not in driver.ended


def test_a_task_that_was_cancelled_before_it_began_is_not_spoken_of_after_it_is_abandoned(start: Start) -> None:
    driver = start(1)
    key = driver.submit("echo")  # its child is not there yet
    driver.executor.cancel(key)
    driver.executor.abandon(key)
    assert driver.run("echo again") == Done(b"again")
    assert key not in driver.ended


def test_a_task_that_is_cancelled_before_it_began_never_begins(start: Start, tmp_path: Path) -> None:
    driver = start(1)
    key = driver.submit(f"hang {tmp_path}/begun")
    driver.executor.cancel(key)
    assert driver.outcome(key) == Cancelled()
    assert driver.run("echo again") == Done(b"again")
    assert not (tmp_path / "begun").exists()


def test_the_same_key_can_be_submitted_again(start: Start) -> None:
    driver = start(1)
    for _ in range(3):
        assert driver.outcome(driver.submit("echo", key="same")) == Done()
    driver.executor.abandon(driver.submit("hang", key="same"))
    assert driver.outcome(driver.submit("echo", key="same")) == Done()


def test_quitting_releases_what_does_not_finish_and_keeps_what_does(start: Start, tmp_path: Path) -> None:
    driver = start(4)
    hanging = driver.submit(f"hang {tmp_path}/1")
    stopping = driver.submit(f"stop_when_told {tmp_path}/2")
    failing = driver.submit(f"fail_when_told {tmp_path}/3")
    cancelled = driver.submit(f"hang {tmp_path}/4")
    driver.until(lambda: len(list(tmp_path.iterdir())) == 4)
    driver.executor.cancel(cancelled)
    driver.executor.quit(0.5)
    assert driver.outcome(stopping) == Done(b"stopped")
    assert driver.outcome(failing) == Released()
    assert driver.outcome(cancelled) == Cancelled()
    assert driver.outcome(hanging) == Released()


def test_what_had_failed_before_the_worker_stops_stays_failed(start: Start) -> None:
    driver = start(1)
    driver.run("echo")
    key = driver.submit("raise_unpicklable")
    wait_until(lambda: select.select([driver.executor], [], [], 0)[0])
    driver.executor.quit(5.0)
    assert isinstance(driver.outcome(key), Failed)


def test_quitting_without_grace_releases_at_once(start: Start) -> None:
    driver = start(2)
    keys = [driver.submit("loop"), driver.submit("hold_the_gil")]
    driver.executor.quit(0.0)
    driver.turn()
    assert [driver.ended.pop(key, None) for key in keys] == [Released(), Released()]


def test_a_task_that_has_not_begun_is_released_at_once_when_the_worker_stops(start: Start) -> None:
    driver = start(1)
    key = driver.submit("echo")  # its child is not there yet
    driver.executor.quit(60.0)
    driver.turn()
    assert driver.ended.pop(key) in (Released(), Done())
    late = driver.submit("echo")
    driver.turn()
    driver.until(lambda: late in driver.ended)


def test_closing_ends_what_runs_and_may_be_done_twice(start: Start) -> None:
    driver = start(4)
    for raw in ("loop", "hold_the_gil", "leave session hang", "leave orphan loop"):
        driver.submit(raw)
    driver.until(lambda: len(driver.pids("sleep")) == 3)
    driver.executor.close()
    assert marked(driver.mark) == {}
    driver.executor.close()


# the fork server


def test_when_the_fork_server_is_killed_running_tasks_died_and_others_run_on_a_new_one(
    start: Start, tmp_path: Path
) -> None:
    driver = start(4)
    keys = [driver.submit("leave session hang"), driver.submit(f"hang {tmp_path}/begun")]
    driver.until(lambda: len(driver.pids("sleep")) == 1 and (tmp_path / "begun").exists())
    before = marked(driver.mark)
    os.kill(driver.server(), signal.SIGKILL)
    for key in keys:
        assert driver.outcome(key) == Died("the fork server was killed by signal SIGKILL")
    assert driver.run("echo again") == Done(b"again")
    driver.until(lambda: not before.keys() & marked(driver.mark).keys())
    assert driver.told("forkserver.died") == [{"cause": "was killed by signal SIGKILL"}]


def test_a_fork_server_that_does_not_start_again_is_tried_again_while_tasks_wait(start: Start, tmp_path: Path) -> None:
    driver = start(1, f"unless {tmp_path}/obstacle")
    (tmp_path / "obstacle").touch()
    os.kill(driver.server(), signal.SIGKILL)
    driver.until(lambda: len(driver.told("forkserver.failed")) >= 2)
    key = driver.submit("echo at last")
    (tmp_path / "obstacle").unlink()
    assert driver.outcome(key) == Done(b"at last")


def test_a_fork_server_that_cannot_even_be_started_is_tried_again(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    driver = start(1)
    refusals = iter([OSError(errno.EMFILE, "Too many open files")])

    def fork_server(program: Program) -> ForkServer:
        for refusal in refusals:
            raise refusal
        return ForkServer(program)

    monkeypatch.setattr(children, "ForkServer", fork_server)
    os.kill(driver.server(), signal.SIGKILL)
    driver.until(lambda: driver.told("forkserver.failed"))
    assert driver.run("echo again") == Done(b"again")


def test_when_the_guard_is_killed_nothing_is_left_behind_either(start: Start) -> None:
    driver = start(4)
    key = driver.submit("leave session hang")
    driver.until(lambda: len(driver.pids("sleep")) == 1)
    before = marked(driver.mark)
    (guard,) = driver.pids("fileq-guard")
    os.kill(guard, signal.SIGKILL)
    assert isinstance(driver.outcome(key), Died)
    assert driver.run("echo again") == Done(b"again")
    driver.until(lambda: not before.keys() & marked(driver.mark).keys())


def test_children_end_with_the_fork_server_even_while_the_guard_can_do_nothing(start: Start, tmp_path: Path) -> None:
    driver = start(2)
    driver.submit(f"hang {tmp_path}/begun")
    driver.until((tmp_path / "begun").exists)
    (guard,), server, children = driver.pids("fileq-guard"), driver.server(), driver.pids("fileq-child")
    os.kill(guard, signal.SIGSTOP)
    try:
        os.kill(server, signal.SIGKILL)
        wait_until(lambda: not set(children) & marked(driver.mark).keys())
    finally:
        os.kill(guard, signal.SIGCONT)


def test_closing_after_the_fork_server_was_killed_leaves_nothing_behind(start: Start) -> None:
    driver = start(2)
    driver.submit("leave session hang")
    driver.until(lambda: len(driver.pids("sleep")) == 1)
    os.kill(driver.server(), signal.SIGKILL)
    driver.executor.close()
    assert marked(driver.mark) == {}


# the worker


@contextmanager
def a_worker(*arguments: str, mark: str) -> Iterator["subprocess.Popen[bytes]"]:
    """One in a process of its own, once its executor is ready."""
    command = [sys.executable, "-m", "tests.support.executor_tasks", *arguments]
    with subprocess.Popen(
        command,
        cwd=REPOSITORY,
        env={**os.environ, MARK: mark},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        process_group=0,
    ) as worker:
        try:
            assert worker.stdout is not None
            assert worker.stdout.readline() == b"ready\n"
            yield worker
        finally:
            worker.kill()
            for pid in marked(mark):
                os.kill(pid, signal.SIGKILL)


LEAVING = ["leave session hang", "leave session hang", "leave orphan hold_the_gil", "leave orphan loop"]


def test_when_the_worker_is_killed_nothing_of_it_is_left() -> None:
    mark = uuid.uuid4().hex
    with a_worker(*LEAVING, mark=mark) as worker:
        wait_until(lambda: list(marked(mark).values()).count("sleep") == 6)
        worker.kill()
        wait_until(lambda: not marked(mark))


def test_when_the_worker_is_killed_a_forked_copy_of_it_keeps_nothing_alive() -> None:
    mark = uuid.uuid4().hex
    with a_worker("--fork", *LEAVING, mark=mark) as worker:
        wait_until(lambda: list(marked(mark).values()).count("sleep") == 6)
        worker.kill()
        wait_until(lambda: list(marked(mark).values()) == ["python"])


def test_a_forked_copy_of_the_worker_does_not_keep_it_from_closing() -> None:
    mark = uuid.uuid4().hex
    with a_worker("--fork", *LEAVING, mark=mark) as worker:
        wait_until(lambda: list(marked(mark).values()).count("sleep") == 6)
        assert worker.stdin is not None
        assert worker.stdout is not None
        worker.stdin.write(b"close\n")
        worker.stdin.flush()
        assert worker.stdout.readline() == b"closed\n"
        assert "sleep" not in marked(mark).values()


def groups_of_five(mark: str) -> list[int]:
    """The groups of worker, guard, server and two children; none while there are others, or one is just ending."""
    with contextlib.suppress(ProcessLookupError):
        groups = [os.getpgid(pid) for pid in marked(mark)]
        return groups if len(groups) == 5 else []
    return []


def test_nothing_below_the_worker_is_in_the_group_that_the_terminal_signals() -> None:
    mark = uuid.uuid4().hex
    with a_worker("hang", "hang", mark=mark):
        wait_until(lambda: list(marked(mark).values()).count("fileq-child") == 2)
        groups = wait_until(lambda: groups_of_five(mark))
        assert len(set(groups)) == 4  # guard and server share theirs


def driver_result(ran: Outcome) -> bytes:
    assert isinstance(ran, Done)
    return ran.result
