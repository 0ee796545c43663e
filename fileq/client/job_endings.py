"""Waits until jobs have ended. Only reads: a caller that is killed leaves the jobs as they are.

It subscribes before it reads, so that no end is missed. An event can still get lost, so the states of the jobs are read
besides: every POLL_S during the first POLLED_OFTEN_S, later every LONGEST_POLL_S. When the subscription breaks, it
subscribes again and reads at once.

The readings of all waits of a process fall on the same moments, so that the transport can make one call of them.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Sequence, Set
from contextlib import closing
from typing import Protocol

from msgspec import Struct

from fileq.brokers.protocol import Subscription
from fileq.brokers.types import Record
from fileq.client.event_stream import SLICE_S, GivenUp, LastingSubscription, decode_event
from fileq.core.errors import BrokerUnavailable
from fileq.core.events import JobCancelled, JobCompleted, JobDead
from fileq.core.job import State
from fileq.core.paging import parts
from fileq.queries.documents import JobDocument, job_document, job_without_record

POLL_S = 0.04  # with the call itself still below 50 ms, the time within which the end of a job should be noticed
POLLED_OFTEN_S = 30.0
LONGEST_POLL_S = 2.0
READING_SHARE = 10  # a pause is at least this many times as long as the reading before it
LATE_EVENT_S = 0.005  # how long to wait for the next event when the record of a job is gone
LATE_EVENTS_S = 1.0  # how long such events are read at most
FIRST_RECHECK_S = 2.0
BATCH = 500  # records in one call
GONE = "its record is gone"
_ENDS = ((JobCompleted, State.COMPLETED), (JobDead, State.DEAD), (JobCancelled, State.CANCELLED))
ENDED = {kind.published_as: state for kind, state in _ENDS}


class JobSource(Protocol):
    """Where records and events come from."""

    def records(self, ids: Sequence[str]) -> list[Record | None]: ...

    def states(self, ids: Sequence[str]) -> list[State | None]: ...

    def subscribe(self) -> Subscription: ...


class JobEnding(Struct, frozen=True):
    """A job that has ended. Its status is `unknown` if its record is gone and no event said how it ended. `result` is
    JSON; None without a record."""

    job: JobDocument
    result: bytes | None = None

    @property
    def id(self) -> str:
        return self.job.id


class JobEndings:
    """Make one before the jobs are enqueued, or with `is_patient` at any time: then of() waits out an outage that has
    begun already. `report` gets the begin and the end of each outage; `on_recheck` gets records of jobs that have not
    ended, after FIRST_RECHECK_S and then every `recheck_s`."""

    def __init__(
        self,
        source: JobSource,
        *,
        report: Callable[[str], None] = lambda text: None,
        on_recheck: Callable[[Sequence[Record | None]], None] | None = None,
        recheck_s: float = FIRST_RECHECK_S,
        is_patient: bool = False,
        monotonic: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._source = source
        self._on_recheck = on_recheck
        self._recheck_s = recheck_s
        self._monotonic = monotonic
        self._events = LastingSubscription(
            source.subscribe, report, is_patient=is_patient, monotonic=monotonic, sleep=sleep
        )

    def of(
        self, ids: Sequence[str], timeout_s: float | None = None, is_stopped: Callable[[], bool] = lambda: False
    ) -> Iterator[JobEnding]:
        """Yields each job once, when it has ended. Raises TimeoutError; ends early once `is_stopped`."""
        waiting = dict.fromkeys(ids)
        begun_s = self._monotonic()
        until_s = math.inf if timeout_s is None else begun_s + timeout_s
        next_poll_s, next_recheck_s = 0.0, begun_s + FIRST_RECHECK_S
        is_first = True
        while waiting and not is_stopped():
            found: list[JobEnding] = []
            now_s = self._monotonic()
            slice_s = min(SLICE_S, max(0.0, until_s - now_s))
            try:
                if self._events.is_lost:
                    if self._events.renew(slice_s):
                        next_poll_s = 0.0
                elif is_first:
                    found, is_first = self._read(list(waiting)), False
                    next_poll_s = self._next_poll_s(begun_s, now_s)
                elif self._on_recheck is not None and now_s >= next_recheck_s:
                    self._on_recheck(self._source.records(list(waiting)[:BATCH]))
                    next_recheck_s = self._monotonic() + self._recheck_s
                elif now_s >= next_poll_s:
                    found = self._poll(waiting)
                    next_poll_s = self._next_poll_s(begun_s, now_s)
                else:
                    found = self._event(waiting.keys(), min(next_poll_s - now_s, slice_s))[1]
            except BrokerUnavailable as error:
                self._events.lose(error)
            for job in found:
                del waiting[job.id]
                yield job
            if waiting and not found and self._monotonic() >= until_s:
                raise TimeoutError

    def close(self) -> None:
        self._events.close()

    def _next_poll_s(self, begun_s: float, reading_s: float) -> float:
        """When to read after the reading that began at `reading_s`: a multiple of POLL_S of the clock."""
        now_s = self._monotonic()
        pause_s = POLL_S if now_s - begun_s < POLLED_OFTEN_S else min(LONGEST_POLL_S, (now_s - begun_s) / 10)
        pause_s = max(pause_s, READING_SHARE * (now_s - reading_s))
        return math.floor((now_s + pause_s) / POLL_S) * POLL_S

    def _read(self, ids: Sequence[str]) -> list[JobEnding]:
        """Those of these jobs that have ended, and those without a record."""
        found: list[JobEnding] = []
        for batch in parts(ids, BATCH):
            pairs = zip(batch, self._source.records(batch), strict=True)
            found += (job for id, record in pairs if (job := ending_in(id, record)) is not None)
        return found

    def _poll(self, waiting: dict[str, None]) -> list[JobEnding]:
        """As _read() of all jobs. What an event says of a job without a record is preferred."""
        states = dict(zip(waiting, self._source.states(list(waiting)), strict=True))
        found = self._read([id for id, state in states.items() if state is not None and not state.is_unfinished])
        left = waiting.keys() - {job.id for job in found}
        if not any(state is None and id in left for id, state in states.items()):
            return found
        until_s, is_any = self._monotonic() + LATE_EVENTS_S, True
        while is_any and self._monotonic() < until_s:
            is_any, late = self._event(left, LATE_EVENT_S)
            found += late
            left -= {job.id for job in late}
        gone = [id for id, state in states.items() if state is None and id in left]
        return [*found, *(JobEnding(job_without_record(id, error=GONE)) for id in gone)]

    def _event(self, waiting: Set[str], timeout_s: float) -> tuple[bool, list[JobEnding]]:
        """Whether there was an event, and the job whose end it is. Events of other jobs are passed over."""
        event = self._events.get(timeout_s)
        if event is None:
            return False, []
        news = decode_event(event)
        state = ENDED.get(news.event)
        if state is None or news.job_id not in waiting:
            return True, []
        [record] = self._source.records([news.job_id])
        if record is None:  # not kept, for example because worker.completed_max is 0
            return True, [JobEnding(job_without_record(news.job_id, state.value, news.error, news.retry_count))]
        job = ending_in(news.job_id, record)
        return True, [job] if job is not None else []  # None: it has been put back into its queue since


def ending_of(source: JobSource, id: str, timeout_s: float | None, is_stopped: Callable[[], bool]) -> JobEnding:
    """How one job ended. Raises TimeoutError; GivenUp once `is_stopped`."""
    with closing(JobEndings(source, is_patient=True)) as endings:
        for ending in endings.of([id], timeout_s, is_stopped):
            return ending
    raise GivenUp


def ending_in(id: str, record: Record | None) -> JobEnding | None:
    """How the job ended, by its record; None if it is unfinished."""
    if record is None:
        return JobEnding(job_without_record(id, error=GONE))
    return JobEnding(job_document(record), record.result) if not record.state.is_unfinished else None
