"""Records and ledger entries as bytes.

Owns the formats on the Python side; the scripts own the other side. Workers of other versions read the same records and
ledger entries: their formats never change.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from fileq.brokers.types import Attempt, LedgerEntry, Record
from fileq.core.job import State
from fileq.core.outcome import Output

MISSING, SEEN_ON = "missing", "on"
_MISSING_LINE = f"\n{MISSING} ".encode()
ENDED = "%ended "  # before the id of a job that must have ended; as in lua/prelude/ledger.lua

_attempt_decoder = msgspec.json.Decoder(Attempt)
_outputs_decoder = msgspec.json.Decoder(tuple[Output, ...])


STATES: Mapping[bytes, State] = {state.value.encode(): state for state in State}
# The names that fields of Record have in the hash, by the type of their values.
_NUMBERS = {
    **{f"{name}_ms": name.encode() for name in ("created", "started", "ended", "due", "since")},
    **{"attempt_count": b"attempts", "deferred_count": b"deferred_count", "queued": b"queued"},
}
_WORDS = {"slot": b"worker"} | {
    name: name.encode() for name in ("queue", "error", "deferred", "unique_key", "batch", "fingerprint", "origin")
}
# An outline has only these.
OUTLINE_FIELDS = (
    *("state", "queue", "worker", "created", "started", "ended", "due", "since", "error", "attempts", "cancel"),
    *("deferred", "deferred_count", "moved_to", "fingerprint", "batch"),
)


def as_outline(id: str, values: Sequence[bytes | None]) -> Record | None:
    found = zip(OUTLINE_FIELDS, values, strict=True)
    return as_record(id, {name.encode(): value for name, value in found if value is not None})


def as_record(id: str, fields: Mapping[bytes, bytes]) -> Record | None:
    """None if there is no record."""
    if (state := fields.get(b"state")) is None:
        return None
    flat: dict[str, Any] = {name: int(fields.get(key, b"0")) for name, key in _NUMBERS.items()}
    flat |= {name: fields.get(key, b"").decode(errors="replace") for name, key in _WORDS.items()}
    after, waits_for = _unpack_after(fields.get(b"after", b"").decode(errors="replace"))
    attempts = (fields.get(b"attempt:%d" % n) for n in range(1, flat["attempt_count"] + 1))
    follow_ups = fields.get(b"follow_ups", b"").decode(errors="replace").split("\n")
    return Record(
        id=id,
        state=STATES[state],
        raw=fields.get(b"json", b""),
        result=fields.get(b"result", b""),
        attempts=tuple(_attempt_decoder.decode(a) for a in attempts if a is not None),
        is_cancel_requested=fields.get(b"cancel") == b"1",
        deferrals_ms=(int(fields.get(b"deferred_first", b"0")), int(fields.get(b"deferred_last", b"0"))),
        moved_to=fields.get(b"moved_to", b""),
        after=after,
        waits_for=waits_for,
        follow_ups=tuple(from_one_line(line) for line in follow_ups if line),
        outputs=_outputs_decoder.decode(fields[b"outputs"]) if b"outputs" in fields else (),
        deadline_ms=int(fields[b"deadline"]) if b"deadline" in fields else None,
        **flat,
    )


def _unpack_after(text: str) -> tuple[tuple[str, ...], str]:
    """The ids of earlier jobs of the same file, and the id of the job that must have ended."""
    lines = [line for line in text.split("\n") if line]
    awaited = [from_one_line(line.removeprefix(ENDED)) for line in lines if line.startswith(ENDED)]
    return tuple(from_one_line(line) for line in lines if not line.startswith(ENDED)), "".join(awaited)


def pack_ledger(entry: LedgerEntry) -> bytes:
    """As lua/prelude/ledger.lua describes it."""
    lines = [f"{signature} {in_one_line(job_id)}" for signature, job_id in entry.versions]
    if entry.missing_since_ms:
        lines.append(f"{MISSING} {entry.missing_since_ms} {entry.device}")
    elif entry.device:
        lines.append(f"{SEEN_ON} {entry.device}")
    return "".join(f"{line}\n" for line in lines).encode()


def in_one_line(id: str) -> str:
    """The id without line breaks, which another program's id may contain; lua/prelude/ledger.lua does the same."""
    return id.replace("%", "%25").replace("\n", "%0A")


def from_one_line(id: str) -> str:
    """The id from its form in one line."""
    return id.replace("%0A", "\n").replace("%25", "%")


def is_newest(value: bytes, signature: bytes) -> bool:
    """LedgerEntry.is_newest() of a packed entry. A scan asks this for every file, so nothing is unpacked."""
    return value.startswith((signature + b" ", signature + b"-c")) and _MISSING_LINE not in value


def unpack_ledger(value: bytes) -> LedgerEntry:
    versions = []
    missing_since_ms, device = 0, ""
    for line in value.decode().split("\n")[:-1]:
        first, _, rest = line.partition(" ")
        if first == MISSING:
            since, _, device = rest.partition(" ")
            missing_since_ms = int(since)
        elif first == SEEN_ON:
            device = rest
        else:
            versions.append((first, from_one_line(rest)))
    return LedgerEntry(tuple(versions), missing_since_ms, device)
