"""Reads the jobs that a filter chooses from the places of a broker. Changes nothing.

While other processes move jobs, a job may be missed or found twice.
"""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import NamedTuple

from msgspec.structs import replace

from fileq.brokers.protocol import FullBroker
from fileq.brokers.types import Record
from fileq.client.job_filter import Conditions, JobFilter, StoredJob
from fileq.client.job_summary import id_in
from fileq.core.job import Job, State, decode_or_none, raw_id

# The places that are not queues, and the state of the jobs in them.
PLACES = {
    "scheduled": State.SCHEDULED,
    "dead_letter": State.DEAD,
    "completed": State.COMPLETED,
    "cancelled": State.CANCELLED,
}
_PROCESSING = "processing"


def select(
    broker: FullBroker, queues: Sequence[str], wanted: JobFilter, states: Sequence[State]
) -> Iterator[StoredJob]:
    """The jobs in these states that meet the conditions, at most `limit`: waiting ones in order, ended ones newest
    first."""
    conditions = Conditions(wanted)
    if wanted.queue is not None:
        queues = [queue for queue in queues if queue == wanted.queue]
    found = (_of_state(broker, queues, state, wanted, conditions) for state in states)
    return itertools.islice(itertools.chain.from_iterable(found), wanted.limit)


def _of_state(
    broker: FullBroker, queues: Sequence[str], state: State, wanted: JobFilter, conditions: Conditions
) -> Iterator[StoredJob]:
    if state is State.RUNNING:
        raws = [view.raw for view in broker.workers() if view.raw]
        yield from matching(broker, raws, _PROCESSING, conditions)
    elif state is State.PENDING:
        for queue in queues:
            for page in broker.pages(queue):
                yield from matching(broker, page, queue, conditions)
    elif state in (State.SCHEDULED, State.RETRYING):
        # Only records distinguish retrying jobs from scheduled ones.
        for page in broker.pages("scheduled"):
            yield from (job for job in matching(broker, page, "scheduled", conditions) if job.state is state)
    else:
        place = next(place for place, there in PLACES.items() if there is state)
        yield from _newest(broker, place, wanted, conditions)


def _newest(broker: FullBroker, place: str, wanted: JobFilter, conditions: Conditions) -> Iterable[StoredJob]:
    if not wanted.has_conditions and wanted.limit is not None:
        return with_records(broker, broker.peek(place, wanted.limit), place)
    # Pages come oldest first: keep the last `limit` and reverse them.
    found = (job for page in broker.pages(place) for job in matching(broker, page, place, conditions))
    return reversed(deque(found, maxlen=wanted.limit))


def matching(broker: FullBroker, raws: Sequence[bytes], place: str, conditions: Conditions) -> list[StoredJob]:
    """The jobs among these bytes that meet the conditions, with their records."""
    return complete_records(broker, outlined(broker, raws, place, conditions).jobs)


class Outlined(NamedTuple):
    """Jobs that meet the conditions, and of how many jobs the outline or the state was read to know it."""

    jobs: list[StoredJob]
    outlines: int
    states: int


def outlined(
    broker: FullBroker,
    raws: Sequence[bytes],
    place: str,
    conditions: Conditions,
    *,
    is_state_needed: bool = False,
    is_outline_needed: bool = False,
) -> Outlined:
    """The jobs among these bytes that meet the conditions. Those whose bytes tell it have no record, the others have an
    outline of it. `is_state_needed`: `scheduled` and `retrying` must be told apart, which takes their states."""
    state, queue = _standing(place)
    found: list[StoredJob | None] = []
    undecided: list[int] = []
    stateless: list[int] = []
    for raw in raws:
        job = decode_or_none(raw)
        verdict = True if conditions.is_open else conditions.meets_without_record(job, state)
        if verdict is False:
            continue
        if verdict is None or is_outline_needed:
            undecided.append(len(found))
        elif is_state_needed and state is State.SCHEDULED:
            stateless.append(len(found))
        found.append(StoredJob(raw, job.id if job is not None else raw_id(raw), job, None, state, queue))
    for i, stored in zip(undecided, _with_outlines(broker, [found[i] for i in undecided]), strict=True):
        found[i] = stored if conditions.meets(stored) else None
    for i, stored in zip(stateless, _with_states(broker, [found[i] for i in stateless]), strict=True):
        found[i] = stored
    return Outlined([stored for stored in found if stored is not None], len(undecided), len(stateless))


def _with_states(broker: FullBroker, some: Sequence[StoredJob | None]) -> list[StoredJob]:
    delayed = [stored for stored in some if stored is not None]
    states = broker.states([stored.id for stored in delayed]) if delayed else []
    return [
        replace(stored, state=State.RETRYING) if state is State.RETRYING else stored
        for stored, state in zip(delayed, states, strict=True)
    ]


def _with_outlines(broker: FullBroker, some: Sequence[StoredJob | None]) -> list[StoredJob]:
    found = _joined([stored for stored in some if stored is not None], broker.outlines)
    # A job that an older release buried has no fingerprint in its record: it follows from the traceback.
    old = [i for i, one in enumerate(found) if one.state is State.DEAD and one.record and not one.record.fingerprint]
    for i, stored in zip(old, _joined([found[i] for i in old], broker.records), strict=True):
        found[i] = stored
    return found


def complete_records(broker: FullBroker, jobs: Sequence[StoredJob]) -> list[StoredJob]:
    """The same jobs with their whole records."""
    return _joined(jobs, broker.records)


def with_outlines(broker: FullBroker, jobs: Sequence[StoredJob]) -> list[StoredJob]:
    """The same jobs with outlines of their records. One round trip."""
    return _joined(jobs, broker.outlines)


def _joined(jobs: Sequence[StoredJob], read: Callable[[Sequence[str]], Sequence[Record | None]]) -> list[StoredJob]:
    if not jobs:
        return []
    return [
        replace(stored, record=record, state=_state_in_place(stored.state, record))
        for stored, record in zip(jobs, read([stored.id for stored in jobs]), strict=True)
    ]


def with_records(broker: FullBroker, raws: Sequence[bytes], place: str) -> Iterator[StoredJob]:
    """Combines the bytes that a place holds with their records."""
    state, queue = _standing(place)
    for raw, record in zip(raws, broker.records([id_in(raw) for raw in raws]), strict=True):
        yield _stored(raw, decode_or_none(raw), record, state, queue)


def _stored(raw: bytes, job: Job | None, record: Record | None, state: State, queue: str) -> StoredJob:
    id = job.id if job is not None else raw_id(raw)
    return StoredJob(raw, id, job, record, _state_in_place(state, record), queue)


def _state_in_place(state: State, record: Record | None) -> State:
    """The place says the state, except that `scheduled` holds retrying jobs too."""
    is_retrying = state is State.SCHEDULED and record is not None and record.state is State.RETRYING
    return State.RETRYING if is_retrying else state


def _standing(place: str) -> tuple[State, str]:
    """The state of the jobs in a place, and the queue that it is, or ""."""
    if place == _PROCESSING:
        return State.RUNNING, ""
    return PLACES.get(place, State.PENDING), "" if place in PLACES else place
