"""Cancels jobs: some by their ids, or all that meet conditions."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TypeAlias

from msgspec import Struct

from fileq.brokers.protocol import FullBroker
from fileq.brokers.types import CancelResult, Record
from fileq.core.job import DELAYED_STATES, Job, State, decode_or_none
from fileq.core.outcome import FollowUp
from fileq.core.own_jobs import is_own_type
from fileq.queries.job_filter import JobFilter
from fileq.queries.job_selection import select

WOULD_CANCEL = "would_cancel"
_UNFINISHED = (State.RUNNING, State.PENDING, *DELAYED_STATES)
_BATCH = 500  # each call searches the queue once; on SQLite it is one transaction of about 0.1 s
_READINGS = 5  # how often one `cancel --all` reads the queues
# What is enqueued with the cancellation of each of these jobs: the deliveries of webhooks.
FollowUpsOf: TypeAlias = Callable[[Sequence[str]], Mapping[str, Sequence[FollowUp]] | None]


class JobCancellation(Struct, frozen=True):
    """`cancelled`, `requested` (its worker stops it at the next renewal), `ended` (too late) or `unknown`.

    A dry run has `would_cancel` instead of the first two."""

    id: str
    result: str
    state: str | None
    filepath: str = ""


class Cancellation(Struct, frozen=True):
    """`count` jobs were cancelled or requested to stop, or would be. With --all only the first 1000 are named."""

    results: tuple[JobCancellation, ...]
    within_s: float  # time until the worker of a running job stops it
    count: int
    is_dry_run: bool

    @property
    def has_failed(self) -> bool:
        return any(result.result in ("ended", "unknown") for result in self.results)


def _nothing(ids: Sequence[str]) -> None:
    return None


def cancel(
    broker: FullBroker,
    ids: Sequence[str],
    heartbeat_ttl_s: float,
    *,
    is_dry_run: bool = False,
    follow_ups: FollowUpsOf = _nothing,
) -> Cancellation:
    if is_dry_run:
        outcomes = [_would_be(record) for record in broker.records(ids)]
    else:
        outcomes = [outcome.value for outcome in broker.cancel(ids, follow_ups(ids))]
    results = tuple(map(_cancellation, ids, outcomes, broker.records(ids)))
    return Cancellation(results, heartbeat_ttl_s / 3, _count(results), is_dry_run)


def cancel_all(
    broker: FullBroker,
    queues: Sequence[str],
    wanted: JobFilter,
    heartbeat_ttl_s: float,
    *,
    is_dry_run: bool = False,
    shown: int = 1000,
    follow_ups: FollowUpsOf = _nothing,
) -> Cancellation:
    """Cancels every job that meets the conditions and has not ended. The report counts all and names the first `shown`.

    Reads the queues while they change, so one reading may miss a job: reads them again until nothing more is found, a
    few times at most, because a producer may add jobs faster. A kill -9 leaves each job cancelled or untouched, and the
    command can be repeated."""
    states = wanted.states(_UNFINISHED, "only jobs that have not ended can be cancelled")
    named: list[JobCancellation] = []
    handled: set[str] = set()
    count = 0
    for _ in range(1 if is_dry_run else _READINGS):
        found = select(broker, queues, wanted, states)
        ids = [one.id for one in found if one.id not in handled and (wanted.type or not _is_own(one.job))]
        ids = list(dict.fromkeys(ids))[: None if wanted.limit is None else wanted.limit - count]
        for start in range(0, len(ids), _BATCH):
            some = ids[start : start + _BATCH]
            batch = cancel(broker, some, heartbeat_ttl_s, is_dry_run=is_dry_run, follow_ups=follow_ups)
            count += batch.count
            named += [result for result in batch.results if result.result not in ("ended", "unknown")]
            del named[shown:]
        handled.update(ids)
        if not ids or count == wanted.limit:
            break
    return Cancellation(tuple(named), heartbeat_ttl_s / 3, count, is_dry_run)


def _is_own(job: Job | None) -> bool:
    """Whether it is a delivery of a webhook. Those about the cancellations themselves must not be cancelled."""
    return job is not None and is_own_type(job.type)


def _cancellation(id: str, result: str, record: Record | None) -> JobCancellation:
    if record is None:
        return JobCancellation(id, result, None)
    job = decode_or_none(record.raw)
    return JobCancellation(id, result, record.state.value, job.filepath if job is not None else "")


def _would_be(record: Record | None) -> str:
    if record is None:
        return CancelResult.UNKNOWN.value
    return WOULD_CANCEL if record.state in _UNFINISHED else CancelResult.ENDED.value


def _count(results: Sequence[JobCancellation]) -> int:
    done = (CancelResult.CANCELLED.value, CancelResult.REQUESTED.value, WOULD_CANCEL)
    return sum(result.result in done for result in results)
