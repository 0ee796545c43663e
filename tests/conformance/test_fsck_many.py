"""fsck with much damage at once, beside busy workers and beside another fsck, on every broker."""

from contextlib import closing
from threading import Event

import pytest
from msgspec.structs import replace

from fileq.brokers.redis import open_redis
from fileq.brokers.sqlite import SqliteBroker
from fileq.commands.admin.fsck import broker_walk
from fileq.commands.admin.fsck.check import fsck
from fileq.core.errors import ConfigError
from fileq.core.settlement import cancel, complete
from fileq.testing.conformance.builders import (
    an_entry,
    burial,
    counter,
    drift,
    enqueue,
    failed,
    foreign,
    id_of,
    names,
    places_of,
    record_of,
    register,
)
from fileq.testing.conformance.concurrency import run_concurrently
from tests.conformance.fsck_checks import assert_repaired, check, fill


def test_much_damage_is_repaired_by_one_command(harness):
    fill(harness)
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
    assert {id for action, id in repairs if action == "restored"} == {*names(60)[:30], "d1"}
    assert drift(harness) == 0
    ids = {id for queue in ("high", "low") for page in harness.broker.pages(queue) for id in map(id_of, page)}
    assert set(names(60)) <= ids


def test_jobs_of_a_queue_of_another_configuration_are_not_lost(make_harness):
    """An fsck with another configuration must not put a second copy into one of its queues."""
    harness = make_harness(**{"worker.priorities": ["express", "high", "low"]})
    enqueue(harness, "a", queue="express")
    enqueue(harness, "b")
    theirs = config_of(harness, ["high", "low"])
    if harness.broker.kind != "memory":  # no second process can open it
        with closing(other_broker(harness, theirs)) as broker:
            assert broker.lost(["a", "b"]) == broker.restore(["a", "b"]) == [False, False]
            harness.remove_raw("express", record_of(harness, "a").raw)
            assert broker.lost(["a"]) == broker.restore(["a"]) == [False], "this configuration does not know the queue"
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


def test_more_damage_than_fits_into_memory_is_repaired_in_rounds(harness, monkeypatch):
    """No counter may compensate for jobs that can still be restored."""
    monkeypatch.setattr(broker_walk, "CANDIDATES", 25)
    enqueue(harness, *names(110))
    for id in names(110)[:60]:
        harness.remove_raw("low", record_of(harness, id).raw)
    for id in names(110)[60:]:
        harness.remove_record(id)
    repairs = assert_repaired(harness, *names(110))
    assert {action for action, _ in repairs} == {"restored", "recorded"}
    assert sorted(id for _, id in repairs) == names(110)
    assert (counter(harness, "deleted"), counter(harness, "adopted"), drift(harness)) == (0, 0, 0)


def test_a_lost_job_that_one_walk_overlooks_is_not_counted_as_deleted(harness, monkeypatch):
    """The first filter reports everything as seen, as a false positive does."""
    walks = []

    class ForgetfulFilter(broker_walk.BloomFilter):
        def __init__(self, expected):
            super().__init__(expected)
            walks.append(self)

        def __contains__(self, key):
            return self is walks[0] or super().__contains__(key)

    monkeypatch.setattr(broker_walk, "BloomFilter", ForgetfulFilter)
    enqueue(harness, *names(5))
    harness.remove_raw("low", record_of(harness, "job-0002").raw)
    assert assert_repaired(harness, *names(5)) == [("restored", "job-0002")]
    assert counter(harness, "deleted") == 0


def test_one_of_our_jobs_is_found_among_many_of_other_programs(harness, monkeypatch):
    monkeypatch.setattr(broker_walk, "CANDIDATES", 25)
    for i in range(60):
        harness.push_raw("low", foreign(f"f{i}"))
    enqueue(harness, *names(3))
    harness.remove_record("job-0001")
    harness.change_counter("produced", 2)
    assert check(harness).balance.excess == 3
    report = check(harness, repair=True)
    assert report.is_clean, report
    assert report.balance.unclaimed + drift(harness) == 0


def test_beside_a_busy_worker_fsck_reports_nothing(harness):
    """Jobs run, fail, are retried, die and are cancelled; other programs push; slots register and deregister."""
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


def test_two_concurrent_repairs_make_each_repair_once(harness):
    fill(harness)
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
