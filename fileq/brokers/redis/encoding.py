"""How values travel to the scripts and back: settlements, claims, records and ledger entries as bytes.

Owns the formats on the Python side; the scripts own the other side. Workers of other versions read the same records and
ledger entries: their formats never change.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any

import msgspec

from fileq.brokers import wire_events
from fileq.brokers.redis.keys import Keys
from fileq.brokers.redis.scripts import Argument
from fileq.brokers.types import Attempt, Entry, LedgerEntry, Record, entry_of
from fileq.core.errors import Undecodable
from fileq.core.job import Claim, State, Version, decode, encode, first_id
from fileq.core.outcome import FollowUp, Output
from fileq.core.own_jobs import origin_of
from fileq.core.settlement import Settlement, Verb

MISSING, SEEN_ON = "missing", "on"
_MISSING_LINE = f"\n{MISSING} ".encode()
COMPLETED = "completed"  # the outcome

ENDED = "%ended "  # before the id of a job that must have ended; as in lua/prelude/ledger.lua

_attempt_decoder = msgspec.json.Decoder(Attempt)
_outputs_decoder = msgspec.json.Decoder(tuple[Output, ...])
_encoder = msgspec.json.Encoder()


def settlement_keys(s: Settlement, keys: Keys) -> tuple[str, ...]:
    claim = s.claim
    processing, heartbeat = keys.of_slot(claim.slot)
    record = keys.records + (claim.job.id if claim.job is not None else _undecodable_id(s))
    order = (keys.orders,) if s.order else ()
    if s.follow_ups or s.outputs:
        return (processing, heartbeat, record, *order, *extra_keys(s.follow_ups, keys, s.outputs))
    return (processing, heartbeat, record, *order)


def _undecodable_id(s: Settlement) -> str:
    """Bytes that are no job are released under the id that the claim script read from them, and buried under an id made
    of the bytes."""
    if s.verb is Verb.RELEASE and s.claim.record_id is not None:
        return s.claim.record_id
    return s.claim.id


def settlement_args(s: Settlement, keys: Keys, *, is_claiming: bool = False) -> tuple[Argument, ...]:
    """In the order of lua/prelude/settlements.lua. A plain completion, the usual case, sends the short form."""
    claim, is_plain = s.claim, _is_plain(s)
    flags = "n" if is_claiming else ""
    if not is_plain:
        flags += _long_flags(s)
    if s.order:
        flags += "o"
    if s.follow_ups or s.outputs:
        flags += "f"
    duration: Argument = b"" if s.duration_ms is None else s.duration_ms
    result = s.result if s.verb is not Verb.BURY else s.fingerprint
    form = f"{keys.queue_numbers[claim.queue]}{flags}"
    short = (claim.slot, claim.token, claim.raw, form, result, duration)
    if is_plain and not s.order and "f" not in flags:
        return short
    more = () if is_plain else _long_args(s)
    if s.order:
        more = (*more, s.order)
    if "f" in flags:
        more = (*more, *extra_args(s.follow_ups, keys, s.outputs))
    return (*short, *more)


def _is_plain(s: Settlement) -> bool:
    """A completion of which the script knows everything else: it makes the attempt and the event itself."""
    is_usual = s.verb is Verb.COMPLETE and s.claim.job is not None and s.next_raw == s.claim.raw and s.leaves is None
    return is_usual and s.outcome == COMPLETED and not s.error and _is_plain_text(s.claim.slot)


@lru_cache(maxsize=1024)
def _is_plain_text(text: str) -> bool:
    """Whether it is the same in JSON."""
    return _encoder.encode(text) == f'"{text}"'.encode()


def _long_flags(s: Settlement) -> str:
    has_no_id = s.claim.job is None and s.claim.record_id is None
    facts = {"d": s.died, "r": s.refused, "s": s.superseded, "u": has_no_id}
    return "x" + "".join(letter for letter, is_so in facts.items() if is_so)


def _long_args(s: Settlement) -> tuple[Argument, ...]:
    mistaken_id = (s.claim.record_id or "") if s.claim.job is None else ""
    version = (s.leaves.path, s.leaves.signature, s.leaves.device) if s.leaves else (b"", "", "")
    error = (s.error or s.reason).encode(errors="backslashreplace")
    event = wire_events.settled(s)
    return s.claim.id, _attempt_tail(s), event, s.next_raw, error, s.kind, s.delay_ms, mistaken_id, *version


def _attempt_tail(s: Settlement) -> bytes:
    """The attempt as JSON from `,"worker"` on: the script puts the server's times before it."""
    tail = _plain_tail(s.claim.slot, s.outcome)
    if s.duration_ms is not None:
        tail += b',"duration_ms":%d' % s.duration_ms
    if s.verb is Verb.BURY:
        tail += b',"is_fatal":true'
    if not s.error:
        return tail
    tail += b',"error":' + _encoder.encode(s.error)
    if s.traceback:
        tail += b',"traceback":' + _encoder.encode(s.traceback)
    return tail + b',"output":' + _encoder.encode(s.output) if s.output else tail


@lru_cache(maxsize=1024)
def _plain_tail(slot: str, outcome: str) -> bytes:
    return b"," + _encoder.encode({"worker": slot, "outcome": outcome})[1:-1]


def as_plain_claim(number: int, raw: bytes, started_ms: int, slot: str, token: int, keys: Keys) -> Claim:
    """A claim of which claim.lua says nothing more than this. The id that it read is the first field."""
    try:
        job = decode(raw)  # claim.lua took the first id in these bytes; decode() refuses bytes with two ids
    except Undecodable:
        return as_claim((number, raw, first_id(raw), started_ms, 0, 0), slot, token, keys)
    return Claim(slot, token, keys.queue_names[number - 1], raw, job, job.id, started_ms)


def as_claim(row: Sequence[Any], slot: str, token: int, keys: Keys) -> Claim:
    """The claim in a row of claim.lua or renew.lua: queue number, raw, id, start time, whether it is blocked, whether
    its batch is cancelled."""
    number, raw, id, started_ms, is_blocked, is_cancelled = row
    queue = keys.queue_names[int(number) - 1]  # 0 is unknown, and selects the last queue
    id_read = id.decode(errors="replace") or None
    try:
        job = decode(raw)
        if job.id != id_read:
            raise Undecodable(f"not a job: its id can be read as {id_read!r} and as {job.id!r}")
    except Undecodable as defect:
        return Claim(slot, token, queue, raw, None, id_read, int(started_ms), str(defect))
    facts = bool(is_blocked), bool(is_cancelled)
    return Claim(slot, token, queue, raw, job, job.id, int(started_ms), "", *facts)


def id_in(raw: bytes) -> str | None:
    """The job's id; None if these bytes are no job."""
    try:
        return decode(raw).id
    except Undecodable:
        return None


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


# How jobs that come in travel to the scripts: entries, follow-ups and outputs, in the order of
# lua/prelude/entries.lua and lua/prelude/follow_ups.lua.


_NO_VERSION = Version(b"", "")
_entry_encoder = msgspec.json.Encoder()


def entry_args(entry: Entry, keys: Keys) -> tuple[Argument, ...]:
    job, version = entry.job, entry.version or _NO_VERSION
    return (
        job.id,
        encode(job),
        keys.queue_numbers[entry.queue],
        version.path,
        version.signature,
        version.device,
        ("a" if entry.always else "") + ("d" if entry.fills_delivery else ""),
        entry.delay_ms,
        entry.at_ms,
        job.unique_key or "",
        (job.batch_id or "") if entry.joins else "",
        origin_of(job) if entry.is_own else "",
        "" if (deadline_ms := job.deadline_ms) is None else deadline_ms,
    )


def is_plain_entry(entry: Entry) -> bool:
    """Whether lua/enqueue_plain.lua can enqueue it."""
    is_due = not entry.delay_ms and not entry.at_ms
    is_special = entry.joins or entry.is_own or entry.job.deadline is not None
    return is_due and entry.version is None and entry.job.unique_key is None and not is_special


def extra_keys(follow_ups: Sequence[FollowUp], keys: Keys, outputs: Sequence[Output] = ()) -> tuple[str, ...]:
    records = (keys.record(follow_up.job.id) for follow_up in follow_ups)
    return keys.unique, *records, *(keys.made(output.path) for output in outputs)


def extra_args(follow_ups: Sequence[FollowUp], keys: Keys, outputs: Sequence[Output] = ()) -> tuple[Argument, ...]:
    args: list[Argument] = [len(follow_ups)]
    for follow_up in follow_ups:
        args += entry_args(entry_of(follow_up), keys)
    return *args, len(outputs), _entry_encoder.encode(outputs) if outputs else b""
