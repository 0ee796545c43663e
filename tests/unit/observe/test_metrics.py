"""Which event changes which metric. No event adds a series."""

from __future__ import annotations

import math
from datetime import UTC, datetime

import pytest
from prometheus_client.parser import text_string_to_metric_families

from fileq.core.events import (
    BatchFinished,
    BatchReconciled,
    BreakerClosed,
    BreakerHalfOpened,
    BreakerOpened,
    Event,
    HookEventsDropped,
    HookFailed,
    JobCancelled,
    JobCompleted,
    JobDead,
    JobFailed,
    JobFollowed,
    JobProduced,
    JobRecovered,
    JobReleased,
    RoleStopped,
    ScanFinished,
    ScheduleBroken,
    ScheduleFired,
    ScheduleMissed,
    SkippedFilesCounted,
    SkipReason,
    WebhookDelivered,
    WebhookDisabled,
    WebhookFailed,
    claimed,
)
from fileq.core.job import Claim, encode, typed_job
from fileq.observe.depths import Depths
from fileq.observe.metrics import Metrics
from tests.support.event_samples import claim_event, end_event, fence_event

QUEUES = ("high", "low")
COUNTERS = {
    "jobs_produced_total",
    "jobs_consumed_total",
    "jobs_completed_total",
    "jobs_failed_total",
    "jobs_retried_total",
    "jobs_dead_letter_total",
    "jobs_fenced_total",
    "jobs_superseded_total",
    "jobs_vanished_total",
    "reaper_recovered_total",
    "circuit_breaker_trips_total",
    "follow_ups_total",
    "batches_finished_total",
    "batch_members_reconciled_total",
    "hook_failures_total",
    "hook_events_dropped_total",
    "schedules_fired_total",
    "schedules_missed_total",
    "schedules_broken_total",
    "webhook_deliveries_total",
    "webhook_failures_total",
    "webhooks_disabled_total",
}
HISTOGRAMS = {"job_processing_duration_seconds", "job_pickup_latency_seconds", "producer_scan_duration_seconds"}
PLACES = {"high", "low", "scheduled", "dead_letter", "processing"}


def series(metrics: Metrics) -> dict[str, float]:
    """Name and labels to value."""
    found = {}
    for family in text_string_to_metric_families(metrics.text().decode()):
        for sample in family.samples:
            labels = ",".join(f"{name}={value}" for name, value in sorted(sample.labels.items()))
            found[f"{sample.name}{{{labels}}}" if labels else sample.name] = sample.value
    return found


def changes(metrics: Metrics, *events: Event) -> dict[str, float]:
    """What these events add to each series, without the buckets of histograms."""
    before = series(metrics)
    for event in events:
        metrics.count([event])
    after = series(metrics)
    assert after.keys() == before.keys()
    return {
        name: after[name] - before[name]
        for name in after
        if after[name] != before[name] and "bucket" not in name and not math.isnan(after[name])
    }


def test_every_series_of_the_contract_is_there_from_the_start_and_zero() -> None:
    metrics = Metrics(QUEUES)
    metrics.depths = lambda: Depths(dict.fromkeys(PLACES, 0), dict.fromkeys(QUEUES, 0.0))
    found = series(metrics)
    expected = (
        COUNTERS
        | {f"producer_files_skipped_total{{reason={reason}}}" for reason in SkipReason}
        | {f"{name}_{part}" for name in HISTOGRAMS for part in ("count", "sum")}
        | {f"queue_length{{queue={place}}}" for place in PLACES}
        | {f"queue_oldest_age_seconds{{queue={queue}}}" for queue in QUEUES}
        | {"worker_active", "circuit_breaker_state", "fileq_broker_up", "batches_unfinished"}
    )
    assert {name for name in found if "_bucket" not in name} == expected
    assert {name for name, value in found.items() if value} == {"fileq_broker_up"}


def test_types_are_those_of_the_contract() -> None:
    lines = Metrics(QUEUES).text().decode().splitlines()
    types = dict(line.split()[2:] for line in lines if line.startswith("# TYPE"))
    assert {name for name, type in types.items() if type == "counter"} == COUNTERS | {"producer_files_skipped_total"}
    assert {name for name, type in types.items() if type == "histogram"} == HISTOGRAMS
    assert len(types) == len(COUNTERS) + 1 + len(HISTOGRAMS) + 8


JOB = typed_job("t", None, priority="low", now=datetime.now(UTC), id="x")
ATTEMPT = {"job_processing_duration_seconds_count": 1}


@pytest.mark.parametrize(
    ("process_at", "waited_ms"),
    [("", 5_000), ("2026-01-02T03:04:07Z", 3_000), ("2026-01-02T02:04:05Z", 5_000), ("2025-01-01T00:00:00Z", 5_000)],
)
def test_a_job_waits_from_its_time_or_from_its_enqueueing_whichever_is_later(process_at: str, waited_ms: int) -> None:
    enqueued = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
    job = typed_job("t", None, priority="low", now=enqueued, id="x").but(process_at=process_at or None)
    claim = Claim("w", 1, "low", encode(job), job, "x", claimed_ms=round(enqueued.timestamp() * 1000) + 5_000)
    assert claimed(claim).waited_ms == waited_ms


@pytest.mark.parametrize(
    ("event", "added"),
    [
        (JobProduced("x", "/in/a", None, "", "", "low", JOB), {"jobs_produced_total": 1}),
        (claim_event(JOB, waited_ms=250), {"jobs_consumed_total": 1, "job_pickup_latency_seconds_count": 1}),
        (claim_event(JOB), {"jobs_consumed_total": 1}),
        (end_event(JobCompleted, duration_ms=250), {"jobs_completed_total": 1, **ATTEMPT}),
        (end_event(JobCompleted, is_superseded=True), {"jobs_completed_total": 1, "jobs_superseded_total": 1}),
        (end_event(JobCompleted, is_vanished=True), {"jobs_completed_total": 1, "jobs_vanished_total": 1}),
        (end_event(JobDead, is_vanished=True), {"jobs_dead_letter_total": 1, "jobs_vanished_total": 1}),
        (end_event(JobFailed, duration_ms=250), {"jobs_failed_total": 1, "jobs_retried_total": 1, **ATTEMPT}),
        (
            end_event(JobDead, duration_ms=250, is_failure=True),
            {"jobs_dead_letter_total": 1, "jobs_failed_total": 1, **ATTEMPT},
        ),
        (end_event(JobDead, duration_ms=250), {"jobs_dead_letter_total": 1}),
        (fence_event(), {"jobs_fenced_total": 1}),
        (end_event(JobRecovered, duration_ms=250), {"reaper_recovered_total": 1}),
        (end_event(JobReleased, duration_ms=250), {}),
        (end_event(JobCancelled, duration_ms=250), {}),
        (BreakerOpened("closed"), {"circuit_breaker_trips_total": 1}),
        (JobFollowed("a", None, "t", "", "", "low", 3, 2), {"follow_ups_total": 3}),
        (HookFailed("app:tell", "job.dead", "ValueError", 4), {"hook_failures_total": 4}),
        (BatchFinished("b", "nightly", 3, 3), {"batches_finished_total": 1}),
        (BatchReconciled("b", None, 4), {"batch_members_reconciled_total": 4}),
        (ScheduleFired("s", "sched.s.1", "2026-01-01T00:00:00.000Z", 3), {"schedules_fired_total": 1}),
        (ScheduleMissed("s", 4, "2026-01-01T00:00:00.000Z", "why"), {"schedules_missed_total": 4}),
        (ScheduleBroken("s", "no queue"), {"schedules_broken_total": 1}),
        (HookEventsDropped(5, "app:tell"), {"hook_events_dropped_total": 5}),
        (WebhookDelivered("a", "d", "job.dead", 200, 9), {"webhook_deliveries_total": 1}),
        (WebhookFailed("a", "d", "job.dead", None, "x", 9), {"webhook_failures_total": 1}),
        (WebhookDisabled("a", "x"), {"webhooks_disabled_total": 1}),
        (BreakerHalfOpened("open"), {}),
        (BreakerClosed("half-open"), {}),
        (ScanFinished(0.25, True), {"producer_scan_duration_seconds_count": 1}),
        (SkippedFilesCounted({SkipReason.LOOP: 2}), {"producer_files_skipped_total{reason=loop}": 2}),
        (RoleStopped(), {}),
    ],
)
def test_each_event_changes_exactly_its_metrics(event: Event, added: dict[str, float]) -> None:
    sums = {name.replace("_count", "_sum"): 0.25 for name in added if name.endswith("_count")}
    assert changes(Metrics(QUEUES), event) == added | sums


def test_a_histogram_counts_each_value_in_every_bucket_it_is_below() -> None:
    metrics = Metrics(QUEUES)
    for duration_ms in (0, 5, 6, 10_000_000):
        metrics.count([end_event(JobCompleted, duration_ms=duration_ms)])
    found = series(metrics)
    counts = [found[f"job_processing_duration_seconds_bucket{{le={le}}}"] for le in ("0.005", "0.01", "1800.0", "+Inf")]
    assert counts == [2, 3, 3, 4]
    assert found["job_processing_duration_seconds_sum"] == 10_000.011


def test_without_an_answer_from_the_broker_its_gauges_are_nan_and_the_rest_is_served() -> None:
    metrics = Metrics(QUEUES)
    metrics.slots, metrics.breakers = lambda: 4, lambda: [("**/*.pdf", 2), ("mail", 0)]
    metrics.deferred = lambda: [("**/*.pdf", 25), ("mail", 0)]
    metrics.count([fence_event()])
    found = series(metrics)
    assert found["fileq_broker_up"] == 0
    unknown = {name.partition("{")[0] for name, value in found.items() if math.isnan(value)}
    assert unknown == {"queue_length", "queue_oldest_age_seconds", "batches_unfinished"}
    assert (found["jobs_fenced_total"], found["worker_active"], found["circuit_breaker_state"]) == (1, 4, 2)
    states = {name: value for name, value in found.items() if name.startswith("fileq_breaker_state")}
    assert states == {"fileq_breaker_state{route=**/*.pdf}": 2, "fileq_breaker_state{route=mail}": 0}
    assert found["fileq_breaker_deferred{route=**/*.pdf}"] == 25


def test_the_lengths_of_the_broker_are_shown_by_place() -> None:
    depths = Depths(
        {"high": 1, "low": 2, "scheduled": 3, "dead_letter": 4, "processing": 5}, {"high": 1.5, "low": 0.0}, 6
    )
    metrics = Metrics(QUEUES)
    metrics.depths = lambda: depths
    found = series(metrics)
    assert {place: found[f"queue_length{{queue={place}}}"] for place in PLACES} == depths.lengths
    assert found["queue_oldest_age_seconds{queue=high}"] == 1.5
    assert (found["fileq_broker_up"], found["batches_unfinished"]) == (1, 6)


def test_an_unknown_reason_makes_no_new_series() -> None:
    metrics = Metrics(["high", "low"])
    before = series(metrics)
    with pytest.raises(KeyError):
        metrics.count([SkippedFilesCounted({"made up": 3})])  # type: ignore[dict-item]
    assert series(metrics).keys() == before.keys()
