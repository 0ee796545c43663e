"""One job as operators see it: its stored bytes combined with its record, and the short form of its id.

Tables show the first characters of an id, and commands accept them; only resolve_ids() asks a broker for it. Only ids
that fileq makes have a short form: uuids and raw-<sha1>. An id that a caller chose is shown and given in full, because
it may be the beginning of another one (`report-1`, `report-10`).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import msgspec
from msgspec import UNSET, Raw, Struct

from fileq.brokers.protocol import FullBroker
from fileq.brokers.types import Attempt, Record
from fileq.core.batch import BatchFacts, facts_of
from fileq.core.errors import ConfigError, Undecodable
from fileq.core.fingerprint import fingerprint
from fileq.core.job import Job, State, decode, decode_or_none, parse_time, raw_id, stamp
from fileq.core.text import printable


class JobSummary(Struct, frozen=True):
    """A job in a list. Bytes that are not a job have the id raw-<sha1>, a size, and the reason in `error`."""

    id: str
    state: str
    queue: str
    filepath: str
    filesize: int
    type: str | None
    priority: str
    retries: int
    recoveries: int
    attempts: int
    error: str
    worker: str
    created: str | None
    started: str | None
    ended: str | None
    due: str | None
    is_job: bool = True
    deferred: str = ""
    deferred_count: int = 0
    first_deferred: str | None = None
    last_deferred: str | None = None
    moved_to: str = ""
    output: str = ""
    moved_from: str = ""
    fingerprint: str = ""


class AttemptSummary(Struct, frozen=True):
    """`deferred` is why the job was deferred last before this attempt. `is_fatal`: the job died of it."""

    number: int
    started: str | None
    ended: str | None
    duration_s: float
    worker: str
    outcome: str
    error: str
    traceback: str = ""
    output: str = ""
    deferred: str = ""
    is_fatal: bool = False


class OutputSummary(Struct, frozen=True):
    """A file that a job made, as it was when the job ended."""

    path: str
    size: int
    signature: str


class JobHistory(Struct, frozen=True):
    """Everything known about one job."""

    job: JobSummary
    json: Any  # the job's own JSON; null for bytes that are not a job
    raw_b64: str | None  # those bytes, empty if the record does not have them; null for a job
    signature: str | None
    is_cancel_requested: bool
    result: Any
    attempts: tuple[AttemptSummary, ...]
    attempts_forgotten: int
    payload: Any = None
    waits_for: tuple[str, ...] = ()
    parent_id: str | None = None
    follow_ups: tuple[str, ...] = ()
    outputs: tuple[OutputSummary, ...] = ()
    batch: str = ""  # the id of the batch that it is a member of
    batch_facts: BatchFacts | None = None  # of a callback


def id_in(raw: bytes) -> str:
    job = decode_or_none(raw)
    return job.id if job is not None else raw_id(raw)


def summarize(raw: bytes, record: Record | None, *, state: State, queue: str = "") -> JobSummary:
    """Combines the stored bytes with the record. `state` and `queue` follow from the place that holds the bytes."""
    try:
        job = decode(raw)
    except Undecodable as defect:
        return _summarize_bytes(raw, record, str(defect), state, queue)
    return JobSummary(
        id=job.id,
        state=state.value,
        queue=(record.queue if record is not None else "") or queue or job.priority,
        filepath=job.filepath,
        filesize=job.filesize,
        type=job.type,
        priority=job.priority,
        retries=job.retries,
        recoveries=job.recoveries,
        attempts=record.attempt_count if record is not None else 0,
        error=job.error or (record.error if record is not None else ""),
        worker=record.slot if record is not None else "",
        created=stamp(created_ms(job, record)),
        started=stamp(record.started_ms) if record is not None else None,
        ended=stamp(record.ended_ms) if record is not None else job.failed_at,
        due=stamp(record.due_ms) if record is not None else None,
        deferred=record.deferred if record is not None and state is State.DEFERRED else "",
        deferred_count=record.deferred_count if record is not None else 0,
        first_deferred=stamp(record.deferrals_ms[0]) if record is not None else None,
        last_deferred=stamp(record.deferrals_ms[1]) if record is not None else None,
        moved_to=record.moved_to.decode(errors="backslashreplace") if record is not None else "",
        output=record.attempts[-1].output if record is not None and record.attempts and state is State.DEAD else "",
        moved_from=job.moved_from or "",
        fingerprint=_of_dead(job, record, state, job.error or (record.error if record is not None else "")),
    )


def fingerprint_of(job: Job | None, record: Record | None, error: str) -> str:
    """The fingerprint of a dead job. For a job that an older release buried it is computed here; if that is
    the job of a file, without the name of the route, which is unknown."""
    if record is not None and record.fingerprint:
        return record.fingerprint
    if job is None:
        return fingerprint(error)
    traceback = record.attempts[-1].traceback if record is not None and record.attempts else ""
    return fingerprint(error, job.type or "", traceback, job.filepath)


def _of_dead(job: Job | None, record: Record | None, state: State, error: str) -> str:
    return fingerprint_of(job, record, error) if state is State.DEAD else ""


def created_ms(job: Job | None, record: Record | None) -> int:
    """When the job was created: by its record, else by its own bytes; 0 if neither says it."""
    if record is not None:
        return record.created_ms
    return _ms(job.creation_time) if job is not None else 0


def _summarize_bytes(raw: bytes, record: Record | None, defect: str, state: State, queue: str) -> JobSummary:
    error = (record.error if record is not None else "") or defect
    return JobSummary(
        id=record.id if record is not None else raw_id(raw),  # the record may not have the bytes
        state=state.value,
        queue=record.queue if record is not None else queue,
        filepath="",
        filesize=len(raw),
        type=None,
        priority="",
        retries=0,
        recoveries=0,
        attempts=record.attempt_count if record is not None else 0,
        error=error,
        worker=record.slot if record is not None else "",
        created=stamp(record.created_ms) if record is not None else None,
        started=stamp(record.started_ms) if record is not None else None,
        ended=stamp(record.ended_ms) if record is not None else None,
        due=None,
        is_job=False,
        fingerprint=_of_dead(None, record, state, error),
    )


def history(record: Record, waits_for: tuple[str, ...] = ()) -> JobHistory:
    """`waits_for` is what keeps a waiting job from running."""
    import base64

    job = decode_or_none(record.raw)
    return JobHistory(
        job=summarize(record.raw, record, state=record.state, queue=record.queue),
        json=_fields(record.raw) if job is not None else None,
        raw_b64=None if job is not None else base64.b64encode(record.raw).decode(),
        signature=job.version if job is not None else None,
        is_cancel_requested=record.is_cancel_requested,
        result=_result(record.result),
        attempts=attempts_of(record),
        attempts_forgotten=record.attempt_count - len(record.attempts),
        payload=_payload(job),
        waits_for=waits_for,
        parent_id=job.parent_id if job is not None else None,
        follow_ups=record.follow_ups,
        outputs=tuple(OutputSummary(_shown(one.path), one.size, one.signature) for one in record.outputs),
        batch=record.batch,
        batch_facts=facts_of(job) if job is not None else None,
    )


def _shown(path: bytes) -> str:
    return path.decode(errors="backslashreplace")


def attempts_of(record: Record) -> tuple[AttemptSummary, ...]:
    first = record.attempt_count - len(record.attempts) + 1
    return tuple(_attempt(n, attempt) for n, attempt in enumerate(record.attempts, first))


def _duration_s(attempt: Attempt) -> float:
    """As the worker measured and logged it. A reaper, or a worker of an earlier version, left no duration. Then it is
    from the claim to the settlement, by the broker's clock."""
    if attempt.duration_ms is not None:
        return attempt.duration_ms / 1000
    return max(0, attempt.ended_ms - attempt.started_ms) / 1000 if attempt.started_ms else 0.0


def _attempt(number: int, attempt: Attempt) -> AttemptSummary:
    return AttemptSummary(
        number=number,
        started=stamp(attempt.started_ms),
        ended=stamp(attempt.ended_ms),
        duration_s=_duration_s(attempt),
        worker=attempt.slot,
        outcome=attempt.outcome,
        error=attempt.error,
        traceback=attempt.traceback,
        output=attempt.output,
        deferred=attempt.deferred,
        is_fatal=attempt.is_fatal,
    )


def _payload(job: Job | None) -> Any:
    return _value(job.payload) if job is not None and job.payload is not UNSET else None


def _result(result: bytes) -> Any:
    return _value(result) if result else None


def _fields(raw: bytes) -> Any:
    """The JSON of a job as values."""
    try:
        return msgspec.json.decode(raw)
    except (msgspec.DecodeError, ValueError):
        return {name: _value(value) for name, value in msgspec.json.decode(raw, type=dict[str, Raw]).items()}


def _value(json: bytes | Raw) -> Any:
    """The value of this JSON. One that Python can't hold, such as the number 1e999, is shown as its text."""
    try:
        return msgspec.json.decode(json)
    except (msgspec.DecodeError, ValueError):
        return bytes(json).decode(errors="backslashreplace")


def waiting_since_ms(raw: bytes) -> int | None:
    """Since when the job in these bytes is ready: its creation or due time; None if the bytes are not a job."""
    job = decode_or_none(raw)
    if job is None:
        return None
    return max(_ms(job.creation_time), _ms(job.process_at or "")) or None


def _ms(text: str) -> int:
    moment = parse_time(text)
    return int(moment.timestamp() * 1000) if moment is not None else 0


def file_place(record: Record) -> bytes:
    """Where the file of a job is: it may have been moved after this job, or before it, if the job was enqueued for the
    moved file. b"" for a job without a file."""
    job = decode_or_none(record.raw)
    return record.moved_to or (job.path if job is not None else b"")


SHOWN = 8  # hex digits in a table
_FEWEST = 4  # hex digits of a prefix
_CANDIDATES_SHOWN = 5
_MADE = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}|raw-[0-9a-f]{40}")
_PREFIX = re.compile(rf"(?=(?:[0-9a-f]-?){{{_FEWEST}}})[0-9a-f-]{{{_FEWEST},35}}|raw-[0-9a-f]{{{_FEWEST},39}}")


def short_ids(ids: Iterable[str]) -> dict[str, str]:
    """Each id as a table shows it: shortened to 8 digits, or as many as distinguish it from the others."""
    made = sorted({id for id in ids if _MADE.fullmatch(id)})
    short = {id: id for id in ids}
    for i, id in enumerate(made):
        neighbours = [*made[max(0, i - 1) : i], *made[i + 1 : i + 2]]
        shared = max((_shared(id, other) for other in neighbours), default=0)
        short[id] = id[: max(shared + 1, SHOWN + 4 * id.startswith("raw-"))].rstrip("-")
    return short


def looks_like_id(text: str) -> bool:
    """Whether this may be an id that fileq made, or the beginning of one."""
    return bool(_MADE.fullmatch(text) or _PREFIX.fullmatch(text))


def why_unknown(id: str) -> str:
    """Why no job was found by this id, and what to do about it."""
    if re.fullmatch(rf"(?:raw-)?[0-9a-f]{{1,{_FEWEST - 1}}}", id):
        return f"{id!r} is too short; give at least {_FEWEST} characters of the id"
    advice = "for a file: 'fileq trace PATH'" if "/" in id or "." in id else "see 'fileq list'"
    return f"job {id!r} is unknown: it never existed, or its record has expired; {advice}"


def _shared(one: str, other: str) -> int:
    """How many characters two ids have in common from the start."""
    return next((i for i, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), min(len(one), len(other)))


def resolve_ids(broker: FullBroker, given: Sequence[str], *, places: Sequence[str] = ()) -> list[str]:
    """The full ids. ConfigError if one is the beginning of several ids; an id that is not found is left as it is.

    Reads the ids of all records, and the jobs in `places`, only if an id looks like a beginning and has no record."""
    unknown = [id for id, record in zip(given, broker.records(given), strict=True) if record is None]
    prefixes = {id for id in unknown if _PREFIX.fullmatch(id)}
    if not prefixes:
        return list(given)
    found: dict[str, set[str]] = {prefix: set() for prefix in prefixes}
    for id in _all_ids(broker, places):
        if _MADE.fullmatch(id):
            for prefix in prefixes:
                if id.startswith(prefix):
                    found[prefix].add(id)
    if problems := [_ambiguous(prefix, sorted(ids)) for prefix, ids in sorted(found.items()) if len(ids) > 1]:
        raise ConfigError(problems)
    return [next(iter(found.get(id, ())), id) for id in given]


def _all_ids(broker: FullBroker, places: Sequence[str]) -> Iterator[str]:
    for page in broker.ids():
        yield from page
    for place in places:
        for raws in broker.pages(place):
            yield from map(id_in, raws)


def _ambiguous(prefix: str, ids: Sequence[str]) -> str:
    more = f" and {len(ids) - _CANDIDATES_SHOWN} more" if len(ids) > _CANDIDATES_SHOWN else ""
    candidates = ", ".join(map(printable, ids[:_CANDIDATES_SHOWN]))
    return f"{prefix!r} is the beginning of {len(ids)} ids: {candidates}{more}; give more characters"
