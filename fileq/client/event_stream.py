"""The events of a queue, as a client follows them. Best effort: those published during an outage are missing."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from fnmatch import fnmatchcase

from fileq.brokers.types import WireEvent
from fileq.client.job_endings import RETRY_S, SLICE_S, decode_event
from fileq.client.transport import Transport
from fileq.core.errors import BrokerUnavailable, ConfigError
from fileq.core.events import EVENTS

NAMES = sorted({kind.published_as for kind in EVENTS.values()} - {""})


class EventStream(Iterator[WireEvent]):
    """An iterator without an end, which begins when it is made. Iterate, and close() it or use it in a `with`."""

    def __init__(self, transport: Callable[[], Transport], patterns: Sequence[str]) -> None:
        self._patterns = [_pattern(text) for text in patterns]
        self._transport = transport
        self._subscription = transport().subscribe()
        self._is_closed = False

    def __next__(self) -> WireEvent:
        while (event := self.next_within(None)) is None:
            if self._is_closed:
                raise StopIteration
        return event

    def next_within(self, timeout_s: float | None, is_stopped: Callable[[], bool] = lambda: False) -> WireEvent | None:
        """The next event; None after the timeout, after close() or once `is_stopped`."""
        until_s = None if timeout_s is None else time.monotonic() + timeout_s
        while not self._is_closed and not is_stopped():
            left_s = SLICE_S if until_s is None else until_s - time.monotonic()
            try:
                raw = self._subscription.get(max(0.0, min(SLICE_S, left_s)))
            except BrokerUnavailable:
                self._reconnect(is_stopped)
                continue
            if raw is not None and self._is_wanted(event := decode_event(raw)):
                return event
            if until_s is not None and time.monotonic() >= until_s:
                return None
        return None

    def close(self) -> None:
        """May be called from another thread; the iteration then ends within half a second."""
        self._is_closed = True
        self._subscription.close()

    def __enter__(self) -> EventStream:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _is_wanted(self, event: WireEvent) -> bool:
        return not self._patterns or any(fnmatchcase(event.event, pattern) for pattern in self._patterns)

    def _reconnect(self, is_stopped: Callable[[], bool]) -> None:
        self._subscription.close()
        while not self._is_closed and not is_stopped():
            try:
                self._subscription = self._transport().subscribe()
                return
            except BrokerUnavailable:
                time.sleep(RETRY_S)


def _pattern(text: str) -> str:
    """`job.dead` means `job:dead`. ConfigError for a pattern that no event can match."""
    pattern = text.replace(".", ":")
    if not any(fnmatchcase(name, pattern) for name in NAMES):
        raise ConfigError(f"no event matches {text!r}; there are {', '.join(NAMES)}")
    return pattern
