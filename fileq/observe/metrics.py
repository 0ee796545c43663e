"""Prometheus metrics, made from what services tell. No label holds a path, an id, a host or a pid."""

from __future__ import annotations

from typing import Any

from prometheus_client import CollectorRegistry, Counter, Histogram, disable_created_metrics, generate_latest

SKIPPED = "skipped:"
REASONS = ("excluded", "symlink", "outside", "loop", "special", "unreadable", "vanished", "changing", "unmarked")

disable_created_metrics()  # type: ignore[no-untyped-call]  # a second series beside each counter, of no use here


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

    def text(self) -> bytes:
        return generate_latest(self.registry)

    def _count(self, counts: dict[str, int]) -> None:
        self._produced.inc(counts.get("enqueued", 0))
        for name, by in counts.items():
            if name.startswith(SKIPPED):
                self._skipped.labels(name.removeprefix(SKIPPED)).inc(by)
