"""The last stage: makes jobs of stable files and sends them to the broker, in batches, within the rate limit.

An entry stays here until the broker has answered for it. A call that failed is repeated with the same job ids, so a
lost reply never enqueues a file twice. A kill -9 loses only entries that were not sent: the next scan finds their files
again, and the ledger knows the versions that were enqueued.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from datetime import UTC, datetime
from itertools import islice

from msgspec import Struct
from msgspec.structs import replace

from fileq.brokers.clocks import wall_clock_ms
from fileq.brokers.protocol import Broker, Inspector
from fileq.brokers.types import EnqueueResult, Entry
from fileq.config import Config
from fileq.core.errors import BrokerError
from fileq.core.job import file_job, rfc3339_ms
from fileq.core.trace import new_ids
from fileq.producer.before_enqueue import EnqueueCheck
from fileq.producer.deliveries.stage import DeliveryStage
from fileq.producer.finder.found_file import FoundFile
from fileq.producer.finder.rules import ScanRules
from fileq.producer.identity import FileIdentity
from fileq.producer.markers import Markers
from fileq.producer.priority import priority_chooser
from fileq.producer.rate_limit import Hold, Throttle, permits_per_window

BATCH = 500  # files of one broker call
CALLS_PER_TURN = 4
UNSENT_MAX = 2_000  # above this the stages before pause
RESTAMP_S = 0.01  # a job that waited longer than this to be sent gets a new `creation_time`
STALE_S = 0.2  # a file that waited longer than this is read again before it is sent


class SentBatch(Struct):
    """What one turn did. `changed` files have to become stable again. `error`: the broker call that ended the turn."""

    enqueued: list[Entry]
    known: int  # versions that the ledger knew already
    changed: list[FoundFile]
    error: BrokerError | None = None


class _Unsent(Struct):
    entry: Entry
    file: FoundFile
    read_s: float
    stamped_s: float


class Enqueuer:
    """The stable files that are not sent yet, by path."""

    def __init__(
        self,
        config: Config,
        broker: Broker,
        inspector: Inspector,
        rules: ScanRules,
        identity: FileIdentity,
        markers: Markers,
        check: EnqueueCheck,
        monotonic: Callable[[], float] = time.monotonic,
        deliveries: DeliveryStage | None = None,
        wall_ms: Callable[[], int] = wall_clock_ms,
    ) -> None:
        self._wall_ms = wall_ms
        self._deliveries = deliveries
        self._broker = broker
        self._inspector = inspector
        self._rules = rules
        self._identity = identity
        self._markers = markers
        self._check = check
        self._monotonic = monotonic
        self._throttle = Throttle()
        self._max_pending = config.producer.max_pending
        self._is_traced = config.observability.tracing.enabled
        self._limit = permits_per_window(config)
        # One more than a window has permits: the reply to the refused entry says how long to wait.
        self._batch = min(BATCH, self._limit + 1) if self._limit else BATCH
        self._priority_of = priority_chooser(config)
        self._unsent: dict[bytes, _Unsent] = {}

    def __len__(self) -> int:
        return len(self._unsent)

    @property
    def room(self) -> int:
        return max(0, UNSENT_MAX - len(self._unsent))

    @property
    def hold(self) -> Hold | None:
        """The setting that limits enqueueing at the moment; None if none does or nothing is to be sent."""
        return self._throttle.hold if self._unsent else None

    def left_s(self, now_s: float) -> float:
        """Seconds until something may be sent."""
        return self._throttle.left_s(now_s)

    def add(self, files: Iterable[FoundFile], now_s: float) -> None:
        """Takes files that are stable. A version that was not sent yet is replaced by a newer one."""
        for file in files:
            unsent = self._unsent.get(file.path)
            if unsent is None or not file.is_unchanged_since(unsent.file):
                entry = self._check.entry(self._entry(file), file)
                if entry is not None:
                    self._unsent[file.path] = _Unsent(entry, file, now_s, now_s)
                else:
                    self._unsent.pop(file.path, None)

    def turn(self, now_s: float) -> SentBatch:
        """Sends as much as may be sent now. Does not raise BrokerError, so that `changed` is never lost."""
        batch = SentBatch([], 0, [])
        try:
            for _ in range(CALLS_PER_TURN):
                if not self._unsent or self.left_s(now_s):
                    break
                oldest = list(islice(self._unsent.values(), self._allowed(now_s)))
                if fresh := self._drop_changed(oldest, now_s, batch):
                    self._stamp(fresh, now_s)
                    self._send(fresh, batch)
                now_s = self._monotonic()  # the call took time
        except BrokerError as error:
            batch.error = error
        return batch

    def _entry(self, file: FoundFile) -> Entry:
        queue = self._priority_of(file.path)
        job = file_job(
            file.path,
            size=file.size,
            priority=queue,
            now=datetime.fromtimestamp(self._wall_ms() / 1000, UTC),
            signature=file.signature,
            inode=self._identity.inode_for_job(file),
        )
        if self._is_traced:
            trace_id, span_id = new_ids()
            job = job.but(trace_id=trace_id, span_id=span_id)
        return Entry(job, queue, self._identity.version(file))

    def _allowed(self, now_s: float) -> int:
        """How many entries one call may send. Reads the depths of the queues only if `max_pending` is set."""
        if not self._max_pending:
            return self._batch
        allowed = self._max_pending - sum(self._inspector.census().pending.values())
        if allowed <= 0:
            self._throttle.too_many_pending(now_s)
        return max(0, min(self._batch, allowed))

    def _drop_changed(self, oldest: list[_Unsent], now_s: float, batch: SentBatch) -> list[_Unsent]:
        """Reads the files again that have waited for long. Those that changed or vanished are not sent."""
        fresh = []
        for unsent in oldest:
            if now_s - unsent.read_s > STALE_S:
                file = self._rules.find(unsent.file.path)
                if file is None or not file.is_unchanged_since(unsent.file):
                    del self._unsent[unsent.file.path]
                    if file is not None:
                        batch.changed.append(file)
                    continue
                unsent.read_s = now_s
            fresh.append(unsent)
        return fresh

    def _stamp(self, entries: list[_Unsent], now_s: float) -> None:
        """A job is created when it is sent. The time for which the rate limit, `max_pending` or an outage held it is
        not the time that it waits for a worker."""
        stamp = ""
        for unsent in entries:
            if now_s - unsent.stamped_s > RESTAMP_S:
                stamp = stamp or rfc3339_ms(self._wall_ms())
                unsent.entry = replace(unsent.entry, job=unsent.entry.job.but(creation_time=stamp))
                unsent.stamped_s = now_s

    def _send(self, entries: list[_Unsent], batch: SentBatch) -> None:
        if self._deliveries:
            joined = [(unsent, self._deliveries.joined(unsent.entry, unsent.file)) for unsent in entries]
            for unsent, entry in joined:
                if entry is None:
                    del self._unsent[unsent.file.path]
            entries = [unsent for unsent, entry in joined if entry is not None]
            sent = [entry for _, entry in joined if entry is not None]
        else:
            sent = [unsent.entry for unsent in entries]
        answer = self._broker.enqueue(sent, limit=self._limit)
        if answer.wait_ms:
            self._throttle.window_is_full(self._monotonic(), answer.wait_ms)
        else:
            self._throttle.clear()
        done: list[FoundFile] = []
        for unsent, entry, result in zip(entries, sent, answer.results, strict=True):
            if result is EnqueueResult.THROTTLED:
                continue
            if result is EnqueueResult.REFUSED and self._deliveries is not None:  # its delivery was sealed meanwhile
                self._deliveries.refused(entry, unsent.file)
                continue
            del self._unsent[unsent.file.path]
            done.append(unsent.file)
            if result is EnqueueResult.KNOWN:
                batch.known += 1
            else:  # DUPLICATE is an entry of this producer, sent again after a lost reply
                batch.enqueued.append(entry)
        self._markers.remove(done)
