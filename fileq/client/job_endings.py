"""Waits until jobs have ended. Only reads: a caller that is killed leaves the jobs as they are.

It subscribes before it reads, so that no end is missed. An event can still get lost, in an outage for example, so the
records are read as well: at the start, after each reconnection, after FIRST_RECHECK_S and then every `recheck_s`.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from typing import Protocol

from msgspec import Struct

from fileq.brokers.notifications import Subscription
from fileq.brokers.types import Record
from fileq.client.published_events import decode_event
from fileq.core.errors import BrokerUnavailable
from fileq.core.events import JobCancelled, JobCompleted, JobDead
from fileq.core.job import State
from fileq.core.units import two_units

FIRST_RECHECK_S = 2.0
RETRY_S = 1.0
SLICE_S = 0.5  # how long one wait for an event lasts, so that a stop is noticed
BATCH = 500  # records in one call
ENDED = {
    JobCompleted.published_as: State.COMPLETED,
    JobDead.published_as: State.DEAD,
    JobCancelled.published_as: State.CANCELLED,
}


class JobSource(Protocol):
    """Where records and events come from."""

    def records(self, ids: Sequence[str]) -> list[Record | None]: ...

    def subscribe(self) -> Subscription: ...


class JobEnding(Struct, frozen=True):
    """How a job ended. `state` is None if its record is gone and no event said how it ended."""

    id: str
    state: State | None
    error: str = ""
    failures: int = 0  # that the event counted
    record: Record | None = None


class JobEndings:
    """Make one before the jobs are enqueued. `report` gets the begin and the end of each outage; `on_recheck` gets
    records of jobs that have not ended, each time they are read again."""

    def __init__(
        self,
        source: JobSource,
        *,
        report: Callable[[str], None] = lambda text: None,
        on_recheck: Callable[[Sequence[Record | None]], None] | None = None,
        recheck_s: float = FIRST_RECHECK_S,
        monotonic: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._source = source
        self._report = report
        self._on_recheck = on_recheck
        self._recheck_s = recheck_s
        self._monotonic = monotonic
        self._sleep = sleep
        self._until_s: float | None = None
        self._subscription: Subscription = source.subscribe()

    def of(
        self, ids: Sequence[str], timeout_s: float | None = None, is_stopped: Callable[[], bool] = lambda: False
    ) -> Iterator[JobEnding]:
        """Yields each job once, when it has ended. Raises TimeoutError; ends early once `is_stopped`."""
        waiting = dict.fromkeys(ids)
        self._until_s = None if timeout_s is None else self._monotonic() + timeout_s
        next_check_s, pause_s = 0.0, FIRST_RECHECK_S
        while waiting and not is_stopped():
            try:
                if (now_s := self._monotonic()) >= next_check_s:
                    found = self._read(list(waiting), is_first=next_check_s == 0.0 and pause_s == FIRST_RECHECK_S)
                    next_check_s, pause_s = self._monotonic() + pause_s, self._recheck_s
                else:
                    found = self._next(waiting, min(next_check_s - now_s, SLICE_S))
            except BrokerUnavailable as error:
                self._reconnect(error, is_stopped)
                next_check_s = 0.0
                continue
            for job in found:
                del waiting[job.id]
                yield job
            if waiting and not found:
                self._check_time()

    def close(self) -> None:
        self._subscription.close()

    def _check_time(self) -> None:
        if self._until_s is not None and self._monotonic() >= self._until_s:
            raise TimeoutError

    def _left_s(self) -> float:
        return SLICE_S if self._until_s is None else max(0.0, self._until_s - self._monotonic())

    def _read(self, ids: list[str], *, is_first: bool) -> list[JobEnding]:
        found: list[JobEnding] = []
        for start in range(0, len(ids), BATCH):
            batch = ids[start : start + BATCH]
            records = self._source.records(batch)
            if start == 0 and not is_first and self._on_recheck is not None:
                self._on_recheck(records)
            found += (
                job for id, record in zip(batch, records, strict=True) if (job := ending_in(id, record)) is not None
            )
        return found

    def _next(self, waiting: dict[str, None], timeout_s: float) -> list[JobEnding]:
        """The job whose end is the next event, or none. Events of other jobs are passed over."""
        event = self._subscription.get(max(0.0, min(timeout_s, self._left_s())))
        if event is None:
            return []
        news = decode_event(event)
        state = ENDED.get(news.event)
        if state is None or news.job_id not in waiting:
            return []
        [record] = self._source.records([news.job_id])
        if record is None:  # not kept, for example because worker.completed_max is 0
            return [JobEnding(news.job_id, state, news.error, news.retry_count)]
        job = ending_in(news.job_id, record)
        return [job] if job is not None else []  # None: it has been put back into its queue since

    def _reconnect(self, error: BrokerUnavailable, is_stopped: Callable[[], bool]) -> None:
        self._report(f"{error}; trying again every {two_units(RETRY_S)}")
        self._subscription.close()
        while not is_stopped():
            self._check_time()
            self._sleep(RETRY_S if self._until_s is None else min(RETRY_S, self._left_s()))
            try:
                self._subscription = self._source.subscribe()
            except BrokerUnavailable:
                continue
            self._report("connected again")
            return


def ending_of(source: JobSource, id: str, timeout_s: float | None, is_stopped: Callable[[], bool]) -> JobEnding | None:
    """How one job ended; None once `is_stopped`. Raises TimeoutError."""
    with closing(JobEndings(source)) as endings:
        return next(endings.of([id], timeout_s, is_stopped), None)


def ending_in(id: str, record: Record | None) -> JobEnding | None:
    """How the job ended, by its record; None if it is unfinished."""
    if record is None:
        return JobEnding(id, None, "its record is gone")
    if record.state.is_unfinished:
        return None
    error = record.error if record.state is not State.COMPLETED else ""
    return JobEnding(id, record.state, error, record=record)
