"""The memory broker: the rulebook over dictionaries. Everything is lost with the process.

A queue is a deque of (position, bytes), its front at the left. A place holds only the bytes of jobs, because a plain
list on Redis can hold nothing else; everything more that is known of a job is in its record.

Records, slots and batches are copied when they are read and put back at the end of a unit of work; the places change at
once. No verb raises after its first change of a place, so a unit of work that raises has changed nothing.
"""

from __future__ import annotations

import contextlib
import copy
import threading
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Collection, Iterator, Sequence
from heapq import nlargest, nsmallest
from itertools import islice
from operator import itemgetter
from queue import Empty, SimpleQueue
from typing import TypeVar

from fileq.brokers.batches import MemberPage
from fileq.brokers.catalog import Document
from fileq.brokers.clocks import HOUR_MS, wall_clock_ms
from fileq.brokers.local_waiter import ClaimOrder, LocalWaiter, take_lease
from fileq.brokers.place_pages import (
    NEWEST_FIRST,
    PROCESSING,
    Page,
    check_page,
    offset_of,
    page_of_slots,
    start_after,
    within_bytes,
)
from fileq.brokers.protocol import Order
from fileq.brokers.rules import RulebookBroker
from fileq.brokers.rules.rows import MemberState, RecordRow, SlotRow
from fileq.brokers.rules.unit_of_work import UnitOfWork, is_over
from fileq.brokers.schedules import ScheduleState
from fileq.brokers.types import Census, LedgerEntry, ProducerInfo, ProducerView
from fileq.config import Config
from fileq.core.batch import Batch, BatchState
from fileq.core.errors import BrokerError
from fileq.core.finding import Finding
from fileq.core.job import State

_BOOT = "this process"  # leases end with it
Key = TypeVar("Key")
Value = TypeVar("Value")


class MemoryStore:
    def __init__(self, config: Config, *, clock: Callable[[], int]) -> None:
        self.config = config
        self.clock = clock
        self.lock = threading.RLock()
        self.queue_names = tuple(config.worker.priorities)
        self.queues: dict[str, deque[tuple[int, bytes]]] = {name: deque() for name in self.queue_names}
        self.scheduled: dict[bytes, int] = {}  # raw → due_ms
        self.dead: deque[bytes] = deque()  # of these three the oldest is at the left
        self.completed: deque[bytes] = deque()
        self.cancelled: deque[bytes] = deque()
        self.records: dict[str, RecordRow] = {}
        self.slots: dict[str, SlotRow] = {}
        self.ledger: dict[bytes, LedgerEntry] = {}
        self.counters: Counter[str] = Counter()
        self.hourly: dict[int, Counter[str]] = defaultdict(Counter)
        self.paused: set[str] = set()
        self.breaker_resets: Counter[str] = Counter()
        self.producers: dict[str, tuple[int, ProducerInfo]] = {}  # id → when its lease ends, what it reported
        self.rate_window: tuple[int, int] = (0, 0)
        self.holders: dict[str, dict[str, bytes]] = defaultdict(dict)  # route → slot → the raw that was admitted
        self.route_windows: dict[str, tuple[int, int]] = {}
        self.orders: dict[str, Order] = {}  # by the id of the job
        self.deadlines: dict[str, int] = {}  # id of a job that has one → when to look at it
        self.unique: dict[str, str] = {}  # unique key → id of the job that took it last
        self.made: dict[bytes, tuple[str, int]] = {}  # path of an output → id of the job, when it is forgotten
        self.documents: dict[str, dict[str, Document]] = defaultdict(dict)  # kind → name → document
        self.catalog_revisions: Counter[str] = Counter()  # by kind
        self.schedule_states: dict[str, ScheduleState] = {}
        self.batches: dict[str, Batch] = {}
        self.unmarked: dict[str, set[tuple[MemberState, str]]] = {}  # id of a batch → members that no record marks
        self.leases: dict[str, tuple[str, int]] = {}  # name → holder, when it ends
        self.order = ClaimOrder(self.queue_names, config.worker.starvation_share)
        self.waiters: set[LocalWaiter] = set()
        self.subscriptions: set[MemorySubscription] = set()

    @contextlib.contextmanager
    def unit_of_work(self) -> Iterator[MemoryWork]:
        with self.lock:
            claims = self.order.claims
            try:
                work = MemoryWork(self)
                for id in [id for id, record in self.records.items() if work.has_expired(record)]:
                    self.delete_record(id)
                yield work
                work.write()
            except BaseException:
                self.order.claims = claims
                raise
            if work.queued.has_pushed:
                self.wake()

    @contextlib.contextmanager
    def reading(self) -> Iterator[MemoryWork]:
        with self.lock:
            yield MemoryWork(self)

    def delete_record(self, id: str) -> None:
        """Deletes a record; a batch keeps the member whose record this is."""
        record = self.records.pop(id)
        if record.member is not None:
            self.unmarked.setdefault(record.batch, set()).add((MemberState(record.member), id))

    def push(self, queue: str, raw: bytes, *, front: bool) -> int:
        """Puts bytes into a queue and returns their position. No record and no counter changes."""
        waiting = self.queues[queue]
        if front:
            position = waiting[0][0] - 1 if waiting else 0
            waiting.appendleft((position, raw))
        else:
            position = waiting[-1][0] + 1 if waiting else 1
            waiting.append((position, raw))
        return position

    def list_of(self, place: str) -> list[bytes]:
        """The jobs of a place, the oldest first; those of `scheduled` in the order in which they are due."""
        if place == "scheduled":
            return sorted(self.scheduled, key=lambda raw: (self.scheduled[raw], raw))
        if place in self.queues:
            return [raw for _, raw in self.queues[place]]
        ended = {"dead_letter": self.dead, "completed": self.completed, "cancelled": self.cancelled}
        if place not in ended:
            places = ", ".join((*self.queues, *ended, "scheduled"))
            raise BrokerError(f"no place is called {place!r}; there are {places}")
        return list(ended[place])

    def has_work(self) -> bool:
        """Whether a queue that is not paused holds a job."""
        with self.lock:
            return any(raws for name, raws in self.queues.items() if name not in self.paused)

    def lease(self, name: str, holder: str, ttl_ms: int, instead_of: str) -> str:
        with self.lock:
            return take_lease(self.leases, name, holder, ttl_ms, instead_of, self.clock())

    def wake(self) -> None:
        for waiter in tuple(self.waiters):
            waiter.wake()

    def waiter(self) -> LocalWaiter:
        waiter = LocalWaiter(self.has_work, self.config.worker.brpoplpush_timeout, self.waiters.discard)
        self.waiters.add(waiter)
        return waiter

    def subscribe(self) -> MemorySubscription:
        subscription = MemorySubscription(self.subscriptions.discard)
        self.subscriptions.add(subscription)
        return subscription


class MemoryWork(UnitOfWork):
    """The caller holds the lock of the store."""

    def __init__(self, store: MemoryStore) -> None:
        now_ms = store.clock()
        super().__init__(
            store.config, boot=_BOOT, now_ms=now_ms, monotonic_ms=now_ms, has_subscribers=bool(store.subscriptions)
        )
        self.store = store
        self.queued = MemoryQueueTable(store)

    def has_expired(self, record: RecordRow) -> bool:
        return record.expires_ms is not None and record.expires_ms <= self.now_ms

    # records, slots and the ledger

    def find_records(self, ids: Sequence[str]) -> dict[str, RecordRow | None]:
        found = ((id, self.store.records.get(id)) for id in ids)
        return {id: copy.copy(record) for id, record in found if record is not None and not self.has_expired(record)}

    def delete_ended_record(self, id: str, state: State) -> None:
        record = self.store.records.get(id)
        if record is not None and record.state == state and not record.queued:
            self.store.delete_record(id)

    def find_slots(self, slots: Sequence[str]) -> dict[str, SlotRow | None]:
        return {slot: copy.copy(self.store.slots[slot]) for slot in slots if slot in self.store.slots}

    def all_slots(self) -> list[SlotRow]:
        rows = (row for _, row in sorted(self.store.slots.items()))
        return [copy.copy(row) for row in rows if row.is_registered or row.raw is not None]

    def forget_slots(self, kept: int) -> None:
        gone = [row for row in self.store.slots.values() if not row.is_registered and row.raw is None]
        for row in sorted(gone, key=lambda row: row.gone_ms, reverse=True)[kept:]:
            del self.store.slots[row.slot]

    def find_ledger_entries(self, paths: Sequence[bytes]) -> dict[bytes, LedgerEntry]:
        return {path: self.store.ledger[path] for path in paths if path in self.store.ledger}

    def ledger_after(self, under: bytes, after: bytes, limit: int) -> list[tuple[bytes, LedgerEntry]]:
        found = (one for one in self.store.ledger.items() if one[0].startswith(under) and one[0] > after)
        return nsmallest(limit, found, itemgetter(0))

    # places

    def ended(self, state: State) -> MemoryEndedList:
        return MemoryEndedList(self.store.completed if state is State.COMPLETED else self.store.cancelled)

    def add_dead(self, raw: bytes) -> None:
        self.store.dead.append(raw)

    def is_dead(self, raw: bytes) -> bool:
        return raw in self.store.dead

    def remove_dead(self, raw: bytes) -> bool:
        is_there = raw in self.store.dead
        if is_there:
            self.store.dead.remove(raw)
        return is_there

    def due_ms_of(self, raw: bytes) -> int | None:
        return self.store.scheduled.get(raw)

    def put_scheduled(self, raw: bytes, due_ms: int) -> None:
        self.store.scheduled[raw] = due_ms

    def unschedule(self, raw: bytes) -> bool:
        return self.store.scheduled.pop(raw, None) is not None

    def take_due(self, limit: int) -> list[bytes]:
        due = [raw for raw in self.store.list_of("scheduled")[:limit] if self.store.scheduled[raw] <= self.now_ms]
        for raw in due:
            del self.store.scheduled[raw]
        return due

    def latest_due(self, offset: int, limit: int) -> list[bytes]:
        return self.store.list_of("scheduled")[::-1][offset : offset + limit]

    def next_due_ms(self) -> int | None:
        return min(self.store.scheduled.values(), default=None)

    def peek(self, place: str, limit: int) -> list[bytes]:
        found = self.store.list_of(place)
        return (found[::-1] if place in NEWEST_FIRST else found)[:limit]

    # deadlines

    def put_deadline(self, id: str, look_ms: int) -> None:
        self.store.deadlines[id] = look_ms

    def place_deadline(self, id: str, position: int) -> None:
        """Notes nothing: queues are short."""

    def take_deadline(self, id: str) -> int | None:
        self.store.deadlines.pop(id, None)
        return None

    def due_looks(self, limit: int) -> list[str]:
        looks = sorted((look_ms, id.encode(), id) for id, look_ms in self.store.deadlines.items())
        return [id for look_ms, _, id in looks[:limit] if look_ms <= self.now_ms]

    def look_again(self, id: str, look_ms: int) -> None:
        self.store.deadlines[id] = look_ms

    def next_look_ms(self) -> int | None:
        return min(self.store.deadlines.values(), default=None)

    # unique keys, outputs, orders

    def find_key(self, key: str) -> str:
        return self.store.unique.get(key, "")

    def put_key(self, key: str, id: str) -> None:
        self.store.unique[key] = id

    def key_page(self, cursor: str, limit: int) -> list[tuple[str, str]]:
        return sorted(item for item in self.store.unique.items() if item[0] > cursor)[:limit]

    def remove_keys(self, keys: Sequence[str]) -> None:
        for key in keys:
            del self.store.unique[key]

    def find_makers(self, paths: Sequence[bytes]) -> dict[bytes, str]:
        found = ((path, self.store.made[path]) for path in paths if path in self.store.made)
        return {path: id for path, (id, expires_ms) in found if expires_ms > self.now_ms}

    def put_outputs(self, paths: Sequence[bytes], id: str, expires_ms: int) -> None:
        self.store.made.update(dict.fromkeys(paths, (id, expires_ms)))

    def forget_outputs(self) -> None:
        for path in [path for path, (_, expires_ms) in self.store.made.items() if expires_ms <= self.now_ms]:
            del self.store.made[path]

    def put_order(self, order: Order) -> None:
        self.store.orders[order.id] = order

    def remove_orders(self, ids: Sequence[str]) -> None:
        for id in ids:
            self.store.orders.pop(id, None)

    def due_orders(self, after: str, before_ms: int, limit: int) -> list[Order]:
        registered = {slot for slot, row in self.store.slots.items() if row.is_registered}
        orders = (order for id, order in sorted(self.store.orders.items()) if id > after)
        return list(islice((o for o in orders if o.at_ms < before_ms or o.slot not in registered), limit))

    def order_count(self) -> int:
        return len(self.store.orders)

    # limits

    def rate_window(self) -> tuple[int, int]:
        return self.store.rate_window

    def put_rate_window(self, ends_ms: int, taken: int) -> None:
        self.store.rate_window = ends_ms, taken

    def holders(self, route: str) -> Collection[str]:
        held = {slot: row.raw for slot, row in self.store.slots.items()}
        kept = {slot: raw for slot, raw in self.store.holders[route].items() if held.get(slot) == raw}
        self.store.holders[route] = kept
        return kept.keys()

    def add_holder(self, route: str, slot: str, raw: bytes) -> None:
        self.store.holders[route][slot] = raw

    def route_window(self, route: str) -> tuple[int, int]:
        return self.store.route_windows.get(route, (0, 0))

    def put_route_window(self, route: str, ends_ms: int, started: int) -> None:
        self.store.route_windows[route] = ends_ms, started

    # batches

    def find_batches(self, ids: Sequence[str]) -> dict[str, Batch | None]:
        found = ((id, self.store.batches.get(id)) for id in ids)
        return {id: copy.copy(batch) for id, batch in found if batch is not None and not is_over(batch, self.now_ms)}

    def insert_batch(self, batch: Batch) -> None:
        self.store.unmarked.pop(batch.id, None)
        for record in self.store.records.values():  # an earlier batch of this id left marks
            if record.batch == batch.id:
                record.member = None
        self.store.batches[batch.id] = batch

    def unfinished_children(self, id: str, most: int) -> list[str]:
        batches = (one for one in self.store.batches.values() if one.parent == id and not one.finished_ms)
        return sorted(one.id for one in batches)[:most]

    def batches_before(self, last: tuple[int, str] | None, limit: int, *, unfinished: bool) -> list[tuple[int, str]]:
        found = (one for one in self.store.batches.values() if not is_over(one, self.now_ms))
        keys = [(one.created_ms, one.id) for one in found if not (unfinished and one.finished_ms)]
        return nlargest(limit, (key for key in keys if last is None or key < last))

    def member_page(self, batch_id: str, state: MemberState, cursor: str, limit: int) -> MemberPage:
        marked = (r.id for r in self.store.records.values() if (r.batch, r.member) == (batch_id, state))
        unmarked = (member for was, member in self.store.unmarked.get(batch_id, ()) if was is state)
        found = sorted(member for member in {*marked, *unmarked} if member > cursor)
        return MemberPage(tuple(found[:limit]), found[limit - 1] if len(found) > limit else "")

    def forget_batches(self) -> None:
        for id in [id for id, batch in self.store.batches.items() if is_over(batch, self.now_ms)]:
            del self.store.batches[id]
            self.store.unmarked.pop(id, None)

    def add_unmarked(self, batch_id: str, state: MemberState, id: str) -> None:
        self.store.unmarked.setdefault(batch_id, set()).add((state, id))

    def remove_unmarked(self, batch_id: str, state: MemberState, id: str) -> bool:
        is_there = self.has_unmarked(batch_id, state, id)
        self.store.unmarked.get(batch_id, set()).discard((state, id))
        return is_there

    def has_unmarked(self, batch_id: str, state: MemberState | None = None, id: str = "") -> bool:
        members = self.store.unmarked.get(batch_id, set())
        return bool(members) if state is None else (state, id) in members

    # what operators switch, schedules, documents and producers

    def paused(self) -> frozenset[str]:
        return frozenset(self.store.paused)

    def put_paused(self, queue: str, *, is_paused: bool) -> None:
        (self.store.paused.add if is_paused else self.store.paused.discard)(queue)

    def breaker_resets(self) -> dict[str, int]:
        return dict(self.store.breaker_resets)

    def count_breaker_reset(self, route: str) -> None:
        self.store.breaker_resets[route] += 1

    def schedule_states(self) -> dict[str, ScheduleState]:
        return dict(self.store.schedule_states)

    def schedule_state(self, name: str) -> ScheduleState | None:
        return self.store.schedule_states.get(name)

    def put_schedule_state(self, name: str, state: ScheduleState | None) -> None:
        _put(self.store.schedule_states, name, state)

    def next_fire_ms(self) -> int | None:
        states = self.store.schedule_states.values()
        return min((state.next_ms for state in states if not state.is_paused), default=None)

    def documents(self, kind: str) -> dict[str, Document]:
        return dict(self.store.documents[kind])

    def document(self, kind: str, name: str) -> Document | None:
        return self.store.documents[kind].get(name)

    def put_document(self, kind: str, name: str, document: Document | None) -> None:
        _put(self.store.documents[kind], name, document)

    def catalog_revision(self, kind: str) -> int:
        return self.store.catalog_revisions[kind]

    def next_revision(self, kind: str) -> int:
        self.store.catalog_revisions[kind] += 1
        return self.store.catalog_revisions[kind]

    def producers(self) -> list[ProducerView]:
        reports = sorted(self.store.producers.items(), key=lambda item: item[0])
        return [ProducerView(id, info) for id, (ends_ms, info) in reports if ends_ms > self.now_ms]

    def put_producer(self, id: str, info: ProducerInfo | None, ttl_ms: int = 0) -> None:
        reports = self.store.producers
        self.store.producers = {other: reports[other] for other in reports if reports[other][0] > self.now_ms}
        _put(self.store.producers, id, (self.now_ms + ttl_ms, info) if info is not None else None)

    # numbers

    def census(self, *, is_exact: bool = False) -> Census:
        store = self.store
        return Census(
            pending={name: len(raws) for name, raws in store.queues.items()},
            scheduled=len(store.scheduled),
            running=sum(row.raw is not None for row in store.slots.values()),
            dead=len(store.dead),
            completed=len(store.completed),
            cancelled=len(store.cancelled),
            heartbeats=sum(self.is_alive(row) for row in store.slots.values()),
            counters=dict(store.counters),
            paused=self.paused(),
            now_ms=self.now_ms,
            unfinished_batches=sum(batch.state is not BatchState.FINISHED for batch in store.batches.values()),
        )

    def add_to_counter(self, name: str, by: int) -> None:
        self.store.counters[name] += by

    def hours(self, oldest: int, newest: int) -> dict[int, dict[str, int]]:
        hourly = self.store.hourly
        return {hour: dict(hourly[hour]) for hour in range(oldest, newest + 1) if hour in hourly}

    def write(self) -> None:
        """Puts back what was changed, and publishes the events."""
        store = self.store
        for member in self.deleted_members:
            if member.id in store.records:
                store.records[member.id].member = member.member  # delete_record() reads it
        for id, record in self.records.changed():
            if record is not None:
                store.records[id] = record
            elif id in store.records:
                store.delete_record(id)
        for slot, row in self.slots.changed():
            _put(store.slots, slot, row)
        for path, entry in self.ledger.changed():
            _put(store.ledger, path, entry)
        for id, batch in self.batches.changed():
            _put(store.batches, id, batch)
        store.counters.update(self.counts)
        if self.counts:
            store.hourly[self.now_ms // HOUR_MS].update(self.counts)
        for event in self.events:
            for subscription in tuple(store.subscriptions):
                subscription.put(event)


def _put(table: dict[Key, Value], key: Key, value: Value | None) -> None:
    if value is None:
        table.pop(key, None)
    else:
        table[key] = value


class MemoryQueueTable:
    def __init__(self, store: MemoryStore) -> None:
        self.store = store
        self.has_pushed = False

    def push(self, queue: str, raw: bytes, *, front: bool) -> int:
        self.has_pushed = True
        return self.store.push(queue, raw, front=front)

    def first(self, queue: str, limit: int) -> list[tuple[int, bytes]]:
        return list(islice(self.store.queues[queue], limit))

    def remove_first(self, positions: list[tuple[str, int]]) -> None:
        for queue, position in positions:
            self.remove_anywhere(queue, [position])

    def remove_anywhere(self, queue: str, positions: Sequence[int]) -> None:
        for item in [item for item in self.store.queues[queue] if item[0] in positions]:
            self.store.queues[queue].remove(item)

    def locate(self, wanted: Collection[tuple[str, bytes]]) -> None:
        """Needs no help: `remove_newest` reads a queue of this process."""

    def locate_at(self, queue: str, raw: bytes, position: int) -> None:
        """As locate()."""

    def remove_newest(self, queue: str, raw: bytes) -> bool:
        newest = next((item for item in reversed(self.store.queues.get(queue, ())) if item[1] == raw), None)
        if newest is not None:
            self.store.queues[queue].remove(newest)
        return newest is not None

    def found(self, wanted: Collection[tuple[str, bytes]]) -> set[tuple[str, bytes]]:
        return {(queue, raw) for queue, raw in wanted if any(raw == r for _, r in self.store.queues.get(queue, ()))}

    def repair(self) -> None:
        """Keeps nothing beside the jobs."""


class MemoryEndedList:
    def __init__(self, raws: deque[bytes]) -> None:
        self._raws = raws

    def append(self, raw: bytes) -> None:
        self._raws.append(raw)

    def trim(self, limit: int) -> Iterator[bytes]:
        while len(self._raws) > limit:
            yield self._raws.popleft()


class MemorySubscription:
    """Implements protocol.Subscription within one process. Unbounded: events are kept until they are read."""

    def __init__(self, on_close: Callable[[MemorySubscription], None]) -> None:
        self._on_close = on_close
        self._events: SimpleQueue[bytes] = SimpleQueue()

    def put(self, event: bytes) -> None:
        self._events.put(event)

    def get(self, timeout_s: float) -> bytes | None:
        try:
            return self._events.get(timeout=max(0.0, timeout_s)) if timeout_s > 0 else self._events.get_nowait()
        except Empty:
            return None

    def close(self) -> None:
        self._on_close(self)


class MemoryBroker(RulebookBroker):
    """`store` is also the back door of tests: what another program or a failover can do to a broker's contents."""

    store: MemoryStore
    kind = "memory"
    where = "this process"

    def __init__(self, config: Config, *, clock: Callable[[], int] = wall_clock_ms) -> None:
        self.store = MemoryStore(config, clock=clock)

    def examine(self, *, permissions: bool = False) -> list[Finding]:
        """Finds nothing: this broker depends on nothing outside its process."""
        return []

    def close(self) -> None:
        """Does nothing: no resource outlives the process."""

    def pages(self, place: str, size: int = 500) -> Iterator[list[bytes]]:
        with self.store.lock:
            raws = self.store.list_of(place)
        for start in range(0, len(raws), size):
            yield raws[start : start + size]

    def page(self, place: str, cursor: str = "", size: int = 100) -> Page:
        check_page(place, size, self.store.queue_names)
        if place == PROCESSING:
            return page_of_slots(self.workers(), cursor, size)
        with self.store.lock:
            raws = self.store.list_of(place)
        if place in NEWEST_FIRST:
            raws.reverse()
        last = offset_of(cursor)
        start = start_after(raws, last)
        found = within_bytes(raws[start : start + size])
        return Page(tuple(found), last.after(start, found, len(raws)), len(raws))

    def ids(self, size: int = 500) -> Iterator[list[str]]:
        with self.store.reading() as work:
            found = [id for id, record in self.store.records.items() if not work.has_expired(record)]
        for start in range(0, len(found), size):
            yield found[start : start + size]
