"""The dead-letter queue: lists dead jobs, puts them back into their queues, deletes them.

The broker puts back or deletes a batch of jobs in one atomic step, and skips jobs that are no longer dead. So a kill -9
leaves each batch done or not done, and the command can be repeated. Two commands that run at the same time share the
work: for each job the second one finds it gone.

`retry_all` and `delete_all` read the list in pages while it shrinks, so a page may miss jobs. They pass over the list
again until a pass finds nothing to do. They skip the ids they have handled already, because a job that was put back may
have died again meanwhile.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence

from msgspec import Struct

from fileq.brokers.protocol import FullBroker
from fileq.brokers.types import Record, Revived
from fileq.core.job import State, decode_or_none
from fileq.core.text import printable
from fileq.queries.dead_jobs import GONE, NOT_A_JOB, not_dead, revival, to_run, why_stayed
from fileq.queries.job_filter import ENDED, Conditions, JobFilter, StoredJob
from fileq.queries.job_selection import matching, select, with_records
from fileq.queries.job_summary import JobSummary, id_in

PLACE = "dead_letter"
_BATCH = 200
_STATES = ((State.DEAD,), "the dead-letter queue holds dead jobs only")
# The results of a command, and those of its dry run.
RETRY = ("retried", "would_retry")
DELETE = ("deleted", "would_delete")
_NO_JOB = "no job has this id, or its record has expired; 'fileq dlq list' lists the dead jobs"


class DeadJobResult(Struct, frozen=True):
    """What was done with one job: `retried`, `deleted`, `refused` (the reason says why) or `unknown` (no such job).

    A dry run has `would_retry` and `would_delete` instead of the first two. `filepath` is where its file is now."""

    id: str
    result: str
    filepath: str = ""
    reason: str = ""


class DlqReport(Struct, frozen=True):
    """`count` jobs were put back or deleted, or would be with --dry-run."""

    count: int
    is_dry_run: bool
    results: tuple[DeadJobResult, ...]

    @property
    def has_failed(self) -> bool:
        return any(result.result in ("refused", "unknown") for result in self.results)


class DeadJobs(Struct, frozen=True):
    total: int
    jobs: tuple[JobSummary, ...]


def list_dead(broker: FullBroker, queues: Sequence[str], wanted: JobFilter) -> DeadJobs:
    """The newest dead jobs, newest first; with conditions, the newest that meet them."""
    found = tuple(dead.summary() for dead in select(broker, queues, wanted, wanted.states(*_STATES)))
    return DeadJobs(broker.census().dead, found)


def retry(broker: FullBroker, ids: Sequence[str], *, queue: str, is_dry_run: bool = False) -> DlqReport:
    """Puts these jobs back with the same id and all failure counts reset. `queue` is used where the record has none."""
    found, others = _by_ids(broker, ids)
    jobs = [dead for id in dict.fromkeys(ids) if (dead := found.get(id)) is not None and dead.job is not None]
    moved = [Revived(True)] * len(jobs) if is_dry_run else broker.revive([revival(dead, queue) for dead in jobs])
    answers = {dead.id: answer for dead, answer in zip(jobs, moved, strict=True)}
    results = []
    for id in dict.fromkeys(ids):
        dead = found.get(id)
        if dead is None:
            results.append(_not_dead(id, others.get(id), to_run))
        elif dead.job is None:
            results.append(DeadJobResult(id, "refused", reason=NOT_A_JOB))
        elif answers[id].is_revived:
            results.append(DeadJobResult(id, RETRY[is_dry_run], _path_of(dead)))
        elif answers[id].held_by or answers[id].is_foreign:
            results.append(DeadJobResult(id, "refused", _path_of(dead), why_stayed(answers[id])))
        else:
            results.append(DeadJobResult(id, "unknown", reason=GONE))
    return DlqReport(sum(r.result in RETRY for r in results), is_dry_run, tuple(results))


def retry_all(
    broker: FullBroker, wanted: JobFilter, *, queue: str, is_dry_run: bool = False, shown: int = 1000
) -> DlqReport:
    """Puts back every job that meets the conditions. The report counts all and names the first `shown`."""

    def revive(jobs: Sequence[StoredJob]) -> list[str]:
        return [why_stayed(answer) for answer in broker.revive([revival(dead, queue) for dead in jobs])]

    return _all(_Pass(broker, wanted, revive, RETRY, is_dry_run, takes_bytes=False), shown)


def delete(broker: FullBroker, ids: Sequence[str], *, is_dry_run: bool = False) -> DlqReport:
    found, others = _by_ids(broker, ids)
    pairs = [(dead.id, dead.raw) for dead in found.values()]
    answers = [True] * len(pairs) if is_dry_run else broker.discard(pairs)
    deleted = {id for (id, _), is_done in zip(pairs, answers, strict=True) if is_done}
    results = []
    for id in dict.fromkeys(ids):
        dead = found.get(id)
        if dead is not None and id in deleted:
            results.append(DeadJobResult(id, DELETE[is_dry_run], _path_of(dead)))
        elif dead is not None:
            results.append(DeadJobResult(id, "unknown", reason=GONE))
        else:
            results.append(_not_dead(id, others.get(id), _to_end))
    return DlqReport(sum(r.result in DELETE for r in results), is_dry_run, tuple(results))


def delete_all(broker: FullBroker, wanted: JobFilter, *, is_dry_run: bool = False, shown: int = 1000) -> DlqReport:
    """Deletes every job that meets the conditions. The report counts all and names the first `shown`."""

    def discard(jobs: Sequence[StoredJob]) -> list[str]:
        return ["" if is_done else GONE for is_done in broker.discard([(dead.id, dead.raw) for dead in jobs])]

    return _all(_Pass(broker, wanted, discard, DELETE, is_dry_run, takes_bytes=True), shown)


class _Pass(Struct, frozen=True):
    """What to do with every dead job that meets the conditions: `act` returns for each job why it was not done, or an
    empty text."""

    broker: FullBroker
    wanted: JobFilter
    act: Callable[[Sequence[StoredJob]], list[str]]
    words: tuple[str, str]  # the result, and the result of a dry run
    is_dry_run: bool
    takes_bytes: bool  # also bytes that are not a job


def _all(task: _Pass, shown: int) -> DlqReport:
    """Passes over the list until a pass finds nothing to do, or `limit` jobs are done."""
    task.wanted.states(*_STATES)
    handled: set[str] = set()
    results: list[DeadJobResult] = []
    count = 0
    left = sys.maxsize if task.wanted.limit is None else task.wanted.limit
    while True:
        before = len(handled)
        for batch in _batches(task.broker, task.wanted, handled):
            handled.update(dead.id for dead in batch)
            jobs = [dead for dead in batch if dead.job is not None or task.takes_bytes][: left - count]
            refused = [dead for dead in batch if dead.job is None and not task.takes_bytes]
            results += [DeadJobResult(dead.id, "refused", reason=NOT_A_JOB) for dead in refused]
            acted = list(zip(jobs, [""] * len(jobs) if task.is_dry_run else task.act(jobs), strict=True))
            results += [DeadJobResult(dead.id, "refused", reason=why) for dead, why in acted if why not in ("", GONE)]
            done = [dead for dead, why in acted if not why]
            count += len(done)
            named = done[: max(0, shown - len(results))]
            results += [DeadJobResult(dead.id, task.words[task.is_dry_run], _path_of(dead)) for dead in named]
            if count == left:
                break
        if task.is_dry_run or count == left or len(handled) == before:
            return DlqReport(count, task.is_dry_run, tuple(results))


def _batches(broker: FullBroker, wanted: JobFilter, handled: set[str]) -> Iterator[list[StoredJob]]:
    conditions = Conditions(wanted)
    for page in broker.pages(PLACE, _BATCH):
        batch = [dead for dead in matching(broker, page, PLACE, conditions) if dead.id not in handled]
        # The same id may be in the list twice. Only one of them goes into a batch: the broker identifies jobs by id.
        unique = {dead.id: dead for dead in reversed(batch)}
        if unique:
            yield list(reversed(unique.values()))


def count_dead(broker: FullBroker) -> int:
    return broker.census().dead


def purge(broker: FullBroker) -> int:
    """Deletes the jobs that are dead at the start, oldest first, and returns how many. Later ones may stay."""
    left = broker.census().dead
    deleted = 0
    while left > 0:
        page = next(broker.pages(PLACE, _BATCH), [])[:left]
        if not page:
            break
        deleted += sum(broker.discard([(id_in(raw), raw) for raw in page]))
        left -= len(page)
    return deleted


def _path_of(dead: StoredJob) -> str:
    """Where its file is: a file that was moved after the job had ended is retried there."""
    if dead.record is not None and dead.record.moved_to:
        return dead.record.moved_to.decode(errors="backslashreplace")
    return dead.job.filepath if dead.job is not None else ""


def _not_dead(id: str, record: Record | None, next_step: Callable[[Record], str]) -> DeadJobResult:
    """For an id that the dead-letter queue does not have: the state of the job, and what to do instead."""
    if record is None:
        return DeadJobResult(id, "unknown", reason=_NO_JOB)
    job = decode_or_none(record.raw)
    path = job.filepath if job is not None else ""
    return DeadJobResult(id, "refused", path, not_dead(record, next_step(record)))


def _to_end(record: Record) -> str:
    """How to get rid of a job that is not dead."""
    if record.state in ENDED:
        return "its record expires after worker.history_ttl"
    return f"'fileq cancel {printable(record.id)}' cancels it"


def _by_ids(broker: FullBroker, ids: Sequence[str]) -> tuple[dict[str, StoredJob], dict[str, Record]]:
    """Finds dead jobs by their records; searches the whole list only for ids without one, and for bytes that are too
    long to be kept in a record.

    Also returns the records of the jobs that are not dead."""
    found: dict[str, StoredJob] = {}
    others: dict[str, Record] = {}
    for id, record in zip(ids, broker.records(ids), strict=True):
        if record is not None and record.state is State.DEAD and record.raw:
            found[id] = StoredJob(record.raw, id, decode_or_none(record.raw), record, State.DEAD)
        elif record is not None and record.state is not State.DEAD:
            others[id] = record
    missing = set(ids) - set(found)
    if missing:
        for page in broker.pages(PLACE):
            for dead in with_records(broker, page, PLACE):
                if dead.id in missing:
                    found[dead.id] = dead
                    missing.discard(dead.id)
            if not missing:
                break
    return found, others
