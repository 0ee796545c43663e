"""The tables of the database during one transaction: the statements of a unit of work (unit_of_work.py).

They run at once, because the next job of the batch may need their effect. Never begins or ends a transaction.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any
from zlib import crc32

import msgspec
from msgspec.structs import astuple, replace

from fileq.brokers.batches import MemberPage
from fileq.brokers.catalog import Document
from fileq.brokers.place_pages import NEWEST_FIRST
from fileq.brokers.protocol import Order
from fileq.brokers.rules.rows import MemberState, RecordRow, SlotRow
from fileq.brokers.schedules import ScheduleState
from fileq.brokers.types import Census, LedgerEntry, ProducerInfo, ProducerView
from fileq.core.batch import KEPT_MS, Batch, BatchState, Callback
from fileq.core.errors import BrokerError
from fileq.core.job import State

if TYPE_CHECKING:
    from fileq.brokers.rules.unit_of_work import Store

EXPIRED_PER_TRANSACTION = 500  # bounds what one transaction spends on deleting expired records
_OUTPUTS_FORGOTTEN = 500
_BATCHES_FORGOTTEN = 10

_SCHEDULE_COLUMNS = ", ".join(ScheduleState.__struct_fields__)
_DUE_ORDERS = (
    "SELECT id, slot, at_ms, body FROM orders WHERE id > ? AND (at_ms < ? OR NOT EXISTS "
    "(SELECT 1 FROM slots WHERE slots.slot = orders.slot AND info IS NOT NULL)) ORDER BY id LIMIT ?"
)
_encoder = msgspec.json.Encoder()


# The statements that read and save rows, derived from their structs (rules/rows.py). The order of a struct's fields is
# that of the values. Where a field's name differs from its column, the field's wire name is the column.


_KEYS_PER_STATEMENT = 64  # each number of keys is a statement of its own that SQLite prepares once


def _upsert(table: str, struct: type[msgspec.Struct]) -> str:
    key, *rest = struct.__struct_encode_fields__
    return (
        f"INSERT INTO {table} ({', '.join((key, *rest))}) VALUES ({', '.join('?' * (1 + len(rest)))}) "
        f"ON CONFLICT ({key}) DO UPDATE SET {', '.join(f'{name} = excluded.{name}' for name in rest)}"
    )


def _update(table: str, fields: Sequence[str]) -> str:
    """The values are those of the fields. The first one is the key."""
    key, *rest = fields
    return f"UPDATE {table} SET {', '.join(f'{name} = ?{n}' for n, name in enumerate(rest, 2))} WHERE {key} = ?1"


# A record that is new may replace one that has expired.
SAVE_NEW_RECORD = _upsert("records", RecordRow)
SAVE_MEMBER = _update("records", RecordRow.__struct_encode_fields__)
# Without the last two fields, which are empty for a job in no batch: SQLite then leaves the index of members alone.
SAVE_RECORD = _update("records", RecordRow.__struct_encode_fields__[:-2])
SAVE_SLOT = _upsert("slots", SlotRow)
_SELECT_RECORD = f"SELECT {', '.join(RecordRow.__struct_encode_fields__)} FROM records"
# What an outline has in place of what it leaves out: 0, b"" or b"[]".
_LEFT_OUT = {"raw": "x''", "result": "x''", "attempts": "x'5b5d'", "after": "x''", "queued": "0"}
OUTLINE = ", ".join(_LEFT_OUT.get(name, name) for name in RecordRow.__struct_encode_fields__)
_SELECT_SLOT = f"SELECT {', '.join(SlotRow.__struct_encode_fields__)} FROM slots"
_SELECT_ALL_SLOTS = f"{_SELECT_SLOT} WHERE info IS NOT NULL OR held IS NOT NULL ORDER BY slot"
encode_entry = msgspec.json.Encoder().encode
_decode_entry = msgspec.json.Decoder(LedgerEntry).decode


def find_all(
    db: sqlite3.Connection, select: str, key: str, values: Sequence[str] | Sequence[bytes]
) -> Iterator[tuple[Any, ...]]:
    for start in range(0, len(values), _KEYS_PER_STATEMENT):
        some = values[start : start + _KEYS_PER_STATEMENT]
        yield from db.execute(f"{select} WHERE {key} IN ({', '.join('?' * len(some))})", some)


class Tables:
    """The primitives of one transaction. `find_…` reads many at once and leaves out what is not there; what has expired
    is not there."""

    def __init__(self, store: Store, db: sqlite3.Connection) -> None:
        self.db = db
        self.queue_names = store.queue_names
        self.boot = store.database.boot
        self.now_ms = store.clock()
        self.monotonic_ms = store.monotonic()  # for leases and windows, which a step of the wall clock must not change
        self.queued = QueueTable(db)
        self._ended: dict[State, EndedList] = {}

    def forget_expired(self) -> None:
        """Deletes some of the records whose time is over."""
        self.db.execute(
            "DELETE FROM records WHERE number IN (SELECT number FROM records WHERE expires_ms <= ? LIMIT ?)",
            (self.now_ms, EXPIRED_PER_TRANSACTION),
        )

    def _one(self, sql: str, *values: object) -> Any:
        """The only value of a row; None if there is no row."""
        found = self.db.execute(sql, values).fetchone()
        return found[0] if found is not None else None

    # records, slots and the ledger

    def find_records(self, ids: Sequence[str]) -> dict[str, RecordRow | None]:
        rows = (RecordRow(*values) for values in find_all(self.db, _SELECT_RECORD, "id", ids))
        return {row.id: row for row in rows if row.expires_ms is None or row.expires_ms > self.now_ms}

    def delete_ended_record(self, id: str, state: State) -> None:
        """Deletes the record if it has this state and no copy of its job waits."""
        self.db.execute("DELETE FROM records WHERE id = ? AND state = ? AND queued = 0", (id, state.value))

    def find_slots(self, slots: Sequence[str]) -> dict[str, SlotRow | None]:
        return {values[0]: SlotRow(*values) for values in find_all(self.db, _SELECT_SLOT, "slot", slots)}

    def all_slots(self) -> list[SlotRow]:
        """Every slot that is registered or holds a job, by name."""
        return [SlotRow(*values) for values in self.db.execute(_SELECT_ALL_SLOTS)]

    def forget_slots(self, kept: int) -> None:
        """Deletes slots that are gone, but for the `kept` newest."""
        self.db.execute(
            "DELETE FROM slots WHERE slot IN (SELECT slot FROM slots WHERE info IS NULL AND held IS NULL "
            "ORDER BY gone_ms DESC LIMIT -1 OFFSET ?)",
            (kept,),
        )

    def find_ledger_entries(self, paths: Sequence[bytes]) -> dict[bytes, LedgerEntry]:
        rows = find_all(self.db, "SELECT path, entry FROM ledger", "path", paths)
        return {path: _decode_entry(entry) for path, entry in rows}

    def ledger_after(self, under: bytes, after: bytes, limit: int) -> list[tuple[bytes, LedgerEntry]]:
        """The next entries whose paths start with `under`, by path; from the beginning with b""."""
        comparison, first = (">", after) if after else (">=", under)
        sql = f"SELECT path, entry FROM ledger WHERE path {comparison} ? ORDER BY path LIMIT ?"
        rows = self.db.execute(sql, (first, limit))
        return [(path, _decode_entry(entry)) for path, entry in rows if path.startswith(under)]

    # places

    def ended(self, state: State) -> EndedList:
        if state not in self._ended:
            self._ended[state] = EndedList(self.db, state)
        return self._ended[state]

    def add_dead(self, raw: bytes) -> None:
        self.db.execute("INSERT INTO dead (raw, crc) VALUES (?, ?)", (raw, crc32(raw)))

    def is_dead(self, raw: bytes) -> bool:
        return self._one("SELECT 1 FROM dead WHERE crc = ? AND raw = ? LIMIT 1", crc32(raw), raw) is not None

    def remove_dead(self, raw: bytes) -> bool:
        """Removes the oldest dead job with these bytes; False if there is none."""
        sql = "DELETE FROM dead WHERE position = (SELECT min(position) FROM dead WHERE crc = ? AND raw = ?)"
        return self.db.execute(sql, (crc32(raw), raw)).rowcount > 0

    def due_ms_of(self, raw: bytes) -> int | None:
        """When these bytes are due; None if they are not scheduled."""
        due_ms: int | None = self._one("SELECT due_ms FROM scheduled WHERE raw = ?", raw)
        return due_ms

    def put_scheduled(self, raw: bytes, due_ms: int) -> None:
        """Schedules these bytes, or changes when they are due."""
        sql = (
            "INSERT INTO scheduled (due_ms, raw) VALUES (?, ?) ON CONFLICT (raw) DO UPDATE SET due_ms = excluded.due_ms"
        )
        self.db.execute(sql, (due_ms, raw))

    def unschedule(self, raw: bytes) -> bool:
        """Removes these bytes from the scheduled jobs; False if they are not there."""
        return self.db.execute("DELETE FROM scheduled WHERE raw = ?", (raw,)).rowcount > 0

    def take_due(self, limit: int) -> list[bytes]:
        """Removes the jobs that are due, the earliest first."""
        sql = "SELECT due_ms, raw FROM scheduled WHERE due_ms <= ? ORDER BY due_ms, raw LIMIT ?"
        due = self.db.execute(sql, (self.now_ms, limit)).fetchall()
        self.db.executemany("DELETE FROM scheduled WHERE due_ms = ? AND raw = ?", due)
        return [raw for _, raw in due]

    def latest_due(self, offset: int, limit: int) -> list[bytes]:
        """A page of the scheduled jobs, the last one first."""
        sql = "SELECT raw FROM scheduled ORDER BY due_ms DESC, raw DESC LIMIT ? OFFSET ?"
        return [raw for (raw,) in self.db.execute(sql, (limit, offset))]

    def next_due_ms(self) -> int | None:
        due_ms: int | None = self._one("SELECT min(due_ms) FROM scheduled")
        return due_ms

    def peek(self, place: str, limit: int) -> list[bytes]:
        """The first jobs of a place: the newest of those that have ended, and otherwise the oldest."""
        source, values = source_of(place, self.queue_names)
        order = "due_ms, raw" if place == "scheduled" else "position DESC" if place in NEWEST_FIRST else "position"
        found = self.db.execute(f"SELECT raw FROM {source} ORDER BY {order} LIMIT ?", (*values, limit))
        return [raw for (raw,) in found]

    # deadlines

    def put_deadline(self, id: str, look_ms: int) -> None:
        self.db.execute("INSERT OR REPLACE INTO deadlines (id, look_ms) VALUES (?, ?)", (id, look_ms))

    def place_deadline(self, id: str, position: int) -> None:
        """Notes the position of a job in its queue, if its deadline is listed. A backing need not."""
        self.db.execute("UPDATE deadlines SET position = ? WHERE id = ?", (position, id))

    def take_deadline(self, id: str) -> int | None:
        """Removes the deadline of a job; returns its position if it was noted."""
        position: int | None = self._one("DELETE FROM deadlines WHERE id = ? RETURNING position", id)
        return position

    def due_looks(self, limit: int) -> list[str]:
        """The ids of the jobs that are to be looked at by now."""
        sql = "SELECT id FROM deadlines WHERE look_ms <= ? ORDER BY look_ms, id LIMIT ?"
        return [id for (id,) in self.db.execute(sql, (self.now_ms, limit))]

    def look_again(self, id: str, look_ms: int) -> None:
        self.db.execute("UPDATE deadlines SET look_ms = ? WHERE id = ?", (look_ms, id))

    def next_look_ms(self) -> int | None:
        look_ms: int | None = self._one("SELECT min(look_ms) FROM deadlines")
        return look_ms

    # unique keys, outputs, orders

    def find_key(self, key: str) -> str:
        """The id of the job that took the key last; empty if none did."""
        return self._one("SELECT id FROM unique_keys WHERE key = ?", key) or ""

    def put_key(self, key: str, id: str) -> None:
        self.db.execute("INSERT OR REPLACE INTO unique_keys VALUES (?, ?)", (key, id))

    def key_page(self, cursor: str, limit: int) -> list[tuple[str, str]]:
        """Keys after the cursor, with the jobs that took them, in order."""
        sql = "SELECT key, id FROM unique_keys WHERE key > ? ORDER BY key LIMIT ?"
        return self.db.execute(sql, (cursor, limit)).fetchall()

    def remove_keys(self, keys: Sequence[str]) -> None:
        self.db.executemany("DELETE FROM unique_keys WHERE key = ?", [(key,) for key in keys])

    def find_makers(self, paths: Sequence[bytes]) -> dict[bytes, str]:
        """The id of the job that made each of these files."""
        rows = find_all(self.db, "SELECT path, id, expires_ms FROM made", "path", paths)
        return {path: id for path, id, expires_ms in rows if expires_ms > self.now_ms}

    def put_outputs(self, paths: Sequence[bytes], id: str, expires_ms: int) -> None:
        rows = [(path, id, expires_ms) for path in paths]
        self.db.executemany("INSERT OR REPLACE INTO made VALUES (?, ?, ?)", rows)

    def forget_outputs(self) -> None:
        """Deletes some of those whose time is over."""
        sql = "DELETE FROM made WHERE path IN (SELECT path FROM made WHERE expires_ms <= ? LIMIT ?)"
        self.db.execute(sql, (self.now_ms, _OUTPUTS_FORGOTTEN))

    def put_order(self, order: Order) -> None:
        self.db.execute("INSERT OR REPLACE INTO orders VALUES (?, ?, ?, ?)", astuple(order))

    def remove_orders(self, ids: Sequence[str]) -> None:
        self.db.executemany("DELETE FROM orders WHERE id = ?", [(id,) for id in ids])

    def due_orders(self, after: str, before_ms: int, limit: int) -> list[Order]:
        """Orders given before that time, or by slots that are not registered, after this id and in order of ids."""
        return [Order(*row) for row in self.db.execute(_DUE_ORDERS, (after, before_ms, limit))]

    def order_count(self) -> int:
        return int(self._one("SELECT count(*) FROM orders"))

    # limits

    def rate_window(self) -> tuple[int, int]:
        """When the window of the producers ends, and the permits taken in it."""
        found: tuple[int, int] | None = self.db.execute(
            "SELECT ends_ms, taken FROM rate WHERE boot = ?", (self.boot,)
        ).fetchone()
        return found or (0, 0)

    def put_rate_window(self, ends_ms: int, taken: int) -> None:
        self.db.execute("INSERT OR REPLACE INTO rate VALUES (1, ?, ?, ?)", (self.boot, ends_ms, taken))

    def holders(self, route: str) -> Collection[str]:
        """The slots with a permit of this route. Deletes those that no longer hold what they had it for."""
        # What the slots hold is compared in the table: no verb that changes it admits jobs too.
        self.db.execute(
            "DELETE FROM holders WHERE route = ? AND NOT EXISTS "
            "(SELECT 1 FROM slots WHERE slots.slot = holders.slot AND slots.held = holders.raw)",
            (route,),
        )
        return {slot for (slot,) in self.db.execute("SELECT slot FROM holders WHERE route = ?", (route,))}

    def add_holder(self, route: str, slot: str, raw: bytes) -> None:
        self.db.execute("INSERT INTO holders VALUES (?, ?, ?)", (route, slot, raw))

    def route_window(self, route: str) -> tuple[int, int]:
        """When the window of a route ends, and the jobs started in it."""
        # A window of an earlier boot has ended.
        found: tuple[int, int] | None = self.db.execute(
            "SELECT ends_ms, started FROM route_windows WHERE route = ? AND boot = ?", (route, self.boot)
        ).fetchone()
        return found or (0, 0)

    def put_route_window(self, route: str, ends_ms: int, started: int) -> None:
        values = (route, self.boot, ends_ms, started)
        self.db.execute("INSERT OR REPLACE INTO route_windows VALUES (?, ?, ?, ?)", values)

    # batches

    def find_batches(self, ids: Sequence[str]) -> dict[str, Batch | None]:
        found: dict[str, Batch | None] = {}
        some = [id for id in ids if id]  # most jobs and batches name none
        for id, facts, fixed in find_all(self.db, "SELECT id, facts, fixed FROM batches", "id", some):
            batch, more = _facts_decoder.decode(facts), _fixed_decoder.decode(fixed)
            batch.callbacks, batch.info = more.callbacks, more.info
            if not is_over(batch, self.now_ms):
                found[id] = batch
        return found

    def insert_batch(self, batch: Batch) -> None:
        """Replaces one of the same id whose time is over, with its members."""
        self._delete_batch(batch.id)
        # An earlier batch of this id left marks. The caller has read none of these records.
        self.db.execute("UPDATE records SET member = NULL WHERE batch = ? AND member IS NOT NULL", (batch.id,))
        fixed = _encoder.encode(FixedFacts(batch.callbacks, batch.info))
        values = (batch.id, batch.parent, batch.created_ms, 0, b"", fixed)
        self.db.execute("INSERT INTO batches VALUES (?, ?, ?, ?, ?, ?)", values)

    def _delete_batch(self, id: str) -> None:
        """Marks in records stay: they mean nothing without the batch."""
        self.db.execute("DELETE FROM batch_members WHERE batch = ?", (id,))
        self.db.execute("DELETE FROM batches WHERE id = ?", (id,))

    def unfinished_children(self, id: str, most: int) -> list[str]:
        """Ids of child batches. A batch may have very many, so never all of them."""
        sql = "SELECT id FROM batches WHERE parent = ? AND finished_ms = 0 ORDER BY id LIMIT ?"
        return [child for (child,) in self.db.execute(sql, (id, most))]

    def batches_before(self, last: tuple[int, str] | None, limit: int, *, unfinished: bool) -> list[tuple[int, str]]:
        """When batches were created, and their ids: the newest first, after `last` in this order."""
        kept = "finished_ms = 0" if unfinished else "(finished_ms = 0 OR finished_ms > ?)"
        values: tuple[object, ...] = () if unfinished else (self.now_ms - KEPT_MS,)
        if last is not None:
            kept, values = f"{kept} AND (created_ms, id) < (?, ?)", (*values, *last)
        sql = f"SELECT created_ms, id FROM batches WHERE {kept} ORDER BY created_ms DESC, id DESC LIMIT ?"
        return self.db.execute(sql, (*values, limit)).fetchall()

    def member_page(self, batch_id: str, state: MemberState, cursor: str, limit: int) -> MemberPage:
        """Those of the table come first; their cursors are `i` and an id. Then the marked ones follow,
        with `n` and the number of the record."""
        rows: list[tuple[str, str]] = []
        if not cursor.startswith("n"):
            sql = "SELECT 'i' || id, id FROM batch_members WHERE batch = ? AND state = ? AND id > ? ORDER BY id LIMIT ?"
            rows = self.db.execute(sql, (batch_id, state, cursor[1:], limit + 1)).fetchall()
        if len(rows) <= limit:
            after = int(cursor[1:]) if cursor.startswith("n") else 0
            where = "batch = ? AND member = ? AND number > ?"
            sql = f"SELECT 'n' || number, id FROM records WHERE {where} ORDER BY number LIMIT ?"
            rows += self.db.execute(sql, (batch_id, state, after, limit + 1 - len(rows))).fetchall()
        ids = tuple(id for _, id in rows[:limit])
        return MemberPage(ids, rows[limit - 1][0] if len(rows) > limit else "")

    def forget_batches(self) -> None:
        """Deletes some of those whose time is over."""
        sql = "SELECT id FROM batches WHERE finished_ms > 0 AND finished_ms <= ? LIMIT ?"
        for (id,) in self.db.execute(sql, (self.now_ms - KEPT_MS, _BATCHES_FORGOTTEN)).fetchall():
            self._delete_batch(id)

    def add_unmarked(self, batch_id: str, state: MemberState, id: str) -> None:
        """Adds a member that no record marks, unless it is there."""
        self.db.execute("INSERT OR IGNORE INTO batch_members VALUES (?, ?, ?)", (batch_id, state, id))

    def remove_unmarked(self, batch_id: str, state: MemberState, id: str) -> bool:
        sql = "DELETE FROM batch_members WHERE batch = ? AND state = ? AND id = ?"
        return self.db.execute(sql, (batch_id, state, id)).rowcount > 0

    def has_unmarked(self, batch_id: str, state: MemberState | None = None, id: str = "") -> bool:
        """Whether the batch has this unmarked member; without a state, whether it has any."""
        if state is None:
            return self._one("SELECT 1 FROM batch_members WHERE batch = ? LIMIT 1", batch_id) is not None
        sql = "SELECT 1 FROM batch_members WHERE batch = ? AND state = ? AND id = ?"
        return self._one(sql, batch_id, state, id) is not None

    # what operators switch, schedules, documents and producers

    def paused(self) -> frozenset[str]:
        return frozenset(queue for (queue,) in self.db.execute("SELECT queue FROM paused"))

    def put_paused(self, queue: str, *, is_paused: bool) -> None:
        sql = "INSERT OR IGNORE INTO paused VALUES (?)" if is_paused else "DELETE FROM paused WHERE queue = ?"
        self.db.execute(sql, (queue,))

    def breaker_resets(self) -> dict[str, int]:
        return dict(self.db.execute("SELECT route, number FROM breaker_resets").fetchall())

    def count_breaker_reset(self, route: str) -> None:
        sql = "INSERT INTO breaker_resets VALUES (?, 1) ON CONFLICT DO UPDATE SET number = number + 1"
        self.db.execute(sql, (route,))

    def schedule_states(self) -> dict[str, ScheduleState]:
        rows = self.db.execute(f"SELECT name, {_SCHEDULE_COLUMNS} FROM schedules ORDER BY name")
        return {name: _as_state(values) for name, *values in rows}

    def schedule_state(self, name: str) -> ScheduleState | None:
        row = self.db.execute(f"SELECT {_SCHEDULE_COLUMNS} FROM schedules WHERE name = ?", (name,)).fetchone()
        return _as_state(row) if row is not None else None

    def put_schedule_state(self, name: str, state: ScheduleState | None) -> None:
        """Replaces the state of a schedule; None removes it."""
        if state is None:
            self.db.execute("DELETE FROM schedules WHERE name = ?", (name,))
            return
        values = (name, *astuple(state))
        self.db.execute(f"INSERT OR REPLACE INTO schedules VALUES ({', '.join('?' * len(values))})", values)

    def next_fire_ms(self) -> int | None:
        """The earliest slot of all schedules that are not paused."""
        next_ms: int | None = self._one("SELECT min(next_ms) FROM schedules WHERE NOT is_paused")
        return next_ms

    def documents(self, kind: str) -> dict[str, Document]:
        rows = self.db.execute("SELECT name, body, revision FROM documents WHERE kind = ?", (kind,))
        return {name: Document(body, revision) for name, body, revision in rows}

    def document(self, kind: str, name: str) -> Document | None:
        sql = "SELECT body, revision FROM documents WHERE kind = ? AND name = ?"
        row = self.db.execute(sql, (kind, name)).fetchone()
        return Document(*row) if row is not None else None

    def put_document(self, kind: str, name: str, document: Document | None) -> None:
        """Replaces a document; None removes it."""
        if document is None:
            self.db.execute("DELETE FROM documents WHERE kind = ? AND name = ?", (kind, name))
        else:
            values = (kind, name, document.revision, document.body)
            self.db.execute("INSERT OR REPLACE INTO documents VALUES (?, ?, ?, ?)", values)

    def catalog_revision(self, kind: str) -> int:
        """Of a kind of documents; that of CANCELS counts the requests to cancel running jobs."""
        return self._one("SELECT revision FROM catalog_revisions WHERE kind = ?", kind) or 0

    def next_revision(self, kind: str) -> int:
        sql = "INSERT INTO catalog_revisions VALUES (?, 1) ON CONFLICT DO UPDATE SET revision = revision + 1"
        return int(self._one(f"{sql} RETURNING revision", kind))

    def producers(self) -> list[ProducerView]:
        # Leases run on the monotonic clock: no step of the wall clock changes them, and a reboot ends them all.
        sql = "SELECT id, info FROM producers WHERE boot = ? AND alive_until_ms > ? ORDER BY id"
        living = self.db.execute(sql, (self.boot, self.monotonic_ms))
        return [ProducerView(id, msgspec.json.decode(info, type=ProducerInfo)) for id, info in living]

    def put_producer(self, id: str, info: ProducerInfo | None, ttl_ms: int = 0) -> None:
        """Replaces the report of a producer; None removes it. Deletes those whose lease has ended."""
        ended = "DELETE FROM producers WHERE id = ? OR boot != ? OR alive_until_ms <= ?"
        self.db.execute(ended, (id, self.boot, self.monotonic_ms))
        if info is not None:
            report = (id, msgspec.json.encode(info), self.boot, self.monotonic_ms + ttl_ms)
            self.db.execute("INSERT INTO producers VALUES (?, ?, ?, ?)", report)

    # numbers

    def census(self, *, is_exact: bool = False) -> Census:
        """`is_exact` counts every job instead of deriving numbers; that may take longer."""
        if is_exact:
            lengths = dict(self.db.execute("SELECT queue, count(*) FROM queued GROUP BY queue"))
        else:
            lengths = {queue: queue_length(self.db, queue) for queue in queues_with_jobs(self.db)}
        alive = "SELECT count(*) FROM slots WHERE boot = ? AND alive_until_ms > ?"
        return Census(
            pending={**dict.fromkeys(self.queue_names, 0), **lengths},
            scheduled=place_length(self.db, "scheduled"),
            running=self._one("SELECT count(held) FROM slots"),
            dead=place_length(self.db, "dead_letter"),
            completed=place_length(self.db, State.COMPLETED),
            cancelled=place_length(self.db, State.CANCELLED),
            heartbeats=self._one(alive, self.boot, self.monotonic_ms),
            counters=dict(self.db.execute("SELECT name, value FROM stats")),
            paused=self.paused(),
            now_ms=self.now_ms,
            unfinished_batches=self._one("SELECT count(*) FROM batches WHERE finished_ms = 0"),
        )

    def add_to_counter(self, name: str, by: int) -> None:
        """Changes a counter, but not that of the hour."""
        self.db.execute(ADD_TO_COUNTER, (name, by))

    def hours(self, oldest: int, newest: int) -> dict[int, dict[str, int]]:
        """The counters of these hours."""
        found: dict[int, dict[str, int]] = {}
        sql = "SELECT hour, name, value FROM hourly WHERE hour BETWEEN ? AND ?"
        for hour, name, value in self.db.execute(sql, (oldest, newest)):
            found.setdefault(hour, {})[name] = value
        return found


def execute_each(db: sqlite3.Connection, sql: str, values: Sequence[tuple[object, ...]]) -> None:
    if values:
        db.executemany(sql, values)


def save_records(db: sqlite3.Connection, records: Iterable[RecordRow], new: Collection[str]) -> None:
    values: dict[str, list[tuple[object, ...]]] = {SAVE_NEW_RECORD: [], SAVE_MEMBER: [], SAVE_RECORD: []}
    for record in records:
        row = astuple(record)
        if record.id in new:
            values[SAVE_NEW_RECORD].append(row)
        elif record.batch:
            values[SAVE_MEMBER].append(row)
        else:
            values[SAVE_RECORD].append(row[:-2])
    for sql, rows in values.items():
        execute_each(db, sql, rows)


ADD_TO_COUNTER = "INSERT INTO stats VALUES (?, ?) ON CONFLICT DO UPDATE SET value = value + excluded.value"


def _as_state(values: Sequence[Any]) -> ScheduleState:
    revision, next_ms, last_ms, last_job_id, is_paused, runs, missed = values
    return ScheduleState(revision, next_ms, last_ms, last_job_id, bool(is_paused), runs, missed)


def source_of(place: str, queues: Sequence[str]) -> tuple[str, tuple[str, ...]]:
    """The table and condition of a place, as SQL with its values."""
    if place in queues:
        return "queued WHERE queue = ?", (place,)
    if place not in (*NEWEST_FIRST, "scheduled"):
        places = ", ".join((*queues, *NEWEST_FIRST, "scheduled"))
        raise BrokerError(f"no place is named {place!r}; known: {places}")
    if place in ("scheduled", "dead_letter"):
        return f"{place.removesuffix('_letter')} WHERE true", ()
    return "ended WHERE state = ?", (place,)


def place_length(db: sqlite3.Connection, place: str) -> int:
    """How many jobs a queue, `scheduled`, `dead_letter`, `completed` or `cancelled` holds."""
    if place in (State.COMPLETED, State.CANCELLED):
        first, last = first_and_last(db, "ended", "state", place)
        return last - first + 1
    if place in ("scheduled", "dead_letter"):
        length: int = db.execute(f"SELECT count(*) FROM {place.removesuffix('_letter')}").fetchone()[0]
        return length
    return queue_length(db, place)


# The list of completed or of cancelled jobs during one transaction: appended and trimmed here, written at its end.
#
# Positions have no gaps, so the length follows from the first and the last.


_PAGE = 16


def first_and_last(db: sqlite3.Connection, table: str, key: str, value: str) -> tuple[int, int]:
    """The positions at the ends of a queue or a list; (1, 0) if it is empty."""
    # Two statements, each one index lookup: min and max in one statement would read the whole list.
    (first,) = db.execute(f"SELECT min(position) FROM {table} WHERE {key} = ?", (value,)).fetchone()
    (last,) = db.execute(f"SELECT max(position) FROM {table} WHERE {key} = ?", (value,)).fetchone()
    return (1, 0) if first is None else (first, last)


class EndedList:
    def __init__(self, db: sqlite3.Connection, state: State) -> None:
        self._db = db
        self._state = state
        self._first, last = first_and_last(db, "ended", "state", state.value)
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
# Positions may have holes, left by cancelled jobs. The table `holes` lists those, so that the length of a queue follows
# from its ends and its holes without counting.


_SEARCHED_AT_ONCE = 500


def queues_with_jobs(db: sqlite3.Connection) -> Iterator[str]:
    """Every queue that holds a job, those of other configurations too. Skips along the index, one lookup a queue."""
    last = ""
    while (found := db.execute("SELECT min(queue) FROM queued WHERE queue > ?", (last,)).fetchone()[0]) is not None:
        yield found
        last = found


def queue_length(db: sqlite3.Connection, queue: str) -> int:
    """The length of a queue that holds a job, from its ends and its holes: three index lookups, however long it is."""
    first, last = first_and_last(db, "queued", "queue", queue)
    sql = "SELECT count(*) FROM holes WHERE queue = ? AND position > ? AND position < ?"
    holes: int = db.execute(sql, (queue, first, last)).fetchone()[0]
    return last - first + 1 - holes


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
        first, last = first_and_last(self._db, "queued", "queue", queue)
        if first > last:
            # Positions begin again at 1, where old holes would make the length too small.
            self._db.execute("DELETE FROM holes WHERE queue = ?", (queue,))
        ends = self._ends[queue] = [first - 1, last + 1]
        return ends

    def first(self, queue: str, limit: int) -> list[tuple[int, bytes]]:
        """Position and bytes of the first jobs of a queue, front first."""
        sql = "SELECT position, raw FROM queued WHERE queue = ? ORDER BY position LIMIT ?"
        return self._db.execute(sql, (queue, limit)).fetchall()

    def remove_first(self, positions: list[tuple[str, int]]) -> None:
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
        self.remove_first(at)
        self._db.executemany("INSERT OR REPLACE INTO holes VALUES (?, ?)", at)
        # A hole outside the new ends is no hole: the next jobs will be pushed there.
        before, after = self._find_ends(queue)
        sql = "DELETE FROM holes WHERE queue = ? AND (position <= ? OR position >= ?)"
        self._db.execute(sql, (queue, before, after))

    def found(self, wanted: Collection[tuple[str, bytes]]) -> set[tuple[str, bytes]]:
        """Those of these (queue, raw) that are there."""
        return set(find_newest(self._db, wanted))

    def repair(self) -> None:
        """Corrects what the table keeps beside the jobs, after something else has removed some."""
        # A job deleted by hand left a hole that is not listed. Reads all queues.
        self._db.execute("DELETE FROM holes")
        last: tuple[str, int] | None = None
        for queue, position in self._db.execute("SELECT queue, position FROM queued ORDER BY queue, position"):
            if last is not None and last[0] == queue:
                missing = ((queue, hole) for hole in range(last[1] + 1, position))
                self._db.executemany("INSERT INTO holes VALUES (?, ?)", missing)
            last = queue, position


def is_over(batch: Batch, now_ms: int) -> bool:
    """Whether the time of a finished batch is over."""
    return batch.state is BatchState.FINISHED and batch.finished_ms + KEPT_MS <= now_ms


class FixedFacts(msgspec.Struct, frozen=True, omit_defaults=True):
    """What never changes of a batch, in a column apart from the counts: it may be long."""

    callbacks: tuple[Callback, ...] = ()
    info: bytes = b""


_fixed_decoder = msgspec.json.Decoder(FixedFacts)
_facts_decoder = msgspec.json.Decoder(Batch)


def encode_batch(batch: Batch) -> bytes:
    """What may change of it."""
    return _encoder.encode(replace(batch, callbacks=(), info=b""))
