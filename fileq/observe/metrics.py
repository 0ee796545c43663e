"""Prometheus metrics, made from what services tell. No label holds a path, an id, a host or a pid.

Told of something, it adds to a number under a lock and nothing else: names, texts and the broker's own numbers are for
the moment somebody asks. Every series is there from the start, so that their number never changes.
"""

from __future__ import annotations

import threading
from bisect import bisect_left
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import accumulate
from typing import Any, TypeAlias

from msgspec import Struct
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from fileq.observe.depths import OTHER_PLACES, UNKNOWN, Depths

SKIPPED = "skipped:"
REASONS = ("excluded", "symlink", "outside", "loop", "special", "unreadable", "vanished", "changing", "unmarked")
CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

JOB_BOUNDS_S = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300, 1800)
PICKUP_BOUNDS_S = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300, 1800, 7200)
SCAN_BOUNDS_S = (0.01, 0.1, 0.5, 1, 5, 15, 60, 300, 1800)
Fields: TypeAlias = Mapping[str, Any]


class Described(Struct, frozen=True):
    """One metric as docs/metrics.md lists it. Histograms have bounds; of labels there is one at most."""

    name: str
    type: str
    help: str
    label: str = ""
    bounds: tuple[float, ...] = ()


METRICS = (
    Described("jobs_produced_total", "counter", "Jobs that this process enqueued."),
    Described("jobs_consumed_total", "counter", "Jobs that this process claimed."),
    Described("jobs_completed_total", "counter", "Jobs that this process completed."),
    Described("jobs_failed_total", "counter", "Attempts that failed in this process, each of a job's."),
    Described("jobs_retried_total", "counter", "Failed attempts after which the job waits for another."),
    Described("jobs_dead_letter_total", "counter", "Jobs that this process gave up."),
    Described("jobs_fenced_total", "counter", "Outcomes that came after the job was given to somebody else."),
    Described(
        "jobs_superseded_total", "counter", "Jobs completed because a newer version of their file has its own job."
    ),
    Described("reaper_recovered_total", "counter", "Jobs given back after the death of what ran them."),
    Described("circuit_breaker_trips_total", "counter", "Times the breaker of this process opened."),
    Described("producer_files_skipped_total", "counter", "Files seen and not enqueued, by reason.", "reason"),
    Described("job_processing_duration_seconds", "histogram", "Time one attempt took.", bounds=JOB_BOUNDS_S),
    Described(
        "job_pickup_latency_seconds", "histogram", "Time from a job's being ready to its claim.", bounds=PICKUP_BOUNDS_S
    ),
    Described("producer_scan_duration_seconds", "histogram", "Time one whole scan took.", bounds=SCAN_BOUNDS_S),
    Described("queue_length", "gauge", "Jobs in a place of the broker, the same from every process.", "queue"),
    Described(
        "queue_oldest_age_seconds", "gauge", "How long the next job of a queue has been ready; 0 when empty.", "queue"
    ),
    Described("worker_active", "gauge", "Slots of this process that take jobs; 0 where it is no worker."),
    Described("circuit_breaker_state", "gauge", "Breaker of this process: 0 closed, 1 half-open, 2 open."),
    Described("fileq_broker_up", "gauge", "1 when the broker answered just now, else 0."),
)


class Metrics(Collector):
    """Listens on the channel, counts, and can be scraped. The three callables are asked at each scrape."""

    def __init__(
        self,
        queues: Sequence[str],
        *,
        depths: Callable[[], Depths | None] = lambda: None,
        slots: Callable[[], int] = lambda: 0,
        breaker: Callable[[], int] = lambda: 0,
    ) -> None:
        self.depths = depths
        self.slots = slots
        self.breaker = breaker
        self._queues = tuple(queues)
        self._lock = threading.Lock()
        self._counts = {m.name: 0 for m in METRICS if m.type == "counter" and not m.label}
        self._skipped = dict.fromkeys(REASONS, 0)
        self._histograms = {m.name: _Histogram(m.bounds) for m in METRICS if m.type == "histogram"}
        self._listeners: dict[str, Callable[[Fields], None]] = {
            "job.claimed": self._claimed,
            "job.completed": self._completed,
            "job.failed": self._failed,
            "job.dead": self._dead,
            "job.fenced": lambda fields: self._add("jobs_fenced_total"),
            "job.recovered": lambda fields: self._add("reaper_recovered_total"),
            "breaker.changed": self._breaker_changed,
            "scan.finished": self._scanned,
            "producer.counted": self._produced,
        }
        self._registry = CollectorRegistry()
        self._registry.register(self)

    def emit(self, event: str, *, level: str = "info", **fields: Any) -> None:
        self.hear(event, fields)

    def hear(self, event: str, fields: Fields) -> None:
        """The same for whoever has the fields in hand already."""
        listener = self._listeners.get(event)
        if listener is not None:
            with self._lock:
                listener(fields)

    def text(self) -> bytes:
        """All of it, in Prometheus's text format."""
        return generate_latest(self._registry)

    # what was told; called with the lock held

    def _add(self, name: str) -> None:
        self._counts[name] += 1

    def _claimed(self, fields: Fields) -> None:
        self._counts["jobs_consumed_total"] += 1
        waited_ms = fields.get("waited_ms")
        if waited_ms is not None:
            self._histograms["job_pickup_latency_seconds"].observe(waited_ms / 1000)

    def _completed(self, fields: Fields) -> None:
        self._counts["jobs_completed_total"] += 1
        if fields.get("is_superseded"):
            self._counts["jobs_superseded_total"] += 1
        else:
            self._took(fields)

    def _failed(self, fields: Fields) -> None:
        self._counts["jobs_failed_total"] += 1
        self._counts["jobs_retried_total"] += 1
        self._took(fields)

    def _dead(self, fields: Fields) -> None:
        self._counts["jobs_dead_letter_total"] += 1
        if fields.get("is_failure"):  # else its worker died once too often, and no attempt has failed
            self._counts["jobs_failed_total"] += 1
            self._took(fields)

    def _took(self, fields: Fields) -> None:
        self._histograms["job_processing_duration_seconds"].observe(fields.get("duration_ms", 0) / 1000)

    def _breaker_changed(self, fields: Fields) -> None:
        self._counts["circuit_breaker_trips_total"] += fields["state"] == "open"

    def _scanned(self, fields: Fields) -> None:
        self._histograms["producer_scan_duration_seconds"].observe(fields["seconds"])

    def _produced(self, fields: Fields) -> None:
        for name, by in fields["counts"].items():
            if name == "enqueued":
                self._counts["jobs_produced_total"] += by
            elif name.startswith(SKIPPED):
                self._skipped[name.removeprefix(SKIPPED)] += by

    # what is asked

    def describe(self) -> list[Metric]:
        """Nothing: the registry need not look into it before somebody scrapes."""
        return []

    def collect(self) -> Iterator[Metric]:
        # Before the lock: it may wait for the broker, and nobody who tells must wait for that.
        gauges = self._gauges()
        with self._lock:
            counts, skipped = dict(self._counts), dict(self._skipped)
            histograms = {name: histogram.read() for name, histogram in self._histograms.items()}
        for metric in METRICS:
            if metric.type == "gauge":
                gauge = GaugeMetricFamily(metric.name, metric.help, labels=_labels(metric))
                for value, labels in gauges[metric.name]:
                    gauge.add_metric(labels, value)
                yield gauge
            elif metric.type == "histogram":
                buckets, total_s = histograms[metric.name]
                yield HistogramMetricFamily(metric.name, metric.help, buckets=buckets, sum_value=total_s)
            else:
                counter = CounterMetricFamily(metric.name, metric.help, labels=_labels(metric))
                series = skipped.items() if metric.label else [("", counts[metric.name])]
                for label, count in series:
                    counter.add_metric([label] if metric.label else [], count)
                yield counter

    def _gauges(self) -> dict[str, list[tuple[float, list[str]]]]:
        """Values with their labels. What the broker does not tell is not a number, rather than an old one."""
        depths = self.depths()
        lengths, ages = (depths.lengths, depths.ages_s) if depths is not None else ({}, {})
        places = (*self._queues, *OTHER_PLACES)
        return {
            "queue_length": [(lengths.get(place, UNKNOWN), [place]) for place in places],
            "queue_oldest_age_seconds": [(ages.get(queue, UNKNOWN), [queue]) for queue in self._queues],
            "worker_active": [(self.slots(), [])],
            "circuit_breaker_state": [(self.breaker(), [])],
            "fileq_broker_up": [(depths is not None, [])],
        }


class _Histogram:
    """Counts by upper bound; added up only when read."""

    def __init__(self, bounds: tuple[float, ...]) -> None:
        self._bounds = bounds
        self._counts = [0] * (len(bounds) + 1)
        self._total = 0.0

    def observe(self, value: float) -> None:
        self._counts[bisect_left(self._bounds, value)] += 1
        self._total += value

    def read(self) -> tuple[list[tuple[str, float]], float]:
        bounds = [*(repr(float(bound)) for bound in self._bounds), "+Inf"]
        return list(zip(bounds, accumulate(self._counts), strict=True)), self._total


def _labels(metric: Described) -> list[str]:
    return [metric.label] if metric.label else []
