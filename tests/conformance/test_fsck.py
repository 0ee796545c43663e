"""fsck on every broker: each kind of damage is named, put right and gone at the next look; and nothing else is."""

import os
from contextlib import closing
from threading import Event

import pytest
from msgspec.structs import replace

from fileq.brokers.redis import open_redis
from fileq.brokers.sqlite import SqliteBroker
from fileq.brokers.types import UnrecordedJob
from fileq.commands.admin.fsck import fsck, walk
from fileq.core.errors import ConfigError
from fileq.core.settlement import cancel, complete
from fileq.testing.conformance.builders import (
    a_version,
    an_entry,
    burial,
    claim_one,
    claims_of,
    completed,
    counter,
    dead,
    drift,
    enqueue,
    expire_leases,
    failed,
    foreign,
    id_of,
    names,
    places_of,
    record_of,
    register,
    running,
    settle,
    snapshot,
)
from fileq.testing.conformance.concurrency import run_concurrently


def check(harness, *, repair=False, broker=None, meanwhile=lambda: None):
    """`meanwhile` happens between two looks."""
    return fsck(broker or harness.broker, harness.config, is_repairing=repair, sleep=lambda seconds: meanwhile())


def kinds(report):
    return sorted((problem.kind, problem.id) for problem in report.problems)


def busy(harness):
    """Something of everything, all of it right."""
    completed(harness, "c1", "c2")
    dead(harness, "d1")
    settle(harness, cancel(running(harness, "x1")))
    settle(harness, failed(running(harness, "r1")))
    running(harness, "run1", "w2")
    enqueue(harness, "s1", delay_ms=60_000)
    enqueue(harness, "h1", "h2", queue="high")
    enqueue(harness, "l1", "l2")


def assert_repaired(harness, *ids):
    """What the repair says it did; then a second one has nothing to do, and nothing changes."""
    report = check(harness, repair=True)
    assert report.is_clean, report
    assert report.problems == ()
    before = snapshot(harness, *ids)
    again = check(harness, repair=True)
    assert (again.is_clean, again.repairs) == (True, ())
    assert snapshot(harness, *ids) == before
    return [(repair.action, repair.id) for repair in report.repairs]


# nothing is wrong


def test_an_empty_broker_is_clean(harness):
    report = check(harness)
    assert (report.is_clean, report.elements, report.records, report.slots) == (True, 0, 0, 0)


def test_a_broker_with_everything_in_it_is_clean_and_looking_changes_nothing(harness):
    busy(harness)
    before = snapshot(harness, "c1", "d1", "r1", "l1")
    report = check(harness)
    assert report.is_clean, report
    assert (report.law.excess, report.law.is_exact, report.law.unclaimed) == (0, True, 0)
    assert (report.law.produced, report.law.pending, report.law.scheduled, report.law.running) == (11, 4, 2, 1)
    assert (report.elements, report.records, report.slots) == (7, 11, 2)
    assert snapshot(harness, "c1", "d1", "r1", "l1") == before


def test_what_others_pushed_and_nobody_claimed_is_not_drift(harness):
    enqueue(harness, "a")
    for i in range(3):
        harness.push_raw("low", foreign(f"f{i}"))
    harness.push_raw("high", b"not a job")
    report = check(harness, repair=True)
    assert (report.is_clean, report.repairs) == (True, ())
    assert (report.law.unclaimed, report.law.excess, report.undecodable, report.duplicates) == (4, 0, 1, ())


def test_copies_are_listed_and_are_not_drift(harness):
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


def test_dead_bytes_that_are_no_job_are_counted_and_clean(harness):
    harness.push_raw("low", b"not a job")
    settle(harness, burial(claim_one(harness)))
    report = check(harness)
    assert (report.is_clean, report.undecodable) == (True, 1)


# each kind of damage


@pytest.mark.parametrize("place", ["high", "scheduled", "dead_letter"])
def test_an_element_that_is_gone_is_named_and_put_back(harness, place):
    busy(harness)
    id = {"high": "h1", "scheduled": "s1", "dead_letter": "d1"}[place]
    harness.remove_raw(place, record_of(harness, id).raw)
    report = check(harness)
    assert not report.is_clean
    assert (kinds(report), report.law.excess, report.repairs) == ([("lost", id)], 1, ())
    assert assert_repaired(harness, id) == [("reinstated", id)]
    assert places_of(harness, id) == [place]


def test_a_job_that_nobody_runs_is_named_and_goes_back_to_its_queue(harness):
    busy(harness)
    harness.remove_raw("processing", record_of(harness, "run1").raw, "w2")
    assert kinds(check(harness)) == [("unheld", "run1")]
    assert assert_repaired(harness, "run1") == [("reinstated", "run1")]
    assert places_of(harness, "run1") == ["low"]


@pytest.mark.parametrize(("id", "place"), [("h1", "high"), ("s1", "scheduled"), ("d1", "dead_letter"), ("run1", "")])
def test_an_element_that_lost_its_record_is_named_and_gets_one(harness, id, place):
    busy(harness)
    was = record_of(harness, id)
    harness.remove_record(id)
    report = check(harness)
    assert (report.is_clean, kinds(report)) == (False, [("unrecorded", id)])
    assert assert_repaired(harness, id) == [("recorded", id)]
    record = record_of(harness, id)
    assert (record.state, record.raw, record.queue) == (was.state, was.raw, was.queue)


def test_of_those_without_a_record_ours_get_theirs_and_strangers_stay_strangers(harness):
    harness.broker.enqueue([an_entry("file", version=a_version("4-17", b"/data/file.pdf"))])
    enqueue(harness, "typed")
    harness.push_raw("low", foreign("stranger"))
    for id in ("file", "typed"):
        harness.remove_record(id)
    assert sorted(assert_repaired(harness)) == [("recorded", "file"), ("recorded", "typed")]
    assert harness.broker.records(["stranger"]) == [None]
    for claim in claims_of(harness, "w1", "w2", "w3"):
        settle(harness, complete(claim))
    assert (counter(harness, "adopted"), drift(harness)) == (1, 0)


def test_a_dead_slot_that_the_registry_forgot_is_named_and_reaped(harness):
    busy(harness)
    harness.remove_registration("w2")
    expire_leases(harness)
    register(harness, "w1")
    harness.broker.renew([("w1", b"")])
    assert kinds(check(harness)) == [("silent", "run1")]
    assert assert_repaired(harness, "run1") == [("reaped", "run1")]
    assert places_of(harness, "run1") == ["low"]


def test_a_slot_that_died_idle_is_no_problem_and_is_forgotten(harness):
    register(harness, "w1")
    expire_leases(harness)
    report = check(harness)
    assert (report.is_clean, kinds(report)) == (True, [])
    assert assert_repaired(harness) == [("forgotten", "w1")]
    assert harness.broker.workers() == []


@pytest.mark.parametrize(("name", "by", "counted"), [("completed", -2, "deleted"), ("produced", -1, "adopted")])
def test_a_counter_that_is_wrong_is_found_and_balanced(harness, name, by, counted):
    busy(harness)
    harness.change_counter(name, by)
    report = check(harness)
    assert (report.is_clean, report.law.excess, kinds(report)) == (False, -by if name == "completed" else by, [])
    assert assert_repaired(harness, "l1") == [("counted", counted)]


def test_wrong_counters_are_told_from_what_others_pushed(harness):
    enqueue(harness, "a", "b")
    harness.push_raw("low", foreign("f"))
    harness.change_counter("produced", 1)  # so that the sums agree by chance
    assert drift(harness) == 0
    report = check(harness)
    assert (report.is_clean, report.law.excess, report.law.unclaimed) == (False, 1, 1)


def test_a_job_without_a_trace_is_counted_as_deleted(harness):
    enqueue(harness, "a", "b")
    raw = record_of(harness, "a").raw
    harness.remove_record("a")
    harness.remove_raw("low", raw)
    report = check(harness)
    assert (report.is_clean, report.law.excess, kinds(report)) == (False, 1, [])
    assert assert_repaired(harness, "b") == [("counted", "deleted")]


def known_file(harness, path, id, *, age_s=0.0):
    """A job for a version of a file, as a producer makes it."""
    path.write_bytes(b"four")
    modified_ns = harness.clock.ms * 1_000_000 - int(age_s * 1e9)
    version = a_version(f"4-{modified_ns}", os.fsencode(path))
    harness.broker.enqueue([an_entry(id, version=version)])


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
    assert (kinds(report), report.law.excess) == ([("forsaken", "lost")], 1)
    assert report.problems[0].filepath == str(tmp_path / "lost")
    assert assert_repaired(harness, "lost") == [("enqueued", "lost"), ("counted", "deleted")]
    assert places_of(harness, "lost") == ["low"]
    [entry] = harness.broker.lookup([os.fsencode(tmp_path / "lost")])
    assert [id for _, id in entry.versions] == ["lost"]


def test_a_file_is_not_enqueued_again_where_its_job_may_have_ended_long_ago(harness, tmp_path):
    history_s = harness.config.worker.history_ttl
    known_file(harness, tmp_path / "old", "old", age_s=history_s + 1)
    known_file(harness, tmp_path / "future", "future", age_s=-60)
    enqueue(harness, "typed")
    for id in ("old", "future", "typed"):
        lose_without_a_trace(harness, id)
    assert (kinds(check(harness)), check(harness).law.excess) == ([], 3)
    assert assert_repaired(harness) == [("counted", "deleted")]


def test_a_file_is_not_enqueued_again_where_records_went_by_other_ways(make_harness, tmp_path):
    harness = make_harness(**{"worker.completed_max": 1})
    completed(harness, "c1")  # the list is full: records go with its end
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
    assert (kinds(check(harness)), check(harness).law.excess) == ([], 1)


def test_much_damage_is_repaired_in_one_go(harness):
    busy(harness)
    enqueue(harness, *names(60))
    for id in names(60)[:30]:
        harness.remove_raw("low", record_of(harness, id).raw)
    for id in names(60)[30:45]:
        harness.remove_record(id)
    harness.remove_raw("dead_letter", record_of(harness, "d1").raw)
    harness.change_counter("completed", -7)
    report = check(harness)
    assert not report.is_clean
    repairs = assert_repaired(harness, *names(60))
    assert {id for action, id in repairs if action == "reinstated"} == {*names(60)[:30], "d1"}
    assert drift(harness) == 0
    ids = {id for queue in ("high", "low") for page in harness.broker.pages(queue) for id in map(id_of, page)}
    assert set(names(60)) <= ids


def test_jobs_of_a_queue_that_only_others_know_are_not_called_lost(make_harness):
    """Whoever looks with another configuration must not put a second copy into his own queue."""
    harness = make_harness(**{"worker.priorities": ["express", "high", "low"]})
    enqueue(harness, "a", queue="express")
    enqueue(harness, "b")
    theirs = config_of(harness, ["high", "low"])
    if harness.broker.kind != "memory":  # which nobody else can open
        with closing(other_broker(harness, theirs)) as broker:
            assert broker.lost(["a", "b"]) == broker.restore(["a", "b"]) == [False, False]
            harness.remove_raw("express", record_of(harness, "a").raw)
            assert broker.lost(["a"]) == broker.restore(["a"]) == [False], "nobody can tell from here"
            assert harness.broker.restore(["a"]) == [True]
            with pytest.raises(ConfigError, match="the queue 'express', which is not in"):
                fsck(broker, theirs, is_repairing=True, sleep=lambda seconds: None)
    assert check(harness).is_clean
    assert places_of(harness, "a") == ["express"]


def config_of(harness, priorities):
    config = harness.config
    return replace(config, worker=replace(config.worker, priorities=tuple(priorities)))


def other_broker(harness, config):
    if config.broker_kind == "sqlite":
        return SqliteBroker(config, clock=harness.clock, monotonic=harness.clock)
    return open_redis(config, clock=harness.clock)


def test_more_damage_than_is_kept_in_mind_at_once_is_repaired_in_rounds(harness, monkeypatch):
    """And no counter makes up for jobs that can still be put back."""
    monkeypatch.setattr(walk, "CANDIDATES", 25)
    enqueue(harness, *names(110))
    for id in names(110)[:60]:
        harness.remove_raw("low", record_of(harness, id).raw)
    for id in names(110)[60:]:
        harness.remove_record(id)
    repairs = assert_repaired(harness, *names(110))
    assert {action for action, _ in repairs} == {"reinstated", "recorded"}
    assert sorted(id for _, id in repairs) == names(110)
    assert (counter(harness, "deleted"), counter(harness, "adopted"), drift(harness)) == (0, 0, 0)


def test_among_many_strangers_ours_are_found_and_the_rest_is_left_alone(harness, monkeypatch):
    monkeypatch.setattr(walk, "CANDIDATES", 25)
    for i in range(60):
        harness.push_raw("low", foreign(f"f{i}"))
    enqueue(harness, *names(3))
    harness.remove_record("job-0001")
    harness.change_counter("produced", 2)
    assert check(harness).law.excess == 3
    report = check(harness, repair=True)
    assert report.is_clean, report
    assert report.law.unclaimed + drift(harness) == 0


# what comes right by itself


def test_an_element_that_comes_back_between_two_looks_was_never_lost(harness):
    busy(harness)
    harness.remove_raw("high", record_of(harness, "h1").raw)
    report = check(harness, meanwhile=lambda: harness.broker.restore(["h1"]))
    assert report.is_clean, report


def test_a_record_that_comes_back_between_two_looks_was_never_lost(harness):
    busy(harness)
    record = record_of(harness, "s1")
    harness.remove_record("s1")
    report = check(harness, meanwhile=lambda: harness.broker.create_record([UnrecordedJob("scheduled", record)]))
    assert report.is_clean, report


def test_a_counter_that_is_right_again_at_the_second_look_was_never_wrong(harness):
    busy(harness)
    harness.change_counter("completed", -1)
    turns = iter([1])
    report = check(harness, meanwhile=lambda: harness.change_counter("completed", next(turns, 0)))
    assert report.is_clean, report


def test_a_slot_that_renews_between_two_looks_is_not_dead(harness):
    claim = running(harness, "a")
    expire_leases(harness)
    report = check(harness, repair=True, meanwhile=lambda: harness.broker.renew([("w1", claim.raw)]))
    assert (report.is_clean, report.repairs) == (True, ())
    assert places_of(harness, "a") == ["processing:w1"]


# beside a busy worker


def test_beside_a_busy_worker_there_is_no_false_alarm(harness):
    """Jobs come, run, fail, are retried, die, are revived and released; others push; copies too; slots come and go."""
    enqueue(harness, *names(30))
    other = harness.another()
    is_done = Event()

    def work() -> None:
        ends = [complete, failed, burial, cancel]
        try:
            for i in range(120):
                slots = (f"w{i}", f"v{i}")
                register(harness, *slots, broker=other)
                first, second = other.settle_and_claim([], slots).claims
                is_job = first.job is not None
                other.settle_and_claim([ends[i % 4](first) if is_job else burial(first)], [])
                other.deregister(slots)
                assert second.slot == slots[1]
                other.enqueue([an_entry(f"more-{i}", queue="high"), an_entry(f"late-{i}", delay_ms=1)])
                if i % 10 == 0:
                    harness.push_raw("low", foreign(f"f{i}"))
                other.promote()
        finally:
            is_done.set()

    def look() -> list[object]:
        reports = []
        while not is_done.is_set():
            reports.append(check(harness, repair=len(reports) % 2 == 1))
        return reports

    _, reports = run_concurrently(work, look)
    assert reports
    for report in reports:
        assert report.is_clean, report
        assert report.repairs == ()
    last = check(harness)
    assert last.is_clean, last


def test_two_repairs_at_once_put_each_thing_right_once(harness):
    busy(harness)
    enqueue(harness, *names(40))
    for id in names(40)[:20]:
        harness.remove_raw("low", record_of(harness, id).raw)
    harness.remove_record("h1")
    harness.change_counter("completed", 3)
    other = harness.another()
    run_concurrently(lambda: check(harness, repair=True), lambda: check(harness, repair=True, broker=other))
    report = check(harness, repair=True)
    assert report.is_clean, report
    assert sorted(place for id in names(40) for place in places_of(harness, id)) == ["low"] * 40
