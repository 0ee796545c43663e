"""A client's transport on a broker: the same calls that workers and commands make, from any process.

What a kill -9 leaves: each job is enqueued completely or not at all; of several batches the first ones. A batch is
created or not; the waiting members of a cancelled one that are not cancelled yet are left to the reconciler of any
worker; of a retry, the members that were put back until then.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import UTC, datetime
from functools import partial
from itertools import islice
from typing import TypeVar

import msgspec
from msgspec import UNSET, Raw
from msgspec.structs import replace

from fileq.actions.bulk import NOT_A_JOB, BulkActions, JobAction, revival, why_not_retried, why_stayed
from fileq.brokers.batches import NewBatch
from fileq.brokers.protocol import FullBroker, Subscription
from fileq.brokers.types import CancelResult, EnqueueResult, Entry, Record
from fileq.client.file_jobs import FileJobs, moved_to
from fileq.client.job_endings import JobEnding, ending_of
from fileq.client.options import WantedSchedule
from fileq.client.transport import BATCH, VETOED, Accepted, BatchRequest, BatchRetry, JobDocuments
from fileq.config import Config
from fileq.core.batch import Callback, CallbackKind, callback_id, callback_job
from fileq.core.errors import BatchError, ConfigError, JobError
from fileq.core.job import Job, State, Version, check_content, checked_id, encode, typed_job, wall_clock_ms
from fileq.core.job_options import JobOptions, JobRequest
from fileq.core.own_jobs import check_batch, check_job
from fileq.core.paging import pages, parts
from fileq.queries.documents import BatchDocument, BatchInfo, JobDocument, batch_document, job_document
from fileq.queries.job_filter import JobConditions, JobFilter, read_conditions, stored_as
from fileq.queries.job_ids import why_unknown
from fileq.queries.job_queries import FileTrace, trace, wait_reasons
from fileq.queries.job_selection import select
from fileq.queries.untaken_jobs import UntakenJobs

T = TypeVar("T")
STATES_BATCH = 500  # jobs in one call
CANCEL_PAGES = 20  # pages of members that cancel() cancels; the reconciler of a worker cancels the rest


class BrokerTransport:
    """Implements Transport. Owns the broker."""

    def __init__(self, broker: FullBroker, config: Config, *, clock: Callable[[], int] = wall_clock_ms) -> None:
        self._broker = broker
        self._config = config
        self._clock = clock
        self._reads = SharedReads(broker.states)
        self._untaken = UntakenJobs(broker, config)

    def enqueue(self, requests: Sequence[JobRequest]) -> list[Accepted]:
        now = datetime.fromtimestamp(self._clock() / 1000, UTC)
        found_at = partial(moved_to, lambda: self._broker)
        entries = entries_of(self._config, requests, now, found_at, self._shown)
        answers = enqueued(self._broker, [entry for entry in entries if isinstance(entry, Entry)])
        accepted: list[Accepted] = []
        for entry in entries:
            if isinstance(entry, Accepted):
                accepted.append(entry)
                continue
            answer = next(answers)
            warning = self._untaken.warning(entry.job.type, entry.job.path) if answer.record is not None else ""
            accepted.append(replace(answer, warning=warning))
        pairs = zip(requests, accepted, strict=True)
        if refused := [one.options.batch for one, job in pairs if job.fate == EnqueueResult.REFUSED]:
            raise BatchError(
                f"batch {refused[0]} no longer accepts jobs, or does not exist; {len(refused)} of {len(requests)} "
                "jobs were not enqueued"
            )
        return accepted

    def records(self, ids: Sequence[str]) -> list[Record | None]:
        return self._broker.records(ids)

    def job(self, id: str) -> JobDocument | None:
        [record] = self._broker.records([id])
        return job_document(record, wait_reasons(self._broker, [record]).get(id, ())) if record is not None else None

    def states(self, ids: Sequence[str]) -> list[State | None]:
        return self._reads.states(ids)

    def ending(self, id: str, timeout_s: float | None, is_stopped: Callable[[], bool]) -> JobEnding:
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

    def create_batch(self, request: BatchRequest) -> None:
        now = datetime.fromtimestamp(self._clock() / 1000, UTC)
        self._broker.create_batch(new_batch(self._config, request, now))

    def batch(self, id: str) -> BatchDocument | None:
        return find_batch(self._broker, id)

    def seal_batch(self, id: str) -> bool:
        check_client_batch(id)
        return self._broker.seal_batch(id)

    def cancel_batch(self, id: str) -> bool:
        """The members of the first pages; the reconciler cancels the others."""
        if not self._broker.cancel_batch(id):
            return False
        actions = BulkActions(self._broker, self._config, self._clock)
        for page in islice(pages(lambda cursor: self._broker.unfinished_members(id, cursor)), CANCEL_PAGES):
            if page.ids:
                actions.cancel_members(page.ids)
        return True

    def retry_batch(self, id: str) -> BatchRetry:
        """The step that puts a dead job back also lifts the cancellation of its batch. If none is put back the batch
        stays cancelled: otherwise one that has finished would look like a success, and its `then` never ran."""
        actions = BulkActions(self._broker, self._config)
        run = actions.begin(JobAction.RETRY, actions.dead_members(id))
        run.complete()
        return BatchRetry(run.count, {change.id: change.reason for change in run.refusals})

    def dead_page(self, id: str, cursor: str, *, is_outline: bool = False) -> JobDocuments:
        page = self._broker.dead_members(id, cursor)
        dead = _dead(self._broker.records(page.ids) if page.ids else ())
        return JobDocuments(tuple(job_document(one, is_outline=is_outline) for one in dead), page.next_cursor)

    def close(self) -> None:
        self._broker.close()

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


def entries_of(
    config: Config,
    requests: Iterable[JobRequest],
    now: datetime,
    found_at: Callable[[bytes], bytes],
    shown: Callable[[Entry], T],
    *,
    may_look: bool = False,
) -> list[T]:
    """One entry for each request, as `shown` returns it. ConfigError names everything that is wrong with all of them.

    `found_at` and `may_look` are those of FileJobs."""
    entries: list[T] = []
    problems: list[str] = []
    files: FileJobs | None = None
    for request in requests:
        try:
            options = request.options
            if request.path:
                files = files or FileJobs(config, found_at, may_look=may_look)
                entry = new_entry(config, *files.job(request.path, options, now), options, now)
            else:
                entry = typed_entry(config, request.type, request.payload, options, now)
            entries.append(shown(entry))
        except ConfigError as error:
            problems += error.problems
        except JobError as error:
            problems.append(str(error))
    if problems:
        raise ConfigError(problems)
    return entries


def enqueued(broker: FullBroker, entries: Sequence[Entry]) -> Iterator[Accepted]:
    """Enqueues BATCH entries a round trip. What became of each, without a warning."""
    for batch in parts(entries, BATCH):
        reply = broker.enqueue(batch)
        existing = reply.existing or ("",) * len(batch)
        for entry, fate, other in zip(batch, reply.results, existing, strict=True):
            is_new = fate is EnqueueResult.ENQUEUED
            record = _new_record(entry, reply.now_ms or wall_clock_ms()) if is_new else None  # 0: the reply was lost
            yield Accepted(other or entry.job.id, fate, record=record)


def _new_record(entry: Entry, now_ms: int) -> Record:
    """Of a job that was enqueued at this time, before anything has happened to it."""
    due_ms = max(entry.at_ms, now_ms + entry.delay_ms)
    state, due_ms = (State.SCHEDULED, due_ms) if due_ms > now_ms else (State.PENDING, 0)
    return Record(entry.job.id, state, encode(entry.job), entry.queue, created_ms=now_ms, due_ms=due_ms)


def typed_entry(config: Config, type: str, payload: bytes | None, options: JobOptions, now: datetime) -> Entry:
    """The entry of a job without a file; `payload` is JSON."""
    job = typed_job(type, None, priority=options.priority or config.producer.default_priority, now=now, id=options.id)
    job = job.but(payload=UNSET if payload is None else Raw(payload))
    return new_entry(config, job, None, options, now)


def new_entry(config: Config, job: Job, version: Version | None, options: JobOptions, now: datetime) -> Entry:
    """The entry of this job with its options. Raises JobError for a wrong id, and for a job that only fileq itself may
    make: all jobs of a call are checked before the broker gets the first."""
    check_priority(config, options.priority)
    job = options.applied(job, round(now.timestamp() * 1000))
    check_job(job, joins=bool(options.batch))
    return Entry(job, job.priority, version, True, options.delay_ms, options.at_ms, joins=bool(options.batch))


def check_priority(config: Config, given: str) -> None:
    """ConfigError for a queue that does not exist. "" is none."""
    if given and given not in config.worker.priorities:
        raise ConfigError(f"priority is {given!r}; it must be one of {', '.join(config.worker.priorities)}")


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


def find_batch(broker: FullBroker, id: str) -> BatchDocument | None:
    """With the jobs of its callbacks and the first failures among the first page of its dead members: enough to see
    what goes wrong. At most three round trips."""
    [view] = broker.batches_by_id([id])
    if view is None:
        return None
    callbacks = [callback_id(id, one.kind) for one in view.callbacks]
    members = broker.dead_members(id).ids if view.dead else ()
    ids = [*callbacks, *members]
    records = dict(zip(ids, broker.records(ids) if ids else (), strict=True))
    return batch_document(view, records, _dead(records[member] for member in members))


def _dead(records: Iterable[Record | None]) -> list[Record]:
    return [one for one in records if one is not None and one.state is State.DEAD]


def new_batch(config: Config, request: BatchRequest, now: datetime) -> NewBatch:
    """The batch with its callbacks as complete jobs. ConfigError for a queue that does not exist, and for what only
    fileq itself may make."""
    check_priority(config, request.priority)
    check_client_batch(request.id)
    check_client_batch(request.parent)
    info = BatchInfo(request.priority, request.made_by)
    callbacks = tuple(_callback(config, request, kind, now) for kind in request.callbacks)
    encoded = msgspec.json.encode(info) if info != BatchInfo() else b""
    return NewBatch(request.id, request.name, request.parent, request.allow_failures, callbacks, encoded)


def _callback(config: Config, request: BatchRequest, kind: CallbackKind, now: datetime) -> Callback:
    wanted = request.callbacks[kind]
    try:
        options = replace(wanted.options, named_batch=request.parent)
        entry = typed_entry(config, wanted.type, wanted.payload, options, now)
        job = callback_job(entry.job, request.id, kind)
        checked_id(job.id)
    except JobError as error:
        raise ConfigError(f"{kind}: {error}") from error
    check_content(job)
    return Callback(kind, encode(job), entry.queue)


def check_client_batch(id: str) -> None:
    """ConfigError for a batch that only producers create, fill and seal. It can be cancelled and retried like any."""
    try:
        check_batch(id)
    except JobError as error:
        raise ConfigError(str(error)) from error
