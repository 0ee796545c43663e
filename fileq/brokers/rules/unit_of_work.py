"""What a verb works on: one atomic step, its reads and its changes.

A verb handles one job after the other. Records, slots, ledger entries, batches, counters and events are read in bulk,
changed here and written by a few `executemany` at the end, which makes a batch cheap. Jobs move between places at once,
because the next job of the batch may need that. Nothing here begins or ends a transaction, and nothing read here
outlives one.
"""

from __future__ import annotations

import contextlib
import sqlite3
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Generic, NamedTuple, TypeVar

from msgspec.structs import astuple

from fileq.brokers.local_waiter import ClaimOrder, LocalWaiter
from fileq.brokers.protocol import Subscription
from fileq.brokers.rules.rows import MemberState, RecordRow, SlotRow
from fileq.brokers.rules.tables import (
    ADD_TO_COUNTER,
    SAVE_SLOT,
    Tables,
    encode_batch,
    encode_entry,
    execute_each,
    save_records,
)
from fileq.brokers.types import HOUR_MS, LONGEST_LOOK_MS, Attempt, LedgerEntry
from fileq.brokers.wire_events import stamped
from fileq.config import Config
from fileq.core.batch import Batch
from fileq.core.errors import Undecodable
from fileq.core.fingerprint import fingerprint
from fileq.core.job import Claim, Job, State, Version, decode, decode_or_none, raw_id
from fileq.core.own_jobs import foreign_error

if TYPE_CHECKING:
    from fileq.brokers.sqlite.database import Database, MemoryDatabase

Key = TypeVar("Key")
Row = TypeVar("Row")


class QueuedJob(NamedTuple):
    """One job in a queue, and its position; `job` is None if the bytes are not a job."""

    position: int
    raw: bytes
    job: Job | None


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


class UnitOfWork(Tables):
    """What a verb works on."""

    def __init__(self, store: Store, db: sqlite3.Connection, *, has_subscribers: bool = False) -> None:
        super().__init__(store, db)
        self.config = store.config
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

    # the end of the transaction

    def write(self) -> None:
        """Writes everything gathered to the tables. The caller commits."""
        # The trigger that keeps a member without a record reads the mark from the table.
        marks = [(record.member, record.id) for record in self.deleted_members]
        execute_each(self.db, "UPDATE records SET member = ? WHERE id = ?", marks)
        records = self.records.changed()
        execute_each(self.db, "DELETE FROM records WHERE id = ?", [(id,) for id, record in records if record is None])
        save_records(self.db, [record for _, record in records if record is not None], self.new_records)
        execute_each(self.db, SAVE_SLOT, [astuple(row) for _, row in self.slots.changed() if row is not None])
        self._write_ledger()
        self._write_batches()
        for ended in self._ended.values():
            ended.write()
        self._write_counts()
        self._write_events()

    def _write_ledger(self) -> None:
        changes = self.ledger.changed()
        execute_each(
            self.db, "DELETE FROM ledger WHERE path = ?", [(path,) for path, entry in changes if entry is None]
        )
        saved = [(path, encode_entry(entry)) for path, entry in changes if entry is not None]
        execute_each(self.db, "INSERT OR REPLACE INTO ledger VALUES (?, ?)", saved)

    def _write_batches(self) -> None:
        rows = [
            (encode_batch(batch), batch.finished_ms, batch.id)
            for _, batch in self.batches.changed()
            if batch is not None
        ]
        execute_each(self.db, "UPDATE batches SET facts = ?, finished_ms = ? WHERE id = ?", rows)

    def _write_counts(self) -> None:
        hour = self.now_ms // HOUR_MS
        execute_each(self.db, ADD_TO_COUNTER, list(self.counts.items()))
        execute_each(
            self.db,
            "INSERT INTO hourly VALUES (?, ?, ?) ON CONFLICT DO UPDATE SET value = value + excluded.value",
            [(hour, name, by) for name, by in self.counts.items()],
        )
        if self.counts:
            self.db.execute("DELETE FROM hourly WHERE hour < ?", (self.oldest_hour_kept,))

    def _write_events(self) -> None:
        if self.events:
            execute_each(self.db, "INSERT INTO events (body) VALUES (?)", [(body,) for body in self.events])
            self.db.execute("DELETE FROM events WHERE number <= (SELECT max(number) FROM events) - ?", (EVENTS_KEPT,))


EVENTS_KEPT = 10_000
DEADLINE_FIELD = b'"deadline":'  # in the bytes of a job that has one
CANCELS = "cancels"  # counts as the revision of a kind without documents


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


class Store(ABC):
    """The database, and what the process keeps outside it: clocks and the order of the queues.

    `clock` is the wall clock, for due times and history. `monotonic` is for leases and the rate limit, which a step
    of the wall clock must not change. Both count milliseconds."""

    database: Database | MemoryDatabase

    def __init__(
        self,
        config: Config,
        database: Database | MemoryDatabase,
        *,
        clock: Callable[[], int],
        monotonic: Callable[[], int],
    ) -> None:
        self.config = config
        self.database = database
        self.clock = clock
        self.monotonic = monotonic
        self.queue_names = tuple(config.worker.priorities)
        self.order = ClaimOrder(self.queue_names, config.worker.starvation_share)

    @contextlib.contextmanager
    def unit_of_work(self) -> Iterator[UnitOfWork]:
        """One transaction: its changes are written and committed at the end, or none of them if the block raises. Wakes
        the waiters if a job was pushed."""
        database = self.database
        with database.lock:
            claims = self.order.claims
            try:
                with database.transaction() as db:
                    # The clocks are read behind the locks: a later transaction never has an earlier time.
                    work = UnitOfWork(self, db, has_subscribers=self.has_subscribers())
                    work.forget_expired()
                    yield work
                    work.write()
            except BaseException:
                self.order.claims = claims
                raise
        if work.queued.has_pushed:
            self.wake()

    @contextlib.contextmanager
    def reading(self) -> Iterator[UnitOfWork]:
        """A consistent view, in which nothing may be changed."""
        with self.database.snapshot() as db:
            yield UnitOfWork(self, db)

    @abstractmethod
    def has_subscribers(self) -> bool: ...

    @abstractmethod
    def wake(self) -> None:
        """Wakes every waiter of this process."""

    @abstractmethod
    def lease(self, name: str, holder: str, ttl_ms: int, instead_of: str) -> str:
        """protocol.Broker.lease(). Without a unit of work: a lease need not survive anything."""

    @abstractmethod
    def waiter(self) -> LocalWaiter: ...

    @abstractmethod
    def subscribe(self) -> Subscription: ...
