"""Prometheus metrics, made from what services tell. No label holds a path, an id, a host or a pid."""

from __future__ import annotations

from typing import Any

from prometheus_client import CollectorRegistry, Counter, Histogram, disable_created_metrics, generate_latest

SKIPPED = "skipped:"
REASONS = ("excluded", "symlink", "outside", "loop", "special", "unreadable", "vanished", "changing", "unmarked")

disable_created_metrics()  # type: ignore[no-untyped-call]  # a second series beside each counter, of no use here


# What each event counts. A dead job's last failure is counted where the event says that it was one.
COUNTED = {
    "job.claimed": ("jobs_consumed",),
    "job.completed": ("jobs_completed",),
    "job.failed": ("jobs_failed", "jobs_retried"),
    "job.dead": ("jobs_dead_letter",),
    "job.fenced": ("jobs_fenced",),
    "job.recovered": ("reaper_recovered",),
}
HELP = {
    "jobs_consumed": "Jobs claimed by this process.",
    "jobs_completed": "Jobs that this process completed.",
    "jobs_failed": "Attempts that failed in this process.",
    "jobs_retried": "Failed attempts after which a job waits for another.",
    "jobs_dead_letter": "Jobs that this process gave up.",
    "jobs_fenced": "Outcomes that came after the job was given to somebody else.",
    "jobs_superseded": "Jobs completed because a newer version of their file has a job of its own.",
    "reaper_recovered": "Jobs given back after the death of what ran them.",
    "circuit_breaker_trips": "Times the breaker opened.",
}


class Metrics:
    """Listens on the channel, counts, and can be scraped."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self._produced = Counter("jobs_produced", "Jobs enqueued by this process.", registry=self.registry)
        self._skipped = Counter(
            "producer_files_skipped", "Files seen and not enqueued, by reason.", ["reason"], registry=self.registry
        )
        for reason in REASONS:
            self._skipped.labels(reason)
        self._counters = {name: Counter(name, text, registry=self.registry) for name, text in HELP.items()}
        self._durations = Histogram(
            "job_processing_duration_seconds",
            "Time one attempt took.",
            buckets=(0.005, 0.01, 0.05, 0.1, 0.5, 1, 5, 15, 60, 300, 1800),
            registry=self.registry,
        )
        self._scans = Histogram(
            "producer_scan_duration_seconds",
            "Time one full scan took.",
            buckets=(0.01, 0.1, 0.5, 1, 5, 15, 60, 300, 1800),
            registry=self.registry,
        )

    def emit(self, event: str, *, level: str = "info", **fields: Any) -> None:
        if event == "producer.counted":
            self._count(fields["counts"])
        elif event == "scan.finished":
            self._scans.observe(fields["seconds"])
        elif event == "breaker.changed":
            self._counters["circuit_breaker_trips"].inc(fields["state"] == "open")
        elif event in COUNTED:
            self._count_job(COUNTED[event], fields)

    def text(self) -> bytes:
        return generate_latest(self.registry)

    def _count_job(self, names: tuple[str, ...], fields: dict[str, Any]) -> None:
        for name in names:
            self._counters[name].inc()
        self._counters["jobs_failed"].inc(bool(fields.get("is_failure")))
        self._counters["jobs_superseded"].inc(bool(fields.get("is_superseded")))
        if "duration_ms" in fields:
            self._durations.observe(fields["duration_ms"] / 1000)

    def _count(self, counts: dict[str, int]) -> None:
        self._produced.inc(counts.get("enqueued", 0))
        for name, by in counts.items():
            if name.startswith(SKIPPED):
                self._skipped.labels(name.removeprefix(SKIPPED)).inc(by)
