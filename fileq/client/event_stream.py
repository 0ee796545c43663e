"""The events of a queue, as a client follows them. Best effort: those published during an outage are missing."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from fnmatch import fnmatchcase

import msgspec

from fileq.brokers.protocol import Subscription
from fileq.brokers.types import WireEvent
from fileq.core.errors import BrokerUnavailable, ConfigError
from fileq.core.events import EVENTS
from fileq.core.units import two_units

NAMES = sorted({kind.published_as for kind in EVENTS.values()} - {""})
AGAIN = "connected again"
RETRY_S = 1.0
SLICE_S = 0.5  # how long one wait for an event lasts, so that a stop is noticed


class GivenUp(Exception):
    """A caller that waited has stopped."""


class LastingSubscription:
    """A subscription that is made again when it breaks: at once, then every RETRY_S. `report` gets the begin and the
    end of each outage. The first one raises BrokerUnavailable, unless `is_patient`."""

    def __init__(
        self,
        subscribe: Callable[[], Subscription],
        report: Callable[[str], None] = lambda text: None,
        *,
        is_patient: bool = False,
        monotonic: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._subscribe = subscribe
        self._report = report
        self._monotonic = monotonic
        self._sleep = sleep
        self._next_try_s = 0.0
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
        if self._current is None:
            self.renew(timeout_s)
        try:
            return self._current.get(timeout_s) if self._current is not None else None
        except BrokerUnavailable as error:
            self.lose(error)
            return None

    def renew(self, timeout_s: float) -> bool:
        """Subscribes again if the next try is due within the timeout. False if the broker is still away."""
        pause_s = max(0.0, self._next_try_s - self._monotonic())
        self._sleep(min(pause_s, timeout_s))
        if pause_s > timeout_s:
            return False
        self._next_try_s = self._monotonic() + RETRY_S
        try:
            self._current = self._subscribe()
        except BrokerUnavailable:
            return False
        self._report(AGAIN)
        return True

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
        raise ConfigError(f"no event matches {text!r}; known: {', '.join(NAMES)}")
    return pattern


# The events that brokers publish: those of jobs, and those of batches, which have no job


class PublishedBatchEvent(WireEvent, frozen=True):
    """What happened to a batch: a brokers.batches.BatchWireEvent with the fields of a job event, which are empty, so
    that a program can follow both kinds of events."""

    batch_id: str = ""
    total: int = 0
    completed: int = 0
    dead: int = 0
    cancelled: int = 0
    deleted: int = 0


_BATCH = b'{"event":"batch:'
_decode = msgspec.json.Decoder(WireEvent).decode
_decode_batch = msgspec.json.Decoder(PublishedBatchEvent).decode


def decode_event(raw: bytes) -> WireEvent:
    return _decode_batch(raw) if raw.startswith(_BATCH) else _decode(raw)
