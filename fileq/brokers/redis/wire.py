"""How our values travel to the scripts and back: settlements, claims, records and ledger lines as bytes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache

import msgspec

from fileq.brokers import wire_events
from fileq.brokers.redis.names import Names
from fileq.brokers.types import Attempt, LedgerEntry, Record
from fileq.core.claim import Claim
from fileq.core.errors import Undecodable
from fileq.core.job import State, decode
from fileq.core.settlement import Settlement, Verb

MISSING, SEEN_ON = "missing", "on"

_attempt_decoder = msgspec.json.Decoder(Attempt)
_encoder = msgspec.json.Encoder()


def settlement_keys(s: Settlement, names: Names) -> tuple[str, str, str]:
    claim = s.claim
    processing, heartbeat = names.of_slot(claim.slot)
    return processing, heartbeat, names.records + (claim.job.id if claim.job is not None else _odd_id(s))


def _odd_id(s: Settlement) -> str:
    """Bytes that are no job are released under the id the claim saw in them, and buried under their own."""
    if s.verb is Verb.RELEASE and s.claim.record_id is not None:
        return s.claim.record_id
    return s.claim.id


def settlement_args(s: Settlement, names: Names, *, asks_next: bool = False) -> tuple[bytes | str | int, ...]:
    """In the order of the prelude. Most settlements of a busy day are plain completions, and say no more than that."""
    claim = s.claim
    flags = "n" if asks_next else ""
    is_odd = claim.job is None or s.verb is Verb.RETRY or s.error or s.died or s.superseded or s.leaves is not None
    is_odd = is_odd or s.next_raw != claim.raw
    if is_odd:
        flags += _odd_flags(s)
    number, tail, event = names.number[claim.queue], _attempt_tail(s), wire_events.settled(s)
    common = (claim.slot, claim.token, claim.raw, claim.id, number, flags, s.result, tail, event)
    return (*common, *_more(s)) if is_odd else common


def _odd_flags(s: Settlement) -> str:
    is_stranger = s.claim.job is None and s.claim.record_id is None
    facts = {"d": s.died, "r": s.refused, "s": s.superseded, "u": is_stranger}
    return "x" + "".join(letter for letter, is_so in facts.items() if is_so)


def _more(s: Settlement) -> tuple[bytes | str | int, ...]:
    is_shadowed = s.claim.job is None and s.verb is Verb.BURY
    file = (s.leaves.path, s.leaves.signature, s.leaves.device) if s.leaves else (b"", "", "")
    error = s.error.encode(errors="backslashreplace")
    return s.next_raw, error, s.kind, s.delay_ms, (s.claim.record_id or "") if is_shadowed else "", *file


def _attempt_tail(s: Settlement) -> bytes:
    """The attempt as JSON from its worker on: the script puts the server's times before it."""
    plain = _plain_tail(s.claim.slot, s.outcome)
    return plain + b',"error":' + _encoder.encode(s.error) if s.error else plain


@lru_cache(maxsize=1024)
def _plain_tail(slot: str, outcome: str) -> bytes:
    return _encoder.encode({"worker": slot, "outcome": outcome})[1:-1]


def as_claim(row: Sequence[bytes], token: int, names: Names) -> Claim:
    """slot, queue's number, raw, id, started: as claim.lua and renew.lua tell of a held job."""
    slot, number, raw, id, started = row
    queue = names.queue_names[int(number) - 1]  # 0 is unknown, and so the last
    seen = id.decode(errors="replace") or None
    try:
        job = decode(raw)
        if job.id != seen:
            raise Undecodable(f"not a job: its id can be read as {seen!r} and as {job.id!r}")
    except Undecodable as defect:
        return Claim(slot.decode(), token, queue, raw, None, seen, int(started), str(defect))
    return Claim(slot.decode(), token, queue, raw, job, job.id, int(started))


def as_record(id: str, fields: Mapping[bytes, bytes]) -> Record:
    def number(name: bytes) -> int:
        return int(fields.get(name, b"0"))

    def word(name: bytes) -> str:
        return fields.get(name, b"").decode(errors="replace")

    count = number(b"attempts")
    attempts = (fields.get(b"attempt:%d" % n) for n in range(1, count + 1))
    return Record(
        id=id,
        state=State(word(b"state")),
        raw=fields.get(b"json", b""),
        queue=word(b"queue"),
        slot=word(b"worker"),
        created_ms=number(b"created"),
        started_ms=number(b"started"),
        ended_ms=number(b"ended"),
        due_ms=number(b"due"),
        error=word(b"error"),
        result=fields.get(b"result", b""),
        attempts=tuple(_attempt_decoder.decode(a) for a in attempts if a is not None),
        attempt_count=count,
        is_cancel_requested=fields.get(b"cancel") == b"1",
    )


def pack_ledger(entry: LedgerEntry) -> bytes:
    lines = [f"{signature} {_one_line(job_id)}" for signature, job_id in entry.versions]
    if entry.missing_since_ms:
        lines.append(f"{MISSING} {entry.missing_since_ms} {entry.device}")
    elif entry.device:
        lines.append(f"{SEEN_ON} {entry.device}")
    return "".join(f"{line}\n" for line in lines).encode()


def _one_line(id: str) -> str:
    """Another program's id may hold anything; the prelude writes it the same way."""
    return id.replace("%", "%25").replace("\n", "%0A")


def unpack_ledger(value: bytes) -> LedgerEntry:
    versions = []
    since, device = 0, ""
    for line in value.decode().split("\n")[:-1]:
        first, _, rest = line.partition(" ")
        if first == MISSING:
            moment, _, device = rest.partition(" ")
            since = int(moment)
        elif first == SEEN_ON:
            device = rest
        else:
            versions.append((first, rest.replace("%0A", "\n").replace("%25", "%")))
    return LedgerEntry(tuple(versions), since, device)
