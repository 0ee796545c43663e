"""A client's transport on a broker: the same calls that workers and commands make, from any process.

What a kill -9 leaves: each job is enqueued completely or not at all; of several batches the first ones.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime
from functools import partial
from typing import TYPE_CHECKING

from msgspec.structs import replace

from fileq.actions.bulk import NOT_A_JOB, BulkActions, JobAction, revival, why_not_retried, why_stayed
from fileq.brokers.clocks import wall_clock_ms
from fileq.brokers.protocol import FullBroker, Subscription
from fileq.brokers.types import CancelResult, EnqueueResult, Entry, Record
from fileq.client.job_endings import JobEnding, ending_of
from fileq.client.options import JobRequest, WantedSchedule
from fileq.client.transport import BATCH, VETOED, Accepted
from fileq.config import Config
from fileq.core.errors import BatchError, ConfigError, JobError
from fileq.core.job import State
from fileq.core.paging import parts
from fileq.queries.documents import JobDocument, job_document
from fileq.queries.job_filter import JobConditions, JobFilter, read_conditions, stored_as
from fileq.queries.job_ids import why_unknown
from fileq.queries.job_queries import FileTrace, trace
from fileq.queries.job_selection import select
from fileq.queries.untaken_jobs import UntakenJobs

if TYPE_CHECKING:
    from fileq.client.broker_batches import BrokerBatches

STATES_BATCH = 500  # jobs in one call


class BrokerTransport:
    """Implements Transport. Owns the broker."""

    def __init__(self, broker: FullBroker, config: Config, *, clock: Callable[[], int] = wall_clock_ms) -> None:
        self._broker = broker
        self._config = config
        self._clock = clock
        self._reads = SharedReads(broker.states)
        self._untaken = UntakenJobs(broker, config)

    def enqueue(self, requests: Sequence[JobRequest]) -> list[Accepted]:
        entries = self._entries(requests)
        accepted: list[Accepted] = []
        for batch in parts(entries, BATCH):
            reply = self._broker.enqueue([entry for entry in batch if isinstance(entry, Entry)])
            existing = reply.existing or ("",) * len(reply.results)
            answers = zip(reply.results, existing, strict=True)
            for entry in batch:
                if isinstance(entry, Accepted):
                    accepted.append(entry)
                else:
                    fate, other = next(answers)
                    job = entry.job
                    is_new = fate == EnqueueResult.ENQUEUED
                    warning = self._untaken.warning(job.type, job.path) if is_new else ""
                    accepted.append(Accepted(other or job.id, fate, warning))
        pairs = zip(requests, accepted, strict=True)
        if refused := [one.options.batch for one, job in pairs if job.fate == EnqueueResult.REFUSED]:
            raise BatchError(
                f"batch {refused[0]} takes no jobs any more, or does not exist; {len(refused)} of {len(requests)} "
                "jobs were not enqueued"
            )
        return accepted

    def records(self, ids: Sequence[str]) -> list[Record | None]:
        return self._broker.records(ids)

    def job(self, id: str) -> JobDocument | None:
        [record] = self._broker.records([id])
        return job_document(record) if record is not None else None

    def states(self, ids: Sequence[str]) -> list[State | None]:
        return self._reads.states(ids)

    def ending(self, id: str, timeout_s: float | None, is_stopped: Callable[[], bool]) -> JobEnding | None:
        return ending_of(self, id, timeout_s, is_stopped)

    def subscribe(self) -> Subscription:
        return self._broker.subscribe()

    def select(self, given: JobConditions, limit: int | None = None) -> Iterator[JobDocument]:
        queues = self._config.worker.priorities
        wanted, wrong = read_conditions(given, queues, self._clock())
        if wrong:
            raise ConfigError([problem for _, problem in wrong])
        found = select(self._broker, queues, replace(wanted, limit=limit))
        return (stored.document(is_outline=False) for stored in found)

    def trace(self, path: bytes) -> FileTrace:
        return trace(self._broker, path)

    def size(self, queue: str) -> int:
        queues = self._config.worker.priorities
        if queue not in queues:
            raise ConfigError(f"no queue is named {queue!r}; the queues are {', '.join(queues)}")
        return self._broker.census().pending[queue]

    def clear(self, queue: str, limit: int | None = None) -> int:
        """Cancels at most `limit` jobs. Later ones stay: no more are cancelled than waited at the beginning."""
        size = self.size(queue)
        actions = BulkActions(self._broker, self._config, self._clock)
        waiting = actions.matching(JobAction.CANCEL, JobFilter(state=State.PENDING, queue=queue), has_deliveries=True)
        run = actions.begin(JobAction.CANCEL, waiting, limit=size if limit is None else min(size, limit))
        return run.complete().count

    def cancel(self, id: str) -> CancelResult:
        from fileq.webhooks.subscriptions import Withdrawals  # needed here only

        [result] = self._broker.cancel([id], Withdrawals(self._broker, self._config, self._clock).of_ids([id]))
        return result

    def retry(self, id: str, *, is_probe: bool = False) -> None:
        [record] = self._broker.records([id])
        if record is None:
            raise JobError(why_unknown(id))
        dead = stored_as(record)
        if record.state is not State.DEAD or dead.job is None:
            why = NOT_A_JOB if record.state is State.DEAD else why_not_retried(record)
            raise JobError(f"job {id} can't be retried: {why}")
        queue = record.queue or self._config.producer.default_priority
        [answer] = self._broker.revive([revival(dead, queue, is_probe=is_probe)])
        if answer.is_revived:
            return
        [now] = self._broker.records([id])
        if not (answer.held_by or answer.is_foreign) and now is not None and now.state is not State.DEAD:
            return  # the reply was lost and the call repeated, or another caller put it back
        raise JobError(f"job {id} can't be retried: {why_stayed(answer)}")

    def warning(self, type: str) -> str:
        return self._untaken.warning(type, b"")

    def schedule(self, name: str, options: WantedSchedule) -> None:
        from fileq.client.schedule_changes import add_schedule  # imports cronsim

        add_schedule(self._broker, self._config, name, options, where="schedule()")

    @property
    def batches(self) -> BrokerBatches:
        from fileq.client.broker_batches import BrokerBatches  # imports the worker's parts

        return BrokerBatches(self._broker, self._config, self._clock)

    def close(self) -> None:
        self._broker.close()

    def _entries(self, requests: Sequence[JobRequest]) -> list[Entry | Accepted]:
        """One entry for each request, or its fate if it was vetoed. ConfigError names everything that is wrong with all
        of them."""
        from fileq.client.new_entries import FileEntries, moved_to, typed_entry  # imports the producer's parts

        entries: list[Entry | Accepted] = []
        problems: list[str] = []
        files: FileEntries | None = None
        now = datetime.fromtimestamp(self._clock() / 1000, UTC)
        for request in requests:
            try:
                options = request.options
                if request.path:
                    files = files or FileEntries(self._config, partial(moved_to, lambda: self._broker))
                    entry = files.entry(request.path, options, now)
                else:
                    entry = typed_entry(self._config, request.type, request.payload, options, now)
                entries.append(self._shown(entry))
            except ConfigError as error:
                problems += error.problems
            except JobError as error:
                problems.append(str(error))
        if problems:
            raise ConfigError(problems)
        return entries

    def _shown(self, entry: Entry) -> Entry | Accepted:
        """The entry after the functions with @fileq.before_enqueue of this process have seen its job."""
        if "fileq.handlers.extensions" not in sys.modules:
            return entry  # nothing was decorated
        from fileq.handlers.extensions import apply_before_enqueue

        job = apply_before_enqueue(entry.job)
        if job is None:
            return Accepted(entry.job.id, VETOED)
        if job.priority not in self._config.worker.priorities:
            names = ", ".join(self._config.worker.priorities)
            raise ConfigError(f"priority is {job.priority!r} after before_enqueue; it must be one of {names}")
        return replace(entry, job=job, queue=job.priority)


def open_transport(config: Config) -> BrokerTransport:
    """Raises BrokerUnavailable if the broker can't be reached."""
    from fileq.brokers import open_broker

    if config.broker_kind == "memory":
        raise ConfigError(
            "broker is 'memory', which exists only inside the process that runs it; set sqlite or redis, "
            "or use fileq.testing.queue() in tests"
        )
    # A client makes a call now and then: it needs no connections in advance.
    return BrokerTransport(open_broker(replace(config, redis=replace(config.redis, min_idle_conns=0))), config)


class _Request:
    """One call that several threads share."""

    def __init__(self) -> None:
        self.ids: dict[str, None] = {}
        self.found: dict[str, State | None] | None = None  # None until it was read
        self.error: Exception | None = None


class SharedReads:
    """Reads the states of jobs for all waits of a process together. `read` returns them; None for a job without a
    record.

    Threads that ask while another one reads are answered by one later call. So a hundred waits that ask at the same
    time cost a few calls, not a hundred. Owns no thread and keeps no state: each answer was read after it was asked
    for."""

    def __init__(self, read: Callable[[Sequence[str]], list[State | None]]) -> None:
        self._read = read
        self._collecting = threading.Lock()
        self._reading = threading.Lock()
        self._next = _Request()

    def states(self, ids: Sequence[str]) -> list[State | None]:
        """The state of each job; None without a record. Raises what the shared call raises."""
        with self._collecting:
            request = self._next
            request.ids.update(dict.fromkeys(ids))
        with self._reading:
            if request.found is None and request.error is None:
                with self._collecting:
                    self._next = _Request()  # a thread that asks from now on must get a later answer than this
                self._answer(request)
        if request.found is None:
            assert request.error is not None
            raise request.error
        return [request.found[id] for id in ids]

    def _answer(self, request: _Request) -> None:
        ids = list(request.ids)
        try:
            batches = parts(ids, STATES_BATCH)
            request.found = {id: state for batch in batches for id, state in zip(batch, self._read(batch), strict=True)}
        except Exception as error:
            request.error = error
