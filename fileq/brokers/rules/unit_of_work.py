"""What a verb works on: one atomic step, its reads and its changes, and the primitives that a backing supplies.

A verb handles one job after the other. Records, slots, ledger entries, batches, counters and events are read in bulk,
changed here and written by the backing at the end, which makes a batch cheap. Jobs move between places at once, or the
backing must answer as if they did, because the next job of the batch may need that. Nothing here begins or ends a
transaction, and nothing read here outlives one.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Generic, NamedTuple, Protocol, TypeVar

from fileq.brokers.batches import MemberPage
from fileq.brokers.catalog import Document
from fileq.brokers.clocks import HOUR_MS, LONGEST_LOOK_MS
from fileq.brokers.local_waiter import ClaimOrder, LocalWaiter
from fileq.brokers.protocol import Order, Subscription
from fileq.brokers.rules.rows import MemberState, RecordRow, SlotRow
from fileq.brokers.schedules import ScheduleState
from fileq.brokers.types import Attempt, Census, LedgerEntry, ProducerInfo, ProducerView
from fileq.brokers.wire_events import stamped
from fileq.config import Config
from fileq.core.batch import KEPT_MS, Batch, BatchState
from fileq.core.errors import Undecodable
from fileq.core.fingerprint import fingerprint
from fileq.core.job import Claim, Job, State, Version, decode, decode_or_none, raw_id
from fileq.core.own_jobs import foreign_error

Key = TypeVar("Key")
Row = TypeVar("Row")


class QueuedJob(NamedTuple):
    """One job in a queue, and its position; `job` is None if the bytes are not a job."""

    position: int
    raw: bytes
    job: Job | None


class QueueTable(Protocol):
    """The queues. The lowest position is the front."""

    has_pushed: bool  # in this unit of work: waiters must be woken

    def push(self, queue: str, raw: bytes, *, front: bool) -> int:
        """Returns its position."""

    def first(self, queue: str, limit: int) -> list[tuple[int, bytes]]:
        """Position and bytes of the first jobs of a queue, front first."""

    def remove_first(self, positions: list[tuple[str, int]]) -> None:
        """Removes jobs at the front of their queues, by (queue, position)."""

    def remove_anywhere(self, queue: str, positions: Sequence[int]) -> None: ...

    def locate(self, wanted: Collection[tuple[str, bytes]]) -> None:
        """Finds jobs, by (queue, raw), that `remove_newest` will remove, in one pass for all of them."""

    def locate_at(self, queue: str, raw: bytes, position: int) -> None:
        """As locate(), for one job and without reading the queue, if the job is at this position."""

    def remove_newest(self, queue: str, raw: bytes) -> bool:
        """Removes the newest job with these bytes, wherever it is; False if there is none."""

    def found(self, wanted: Collection[tuple[str, bytes]]) -> set[tuple[str, bytes]]:
        """Those of these (queue, raw) that are there."""

    def repair(self) -> None:
        """Corrects what the table keeps beside the jobs, after something else has removed some."""


class EndedList(Protocol):
    """The list of completed or of cancelled jobs."""

    def append(self, raw: bytes) -> None: ...

    def trim(self, limit: int) -> Iterator[bytes]:
        """Yields the entries removed to keep at most `limit`, oldest first."""


class Backing(Protocol):
    """The primitives of one atomic step. `find_…` reads many at once and leaves out what is not there; what has expired
    is not there."""

    queued: QueueTable

    def find_records(self, ids: Sequence[str]) -> Mapping[str, RecordRow | None]: ...

    def delete_ended_record(self, id: str, state: State) -> None:
        """Deletes the record if it has this state and no copy of its job waits."""

    def find_slots(self, slots: Sequence[str]) -> Mapping[str, SlotRow | None]: ...

    def all_slots(self) -> list[SlotRow]:
        """Every slot that is registered or holds a job, by name."""

    def forget_slots(self, kept: int) -> None:
        """Deletes slots that are gone, but for the `kept` newest."""

    def find_ledger_entries(self, paths: Sequence[bytes]) -> Mapping[bytes, LedgerEntry | None]: ...

    def ledger_after(self, under: bytes, after: bytes, limit: int) -> list[tuple[bytes, LedgerEntry]]:
        """The next entries whose paths start with `under`, by path; from the beginning with b""."""

    # places

    def ended(self, state: State) -> EndedList: ...

    def add_dead(self, raw: bytes) -> None: ...

    def is_dead(self, raw: bytes) -> bool: ...

    def remove_dead(self, raw: bytes) -> bool:
        """Removes the oldest dead job with these bytes; False if there is none."""

    def due_ms_of(self, raw: bytes) -> int | None:
        """When these bytes are due; None if they are not scheduled."""

    def put_scheduled(self, raw: bytes, due_ms: int) -> None:
        """Schedules these bytes, or changes when they are due."""

    def unschedule(self, raw: bytes) -> bool:
        """Removes these bytes from the scheduled jobs; False if they are not there."""

    def take_due(self, limit: int) -> list[bytes]:
        """Removes the jobs that are due, the earliest first."""

    def latest_due(self, offset: int, limit: int) -> list[bytes]:
        """A page of the scheduled jobs, the last one first."""

    def next_due_ms(self) -> int | None: ...

    def peek(self, place: str, limit: int) -> list[bytes]:
        """The first jobs of a place: the newest of those that have ended, and otherwise the oldest."""

    # deadlines

    def put_deadline(self, id: str, look_ms: int) -> None: ...

    def place_deadline(self, id: str, position: int) -> None:
        """Notes the position of a job in its queue, if its deadline is listed. A backing need not."""

    def take_deadline(self, id: str) -> int | None:
        """Removes the deadline of a job; returns its position if it was noted."""

    def due_looks(self, limit: int) -> list[str]:
        """The ids of the jobs that are to be looked at by now."""

    def look_again(self, id: str, look_ms: int) -> None: ...

    def next_look_ms(self) -> int | None: ...

    # unique keys, outputs, orders

    def find_key(self, key: str) -> str:
        """The id of the job that took the key last; empty if none did."""

    def put_key(self, key: str, id: str) -> None: ...

    def key_page(self, cursor: str, limit: int) -> list[tuple[str, str]]:
        """Keys after the cursor, with the jobs that took them, in order."""

    def remove_keys(self, keys: Sequence[str]) -> None: ...

    def find_makers(self, paths: Sequence[bytes]) -> Mapping[bytes, str]:
        """The id of the job that made each of these files."""

    def put_outputs(self, paths: Sequence[bytes], id: str, expires_ms: int) -> None: ...

    def forget_outputs(self) -> None:
        """Deletes some of those whose time is over."""

    def put_order(self, order: Order) -> None: ...

    def remove_orders(self, ids: Sequence[str]) -> None: ...

    def due_orders(self, after: str, before_ms: int, limit: int) -> list[Order]:
        """Orders given before that time, or by slots that are not registered, after this id and in order of ids."""

    def order_count(self) -> int: ...

    # limits

    def rate_window(self) -> tuple[int, int]:
        """When the window of the producers ends, and the permits taken in it."""

    def put_rate_window(self, ends_ms: int, taken: int) -> None: ...

    def holders(self, route: str) -> Collection[str]:
        """The slots with a permit of this route. Deletes those that no longer hold what they had it for."""

    def add_holder(self, route: str, slot: str, raw: bytes) -> None: ...

    def route_window(self, route: str) -> tuple[int, int]:
        """When the window of a route ends, and the jobs started in it."""

    def put_route_window(self, route: str, ends_ms: int, started: int) -> None: ...

    # batches

    def find_batches(self, ids: Sequence[str]) -> Mapping[str, Batch | None]: ...

    def insert_batch(self, batch: Batch) -> None:
        """Replaces one of the same id whose time is over, with its members."""

    def unfinished_children(self, id: str, most: int) -> list[str]:
        """Ids of child batches. A batch may have very many, so never all of them."""

    def batches_before(self, last: tuple[int, str] | None, limit: int, *, unfinished: bool) -> list[tuple[int, str]]:
        """When batches were created, and their ids: the newest first, after `last` in this order."""

    def member_page(self, batch_id: str, state: MemberState, cursor: str, limit: int) -> MemberPage: ...

    def forget_batches(self) -> None:
        """Deletes some of those whose time is over."""

    def add_unmarked(self, batch_id: str, state: MemberState, id: str) -> None:
        """Adds a member that no record marks, unless it is there."""

    def remove_unmarked(self, batch_id: str, state: MemberState, id: str) -> bool: ...

    def has_unmarked(self, batch_id: str, state: MemberState | None = None, id: str = "") -> bool:
        """Whether the batch has this unmarked member; without a state, whether it has any."""

    # what operators switch, schedules, documents and producers

    def paused(self) -> frozenset[str]: ...

    def put_paused(self, queue: str, *, is_paused: bool) -> None: ...

    def breaker_resets(self) -> dict[str, int]: ...

    def count_breaker_reset(self, route: str) -> None: ...

    def schedule_states(self) -> dict[str, ScheduleState]: ...

    def schedule_state(self, name: str) -> ScheduleState | None: ...

    def put_schedule_state(self, name: str, state: ScheduleState | None) -> None:
        """Replaces the state of a schedule; None removes it."""

    def next_fire_ms(self) -> int | None:
        """The earliest slot of all schedules that are not paused."""

    def documents(self, kind: str) -> dict[str, Document]: ...

    def document(self, kind: str, name: str) -> Document | None: ...

    def put_document(self, kind: str, name: str, document: Document | None) -> None:
        """Replaces a document; None removes it."""

    def catalog_revision(self, kind: str) -> int:
        """Of a kind of documents; that of CANCELS counts the requests to cancel running jobs."""

    def next_revision(self, kind: str) -> int: ...

    def producers(self) -> list[ProducerView]: ...

    def put_producer(self, id: str, info: ProducerInfo | None, ttl_ms: int = 0) -> None:
        """Replaces the report of a producer; None removes it. Deletes those whose lease has ended."""

    # numbers

    def census(self, *, is_exact: bool = False) -> Census:
        """`is_exact` counts every job instead of deriving numbers; that may take longer."""

    def add_to_counter(self, name: str, by: int) -> None:
        """Changes a counter, but not that of the hour."""

    def hours(self, oldest: int, newest: int) -> dict[int, dict[str, int]]:
        """The counters of these hours."""


class Known(Generic[Key, Row]):
    """Rows of one kind in one unit of work: each is read once, when it is needed, and written at the end, in the order
    of the changes. None stands for a row that is not there, or that is deleted."""

    def __init__(self, find: Callable[[Sequence[Key]], Mapping[Key, Row | None]]) -> None:
        self._find = find
        self._changed: dict[Key, None] = {}
        self.rows: dict[Key, Row | None] = {}  # those that were read or put

    def read(self, keys: Iterable[Key]) -> None:
        """Reads these rows in one statement, for later calls of get()."""
        if unread := [key for key in dict.fromkeys(keys) if key not in self.rows]:
            self.rows.update(dict.fromkeys(unread))
            self.rows.update(self._find(unread))

    def get(self, key: Key) -> Row | None:
        """The row, to read. What is changed in it is written only after change() or put()."""
        if key not in self.rows:
            self.read([key])
        return self.rows[key]

    def change(self, key: Key) -> None:
        self._changed[key] = None

    def put(self, key: Key, row: Row | None) -> None:
        self.rows[key] = row
        self._changed[key] = None

    def changed(self) -> list[tuple[Key, Row | None]]:
        """What is to be written."""
        return [(key, self.rows[key]) for key in self._changed]


class UnitOfWork(Backing):
    """What a verb works on. A subclass supplies the Backing."""

    def __init__(
        self, config: Config, *, boot: str, now_ms: int, monotonic_ms: int, has_subscribers: bool = False
    ) -> None:
        self.config = config
        self.queue_names = tuple(config.worker.priorities)
        self.boot = boot
        self.now_ms = now_ms
        self.monotonic_ms = monotonic_ms  # for leases and windows, which a step of the wall clock must not change
        self.has_subscribers = has_subscribers  # if not, no event need be made
        self.records = Known(self.find_records)
        self.slots = Known(self.find_slots)
        self.ledger = Known(self.find_ledger_entries)
        self.batches = Known(self.find_batches)
        self.members = BatchMembers(self)
        self.finished_batches: list[str] = []  # in this unit of work
        self.counts: Counter[str] = Counter()
        self.events: list[bytes] = []
        self.new_records: set[str] = set()
        self.deleted_members: list[RecordRow] = []  # whose records are deleted

    # records, slots, the ledger and batches

    def record_for(self, id: str, queue: str, raw: bytes) -> RecordRow:
        """The job's record, to change; created if there is none. It no longer expires."""
        record = self.records.get(id)
        if record is None:
            record = RecordRow(id, State.PENDING, raw, queue, created_ms=self.now_ms)
            self.new_records.add(id)
        record.expires_ms = None
        self.records.put(id, record)
        return record

    def change_record(self, record: RecordRow) -> RecordRow:
        self.records.change(record.id)
        return record

    def delete_record(self, id: str) -> None:
        record = self.records.rows.get(id)
        if record is not None and record.batch:
            self.deleted_members.append(record)
        self.records.put(id, None)

    def replace_record(self, id: str) -> RecordRow | None:
        """Forgets the record of this id, for record_for() to create another. Its batch still knows the member. Returns
        the record; None if there is none."""
        record, self.records.rows[id] = self.records.get(id), None
        if record is not None and record.batch:
            self.members.keep(record)
        return record

    def change_slot(self, slot_row: SlotRow) -> SlotRow:
        self.slots.put(slot_row.slot, slot_row)
        return slot_row

    def left_ms(self, slot_row: SlotRow) -> int:
        """Until the heartbeat of a slot ends; 0 if that has ended."""
        return max(0, slot_row.alive_until_ms - self.monotonic_ms) if slot_row.boot == self.boot else 0

    def is_alive(self, slot_row: SlotRow) -> bool:
        return self.left_ms(slot_row) > 0

    def renew_heartbeat(self, slot_row: SlotRow) -> None:
        ttl_ms = int(self.config.worker.heartbeat_ttl * 1000)
        slot_row.boot, slot_row.alive_until_ms = self.boot, self.monotonic_ms + ttl_ms
        self.slots.change(slot_row.slot)

    def learn(self, version: Version, job_id: str) -> None:
        """Makes this the newest version of its path in the ledger."""
        known = self.ledger.get(version.path) or LedgerEntry()
        self.ledger.put(version.path, known.with_version(version, job_id))

    def change_batch(self, batch: Batch) -> Batch:
        self.batches.change(batch.id)
        return batch

    # counters and events

    def count(self, name: str, by: int = 1) -> None:
        if by:
            self.counts[name] += by

    def publish(self, event: bytes) -> None:
        if event:
            self.events.append(stamped(event, self.now_ms))

    @property
    def oldest_hour_kept(self) -> int:
        return self.now_ms // HOUR_MS - int(self.config.observability.stats_retention / 3600)

    # moves between places

    def push(self, record: RecordRow, *, front: bool) -> None:
        """Puts the record's job into its queue and counts the copy in the record."""
        record.state, record.due_ms, record.queued = State.PENDING, 0, record.queued + 1
        position = self.queued.push(record.queue, record.raw, front=front)
        if DEADLINE_FIELD in record.raw:  # or something like it: then the job is not in the index
            self.place_deadline(record.id, position)

    def push_undecodable(self, queue: str, raw: bytes, *, front: bool) -> None:
        """Puts bytes that are not a job back into a queue.

        They have no record that counts copies, so the next claim will count them as adopted again. That is
        subtracted here."""
        self.queued.push(queue, raw, front=front)
        self.count("adopted", -1)

    def schedule(self, record: RecordRow, state: State, due_ms: int, since_ms: int) -> None:
        """Schedules the record's job. A blank is appended while another copy of the same bytes is scheduled."""
        while self.due_ms_of(record.raw) is not None:
            record.raw += b" "
        record.state, record.due_ms, record.since_ms = state, due_ms, since_ms
        self.put_scheduled(record.raw, due_ms)

    def bury(self, record: RecordRow) -> None:
        record.state, record.ended_ms = State.DEAD, self.now_ms
        self.add_dead(record.raw)
        self.count("dead")

    def is_foreign(self, raw: bytes, job: Job | None, place: State) -> bool:
        """Whether these bytes, which are waiting (PENDING) or DEAD, are under the id of another job."""
        record = self.records.get(job.id) if job is not None else None
        if record is None or not record.is_protected:
            return False
        is_there = bool(record.queued) if place is State.PENDING else record.state == place
        return not (is_there and record.is_about(raw))

    def bury_foreign(self, slot: str, queue: str, raw: bytes, id: str) -> str:
        """Buries bytes that are under this id of another job, under an id of their own. Returns the error."""
        error = foreign_error(id)
        record = self.record_for(raw_id(raw), queue, raw)
        record.add_attempt(Attempt(record.started_ms, self.now_ms, slot, "refused", error, is_fatal=True))
        record.slot, record.queue, record.error = slot, queue, error
        record.change_facts(fingerprint=fingerprint(error))
        self.bury(record)
        self.count("error:ForeignJob")
        return error

    def end(self, record: RecordRow, state: State) -> None:
        """Lists the job as completed or cancelled, counts it, and lets its record expire. The caller trims the list
        when the follow-ups of the job are enqueued."""
        record.state, record.ended_ms = state, self.now_ms
        if not record.queued:  # a copy that still waits needs the record
            record.expires_ms = self.now_ms + int(self.config.worker.history_ttl * 1000)
        self.ended(state).append(record.raw)
        self.count(state.value)

    def trim_ended(self, state: State) -> None:
        """Removes the oldest jobs beyond completed_max from the list to which end() has added, with their records."""
        for raw in self.ended(state).trim(self.config.worker.completed_max):
            if (job := decode_or_none(raw)) is None:
                continue
            # Not a record that is now about another run of the job.
            if job.id not in self.records.rows:
                self.delete_ended_record(job.id, state)
            elif (record := self.records.rows[job.id]) is not None and record.state == state and not record.queued:
                self.delete_record(job.id)

    def index_deadline(self, record: RecordRow) -> None:
        """Lists the deadline of a job that is about to wait."""
        if record.extra and (deadline_ms := record.facts.deadline_ms) is not None:
            self.put_deadline(record.id, min(deadline_ms, self.now_ms + LONGEST_LOOK_MS))


DEADLINE_FIELD = b'"deadline":'  # in the bytes of a job that has one
CANCELS = "cancels"  # counts as the revision of a kind without documents


def is_over(batch: Batch, now_ms: int) -> bool:
    """Whether the time of a finished batch is over."""
    return batch.state is BatchState.FINISHED and batch.finished_ms + KEPT_MS <= now_ms


def claim_of(work: UnitOfWork, slot_row: SlotRow, token: int = 0, *, queue: str = "") -> Claim:
    """The claim of the job that a slot holds. Without a record it is of `queue`, or of the last one."""
    raw, queue = slot_row.raw or b"", queue or work.queue_names[-1]
    try:
        job = decode(raw)
    except Undecodable as defect:
        return Claim(slot_row.slot, token, queue, raw, None, defect=str(defect))
    record = work.records.get(job.id)
    if record is None:
        return Claim(slot_row.slot, token, queue, raw, job, job.id)
    return Claim(slot_row.slot, token, record.queue, raw, job, job.id, record.started_ms)


class BatchMembers:
    """Which jobs are members of which batch: marks in records, and rows for the few that no record marks.

    An unfinished or dead member is marked in its own record. The record is written anyway when the job changes, and the
    index of these marks is in the order in which the jobs were enqueued, so a member costs the same in a batch of any
    size. The others are the members whose record was lost, which the backing keeps when it deletes a record, and the
    jobs that had ended when they joined."""

    def __init__(self, work: UnitOfWork) -> None:
        self._work = work
        self._has_unmarked: dict[str, bool] = {}  # by id of the batch, as far as it was needed

    def put(self, batch: Batch, id: str, state: MemberState) -> bool:
        """Makes a job a member in this state; False if it is one already."""
        if self.has(batch, id, state):
            return False
        record = self._work.records.get(id)
        if state is not MemberState.KNOWN and record is not None and record.batch == batch.id:
            self._work.change_record(record).member = state
        else:
            self._work.add_unmarked(batch.id, state, id)
            self._has_unmarked[batch.id] = True
        return True

    def keep(self, record: RecordRow) -> None:
        """Keeps a member whose record is replaced."""
        if record.member is not None:
            self._work.add_unmarked(record.batch, MemberState(record.member), record.id)
            self._has_unmarked[record.batch] = True

    def take(self, batch: Batch, id: str, state: MemberState) -> bool:
        """Removes a member in this state; False if there is none."""
        if (record := self._marked(batch, id, state)) is not None:
            self._work.change_record(record).member = None
            return True
        return self._may_be_unmarked(batch) and self._work.remove_unmarked(batch.id, state, id)

    def has(self, batch: Batch, id: str, *states: MemberState) -> bool:
        if any(self._marked(batch, id, state) is not None for state in states):
            return True
        return self._may_be_unmarked(batch) and any(self._work.has_unmarked(batch.id, state, id) for state in states)

    def _marked(self, batch: Batch, id: str, state: MemberState) -> RecordRow | None:
        record = self._work.records.get(id)
        return record if record is not None and record.batch == batch.id and record.member == state else None

    def _may_be_unmarked(self, batch: Batch) -> bool:
        """Whether the batch has unmarked members. Nearly none has; then no member is looked up there."""
        if batch.id not in self._has_unmarked:
            self._has_unmarked[batch.id] = self._work.has_unmarked(batch.id)
        return self._has_unmarked[batch.id]


class Store(Protocol):
    """What the verbs need of a backing beside a unit of work."""

    config: Config
    queue_names: tuple[str, ...]
    order: ClaimOrder

    def unit_of_work(self) -> AbstractContextManager[UnitOfWork]:
        """One atomic step: its changes are written at the end, or none of them if the block raises. Wakes the waiters
        if a job was pushed."""

    def reading(self) -> AbstractContextManager[UnitOfWork]:
        """A consistent view. Nothing may be changed in it, and it waits for no unit of work."""

    def wake(self) -> None:
        """Wakes every waiter of this process."""

    def lease(self, name: str, holder: str, ttl_ms: int, instead_of: str) -> str:
        """protocol.Broker.lease(). Without a unit of work: a lease need not survive anything."""

    def waiter(self) -> LocalWaiter: ...

    def subscribe(self) -> Subscription: ...
