"""The `produce` spans of jobs that a command enqueues, so that their traces start where the jobs were made."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from fileq.brokers.types import Entry
from fileq.config import Config
from fileq.core.text import printable

if TYPE_CHECKING:
    from fileq.observe.tracing import Tracing


class ProduceSpans:
    """Sends one span a job, if tracing is on. A collector that is down costs a short wait and never raises."""

    def __init__(self, config: Config) -> None:
        self._reasons: list[str] = []
        self._tracing: Tracing | None = None
        if config.observability.tracing.enabled:
            from fileq.observe.tracing import open_tracing

            self._tracing = open_tracing(config, self._lost)

    def add(self, entries: Iterable[Entry]) -> None:
        if self._tracing is not None:
            produced = self._tracing.around(lambda event, **fields: None)
            for entry in entries:
                produced("job.produced", job=entry.job, queue=entry.queue)

    def send(self) -> str:
        """Flushes the spans. Returns why some were not sent; "" if all were."""
        if self._tracing is None or self._tracing.close():
            return ""
        return self._reasons[0] if self._reasons else "the collector takes too long"

    def _lost(self, event: str, *, level: str = "info", **fields: Any) -> None:
        if "error" in fields:
            self._reasons.append(printable(str(fields["error"])))
