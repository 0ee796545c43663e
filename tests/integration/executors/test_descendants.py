"""The descendants of a process are found, measured and ended."""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from fileq.worker.executors.process import descendants
from fileq.worker.executors.process.descendants import children_of, descendants_of, memory_of
from tests.support.waiting import wait_until

REPOSITORY = Path(__file__).parents[3]
TREE = "sleep 1000 & (sleep 1000 & wait) & wait"


@pytest.fixture(params=["the kernel lists children", "every process is read"])
def _both_sources(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    is_listed = request.param == "the kernel lists children"
    monkeypatch.setattr(descendants, "kernel_lists_children", lambda: is_listed)


@pytest.mark.usefixtures("_both_sources")
def test_children_and_their_children_are_found_and_measured() -> None:
    with subprocess.Popen(["sh", "-c", TREE], start_new_session=True) as shell:
        try:
            wait_until(lambda: len(descendants_of(shell.pid)) == 3)
            assert len(children_of(shell.pid)) == 2
            assert memory_of(shell.pid) > memory_of(descendants_of(shell.pid)[-1]) > 0
        finally:
            os.killpg(shell.pid, 9)


@pytest.mark.usefixtures("_both_sources")
def test_a_process_that_has_ended_has_no_children_and_no_memory() -> None:
    with subprocess.Popen(["true"]) as gone:
        gone.wait()
    assert descendants_of(gone.pid) == []
    assert memory_of(gone.pid) == 0


def in_a_process(function: Callable[[], object]) -> object:
    """Call the function in a process of its own that adopts orphans; returns its result."""
    code = f"""if True:
        import json
        from fileq.worker.executors.process.descendants import adopt_orphans
        from {function.__module__} import {function.__name__}
        adopt_orphans()
        print(json.dumps({function.__name__}()))
    """
    output = subprocess.run([sys.executable, "-c", code], cwd=REPOSITORY, check=True, stdout=subprocess.PIPE).stdout
    return json.loads(output)


def end_a_tree_with_orphans() -> object:
    subprocess.run(["sh", "-c", "setsid sh -c 'sleep 1000 & sleep 1000' & sleep 1000 &"], check=True)
    before = descendants.has_children()
    return before, descendants.end_children(), descendants.has_children(), descendants_of(os.getpid())


def end_all_but_one() -> object:
    with subprocess.Popen(["sleep", "1000"]) as spared, subprocess.Popen(["sleep", "1000"]) as other:
        ended = descendants.end_children({spared.pid})
        other.returncode = 0
        left = children_of(os.getpid()) == [spared.pid]
        spared.kill()
    return ended, left


def reap_one_that_exited_and_one_that_was_killed() -> object:
    with subprocess.Popen(["sh", "-c", "exit 3"]) as exited, subprocess.Popen(["sleep", "1000"]) as killed:
        killed.kill()
        codes: dict[int, int] = {}
        wait_until(lambda: codes.update(descendants.reap_children()) or len(codes) == 2)
        exited.returncode = killed.returncode = 0
    return [codes[exited.pid], codes[killed.pid]]


def test_all_descendants_are_ended_whichever_session_they_are_in() -> None:
    assert in_a_process(end_a_tree_with_orphans) == [True, True, False, []]


def test_a_spared_child_is_not_killed() -> None:
    assert in_a_process(end_all_but_one) == [True, True]


def test_reaping_returns_exit_codes_and_signals() -> None:
    assert in_a_process(reap_one_that_exited_and_one_that_was_killed) == [3, -9]
