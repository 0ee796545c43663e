"""relocate: the record of an ended job says where its file was moved to."""

from fileq.core.job import State
from fileq.testing.conformance.builders import (
    completed,
    dead,
    drift,
    enqueue,
    record_of,
    running,
    snapshot,
)
from fileq.testing.conformance.harness import Harness

ODD = b'/done/\xff \n "b"'


def test_the_records_of_completed_and_dead_jobs_have_the_new_paths(harness: Harness) -> None:
    completed(harness, "completed")
    dead(harness, "dead")
    assert harness.broker.relocate([("completed", ODD), ("dead", b"/failed/b")]) == [True, True]
    records = [record_of(harness, id) for id in ("completed", "dead")]
    assert [(record.state, record.moved_to) for record in records] == [
        (State.COMPLETED, ODD),
        (State.DEAD, b"/failed/b"),
    ]
    assert drift(harness) == 0


def test_a_job_that_has_not_ended_or_is_unknown_stays_as_it_is(harness: Harness) -> None:
    running(harness, "running")
    enqueue(harness, "pending")
    enqueue(harness, "scheduled", delay_ms=60_000)
    ids = ["running", "pending", "scheduled", "unknown"]
    before = snapshot(harness, *ids)
    assert harness.broker.relocate([(id, b"/done/a") for id in ids]) == [False] * 4
    assert snapshot(harness, *ids) == before


def test_the_last_path_counts_and_a_repeat_changes_nothing(harness: Harness) -> None:
    completed(harness, "a")
    assert harness.broker.relocate([("a", b"/1"), ("a", b"/2")]) == [True, True]
    before = snapshot(harness, "a")
    assert harness.broker.relocate([("a", b"/2")]) == [True]
    assert snapshot(harness, "a") == before
    assert record_of(harness, "a").moved_to == b"/2"


def test_no_moves_change_nothing(harness: Harness) -> None:
    assert harness.broker.relocate([]) == []


def test_more_than_a_batch(harness: Harness) -> None:
    completed(harness, "a")
    moves = [("a", b"/%d" % n) for n in range(1200)]
    assert harness.broker.relocate(moves) == [True] * 1200
    assert record_of(harness, "a").moved_to == b"/1199"
