"""The SQLite broker for operators: protocol.Inspector over a SqliteStore.

Reads use the reading connection and never wait for a writer. Every change is one transaction.
"""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Iterable, Iterator, Mapping, Sequence
from zlib import crc32

import msgspec

from fileq.brokers.clocks import HOUR_MS
from fileq.brokers.local_processes import Neighbours
from fileq.brokers.place_pages import (
    NEWEST_FIRST,
    PAGE_BYTES,
    PROCESSING,
    Page,
    Standing,
    check_page,
    outline_of,
    page_of_slots,
    wrong_cursor,
)
from fileq.brokers.sqlite.census import place_length, take_census
from fileq.brokers.sqlite.rows import (
    all_slots,
    find_fingerprints,
    find_ledger_entries,
    find_outlines,
    find_records,
    find_standings,
    find_states,
    process_of,
)
from fileq.brokers.sqlite.settlements import cancel, clear, delete_member, key_holder, makers, revive_member, take_key
from fileq.brokers.sqlite.store import SqliteStore
from fileq.brokers.sqlite.unit_of_work import UnitOfWork, oldest_hour_kept
from fileq.brokers.types import (
    CancelResult,
    Census,
    LedgerEntry,
    Overview,
    ProducerInfo,
    ProducerView,
    Record,
    Revival,
    Revived,
    WorkerInfo,
    WorkerView,
    check_clear,
    check_follow_ups,
)
from fileq.core.errors import BrokerError
from fileq.core.job import State, decode_or_none, raw_id
from fileq.core.outcome import FollowUp

_NEWEST_FIRST = ("dead_letter", "completed", "cancelled")  # the places that `peek` reads from their newest job


class SqliteInspector:
    _store: SqliteStore

    def census(self, *, sweep: bool = False) -> Census:
        with self._store.snapshot() as (db, now_ms):
            return take_census(db, self._store, now_ms, is_exact=sweep)

    def overview(self, hours: int = 2, jobs: int = 0) -> Overview:
        with self._store.snapshot() as (db, now_ms):
            pages = {queue: self._page(db, queue, None, 1) for queue in self._store.queue_names}
            places = (*self._store.queue_names, "scheduled", *_NEWEST_FIRST) if jobs > 0 else ()
            return Overview(
                census=take_census(db, self._store, now_ms),
                fronts={queue: page[0][1] for queue, page in pages.items() if page},
                workers=self._read_workers(db, now_ms),
                hours=self._read_hours(db, now_ms, hours),
                producers=tuple(read_producers(db, self._store)),
                orders=db.execute("SELECT count(*) FROM orders").fetchone()[0],
                first={place: tuple(raws) for place in places if (raws := self._peek(db, place, jobs))},
            )

    def peek(self, place: str, limit: int) -> list[bytes]:
        with self._store.snapshot() as (db, _):
            return self._peek(db, place, limit)

    def _peek(self, db: sqlite3.Connection, place: str, limit: int) -> list[bytes]:
        if place in _NEWEST_FIRST:
            source, values = self._source_of(place)
            found = db.execute(f"SELECT raw FROM {source} ORDER BY position DESC LIMIT ?", (*values, limit))
            return [raw for (raw,) in found]
        return [raw for _, raw in self._page(db, place, None, limit)]

    def pages(self, place: str, size: int = 500) -> Iterator[list[bytes]]:
        last: tuple[object, bytes] | None = None
        while True:
            # One snapshot a page: one kept open while the caller works would let the -wal file grow.
            with self._store.snapshot() as (db, _):
                page = self._page(db, place, last, size)
            if not page:
                return
            yield [raw for _, raw in page]
            last = page[-1]

    def page(self, place: str, cursor: str = "", size: int = 100) -> Page:
        check_page(place, size, self._store.queue_names)
        if place == PROCESSING:
            return page_of_slots(self.workers(), cursor, size)
        with self._store.snapshot() as (db, _):
            return read_page(db, place, cursor, size)

    def _page(
        self, db: sqlite3.Connection, place: str, last: tuple[object, bytes] | None, limit: int
    ) -> list[tuple[object, bytes]]:
        """The oldest jobs after `last`, as (position or due time, raw)."""
        if place == "scheduled":
            after = "" if last is None else "WHERE (due_ms, raw) > (?, ?)"
            sql = f"SELECT due_ms, raw FROM scheduled {after} ORDER BY due_ms, raw LIMIT ?"
            return db.execute(sql, (*(last or ()), limit)).fetchall()
        source, values = self._source_of(place)
        after = "" if last is None else "AND position > ?"
        sql = f"SELECT position, raw FROM {source} {after} ORDER BY position LIMIT ?"
        return db.execute(sql, (*values, *(last or ())[:1], limit)).fetchall()

    def _source_of(self, place: str) -> tuple[str, tuple[str, ...]]:
        """The table and condition of a place, as SQL with its values."""
        queues = self._store.queue_names
        if place in queues:
            return "queued WHERE queue = ?", (place,)
        if place not in _NEWEST_FIRST:
            places = ", ".join((*queues, *_NEWEST_FIRST, "scheduled"))
            raise BrokerError(f"no place is called {place!r}; there are {places}")
        return ("dead WHERE true", ()) if place == "dead_letter" else ("ended WHERE state = ?", (place,))

    def records(self, ids: Sequence[str]) -> list[Record | None]:
        with self._store.snapshot() as (db, now_ms):
            found = find_records(db, ids, now_ms)
            return [record.view() if (record := found[id]) is not None else None for id in ids]

    def states(self, ids: Sequence[str]) -> list[State | None]:
        with self._store.snapshot() as (db, now_ms):
            found = find_states(db, ids, now_ms)
            return [found.get(id) for id in ids]

    def outlines(self, ids: Sequence[str]) -> list[Record | None]:
        with self._store.snapshot() as (db, now_ms):
            found = find_outlines(db, ids, now_ms)
            return [outline_of(record.view()) if (record := found.get(id)) is not None else None for id in ids]

    def fingerprints(self, ids: Sequence[str]) -> list[str]:
        with self._store.snapshot() as (db, now_ms):
            found = find_fingerprints(db, ids, now_ms)
            return [found.get(id, "") for id in ids]

    def standings(self, ids: Sequence[str]) -> list[Standing | None]:
        with self._store.snapshot() as (db, now_ms):
            found = find_standings(db, ids, now_ms)
            return [found.get(id) for id in ids]

    def workers(self) -> list[WorkerView]:
        with self._store.snapshot() as (db, now_ms):
            return list(self._read_workers(db, now_ms))

    def _read_workers(self, db: sqlite3.Connection, now_ms: int) -> tuple[WorkerView, ...]:
        monotonic_ms, neighbours = self._store.monotonic(), Neighbours()
        slots = [slot_row for slot_row in all_slots(db) if slot_row.info is not None]
        jobs = {slot_row.slot: decode_or_none(slot_row.raw) for slot_row in slots if slot_row.raw is not None}
        records = find_records(db, [job.id for job in jobs.values() if job is not None], now_ms)
        since_ms = {slot: r.started_ms for slot, job in jobs.items() if job is not None and (r := records[job.id])}
        return tuple(
            WorkerView(
                slot_row.slot,
                msgspec.json.decode(slot_row.info or b"", type=WorkerInfo),
                slot_row.is_alive(self._store.database.boot, monotonic_ms)
                and not neighbours.is_gone(process_of(slot_row.info or b"")),
                slot_row.raw or b"",
                since_ms.get(slot_row.slot, 0),
                slot_row.left_ms(self._store.database.boot, monotonic_ms),
            )
            for slot_row in slots
        )

    def cancel(
        self, ids: Sequence[str], follow_ups: Mapping[str, Sequence[FollowUp]] | None = None
    ) -> list[CancelResult]:
        wanted = follow_ups or {}
        check_follow_ups(wanted.values(), self._store.queue_names)
        with self._store.unit_of_work() as work:
            records = [record for id in ids if (record := work.record(id)) is not None]
            work.queued.locate({(r.queue, r.raw) for r in records if r.state == State.PENDING})
            return cancel(work, ids, wanted)

    def clear(
        self, queue: str, raws: Sequence[bytes], follow_ups: Mapping[str, Sequence[FollowUp]] | None = None
    ) -> list[bool]:
        wanted = follow_ups or {}
        check_clear(queue, raws, self._store.queue_names)
        check_follow_ups(wanted.values(), self._store.queue_names)
        with self._store.unit_of_work() as work:
            return clear(work, queue, raws, wanted)

    def makers(self, paths: Sequence[bytes]) -> list[str | None]:
        with self._store.snapshot() as (db, now_ms):
            return makers(db, paths, now_ms)

    def known_files(self, paths: Sequence[bytes]) -> list[tuple[LedgerEntry | None, str | None]]:
        with self._store.snapshot() as (db, now_ms):
            entries = find_ledger_entries(db, paths)
            return list(zip(map(entries.get, paths), makers(db, paths, now_ms), strict=True))

    def revive(self, revivals: Sequence[Revival]) -> list[Revived]:
        with self._store.unit_of_work() as work:
            return [_revive(work, revival) for revival in revivals]

    def discard(self, dead: Sequence[tuple[str, bytes]]) -> list[bool]:
        with self._store.unit_of_work() as work:
            discarded = [work.remove_dead(raw) for _, raw in dead]
            for (id, raw), is_discarded in zip(dead, discarded, strict=True):
                if not is_discarded:
                    continue
                record = work.record(id)
                if record is None or work.is_foreign(raw, decode_or_none(raw), State.DEAD):
                    id = raw_id(raw)
                    record = work.record(id)
                if record is not None and record.state == State.DEAD:
                    delete_member(work, record.batch, id)
                # A copy that still waits in a queue needs the record.
                if record is not None and record.state == State.DEAD and not record.queued:
                    work.delete_record(id)
            work.count("deleted", sum(discarded))
            return discarded

    def pause(self, queue: str) -> None:
        with self._store.unit_of_work() as work:
            work.db.execute("INSERT OR IGNORE INTO paused VALUES (?)", (queue,))

    def resume(self, queue: str) -> None:
        with self._store.unit_of_work() as work:
            work.db.execute("DELETE FROM paused WHERE queue = ?", (queue,))
        self._store.watcher.wake_all()

    def reset_breaker(self, route: str) -> None:
        sql = "INSERT INTO breaker_resets VALUES (?, 1) ON CONFLICT DO UPDATE SET number = number + 1"
        with self._store.unit_of_work() as work:
            work.db.execute(sql, (route,))

    def hourly(self, hours: int) -> dict[int, dict[str, int]]:
        with self._store.snapshot() as (db, now_ms):
            return self._read_hours(db, now_ms, hours)

    def _read_hours(self, db: sqlite3.Connection, now_ms: int, hours: int) -> dict[int, dict[str, int]]:
        newest = now_ms // HOUR_MS
        oldest = max(newest - hours + 1, oldest_hour_kept(self._store.config, now_ms))
        found: dict[int, dict[str, int]] = {}
        sql = "SELECT hour, name, value FROM hourly WHERE hour BETWEEN ? AND ?"
        for hour, name, value in db.execute(sql, (oldest, newest)):
            found.setdefault(hour, {})[name] = value
        return found


def _is_dead(work: UnitOfWork, raw: bytes) -> bool:
    """Whether the dead-letter list has a job with these bytes."""
    sql = "SELECT 1 FROM dead WHERE crc = ? AND raw = ? LIMIT 1"
    return work.db.execute(sql, (crc32(raw), raw)).fetchone() is not None


def _revive(work: UnitOfWork, revival: Revival) -> Revived:
    if not _is_dead(work, revival.raw):
        return Revived(False)
    job = decode_or_none(revival.next_raw)
    holder = key_holder(work, job.unique_key) if job is not None else ""
    if holder and holder != revival.id:
        return Revived(False, holder)
    if job is not None and (job.id != revival.id or work.is_foreign(revival.raw, job, State.DEAD)):
        return Revived(False, is_foreign=True)
    work.remove_dead(revival.raw)
    record = work.record(revival.id)
    queue = record.queue if record is not None else revival.queue
    if job is None:
        work.push_undecodable(queue, revival.next_raw, front=revival.is_next)
        work.delete_record(revival.id)
    else:
        if record is None and work.record(raw_id(revival.raw)) is not None:  # the job that had its id is forgotten
            work.delete_record(raw_id(revival.raw))
        record = work.record_for(revival.id, queue, revival.next_raw)
        record.raw, record.error, record.ended_ms = revival.next_raw, "", 0
        record.is_cancel_requested = False
        record.change_facts(fingerprint="")
        take_key(work, record, job.unique_key)
        work.index_deadline(record)
        work.push(record, front=revival.is_next)
        revive_member(work, record.batch, record.id)
    work.db.execute("DELETE FROM orders WHERE id = ?", (revival.id,))
    return Revived(True)


# Pages of a place in SQLite. The cursor is the position of the last job, so a page is found by an index.
#
# `scheduled` has no positions: its cursor is the due time of the last job, and how many jobs of that time were
# returned. Reads only, in the caller's snapshot.


_NUMBER = re.compile("-?[0-9]{1,18}")


def read_page(db: sqlite3.Connection, place: str, cursor: str, size: int) -> Page:
    total = place_length(db, place)
    if place == "scheduled":
        due_ms, skipped = _numbers(cursor, 2) if cursor else (-(2**63), 0)
        sql = "SELECT due_ms, raw FROM scheduled WHERE due_ms >= ? ORDER BY due_ms, raw LIMIT ? OFFSET ?"
        rows, is_last = _cut(db.execute(sql, (due_ms, size + 1, skipped)), size)
        if is_last:
            return Page(_raws(rows), "", total)
        last_ms = rows[-1][0]
        same = sum(due == last_ms for due, _ in rows) + (skipped if last_ms == due_ms else 0)
        return Page(_raws(rows), f"{last_ms}.{same}", total)
    source, values = _source_of(place)
    after, order = ("<", "DESC") if place in NEWEST_FIRST else (">", "ASC")
    condition = f"AND position {after} ?" if cursor else ""
    at = _numbers(cursor, 1) if cursor else ()
    sql = f"SELECT position, raw FROM {source} {condition} ORDER BY position {order} LIMIT ?"
    rows, is_last = _cut(db.execute(sql, (*values, *at, size + 1)), size)
    return Page(_raws(rows), "" if is_last else str(rows[-1][0]), total)


def _source_of(place: str) -> tuple[str, tuple[str, ...]]:
    if place == "dead_letter":
        return "dead WHERE true", ()
    return ("ended WHERE state = ?", (place,)) if place in NEWEST_FIRST else ("queued WHERE queue = ?", (place,))


def _cut(rows: Iterable[tuple[int, bytes]], size: int) -> tuple[list[tuple[int, bytes]], bool]:
    """The rows of a page, and whether they are the last ones."""
    page: list[tuple[int, bytes]] = []
    page_bytes = 0
    for row in rows:
        page_bytes += len(row[1])
        if len(page) == size or (page and page_bytes > PAGE_BYTES):
            return page, False
        page.append(row)
    return page, True


def _raws(rows: Iterable[tuple[int, bytes]]) -> tuple[bytes, ...]:
    return tuple(raw for _, raw in rows)


def _numbers(cursor: str, count: int) -> tuple[int, ...]:
    parts = cursor.split(".")
    if len(parts) != count or not all(_NUMBER.fullmatch(part) for part in parts):
        raise wrong_cursor(cursor)
    return tuple(map(int, parts))


# The SQLite broker's registry of producers: producer_registry.ProducerRegistry over a SqliteStore.
#
# Leases run on the monotonic clock, which no step of the wall clock changes. After a reboot every lease has ended.


class SqliteProducers:
    _store: SqliteStore

    def report_producer(self, id: str, info: ProducerInfo, ttl_ms: int) -> None:
        with self._store.unit_of_work() as work:
            ended = "DELETE FROM producers WHERE boot != ? OR alive_until_ms <= ?"
            work.db.execute(ended, (work.boot, work.monotonic_ms))
            report = (id, msgspec.json.encode(info), work.boot, work.monotonic_ms + ttl_ms)
            work.db.execute("INSERT OR REPLACE INTO producers VALUES (?, ?, ?, ?)", report)

    def remove_producer(self, id: str) -> None:
        with self._store.unit_of_work() as work:
            work.db.execute("DELETE FROM producers WHERE id = ?", (id,))

    def producers(self) -> list[ProducerView]:
        with self._store.snapshot() as (db, _):
            return read_producers(db, self._store)


def read_producers(db: sqlite3.Connection, store: SqliteStore) -> list[ProducerView]:
    sql = "SELECT id, info FROM producers WHERE boot = ? AND alive_until_ms > ? ORDER BY id"
    living = db.execute(sql, (store.database.boot, store.monotonic()))
    return [ProducerView(id, msgspec.json.decode(info, type=ProducerInfo)) for id, info in living]
