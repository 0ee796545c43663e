"""fsck reports no problem where there is none, on every broker."""

from fileq.brokers.types import UnrecordedJob
from fileq.core.job import raw_id
from fileq.core.settlement import complete
from fileq.testing.conformance.builders import (
    burial,
    claim_one,
    completed,
    enqueue,
    expire_leases,
    foreign,
    places_of,
    record_of,
    running,
    settle,
    snapshot,
    worker_info,
)
from fileq.testing.conformance.own_jobs_tests import each_owner, each_plant, fire_slot, plant, run_all
from tests.conformance.fsck_checks import check, fill


def test_an_empty_broker_is_clean(harness):
    report = check(harness)
    assert (report.is_clean, report.elements, report.records, report.slots) == (True, 0, 0, 0)


def test_slots_for_jobs_that_are_claimed_in_advance_are_not_counted(harness):
    infos = {"w1": worker_info(), "w2": worker_info(is_extra=True)}
    harness.broker.register(infos)
    enqueue(harness, "a", "b")
    assert len(harness.broker.settle_and_claim([], list(infos)).claims) == 2
    assert check(harness).slots == 1


def test_a_filled_broker_is_clean_and_a_check_changes_nothing(harness):
    fill(harness)
    before = snapshot(harness, "c1", "d1", "r1", "l1")
    report = check(harness)
    assert report.is_clean, report
    assert (report.balance.excess, report.balance.is_exact, report.balance.unclaimed) == (0, True, 0)
    assert (report.balance.produced, report.balance.pending, report.balance.scheduled, report.balance.running) == (
        11,
        4,
        2,
        1,
    )
    assert (report.elements, report.records, report.slots) == (7, 11, 2)
    assert snapshot(harness, "c1", "d1", "r1", "l1") == before


def test_unclaimed_jobs_of_other_programs_are_not_a_problem(harness):
    enqueue(harness, "a")
    for i in range(3):
        harness.push_raw("low", foreign(f"f{i}"))
    harness.push_raw("high", b"not a job")
    report = check(harness, repair=True)
    assert (report.is_clean, report.repairs) == (True, ())
    assert (report.balance.unclaimed, report.balance.excess, report.undecodable, report.duplicates) == (4, 0, 1, ())


def test_copies_are_listed_and_are_not_a_problem(harness):
    enqueue(harness, "a", "b")
    raw = record_of(harness, "a").raw
    harness.push_raw("low", raw)
    harness.push_raw("high", raw)
    completed(harness, "done")  # takes the copy in the high queue
    report = check(harness)
    assert report.is_clean, report
    assert [(copies.id, copies.count) for copies in report.duplicates] == [("a", 2)]


def test_a_copy_of_a_job_that_runs_or_has_ended_is_listed(harness):
    raw = running(harness, "a").raw
    harness.push_raw("low", raw)
    report = check(harness)
    assert report.is_clean, report
    assert [(copies.id, copies.count) for copies in report.duplicates] == [("a", 1)]
    settle(harness, complete(claim_one(harness, "w1")))
    assert [(copies.id, copies.count) for copies in check(harness).duplicates] == [("a", 1)]


def assert_nothing_to_repair(harness):
    report = check(harness, repair=True)
    repairs = [repair for repair in report.repairs if repair.action != "forgotten"]  # that is about slots
    assert (report.is_clean, repairs, report.balance.excess) == (True, [], 0), report


@each_owner
def test_bytes_under_the_id_of_another_job_are_not_a_problem(harness, owner):
    """ADV2 1, 2: before and after the claim that buries them, and after they are deleted."""
    raw = foreign(owner(harness), type="flaky")
    harness.push_raw("high", raw)
    for _ in range(2):
        assert_nothing_to_repair(harness)
        run_all(harness, None)
    assert harness.broker.discard([(raw_id(raw), raw)]) == [True]
    assert_nothing_to_repair(harness)


@each_plant
def test_a_job_of_fileqs_own_that_took_a_planted_id_is_not_a_problem(harness, how):
    held = plant(harness, "sched.nightly.1", how)
    fire_slot(harness)
    assert_nothing_to_repair(harness)
    run_all(harness, held)
    assert_nothing_to_repair(harness)


def test_dead_bytes_that_are_not_a_job_are_counted_and_are_not_a_problem(harness):
    harness.push_raw("low", b"not a job")
    settle(harness, burial(claim_one(harness)))
    report = check(harness)
    assert (report.is_clean, report.undecodable) == (True, 1)


def test_an_element_that_comes_back_between_two_checks_is_not_reported(harness):
    fill(harness)
    harness.remove_raw("high", record_of(harness, "h1").raw)
    report = check(harness, meanwhile=lambda: harness.broker.restore(["h1"]))
    assert report.is_clean, report


def test_a_record_that_comes_back_between_two_checks_is_not_reported(harness):
    fill(harness)
    record = record_of(harness, "s1")
    harness.remove_record("s1")
    report = check(harness, meanwhile=lambda: harness.broker.create_record([UnrecordedJob("scheduled", record)]))
    assert report.is_clean, report


def test_a_counter_that_is_right_at_the_second_check_is_not_reported(harness):
    fill(harness)
    harness.change_counter("completed", -1)
    corrections = iter([1])
    report = check(harness, meanwhile=lambda: harness.change_counter("completed", next(corrections, 0)))
    assert report.is_clean, report


def test_a_slot_that_renews_between_two_checks_is_not_dead(harness):
    claim = running(harness, "a")
    expire_leases(harness)
    report = check(harness, repair=True, meanwhile=lambda: harness.broker.renew([("w1", claim.raw)]))
    assert (report.is_clean, report.repairs) == (True, ())
    assert places_of(harness, "a") == ["processing:w1"]
