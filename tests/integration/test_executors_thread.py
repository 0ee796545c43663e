"""The thread executor, and the one that has both kinds."""

import os
import select
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from fileq.config import config_from
from fileq.core.errors import ConfigError
from fileq.core.job import Job, encode
from fileq.core.outcome import Cancelled, Done, Failed, Released
from fileq.handlers.routes import Routes
from fileq.handlers.task import Ran, Task
from fileq.runtime.handlers_program import handlers_program
from fileq.worker.executors import thread
from fileq.worker.executors.by_isolation import ExecutorsByIsolation
from fileq.worker.executors.protocol import Executor
from fileq.worker.executors.thread import CALL_S, ThreadExecutor
from tests.support.waiting import wait_until

Outcome = Ran | Cancelled | Released


class Script:
    """What the handlers do: `hang` until the test lets them go, `wait` until cancelled, or as the word says."""

    def __init__(self) -> None:
        self.lets_go = threading.Event()
        self.begun: list[str] = []

    def run(self, task: Task, cancelled: threading.Event) -> Ran:
        self.begun.append(task.key)
        match task.raw:
            case b"hang":
                self.lets_go.wait()
            case b"wait":
                cancelled.wait()
            case b"fail when told":
                cancelled.wait()
                return Failed("cancelled", "InterruptedError")
            case b"raise":
                raise SystemExit(3)
            case b"about as long":
                time.sleep(CALL_S)  # and a little more, as sleeps do: the wait for one task is CALL_S and TINY_S
            case b"thread id":
                return Done(b"%d" % threading.get_ident())
            case b"thread":
                return Done(threading.current_thread().name.encode())
        return Done(b"cancelled" if cancelled.is_set() else b"")


@pytest.fixture
def alone() -> Iterator[ThreadExecutor]:
    """Without threads of its own: the test is all of them."""
    executor = ThreadExecutor(0, lambda task, cancelled: Done())
    yield executor
    executor.close()


class Driver:
    def __init__(self, executor: Executor) -> None:
        self.executor = executor
        self.ended: dict[str, Outcome] = {}

    def submit(self, key: str, raw: bytes = b"", *, route: int = 0, timeout_s: float = 300.0) -> str:
        self.executor.submit([Task(key, raw, route, b"", (), 1, timeout_s)])
        return key

    def submit_together(self, **raws: bytes) -> None:
        self.executor.submit([Task(key, raw, 0, b"", (), 1, 300.0) for key, raw in raws.items()])

    def turn(self) -> None:
        deadline_s = self.executor.next_deadline_s()
        left_s = 0.02 if deadline_s is None else max(0.0, min(0.02, deadline_s - time.monotonic()))
        select.select([self.executor], [], [], left_s)
        for task, ran in self.executor.collect():
            assert task.key not in self.ended, f"{task.key} ended twice"
            self.ended[task.key] = ran

    def until(self, condition: Callable[[], object]) -> None:
        def is_so() -> object:
            self.turn()
            return condition()

        wait_until(is_so)

    def outcome(self, key: str) -> Outcome:
        self.until(lambda: key in self.ended)
        return self.ended.pop(key)


class Threads(Driver):
    def __init__(self, count: int, grace_s: float = 5.0) -> None:
        self.script = Script()
        self.events: list[tuple[str, dict[str, Any]]] = []
        self.closed: list[bool] = []
        self.executor: ThreadExecutor = ThreadExecutor(
            count,
            self.script.run,
            close_run=lambda: self.closed.append(True),
            emit=lambda event, *, level="info", **fields: self.events.append((event, {"level": level, **fields})),
            cancel_grace_s=grace_s,
        )
        super().__init__(self.executor)

    def expect(self, *, tiny: bool) -> None:
        """Make it wait for the next batch, or for none."""
        self.executor._to_pass = self.executor._passes_left = 0 if tiny else 10**9


Start = Callable[..., Threads]


def handler_threads() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "handler"]


@pytest.fixture
def start() -> Iterator[Start]:
    made: list[Threads] = []

    def started(count: int = 2, grace_s: float = 5.0) -> Threads:
        made.append(Threads(count, grace_s))
        return made[-1]

    yield started
    for driver in made:
        driver.script.lets_go.set()
        driver.executor.close()
    wait_until(lambda: not handler_threads())


def test_a_task_comes_back_with_the_outcome_of_its_handler(start: Start) -> None:
    driver = start()
    assert driver.outcome(driver.submit("a")) == Done()


def test_tasks_run_in_threads_of_their_own_at_the_same_time(start: Start) -> None:
    driver = start(4)
    keys = [driver.submit(f"{i}", b"hang") for i in range(4)]
    driver.until(lambda: len(driver.script.begun) == 4)
    driver.script.lets_go.set()
    assert [driver.outcome(key) for key in keys] == [Done()] * 4


@pytest.fixture
def _in_turns() -> Iterator[None]:
    """Threads take turns as often as the interpreter can: every order of their steps gets its chance."""
    interval_s = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(interval_s)


@pytest.mark.usefixtures("_in_turns")
@pytest.mark.parametrize("tiny", [True, False])
def test_thousands_of_tasks_each_come_back_once(start: Start, tiny: bool) -> None:
    driver = start(8)
    for batch in range(500):
        driver.expect(tiny=tiny)
        keys = [driver.submit(f"{batch}-{i}") for i in range(8)]
        driver.until(lambda: len(driver.ended) == 8)
        assert sorted(driver.ended) == sorted(keys)
        driver.ended.clear()


def test_whatever_a_handler_raises_is_a_failure_and_its_thread_goes_on(start: Start) -> None:
    driver = start(1)
    for i in range(3):
        ran = driver.outcome(driver.submit(f"{i}", b"raise"))
        assert isinstance(ran, Failed)
        assert ran.kind == "SystemExit"
    assert len(handler_threads()) == 1


def test_at_its_timeout_a_task_is_told_and_failed_and_its_thread_left_behind(start: Start) -> None:
    driver = start(1)
    assert driver.outcome(driver.submit("slow", b"hang", timeout_s=0.1)) == Failed("timed out after 100ms", "Timeout")
    assert driver.events == [
        ("thread.left_behind", {"level": "warning", "key": "slow", "reason": "it did not stop in time"})
    ]
    assert driver.outcome(driver.submit("next")) == Done()
    assert len(handler_threads()) == 2


def test_what_a_thread_brings_after_it_was_left_behind_is_dropped_and_the_thread_ends(start: Start) -> None:
    driver = start(1)
    driver.outcome(driver.submit("slow", b"wait", timeout_s=0.1))
    driver.until(lambda: len(handler_threads()) == 1)
    assert driver.outcome(driver.submit("slow", b"thread")) == Done(b"handler")
    assert driver.ended == {}


@pytest.mark.parametrize("tiny", [True, False])
def test_threads_are_neither_lost_nor_multiplied_when_tasks_end_just_at_their_timeout(start: Start, tiny: bool) -> None:
    driver = start(4)
    for batch in range(50):
        driver.expect(tiny=tiny)
        keys = [driver.submit(f"{batch}-{i}", timeout_s=i * 2e-5) for i in range(4)]
        driver.until(lambda: len(driver.ended) == 4)
        assert sorted(driver.ended) == sorted(keys)
        driver.ended.clear()
    driver.until(lambda: len(handler_threads()) == 4)


def test_a_cancelled_task_that_stops_ends_as_cancelled(start: Start) -> None:
    driver = start(1)
    key = driver.submit("a", b"wait")
    driver.executor.cancel(key)
    assert driver.outcome(key) == Cancelled()
    assert driver.events == []


def test_a_cancelled_task_that_does_not_stop_is_left_behind_as_cancelled(start: Start) -> None:
    driver = start(1, grace_s=0.1)
    key = driver.submit("a", b"hang")
    driver.executor.cancel(key)
    assert driver.outcome(key) == Cancelled()
    assert [event for event, _ in driver.events] == ["thread.left_behind"]
    assert driver.outcome(driver.submit("next")) == Done()


def test_an_abandoned_task_is_never_spoken_of_again(start: Start) -> None:
    driver = start(1)
    key = driver.submit("a", b"hang")
    driver.until(lambda: driver.script.begun)
    driver.executor.abandon(key)
    assert driver.outcome(driver.submit("a")) == Done()
    driver.script.lets_go.set()
    driver.until(lambda: len(handler_threads()) == 1)
    assert driver.ended == {}


@pytest.mark.parametrize("tiny", [True, False])
def test_an_abandoned_task_that_has_just_ended_is_not_spoken_of_either(start: Start, tiny: bool) -> None:
    driver = start(1)
    driver.expect(tiny=tiny)
    key = driver.submit("a")
    wait_until(lambda: driver.executor.next_deadline_s() == 0.0)
    driver.executor.abandon(key)
    assert driver.outcome(driver.submit("b")) == Done()
    assert driver.ended == {}
    assert len(handler_threads()) == 1


def test_quitting_releases_what_does_not_finish_and_keeps_what_does(start: Start) -> None:
    driver = start(3)
    hanging, stopping = driver.submit("hanging", b"hang"), driver.submit("stopping", b"wait")
    failing = driver.submit("failing", b"fail when told")
    driver.until(lambda: len(driver.script.begun) == 3)
    driver.executor.quit(0.3)
    assert driver.outcome(stopping) == Done(b"cancelled")
    assert driver.outcome(failing) == Released()
    assert driver.outcome(hanging) == Released()


def test_closing_ends_every_thread_it_can_and_may_be_done_twice(start: Start) -> None:
    driver = start(3)
    driver.submit("a", b"hang")
    driver.submit("b", b"wait")
    driver.until(lambda: len(driver.script.begun) == 2)
    driver.executor.close()
    driver.executor.close()
    wait_until(lambda: len(handler_threads()) == 1)
    assert driver.closed == [True]


def test_a_thread_that_outlives_the_executor_touches_no_descriptor_of_others(start: Start) -> None:
    driver = start(1)
    driver.submit("a", b"hang")
    driver.until(lambda: driver.script.begun)
    driver.executor.close()
    fd = os.eventfd(0, os.EFD_NONBLOCK)  # most likely the number that was the executor's
    driver.script.lets_go.set()
    wait_until(lambda: not handler_threads())
    with pytest.raises(BlockingIOError):
        os.eventfd_read(fd)
    os.close(fd)


# both kinds


def where(_job: Any, _context: Any) -> list[int]:
    return [os.getpid(), threading.get_ident()]


async def on_a_loop(_job: Any, _context: Any) -> list[str]:
    return [threading.current_thread().name, str(os.getpid())]


def raw(type: str, payload: bytes = b"{}") -> bytes:
    created = "2026-01-02T03:04:05.678Z"
    return encode(Job("1", "", 0, "low", 0, created, "", "", type=type, payload=msgspec.Raw(payload)))


@pytest.fixture
def mixed() -> Iterator[Callable[..., Driver]]:
    made: list[ExecutorsByIsolation] = []

    def started(*isolations: str, use: str = f"{__name__}:where") -> Driver:
        routes = [{"type": f"t{i}", "use": use, "isolation": isolation} for i, isolation in enumerate(isolations)]
        config = config_from({"worker": {"count": 2}, "handlers": routes})
        table = Routes.load(config, handlers_are_set=True, app_dir=str(Path(__file__).parents[2]))
        program = handlers_program(config, handlers_are_set=True, app_dir=str(Path(__file__).parents[2]))
        made.append(ExecutorsByIsolation(config.worker, table, program))
        return Driver(made[-1])

    yield started
    for executor in made:
        executor.close()
        executor.close()


def answer(driver: Driver, number: int) -> list[Any]:
    ran = driver.outcome(driver.submit(f"{number}", raw(f"t{number}"), route=number))
    assert isinstance(ran, Done), ran
    found: list[Any] = eval(ran.result)
    return found


def test_each_task_runs_where_its_route_wants_it(mixed: Callable[..., Driver]) -> None:
    driver = mixed("process", "thread", "process")
    pids = [answer(driver, number)[0] for number in range(3)]
    assert [pid == os.getpid() for pid in pids] == [False, True, False]


def is_readable(executor: ThreadExecutor) -> bool:
    return bool(select.select([executor], [], [], 0)[0])


def test_a_ring_that_comes_late_is_read_although_another_came_in_between(alone: ThreadExecutor) -> None:
    """Or the descriptor stays readable, and the pump never rests again."""
    alone._is_woken = True  # one has noted that he rings, and stands before it
    alone.collect()
    alone._is_woken = True  # another notes and rings
    os.eventfd_write(alone.fileno(), 1)
    alone.collect()
    os.eventfd_write(alone.fileno(), 1)  # now the first
    assert is_readable(alone)
    alone.collect()
    assert not is_readable(alone)


def test_whoever_rings_between_the_look_at_the_notes_and_the_read_leaves_no_note_behind(
    alone: ThreadExecutor, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Or the next one believes that we are awake, and does not ring."""
    read = os.eventfd_read

    def another_rings_first(fd: int) -> int:
        alone._is_woken = True
        os.eventfd_write(fd, 1)
        return read(fd)

    alone._is_woken = True
    os.eventfd_write(alone.fileno(), 1)
    monkeypatch.setattr(os, "eventfd_read", another_rings_first)
    alone.collect()
    assert not alone._is_woken
    assert not is_readable(alone)


def test_a_task_that_is_given_up_before_it_began_never_runs() -> None:
    script = Script()
    executor = ThreadExecutor(1, script.run)
    driver = Driver(executor)
    driver.submit("first", b"hang")
    driver.until(lambda: script.begun == ["first"])
    driver.submit("second")
    executor.abandon("second")
    script.lets_go.set()
    driver.until(lambda: "first" in driver.ended)
    driver.submit("third")
    driver.until(lambda: "third" in driver.ended)
    executor.close()
    assert script.begun == ["first", "third"]


def test_tiny_tasks_are_run_by_one_thread_and_have_ended_when_they_are_submitted(start: Start) -> None:
    driver = start(4)
    together = {f"together-{n}": b"thread id" for n in range(8)}

    def are_run_by_one_thread() -> bool:
        driver.expect(tiny=True)  # and now and then the machine has something else to do for longer than it waits
        driver.submit_together(**together)
        ended = {task.key: ran for task, ran in driver.executor.collect()}
        driver.until(lambda: len(ended) + len(driver.ended) == 8)
        driver.ended.clear()
        return ended.keys() == together.keys() and len(set(map(str, ended.values()))) == 1

    wait_until(are_run_by_one_thread)


def test_whoever_submits_tiny_tasks_goes_on_when_the_last_of_them_has_ended(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    driver = start(4)
    monkeypatch.setattr(thread, "PATIENCE_S", 3600.0)
    monkeypatch.setattr(thread, "CALL_S", 3600.0)
    for batch in range(100):
        driver.submit_together(**{f"{batch}-{n}": b"" for n in range(8)})
        assert len(driver.executor.collect()) == 8


def test_what_ended_while_it_was_submitted_is_due_though_nobody_rang(start: Start) -> None:
    driver = start(1)

    def has_ended_silently() -> bool:
        driver.expect(tiny=True)
        key = driver.submit("silent")
        is_due = driver.executor.next_deadline_s() == 0.0
        is_silent = not select.select([driver.executor], [], [], 0)[0]
        assert driver.outcome(key) == Done()
        return is_due and is_silent

    wait_until(has_ended_silently)
    assert driver.executor.next_deadline_s() != 0.0


def test_while_tasks_are_tiny_one_that_takes_its_time_holds_up_neither_the_others_nor_the_pump(start: Start) -> None:
    driver = start(4)
    driver.expect(tiny=True)
    driver.submit_together(slow=b"hang", quick=b"", slower=b"hang", quicker=b"")  # nobody collects from here on
    wait_until(lambda: {"slow", "quick", "slower", "quicker"} <= set(driver.script.begun))
    driver.until(lambda: {"quick", "quicker"} <= driver.ended.keys())
    driver.script.lets_go.set()
    driver.until(lambda: {"slow", "slower"} <= driver.ended.keys())


def test_who_waited_in_vain_waits_less_and_less_often_and_again_when_tasks_are_tiny(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    driver = start(2)
    waits: list[bool] = []
    await_really = driver.executor._await

    def await_and_note(batch: list[Any], until_s: float) -> bool:
        waits.append(await_really(batch, until_s))
        return waits[-1]

    monkeypatch.setattr(driver.executor, "_await", await_and_note)
    driver.submit("slow", b"hang")
    for n in range(63):
        driver.outcome(driver.submit(f"beside-{n}"))
    assert waits == [False] * 6, "for the first, then after 1, 3, 7, 15 and 31 that pass"
    driver.script.lets_go.set()
    driver.outcome("slow")
    monkeypatch.setattr(thread, "PATIENCE_S", 3600.0)
    monkeypatch.setattr(thread, "CALL_S", 3600.0)
    waits.clear()
    for n in range(64):
        driver.outcome(driver.submit(f"alone-{n}"))
    assert len(waits) > 32
    assert all(waits)


@pytest.mark.parametrize("passes", [0, 1, 2])
def test_a_task_that_nobody_waits_for_any_more_rings(start: Start, passes: int) -> None:
    driver = start(1)
    driver.executor._passes_left = passes
    driver.submit("a", b"hang")
    assert not is_readable(driver.executor)
    driver.script.lets_go.set()
    assert select.select([driver.executor], [], [], 10.0)[0]


@pytest.mark.usefixtures("_in_turns")
def test_a_task_that_ends_right_when_the_pump_stops_waiting_for_it_is_told_all_the_same(start: Start) -> None:
    driver = start(2)
    for n in range(300):
        driver.expect(tiny=True)
        key = driver.submit(f"{n}", b"about as long")
        is_due = driver.executor.next_deadline_s() == 0.0
        assert is_due or select.select([driver.executor], [], [], 10.0)[0]
        assert driver.outcome(key) == Done()


def test_without_process_isolation_there_is_no_fork_server(mixed: Callable[..., Driver]) -> None:
    children = Path(f"/proc/self/task/{threading.get_native_id()}/children")
    before = children.read_text()
    driver = mixed("thread")
    assert answer(driver, 0)[0] == os.getpid()
    assert children.read_text() == before


def test_without_thread_isolation_there_are_no_threads(mixed: Callable[..., Driver]) -> None:
    driver = mixed("process")
    assert answer(driver, 0)[0] != os.getpid()
    assert handler_threads() == []


@pytest.mark.parametrize("isolation", ["process", "thread"])
def test_async_handlers_run_on_a_loop_of_their_own(mixed: Callable[..., Driver], isolation: str) -> None:
    driver = mixed(isolation, isolation, use=f"{__name__}:on_a_loop")
    thread, pid = answer(driver, 0)
    assert thread == "async"
    assert (int(pid) == os.getpid()) == (isolation == "thread")


def test_tasks_of_both_kinds_are_cancelled_abandoned_and_released(mixed: Callable[..., Driver]) -> None:
    driver = mixed("process", "thread", use="fileq.handlers:simulate")
    endless = [raw(f"t{i}", b'{"hang": true}') for i in range(2)]
    for i in range(2):
        driver.executor.cancel(driver.submit(f"cancelled-{i}", endless[i], route=i))
        assert driver.outcome(f"cancelled-{i}") == Cancelled()
        driver.executor.abandon(driver.submit(f"abandoned-{i}", endless[i], route=i))
        driver.submit(f"released-{i}", endless[i], route=i)
    deadline_s = driver.executor.next_deadline_s()
    assert deadline_s is not None
    driver.executor.quit(5.0)
    assert [driver.outcome(f"released-{i}") for i in range(2)] == [Released(), Released()]
    assert driver.ended == {}


def test_handlers_that_only_children_cannot_import_are_a_configuration_error(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "fickle.py").write_text("def handle(job, context):\n    pass\n")
    config = config_from({"handlers": [{"match": "**/*", "use": "fickle:handle"}]})
    routes = Routes.load(config, handlers_are_set=True, app_dir=str(tmp_path))
    (tmp_path / "fickle.py").write_text("import nowhere\n")
    with pytest.raises(ConfigError, match="nowhere"):
        ExecutorsByIsolation(
            config.worker, routes, handlers_program(config, handlers_are_set=True, app_dir=str(tmp_path))
        )
