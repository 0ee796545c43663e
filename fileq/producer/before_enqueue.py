"""Shows each job to the user's @fileq.before_enqueue functions before it is sent. A vetoed file counts as skipped."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from typing import TypeAlias

from fileq.brokers.types import Entry
from fileq.core.errors import JobError
from fileq.core.events import Emit, ignore
from fileq.core.extension_events import BeforeEnqueueFailed
from fileq.core.file_events import SkipReason
from fileq.core.job import Job
from fileq.handlers.outcomes import failed
from fileq.producer.counts import ProducerCounts
from fileq.producer.finder.found_file import FoundFile

REPORT_EVERY_S = 60.0

BeforeEnqueue: TypeAlias = Callable[[Job], Job | None]


class EnqueueCheck:
    """Without functions nothing is called. What they raise never ends the producer."""

    def __init__(
        self,
        function: BeforeEnqueue | None,
        queues: Sequence[str],
        counts: ProducerCounts,
        emit: Emit = ignore,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._function = function
        self._queues = queues
        self._counts = counts
        self._emit = emit
        self._monotonic = monotonic
        self._quiet_until_s = float("-inf")

    def entry(self, entry: Entry, file: FoundFile) -> Entry | None:
        """The entry to send; None if the file is not to be enqueued now. The next scan finds it again."""
        if self._function is None:
            return entry
        try:
            job = self._function(entry.job)
            if job is not None and job.priority not in self._queues:
                raise JobError(f"priority is {job.priority!r}; it must be one of {', '.join(self._queues)}")
        except Exception as error:
            self._counts.skip(SkipReason.VETO_FAILED, file.path)
            self._report(file.path, failed(error).error)
            return None
        if job is None:
            self._counts.skip(SkipReason.VETOED, file.path)
            return None
        return Entry(job, job.priority, entry.version)

    def _report(self, path: bytes, error: str) -> None:
        now_s = self._monotonic()
        if now_s >= self._quiet_until_s:
            self._quiet_until_s = now_s + REPORT_EVERY_S
            self._emit(BeforeEnqueueFailed(os.fsdecode(path), error))
