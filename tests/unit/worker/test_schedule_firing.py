"""Schedules of a configuration on a memory broker with a clock that the test moves: what fires, what is reported."""

from __future__ import annotations

from typing import Any

import pytest

from fileq.brokers.schedule_definitions import KIND, define, remove
from fileq.brokers.schedules import ScheduleState
from fileq.core.errors import BrokerUnavailable
from fileq.core.events import (
    ScheduleBroken,
    ScheduleDefined,
    ScheduleFired,
    ScheduleMissed,
    ScheduleRestored,
)
from fileq.core.job import decode
from fileq.core.schedule import ScheduleDefinition, ScheduleDocument
from tests.support.schedule_bench import EACH_MINUTE, MINUTE_MS, START_MS, ScheduleBench


@pytest.fixture
def bench() -> ScheduleBench:
    return ScheduleBench()


def test_a_schedule_of_the_configuration_fires_at_its_times(bench: ScheduleBench) -> None:
    worker = bench.worker(s={**EACH_MINUTE, "payload": {"a": 1}, "max_retries": 7, "timeout": "9s", "overlap": "allow"})
    bench.run(worker)
    assert bench.ids == []
    assert bench.state().next_ms == START_MS + MINUTE_MS
    bench.run(worker, MINUTE_MS + 7)
    [raw] = bench.broker.peek("low", 5)
    job = decode(raw)
    assert (job.id, job.type, job.max_retries, job.timeout) == ("sched.s.20270115T080100Z", "t", 7, 9.0)
    assert job.payload_value == {"a": 1, "scheduled_for": "2027-01-15T08:01:00.000Z", "missed": 0}
    assert bench.take() == [
        ScheduleDefined("s", "* * * * *", "UTC"),
        ScheduleFired("s", job.id, "2027-01-15T08:01:00.000Z", 7),
    ]
    bench.run(worker, MINUTE_MS)
    assert (len(bench.ids), bench.state().runs) == (2, 2)


def test_a_job_that_its_schedule_cancels_is_told_to_webhooks(bench: ScheduleBench) -> None:
    told = {"name": "told", "url": "https://example.org/", "events": ["job.cancelled"], "secret": "whsec_" + "A" * 44}
    worker = bench.worker(webhooks={"endpoints": [told]}, s={**EACH_MINUTE, "overlap": "cancel"})
    bench.run(worker)
    for _ in range(2):
        bench.run(worker, MINUTE_MS)
    first, second = "sched.s.20270115T080100Z", "sched.s.20270115T080200Z"
    assert bench.broker.records([first])[0].state == "cancelled"
    jobs = [decode(raw) for raw in bench.broker.peek("low", 9)]
    [delivery] = [job for job in jobs if job.type == "fileq.webhook"]
    assert first in str(delivery.payload_value)
    assert second not in str(delivery.payload_value)


def test_the_pause_of_the_scheduler_ends_when_a_slot_is_due(bench: ScheduleBench) -> None:
    worker = bench.worker(s=EACH_MINUTE)
    bench.run(worker, MINUTE_MS - 20)
    assert worker.turn() == pytest.approx(0.02)


def test_a_schedule_that_is_not_due_costs_no_call(bench: ScheduleBench) -> None:
    worker = bench.worker(s=EACH_MINUTE)
    bench.run(worker)
    calls: list[str] = []
    for name in ("schedules", "documents", "catalog_revision", "fire"):
        setattr(bench.broker, name, lambda *args, name=name: calls.append(name))
    bench.run(worker, 30_000)
    assert calls == []


def test_without_schedules_a_worker_asks_once_a_minute(bench: ScheduleBench) -> None:
    worker = bench.worker()
    calls: list[str] = []
    for name in ("schedules", "documents", "fire"):
        setattr(bench.broker, name, lambda *args, name=name: calls.append(name))
    revision = bench.broker.catalog_revision

    def asked(kind: str) -> int:
        calls.append("catalog_revision")
        return revision(kind)

    bench.broker.catalog_revision = asked  # type: ignore[method-assign]
    for _ in range(4):
        bench.run(worker, 20_000)
    assert calls == ["catalog_revision"] * 2


def test_of_many_workers_one_fires_each_slot_and_the_clock_of_a_worker_does_not_matter(
    bench: ScheduleBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("time.time", lambda: 0.0)
    monkeypatch.setattr("time.time_ns", lambda: 0)
    workers = [bench.worker(s={**EACH_MINUTE, "overlap": "allow"}) for _ in range(4)]
    for worker in workers:
        bench.run(worker)
    for _ in range(5):
        bench.clock.pass_ms(MINUTE_MS)
        for worker in workers:
            bench.run(worker)
    assert bench.ids == [f"sched.s.20270115T080{minute}00Z" for minute in range(1, 6)]
    assert (bench.state().runs, bench.state().missed) == (5, 0)
    assert sum(isinstance(event, ScheduleFired) for event in bench.take()) == 5


def test_missed_slots_are_counted_and_the_last_is_made_up(bench: ScheduleBench) -> None:
    bench.run(bench.worker(s={**EACH_MINUTE, "within": "30s"}))
    bench.take()
    bench.run(bench.worker(s={**EACH_MINUTE, "within": "30s"}), 5 * MINUTE_MS + 40_000)
    [raw] = bench.broker.peek("low", 5)
    assert decode(raw).payload_value == {"scheduled_for": "2027-01-15T08:05:00.000Z", "missed": 4}
    state = bench.state()
    assert (state.runs, state.missed, state.last_ms) == (1, 4, START_MS + 5 * MINUTE_MS)
    assert [(type(event), getattr(event, "count", 0)) for event in bench.take()] == [
        (ScheduleMissed, 4),
        (ScheduleFired, 0),
    ]


def test_a_slot_is_skipped_while_the_last_job_is_unfinished(bench: ScheduleBench) -> None:
    worker = bench.worker(s=EACH_MINUTE)
    bench.run(worker)
    for _ in range(3):
        bench.run(worker, MINUTE_MS)
    assert (len(bench.ids), bench.state().missed) == (1, 2)
    assert [event.reason for event in bench.take() if isinstance(event, ScheduleMissed)] == [
        "the last job of the schedule has not ended"
    ] * 2


def test_a_step_of_the_clock_back_fires_nothing_again(bench: ScheduleBench) -> None:
    worker = bench.worker(s={**EACH_MINUTE, "overlap": "allow"})
    bench.run(worker)
    bench.run(worker, MINUTE_MS)
    bench.run(worker, -3_600_000)
    bench.run(bench.worker(s={**EACH_MINUTE, "overlap": "allow", "payload": {"new": 1}}))
    assert (bench.ids, bench.state().next_ms) == (["sched.s.20270115T080100Z"], START_MS + 2 * MINUTE_MS)


def test_a_broken_schedule_stops_only_itself_and_is_reported_once(bench: ScheduleBench) -> None:
    definition = ScheduleDefinition(cron="* * * * *", type="t", priority="nowhere")
    define(bench.broker, "a", ScheduleDocument(definition=definition), bench.clock.ms)
    bench.broker.put_document(KIND, "b", b"{}")
    bench.broker.define_schedule("b", "r", START_MS)
    worker = bench.worker(s={**EACH_MINUTE, "overlap": "allow"})
    for _ in range(3):
        bench.run(worker, MINUTE_MS)
    assert bench.state().runs == 3 - 1  # defined after the first minute
    broken = [event for event in bench.take() if isinstance(event, ScheduleBroken)]
    assert sorted(event.schedule for event in broken) == ["a", "b"]
    assert "nowhere" in next(event.error for event in broken if event.schedule == "a")
    for name in ("a", "b"):
        remove(bench.broker, name)
    bench.run(worker, 1000)
    assert {event.schedule for event in bench.take() if isinstance(event, ScheduleRestored)} == {"a", "b"}


def test_a_broken_schedule_is_looked_at_once_a_second(bench: ScheduleBench) -> None:
    bench.broker.put_document(KIND, "b", b"{}")
    bench.broker.define_schedule("b", "r", START_MS)
    worker = bench.worker()
    bench.run(worker)
    calls: list[int] = []
    schedules = bench.broker.schedules

    def counted() -> dict[str, ScheduleState]:
        calls.append(1)
        return schedules()

    bench.broker.schedules = counted  # type: ignore[method-assign]
    for _ in range(100):
        bench.run(worker, 100)
    assert len(calls) == 10


def test_an_outage_is_raised_and_the_slot_fires_later(bench: ScheduleBench) -> None:
    worker = bench.worker(s=EACH_MINUTE)
    bench.run(worker)
    fire = bench.broker.fire

    def unreachable(_: object) -> Any:
        raise BrokerUnavailable("away")

    bench.broker.fire = unreachable  # type: ignore[method-assign]
    with pytest.raises(BrokerUnavailable):
        bench.run(worker, MINUTE_MS)
    bench.broker.fire = fire  # type: ignore[method-assign]
    bench.run(worker, 1000)
    assert bench.state().runs == 1
