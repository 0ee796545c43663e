"""The memory broker's contents: the places, the records, the counters, and the steps that every verb is made of.

The layout is the reference for the other brokers. A queue is a deque: jobs are pushed at the left end and claimed at
the right end, so its front is the right end. A place holds only the bytes of jobs, because a plain list on Redis can
hold nothing else; everything more that is known of a job is in its record.

The caller must hold the lock, except for has_work(), which takes it.
"""

from __future__ import annotations

import queue
import threading
from collections import Counter, defaultdict, deque
from collections.abc import Callable
from typing import Any

import msgspec

from fileq.brokers.catalog import Document
from fileq.brokers.clocks import HOUR_MS, LONGEST_LOOK_MS
from fileq.brokers.local_waiter import ClaimOrder, LocalWaiter
from fileq.brokers.protocol import Order
from fileq.brokers.schedules import ScheduleState
from fileq.brokers.types import (
    ATTEMPTS_KEPT,
    Attempt,
    Census,
    LedgerEntry,
    ProducerInfo,
    ProducerView,
    Record,
    WorkerInfo,
)
from fileq.brokers.wire_events import stamped
from fileq.config import Config
from fileq.core.batch import KEPT_MS, Batch, BatchState
from fileq.core.claim import Claim
from fileq.core.errors import Undecodable
from fileq.core.fingerprint import fingerprint
from fileq.core.job import State, Version, decode, decode_or_none, raw_id
from fileq.core.outcome import Output
from fileq.core.own_jobs import foreign_error


class MemoryRecord(msgspec.Struct):
    """A job's record, changed in place.

    `queued` is the number of copies of the job in queues that are counted as produced or adopted. A claim that finds
    it at zero has claimed a copy that another program pushed, and counts it as adopted."""

    id: str
    state: State
    raw: bytes
    queue: str
    queued: int = 0
    slot: str = ""
    created_ms: int = 0
    started_ms: int = 0
    ended_ms: int = 0
    due_ms: int = 0
    since_ms: int = 0
    error: str = ""
    result: bytes = b""
    attempts: list[Attempt] = []
    attempt_count: int = 0
    is_cancel_requested: bool = False
    deferred: str = ""
    deferred_count: int = 0
    deferrals_ms: tuple[int, int] = (0, 0)
    moved_to: bytes = b""
    after: tuple[str, ...] = ()
    waits_for: str = ""
    unique_key: str = ""
    follow_ups: tuple[str, ...] = ()
    outputs: tuple[Output, ...] = ()
    batch: str = ""
    fingerprint: str = ""
    origin: str = ""
    deadline_ms: int | None = None
    expires_ms: int | None = None

    def add_attempt(self, attempt: Attempt) -> None:
        self.attempt_count += 1
        self.attempts = [*self.attempts, attempt][-ATTEMPTS_KEPT:]

    @property
    def is_protected(self) -> bool:
        """Whether other bytes than its own never touch it: it is that of a job of fileq's own or of a member."""
        return bool(self.origin or self.batch)

    def is_about(self, raw: bytes) -> bool:
        """Whether these bytes are those of its job. If it is not protected, every copy is."""
        return self.raw == raw or not self.is_protected

    def view(self) -> Record:
        fields: dict[str, Any] = {name: getattr(self, name) for name in Record.__struct_fields__}
        return Record(**{**fields, "attempts": tuple(self.attempts)})


class KeptBatch(msgspec.Struct):
    """A batch with the ids of its members. `known` are jobs that had ended when they joined."""

    facts: Batch
    members: set[str] = msgspec.field(default_factory=set)  # that are not counted yet
    dead: set[str] = msgspec.field(default_factory=set)
    known: set[str] = msgspec.field(default_factory=set)
    children: set[str] = msgspec.field(default_factory=set)

    def is_expired(self, now_ms: int) -> bool:
        return self.facts.state is BatchState.FINISHED and self.facts.finished_ms + KEPT_MS <= now_ms


class MemoryStore:
    def __init__(self, config: Config, *, clock: Callable[[], int]) -> None:
        self.config = config
        self.clock = clock
        self.lock = threading.RLock()
        self.queue_names = tuple(config.worker.priorities)
        self.queues: dict[str, deque[bytes]] = {name: deque() for name in self.queue_names}
        self.scheduled: dict[bytes, int] = {}  # raw → due_ms
        self.processing: dict[str, list[bytes]] = defaultdict(list)  # slot → at most one raw
        self.completed: deque[bytes] = deque()
        self.cancelled: deque[bytes] = deque()
        self.dead: deque[bytes] = deque()
        self.records: dict[str, MemoryRecord] = {}
        self.registry: dict[str, WorkerInfo] = {}
        self.alive_until_ms: dict[str, int] = {}  # slot → when its heartbeat ends
        self.tokens: Counter[str] = Counter()  # slot → token of its last claim
        self.settled_tokens: dict[str, int] = {}  # slot → token of its last settlement
        self.ledger: dict[bytes, LedgerEntry] = {}
        self.counters: Counter[str] = Counter()
        self.hourly: dict[int, Counter[str]] = defaultdict(Counter)
        self.paused: set[str] = set()
        self.breaker_resets: Counter[str] = Counter()
        self.cancel_requests = 0
        self.producers: dict[str, tuple[int, ProducerInfo]] = {}  # id → when its lease ends, what it reported
        self.rate_window: tuple[int, int] = (0, 0)  # when it ends, permits taken in it
        self.holders: dict[str, dict[str, bytes]] = defaultdict(dict)  # route → slot → the raw that was admitted
        self.route_windows: dict[str, tuple[int, int]] = {}  # route → when its window ends, jobs started in it
        self.orders: dict[str, Order] = {}  # by the id of the job
        self.deadlines: dict[str, int] = {}  # id of a job that has one → when to look at it
        self.unique: dict[str, str] = {}  # unique key → id of the job that took it last
        self.made: dict[bytes, tuple[str, int]] = {}  # path of an output → id of the job, when it is forgotten
        self.documents: dict[str, dict[str, Document]] = defaultdict(dict)  # kind → name → document
        self.catalog_revisions: Counter[str] = Counter()  # by kind
        self.schedule_states: dict[str, ScheduleState] = {}
        self.batches: dict[str, KeptBatch] = {}
        self.finished_batches: list[str] = []  # by the call that runs
        self.order = ClaimOrder(self.queue_names, config.worker.starvation_share)
        self.waiters: set[LocalWaiter] = set()
        self.subscriptions: set[MemorySubscription] = set()

    def begin(self) -> int:
        """Begins a call: removes what has expired, and returns the time of the call."""
        now_ms = self.clock()
        expired = [id for id, r in self.records.items() if r.expires_ms is not None and r.expires_ms <= now_ms]
        for id in expired:
            del self.records[id]
        for path in [path for path, (_, expires_ms) in self.made.items() if expires_ms <= now_ms]:
            del self.made[path]
        for id in [id for id, batch in self.batches.items() if batch.is_expired(now_ms)]:
            del self.batches[id]
        self.finished_batches = []
        return now_ms

    def count(self, now_ms: int, name: str, by: int = 1) -> None:
        if by:
            self.counters[name] += by
            self.hourly[now_ms // HOUR_MS][name] += by

    def census(self, now_ms: int) -> Census:
        return Census(
            pending={name: len(raws) for name, raws in self.queues.items()},
            scheduled=len(self.scheduled),
            running=sum(map(len, self.processing.values())),
            dead=len(self.dead),
            completed=len(self.completed),
            cancelled=len(self.cancelled),
            heartbeats=sum(self.is_alive(slot, now_ms) for slot in self.alive_until_ms),
            counters=dict(self.counters),
            paused=frozenset(self.paused),
            now_ms=now_ms,
            unfinished_batches=sum(batch.facts.state is not BatchState.FINISHED for batch in self.batches.values()),
        )

    # records, claims and the ledger

    def record_for(self, id: str, queue: str, raw: bytes, now_ms: int) -> MemoryRecord:
        """The job's record, created if there is none. It no longer expires."""
        record = self.records.get(id)
        if record is None:
            record = self.records[id] = MemoryRecord(id, State.PENDING, raw, queue, created_ms=now_ms)
        record.expires_ms = None
        return record

    def claim_of(self, slot: str, raw: bytes, queue: str | None = None, *, token: int = 0) -> Claim:
        """The claim of a slot that holds these bytes. Without a record the claim's queue is `queue`, or the last."""
        try:
            job = decode(raw)
        except Undecodable as defect:
            return Claim(slot, token, queue or self.queue_names[-1], raw, None, defect=str(defect))
        record = self.records.get(job.id)
        if record is None:
            return Claim(slot, token, queue or self.queue_names[-1], raw, job, job.id)
        return Claim(slot, token, record.queue, raw, job, job.id, record.started_ms)

    def claim_to_run(self, slot: str, raw: bytes, queue: str | None = None) -> Claim:
        """The claim of a slot that is to run these bytes, with a new token."""
        self.tokens[slot] += 1
        claim = self.claim_of(slot, raw, queue, token=self.tokens[slot])
        record = self.records.get(claim.id)
        if record is None:
            return claim
        flags = {"is_blocked": self._is_blocked(record), "is_cancelled": self.is_batch_cancelled(record)}
        return msgspec.structs.replace(claim, **flags)

    def unfinished_before(self, id: str | None) -> list[str]:
        """The jobs that the record of this job names in `after` and that have not ended."""
        record = self.records.get(id or "")
        found = [(id, self.records.get(id)) for id in record.after] if record is not None else []
        return [id for id, other in found if other is not None and other.state.is_unfinished]

    def _is_blocked(self, record: MemoryRecord) -> bool:
        earlier = (self.records.get(id) for id in record.after)
        awaited = self.records.get(record.waits_for)
        return any(other is not None and other.state is State.RUNNING for other in earlier) or (
            awaited is not None and awaited.state.is_unfinished
        )

    def is_batch_cancelled(self, record: MemoryRecord) -> bool:
        """Whether the job is a member of a batch that is cancelled."""
        batch = self.batches.get(record.batch)
        return batch is not None and batch.facts.is_cancelled

    def is_foreign(self, raw: bytes, place: State) -> bool:
        """Whether these bytes, which are waiting (PENDING) or DEAD, are under the id of another job."""
        job = decode_or_none(raw)
        record = self.records.get(job.id) if job is not None else None
        if record is None or not record.is_protected:
            return False
        is_there = bool(record.queued) if place is State.PENDING else record.state is place
        return not (is_there and record.is_about(raw))

    def bury_foreign(self, slot: str, queue: str, raw: bytes, now_ms: int) -> str:
        """Buries bytes that are under the id of another job, under an id of their own. Returns the error."""
        job = decode_or_none(raw)
        error = foreign_error(job.id if job is not None else "")
        record = self.record_for(raw_id(raw), queue, raw, now_ms)
        record.add_attempt(Attempt(record.started_ms, now_ms, slot, "refused", error, is_fatal=True))
        record.state, record.slot, record.queue, record.error = State.DEAD, slot, queue, error
        record.ended_ms, record.fingerprint = now_ms, fingerprint(error)
        self.dead.appendleft(raw)
        self.count(now_ms, "dead")
        self.count(now_ms, "error:ForeignJob")
        return error

    def learn(self, version: Version, job_id: str) -> None:
        known = self.ledger.get(version.path, LedgerEntry())
        self.ledger[version.path] = known.with_version(version, job_id)

    def index_deadline(self, record: MemoryRecord, now_ms: int) -> None:
        if record.deadline_ms is not None:
            self.deadlines[record.id] = min(record.deadline_ms, now_ms + LONGEST_LOOK_MS)

    # moves between places

    def push(self, record: MemoryRecord, *, front: bool) -> None:
        """Puts the record's job into its queue and counts the copy in the record."""
        record.state, record.due_ms, record.queued = State.PENDING, 0, record.queued + 1
        self.push_raw(record.queue, record.raw, front=front)

    def push_raw(self, queue: str, raw: bytes, *, front: bool) -> None:
        """Puts bytes into a queue; no record and no counter changes."""
        if front:
            self.queues[queue].append(raw)
        else:
            self.queues[queue].appendleft(raw)
        self.wake()

    def push_undecodable(self, queue: str, raw: bytes, *, front: bool, now_ms: int) -> None:
        """Puts bytes that are not a job back into a queue.

        They have no record that counts copies, so the next claim will count them as adopted again. That is
        subtracted here."""
        self.push_raw(queue, raw, front=front)
        self.count(now_ms, "adopted", -1)

    def schedule(self, record: MemoryRecord, state: State, due_ms: int, since_ms: int) -> None:
        """Schedules the record's job. A blank is appended while another copy of the same bytes is scheduled."""
        while record.raw in self.scheduled:
            record.raw += b" "
        record.state, record.due_ms, record.since_ms = state, due_ms, since_ms
        self.scheduled[record.raw] = due_ms

    def end(self, record: MemoryRecord, state: State, now_ms: int) -> None:
        """Lists the job as completed or cancelled, counts it, and lets its record expire. The caller trims the list
        when the follow-ups of the job are enqueued."""
        record.state, record.ended_ms = state, now_ms
        if not record.queued:  # a copy that still waits needs the record
            record.expires_ms = now_ms + int(self.config.worker.history_ttl * 1000)
        self._ended(state).appendleft(record.raw)
        self.count(now_ms, state.value)

    def _ended(self, state: State) -> deque[bytes]:
        return self.completed if state is State.COMPLETED else self.cancelled

    def trim_ended(self, state: State) -> None:
        """Removes the oldest jobs beyond completed_max from a list of ended jobs, with their records."""
        ended = self._ended(state)
        while len(ended) > self.config.worker.completed_max:
            unlisted = decode_or_none(ended.pop())
            stale = self.records.get(unlisted.id) if unlisted else None
            if stale is not None and stale.state is state and not stale.queued:
                del self.records[stale.id]

    # slots

    def renew_heartbeat(self, slot: str, now_ms: int) -> None:
        self.alive_until_ms[slot] = now_ms + int(self.config.worker.heartbeat_ttl * 1000)

    def is_alive(self, slot: str, now_ms: int) -> bool:
        return self.alive_until_ms.get(slot, 0) > now_ms

    def forget_slot(self, slot: str) -> None:
        self.registry.pop(slot, None)
        self.alive_until_ms.pop(slot, None)
        self.settled_tokens.pop(slot, None)
        self.processing.pop(slot, None)

    # producers

    def living_producers(self, now_ms: int) -> list[ProducerView]:
        living = ((id, info) for id, (ends_ms, info) in self.producers.items() if ends_ms > now_ms)
        return [ProducerView(id, info) for id, info in sorted(living, key=lambda item: item[0])]

    # waking and events

    def publish(self, now_ms: int, event: bytes) -> None:
        if event and self.subscriptions:
            event = stamped(event, now_ms)
            for subscription in tuple(self.subscriptions):
                subscription.put(event)

    def wake(self) -> None:
        for waiter in tuple(self.waiters):
            waiter.wake()

    def has_work(self, paused: frozenset[str]) -> bool:
        """Whether a queue other than the paused ones holds a job."""
        with self.lock:
            return any(raws for name, raws in self.queues.items() if name not in paused)


# A subscription to events within one process.


class MemorySubscription:
    """Implements protocol.Subscription. Unbounded: events are kept until they are read."""

    def __init__(self, on_close: Callable[[MemorySubscription], None]) -> None:
        self._on_close = on_close
        self._events: queue.SimpleQueue[bytes] = queue.SimpleQueue()

    def put(self, event: bytes) -> None:
        self._events.put(event)

    def get(self, timeout_s: float) -> bytes | None:
        try:
            return self._events.get(timeout=max(0.0, timeout_s)) if timeout_s > 0 else self._events.get_nowait()
        except queue.Empty:
            return None

    def close(self) -> None:
        self._on_close(self)
