"""Queries about jobs: the next of a queue, jobs by state, the history of a job or a file. Must change nothing."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Iterator, Sequence

import msgspec
from msgspec import Struct

from fileq.brokers.protocol import FullBroker
from fileq.brokers.types import Record
from fileq.commands.admin.job_summary import JobHistory, JobSummary, history, id_in, summarize
from fileq.core.errors import BrokerError, ConfigError
from fileq.core.job import State, decode_or_none

# The places that are not queues, and the state of the jobs in them.
PLACES = {
    "scheduled": State.SCHEDULED,
    "dead_letter": State.DEAD,
    "completed": State.COMPLETED,
    "cancelled": State.CANCELLED,
}
_LISTED = (State.RUNNING, State.PENDING, State.RETRYING, State.SCHEDULED, State.DEAD, State.COMPLETED, State.CANCELLED)


def known_places(queues: Sequence[str]) -> tuple[str, ...]:
    return (*queues, *PLACES)


def place_named(word: str, queues: Sequence[str]) -> str:
    """The place with this name or alias. The name of a queue has precedence over an alias."""
    place = word if word in queues else {"dlq": "dead_letter", "dead": "dead_letter"}.get(word, word)
    if place not in known_places(queues):
        raise ConfigError(f"no queue is named {word!r}; give one of {', '.join(known_places(queues))}")
    return place


def peek(broker: FullBroker, place: str, limit: int) -> tuple[JobSummary, ...]:
    """The jobs that leave a queue or `scheduled` next; the newest of any other place."""
    return tuple(_summaries(broker, broker.peek(place, limit), PLACES.get(place, State.PENDING), place))


def _summaries(broker: FullBroker, raws: Sequence[bytes], state: State, place: str) -> Iterator[JobSummary]:
    queue = "" if place in PLACES else place
    for raw, record in zip(raws, broker.records([id_in(raw) for raw in raws]), strict=True):
        if state is State.SCHEDULED and record is not None and record.state is State.RETRYING:
            yield summarize(raw, record, state=State.RETRYING, queue=queue)
        else:
            yield summarize(raw, record, state=state, queue=queue)


def list_jobs(
    broker: FullBroker, queues: Sequence[str], *, state: State | None, type: str | None, limit: int
) -> tuple[JobSummary, ...]:
    """Jobs of a state (None: all states, running first) and type; waiting jobs in order, ended ones newest first."""
    found: list[JobSummary] = []
    for one in _LISTED if state is None else (state,):
        found += _of_state(broker, queues, one, type, limit - len(found))
        if len(found) >= limit:
            break
    return tuple(found)


def _of_state(
    broker: FullBroker, queues: Sequence[str], state: State, type: str | None, limit: int
) -> Iterator[JobSummary]:
    if state is State.RUNNING:
        raws = [v.raw for v in broker.workers() if v.raw and _is_of_type(v.raw, type)][:limit]
        yield from _summaries(broker, raws, state, "")
    elif state is State.PENDING:
        for queue in queues:
            for job in _first(broker, queue, state, type, limit):
                yield job
                limit -= 1
    elif state in (State.SCHEDULED, State.RETRYING):
        yield from _first(broker, "scheduled", state, type, limit)
    else:
        place = next(place for place, there in PLACES.items() if there is state)
        yield from _newest(broker, place, state, type, limit)


def _first(broker: FullBroker, place: str, state: State, type: str | None, limit: int) -> Iterator[JobSummary]:
    """Jobs in the order in which they leave the place. Only records tell retrying jobs from scheduled ones."""
    for page in broker.pages(place) if limit > 0 else ():
        wanted = [raw for raw in page if _is_of_type(raw, type)]
        for job in _summaries(broker, wanted, PLACES.get(place, state), place):
            if job.state == state.value:
                yield job
                limit -= 1
                if not limit:
                    return


def _newest(broker: FullBroker, place: str, state: State, type: str | None, limit: int) -> Iterator[JobSummary]:
    if type is None:
        raws = broker.peek(place, limit)
    else:
        # Pages come oldest first: keep the last `limit` and reverse them.
        last = deque((raw for page in broker.pages(place) for raw in page if _is_of_type(raw, type)), maxlen=limit)
        raws = list(reversed(last))
    yield from _summaries(broker, raws, state, place)


def _is_of_type(raw: bytes, type: str | None) -> bool:
    if type is None:
        return True
    job = decode_or_none(raw)
    return job is not None and job.type == type


def show(broker: FullBroker, id: str) -> JobHistory:
    """Everything known about one job."""
    [record] = broker.records([id])
    if record is None:
        raise BrokerError(f"job {id!r} is unknown: it never existed, or its record has expired; see 'fileq list'")
    return history(record)


class VersionTrace(Struct, frozen=True):
    """One version of a file. `job` is null if its job has ended and the record has expired."""

    signature: str | None
    job_id: str
    is_newest: bool
    is_in_ledger: bool
    size: int | None
    modified_ns: int | None
    job: JobHistory | None


class FileTrace(Struct, frozen=True):
    filepath: str
    missing_since_ms: int
    versions: tuple[VersionTrace, ...]


def trace(broker: FullBroker, path: bytes) -> FileTrace:
    """Everything that the ledger and the records know about a file, newest version first. BrokerError if nothing."""
    [entry] = broker.lookup([path])
    versions = entry.versions if entry is not None else ()
    known = dict(zip(_ids(versions), broker.records(_ids(versions)), strict=True))
    traced = [
        _version(signature, id, known[id], is_newest=i == 0, is_in_ledger=True)
        for i, (signature, id) in enumerate(versions)
    ]
    others = [record for record in _records_about(broker, path) if record.id not in known]
    for record in sorted(others, key=lambda record: -record.created_ms):
        job = decode_or_none(record.raw)
        signature = job.signature if job is not None else None
        traced.append(_version(signature or "", record.id, record, is_newest=False, is_in_ledger=False))
    shown = path.decode(errors="backslashreplace")
    if not traced:
        raise BrokerError(
            f"nothing is known about {shown!r}; "
            "give its path on the producer, below producer.scan_dir, and check include_globs and exclude_globs"
        )
    return FileTrace(shown, entry.missing_since_ms if entry is not None else 0, tuple(traced))


def _ids(versions: Sequence[tuple[str, str]]) -> list[str]:
    return [id for _, id in versions]


def _version(signature: str, id: str, record: Record | None, *, is_newest: bool, is_in_ledger: bool) -> VersionTrace:
    size, modified_ns = read_signature(signature)
    job = history(record) if record is not None else None
    return VersionTrace(signature or None, id, is_newest, is_in_ledger, size, modified_ns, job)


def read_signature(signature: str) -> tuple[int | None, int | None]:
    """Size and modification time in ns of a version; None for both if the signature has another form."""
    size, _, modified = signature.partition("-")
    return (int(size), int(modified)) if size.isdigit() and modified.isdigit() else (None, None)


def _records_about(broker: FullBroker, path: bytes) -> Iterator[Record]:
    """Records of jobs for this file, including jobs that the ledger does not know: those of other programs."""
    needle = msgspec.json.encode(os.path.basename(path).decode(errors="backslashreplace"))[1:-1]
    for page in broker.ids():
        for record in broker.records(page):
            # Searching for the name avoids decoding every job. Another program may have escaped it as \uXXXX.
            if record is not None and (needle in record.raw or b"\\u" in record.raw):
                job = decode_or_none(record.raw)
                if job is not None and job.path == path:
                    yield record
