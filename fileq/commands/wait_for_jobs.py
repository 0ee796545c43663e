"""`fileq enqueue --wait`: shows how jobs ended, and what keeps the others from running. Only reads."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import msgspec
from msgspec import Struct

from fileq.brokers.protocol import FullBroker
from fileq.brokers.types import Record
from fileq.client.job_endings import JobEnding, JobEndings
from fileq.core.job import State
from fileq.queries.job_queries import wait_reasons

RECHECK_S = 10.0


class EndedJob(Struct, frozen=True):
    """How a job ended. `state` is "" if its record is gone and no event said how it ended."""

    id: str
    state: str
    result: Any
    error: str


class JobWaiting:
    """Make one before the jobs are enqueued. `report` gets the begin and the end of each outage of the broker, and once
    each what keeps the jobs from running, such as a paused queue."""

    def __init__(self, broker: FullBroker, report: Callable[[str], None]) -> None:
        self._broker = broker
        self._report = report
        self._endings = JobEndings(broker, report=report, on_recheck=self._report_waits, recheck_s=RECHECK_S)
        self._reported: set[str] = set()

    def ended(self, ids: Sequence[str]) -> Iterator[EndedJob]:
        """Yields each job once, when it has ended."""
        return map(_ended, self._endings.of(ids))

    def close(self) -> None:
        self._endings.close()

    def _report_waits(self, records: Sequence[Record | None]) -> None:
        reasons = dict.fromkeys(text for texts in wait_reasons(self._broker, records).values() for text in texts)
        for text in reasons:
            if text not in self._reported:
                self._reported.add(text)
                self._report(f"still waiting: {text}")


def _ended(job: JobEnding) -> EndedJob:
    raw = job.record.result if job.record is not None else b""
    return EndedJob(job.id, job.state or "", msgspec.json.decode(raw) if raw else None, job.error)


def exit_code(ended: Sequence[EndedJob]) -> int:
    """3 if a job is dead, 1 if one was cancelled or is unknown, 0 if all are completed."""
    states = {job.state for job in ended}
    if State.DEAD in states:
        return 3
    return 0 if states <= {State.COMPLETED} else 1
