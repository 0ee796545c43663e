"""The death of the fork server, its guard or the worker leaves no process running."""

from __future__ import annotations

import contextlib
import errno
import os
import signal
import subprocess
import sys
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from fileq.core.events import ForkServerDied
from fileq.core.outcome import Died, Done
from fileq.worker.executors.process import child_pool
from fileq.worker.executors.process.child_pool import ForkServerClient
from fileq.worker.executors.process.messages import Program
from tests.support.process_executor import MARK, Start, marked, process_executors
from tests.support.waiting import wait_until

REPOSITORY = Path(__file__).parents[3]


@pytest.fixture
def start(monkeypatch: pytest.MonkeyPatch) -> Iterator[Start]:
    with process_executors(monkeypatch) as start:
        yield start


def test_when_the_fork_server_is_killed_running_tasks_end_as_died_and_later_ones_run_on_a_new_one(
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
    assert driver.emitted("forkserver.died") == [ForkServerDied("was killed by signal SIGKILL")]


def test_a_fork_server_that_does_not_start_again_is_tried_again_while_tasks_wait(start: Start, tmp_path: Path) -> None:
    driver = start(1, f"unless {tmp_path}/obstacle")
    (tmp_path / "obstacle").touch()
    os.kill(driver.server(), signal.SIGKILL)
    driver.until(lambda: len(driver.emitted("forkserver.failed")) >= 2)
    key = driver.submit("echo at last")
    (tmp_path / "obstacle").unlink()
    assert driver.outcome(key) == Done(b"at last")


def test_a_fork_server_that_cannot_even_be_started_is_tried_again(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    driver = start(1)
    refusals = iter([OSError(errno.EMFILE, "Too many open files")])

    def fork_server(program: Program) -> ForkServerClient:
        for refusal in refusals:
            raise refusal
        return ForkServerClient(program)

    monkeypatch.setattr(child_pool, "ForkServerClient", fork_server)
    os.kill(driver.server(), signal.SIGKILL)
    driver.until(lambda: driver.emitted("forkserver.failed"))
    assert driver.run("echo again") == Done(b"again")


@pytest.mark.parametrize("frozen", ["server", "server and guard"])
def test_a_frozen_fork_server_is_replaced(
    start: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, frozen: str
) -> None:
    monkeypatch.setattr(child_pool, "PING_EVERY_S", 0.05)
    monkeypatch.setattr(child_pool, "CHECK_EVERY_S", 0.05)
    monkeypatch.setattr(child_pool, "ANSWER_TIMEOUT_S", 0.5)
    driver = start(1)
    driver.run("echo")
    before = marked(driver.mark)
    for pid in (driver.server(), *(driver.pids("fileq-guard") if "guard" in frozen else ())):
        os.kill(pid, signal.SIGSTOP)
    # The report about the child that ends would never come.
    key = driver.submit("exit_with 3")
    assert driver.outcome(key) == Died("the fork server did not answer for 500ms")
    assert driver.run("echo again") == Done(b"again")
    driver.until(lambda: not before.keys() & marked(driver.mark).keys())
    assert driver.emitted("forkserver.died") == [ForkServerDied("did not answer for 500ms")]


def test_when_the_guard_is_killed_nothing_is_left_running_either(start: Start) -> None:
    driver = start(4)
    key = driver.submit("leave session hang")
    driver.until(lambda: len(driver.pids("sleep")) == 1)
    before = marked(driver.mark)
    (guard,) = driver.pids("fileq-guard")
    os.kill(guard, signal.SIGKILL)
    assert isinstance(driver.outcome(key), Died)
    assert driver.run("echo again") == Done(b"again")
    driver.until(lambda: not before.keys() & marked(driver.mark).keys())


def test_children_end_with_the_fork_server_even_while_the_guard_is_stopped(start: Start, tmp_path: Path) -> None:
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


def test_closing_after_the_fork_server_was_killed_leaves_nothing_running(start: Start) -> None:
    driver = start(2)
    driver.submit("leave session hang")
    driver.until(lambda: len(driver.pids("sleep")) == 1)
    os.kill(driver.server(), signal.SIGKILL)
    driver.executor.close()
    assert marked(driver.mark) == {}


@contextmanager
def a_worker(*arguments: str, mark: str) -> Iterator[subprocess.Popen[bytes]]:
    """A worker in a process of its own, once its executor is ready."""
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
                with contextlib.suppress(ProcessLookupError):  # the guard may have been faster
                    os.kill(pid, signal.SIGKILL)


LEAVING = ["leave session hang", "leave session hang", "leave orphan hold_the_gil", "leave orphan loop"]


def test_when_the_worker_is_killed_no_process_below_it_is_left() -> None:
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
    """The process groups of worker, guard, server and two children; none while there are more or fewer processes."""
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
