"""The last stage: makes jobs of stable files and sends them to the broker, in batches, within the rate limit.

An entry stays here until the broker has answered for it. A call that failed is repeated with the same job ids, so a
lost reply never enqueues a file twice. A kill -9 loses only entries that were not sent: the next scan finds their files
again, and the ledger knows the versions that were enqueued.
"""

from __future__ import annotations

import os
import random
import time
from collections.abc import Callable, Iterable
from datetime import UTC, datetime
from itertools import islice
from typing import TypeAlias

from msgspec import Struct
from msgspec.structs import replace

from fileq.brokers.protocol import FullBroker
from fileq.brokers.types import EnqueueResult, Entry
from fileq.config import Config
from fileq.config.schema import priority_chooser
from fileq.core.errors import BrokerError, JobError
from fileq.core.events import BeforeEnqueueFailed, Emit, SkipReason, ignore
from fileq.core.job import Job, file_job, new_ids, rfc3339_ms, wall_clock_ms
from fileq.files.status import FoundFile
from fileq.handlers.outcomes import failed
from fileq.producer.deliveries import DeliveryStage
from fileq.producer.finder.scan import ScanRules
from fileq.producer.ledger_stages import FileIdentity
from fileq.producer.markers import Markers

BATCH = 500  # files of one broker call
CALLS_PER_TURN = 4
UNSENT_MAX = 2_000  # above this the stages before pause
RESTAMP_S = 0.01  # a job that waited longer than this to be sent gets a new `creation_time`
STALE_S = 0.2  # a file that waited longer than this is read again before it is sent
REPORT_EVERY_S = 60.0  # an error of a @fileq.before_enqueue function

BeforeEnqueue: TypeAlias = Callable[[Job], Job | None]


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
    """The stable files that are not sent yet, by path. Shows each job to the user's @fileq.before_enqueue functions. A
    vetoed file counts as skipped, and what these functions raise never ends the producer."""

    def __init__(
        self,
        config: Config,
        broker: FullBroker,
        identity: FileIdentity,
        rules: ScanRules,
        markers: Markers | None = None,
        deliveries: DeliveryStage | None = None,
        before_enqueue: BeforeEnqueue | None = None,
        emit: Emit = ignore,
        monotonic: Callable[[], float] = time.monotonic,
        wall_ms: Callable[[], int] = wall_clock_ms,
    ) -> None:
        self._broker = broker
        self._rules = rules
        self._identity = identity
        self._markers = markers
        self._deliveries = deliveries
        self._before_enqueue = before_enqueue
        self._emit = emit
        self._monotonic = monotonic
        self._wall_ms = wall_ms
        self.throttle = Throttle()
        self._queues = config.worker.priorities
        self._max_pending = config.producer.max_pending
        self._is_traced = config.observability.tracing.enabled
        self._limit = permits_per_window(config)
        # One more than a window has permits: the reply to the refused entry says how long to wait.
        self._batch = min(BATCH, self._limit + 1) if self._limit else BATCH
        self._priority_of = priority_chooser(config)
        self._unsent: dict[bytes, _Unsent] = {}
        self._quiet_until_s = float("-inf")  # no error of a function is reported until then

    def __len__(self) -> int:
        return len(self._unsent)

    @property
    def room(self) -> int:
        return max(0, UNSENT_MAX - len(self._unsent))

    @property
    def hold(self) -> Hold | None:
        """The setting that limits enqueueing at the moment; None if none does or nothing is to be sent."""
        return self.throttle.hold if self._unsent else None

    def add(self, files: Iterable[FoundFile], now_s: float) -> None:
        """Takes files that are stable. A version that was not sent yet is replaced by a newer one."""
        for file in files:
            unsent = self._unsent.get(file.path)
            if unsent is None or not file.is_unchanged_since(unsent.file):
                entry = self._entry(file)
                if entry is not None:
                    self._unsent[file.path] = _Unsent(entry, file, now_s, now_s)
                else:
                    self._unsent.pop(file.path, None)

    def turn(self, now_s: float) -> SentBatch:
        """Sends as much as may be sent now. Does not raise BrokerError, so that `changed` is never lost."""
        batch = SentBatch([], 0, [])
        try:
            for _ in range(CALLS_PER_TURN):
                if not self._unsent or self.throttle.left_s(now_s):
                    break
                oldest = list(islice(self._unsent.values(), self._allowed(now_s)))
                if fresh := self._drop_changed(oldest, now_s, batch):
                    self._send(fresh, batch)
                now_s = self._monotonic()  # the call took time
        except BrokerError as error:
            batch.error = error
        return batch

    def _entry(self, file: FoundFile) -> Entry | None:
        """The entry to send; None if the file is not to be enqueued now. The next scan finds it again."""
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
        if self._before_enqueue is not None:
            try:
                shown = self._before_enqueue(job)
                if shown is not None and shown.priority not in self._queues:
                    raise JobError(f"priority is {shown.priority!r}; it must be one of {', '.join(self._queues)}")
            except Exception as error:
                self._rules.counts.skip(SkipReason.VETO_FAILED, file.path)
                now_s = self._monotonic()
                if now_s >= self._quiet_until_s:
                    self._quiet_until_s = now_s + REPORT_EVERY_S
                    self._emit(BeforeEnqueueFailed(os.fsdecode(file.path), failed(error).error))
                return None
            if shown is None:
                self._rules.counts.skip(SkipReason.VETOED, file.path)
                return None
            job, queue = shown, shown.priority
        return Entry(job, queue, self._identity.version(file))

    def _allowed(self, now_s: float) -> int:
        """How many entries one call may send. Reads the depths of the queues only if `max_pending` is set."""
        if not self._max_pending:
            return self._batch
        allowed = self._max_pending - sum(self._broker.census().pending.values())
        if allowed <= 0:
            self.throttle.too_many_pending(now_s)
        return max(0, min(self._batch, allowed))

    def _drop_changed(self, oldest: list[_Unsent], now_s: float, batch: SentBatch) -> list[_Unsent]:
        """Reads the files again that have waited for long. Those that changed or vanished are not sent. A job is
        created when it is sent: the time for which the rate limit, `max_pending` or an outage held it is not the time
        that it waits for a worker."""
        fresh, stamp = [], ""
        for unsent in oldest:
            if now_s - unsent.read_s > STALE_S:
                file = self._rules.find(unsent.file.path)
                if file is None or not file.is_unchanged_since(unsent.file):
                    del self._unsent[unsent.file.path]
                    if file is not None:
                        batch.changed.append(file)
                    continue
                unsent.read_s = now_s
            if now_s - unsent.stamped_s > RESTAMP_S:
                stamp = stamp or rfc3339_ms(self._wall_ms())
                unsent.entry = replace(unsent.entry, job=unsent.entry.job.but(creation_time=stamp))
                unsent.stamped_s = now_s
            fresh.append(unsent)
        return fresh

    def _send(self, entries: list[_Unsent], batch: SentBatch) -> None:
        if self._deliveries is not None:
            waiting, entries, sent = entries, [], []
            for unsent in waiting:
                if (entry := self._deliveries.joined(unsent.entry, unsent.file)) is None:
                    del self._unsent[unsent.file.path]
                else:
                    entries.append(unsent)
                    sent.append(entry)
        else:
            sent = [unsent.entry for unsent in entries]
        answer = self._broker.enqueue(sent, limit=self._limit)
        if answer.wait_ms:
            self.throttle.window_is_full(self._monotonic(), answer.wait_ms)
        else:
            self.throttle.clear()
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
        if self._markers is not None:
            self._markers.remove(done)


# the rate limit

DEFAULT_ON_REDIS = 100
JITTER_S = 0.02  # spreads producers that wait for the end of the same window
PRESSURE_PAUSE_S = 0.5
RATE_LIMIT, MAX_PENDING = "producer.rate_limit_per_sec", "producer.max_pending"


def permits_per_window(config: Config) -> int:
    """The limit in force; 0 means none. Without a setting only Redis has one, because others may share the server."""
    limit = config.producer.rate_limit_per_sec
    if limit is None:
        return DEFAULT_ON_REDIS if config.broker_kind == "redis" else 0
    return limit


class Hold(Struct, frozen=True):
    """A setting limits enqueueing, and has done so without a break since then."""

    reason: str
    since_s: float


class Throttle:
    """Until when enqueueing must wait: the pauses of the shared rate limit, and the back-pressure of `max_pending`.
    `hold` is the setting that causes it. The caller passes the time.

    The broker counts the permits, because all producers share them."""

    def __init__(self) -> None:
        self._until_s = 0.0
        self.hold: Hold | None = None

    def window_is_full(self, now_s: float, wait_ms: int) -> None:
        """Waits until the window ends: an earlier call would be refused, a later one would waste permits."""
        self._wait(RATE_LIMIT, now_s, wait_ms / 1000 + random.uniform(0, JITTER_S))

    def too_many_pending(self, now_s: float) -> None:
        self._wait(MAX_PENDING, now_s, PRESSURE_PAUSE_S)

    def _wait(self, reason: str, now_s: float, wait_s: float) -> None:
        self._until_s = now_s + wait_s
        if self.hold is None or self.hold.reason != reason:
            self.hold = Hold(reason, now_s)

    def left_s(self, now_s: float) -> float:
        """Seconds still to wait; 0 when enqueueing may continue."""
        return max(0.0, self._until_s - now_s)

    def clear(self) -> None:
        """A call was accepted completely: at the moment no setting slows enqueueing down."""
        self.hold = None
