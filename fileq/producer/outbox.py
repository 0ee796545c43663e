"""Files that have settled, on their way to the broker: rate-limited, in batches, kept until answered for."""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import UTC, datetime
from itertools import islice

from msgspec import Struct

from fileq.brokers.protocol import Broker, Inspector
from fileq.brokers.types import EnqueueResult, Entry
from fileq.config import Config
from fileq.core.events import Emit, produced
from fileq.core.job import Version, file_job
from fileq.core.trace import new_ids
from fileq.producer.counts import ProducerCounts
from fileq.producer.limit import Throttle, permits_per_window
from fileq.producer.scan import Found
from fileq.producer.settle import Look

BATCH = 500  # files of one broker call
CALLS_A_TURN = 4
MOST = 2_000  # files waiting here; those who bring them pause
STALE_S = 0.2  # a file that waited longer than this for its permit is looked at again


class _Ready(Struct):
    entry: Entry
    found: Found
    looked_s: float


class Outbox:
    """An entry leaves only when the broker has answered for it, so a call that failed is repeated with the same ids.

    `changed` is told of files that did not stand still while they waited for their permit."""

    def __init__(
        self,
        config: Config,
        broker: Broker,
        inspector: Inspector,
        *,
        look: Look,
        changed: Callable[[Found], None],
        counts: ProducerCounts,
        emit: Emit,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self.throttle = Throttle()
        self._config = config
        self._broker = broker
        self._inspector = inspector
        self._look = look
        self._changed = changed
        self._counts = counts
        self._emit = emit
        self._monotonic = monotonic
        self._is_traced = config.observability.tracing.enabled
        self._limit = permits_per_window(config)
        # One more than a window has: the refused one brings the time to wait for, without another call.
        self._batch = min(BATCH, self._limit + 1) if self._limit else BATCH
        self._priority_of = priority_chooser(config)
        self._ready: dict[bytes, _Ready] = {}

    def __len__(self) -> int:
        return len(self._ready)

    @property
    def is_full(self) -> bool:
        return len(self._ready) >= MOST

    def put(self, found: Found, device: str) -> None:
        """To be sent; in place of another version of the same file, if that was not sent yet."""
        waiting = self._ready.get(found.path)
        if waiting is not None and waiting.found.stillness == found.stillness:
            return
        queue = self._priority_of(found.path)
        job = file_job(found.path, size=found.size, priority=queue, now=datetime.now(UTC), signature=found.signature)
        if self._is_traced:
            trace_id, span_id = new_ids()
            job = job.but(trace_id=trace_id, span_id=span_id)
        entry = Entry(job, queue, Version(found.path, found.signature, device))
        self._ready[found.path] = _Ready(entry, found, self._monotonic())

    def left_s(self, now_s: float) -> float:
        """Seconds until some of what waits may be sent."""
        return self.throttle.left_s(now_s)

    def send(self) -> None:
        """As much as may be sent now."""
        for _ in range(CALLS_A_TURN):
            if not self._ready or self.left_s(self._monotonic()):
                return
            batch = self._fresh(list(islice(self._ready.values(), self._room())))
            if batch:
                self._send(batch)

    def _send(self, batch: list[_Ready]) -> None:
        answer = self._broker.enqueue([ready.entry for ready in batch], limit=self._limit)
        self.throttle.lift()
        if answer.wait_ms:
            self.throttle.window_is_full(self._monotonic(), answer.wait_ms)
        for ready, fate in zip(batch, answer.results, strict=True):
            if fate is EnqueueResult.THROTTLED:
                continue
            del self._ready[ready.found.path]
            if fate is EnqueueResult.KNOWN:
                self._counts.known += 1
            else:  # a duplicate is our own, repeated after a lost reply
                self._counts.enqueued += 1
                self._emit(produced(ready.entry.job, ready.entry.queue))

    def _room(self) -> int:
        """How many may be sent at once; the broker is asked only where there is a limit to what may wait."""
        most_pending = self._config.producer.max_pending
        if not most_pending:
            return self._batch
        room = most_pending - sum(self._inspector.census().pending.values())
        if room <= 0:
            self.throttle.too_many_wait(self._monotonic())
        return max(0, min(self._batch, room))

    def _fresh(self, batch: list[_Ready]) -> list[_Ready]:
        """A file that waited for its permit may have changed meanwhile: then it has to settle again."""
        fresh = []
        for ready in batch:
            if self._monotonic() - ready.looked_s > STALE_S:
                found = self._look(ready.found.path)
                if found is None or found.stillness != ready.found.stillness:
                    del self._ready[ready.found.path]
                    if found is not None:
                        self._changed(found)
                    continue
                ready.looked_s = self._monotonic()
            fresh.append(ready)
        return fresh


def priority_chooser(config: Config) -> Callable[[bytes], str]:
    """Which priority a file has by its name; it is also the name of its queue."""
    high_exts = tuple(ext.casefold() for ext in config.producer.high_priority_exts)
    high, other = config.high_priority, config.producer.default_priority
    return lambda path: high if path.decode(errors="replace").casefold().endswith(high_exts) else other
