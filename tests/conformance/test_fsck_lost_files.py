"""fsck enqueues files again whose job left no trace, and only those, on every broker."""

import os

from fileq.testing.conformance.builders import (
    a_version,
    an_entry,
    completed,
    dead,
    enqueue,
    ids_in,
    places_of,
    record_of,
)
from tests.conformance.fsck_checks import assert_repaired, check, kinds


def known_file(harness, path, id, *, age_s=0.0, **options):
    """Enqueues a job for a version of a file, as a producer does."""
    path.write_bytes(b"four")
    modified_ns = harness.clock.ms * 1_000_000 - int(age_s * 1e9)
    version = a_version(f"4-{modified_ns}", os.fsencode(path))
    harness.broker.enqueue([an_entry(id, version=version, **options)])


def lose_without_a_trace(harness, id):
    raw = record_of(harness, id).raw
    harness.remove_record(id)
    harness.remove_raw("low", raw)


def test_a_file_whose_job_left_no_trace_is_named_and_enqueued_again(harness, tmp_path):
    known_file(harness, tmp_path / "there", "there")
    known_file(harness, tmp_path / "lost", "lost")
    completed(harness, "done")
    lose_without_a_trace(harness, "lost")
    report = check(harness)
    assert (kinds(report), report.balance.excess) == ([("lost_file", "lost")], 1)
    assert report.problems[0].path == str(tmp_path / "lost")
    assert assert_repaired(harness, "lost") == [("enqueued", "lost"), ("counted", "deleted")]
    assert places_of(harness, "lost") == ["low"]
    [entry] = harness.broker.lookup([os.fsencode(tmp_path / "lost")])
    assert [id for _, id in entry.versions] == ["lost"]


def test_an_id_that_only_fileq_may_give_is_not_used_again(harness, tmp_path):
    """Another program chose it, for a job that left a version of its file."""
    known_file(harness, tmp_path / "lost", "payroll.then", is_own=True)
    lose_without_a_trace(harness, "payroll.then")
    assert assert_repaired(harness) == [("enqueued", ids_in(harness, "low")[0]), ("counted", "deleted")]
    assert (len(ids_in(harness, "low")), places_of(harness, "payroll.then")) == (1, [])


def test_a_file_is_not_enqueued_again_if_its_record_may_have_expired(harness, tmp_path):
    history_s = harness.config.worker.history_ttl
    known_file(harness, tmp_path / "old", "old", age_s=history_s + 1)
    known_file(harness, tmp_path / "future", "future", age_s=-60)
    enqueue(harness, "typed")
    for id in ("old", "future", "typed"):
        lose_without_a_trace(harness, id)
    assert (kinds(check(harness)), check(harness).balance.excess) == ([], 3)
    assert assert_repaired(harness) == [("counted", "deleted")]


def test_a_file_is_not_enqueued_again_if_its_record_may_have_been_removed(make_harness, tmp_path):
    harness = make_harness(**{"worker.completed_max": 1})
    completed(harness, "c1")  # the list is full: the oldest records are removed
    known_file(harness, tmp_path / "lost", "lost")
    lose_without_a_trace(harness, "lost")
    assert kinds(check(harness)) == []
    harness = make_harness()
    harness.broker.discard([("d", dead(harness, "d"))])
    known_file(harness, tmp_path / "lost", "lost")
    lose_without_a_trace(harness, "lost")
    assert kinds(check(harness)) == []


def test_more_files_without_a_record_than_jobs_are_missing_prove_nothing(harness, tmp_path):
    for id in ("one", "two"):
        known_file(harness, tmp_path / id, id)
        lose_without_a_trace(harness, id)
    harness.change_counter("produced", -1)
    assert (kinds(check(harness)), check(harness).balance.excess) == ([], 1)
