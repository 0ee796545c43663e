"""Everything the memory broker remembers: the reference layout that the other brokers must match.

A queue is a deque: pushed left, taken right, so its front is the right end. An element is bytes and
nothing else, because that is all a plain list on Redis can hold; whatever more is known of a job is in
its record.
"""

from __future__ import annotations

import threading
import time
from collections import Counter, defaultdict, deque
from collections.abc import Callable
from typing import Any

import msgspec

from fileq.brokers.order import ClaimOrder
from fileq.brokers.types import ATTEMPTS_KEPT, Attempt, LedgerEntry, Record, WorkerInfo
from fileq.brokers.wake import LocalSubscription, LocalWaiter
from fileq.config import Config
from fileq.core.job import State, decode_or_none


def wall_ms() -> int:
    return time.time_ns() // 1_000_000


class Row(msgspec.Struct):
    """A record while it lives. `queued` counts the elements in queues that were accounted for: a claim
    that finds it at zero has met an element nobody enqueued here, and adopts it."""

    id: str
    state: State
    raw: bytes
    queue: str
    queued: int = 0
    worker: str = ""
    created_ms: int = 0
    started_ms: int = 0
    ended_ms: int = 0
    due_ms: int = 0
    error: str = ""
    result: bytes = b""
    attempts: list[Attempt] = []
    attempt_count: int = 0
    is_cancel_requested: bool = False
    expires_ms: int | None = None

    def add_attempt(self, attempt: Attempt) -> None:
        self.attempt_count += 1
        self.attempts = [*self.attempts, attempt][-ATTEMPTS_KEPT:]

    def view(self) -> Record:
        fields: dict[str, Any] = {name: getattr(self, name) for name in Record.__struct_fields__}
        return Record(**{**fields, "attempts": tuple(self.attempts)})


class Memory:
    """The places, the records and the counters, and the few moves that every verb is made of."""

    def __init__(self, config: Config, *, clock: Callable[[], int] = wall_ms) -> None:
        self.config = config
        self.clock = clock
        self.lock = threading.RLock()
        self.queue_names = tuple(config.worker.priorities)
        self.queues: dict[str, deque[bytes]] = {name: deque() for name in self.queue_names}
        self.scheduled: dict[bytes, int] = {}  # element → due
        self.processing: dict[str, list[bytes]] = defaultdict(list)  # slot → at most one element
        self.completed: deque[bytes] = deque()
        self.cancelled: deque[bytes] = deque()
        self.dead: deque[bytes] = deque()
        self.rows: dict[str, Row] = {}
        self.registry: dict[str, WorkerInfo] = {}
        self.heartbeats: dict[str, tuple[int, bytes]] = {}  # slot → until, element
        self.settled: dict[str, int] = {}  # slot → token of its last settlement
        self.versions: dict[bytes, LedgerEntry] = {}
        self.stats: Counter[str] = Counter()
        self.hours: dict[int, Counter[str]] = defaultdict(Counter)
        self.paused: set[str] = set()
        self.window: tuple[int, int] = (0, 0)  # the rate limit: ends at, taken
        self.order = ClaimOrder(self.queue_names, config.worker.starvation_share)
        self.tokens: Counter[str] = Counter()
        self.waiters: set[LocalWaiter] = set()
        self.subscriptions: set[LocalSubscription] = set()

    def now(self) -> int:
        """The time of this call; records whose time has come are gone before anybody looks."""
        now = self.clock()
        for id in [id for id, row in self.rows.items() if row.expires_ms is not None and row.expires_ms <= now]:
            del self.rows[id]
        return now

    def count(self, now_ms: int, name: str, by: int = 1) -> None:
        if by:
            self.stats[name] += by
            self.hours[now_ms // 3_600_000][name] += by

    def row_for(self, id: str, queue: str, raw: bytes, now_ms: int) -> Row:
        """The job's record, made if there is none; it no longer expires."""
        row = self.rows.get(id)
        if row is None:
            row = self.rows[id] = Row(id, State.PENDING, raw, queue, created_ms=now_ms)
        row.expires_ms = None
        return row

    def push(self, row: Row, *, front: bool) -> None:
        """The record's element enters its queue."""
        row.state, row.due_ms, row.queued = State.PENDING, 0, row.queued + 1
        self.push_raw(row.queue, row.raw, front=front)

    def push_raw(self, queue: str, raw: bytes, *, front: bool) -> None:
        if front:
            self.queues[queue].append(raw)
        else:
            self.queues[queue].appendleft(raw)
        self.wake()

    def disown(self, queue: str, raw: bytes, *, front: bool, now_ms: int) -> None:
        """Bytes that are not a job enter a queue again: nobody can tell them from a stranger's, so they are
        taken out of the books here and the next claim adopts them anew."""
        self.push_raw(queue, raw, front=front)
        self.count(now_ms, "adopted", -1)

    def schedule(self, row: Row, state: State, due_ms: int) -> None:
        """A blank is added while another copy of the same bytes waits too."""
        while row.raw in self.scheduled:
            row.raw += b" "
        row.state, row.due_ms = state, due_ms
        self.scheduled[row.raw] = due_ms

    def end(self, row: Row, state: State, now_ms: int) -> None:
        """Completed or cancelled: listed, counted, and forgotten in time."""
        row.state, row.ended_ms = state, now_ms
        if not row.queued:  # else a copy of it still waits, and needs the record
            row.expires_ms = now_ms + int(self.config.worker.history_ttl * 1000)
        ended = self.completed if state is State.COMPLETED else self.cancelled
        ended.appendleft(row.raw)
        self.count(now_ms, state.value)
        while len(ended) > self.config.worker.completed_max:
            fallen = decode_or_none(ended.pop())
            stale = self.rows.get(fallen.id) if fallen else None
            if stale is not None and stale.state is state and not stale.queued:
                del self.rows[stale.id]

    def beat(self, slot: str, raw: bytes, now_ms: int) -> None:
        self.heartbeats[slot] = (now_ms + int(self.config.worker.heartbeat_ttl * 1000), raw)

    def is_alive(self, slot: str, now_ms: int) -> bool:
        return self.heartbeats.get(slot, (0, b""))[0] > now_ms

    def publish(self, event: bytes) -> None:
        if event:
            for subscription in tuple(self.subscriptions):
                subscription.put(event)

    def wake(self) -> None:
        for waiter in tuple(self.waiters):
            waiter.wake()

    def has_work(self, paused: frozenset[str]) -> bool:
        with self.lock:
            return any(elements for name, elements in self.queues.items() if name not in paused)
