"""`fileq enqueue --wait`: waits until jobs have ended. Only reads: Ctrl-C or a kill -9 leaves the jobs as they are.

It is subscribed before the jobs are enqueued, so that no end is missed. An event can still get lost, in an outage for
example, so the records are read as well: at the start, after each reconnection, after FIRST_RECHECK_S and then every
RECHECK_S.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import msgspec
from msgspec import Struct

from fileq.brokers.notifications import Subscription
from fileq.brokers.protocol import FullBroker
from fileq.brokers.types import Record, WireEvent
from fileq.commands.admin.obstacles import obstacles_of
from fileq.core.errors import BrokerUnavailable
from fileq.core.events import JobCancelled, JobCompleted, JobDead
from fileq.core.job import State
from fileq.core.units import two_units

FIRST_RECHECK_S = 2.0  # when it is said what the jobs wait for
RECHECK_S = 10.0
RETRY_S = 1.0
BATCH = 500  # records in one call of the broker
_ENDED = {
    JobCompleted.published_as: State.COMPLETED,
    JobDead.published_as: State.DEAD,
    JobCancelled.published_as: State.CANCELLED,
}
_decode = msgspec.json.Decoder(WireEvent).decode


class EndedJob(Struct, frozen=True):
    """How a job ended. `state` is "" if its record is gone and no event said how it ended."""

    id: str
    state: str
    result: Any
    error: str


class JobWaiting:
    """Make one before the jobs are enqueued. `report` gets the begin and the end of each outage of the broker, and once
    each what keeps the jobs from running, such as a paused queue."""

    def __init__(
        self,
        broker: FullBroker,
        report: Callable[[str], None],
        *,
        monotonic: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._broker = broker
        self._report = report
        self._monotonic = monotonic
        self._sleep = sleep
        self._subscription: Subscription = broker.subscribe()
        self._reported: set[str] = set()

    def ended(self, ids: Sequence[str]) -> Iterator[EndedJob]:
        """Yields each job once, when it has ended."""
        waiting = dict.fromkeys(ids)
        next_check_s, pause_s = 0.0, FIRST_RECHECK_S
        while waiting:
            try:
                if self._monotonic() >= next_check_s:
                    found = self._read(list(waiting), is_first=pause_s == FIRST_RECHECK_S)
                    next_check_s, pause_s = self._monotonic() + pause_s, RECHECK_S
                else:
                    found = self._next(waiting, next_check_s - self._monotonic())
            except BrokerUnavailable as error:
                self._reconnect(error)
                next_check_s = 0.0
                continue
            for job in found:
                del waiting[job.id]
                yield job

    def _read(self, ids: list[str], *, is_first: bool) -> list[EndedJob]:
        found: list[EndedJob] = []
        if not is_first:
            self._report_obstacles(self._broker.records(ids[:BATCH]))
        for start in range(0, len(ids), BATCH):
            batch = ids[start : start + BATCH]
            records = self._broker.records(batch)
            found += (job for id, record in zip(batch, records, strict=True) if (job := _ended(id, record)) is not None)
        return found

    def _report_obstacles(self, records: Sequence[Record | None]) -> None:
        obstacles = dict.fromkeys(text for texts in obstacles_of(self._broker, records).values() for text in texts)
        for text in obstacles:
            if text not in self._reported:
                self._reported.add(text)
                self._report(f"still waiting: {text}")

    def _next(self, waiting: dict[str, None], timeout_s: float) -> list[EndedJob]:
        """The job whose end is the next event, or none. Events of other jobs are passed over."""
        event = self._subscription.get(max(0.0, timeout_s))
        if event is None:
            return []
        news = _decode(event)
        state = _ENDED.get(news.event)
        if state is None or news.job_id not in waiting:
            return []
        [record] = self._broker.records([news.job_id])
        if record is None:  # not kept, for example because worker.completed_max is 0
            return [EndedJob(news.job_id, state.value, None, news.error)]
        job = _ended(news.job_id, record)
        return [job] if job is not None else []  # None: it has been put back into its queue since

    def _reconnect(self, error: BrokerUnavailable) -> None:
        self._report(f"{error}; trying again every {two_units(RETRY_S)}")
        self._subscription.close()
        while True:
            self._sleep(RETRY_S)
            try:
                self._subscription = self._broker.subscribe()
            except BrokerUnavailable:
                continue
            self._report("connected again")
            return

    def close(self) -> None:
        self._subscription.close()


def _ended(id: str, record: Record | None) -> EndedJob | None:
    if record is None:
        return EndedJob(id, "", None, "its record is gone")
    if record.state not in _ENDED.values():
        return None
    result = msgspec.json.decode(record.result) if record.result else None
    return EndedJob(id, record.state.value, result, record.error if record.state is not State.COMPLETED else "")


def exit_code(ended: Sequence[EndedJob]) -> int:
    """3 if a job is dead, 1 if one was cancelled or is unknown, 0 if all are completed."""
    states = {job.state for job in ended}
    if State.DEAD in states:
        return 3
    return 0 if states <= {State.COMPLETED} else 1
