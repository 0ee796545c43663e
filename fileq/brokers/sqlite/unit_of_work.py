"""The work of one transaction: what it has read and changed, and the steps that every verb is made of.

A verb handles one job after the other, as in the memory broker. Records, slots, ledger entries, counters and events
are gathered here and written by a few `executemany` at the end, which makes a batch cheap. Jobs move between places at
once, because the next job of the batch may need that. Nothing here begins or ends a transaction, and nothing read here
outlives one.
"""

from __future__ import annotations

import sqlite3
from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from zlib import crc32

import msgspec

from fileq.brokers.clocks import HOUR_MS, LONGEST_LOOK_MS
from fileq.brokers.sqlite.batch_members import BatchMembers, MemberState
from fileq.brokers.sqlite.batch_table import BatchTable
from fileq.brokers.sqlite.ended_list import EndedList
from fileq.brokers.sqlite.ledger_table import LedgerTable
from fileq.brokers.sqlite.queue_table import QueueTable
from fileq.brokers.sqlite.rows import (
    SAVE_MEMBER,
    SAVE_NEW_RECORD,
    SAVE_RECORD,
    SAVE_SLOT,
    RecordRow,
    SlotRow,
    find_records,
    find_slots,
)
from fileq.brokers.types import Attempt
from fileq.brokers.wire_events import stamped
from fileq.config import Config
from fileq.core.batch import Batch, add_member
from fileq.core.fingerprint import fingerprint
from fileq.core.job import ENDED_STATES, Job, State, decode_or_none, raw_id
from fileq.core.own_jobs import foreign_error

EVENTS_KEPT = 10_000
DEADLINE_FIELD = b'"deadline":'  # in the bytes of a job that has one
EXPIRED_PER_TRANSACTION = 500  # bounds what one transaction spends on deleting expired records


class UnitOfWork:
    def __init__(
        self,
        db: sqlite3.Connection,
        config: Config,
        *,
        boot: str,
        now_ms: int,
        monotonic_ms: int,
        has_subscribers: bool,
    ) -> None:
        self.db = db
        self.config = config
        self.boot = boot
        self.now_ms = now_ms
        self.monotonic_ms = monotonic_ms
        self.has_subscribers = has_subscribers  # if not, no event need be made
        self.queued = QueueTable(db)
        self.ledger = LedgerTable(db)
        self.batches = BatchTable(db, now_ms)
        self.members = BatchMembers(db, self.record, self.change_record)
        self.finished_batches: list[str] = []  # in this transaction
        self._records: dict[str, RecordRow | None] = {}
        self._changed_records: dict[str, None] = {}  # an ordered set: rows are written in the order of their changes
        self._new_records: set[str] = set()
        self._deleted_members: list[RecordRow] = []
        self._slots: dict[str, SlotRow | None] = {}
        self._changed_slots: set[str] = set()
        self._ended: dict[State, EndedList] = {}
        self._counts: Counter[str] = Counter()
        self._events: list[bytes] = []
        db.execute(
            "DELETE FROM records WHERE number IN (SELECT number FROM records WHERE expires_ms <= ? LIMIT ?)",
            (now_ms, EXPIRED_PER_TRANSACTION),
        )

    # records

    def read_records(self, ids: Iterable[str]) -> None:
        """Reads these records in one statement, for later calls of record() and record_for()."""
        unread = [id for id in dict.fromkeys(ids) if id not in self._records]
        self._records.update(find_records(self.db, unread, self.now_ms))

    def record(self, id: str) -> RecordRow | None:
        """The job's record, to read. Changes are written only after record_for() or change_record()."""
        if id not in self._records:
            self.read_records([id])
        return self._records[id]

    def record_for(self, id: str, queue: str, raw: bytes) -> RecordRow:
        """The job's record, to change; created if there is none. It no longer expires."""
        record = self.record(id)
        if record is None:
            record = self._records[id] = RecordRow(id, State.PENDING, raw, queue, created_ms=self.now_ms)
            self._new_records.add(id)
        record.expires_ms = None
        self._changed_records[id] = None
        return record

    def change_record(self, record: RecordRow) -> RecordRow:
        self._changed_records[record.id] = None
        return record

    def delete_record(self, id: str) -> None:
        record = self._records.get(id)
        if record is not None and record.batch:
            self._deleted_members.append(record)
        self._records[id] = None
        self._changed_records[id] = None

    def replace_record(self, id: str) -> RecordRow | None:
        """Forgets the record of this id, for record_for() to create another. Its batch still knows the member. Returns
        the record; None if there is none."""
        record, self._records[id] = self.record(id), None
        if record is not None and record.batch:
            self.members.keep(record)
        return record

    # slots

    def read_slots(self, slots: Iterable[str]) -> None:
        """Reads these slots in one statement, for later calls of slot()."""
        unread = [slot for slot in dict.fromkeys(slots) if slot not in self._slots]
        self._slots.update(find_slots(self.db, unread))

    def slot(self, slot: str) -> SlotRow | None:
        """The slot's row, to read. Changes are written only after change_slot()."""
        if slot not in self._slots:
            self.read_slots([slot])
        return self._slots[slot]

    def change_slot(self, slot_row: SlotRow) -> SlotRow:
        self._slots[slot_row.slot] = slot_row
        self._changed_slots.add(slot_row.slot)
        return slot_row

    def is_alive(self, slot_row: SlotRow) -> bool:
        return slot_row.is_alive(self.boot, self.monotonic_ms)

    def renew_heartbeat(self, slot_row: SlotRow) -> None:
        ttl_ms = int(self.config.worker.heartbeat_ttl * 1000)
        slot_row.boot, slot_row.alive_until_ms = self.boot, self.monotonic_ms + ttl_ms
        self._changed_slots.add(slot_row.slot)

    # counters and events

    def count(self, name: str, by: int = 1) -> None:
        if by:
            self._counts[name] += by

    def publish(self, event: bytes) -> None:
        if event:
            self._events.append(stamped(event, self.now_ms))

    def index_deadline(self, record: RecordRow) -> None:
        """Lists the deadline of a job that is about to wait."""
        if record.extra and (deadline_ms := record.facts.deadline_ms) is not None:
            look_ms = min(deadline_ms, self.now_ms + LONGEST_LOOK_MS)
            self.db.execute("INSERT OR REPLACE INTO deadlines (id, look_ms) VALUES (?, ?)", (record.id, look_ms))

    # moves between places

    def push(self, record: RecordRow, *, front: bool) -> None:
        """Puts the record's job into its queue and counts the copy in the record."""
        record.state, record.due_ms, record.queued = State.PENDING, 0, record.queued + 1
        position = self.queued.push(record.queue, record.raw, front=front)
        if DEADLINE_FIELD in record.raw:  # or something like it: then the job is not in the index
            self.db.execute("UPDATE deadlines SET position = ? WHERE id = ?", (position, record.id))

    def push_undecodable(self, queue: str, raw: bytes, *, front: bool) -> None:
        """Puts bytes that are not a job back into a queue.

        They have no record that counts copies, so the next claim will count them as adopted again. That is
        subtracted here."""
        self.queued.push(queue, raw, front=front)
        self.count("adopted", -1)

    def schedule(self, record: RecordRow, state: State, due_ms: int, since_ms: int) -> None:
        """Schedules the record's job. A blank is appended while another copy of the same bytes is scheduled."""
        while self.db.execute("SELECT 1 FROM scheduled WHERE raw = ?", (record.raw,)).fetchone() is not None:
            record.raw += b" "
        record.state, record.due_ms, record.since_ms = state, due_ms, since_ms
        self.db.execute("INSERT INTO scheduled VALUES (?, ?)", (due_ms, record.raw))

    def unschedule(self, raw: bytes) -> bool:
        """Removes these bytes from the scheduled jobs; False if they are not there."""
        return self.db.execute("DELETE FROM scheduled WHERE raw = ?", (raw,)).rowcount > 0

    def bury(self, record: RecordRow) -> None:
        record.state, record.ended_ms = State.DEAD, self.now_ms
        self.db.execute("INSERT INTO dead (raw, crc) VALUES (?, ?)", (record.raw, crc32(record.raw)))
        self.count("dead")

    def is_foreign(self, raw: bytes, job: Job | None, place: State) -> bool:
        """Whether these bytes, which are waiting (PENDING) or DEAD, are under the id of another job."""
        record = self.record(job.id) if job is not None else None
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

    def remove_dead(self, raw: bytes) -> bool:
        """Removes the oldest dead job with these bytes; False if there is none."""
        sql = "DELETE FROM dead WHERE position = (SELECT min(position) FROM dead WHERE crc = ? AND raw = ?)"
        return self.db.execute(sql, (crc32(raw), raw)).rowcount > 0

    def end(self, record: RecordRow, state: State) -> None:
        """Lists the job as completed or cancelled, counts it, and lets its record expire. The caller trims the list
        when the follow-ups of the job are enqueued."""
        record.state, record.ended_ms = state, self.now_ms
        if not record.queued:  # a copy that still waits needs the record
            record.expires_ms = self.now_ms + int(self.config.worker.history_ttl * 1000)
        if state not in self._ended:
            self._ended[state] = EndedList(self.db, state)
        self._ended[state].append(record.raw)
        self.count(state.value)

    def trim_ended(self, state: State) -> None:
        """Removes the oldest jobs beyond completed_max from the list to which end() has added, with their records."""
        for raw in self._ended[state].trim(self.config.worker.completed_max):
            if (unlisted := decode_or_none(raw)) is not None:
                self._delete_unlisted(unlisted.id, state)

    def _delete_unlisted(self, id: str, state: State) -> None:
        """Deletes the record of a job that is no longer listed, unless the record is now about another run of it."""
        if id not in self._records:
            self.db.execute("DELETE FROM records WHERE id = ? AND state = ? AND queued = 0", (id, state.value))
        elif (record := self._records[id]) is not None and record.state == state and not record.queued:
            self.delete_record(id)

    # the end of the transaction

    def write(self) -> None:
        """Writes everything gathered to the tables. The caller commits."""
        astuple = msgspec.structs.astuple
        # The trigger that keeps a member without a record reads the mark from the table.
        marks = [(record.member, record.id) for record in self._deleted_members]
        _execute_each(self.db, "UPDATE records SET member = ? WHERE id = ?", marks)
        records = [(id, self._records[id]) for id in self._changed_records]
        _execute_each(self.db, "DELETE FROM records WHERE id = ?", [(id,) for id, record in records if record is None])
        _save_records(self.db, [record for _, record in records if record is not None], self._new_records)
        slots = [self._slots[slot] for slot in self._changed_slots]
        _execute_each(self.db, SAVE_SLOT, [astuple(slot_row) for slot_row in slots if slot_row is not None])
        self.ledger.write()
        self.batches.write()
        for ended in self._ended.values():
            ended.write()
        self._write_counts()
        self._write_events()

    def _write_counts(self) -> None:
        hour = self.now_ms // HOUR_MS
        _execute_each(
            self.db,
            "INSERT INTO stats VALUES (?, ?) ON CONFLICT DO UPDATE SET value = value + excluded.value",
            list(self._counts.items()),
        )
        _execute_each(
            self.db,
            "INSERT INTO hourly VALUES (?, ?, ?) ON CONFLICT DO UPDATE SET value = value + excluded.value",
            [(hour, name, by) for name, by in self._counts.items()],
        )
        if self._counts:
            self.db.execute("DELETE FROM hourly WHERE hour < ?", (oldest_hour_kept(self.config, self.now_ms),))

    def _write_events(self) -> None:
        if self._events:
            _execute_each(self.db, "INSERT INTO events (body) VALUES (?)", [(body,) for body in self._events])
            self.db.execute("DELETE FROM events WHERE number <= (SELECT max(number) FROM events) - ?", (EVENTS_KEPT,))


def _execute_each(db: sqlite3.Connection, sql: str, values: Sequence[tuple[object, ...]]) -> None:
    if values:
        db.executemany(sql, values)


def _save_records(db: sqlite3.Connection, records: Iterable[RecordRow], new: Collection[str]) -> None:
    values: dict[str, list[tuple[object, ...]]] = {SAVE_NEW_RECORD: [], SAVE_MEMBER: [], SAVE_RECORD: []}
    for record in records:
        row = msgspec.structs.astuple(record)
        if record.id in new:
            values[SAVE_NEW_RECORD].append(row)
        elif record.batch:
            values[SAVE_MEMBER].append(row)
        else:
            values[SAVE_RECORD].append(row[:-2])
    for sql, rows in values.items():
        _execute_each(db, sql, rows)


def is_blocked(work: UnitOfWork, record: RecordRow | None) -> bool:
    """Whether a job that the record names in `after` is running, or the one that it waits for is unfinished."""
    if record is None or not (record.after or record.extra):
        return False
    waits_for = record.facts.waits_for
    awaited = work.record(waits_for) if waits_for else None
    if awaited is not None and State(awaited.state).is_unfinished:
        return True
    work.read_records(record.jobs_before)
    earlier = map(work.record, record.jobs_before)
    return any(other.state == State.RUNNING for other in earlier if other is not None)


def is_batch_cancelled(work: UnitOfWork, record: RecordRow | None) -> bool:
    """Whether the job is a member of a batch that is cancelled."""
    batch = work.batches.find(record.batch) if record is not None else None
    return batch is not None and batch.is_cancelled


def join_batch(work: UnitOfWork, batch: Batch, id: str) -> None:
    """Makes a job an unfinished member, unless it still is one because its record was lost."""
    if work.members.put(batch, id, MemberState.UNFINISHED):
        add_member(work.batches.change(batch), work.now_ms)


def unfinished_before(work: UnitOfWork, id: str | None) -> list[str]:
    """The jobs that the record of this job names in `after` and that have not ended."""
    record = work.record(id) if id is not None else None
    if record is None or not record.after:
        return []
    work.read_records(record.jobs_before)
    found = [(id, work.record(id)) for id in record.jobs_before]
    return [id for id, other in found if other is not None and other.state not in ENDED_STATES]


def oldest_hour_kept(config: Config, now_ms: int) -> int:
    return now_ms // HOUR_MS - int(config.observability.stats_retention / 3600)
