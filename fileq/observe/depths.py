"""How much waits in the broker, read when somebody asks and kept for a moment: whoever asks meanwhile shares the look.

A broker that does not answer costs the asker a fraction of a second, once: the look goes on in a thread of its own,
and until it ends everybody is told at once that nothing is known.
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

OTHER_PLACES = ("scheduled", "dead_letter", "processing")
UNKNOWN = math.nan
FRESH_S = 2.0  # how long a look serves
FAILED_S = 0.5  # how long a look that failed does
PATIENCE_S = 0.3  # of somebody who asks
SILENT_S = 1.0  # a broker that has not answered for so long is away, for all we know


class Depths(Struct, frozen=True):
    lengths: Mapping[str, float]  # by the name of the queue, or of another place
    ages_s: Mapping[str, float]


class DepthGauge:
    """One look at a time, whatever the number of those who ask."""

    def __init__(
        self, inspector: Inspector, queues: Sequence[str], *, monotonic: Callable[[], float] = time.monotonic
    ) -> None:
        self._inspector = inspector
        self._queues = tuple(queues)
        self._monotonic = monotonic
        self._lock = threading.Lock()
        self._look: _Look | None = None

    def read(self) -> Depths | None:
        """What waits, no older than FRESH_S; None if the broker did not tell in time."""
        look = self._current()
        if not look.is_over.is_set() and self._monotonic() < look.began_s + PATIENCE_S:
            look.is_over.wait(look.began_s + PATIENCE_S - self._monotonic())
        return look.found

    def problem(self) -> str:
        """Why the broker is away, for all we know; "" while it answers, or may in a moment."""
        look = self._current()
        silent_s = self._monotonic() - look.began_s
        if not look.is_over.is_set() and silent_s >= SILENT_S:
            return f"the broker has not answered for {silent_s:.0f} s"
        return look.problem

    def _current(self) -> _Look:
        """The look that serves now; a new one if the last is out of date."""
        with self._lock:
            look, now_s = self._look, self._monotonic()
            if look is None or (look.is_over.is_set() and now_s >= look.serves_until_s):
                look = self._look = _Look(now_s, look.problem if look is not None else "")
                threading.Thread(target=self._take, args=(look,), name="depths", daemon=True).start()
            return look

    def _take(self, look: _Look) -> None:
        problem = ""
        try:
            look.found = read_depths(self._inspector, self._queues)
        except BrokerUnavailable as error:
            problem = str(error)
        except Exception:
            # Refused, or closed under our feet: the services that work with it know what that means for them.
            look.found = None
        look.problem = problem
        look.serves_until_s = self._monotonic() + (FRESH_S if look.found is not None else FAILED_S)
        look.is_over.set()


class _Look:
    """What is known from it. The problem of the look before it stands until this one is over."""

    def __init__(self, began_s: float, problem: str) -> None:
        self.began_s = began_s
        self.serves_until_s = began_s
        self.found: Depths | None = None
        self.problem = problem
        self.is_over = threading.Event()


def read_depths(inspector: Inspector, queues: Sequence[str]) -> Depths:
    """Lengths in one consistent look, and the age of what comes out next."""
    census = inspector.census()
    lengths = {**census.pending, "scheduled": census.scheduled, "dead_letter": census.dead}
    ages_s = {queue: _age_s(inspector, queue, census.now_ms) if census.pending.get(queue) else 0.0 for queue in queues}
    return Depths({**lengths, "processing": census.running}, ages_s)


def _age_s(inspector: Inspector, queue: str, now_ms: int) -> float:
    """Since the next job was made, was due or was last tried, whichever came last; 0 where none of it is known."""
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
