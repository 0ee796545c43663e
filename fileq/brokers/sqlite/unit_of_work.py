"""The work of one transaction: what it has read and changed, and the steps that every verb is made of.

A verb handles one job after the other, as in the memory broker. Records, slots, ledger entries, counters and events
are gathered here and written by a few `executemany` at the end, which makes a batch cheap. Jobs move between places at
once, because the next job of the batch may need that. Nothing here begins or ends a transaction, and nothing read here
outlives one.
"""

from __future__ import annotations

import enum
import sqlite3
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from typing import NamedTuple
from zlib import crc32

import msgspec
from msgspec.structs import replace

from fileq.brokers.batches import MemberPage
from fileq.brokers.clocks import HOUR_MS, LONGEST_LOOK_MS
from fileq.brokers.sqlite.rows import (
    SAVE_MEMBER,
    SAVE_NEW_RECORD,
    SAVE_RECORD,
    SAVE_SLOT,
    RecordRow,
    SlotRow,
    decode_ledger_entry,
    encode_ledger_entry,
    find_records,
    find_slots,
)
from fileq.brokers.types import Attempt, LedgerEntry
from fileq.brokers.wire_events import stamped
from fileq.config import Config
from fileq.core.batch import KEPT_MS, Batch, BatchState, Callback, add_member
from fileq.core.fingerprint import fingerprint
from fileq.core.job import ENDED_STATES, Job, State, Version, decode_or_none, raw_id
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


# The ledger during one transaction: entries are read once, changed in memory, and written at the end of it.


class LedgerTable:
    def __init__(self, db: sqlite3.Connection) -> None:
        self._db = db
        self._entries: dict[bytes, LedgerEntry | None] = {}
        self._changed: set[bytes] = set()

    def entry(self, path: bytes) -> LedgerEntry | None:
        if path not in self._entries:
            found = self._db.execute("SELECT entry FROM ledger WHERE path = ?", (path,)).fetchone()
            self._entries[path] = None if found is None else decode_ledger_entry(found[0])
        return self._entries[path]

    def replace(self, path: bytes, becomes: LedgerEntry | None) -> None:
        """Replaces the entry of a path; None removes it."""
        self._entries[path] = becomes
        self._changed.add(path)

    def learn(self, version: Version, job_id: str) -> None:
        known = self.entry(version.path) or LedgerEntry()
        self.replace(version.path, known.with_version(version, job_id))

    def write(self) -> None:
        if not self._changed:
            return
        changes = [(path, self._entries[path]) for path in self._changed]
        removed = [(path,) for path, entry in changes if entry is None]
        saved = [(path, encode_ledger_entry(entry)) for path, entry in changes if entry is not None]
        if removed:
            self._db.executemany("DELETE FROM ledger WHERE path = ?", removed)
        if saved:
            self._db.executemany("INSERT OR REPLACE INTO ledger VALUES (?, ?)", saved)


# The list of completed or of cancelled jobs during one transaction: appended and trimmed here, written at its end.
#
# Positions have no gaps, so the length follows from the first and the last.


_PAGE = 16


def first_and_last(db: sqlite3.Connection, state: State) -> tuple[int, int]:
    """The positions at the ends of a list; (1, 0) if it is empty."""
    # Two statements, each one index lookup: min and max in one statement would read the whole list.
    (first,) = db.execute("SELECT min(position) FROM ended WHERE state = ?", (state.value,)).fetchone()
    (last,) = db.execute("SELECT max(position) FROM ended WHERE state = ?", (state.value,)).fetchone()
    return (1, 0) if first is None else (first, last)


class EndedList:
    def __init__(self, db: sqlite3.Connection, state: State) -> None:
        self._db = db
        self._state = state
        self._first, last = first_and_last(db, state)
        self._next = self._new_from = last + 1
        self._new: list[bytes] = []
        self._oldest = self._read(self._first)

    def append(self, raw: bytes) -> None:
        self._new.append(raw)
        self._next += 1

    def trim(self, limit: int) -> Iterator[bytes]:
        """Yields the entries removed to keep at most `limit`, oldest first."""
        while self._next - self._first > limit:
            position = self._first
            self._first += 1
            yield next(self._oldest) if position < self._new_from else self._new[position - self._new_from]

    def _read(self, position: int) -> Iterator[bytes]:
        sql = "SELECT raw FROM ended WHERE state = ? AND position >= ? ORDER BY position LIMIT ?"
        while page := self._db.execute(sql, (self._state.value, position, _PAGE)).fetchall():
            position += len(page)
            for (raw,) in page:
                yield raw

    def write(self) -> None:
        name, new = self._state.value, enumerate(self._new, self._new_from)
        kept = [(name, position, raw) for position, raw in new if position >= self._first]
        self._db.executemany("INSERT INTO ended VALUES (?, ?, ?)", kept)
        self._db.execute("DELETE FROM ended WHERE state = ? AND position < ?", (name, self._first))


# The table `queued` during one transaction: where each queue begins and ends, and the moves in and out of it.
#
# The lowest position is the front. Positions may have holes, left by cancelled jobs. The table `holes` lists those,
# so that the length of a queue follows from its ends and its holes without counting. Statements run at once, because
# the next job of the batch may need their effect. Never begins or ends a transaction, and nothing read here outlives
# one.


_SEARCHED_AT_ONCE = 500


class QueuedRow(NamedTuple):
    """One job in a queue, and its position; `job` is None if the bytes are not a job."""

    position: int
    raw: bytes
    job: Job | None


def queues_with_jobs(db: sqlite3.Connection) -> Iterator[str]:
    """Every queue that holds a job, those of other configurations too. Skips along the index, one lookup a queue."""
    last = ""
    while (found := db.execute("SELECT min(queue) FROM queued WHERE queue > ?", (last,)).fetchone()[0]) is not None:
        yield found
        last = found


def queue_length(db: sqlite3.Connection, queue: str) -> int:
    """The length of a queue that holds a job, from its ends and its holes: three index lookups, however long it is."""
    first, last = _first_and_last(db, queue)
    sql = "SELECT count(*) FROM holes WHERE queue = ? AND position > ? AND position < ?"
    holes: int = db.execute(sql, (queue, first, last)).fetchone()[0]
    return last - first + 1 - holes


def _first_and_last(db: sqlite3.Connection, queue: str) -> tuple[int, int]:
    """The positions at the ends; (1, 0) if the queue is empty."""
    # Two statements, each one index lookup: min and max in one statement would read the whole queue.
    (first,) = db.execute("SELECT min(position) FROM queued WHERE queue = ?", (queue,)).fetchone()
    (last,) = db.execute("SELECT max(position) FROM queued WHERE queue = ?", (queue,)).fetchone()
    return (1, 0) if first is None else (first, last)


def find_newest(db: sqlite3.Connection, wanted: Iterable[tuple[str, bytes]]) -> dict[tuple[str, bytes], int]:
    """The position of the newest job with these bytes, for each (queue, raw) that is there.

    The queue has no index by bytes, so this reads a whole queue; once for up to 500 jobs."""
    by_queue: dict[str, list[bytes]] = {}
    for queue, raw in wanted:
        by_queue.setdefault(queue, []).append(raw)
    found: dict[tuple[str, bytes], int] = {}
    for queue, raws in by_queue.items():
        for start in range(0, len(raws), _SEARCHED_AT_ONCE):
            some = raws[start : start + _SEARCHED_AT_ONCE]
            # The unary plus makes SQLite read the queue once, in index order, and compare each row with all of them.
            marks = ", ".join("?" * len(some))
            sql = f"SELECT raw, max(position) FROM queued WHERE queue = ? AND +raw IN ({marks}) GROUP BY raw"
            found.update(((queue, raw), position) for raw, position in db.execute(sql, (queue, *some)))
    return found


class QueueTable:
    def __init__(self, db: sqlite3.Connection) -> None:
        self._db = db
        self._ends: dict[str, list[int]] = {}  # queue → the free positions before its first and after its last job
        self._located: dict[tuple[str, bytes], int | None] = {}
        self.has_pushed = False

    def push(self, queue: str, raw: bytes, *, front: bool) -> int:
        """Returns its position."""
        ends = self._ends.get(queue) or self._find_ends(queue)
        position = ends[not front]
        ends[not front] += -1 if front else 1
        if front:
            self._db.execute("DELETE FROM holes WHERE queue = ? AND position = ?", (queue, position))
        self._db.execute("INSERT INTO queued VALUES (?, ?, ?)", (queue, position, raw))
        self.has_pushed = True
        return position

    def _find_ends(self, queue: str) -> list[int]:
        first, last = _first_and_last(self._db, queue)
        if first > last:
            # Positions begin again at 1, where old holes would make the length too small.
            self._db.execute("DELETE FROM holes WHERE queue = ?", (queue,))
        ends = self._ends[queue] = [first - 1, last + 1]
        return ends

    def fronts(self, queue: str, limit: int) -> list[QueuedRow]:
        """The next jobs of a queue, front first. They stay until `remove` is called."""
        return [QueuedRow(at, raw, decode_or_none(raw)) for at, raw in self.raws(queue, limit)]

    def raws(self, queue: str, limit: int) -> list[tuple[int, bytes]]:
        """Position and bytes of the first jobs of a queue, front first."""
        sql = "SELECT position, raw FROM queued WHERE queue = ? ORDER BY position LIMIT ?"
        return self._db.execute(sql, (queue, limit)).fetchall()

    def remove(self, positions: list[tuple[str, int]]) -> None:
        """Removes jobs at the front of their queues, by (queue, position)."""
        self._db.executemany("DELETE FROM queued WHERE queue = ? AND position = ?", positions)

    def locate(self, wanted: Collection[tuple[str, bytes]]) -> None:
        """Finds jobs that `remove_newest` will remove in this transaction, in one pass for all of them."""
        found = find_newest(self._db, wanted)
        self._located = {key: found.get(key) for key in wanted}

    def locate_at(self, queue: str, raw: bytes, position: int) -> None:
        """As locate(), for one job and without reading the queue, if the job is at this position."""
        sql = "SELECT 1 FROM queued WHERE queue = ? AND position = ? AND raw = ?"
        if self._db.execute(sql, (queue, position, raw)).fetchone() is not None:
            self._located[queue, raw] = position

    def remove_newest(self, queue: str, raw: bytes) -> bool:
        """Removes the newest job with these bytes, wherever it is; False if there is none.

        Reads the whole queue, unless `locate` or `locate_at` has found it."""
        key = (queue, raw)
        position = self._located.pop(key) if key in self._located else find_newest(self._db, [key]).get(key)
        if position is None:
            return False
        self.remove_anywhere(queue, [position])
        return True

    def remove_anywhere(self, queue: str, positions: Sequence[int]) -> None:
        """Removes the jobs at these positions of a queue, and lists the holes they leave."""
        if not positions:
            return
        at = [(queue, position) for position in positions]
        self.remove(at)
        self._db.executemany("INSERT OR REPLACE INTO holes VALUES (?, ?)", at)
        # A hole outside the new ends is no hole: the next jobs will be pushed there.
        before, after = self._find_ends(queue)
        sql = "DELETE FROM holes WHERE queue = ? AND (position <= ? OR position >= ?)"
        self._db.execute(sql, (queue, before, after))


# Who is a member of which batch: marks in the records, and the table batch_members for the few that no record marks.
#
# An unfinished or dead member is marked in its own record. The record is written anyway when the job changes, and the
# index of these marks is in the order in which the jobs were enqueued, so a member costs the same in a batch of any
# size. batch_members has the members whose record was lost, which a trigger of the database puts there, and the jobs
# that had ended when they joined.


_IDS_AT_ONCE = 500


class MemberState(enum.IntEnum):
    UNFINISHED = 0
    DEAD = 1
    KNOWN = 2  # it had ended when it joined


class BatchMembers:
    """The members of the batches of one transaction. `record` and `change_record` are those of its unit of work."""

    def __init__(
        self,
        db: sqlite3.Connection,
        record: Callable[[str], RecordRow | None],
        change_record: Callable[[RecordRow], RecordRow],
    ) -> None:
        self._db = db
        self._record = record
        self._change_record = change_record
        self._has_unmarked: dict[str, bool] = {}  # by id of the batch, as far as it was needed

    def put(self, batch: Batch, id: str, state: MemberState) -> bool:
        """Makes a job a member in this state; False if it is one already."""
        if self.has(batch, id, state):
            return False
        record = self._record(id)
        if state is not MemberState.KNOWN and record is not None and record.batch == batch.id:
            self._change_record(record).member = state
        else:
            self._db.execute("INSERT INTO batch_members VALUES (?, ?, ?)", (batch.id, state, id))
            self._has_unmarked[batch.id] = True
        return True

    def keep(self, record: RecordRow) -> None:
        """Keeps a member whose record is replaced in the table."""
        if record.member is not None:
            values = record.batch, record.member, record.id
            self._db.execute("INSERT OR IGNORE INTO batch_members VALUES (?, ?, ?)", values)
            self._has_unmarked[record.batch] = True

    def take(self, batch: Batch, id: str, state: MemberState) -> bool:
        """Removes a member in this state; False if there is none."""
        if (record := self._marked(batch, id, state)) is not None:
            self._change_record(record).member = None
            return True
        sql = "DELETE FROM batch_members WHERE batch = ? AND state = ? AND id = ?"
        return self._may_be_unmarked(batch) and self._db.execute(sql, (batch.id, state, id)).rowcount > 0

    def has(self, batch: Batch, id: str, *states: MemberState) -> bool:
        if any(self._marked(batch, id, state) is not None for state in states):
            return True
        sql = "SELECT 1 FROM batch_members WHERE batch = ? AND state = ? AND id = ?"
        return self._may_be_unmarked(batch) and any(
            self._db.execute(sql, (batch.id, state, id)).fetchone() is not None for state in states
        )

    def _marked(self, batch: Batch, id: str, state: MemberState) -> RecordRow | None:
        """The record of this member, if it is marked there."""
        record = self._record(id)
        return record if record is not None and record.batch == batch.id and record.member == state else None

    def _may_be_unmarked(self, batch: Batch) -> bool:
        """Whether the batch has members in the table. Nearly none has; then no member is looked up there."""
        if batch.id not in self._has_unmarked:
            found = self._db.execute("SELECT 1 FROM batch_members WHERE batch = ? LIMIT 1", (batch.id,)).fetchone()
            self._has_unmarked[batch.id] = found is not None
        return self._has_unmarked[batch.id]


def delete_members(db: sqlite3.Connection, batch_id: str) -> None:
    """Deletes the members of a batch whose time is over. Marks in records stay: they mean nothing without the batch."""
    db.execute("DELETE FROM batch_members WHERE batch = ?", (batch_id,))


def clear_marks(db: sqlite3.Connection, batch_id: str) -> None:
    """Removes the marks that an earlier batch of this id left in records. The caller has read none of these records."""
    db.execute("UPDATE records SET member = NULL WHERE batch = ? AND member IS NOT NULL", (batch_id,))


def member_page(db: sqlite3.Connection, batch_id: str, state: MemberState, cursor: str, limit: int) -> MemberPage:
    """A page of members. Those of the table come first; their cursors are `i` and an id. Then the marked ones follow,
    with `n` and the number of the record."""
    rows: list[tuple[str, str]] = []
    if not cursor.startswith("n"):
        sql = "SELECT 'i' || id, id FROM batch_members WHERE batch = ? AND state = ? AND id > ? ORDER BY id LIMIT ?"
        rows = db.execute(sql, (batch_id, state, cursor[1:], limit + 1)).fetchall()
    if len(rows) <= limit:
        after = int(cursor[1:]) if cursor.startswith("n") else 0
        where = "batch = ? AND member = ? AND number > ?"
        sql = f"SELECT 'n' || number, id FROM records WHERE {where} ORDER BY number LIMIT ?"
        rows += db.execute(sql, (batch_id, state, after, limit + 1 - len(rows))).fetchall()
    ids = tuple(id for _, id in rows[:limit])
    return MemberPage(ids, rows[limit - 1][0] if len(rows) > limit else "")


def unfinished_among(db: sqlite3.Connection, batch_id: str, ids: Collection[str]) -> int:
    """How many of these jobs are unfinished members. One whose record names another batch, or none, is another job: it
    was enqueued again after the record was lost."""
    listed, found = list(ids), 0
    for start in range(0, len(listed), _IDS_AT_ONCE):
        some = listed[start : start + _IDS_AT_ONCE]
        marks = ", ".join("?" * len(some))
        for sql in (
            f"SELECT count(*) FROM batch_members m WHERE batch = ? AND state = ? AND id IN ({marks}) "
            "AND NOT EXISTS (SELECT 1 FROM records r WHERE r.id = m.id AND r.batch != m.batch)",
            f"SELECT count(*) FROM records WHERE +batch = ? AND +member = ? AND id IN ({marks})",
        ):
            found += db.execute(sql, (batch_id, MemberState.UNFINISHED, *some)).fetchone()[0]
    return found


# The batches of one transaction: read when they are needed, changed in place, written at its end.
#
# A batch whose time is over counts as absent, even if it is not deleted yet. Its members are in batch_members.py.


_EXPIRED_AT_ONCE = 10
_COLUMNS = "facts, fixed"

_encoder = msgspec.json.Encoder()
_facts_decoder = msgspec.json.Decoder(Batch)


class FixedFacts(msgspec.Struct, frozen=True, omit_defaults=True):
    """What never changes, apart from the counts: it may be long."""

    callbacks: tuple[Callback, ...] = ()
    info: bytes = b""


_fixed_decoder = msgspec.json.Decoder(FixedFacts)


def decode_batch(facts: bytes, fixed: bytes) -> Batch:
    more = _fixed_decoder.decode(fixed)
    batch = _facts_decoder.decode(facts)
    batch.callbacks, batch.info = more.callbacks, more.info
    return batch


def find_batch(db: sqlite3.Connection, id: str, now_ms: int) -> Batch | None:
    row = db.execute(f"SELECT {_COLUMNS} FROM batches WHERE id = ?", (id,)).fetchone()
    batch = decode_batch(*row) if row is not None else None
    is_over = batch is not None and batch.state is BatchState.FINISHED and batch.finished_ms + KEPT_MS <= now_ms
    return None if is_over else batch


class BatchTable:
    def __init__(self, db: sqlite3.Connection, now_ms: int) -> None:
        self._db = db
        self._now_ms = now_ms
        self._batches: dict[str, Batch | None] = {}
        self._changed: dict[str, None] = {}

    def find(self, id: str) -> Batch | None:
        """The batch, to read. Changes are written only after change()."""
        if not id:
            return None
        if id not in self._batches:
            self._batches[id] = find_batch(self._db, id, self._now_ms)
        return self._batches[id]

    def change(self, batch: Batch) -> Batch:
        self._changed[batch.id] = None
        return batch

    def create(self, batch: Batch) -> None:
        self._delete(batch.id)  # one whose time is over
        clear_marks(self._db, batch.id)
        self._batches[batch.id] = batch
        fixed = _encoder.encode(FixedFacts(batch.callbacks, batch.info))
        values = (batch.id, batch.parent, batch.created_ms, 0, b"", fixed)
        self._db.execute("INSERT INTO batches VALUES (?, ?, ?, ?, ?, ?)", values)
        self.change(batch)

    def children(self, id: str) -> list[Batch]:
        found = self._db.execute("SELECT id FROM batches WHERE parent = ? ORDER BY id", (id,)).fetchall()
        return [batch for (child,) in found if (batch := self.find(child)) is not None]

    def write(self) -> None:
        rows = []
        for id in self._changed:
            if (batch := self._batches[id]) is not None:
                facts = _encoder.encode(replace(batch, callbacks=(), info=b""))
                rows.append((facts, batch.finished_ms, id))
        if rows:
            self._db.executemany("UPDATE batches SET facts = ?, finished_ms = ? WHERE id = ?", rows)

    def forget_expired(self) -> None:
        """Deletes some of the batches whose time is over."""
        sql = "SELECT id FROM batches WHERE finished_ms > 0 AND finished_ms <= ? LIMIT ?"
        for (id,) in self._db.execute(sql, (self._now_ms - KEPT_MS, _EXPIRED_AT_ONCE)).fetchall():
            self._delete(id)

    def _delete(self, id: str) -> None:
        delete_members(self._db, id)
        self._db.execute("DELETE FROM batches WHERE id = ?", (id,))
