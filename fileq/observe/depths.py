"""The number of jobs in each place of the broker, read on demand and cached for a moment.

A broker that does not answer delays one caller by a fraction of a second. The read continues in a thread of its own,
and until it ends other callers get "unknown" at once.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Mapping, Sequence

from msgspec import Struct

from fileq.brokers.protocol import Inspector
from fileq.core.errors import BrokerUnavailable, Undecodable
from fileq.core.job import decode, parse_time
from fileq.core.units import two_units

OTHER_PLACES = ("scheduled", "dead_letter", "processing")
UNKNOWN = math.nan
FRESH_S = 2.0  # how long a result is cached
FAILED_S = 0.5  # how long a failure is cached
WAIT_S = 0.3  # how long one caller waits for a result
SILENT_S = 1.0  # a broker that has not answered for this long counts as unreachable


class Depths(Struct, frozen=True):
    lengths: Mapping[str, float]  # by place
    ages_s: Mapping[str, float]
    unfinished_batches: int = 0


class DepthGauge:
    """Runs at most one read at a time, however many callers there are."""

    def __init__(
        self, inspector: Inspector, queues: Sequence[str], *, monotonic: Callable[[], float] = time.monotonic
    ) -> None:
        self._inspector = inspector
        self._queues = tuple(queues)
        self._monotonic = monotonic
        self._lock = threading.Lock()
        self._current_read: _Read | None = None

    def read(self) -> Depths | None:
        """The numbers, at most FRESH_S old; None if the broker did not answer in time."""
        read = self._current()
        if not read.is_over.is_set() and self._monotonic() < read.started_s + WAIT_S:
            read.is_over.wait(read.started_s + WAIT_S - self._monotonic())
        return read.result

    def problem(self) -> str:
        """Why the broker counts as unreachable; "" while it answers or may still answer in time."""
        read = self._current()
        silent_s = self._monotonic() - read.started_s
        if not read.is_over.is_set() and silent_s >= SILENT_S:
            return f"the broker has not answered for {two_units(silent_s)}"
        return read.problem

    def _current(self) -> _Read:
        """The current read; starts a new one if the last is out of date."""
        with self._lock:
            read, now_s = self._current_read, self._monotonic()
            if read is None or (read.is_over.is_set() and now_s >= read.fresh_until_s):
                read = self._current_read = _Read(now_s, read.problem if read is not None else "", threading.Event())
                threading.Thread(target=self._run, args=(read,), name="depths", daemon=True).start()
            return read

    def _run(self, read: _Read) -> None:
        problem = ""
        try:
            read.result = read_depths(self._inspector, self._queues)
        except BrokerUnavailable as error:
            problem = str(error)
        except Exception:
            # Refused, or closed by now. The services that use the broker report that themselves.
            read.result = None
        read.problem = problem
        read.fresh_until_s = self._monotonic() + (FRESH_S if read.result is not None else FAILED_S)
        read.is_over.set()


class _Read(Struct):
    """One read of the broker. Until it ends, the problem of the read before it stays in force."""

    started_s: float
    problem: str
    is_over: threading.Event
    fresh_until_s: float = 0.0
    result: Depths | None = None


def read_depths(inspector: Inspector, queues: Sequence[str]) -> Depths:
    """The lengths in one snapshot, and the age of the next job of each queue."""
    census = inspector.census()
    lengths = {**census.pending, "scheduled": census.scheduled, "dead_letter": census.dead}
    ages_s = {queue: _age_s(inspector, queue, census.now_ms) if census.pending.get(queue) else 0.0 for queue in queues}
    return Depths({**lengths, "processing": census.running}, ages_s, census.unfinished_batches)


def _age_s(inspector: Inspector, queue: str, now_ms: int) -> float:
    """Seconds since the next job was created, became due or was last tried, whichever came last; 0 if unknown."""
    for raw in inspector.peek(queue, 1):
        try:
            job = decode(raw)
        except Undecodable:
            continue
        [record] = inspector.records([job.id])
        moments = [parse_time(text) for text in (job.creation_time, job.process_at) if text]
        moments_ms = [moment.timestamp() * 1000 for moment in moments if moment is not None]
        moments_ms += [attempt.ended_ms for attempt in (record.attempts[-1:] if record is not None else ())]
        return max(0.0, now_ms - max(moments_ms, default=now_ms)) / 1000
    return 0.0
