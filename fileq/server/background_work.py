"""What a server does beside answering requests: samples of the counts, and removal of abandoned uploads."""

from __future__ import annotations

import os
import threading
import time
from collections import deque
from collections.abc import Sequence
from contextlib import suppress

from msgspec import Struct

from fileq.brokers.protocol import FullBroker
from fileq.brokers.types import Census
from fileq.core.errors import BrokerError
from fileq.core.events import Emit, UploadsRemoved
from fileq.core.job import stamp
from fileq.files.uploads import remove_abandoned
from fileq.server.thread_pools import ServerThread

EVERY_S = 5.0
KEPT = 720  # an hour
RATES = ("produced", "completed", "failed", "dead")


class LiveSample(Struct, frozen=True):
    """The counts at one moment, and the rates since the sample before. `failed` counts attempts."""

    at: str
    waiting: int
    scheduled: int
    running: int
    dead: int
    produced_per_second: float
    completed_per_second: float
    failed_per_second: float
    dead_per_second: float


class LiveSamples(ServerThread):
    """The counts of the last hour, which the server takes from the broker every few seconds. Kept in memory only.

    What a kill -9 leaves: nothing. A server that has just started has few samples.

    Takes samples in a thread of its own. take() and read() may be called by any thread."""

    def __init__(self, broker: FullBroker) -> None:
        super().__init__("samples")
        self._broker = broker
        self._taken: deque[Census] = deque(maxlen=KEPT)
        self._taken_s = float("-inf")
        self._lock = threading.Lock()

    def take(self) -> None:
        """A sample now."""
        census = self._broker.census()
        with self._lock:
            if not self._taken or census.now_ms > self._taken[-1].now_ms:
                self._taken.append(census)
            self._taken_s = time.monotonic()

    @property
    def is_recent(self) -> bool:
        """Whether the broker has answered a moment ago."""
        return time.monotonic() - self._taken_s < 2 * EVERY_S

    def read(self) -> list[LiveSample]:
        """The samples, oldest first. A clock that stepped back, or counters that were reset, leave a gap of zeros."""
        with self._lock:
            taken = list(self._taken)
        return [_sample(before, now) for before, now in zip([taken[0], *taken], taken, strict=False)] if taken else []

    def waiting_change(self, samples: int) -> dict[str, float]:
        """How many more jobs wait in each queue than so many samples ago, per minute; below 0 if fewer wait. Empty
        without two samples. Counters of what comes in and goes out are of all queues together."""
        with self._lock:
            taken = list(self._taken)[-samples - 1 :]
        minutes = (taken[-1].now_ms - taken[0].now_ms) / 60_000 if taken else 0.0
        if minutes <= 0:
            return {}
        first, last = taken[0].pending, taken[-1].pending
        return {name: (count - first.get(name, 0)) / minutes for name, count in last.items()}

    def _run(self) -> None:
        while True:
            with suppress(BrokerError):  # the samples have a gap; requests report the outage
                self.take()
            if self._is_stopping.wait(EVERY_S):
                return


def per_second(samples: Sequence[LiveSample], name: str) -> float:
    """The mean of the rate of these samples."""
    values = [getattr(sample, f"{name}_per_second") for sample in samples]
    return round(sum(values) / len(values), 3) if values else 0.0


def _sample(before: Census, now: Census) -> LiveSample:
    seconds = (now.now_ms - before.now_ms) / 1000

    def rate(name: str) -> float:
        count = now.counters.get(name, 0) - before.counters.get(name, 0)
        return round(count / seconds, 3) if seconds > 0 and count > 0 else 0.0

    return LiveSample(
        stamp(now.now_ms) or "",
        sum(now.pending.values()),
        now.scheduled,
        now.running,
        now.dead,
        *(rate(name) for name in RATES),
    )


SWEEP_S = 3600.0


class UploadSweep(ServerThread):
    """Removes abandoned uploads now and then, in a thread of its own: at the start of a server, then every SWEEP_S.
    Does nothing without a directory.

    What a kill -9 leaves: nothing of its own. The next server goes on."""

    def __init__(self, directory: str, emit: Emit) -> None:
        super().__init__("upload sweep")
        self._directory = directory
        self._emit = emit

    def _run(self) -> None:
        while self._directory and not self._is_stopping.is_set():
            count = remove_abandoned(os.fsencode(self._directory), time.time(), self._is_stopping.is_set)
            if count:
                self._emit(UploadsRemoved(count, self._directory))
            self._is_stopping.wait(SWEEP_S)
