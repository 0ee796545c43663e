"""What is counted for which event, and that nothing that happens adds a series."""

from __future__ import annotations

import ast
import math
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from fileq.observe.depths import Depths
from fileq.observe.metrics import REASONS, Metrics

QUEUES = ("high", "low")
PRODUCER = Path(__file__).parents[2] / "fileq/producer"
COUNTERS = {
    "jobs_produced_total",
    "jobs_consumed_total",
    "jobs_completed_total",
    "jobs_failed_total",
    "jobs_retried_total",
    "jobs_dead_letter_total",
    "jobs_fenced_total",
    "jobs_superseded_total",
    "reaper_recovered_total",
    "circuit_breaker_trips_total",
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


def changes(metrics: Metrics, *events: tuple[str, dict[str, Any]]) -> dict[str, float]:
    """What these events add, but for the buckets of histograms."""
    before = series(metrics)
    for event, fields in events:
        metrics.emit(event, **fields)
    after = series(metrics)
    assert after.keys() == before.keys()
    return {
        name: after[name] - before[name]
        for name in after
        if after[name] != before[name] and "bucket" not in name and not math.isnan(after[name])
    }


def test_every_series_of_the_contract_is_there_from_the_start_and_zero() -> None:
    found = series(Metrics(QUEUES, depths=lambda: Depths(dict.fromkeys(PLACES, 0), dict.fromkeys(QUEUES, 0.0))))
    expected = (
        COUNTERS
        | {f"producer_files_skipped_total{{reason={reason}}}" for reason in REASONS}
        | {f"{name}_{part}" for name in HISTOGRAMS for part in ("count", "sum")}
        | {f"queue_length{{queue={place}}}" for place in PLACES}
        | {f"queue_oldest_age_seconds{{queue={queue}}}" for queue in QUEUES}
        | {"worker_active", "circuit_breaker_state", "fileq_broker_up"}
    )
    assert {name for name in found if "_bucket" not in name} == expected
    assert {name for name, value in found.items() if value} == {"fileq_broker_up"}


def test_types_are_those_of_the_contract() -> None:
    lines = Metrics(QUEUES).text().decode().splitlines()
    types = dict(line.split()[2:] for line in lines if line.startswith("# TYPE"))
    assert {name for name, type in types.items() if type == "counter"} == COUNTERS | {"producer_files_skipped_total"}
    assert {name for name, type in types.items() if type == "histogram"} == HISTOGRAMS
    assert len(types) == len(COUNTERS) + 1 + len(HISTOGRAMS) + 5


@pytest.mark.parametrize(
    ("event", "fields", "added"),
    [
        ("job.claimed", {"waited_ms": 250}, {"jobs_consumed_total": 1, "job_pickup_latency_seconds_count": 1}),
        ("job.claimed", {"waited_ms": None}, {"jobs_consumed_total": 1}),
        ("job.claimed", {}, {"jobs_consumed_total": 1}),
        (
            "job.completed",
            {"duration_ms": 250},
            {"jobs_completed_total": 1, "job_processing_duration_seconds_count": 1},
        ),
        (
            "job.completed",
            {"duration_ms": 0, "is_superseded": True},
            {"jobs_completed_total": 1, "jobs_superseded_total": 1},
        ),
        (
            "job.failed",
            {"duration_ms": 250},
            {"jobs_failed_total": 1, "jobs_retried_total": 1, "job_processing_duration_seconds_count": 1},
        ),
        (
            "job.dead",
            {"duration_ms": 250, "is_failure": True},
            {"jobs_dead_letter_total": 1, "jobs_failed_total": 1, "job_processing_duration_seconds_count": 1},
        ),
        ("job.dead", {"duration_ms": 250}, {"jobs_dead_letter_total": 1}),
        ("job.fenced", {}, {"jobs_fenced_total": 1}),
        ("job.recovered", {"duration_ms": 250}, {"reaper_recovered_total": 1}),
        ("job.released", {"duration_ms": 250}, {}),
        ("job.cancelled", {"duration_ms": 250}, {}),
        ("breaker.changed", {"state": "open"}, {"circuit_breaker_trips_total": 1}),
        ("breaker.changed", {"state": "half-open"}, {}),
        ("breaker.changed", {"state": "closed"}, {}),
        ("scan.finished", {"seconds": 0.25}, {"producer_scan_duration_seconds_count": 1}),
        (
            "producer.counted",
            {"counts": {"enqueued": 3, "known": 5, "found": 8, "skipped:loop": 2}},
            {"jobs_produced_total": 3, "producer_files_skipped_total{reason=loop}": 2},
        ),
        ("something.else", {"job_id": "x"}, {}),
    ],
)
def test_each_event_counts_what_it_says(event: str, fields: dict[str, Any], added: dict[str, float]) -> None:
    sums = {name.replace("_count", "_sum"): 0.25 for name in added if name.endswith("_count")}
    assert changes(Metrics(QUEUES), (event, fields)) == added | sums


def test_a_histogram_counts_each_value_in_every_bucket_it_is_below() -> None:
    metrics = Metrics(QUEUES)
    for duration_ms in (0, 5, 6, 10_000_000):
        metrics.emit("job.completed", duration_ms=duration_ms)
    found = series(metrics)
    counts = [found[f"job_processing_duration_seconds_bucket{{le={le}}}"] for le in ("0.005", "0.01", "1800.0", "+Inf")]
    assert counts == [2, 3, 3, 4]
    assert found["job_processing_duration_seconds_sum"] == 10_000.011


def test_every_reason_that_a_producer_gives_has_its_series() -> None:
    given = {
        node.args[0].value
        for path in PRODUCER.glob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and node.func.attr in ("report", "_skip")
        and isinstance(node.args[0], ast.Constant)
    }
    assert given == set(REASONS)


def test_what_the_broker_does_not_tell_is_not_a_number_and_the_rest_is_served() -> None:
    metrics = Metrics(QUEUES, slots=lambda: 4, breaker=lambda: 2)
    metrics.emit("job.fenced")
    found = series(metrics)
    assert found["fileq_broker_up"] == 0
    unknown = {name.partition("{")[0] for name, value in found.items() if math.isnan(value)}
    assert unknown == {"queue_length", "queue_oldest_age_seconds"}
    assert (found["jobs_fenced_total"], found["worker_active"], found["circuit_breaker_state"]) == (1, 4, 2)


def test_what_the_broker_tells_is_shown_by_place() -> None:
    depths = Depths({"high": 1, "low": 2, "scheduled": 3, "dead_letter": 4, "processing": 5}, {"high": 1.5, "low": 0.0})
    found = series(Metrics(QUEUES, depths=lambda: depths))
    assert {place: found[f"queue_length{{queue={place}}}"] for place in PLACES} == depths.lengths
    assert found["queue_oldest_age_seconds{queue=high}"] == 1.5
    assert found["fileq_broker_up"] == 1
