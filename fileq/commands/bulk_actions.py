"""Actions on many jobs: retry, cancel, run, delete. Chooses the jobs by a filter and changes them batch by batch.

An action changes each job once. The state of the job ensures that: an action takes only jobs that have been in their
present state since before it began (`cutoff_ms`, the broker's clock). A job that was put back and died again, or was
run and failed again, has been in its state only since then. So an action that was interrupted can begin again from the
start, and finds only the jobs that it has not changed.

What a kill -9 leaves: each job is changed completely or not at all.
"""

from __future__ import annotations

import enum
import secrets
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from fileq.brokers.catalog import Catalog
from fileq.brokers.place_pages import PROCESSING
from fileq.brokers.protocol import FullBroker
from fileq.brokers.types import CancelResult, Record
from fileq.config import Config
from fileq.core.errors import ConfigError, Conflict, JobError
from fileq.core.job import DELAYED_STATES, Job, State, decode_or_none, parse_time
from fileq.queries.dead_jobs import GONE, NOT_A_JOB, revival, why_stayed
from fileq.queries.job_filter import Conditions, JobFilter, StoredJob
from fileq.queries.job_selection import job_page, outlined, places_of
from fileq.webhooks.subscriptions import Withdrawals

BATCH = 200  # jobs that are changed in one step
BATCH_ID_BYTES = 40_000  # the most bytes of their ids: an operation stores the ids of each batch in its document
COUNT_MAX = 2_000_000  # elements that are looked at to count jobs


class JobAction(enum.StrEnum):
    RETRY = "retry"
    CANCEL = "cancel"
    RUN = "run"
    DELETE = "delete"


# The states in which an action changes a job, and what to say about the others.
STATES: Mapping[JobAction, tuple[State, ...]] = {
    JobAction.RETRY: (State.DEAD,),
    JobAction.CANCEL: (State.RUNNING, State.PENDING, *DELAYED_STATES),
    JobAction.RUN: DELAYED_STATES,
    JobAction.DELETE: (State.DEAD,),
}
_RULES = {
    JobAction.RETRY: "only dead jobs can be retried",
    JobAction.CANCEL: "only jobs that have not ended can be cancelled",
    JobAction.RUN: "only jobs that wait for their time can be made due",
    JobAction.DELETE: "only dead jobs can be deleted",
}
NO_RECORD = "no job has this id, or its record has expired"


class MatchedJobs(Struct, frozen=True):
    """How many jobs an action would change. `is_partial`: the count ended early, so there may be more."""

    count: int
    sample: tuple[StoredJob, ...]
    is_partial: bool


class RefusedJob(Struct, frozen=True):
    id: str
    reason: str


class BulkActions:
    """The actions on the jobs of one broker."""

    def __init__(self, broker: FullBroker, config: Config, now_ms: Callable[[], int]) -> None:
        self._broker = broker
        self._queues = config.worker.priorities
        self._default_queue = config.producer.default_priority
        self._withdrawals = Withdrawals(broker, config, now_ms)

    def now_ms(self) -> int:
        """The broker's clock, for `cutoff_ms`."""
        return self._broker.census().now_ms

    def matched(self, action: JobAction, wanted: JobFilter, sample: int) -> MatchedJobs:
        """Without conditions the lengths of the places say it, so deliveries of webhooks count too."""
        page = job_page(
            self._broker,
            self._queues,
            checked(action, wanted),
            states=STATES[action],
            limit=max(1, sample),
            scan_max=COUNT_MAX,
            is_counted=True,
        )
        count = page.total if page.total is not None else page.matched
        return MatchedJobs(count, page.jobs[:sample], page.total is None)

    def batches(self, action: JobAction, wanted: JobFilter, cutoff_ms: int) -> Iterator[list[StoredJob]]:
        """The jobs that are to be changed, with outlines of their records. One pass may miss jobs that move meanwhile;
        the caller makes another until there are none."""
        wanted = checked(action, wanted)
        conditions = Conditions(wanted)
        states = (wanted.state,) if wanted.state is not None else STATES[action]
        queues = [queue for queue in self._queues if wanted.queue in (None, queue)]
        for place in places_of(states, queues):
            for raws in self._pages(place):
                found = outlined(self._broker, raws, place, conditions, is_outline_needed=True).jobs
                due = [
                    job
                    for job in found
                    if job.state in states and is_open(action, job.record or record_without_one(job), cutoff_ms)
                ]
                yield from _split(list({job.id: job for job in reversed(due)}.values())[::-1])

    def _pages(self, place: str) -> Iterator[Sequence[bytes]]:
        if place == PROCESSING:
            yield [view.raw for view in self._broker.workers() if view.raw]
            return
        yield from self._broker.pages(place, BATCH)

    def by_ids(
        self, action: JobAction, ids: Sequence[str], is_seen: Callable[[Job | None], bool]
    ) -> tuple[list[StoredJob], list[RefusedJob]]:
        """The jobs with these ids that can be changed, and why the others can't. To a caller that does not see a job
        there is none."""
        jobs, refused = [], []
        unique = list(dict.fromkeys(ids))
        for id, record in zip(unique, self._broker.records(unique), strict=True):
            job = decode_or_none(record.raw) if record is not None else None
            if record is None or not is_seen(job):
                refused.append(RefusedJob(id, NO_RECORD))
            elif record.state not in STATES[action]:
                refused.append(RefusedJob(id, f"it is {record.state.value}; {_RULES[action]}"))
            else:
                jobs.append(StoredJob(record.raw, id, job, record, record.state))
        return jobs, refused

    def apply(self, action: JobAction, jobs: Sequence[StoredJob]) -> list[str]:
        """Changes these jobs. Returns for each why it was not changed, or an empty text."""
        if not jobs:
            return []
        ids = [job.id for job in jobs]
        match action:
            case JobAction.RETRY:
                return self._retry(jobs)
            case JobAction.DELETE:
                return self._delete(jobs)
            case JobAction.RUN:
                return ["" if is_done else GONE_ELSEWHERE for is_done in self._broker.due_now(ids)]
            case JobAction.CANCEL:
                results = self._broker.cancel(ids, self._withdrawals.of_ids(ids))
                done = (CancelResult.CANCELLED, CancelResult.REQUESTED)
                return ["" if result in done else GONE_ELSEWHERE for result in results]

    def _retry(self, jobs: Sequence[StoredJob]) -> list[str]:
        possible = [job for job in jobs if job.job is not None]
        answers = self._broker.revive([revival(job, self._default_queue) for job in possible])
        reasons = {job.id: why_stayed(answer) for job, answer in zip(possible, answers, strict=True)}
        return [reasons.get(job.id, NOT_A_JOB) for job in jobs]

    def _delete(self, jobs: Sequence[StoredJob]) -> list[str]:
        return ["" if is_done else GONE for is_done in self._broker.discard([(job.id, job.raw) for job in jobs])]

    def changed(self, action: JobAction, ids: Sequence[str], cutoff_ms: int) -> int:
        """How many of these jobs are no longer to be changed."""
        return sum(not is_open(action, record, cutoff_ms) for record in self._broker.outlines(ids))


GONE_ELSEWHERE = "its state changed a moment ago"


def changed_ids(jobs: Sequence[StoredJob], reasons: Sequence[str]) -> list[str]:
    """Those that apply() has changed."""
    return [job.id for job, reason in zip(jobs, reasons, strict=True) if not reason]


def checked(action: JobAction, wanted: JobFilter) -> JobFilter:
    """The filter for this action. ConfigError for a state in which the action changes nothing."""
    if wanted.state is not None and wanted.state not in STATES[action]:
        names = ", ".join(state.value for state in STATES[action])
        raise ConfigError(f"status is {wanted.state.value!r}; {_RULES[action]}: give {names}, or leave it out")
    return replace(wanted, leaves_deliveries=action is JobAction.CANCEL, limit=None)


def is_open(action: JobAction, record: Record | None, cutoff_ms: int) -> bool:
    """Whether an action that began at this time has still to change the job."""
    if record is None or record.state not in STATES[action]:
        return False
    if action is JobAction.CANCEL:
        return record.created_ms <= cutoff_ms and not record.is_cancel_requested
    if action is JobAction.RUN:
        return max(record.since_ms, record.created_ms) <= cutoff_ms
    return record.ended_ms <= cutoff_ms


def record_without_one(stored: StoredJob) -> Record:
    """What the bytes of a job tell, for one that another program put there."""
    died = parse_time(stored.job.failed_at or "") if stored.job is not None else None
    died_ms = int(died.timestamp() * 1000) if died is not None else 0
    return Record(stored.id, stored.state, b"", stored.home, created_ms=stored.time_ms, ended_ms=died_ms)


def _split(jobs: Sequence[StoredJob]) -> Iterator[list[StoredJob]]:
    batch: list[StoredJob] = []
    size = 0
    for job in jobs:
        size += len(job.id.encode(errors="replace"))
        if batch and (len(batch) == BATCH or size > BATCH_ID_BYTES):
            yield batch
            batch, size = [], len(job.id)
        batch.append(job)
    if batch:
        yield batch


# Operations: actions on more jobs than one request can wait for. Each is a document of the catalog.
#
# A server owns an operation while it works on it, and writes the document before each batch, expecting the revision
# that it wrote last. So when another server takes an operation over, the former owner finds out before its next
# batch. The document names the jobs of the batch (`underway`): after a kill -9 the server that continues finds out
# which of them were changed, and counts those.
#
# What a kill -9 leaves: the operation as it was before its last batch, and that batch done in part or whole.


KIND = "operations"
OPEN_MAX = 20  # operations that have not ended
ENDED_KEPT = 100
WAITING, RUNNING, COMPLETED, STOPPED, FAILED = "waiting", "running", "completed", "stopped", "failed"


class Operation(Struct, frozen=True, omit_defaults=True):
    """One operation. `matched` jobs were counted when it began, `done` were changed so far, `refused` could not be in
    the last pass. `conditions` are what the caller gave, for people; `wanted` is the filter. `owner` is the server that
    works on it; "" for none."""

    id: str
    action: JobAction
    wanted: JobFilter
    conditions: dict[str, Any]
    matched: int
    cutoff_ms: int
    created_ms: int
    created_by: str
    done: int = 0
    refused: int = 0
    owner: str = ""
    underway: tuple[str, ...] = ()
    state: str = WAITING
    updated_ms: int = 0
    ended_ms: int = 0
    error: str = ""
    takeovers: int = 0

    @property
    def is_ended(self) -> bool:
        return bool(self.ended_ms)


class StoredOperation(Struct, frozen=True):
    operation: Operation
    revision: int


class OperationStore:
    """The operations of one broker."""

    def __init__(self, catalog: Catalog, now_ms: Callable[[], int]) -> None:
        self._catalog = catalog
        self.now_ms = now_ms

    def all(self) -> list[StoredOperation]:
        """The newest first. A document of a later release that can't be read is left out."""
        found = []
        for _, document in sorted(self._catalog.documents(KIND).items(), reverse=True):
            try:
                found.append(StoredOperation(msgspec.json.decode(document.body, type=Operation), document.revision))
            except msgspec.DecodeError:
                continue
        return found

    def get(self, id: str) -> StoredOperation | None:
        return next((stored for stored in self.all() if stored.operation.id == id), None)

    def revision(self) -> int:
        """Grows with every change of an operation. Cheap."""
        return self._catalog.catalog_revision(KIND)

    def create(
        self,
        action: JobAction,
        wanted: JobFilter,
        conditions: dict[str, Any],
        *,
        matched: int,
        cutoff_ms: int,
        created_by: str,
    ) -> Operation:
        """Raises JobError if too many operations have not ended. Removes the oldest ended ones."""
        known = self.all()
        if sum(not stored.operation.is_ended for stored in known) >= OPEN_MAX:
            raise JobError(f"{OPEN_MAX} operations have not ended; wait for one, or stop one")
        for stored in [stored for stored in known if stored.operation.is_ended][ENDED_KEPT - 1 :]:
            self._catalog.remove_document(KIND, stored.operation.id)
        now_ms = self.now_ms()
        operation = Operation(
            id=f"{now_ms:013d}-{secrets.token_hex(4)}",
            action=action,
            wanted=wanted,
            conditions=conditions,
            matched=matched,
            cutoff_ms=cutoff_ms,
            created_ms=now_ms,
            created_by=created_by,
            updated_ms=now_ms,
        )
        self._put(operation, 0)
        return operation

    def save(self, operation: Operation, expected: int) -> StoredOperation:
        """Raises Conflict if the document is another one than expected."""
        operation = replace(operation, updated_ms=self.now_ms())
        return StoredOperation(operation, self._put(operation, expected))

    def stop(self, id: str) -> Operation | None:
        """Ends an operation that has not ended; its owner notices before its next batch. None if there is none.
        Repeated, it changes nothing."""
        while True:
            stored = self.get(id)
            if stored is None or stored.operation.is_ended:
                return stored.operation if stored is not None else None
            try:
                stopped = replace(stored.operation, state=STOPPED, ended_ms=self.now_ms())
                return self.save(stopped, stored.revision).operation
            except Conflict:
                continue  # its owner began another batch

    def _put(self, operation: Operation, expected: int) -> int:
        # A server whose memory is full gets room by these actions. The number of operations has a limit.
        frees_memory = operation.action in (JobAction.CANCEL, JobAction.DELETE) or operation.is_ended
        body = msgspec.json.encode(operation)
        return self._catalog.put_document(KIND, operation.id, body, expected, frees_memory=frees_memory)
