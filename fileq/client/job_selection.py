"""Reads the jobs that a filter chooses from the places of a broker. Changes nothing.

While other processes move jobs, a job may be missed or found twice.
"""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Iterable, Iterator, Sequence

from fileq.brokers.protocol import FullBroker
from fileq.client.job_filter import Conditions, JobFilter, StoredJob
from fileq.client.job_summary import id_in
from fileq.core.job import State, decode_or_none

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


def matching(broker: FullBroker, raws: Sequence[bytes], place: str, conditions: Conditions) -> Iterator[StoredJob]:
    """The jobs among these bytes that meet the conditions. Records are read only where type and path match."""
    wanted = [raw for raw in raws if conditions.meets_bytes(decode_or_none(raw))]
    return (stored for stored in with_records(broker, wanted, place) if conditions.meets(stored))


def with_records(broker: FullBroker, raws: Sequence[bytes], place: str) -> Iterator[StoredJob]:
    """Combines the bytes that a place holds with their records."""
    if place == _PROCESSING:
        state, queue = State.RUNNING, ""
    else:
        state, queue = PLACES.get(place, State.PENDING), "" if place in PLACES else place
    ids = [id_in(raw) for raw in raws]
    for raw, id, record in zip(raws, ids, broker.records(ids), strict=True):
        is_retrying = state is State.SCHEDULED and record is not None and record.state is State.RETRYING
        yield StoredJob(raw, id, decode_or_none(raw), record, State.RETRYING if is_retrying else state, queue)
