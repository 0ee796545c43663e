"""fsck names each kind of damage, repairs it, and finds nothing afterwards, on every broker."""

import pytest

from fileq.core.settlement import complete
from fileq.testing.conformance.builders import (
    a_version,
    an_entry,
    claims_of,
    counter,
    drift,
    enqueue,
    expire_leases,
    foreign,
    places_of,
    record_of,
    register,
    settle,
)
from tests.conformance.fsck_checks import assert_repaired, check, fill, kinds


@pytest.mark.parametrize("place", ["high", "scheduled", "dead_letter"])
def test_a_lost_job_is_named_and_restored(harness, place):
    fill(harness)
    id = {"high": "h1", "scheduled": "s1", "dead_letter": "d1"}[place]
    harness.remove_raw(place, record_of(harness, id).raw)
    report = check(harness)
    assert not report.is_clean
    assert (kinds(report), report.balance.excess, report.repairs) == ([("lost", id)], 1, ())
    assert assert_repaired(harness, id) == [("restored", id)]
    assert places_of(harness, id) == [place]


def test_a_running_job_without_a_slot_is_named_and_returns_to_its_queue(harness):
    fill(harness)
    harness.remove_raw("processing", record_of(harness, "run1").raw, "w2")
    assert kinds(check(harness)) == [("unheld", "run1")]
    assert assert_repaired(harness, "run1") == [("restored", "run1")]
    assert places_of(harness, "run1") == ["low"]


@pytest.mark.parametrize(("id", "place"), [("h1", "high"), ("s1", "scheduled"), ("d1", "dead_letter"), ("run1", "")])
def test_a_job_without_a_record_is_named_and_gets_one(harness, id, place):
    fill(harness)
    was = record_of(harness, id)
    harness.remove_record(id)
    report = check(harness)
    assert (report.is_clean, kinds(report)) == (False, [("unrecorded", id)])
    assert assert_repaired(harness, id) == [("recorded", id)]
    record = record_of(harness, id)
    assert (record.state, record.raw, record.queue) == (was.state, was.raw, was.queue)


def test_only_jobs_of_ours_get_a_record_and_those_of_other_programs_do_not(harness):
    harness.broker.enqueue([an_entry("file", version=a_version("4-17", b"/data/file.pdf"))])
    enqueue(harness, "typed")
    harness.push_raw("low", foreign("theirs"))
    for id in ("file", "typed"):
        harness.remove_record(id)
    assert sorted(assert_repaired(harness)) == [("recorded", "file"), ("recorded", "typed")]
    assert harness.broker.records(["theirs"]) == [None]
    for claim in claims_of(harness, "w1", "w2", "w3"):
        settle(harness, complete(claim))
    assert (counter(harness, "adopted"), drift(harness)) == (1, 0)


def test_a_dead_slot_without_registration_is_named_and_reaped(harness):
    fill(harness)
    harness.remove_registration("w2")
    expire_leases(harness)
    register(harness, "w1")
    harness.broker.renew([("w1", b"")])
    assert kinds(check(harness)) == [("silent", "run1")]
    assert assert_repaired(harness, "run1") == [("reaped", "run1")]
    assert places_of(harness, "run1") == ["low"]


def test_a_slot_that_died_idle_is_not_a_problem_and_is_removed(harness):
    register(harness, "w1")
    expire_leases(harness)
    report = check(harness)
    assert (report.is_clean, kinds(report)) == (True, [])
    assert assert_repaired(harness) == [("forgotten", "w1")]
    assert harness.broker.workers() == []


@pytest.mark.parametrize(("name", "by", "counted"), [("completed", -2, "deleted"), ("produced", -1, "adopted")])
def test_a_counter_that_is_wrong_is_found_and_balanced(harness, name, by, counted):
    fill(harness)
    harness.change_counter(name, by)
    report = check(harness)
    assert (report.is_clean, report.balance.excess, kinds(report)) == (False, -by if name == "completed" else by, [])
    assert assert_repaired(harness, "l1") == [("counted", counted)]


def test_wrong_counters_are_distinguished_from_jobs_of_other_programs(harness):
    enqueue(harness, "a", "b")
    harness.push_raw("low", foreign("f"))
    harness.change_counter("produced", 1)  # so that the sums agree by chance
    assert drift(harness) == 0
    report = check(harness)
    assert (report.is_clean, report.balance.excess, report.balance.unclaimed) == (False, 1, 1)


def test_a_job_without_a_trace_is_counted_as_deleted(harness):
    enqueue(harness, "a", "b")
    raw = record_of(harness, "a").raw
    harness.remove_record("a")
    harness.remove_raw("low", raw)
    report = check(harness)
    assert (report.is_clean, report.balance.excess, kinds(report)) == (False, 1, [])
    assert assert_repaired(harness, "b") == [("counted", "deleted")]
