"""The process executor with tiny tasks: one child runs all of them, and those behind a slow one run elsewhere."""

from __future__ import annotations

import itertools
import os
import signal
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from fileq.core.outcome import Cancelled, Died, Done, Failed, Released, Task
from fileq.worker.executors.process import executor
from tests.support.bundle_tasks import LOADER, run_counts, runs
from tests.support.executor_driver import key_of, result_of
from tests.support.process_bundles import NAMES, ONCE, SIZE, at, be_patient, outcomes, started, submit
from tests.support.process_executor import Start, process_executors
from tests.support.thread_executor import NotingPolicy
from tests.support.waiting import wait_until


@pytest.fixture
def start(monkeypatch: pytest.MonkeyPatch) -> Iterator[Start]:
    with process_executors(monkeypatch) as start:
        yield start


@pytest.fixture
def _patient(monkeypatch: pytest.MonkeyPatch) -> None:
    be_patient(monkeypatch)


@pytest.mark.usefixtures("_patient")
def test_a_bundle_is_run_by_one_child_in_order_and_has_ended_when_submit_returns(start: Start, tmp_path: Path) -> None:
    driver = started(start)
    submit(driver, tmp_path, *["pid"] * SIZE)
    assert driver.executor.next_deadline_s() == 0.0
    driver.collect()
    assert sorted(driver.ended) == list(NAMES)
    assert [name for name, _ in runs(tmp_path)] == list(NAMES)
    assert len({pid for _, pid in runs(tmp_path)}) == 1


@pytest.mark.usefixtures("_patient")
def test_two_bundles_run_at_the_same_time_and_a_third_is_sent_when_the_first_has_ended(
    start: Start, tmp_path: Path
) -> None:
    driver = started(start)
    submit(driver, tmp_path, f"wait_for {tmp_path}/go", "pid")
    submit(driver, tmp_path, "pid", "pid", names="cd")
    wait_until(lambda: run_counts(tmp_path) == ONCE - Counter("b"))
    assert driver.executor.collect(waits=False) == []
    (tmp_path / "go").touch()
    submit(driver, tmp_path, "pid", "pid", names="ef")
    first = driver.executor.collect(for_all=False)
    assert {"a", "b"} <= {task.key.slot for task, _ in first}
    wait_until(lambda: run_counts(tmp_path) == Counter("abcdef"))
    children = dict(runs(tmp_path))
    assert [children[name] for name in "ace"] == [children[name] for name in "bdf"]
    assert children["a"] != children["c"]


def test_tasks_behind_a_slow_one_are_given_to_other_children(start: Start, tmp_path: Path) -> None:
    driver = started(start)
    submit(driver, tmp_path, *[f"wait_for {tmp_path}/go"] * SIZE)
    driver.until(lambda: run_counts(tmp_path) == ONCE)
    assert len({pid for _, pid in runs(tmp_path)}) == SIZE
    (tmp_path / "go").touch()
    assert outcomes(driver) == [Done(b"not cancelled")] * SIZE
    submit(driver, tmp_path, *["pid"] * SIZE)  # to a child that has not read what was taken back
    assert all(isinstance(outcome, Done) for outcome in outcomes(driver))
    assert run_counts(tmp_path) == ONCE + ONCE


@pytest.mark.parametrize("position", range(SIZE))
def test_tasks_behind_a_slow_one_at_any_position_run_once(start: Start, tmp_path: Path, position: int) -> None:
    driver = started(start)
    submit(driver, tmp_path, *at(position, f"wait_for {tmp_path}/go"))
    others = [name for name in NAMES if name != NAMES[position]]
    assert all(isinstance(outcome, Done) for outcome in outcomes(driver, *others))
    (tmp_path / "go").touch()
    assert driver.outcome(NAMES[position]) == Done(b"not cancelled")
    assert run_counts(tmp_path) == ONCE


def test_tasks_of_a_frozen_child_are_given_to_others_but_for_one(start: Start, tmp_path: Path) -> None:
    driver = started(start)
    child = int(result_of(driver.run("pid", path=os.fsencode(tmp_path))))
    os.kill(child, signal.SIGSTOP)
    submit(driver, tmp_path, *["pid"] * SIZE)
    driver.until(lambda: len(driver.ended) == SIZE - 1)
    os.kill(child, signal.SIGCONT)
    driver.until(lambda: len(driver.ended) == SIZE)
    assert list(driver.ended.values()).count(Done(str(child).encode())) == 1
    assert {name: count for name, count in run_counts(tmp_path).items() if name in NAMES} == ONCE


@pytest.mark.parametrize("position", range(SIZE))
def test_a_task_of_a_bundle_ends_at_its_own_timeout(start: Start, tmp_path: Path, position: int) -> None:
    """The tasks before it may run for minutes, so the executor must not look only when their time is over."""
    driver = started(start)
    submit(driver, tmp_path, *at(position, "hang"), timeouts_s={"hang": 0.3})
    ended = outcomes(driver)
    assert ended.pop(position) == Failed("timed out after 300ms", "Timeout")
    assert all(isinstance(outcome, Done) for outcome in ended)
    assert run_counts(tmp_path) == ONCE


@pytest.mark.parametrize("position", range(SIZE))
def test_a_cancellation_reaches_its_task_behind_tasks_that_were_taken_back(
    start: Start, tmp_path: Path, position: int
) -> None:
    driver = started(start, grace_s=60.0)
    before = set(driver.pids("fileq-child"))
    submit(driver, tmp_path, *at(position, f"stop_when_cancelled {tmp_path}/begun"))
    driver.until((tmp_path / "begun").exists)
    driver.cancel(NAMES[position])
    ended = outcomes(driver)
    assert ended.pop(position) == Cancelled()
    assert all(isinstance(outcome, Done) for outcome in ended)
    assert run_counts(tmp_path) == ONCE
    assert set(driver.pids("fileq-child")) == before  # none was killed


def test_what_was_taken_back_does_not_cancel_the_task_that_runs(start: Start, tmp_path: Path) -> None:
    driver = started(start)
    rounds = itertools.count()

    def was_tried() -> bool:
        """False when the child was so slow that it has the last task only, and nothing behind it."""
        path = tmp_path / str(next(rounds))
        path.mkdir()
        child = int(result_of(driver.run("pid", path=os.fsencode(tmp_path))))
        submit(driver, path, *["wake_itself"] * SIZE)
        assert outcomes(driver) == [Done(b"not cancelled")] * SIZE
        return ("a", child) in runs(path)

    wait_until(was_tried)


def test_an_abandoned_task_of_a_bundle_is_killed_and_the_others_go_on(start: Start, tmp_path: Path) -> None:
    driver = started(start)
    submit(driver, tmp_path, *[f"wait_for {tmp_path}/go"] * SIZE)
    driver.abandon("a")
    driver.until(lambda: run_counts(tmp_path) >= ONCE - Counter("a"))
    (tmp_path / "go").touch()
    assert outcomes(driver, *"bcd") == [Done(b"not cancelled")] * 3
    assert "a" not in driver.ended
    assert max(run_counts(tmp_path).values()) == 1


def test_quitting_right_after_a_bundle_ends_each_of_its_tasks_once(start: Start, tmp_path: Path) -> None:
    driver = started(start)
    submit(driver, tmp_path, "pid", "hang", "fail_when_cancelled", "stop_when_cancelled")
    driver.executor.quit(0.5)
    first, *others = outcomes(driver)
    assert isinstance(first, Done)
    assert others == [Released(), Released(), Done(b"stopped")]
    assert run_counts(tmp_path) == ONCE


@pytest.mark.usefixtures("_patient")
def test_a_child_is_never_given_more_tasks_than_max_jobs(start: Start, tmp_path: Path) -> None:
    driver = started(start, max_jobs=3)
    for _ in range(6):
        submit(driver, tmp_path, *["pid"] * SIZE)
        assert all(isinstance(outcome, Done) for outcome in outcomes(driver))
    assert max(Counter(pid for _, pid in runs(tmp_path)).values()) == 3
    assert run_counts(tmp_path) == Counter(dict.fromkeys(NAMES, 6))


@pytest.mark.parametrize("is_patient", [False, True])
def test_each_task_of_a_bundle_has_its_own_output(
    start: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_patient: bool
) -> None:
    if is_patient:
        monkeypatch.setattr(executor, "MAX_WAIT_S", 30.0)
    driver = started(start, captures_output=True)
    for _ in range(20):
        submit(driver, tmp_path, "speak one", "speak_and_fail two", "speak_and_fail three", "fail_silently")
        one, two, three, silent = outcomes(driver)
        assert one == Done()
        assert [failure.output for failure in (two, three, silent) if isinstance(failure, Failed)] == [
            "two",
            "three",
            "",
        ]


def test_the_last_words_of_a_task_behind_others_are_its_own(start: Start, tmp_path: Path) -> None:
    driver = started(start, captures_output=True)
    submit(driver, tmp_path, "speak one", "speak two", "print_and_exit farewell", "speak_and_fail four")
    one, two, farewell, four = outcomes(driver)
    assert (one, two, farewell) == (Done(), Done(), Died("exited with status 3", output="farewell"))
    assert isinstance(four, Failed)
    assert four.output == "four"


def test_the_output_of_a_task_that_times_out_behind_others_is_its_own(start: Start, tmp_path: Path) -> None:
    driver = started(start, captures_output=True)
    raws = ("speak one", "speak_and_hang two", "speak three", "speak four")
    submit(driver, tmp_path, *raws, timeouts_s={raws[1]: 0.3})
    first, timed_out, *rest = outcomes(driver)
    assert [first, *rest] == [Done()] * 3
    assert isinstance(timed_out, Failed)
    assert (timed_out.kind, timed_out.output) == ("Timeout", "two")
    assert "in speak_and_hang" in timed_out.traceback


@pytest.mark.parametrize("position", range(SIZE))
def test_a_task_that_cannot_be_sent_does_not_keep_its_bundle_from_running(
    start: Start, tmp_path: Path, position: int
) -> None:
    driver = started(start)
    tasks = [Task(key_of(name), b"pid", 0, os.fsencode(tmp_path), (), 1, 300.0) for name in NAMES]
    tasks[position] = Task(key_of(NAMES[position]), b"pid", 0, b"", (), 2**70, 300.0)
    driver.executor.submit(tasks)
    ended = outcomes(driver)
    unsendable = ended.pop(position)
    assert isinstance(unsendable, Failed)
    assert unsendable.kind == "UnsendableTask"
    assert all(isinstance(outcome, Done) for outcome in ended)


def test_long_tasks_are_not_sent_together(start: Start, tmp_path: Path) -> None:
    driver = started(start)
    submit(driver, tmp_path, *["size_of " + "x" * (1 << 20)] * SIZE)
    assert set(outcomes(driver)) == {Done(str((1 << 20) + 8).encode())}
    assert len({pid for _, pid in runs(tmp_path)}) == SIZE


@pytest.mark.usefixtures("_patient")
def test_the_pump_goes_on_while_a_child_runs_its_tasks(start: Start, tmp_path: Path) -> None:
    driver = started(start)
    submit(driver, tmp_path, *at(0, f"wait_for {tmp_path}/go"))
    assert driver.executor.next_deadline_s() == 0.0
    assert driver.executor.collect(waits=False) == []
    (tmp_path / "go").touch()
    driver.collect()
    assert sorted(driver.ended) == sorted(NAMES)
    assert driver.executor.next_deadline_s() != 0.0


@pytest.mark.parametrize("end", ["cancel", "abandon"])
def test_a_task_behind_another_one_is_stopped_like_any_other(start: Start, tmp_path: Path, end: str) -> None:
    driver = started(start)
    submit(driver, tmp_path, *[f"wait_for {tmp_path}/go"] * SIZE)
    getattr(driver.executor, end)(key_of("d"))
    (tmp_path / "go").touch()
    assert all(isinstance(outcome, Done) for outcome in outcomes(driver, "a", "b", "c"))
    if end == "cancel":
        assert isinstance(driver.outcome("d"), Cancelled)
    else:
        driver.until(lambda: len(driver.executor.idle) == SIZE)
        assert "d" not in driver.ended


@pytest.mark.usefixtures("_patient")
def test_a_large_bundle_is_run_in_parts_by_one_child_each(start: Start, tmp_path: Path) -> None:
    count = 2 * executor.MAX_BUNDLE + 1
    driver = started(start, count=count)
    names = [f"task-{n}" for n in range(count)]
    driver.executor.submit([Task(key_of(name), b"pid", 0, os.fsencode(tmp_path), (), 1, 300.0) for name in names])
    driver.collect()
    assert sorted(driver.ended) == sorted(names)
    ran = dict(runs(tmp_path))
    parts = [names[at : at + count // 3] for at in range(0, count, count // 3)]
    assert [len({ran[name] for name in part}) for part in parts] == [1, 1, 1]
    assert len(set(ran.values())) == 3


def test_children_in_a_fresh_interpreter_run_bundles_too(start: Start, tmp_path: Path) -> None:
    driver = started(start, "threads")
    for _ in range(3):
        submit(driver, tmp_path, *at(1, "exit_with 3"))
        ended = outcomes(driver)
        assert ended.pop(1) == Died("exited with status 3")
        assert all(isinstance(outcome, Done) for outcome in ended)
    assert run_counts(tmp_path) == Counter(dict.fromkeys(NAMES, 3))


def test_slow_tasks_are_not_given_to_one_child_again(start: Start, tmp_path: Path) -> None:
    policy = NotingPolicy()
    driver = start(SIZE, loader=LOADER, wait_policy=policy)
    driver.until(lambda: len(driver.executor.idle) == SIZE)
    submit(driver, tmp_path, *[f"wait_for {tmp_path}/go"] * SIZE)
    driver.collect()
    (tmp_path / "go").touch()
    outcomes(driver)
    assert policy.waits == [False]


@pytest.mark.usefixtures("_patient")
def test_tiny_tasks_are_given_to_one_child_again(start: Start, tmp_path: Path) -> None:
    policy = NotingPolicy()
    driver = start(SIZE, loader=LOADER, wait_policy=policy)
    driver.until(lambda: len(driver.executor.idle) == SIZE)
    for _ in range(3):
        submit(driver, tmp_path, *["pid"] * SIZE)
        outcomes(driver)
    assert policy.waits == [True] * 3
    assert len({pid for _, pid in runs(tmp_path)}) == 1
