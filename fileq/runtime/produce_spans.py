"""The `produce` spans of jobs that a command enqueues, so that their traces start where the jobs were made."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from fileq.brokers.types import Entry
from fileq.config import Config
from fileq.core.events import CollectorLost, Event, produced
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

            self._tracing = open_tracing(config, self._listen)

    def add(self, entries: Iterable[Entry]) -> None:
        if self._tracing is not None:
            for entry in entries:
                self._tracing.traced(produced(entry.job, entry.queue))

    def send(self) -> str:
        """Flushes the spans. Returns why some were not sent; "" if all were."""
        if self._tracing is None or self._tracing.close():
            return ""
        return self._reasons[0] if self._reasons else "the collector takes too long"

    def _listen(self, event: Event) -> None:
        if isinstance(event, CollectorLost):
            self._reasons.append(printable(event.error))
