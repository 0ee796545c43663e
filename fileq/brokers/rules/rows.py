"""Records and slots as a backing keeps them: flat values that the verbs change in place.

Long or rare facts are kept encoded, so that a backing with columns reads and writes them as they are.
"""

from __future__ import annotations

import enum
from operator import attrgetter
from typing import Any

import msgspec

from fileq.brokers.local_processes import ProcessId
from fileq.brokers.types import ATTEMPTS_KEPT, Attempt, Record, WorkerInfo
from fileq.core.job import State
from fileq.core.outcome import Output

_encoder = msgspec.json.Encoder()
_attempts_decoder = msgspec.json.Decoder(list[Attempt])
_info_decoder = msgspec.json.Decoder(WorkerInfo)
_process_decoder = msgspec.json.Decoder(ProcessId)
STATES = {state.value: state for state in State}
_ids_decoder = msgspec.json.Decoder(tuple[str, ...])


class MemberState(enum.IntEnum):
    UNFINISHED = 0
    DEAD = 1
    KNOWN = 2  # it had ended when it joined


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


_NO_FACTS = RareFacts()
_facts_decoder = msgspec.json.Decoder(RareFacts)


def facts_in(extra: bytes) -> RareFacts:
    return _facts_decoder.decode(extra) if extra else _NO_FACTS


class RecordRow(msgspec.Struct):
    """A job's record, changed in place. Where a field's name differs from its column, its wire name is the column.

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
        return facts_in(self.extra)

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

    def replace_by(self, record: Record) -> None:
        """Takes over what is known of the job; its place, its due time and its copies are the caller's."""
        self.state, self.slot = record.state.value, record.slot
        self.error, self.result, self.batch = record.error, record.result, record.batch
        self.created_ms, self.started_ms, self.ended_ms = record.created_ms, record.started_ms, record.ended_ms
        self.attempts, self.attempt_count = _encoder.encode(record.attempts), record.attempt_count
        self.change_facts(**{name: getattr(record, name) for name in RareFacts.__struct_fields__})

    def view(self) -> Record:
        fields: dict[str, Any] = dict(zip(_SHARED, _shared_of(self), strict=True))
        fields["state"] = STATES[self.state]
        fields["attempts"] = tuple(_attempts_decoder.decode(self.attempts))
        fields["is_cancel_requested"] = bool(self.is_cancel_requested)
        fields["after"] = self.jobs_before
        return Record(**fields, **msgspec.structs.asdict(self.facts)) if self.extra else Record(**fields)

    @property
    def jobs_before(self) -> tuple[str, ...]:
        return _ids_decoder.decode(self.after) if self.after else ()

    @jobs_before.setter
    def jobs_before(self, ids: tuple[str, ...]) -> None:
        self.after = _encoder.encode(ids) if ids else b""


_SHARED = [name for name in Record.__struct_fields__ if name in RecordRow.__struct_fields__]
_shared_of = attrgetter(*_SHARED)


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

    @property
    def is_registered(self) -> bool:
        return self.info is not None

    @property
    def worker(self) -> WorkerInfo:
        """The registry entry of a registered slot."""
        return _info_decoder.decode(self.info or b"")

    @property
    def process(self) -> ProcessId:
        """The process in the registry entry of a registered slot."""
        return _process_decoder.decode(self.info or b"")

    def next_token(self) -> int:
        self.token += 1
        return self.token

    def forget(self, now_ms: int) -> None:
        """Clears everything but the token: a slot registered again under this id must not use a token twice."""
        self.info = self.raw = self.settled_token = None
        self.boot, self.alive_until_ms, self.gone_ms = "", 0, now_ms
