"""Prometheus metrics, derived from events. No label holds a path, an id, a host or a pid.

An event only adds to numbers under a lock. Names, texts and the broker's gauges are computed when Prometheus scrapes.
Every series exists from the start, so the number of series never changes.
"""

from __future__ import annotations

import functools
import threading
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import accumulate
from typing import Any, TypeAlias

from msgspec import Struct
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from fileq.core import events
from fileq.core.events import AttemptEnded, Event, SkippedFilesCounted, SkipReason
from fileq.observe.depths import OTHER_PLACES, UNKNOWN, Depths

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

JOB_BOUNDS_S = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300, 1800)
PICKUP_BOUNDS_S = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300, 1800, 7200)
SCAN_BOUNDS_S = (0.01, 0.1, 0.5, 1, 5, 15, 60, 300, 1800)


EventType: TypeAlias = type[Event]


class MetricInfo(Struct, frozen=True):
    """One metric as docs/metrics.md lists it. Histograms have bounds; a metric has at most one label. A counter with an
    `event` counts these events or, with an `amount`, sums this field of them."""

    name: str
    type: str
    help: str
    label: str = ""
    bounds: tuple[float, ...] = ()
    event: EventType | None = None
    amount: str = ""


def _counter(name: str, help: str, event: EventType | None = None, amount: str = "") -> MetricInfo:
    return MetricInfo(name, "counter", help, event=event, amount=amount)


METRICS = (
    _counter("jobs_produced_total", "Jobs that this process enqueued.", events.JobProduced),
    _counter("jobs_consumed_total", "Jobs that this process claimed."),
    _counter("jobs_completed_total", "Jobs that this process completed."),
    _counter("jobs_failed_total", "Failed attempts in this process; a job can fail several times."),
    _counter("jobs_retried_total", "Failed attempts after which the job will be retried."),
    _counter("jobs_dead_letter_total", "Jobs that this process moved to the dead-letter queue."),
    _counter("jobs_fenced_total", "Outcomes that were rejected because the slot had lost the job.", events.JobFenced),
    _counter("jobs_superseded_total", "Jobs completed because a newer version of their file has its own job."),
    _counter("jobs_vanished_total", "Jobs that did not run because their file no longer existed."),
    _counter("reaper_recovered_total", "Jobs requeued after the process that ran them died.", events.JobRecovered),
    _counter("circuit_breaker_trips_total", "How often a breaker of this process opened.", events.BreakerOpened),
    _counter(
        "follow_ups_total", "Follow-ups enqueued when jobs of this process ended.", events.JobFollowed, "follow_ups"
    ),
    _counter("batches_finished_total", "Batches whose last job this process settled.", events.BatchFinished),
    _counter(
        "batch_members_reconciled_total",
        "Batch members that ended without being counted; this process counted them.",
        events.BatchReconciled,
        "counted",
    ),
    _counter(
        "hook_failures_total",
        "Hook calls that raised an error; counted up to a minute late.",
        events.HookFailed,
        "failures",
    ),
    _counter(
        "hook_events_dropped_total", "Events dropped because hooks were too slow.", events.HookEventsDropped, "count"
    ),
    _counter("schedules_fired_total", "Scheduled runs for which this process enqueued the job.", events.ScheduleFired),
    _counter(
        "schedules_missed_total", "Scheduled runs that this process counted as missed.", events.ScheduleMissed, "count"
    ),
    _counter(
        "schedules_broken_total", "How often this process found that it can't fire a schedule.", events.ScheduleBroken
    ),
    _counter("webhook_deliveries_total", "Webhook deliveries that receivers accepted.", events.WebhookDelivered),
    _counter("webhook_failures_total", "Webhook delivery attempts that failed.", events.WebhookFailed),
    _counter("webhooks_disabled_total", "Webhooks that this process disabled.", events.WebhookDisabled),
    MetricInfo(
        "producer_files_skipped_total",
        "counter",
        "Files that a scan or a file-system event found and did not enqueue, by reason. Each scan counts the same file "
        "again; `fileq stats` shows the number of files of the last scan.",
        "reason",
    ),
    MetricInfo("job_processing_duration_seconds", "histogram", "Duration of one attempt.", bounds=JOB_BOUNDS_S),
    MetricInfo(
        "job_pickup_latency_seconds",
        "histogram",
        "Time between a job being ready and being claimed.",
        bounds=PICKUP_BOUNDS_S,
    ),
    MetricInfo("producer_scan_duration_seconds", "histogram", "Duration of one full scan.", bounds=SCAN_BOUNDS_S),
    MetricInfo(
        "queue_length", "gauge", "Jobs in each place of the broker; the same value from every process.", "queue"
    ),
    MetricInfo(
        "queue_oldest_age_seconds", "gauge", "How long the next job of a queue has been ready; 0 when empty.", "queue"
    ),
    MetricInfo("batches_unfinished", "gauge", "Open or sealed batches; the same value from every process."),
    MetricInfo("worker_active", "gauge", "Slots of this process that take jobs; 0 if it is not a worker."),
    MetricInfo("circuit_breaker_state", "gauge", "Worst breaker of this process: 0 closed, 1 half-open, 2 open."),
    MetricInfo("fileq_breaker_state", "gauge", "Breaker of a route: 0 closed, 1 half-open, 2 open.", "route"),
    MetricInfo(
        "fileq_breaker_deferred",
        "gauge",
        "Jobs that this process deferred because their route's breaker is not closed.",
        "route",
    ),
    MetricInfo("fileq_broker_up", "gauge", "1 if the broker answered the last check, else 0."),
)


class Metrics(Collector):
    """Counts events and can be scraped. The callables, which can be set, are called at each scrape."""

    def __init__(self, queues: Sequence[str]) -> None:
        self.depths: Callable[[], Depths | None] = lambda: None
        self.slots: Callable[[], int] = lambda: 0
        self.breakers: Callable[[], Sequence[tuple[str, int]]] = lambda: ()
        self.deferred: Callable[[], Sequence[tuple[str, int]]] = lambda: ()
        self._queues = tuple(queues)
        self._lock = threading.Lock()
        self._counts = {m.name: 0 for m in METRICS if m.type == "counter" and not m.label}
        self._skipped = dict.fromkeys(SkipReason, 0)
        self._histograms = {m.name: _Histogram(m.bounds) for m in METRICS if m.type == "histogram"}
        self._listeners: dict[type[Event], Callable[[Any], None]] = {
            **{m.event: functools.partial(self._count, m.name, m.amount) for m in METRICS if m.event is not None},
            events.JobClaimed: self._claimed,
            events.JobCompleted: self._completed,
            events.JobFailed: self._failed,
            events.JobDead: self._dead,
            events.ScanFinished: self._scanned,
            SkippedFilesCounted: self._files_skipped,
        }
        self._registry = CollectorRegistry()
        self._registry.register(self)

    def count(self, events: Iterable[Event]) -> None:
        """Counts these events, all before the next scrape."""
        listeners = self._listeners
        with self._lock:
            for event in events:
                listener = listeners.get(type(event))
                if listener is not None:
                    listener(event)

    def text(self) -> bytes:
        return generate_latest(self._registry)

    # events; called with the lock held

    def _count(self, name: str, amount: str, event: Event) -> None:
        self._counts[name] += getattr(event, amount) if amount else 1

    def _claimed(self, event: events.JobClaimed) -> None:
        self._counts["jobs_consumed_total"] += 1
        if event.waited_ms is not None:
            self._histograms["job_pickup_latency_seconds"].observe(event.waited_ms / 1000)

    def _completed(self, event: events.JobCompleted) -> None:
        self._counts["jobs_completed_total"] += 1
        if event.is_superseded:
            self._counts["jobs_superseded_total"] += 1
        elif event.is_vanished:
            self._counts["jobs_vanished_total"] += 1
        else:
            self._observe_duration(event)

    def _failed(self, event: events.JobFailed) -> None:
        self._counts["jobs_failed_total"] += 1
        self._counts["jobs_retried_total"] += 1
        self._observe_duration(event)

    def _dead(self, event: events.JobDead) -> None:
        self._counts["jobs_dead_letter_total"] += 1
        if event.is_failure:  # otherwise its worker died once too often, or nothing ran
            self._counts["jobs_failed_total"] += 1
            self._observe_duration(event)
        elif event.is_vanished:
            self._counts["jobs_vanished_total"] += 1

    def _observe_duration(self, event: AttemptEnded) -> None:
        self._histograms["job_processing_duration_seconds"].observe((event.duration_ms or 0) / 1000)

    def _scanned(self, event: events.ScanFinished) -> None:
        self._histograms["producer_scan_duration_seconds"].observe(event.seconds)

    def _files_skipped(self, event: SkippedFilesCounted) -> None:
        for reason, count in event.counts.items():
            self._skipped[reason] += count

    # scrapes

    def describe(self) -> list[Metric]:
        """Empty, so that registering does not collect."""
        return []

    def collect(self) -> Iterator[Metric]:
        # Before the lock: the gauges may wait for the broker, and events must not wait for that.
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
        """Values with their labels. Without an answer from the broker they are NaN, never an old value."""
        depths, breakers = self.depths(), self.breakers()
        lengths, ages = (depths.lengths, depths.ages_s) if depths is not None else ({}, {})
        places = (*self._queues, *OTHER_PLACES)
        return {
            "queue_length": [(lengths.get(place, UNKNOWN), [place]) for place in places],
            "queue_oldest_age_seconds": [(ages.get(queue, UNKNOWN), [queue]) for queue in self._queues],
            "worker_active": [(self.slots(), [])],
            "circuit_breaker_state": [(max((state for _, state in breakers), default=0), [])],
            "fileq_breaker_state": [(state, [route]) for route, state in breakers],
            "fileq_breaker_deferred": [(count, [route]) for route, count in self.deferred()],
            "batches_unfinished": [(depths.unfinished_batches if depths is not None else UNKNOWN, [])],
            "fileq_broker_up": [(depths is not None, [])],
        }


class _Histogram:
    """Counts by upper bound; cumulative sums are computed when read."""

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


def _labels(metric: MetricInfo) -> list[str]:
    return [metric.label] if metric.label else []
