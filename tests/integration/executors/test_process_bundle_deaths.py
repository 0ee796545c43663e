"""A child that ends while it has several tasks: each task runs once, and one task at most counts as died."""

from __future__ import annotations

import contextlib
import os
import random
import select
import signal
import threading
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from fileq.core.outcome import Died, Done, Task
from fileq.worker.executors.process.child_handle import ChildHandle
from tests.support.bundle_tasks import run_counts
from tests.support.executor_driver import key_of, result_of
from tests.support.process_bundles import NAMES, ONCE, SIZE, at, be_patient, outcomes, started, submit
from tests.support.process_executor import Start, control_epoll, marked, process_executors
from tests.support.waiting import wait_until


@pytest.fixture
def start(monkeypatch: pytest.MonkeyPatch) -> Iterator[Start]:
    with process_executors(monkeypatch) as start:
        yield start


@pytest.fixture
def _patient(monkeypatch: pytest.MonkeyPatch) -> None:
    be_patient(monkeypatch)


def kill(pid: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)


@pytest.mark.usefixtures("_patient")
@pytest.mark.parametrize("position", range(SIZE))
@pytest.mark.parametrize(
    ("raw", "cause"),
    [
        ("kill_itself", "killed by signal SIGKILL"),
        ("exit_with 3", "exited with status 3"),
        ("close_everything", "closed its connection to the worker"),
    ],
)
def test_the_death_of_a_child_ends_one_task_of_its_bundle_and_the_others_run_once(
    start: Start, tmp_path: Path, position: int, raw: str, cause: str
) -> None:
    driver = started(start)
    submit(driver, tmp_path, *at(position, raw))
    ended = outcomes(driver)
    assert ended.pop(position) == Died(cause)
    assert all(isinstance(outcome, Done) for outcome in ended)
    assert run_counts(tmp_path) == ONCE


@pytest.mark.usefixtures("_patient")
def test_the_death_of_a_child_is_examined_after_its_bundle(
    start: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It dies in the moment after the executor has seen that the bundle is not done."""
    epoll = control_epoll(monkeypatch)
    driver = started(start)
    monkeypatch.setattr(ChildHandle, "is_nearly_done", lambda _: False)
    submit(driver, tmp_path, "pid", "pid")
    submit(driver, tmp_path, "kill_itself", "pid", names="cd")
    wait_until(lambda: bool(select.select([epoll.registered[0]], [], [], 0)[0]))  # the fork server reports it
    ended = {}
    while len(ended) < SIZE:
        ended |= {task.key.slot: outcome for task, outcome in driver.executor.collect(for_all=bool(ended))}
    assert ended.pop("c") == Died("killed by signal SIGKILL")
    assert all(isinstance(outcome, Done) for outcome in ended.values())
    assert run_counts(tmp_path) == ONCE


@pytest.mark.usefixtures("_patient")
@pytest.mark.parametrize("position", range(SIZE))
def test_the_death_of_the_fork_server_ends_the_running_task_of_a_bundle_and_the_others_run_once(
    start: Start, tmp_path: Path, position: int
) -> None:
    driver = started(start)
    submit(driver, tmp_path, *at(position, "kill_server"))
    ended = outcomes(driver)
    died = ended.pop(position)
    assert isinstance(died, Died)
    assert died.cause.startswith("the fork server ")
    assert all(isinstance(outcome, Done) for outcome in ended)
    assert run_counts(tmp_path) == ONCE


@pytest.mark.usefixtures("_patient")
@pytest.mark.parametrize("position", range(SIZE))
def test_a_child_killed_after_it_took_a_task_and_before_it_ran_it_ends_that_task_only(
    start: Start, tmp_path: Path, position: int
) -> None:
    driver = started(start, f"after-token {position + 1} {tmp_path}/killed")
    submit(driver, tmp_path, *["pid"] * SIZE)
    ended = outcomes(driver)
    assert ended.pop(position) == Died("killed by signal SIGKILL")
    assert all(isinstance(outcome, Done) for outcome in ended)
    assert run_counts(tmp_path) == ONCE - Counter(NAMES[position])


@pytest.mark.usefixtures("_patient")
@pytest.mark.parametrize("position", range(SIZE))
def test_a_child_killed_between_an_outcome_and_the_next_task_ends_no_task(
    start: Start, tmp_path: Path, position: int
) -> None:
    driver = started(start, f"before-token {position + 1} {tmp_path}/killed")
    submit(driver, tmp_path, *["pid"] * SIZE)
    assert all(isinstance(outcome, Done) for outcome in outcomes(driver))
    assert run_counts(tmp_path) == ONCE
    assert (tmp_path / "killed").exists()


def test_tasks_for_a_child_whose_death_was_not_reported_yet_are_given_to_others(
    start: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    epoll = control_epoll(monkeypatch)
    driver = started(start)
    child = int(result_of(driver.run("pid", path=os.fsencode(tmp_path))))
    epoll.hides_server = True
    os.kill(child, signal.SIGKILL)
    wait_until(lambda: child not in marked(driver.mark))
    submit(driver, tmp_path, *["pid"] * SIZE)
    epoll.hides_server = False
    assert all(isinstance(outcome, Done) for outcome in outcomes(driver))
    assert len(run_counts(tmp_path)) == SIZE + 1


@pytest.mark.usefixtures("_patient")
@pytest.mark.parametrize("position", range(SIZE))
@pytest.mark.parametrize("raw", ["close_tokens", "close_tokens {}/file", "leave_thread"])
def test_a_child_that_can_not_go_on_after_a_task_is_replaced_and_no_task_of_its_bundle_is_lost(
    start: Start, tmp_path: Path, position: int, raw: str
) -> None:
    driver = started(start)
    submit(driver, tmp_path, *at(position, raw.format(tmp_path)))
    assert all(isinstance(outcome, Done) for outcome in outcomes(driver))
    assert run_counts(tmp_path) == ONCE
    driver.until(lambda: len(driver.emitted("child.replaced")) == 1)


@pytest.mark.usefixtures("_patient")
def test_the_copy_of_a_child_whose_handler_forked_takes_no_task(start: Start, tmp_path: Path) -> None:
    driver = started(start)
    submit(driver, tmp_path, *["fork_and_linger"] * SIZE)
    assert outcomes(driver) == [Done()] * SIZE
    assert run_counts(tmp_path) == ONCE


@pytest.mark.usefixtures("_patient")
@pytest.mark.parametrize("position", range(SIZE - 1))
def test_a_child_that_writes_an_invalid_message_in_a_bundle_costs_no_task_but_those_it_had_begun(
    start: Start, tmp_path: Path, position: int
) -> None:
    driver = started(start)
    submit(driver, tmp_path, *at(position, "write_half_a_message"))
    ended = outcomes(driver)
    assert ended[:position] == [outcome for outcome in ended[:position] if isinstance(outcome, Done)]
    assert ended[position] == Died("wrote something that is no outcome")
    assert max(run_counts(tmp_path).values()) == 1


def test_children_killed_at_random_instants_cost_at_most_one_task_each(start: Start, tmp_path: Path) -> None:
    driver = started(start)
    kills, died, total, choose = 0, 0, 0, random.Random(1)
    while kills < 60:
        names = [f"{total + n}" for n in range(SIZE)]
        total += SIZE
        if choose.random() < 0.5 and (children := driver.pids("fileq-child")):
            threading.Timer(choose.random() * 0.002, kill, [choose.choice(children)]).start()
            kills += 1
        driver.executor.submit([Task(key_of(name), b"pid", 0, os.fsencode(tmp_path), (), 1, 300.0) for name in names])
        for name in names:
            outcome = driver.outcome(name)
            died += outcome == Died("killed by signal SIGKILL")
            assert isinstance(outcome, Died | Done)
            assert run_counts(tmp_path)[name] == 1 or isinstance(outcome, Died)
    assert died <= kills
    assert max(run_counts(tmp_path).values()) == 1
