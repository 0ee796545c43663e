"""Records, slots and ledger entries as they lie in the tables: one struct a row, and the statements made from it."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import msgspec

from fileq.brokers.types import ATTEMPTS_KEPT, Attempt, LedgerEntry, Record
from fileq.core.claim import Claim
from fileq.core.errors import Undecodable
from fileq.core.job import Job, State, decode

_AT_ONCE = 64  # keys in one statement; each number of them is a statement of its own, prepared once

_encoder = msgspec.json.Encoder()
_attempts_decoder = msgspec.json.Decoder(list[Attempt])
_ledger_decoder = msgspec.json.Decoder(LedgerEntry)


class Row(msgspec.Struct):
    """A record. `queued` counts the elements in queues that were accounted for: a claim that finds it at
    zero has met an element nobody enqueued here, and adopts it."""

    id: str
    state: str
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
    attempts: bytes = b"[]"
    attempt_count: int = 0
    is_cancel_requested: int = 0
    expires_ms: int | None = None

    def add_attempt(self, attempt: Attempt) -> None:
        self.attempt_count += 1
        self.attempts = _encoder.encode([*_attempts_decoder.decode(self.attempts), attempt][-ATTEMPTS_KEPT:])

    def view(self) -> Record:
        return Record(
            id=self.id,
            state=State(self.state),
            raw=self.raw,
            queue=self.queue,
            worker=self.worker,
            created_ms=self.created_ms,
            started_ms=self.started_ms,
            ended_ms=self.ended_ms,
            due_ms=self.due_ms,
            error=self.error,
            result=self.result,
            attempts=tuple(_attempts_decoder.decode(self.attempts)),
            attempt_count=self.attempt_count,
            is_cancel_requested=bool(self.is_cancel_requested),
            queued=self.queued,
        )


class Slot(msgspec.Struct):
    """A slot's registry entry, its processing list (one element at most), its heartbeat, its last settlement."""

    slot: str
    info: bytes | None = None
    held: bytes | None = None
    boot: str = ""
    alive_until_ms: int = 0
    token: int = 0
    settled: int | None = None
    gone_ms: int = 0

    def is_alive(self, boot: str, monotonic_ms: int) -> bool:
        return self.boot == boot and self.alive_until_ms > monotonic_ms

    def next_token(self) -> int:
        self.token += 1
        return self.token

    def forget(self, now_ms: int) -> None:
        self.info = self.held = self.settled = None
        self.boot, self.alive_until_ms, self.gone_ms = "", 0, now_ms


def _upsert(table: str, struct: type[msgspec.Struct]) -> str:
    key, *rest = struct.__struct_fields__
    return (
        f"INSERT INTO {table} ({', '.join((key, *rest))}) VALUES ({', '.join('?' * (1 + len(rest)))}) "
        f"ON CONFLICT ({key}) DO UPDATE SET {', '.join(f'{name} = excluded.{name}' for name in rest)}"
    )


SAVE_ROW = _upsert("records", Row)
SAVE_SLOT = _upsert("slots", Slot)
_ROW = f"SELECT {', '.join(Row.__struct_fields__)} FROM records"
_SLOT = f"SELECT {', '.join(Slot.__struct_fields__)} FROM slots"
_ALL_SLOTS = f"{_SLOT} WHERE info IS NOT NULL OR held IS NOT NULL ORDER BY slot"


class Element(NamedTuple):
    """What lies in a list, and where; `job` is None when the bytes are not one."""

    position: int
    raw: bytes
    job: Job | None


def find_rows(db: sqlite3.Connection, ids: Sequence[str], now_ms: int) -> dict[str, Row | None]:
    """find_row() of each, at half the price."""
    found: dict[str, Row | None] = dict.fromkeys(ids)
    for row in (Row(*values) for values in _find_all(db, _ROW, "id", ids)):
        if row.expires_ms is None or row.expires_ms > now_ms:
            found[row.id] = row
    return found


def find_slots(db: sqlite3.Connection, names: Sequence[str]) -> dict[str, Slot | None]:
    found: dict[str, Slot | None] = dict.fromkeys(names)
    found.update((values[0], Slot(*values)) for values in _find_all(db, _SLOT, "slot", names))
    return found


def find_ledger_entries(db: sqlite3.Connection, paths: Sequence[bytes]) -> dict[bytes, LedgerEntry]:
    """find_ledger_entry() of each, at half the price; those that are not there are missing."""
    rows = _find_all(db, "SELECT path, entry FROM ledger", "path", paths)
    return {path: to_ledger_entry(entry) for path, entry in rows}


def _find_all(
    db: sqlite3.Connection, select: str, key: str, values: Sequence[str] | Sequence[bytes]
) -> Iterator[tuple[Any, ...]]:
    for start in range(0, len(values), _AT_ONCE):
        some = values[start : start + _AT_ONCE]
        yield from db.execute(f"{select} WHERE {key} IN ({', '.join('?' * len(some))})", some)


def find_row(db: sqlite3.Connection, id: str, now_ms: int) -> Row | None:
    """The job's record; one whose time has come is gone, whether or not it was deleted yet."""
    return find_rows(db, [id], now_ms)[id]


def all_slots(db: sqlite3.Connection) -> list[Slot]:
    return [Slot(*found) for found in db.execute(_ALL_SLOTS)]


def find_ledger_entry(db: sqlite3.Connection, path: bytes) -> LedgerEntry | None:
    found = db.execute("SELECT entry FROM ledger WHERE path = ?", (path,)).fetchone()
    return None if found is None else to_ledger_entry(found[0])


def to_ledger_entry(stored: bytes) -> LedgerEntry:
    return _ledger_decoder.decode(stored)


def from_ledger_entry(entry: LedgerEntry) -> bytes:
    return _encoder.encode(entry)


def as_claim(slot: str, raw: bytes, find: Callable[[str], Row | None], *, queue: str, token: int = 0) -> Claim:
    """The element a slot holds, with what its record says of it; `queue` is the answer where none does."""
    try:
        job = decode(raw)
    except Undecodable as defect:
        return Claim(slot, token, queue, raw, None, defect=str(defect))
    row = find(job.id)
    if row is None:
        return Claim(slot, token, queue, raw, job, job.id)
    return Claim(slot, token, row.queue, raw, job, job.id, row.started_ms)
