"""The statements that read and save rows, derived from their structs (rules/rows.py).

The order of a struct's fields is that of its statements' values. Where a field's name differs from its column, the
field's wire name is the column.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Sequence
from typing import Any

import msgspec

from fileq.brokers.rules.rows import RareFacts, RecordRow, SlotRow
from fileq.brokers.types import LedgerEntry
from fileq.core.job import State

_KEYS_PER_STATEMENT = 64  # each number of keys is a statement of its own that SQLite prepares once

STATES = {state.value: state for state in State}
_facts_decoder = msgspec.json.Decoder(RareFacts)
encode_ledger_entry = msgspec.json.Encoder().encode
decode_ledger_entry = msgspec.json.Decoder(LedgerEntry).decode


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
# What an outline has in place of the long columns: b"" or b"[]".
_LONG = {"raw": "x''", "result": "x''", "attempts": "x'5b5d'", "after": "x''"}
_OUTLINE = (_LONG.get(name, name) for name in RecordRow.__struct_encode_fields__)
_SELECT_OUTLINE = f"SELECT {', '.join(_OUTLINE)} FROM records"
_SELECT_SLOT = f"SELECT {', '.join(SlotRow.__struct_encode_fields__)} FROM slots"
_SELECT_ALL_SLOTS = f"{_SELECT_SLOT} WHERE info IS NOT NULL OR held IS NOT NULL ORDER BY slot"


def find_records(db: sqlite3.Connection, ids: Sequence[str], now_ms: int) -> dict[str, RecordRow | None]:
    """The records of these jobs. An expired record counts as absent, even if it is not deleted yet."""
    found: dict[str, RecordRow | None] = dict.fromkeys(ids)
    for record in (RecordRow(*values) for values in _find_all(db, _SELECT_RECORD, "id", ids)):
        if record.expires_ms is None or record.expires_ms > now_ms:
            found[record.id] = record
    return found


def find_states(db: sqlite3.Connection, ids: Sequence[str], now_ms: int) -> dict[str, State]:
    """The states of these jobs, as find_records() finds them; a job without a record is left out."""
    rows = _find_all(db, "SELECT id, state, expires_ms FROM records", "id", ids)
    return {id: State(state) for id, state, expires_ms in rows if expires_ms is None or expires_ms > now_ms}


def find_standings(db: sqlite3.Connection, ids: Sequence[str], now_ms: int) -> dict[str, tuple[State, int]]:
    """The state of each job and when it was created; a job without a record is left out."""
    rows = _find_all(db, "SELECT id, state, created_ms, expires_ms FROM records", "id", ids)
    return {id: (STATES[state], created_ms) for id, state, created_ms, ends in rows if ends is None or ends > now_ms}


def find_fingerprints(db: sqlite3.Connection, ids: Sequence[str], now_ms: int) -> dict[str, str]:
    """The fingerprint in each record; a job without one is left out."""
    rows = _find_all(db, "SELECT id, extra, expires_ms FROM records", "id", ids)
    kept = ((id, extra) for id, extra, ends in rows if extra and (ends is None or ends > now_ms))
    return {id: _facts_decoder.decode(extra).fingerprint for id, extra in kept}


def find_outlines(db: sqlite3.Connection, ids: Sequence[str], now_ms: int) -> dict[str, RecordRow]:
    """As find_records(), without the long columns: they are empty."""
    rows = (RecordRow(*values) for values in _find_all(db, _SELECT_OUTLINE, "id", ids))
    return {row.id: row for row in rows if row.expires_ms is None or row.expires_ms > now_ms}


def find_slots(db: sqlite3.Connection, slots: Sequence[str]) -> dict[str, SlotRow | None]:
    found: dict[str, SlotRow | None] = dict.fromkeys(slots)
    found.update((values[0], SlotRow(*values)) for values in _find_all(db, _SELECT_SLOT, "slot", slots))
    return found


def all_slots(db: sqlite3.Connection) -> list[SlotRow]:
    """Every slot that is registered or holds a job."""
    return [SlotRow(*values) for values in db.execute(_SELECT_ALL_SLOTS)]


def find_ledger_entries(db: sqlite3.Connection, paths: Sequence[bytes]) -> dict[bytes, LedgerEntry]:
    """The entries of these paths; a path without an entry is left out."""
    rows = _find_all(db, "SELECT path, entry FROM ledger", "path", paths)
    return {path: decode_ledger_entry(entry) for path, entry in rows}


def find_makers(db: sqlite3.Connection, paths: Sequence[bytes], now_ms: int) -> dict[bytes, str]:
    """The id of the job that made each of these files; a file that no job made is left out."""
    rows = _find_all(db, "SELECT path, id, expires_ms FROM made", "path", paths)
    return {path: id for path, id, expires_ms in rows if expires_ms > now_ms}


def _find_all(
    db: sqlite3.Connection, select: str, key: str, values: Sequence[str] | Sequence[bytes]
) -> Iterator[tuple[Any, ...]]:
    for start in range(0, len(values), _KEYS_PER_STATEMENT):
        some = values[start : start + _KEYS_PER_STATEMENT]
        yield from db.execute(f"{select} WHERE {key} IN ({', '.join('?' * len(some))})", some)
