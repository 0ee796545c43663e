"""Records and slots as they are in the tables: one struct a row, and the statements derived from it.

The order of a struct's fields is that of its statements' values. Where a field's name differs from its column, the
field's wire name is the column. Reads only; saving is the unit of work's.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import msgspec

from fileq.brokers.local_processes import ProcessId
from fileq.brokers.types import ATTEMPTS_KEPT, Attempt, LedgerEntry, Record, join_marks, split_marks
from fileq.core.claim import Claim
from fileq.core.errors import Undecodable
from fileq.core.job import State, decode
from fileq.core.outcome import Output

_KEYS_PER_STATEMENT = 64  # each number of keys is a statement of its own that SQLite prepares once

_encoder = msgspec.json.Encoder()
_attempts_decoder = msgspec.json.Decoder(list[Attempt])
_process_decoder = msgspec.json.Decoder(ProcessId)
_ids_decoder = msgspec.json.Decoder(tuple[str, ...])


class RareFacts(msgspec.Struct, frozen=True, omit_defaults=True):
    """What few jobs have, as one JSON column: a job without it costs an empty value. New fields need a default."""

    waits_for: str = ""
    unique_key: str = ""
    follow_ups: tuple[str, ...] = ()
    outputs: tuple[Output, ...] = ()
    fingerprint: str = ""
    deferrals_ms: tuple[int, int] = (0, 0)
    origin: str = ""
    deadline_ms: int | None = None


STATES = {state.value: state for state in State}
_NO_FACTS = RareFacts()
_facts_decoder = msgspec.json.Decoder(RareFacts)


class RecordRow(msgspec.Struct):
    """A job's record, changed in place.

    `queued` is the number of copies of the job in queues that are counted as produced or adopted. A claim that finds
    it at zero has claimed a copy that another program pushed, and counts it as adopted."""

    id: str
    state: str
    raw: bytes
    queue: str
    queued: int = 0
    slot: str = msgspec.field(default="", name="worker")
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
    deferred: str = ""
    deferred_count: int = 0
    moved_to: bytes = b""
    after: bytes = b""  # JSON, empty if it names no job
    since_ms: int = 0
    extra: bytes = b""  # RareFacts as JSON, empty if there are none
    batch: str = ""  # the batch it is a member of. Must stay the last field but one: see SAVE_RECORD
    member: int | None = None  # a MemberState while the batch counts it as unfinished or dead

    def add_attempt(self, attempt: Attempt) -> None:
        self.attempt_count += 1
        self.attempts = _encoder.encode([*_attempts_decoder.decode(self.attempts), attempt][-ATTEMPTS_KEPT:])

    @property
    def facts(self) -> RareFacts:
        return _facts_decoder.decode(self.extra) if self.extra else _NO_FACTS

    def change_facts(self, **changes: Any) -> None:
        facts = msgspec.structs.replace(self.facts, **changes)
        self.extra = b"" if facts == _NO_FACTS else _encoder.encode(facts)

    @property
    def is_protected(self) -> bool:
        """Whether other bytes than its own never touch it: it is that of a job of fileq's own or of a member."""
        return bool(self.batch or (self.extra and self.facts.origin))

    def is_about(self, raw: bytes) -> bool:
        """Whether these bytes are those of its job. If it is not protected, every copy is."""
        return self.raw == raw or not self.is_protected

    def view(self) -> Record:
        facts = self.facts
        return Record(
            id=self.id,
            state=State(self.state),
            raw=self.raw,
            queue=self.queue,
            slot=self.slot,
            created_ms=self.created_ms,
            started_ms=self.started_ms,
            ended_ms=self.ended_ms,
            due_ms=self.due_ms,
            since_ms=self.since_ms,
            error=self.error,
            result=self.result,
            attempts=tuple(_attempts_decoder.decode(self.attempts)),
            attempt_count=self.attempt_count,
            is_cancel_requested=bool(self.is_cancel_requested),
            queued=self.queued,
            deferred=self.deferred,
            deferred_count=self.deferred_count,
            deferrals_ms=facts.deferrals_ms,
            moved_to=self.moved_to,
            after=self.jobs_before,
            waits_for=facts.waits_for,
            unique_key=facts.unique_key,
            follow_ups=facts.follow_ups,
            outputs=facts.outputs,
            batch=self.batch,
            fingerprint=facts.fingerprint,
            origin=facts.origin,
            deadline_ms=facts.deadline_ms,
        )

    @property
    def jobs_before(self) -> tuple[str, ...]:
        return _ids_decoder.decode(self.after) if self.after else ()

    @jobs_before.setter
    def jobs_before(self, ids: tuple[str, ...]) -> None:
        self.after = _encoder.encode(ids) if ids else b""


class SlotRow(msgspec.Struct):
    """A slot: its registry entry, the job it holds, its heartbeat and its last settlement."""

    slot: str
    info: bytes | None = None  # None while the slot is not registered
    raw: bytes | None = msgspec.field(default=None, name="held")
    boot: str = ""
    alive_until_ms: int = 0  # on the monotonic clock of that boot
    token: int = 0  # of its last claim
    settled_token: int | None = msgspec.field(default=None, name="settled")
    gone_ms: int = 0

    def is_alive(self, boot: str, monotonic_ms: int) -> bool:
        return self.boot == boot and self.alive_until_ms > monotonic_ms

    def left_ms(self, boot: str, monotonic_ms: int) -> int:
        """Until its heartbeat ends; 0 if that has ended."""
        return self.alive_until_ms - monotonic_ms if self.is_alive(boot, monotonic_ms) else 0

    def next_token(self) -> int:
        self.token += 1
        return self.token

    def forget(self, now_ms: int) -> None:
        """Clears everything but the token: a slot registered again under this id must not use a token twice."""
        self.info = self.raw = self.settled_token = None
        self.boot, self.alive_until_ms, self.gone_ms = "", 0, now_ms


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


def process_of(info: bytes) -> ProcessId:
    """The process in the registry entry of a slot."""
    return _process_decoder.decode(info)


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


def claim_of(slot: str, raw: bytes, find: Callable[[str], RecordRow | None], *, queue: str, token: int = 0) -> Claim:
    """The claim of a slot that holds these bytes. Without a record the claim's queue is `queue`."""
    try:
        job = decode(raw)
    except Undecodable as defect:
        return Claim(slot, token, queue, raw, None, defect=str(defect))
    record = find(job.id)
    if record is None:
        return Claim(slot, token, queue, raw, job, job.id)
    return Claim(slot, token, record.queue, raw, job, job.id, record.started_ms)


# Ledger entries as they are in their table: JSON, which older releases read too.


class _MarkedEntry(msgspec.Struct, frozen=True):
    """A LedgerEntry with short signatures, and their marks in a field that older releases ignore."""

    versions: tuple[tuple[str, str], ...]
    missing_since_ms: int
    device: str
    marks: tuple[str, ...] = ()


_ledger_encoder = msgspec.json.Encoder()
_decoder = msgspec.json.Decoder(_MarkedEntry)


def encode_ledger_entry(entry: LedgerEntry) -> bytes:
    versions, marks = split_marks(entry.versions)
    if not marks:
        return _ledger_encoder.encode(entry)
    return _ledger_encoder.encode(_MarkedEntry(versions, entry.missing_since_ms, entry.device, tuple(marks)))


def decode_ledger_entry(row: bytes) -> LedgerEntry:
    stored = _decoder.decode(row)
    versions = join_marks(stored.versions, stored.marks) if stored.marks else stored.versions
    return LedgerEntry(versions, stored.missing_since_ms, stored.device)
