"""The roots of file jobs: which are missing, what is reported, and what it means for the jobs."""

from __future__ import annotations

from pathlib import Path

import pytest

from fileq.core.outcome import Done, Failed, LostRoot
from fileq.files import paths
from fileq.worker.deferrals import RootsWatch
from tests.support.clocks import RecordedEvents
from tests.support.pump_setup import PumpSetup
from tests.support.unprivileged import open_path, unprivileged

__all__ = ["open_path"]

MISSING = "the root /data is missing (not mounted?)"


class Setup:
    """Roots, one in the other, and folders for moved files, one of which is a root."""

    def __init__(self, *missing: bytes) -> None:
        self.missing = set(missing)
        self.events = RecordedEvents()
        self.ended: list[str] = []
        self.roots = RootsWatch(
            (b"/data", b"/data/volume", b"/other"),
            (b"/data/failed", b"/other"),
            emit=self.events,
            on_end=self.ended.append,
            look=lambda root: paths.MISSING if root in self.missing else "",
        )


@pytest.mark.parametrize(
    ("path", "is_held"),
    [
        (b"/data/volume/a", True),
        (b"/data/volume", False),
        (b"/data/a", False),
        (b"/data/volumes/a", False),
        (b"/other/a", False),
        (b"/elsewhere/a", False),
    ],
)
def test_only_files_below_a_missing_root_are_held(path: bytes, is_held: bool) -> None:
    assert (Setup(b"/data/volume").roots.problem_of(path) is not None) == is_held


def test_a_root_that_is_missing_at_the_start_is_reported_once() -> None:
    setup = Setup(b"/data")
    for _ in range(3):
        setup.roots.turn()
    assert setup.events.count("root.lost") == 1
    assert setup.events.fields("root.lost")["reason"] == MISSING
    assert setup.roots.problem() == MISSING


def test_nothing_is_reported_while_all_roots_are_there() -> None:
    setup = Setup()
    setup.roots.turn()
    assert (setup.events.events, setup.roots.problem(), setup.roots.change_count) == ([], "", 0)


def test_a_missing_folder_of_moved_files_is_a_problem_once_a_job_needs_it() -> None:
    setup = Setup(b"/data/failed")
    reason = "the folder /data/failed, where files were moved to, is missing (not mounted?)"
    setup.roots.turn()
    assert (setup.roots.problem(), setup.roots.is_any_missing, setup.events.events) == ("", True, [])
    assert setup.roots.problem_of(b"/data/a") is None
    assert setup.roots.problem_of(b"/data/failed/a") == reason == setup.roots.problem()
    for _ in range(2):
        setup.roots.turn()
    assert setup.events.count("root.lost") == 1
    setup.missing.clear()
    setup.roots.check()
    setup.roots.turn()
    assert (setup.roots.problem_of(b"/data/failed/a"), setup.roots.is_any_missing) == (None, False)
    assert (setup.events.count("root.restored"), setup.ended) == (1, [reason])
    setup.missing.add(b"/data/failed")
    setup.roots.check()
    setup.roots.turn()
    assert setup.roots.problem() == "", "removed again, and no job needs it yet"


def test_a_root_that_no_setting_names_is_a_problem_once_a_job_needs_it() -> None:
    events, missing = RecordedEvents(), {b"/data"}
    roots = RootsWatch(
        (b"/data",),
        emit=events,
        are_expected=False,
        look=lambda root: paths.MISSING if root in missing else "",
    )
    roots.turn()
    assert (roots.problem(), roots.is_any_missing, events.events) == ("", True, [])
    assert roots.problem_of(b"/data/a") == MISSING == roots.problem()
    roots.turn()
    assert events.count("root.lost") == 1
    missing.clear()
    roots.check()
    roots.turn()
    assert (roots.problem(), roots.is_any_missing, events.count("root.restored")) == ("", False, 1)


def test_a_root_that_permissions_close_holds_its_jobs_and_names_the_permission(open_path: Path) -> None:
    root = open_path / "above" / "in"
    root.mkdir(parents=True)
    for closed in (root, root.parent):
        closed.chmod(0)
        with unprivileged():
            roots = RootsWatch((bytes(root),))
        closed.chmod(0o755)
        reason = f"the root {root} can't be accessed: this user has no permission on {closed}"
        assert roots.problem_of(bytes(root / "a")) == reason == roots.problem()


def lost() -> PumpSetup:
    """A pump whose only root is missing."""
    setup = PumpSetup(
        handlers=[
            {"match": "**/*", "use": "fileq.handlers:checksum"},
            {"type": "t", "use": "fileq.handlers:checksum"},
        ]
    )
    setup.missing.add(b"/data")
    setup.check_roots()
    return setup


def turn(setup: PumpSetup) -> None:
    for _ in range(4):
        setup.pump.turn()


def test_a_file_job_of_a_missing_root_is_deferred_and_a_job_without_a_file_runs() -> None:
    setup = lost()
    setup.enqueue("a", "b")
    setup.enqueue_typed("t", "typed")
    turn(setup)
    assert [task.path for task in setup.executor.submitted] == [b""]
    [record] = setup.broker.records(["a"])
    assert record is not None
    assert (record.deferred, record.attempt_count, record.state) == (MISSING, 0, "deferred")
    assert setup.events.count("job.deferred") == 1
    assert {view.info.lost_roots for view in setup.broker.workers()} == {(MISSING,)}


def test_when_the_root_is_back_its_jobs_run_and_count_no_retry() -> None:
    setup = lost()
    setup.enqueue("a", "b")
    turn(setup)
    setup.missing.clear()
    setup.check_roots()
    assert setup.events.count("root.restored") == 1
    setup.deferrals.turn()
    turn(setup)
    assert setup.submitted() == ["a", "b"]
    setup.executor.end(Done())
    turn(setup)
    [record] = setup.broker.records(["a"])
    assert record is not None
    assert (record.state, record.attempt_count, record.deferred, record.deferred_count) == ("completed", 1, "", 1)
    assert {view.info.lost_roots for view in setup.broker.workers()} == {()}


ROOT_LOST = Failed("the root '/data' is missing", "RootMissing", lost_root=LostRoot(b"/data", paths.MISSING))


def test_a_run_that_finds_its_root_missing_is_deferred_and_those_after_it_do_not_begin() -> None:
    setup = PumpSetup(count=1)
    setup.enqueue("a", "b")
    setup.pump.turn()
    setup.missing.add(b"/data")  # and no check has seen that
    setup.executor.end(ROOT_LOST)
    turn(setup)
    assert setup.submitted() == ["a"]
    for record in setup.broker.records(["a", "b"]):
        assert record is not None
        assert (record.state, record.deferred, record.attempt_count) == ("deferred", MISSING, 0)
    assert setup.roots.problem() == MISSING
    assert [setup.events.count(name) for name in ("root.lost", "job.deferred", "job.failed", "job.dead")] == [
        1,
        1,
        0,
        0,
    ]
    setup.missing.clear()
    setup.check_roots()
    setup.deferrals.turn()
    turn(setup)
    setup.executor.end(Done())
    turn(setup)
    [record] = setup.broker.records(["a"])
    assert record is not None
    assert (record.state, record.attempt_count, record.deferred_count) == ("completed", 1, 1)


def test_a_root_that_is_back_before_it_is_looked_at_releases_the_jobs_that_missed_it() -> None:
    setup = PumpSetup()
    setup.enqueue("a")
    setup.pump.turn()
    setup.executor.end(ROOT_LOST)
    turn(setup)
    assert setup.state("a") == "deferred"
    setup.check_roots()
    setup.deferrals.turn()
    turn(setup)
    assert setup.submitted() == ["a", "a"]


def test_a_run_that_misses_its_root_is_no_sample_of_its_breaker_and_frees_its_place_under_a_limit() -> None:
    route = {"match": "**/*", "use": "fileq.handlers:checksum", "max_running": 1}
    setup = PumpSetup(count=1, handlers=[route, {"type": "t", "use": "fileq.handlers:checksum"}], min_samples=1)
    setup.enqueue("a")
    setup.pump.turn()
    setup.executor.end(ROOT_LOST)
    turn(setup)
    assert setup.breakers.state == "closed"
    setup.check_roots()
    setup.deferrals.turn()
    turn(setup)
    assert setup.submitted() == ["a", "a"]


def test_a_job_of_a_missing_root_does_not_become_the_probe_of_a_breaker() -> None:
    setup = PumpSetup(count=1, min_samples=1, cooldown_period="10s")
    setup.enqueue("broken")
    setup.pump.turn()
    setup.executor.end(Failed("no", "ValueError", is_permanent=True))
    setup.pump.turn()
    assert setup.breakers.state == "open"
    setup.missing.add(b"/data")
    setup.check_roots()
    setup.clocks.advance(10)
    setup.enqueue("a")
    turn(setup)
    assert setup.state("a") == "deferred"
    setup.missing.clear()
    setup.check_roots()
    setup.deferrals.turn()
    turn(setup)
    assert setup.submitted() == ["broken", "a"], "it is the probe now"
