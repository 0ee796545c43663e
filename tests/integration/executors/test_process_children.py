"""The surroundings of a child: its output, its signals, and how the handlers are imported for it."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from fileq.core.errors import ConfigError
from fileq.core.outcome import Cancelled, Died, Done
from fileq.worker.executors.process import child_pool
from fileq.worker.executors.process.executor import ProcessExecutor
from fileq.worker.executors.process.messages import Program
from tests.support.executor_driver import result_of
from tests.support.process_executor import Start, marked, process_executors


@pytest.fixture
def start(monkeypatch: pytest.MonkeyPatch) -> Iterator[Start]:
    with process_executors(monkeypatch) as start:
        yield start


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
    assert driver.outcome(key) == Done(b"not cancelled")
    assert driver.emitted("forkserver.died") == []


def test_signals_meant_for_the_worker_do_not_end_a_child_whose_handler_replaced_signal_handlers(
    start: Start,
) -> None:
    driver = start(1)
    child = driver.run("pid")
    driver.run("replace_signal_handlers")
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT):
        os.kill(int(result_of(child)), number)
    assert driver.run("pid") == child


def test_a_program_that_a_handler_starts_ignores_no_signal(start: Start) -> None:
    ignored = start().run("signals_of_a_program")
    assert isinstance(ignored, Done)
    # The C library keeps two signals beyond the named ones to itself; fileq has no influence on them.
    assert int(ignored.result, 16) & 0x7FFFFFFF == 0


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
    monkeypatch.setattr(child_pool, "LOAD_TIMEOUT_S", 0.5)
    with pytest.raises(ConfigError, match=r"^importing the handlers took more than 500ms$"):
        start(1, "hangs")


def test_a_loader_that_does_not_exist_is_a_configuration_error() -> None:
    with pytest.raises(ConfigError, match=r"the handlers can't be loaded: ModuleNotFoundError: .* 'nowhere'"):
        ProcessExecutor(1, Program("nowhere:load"))


def test_children_are_spawned_when_importing_started_threads(start: Start, tmp_path: Path) -> None:
    driver = start(2, "threads")
    assert driver.run("echo hello") == Done(b"hello")
    child = result_of(driver.run("pid")).decode()
    assert b"fileq.worker.executors.process.child" in Path(f"/proc/{child}/cmdline").read_bytes()
    key = driver.submit(f"stop_when_cancelled {tmp_path}/begun")
    driver.until((tmp_path / "begun").exists)
    driver.cancel(key)
    assert driver.outcome(key) == Cancelled()
    assert driver.run("segfault") == Died("killed by signal SIGSEGV")


def test_children_are_forked_when_importing_started_no_threads(start: Start) -> None:
    child = result_of(start().run("pid")).decode()
    assert b"fileq.worker.executors.process.fork_server" in Path(f"/proc/{child}/cmdline").read_bytes()


@pytest.mark.parametrize("argument", ["processes", "threads"])
def test_processes_that_importing_started_are_not_killed_as_leftovers(start: Start, argument: str) -> None:
    driver = start(1, argument)
    helpers = driver.pids("sleep")
    driver.run("leave plain")
    driver.run("leave session segfault")
    driver.until(lambda: sorted(driver.pids("sleep")) == sorted(helpers))


def test_the_fork_server_works_whatever_importing_did_to_signals_and_sockets(start: Start) -> None:
    driver = start(1, "handles-signals")
    later_s = time.monotonic() + 0.1  # longer than the default timeout of sockets, which importing set
    driver.until(lambda: time.monotonic() > later_s)
    os.kill(driver.server(), signal.SIGTERM)
    assert driver.run("echo hello") == Done(b"hello")
    assert driver.run("kill_itself") == Died("killed by signal SIGKILL")
