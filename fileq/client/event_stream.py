"""The events of a queue, as a client follows them. Best effort: those published during an outage are missing."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from fnmatch import fnmatchcase

from fileq.brokers.protocol import Subscription
from fileq.brokers.types import WireEvent
from fileq.client.job_endings import RETRY_S, SLICE_S, decode_event
from fileq.core.errors import BrokerUnavailable, ConfigError
from fileq.core.events import EVENTS
from fileq.core.units import two_units

NAMES = sorted({kind.published_as for kind in EVENTS.values()} - {""})


AGAIN = "connected again"


class LastingSubscription:
    """A subscription that is made again when it breaks. `report` gets the begin and the end of each outage. The first
    one raises BrokerUnavailable, unless `is_patient`."""

    def __init__(
        self,
        subscribe: Callable[[], Subscription],
        report: Callable[[str], None] = lambda text: None,
        *,
        is_patient: bool = False,
    ) -> None:
        self._subscribe = subscribe
        self._report = report
        self._current: Subscription | None = None
        try:
            self._current = subscribe()
        except BrokerUnavailable:
            if not is_patient:
                raise

    @property
    def is_lost(self) -> bool:
        return self._current is None

    def get(self, timeout_s: float) -> bytes | None:
        """The next event; None after the timeout, and if the broker is away."""
        try:
            if self._current is None:
                self._current = self._subscribe()
                self._report(AGAIN)
            return self._current.get(timeout_s)
        except BrokerUnavailable as error:
            if self._current is None:
                time.sleep(RETRY_S)
            self.lose(error)
            return None

    def lose(self, error: BrokerUnavailable) -> None:
        """Has the next get() subscribe again."""
        if self._current is not None:
            self._report(f"{error}; trying again every {two_units(RETRY_S)}")
            self.close()
            self._current = None

    def close(self) -> None:
        with suppress(BrokerUnavailable):
            if self._current is not None:
                self._current.close()


class EventStream(Iterator[WireEvent]):
    """An iterator without an end, which begins when it is made. Iterate, and close() it or use it in a `with`."""

    def __init__(self, subscribe: Callable[[], Subscription], patterns: Sequence[str]) -> None:
        self._patterns = [_pattern(text) for text in patterns]
        self._subscription = LastingSubscription(subscribe)
        self._is_closed = False

    def __next__(self) -> WireEvent:
        while (event := self.next_within(None)) is None:
            if self._is_closed:
                raise StopIteration
        return event

    def next_within(self, timeout_s: float | None, is_stopped: Callable[[], bool] = lambda: False) -> WireEvent | None:
        """The next event; None after the timeout, after close() or once `is_stopped`."""
        until_s = math.inf if timeout_s is None else time.monotonic() + timeout_s
        while not self._is_closed and not is_stopped():
            raw = self._subscription.get(max(0.0, min(SLICE_S, until_s - time.monotonic())))
            if raw is not None and self._is_wanted(event := decode_event(raw)):
                return event
            if time.monotonic() >= until_s:
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


def _pattern(text: str) -> str:
    """`job.dead` means `job:dead`. ConfigError for a pattern that no event can match."""
    pattern = text.replace(".", ":")
    if not any(fnmatchcase(name, pattern) for name in NAMES):
        raise ConfigError(f"no event matches {text!r}; there are {', '.join(NAMES)}")
    return pattern
