"""The dead-letter queue: lists dead jobs, puts them back into their queues, deletes them.

The broker puts back or deletes a batch of jobs in one atomic step, and skips jobs that are no longer dead. So a kill -9
leaves each batch done or not done, and the command can be repeated. Two commands that run at the same time share the
work: for each job the second one finds it gone.

`retry_all` reads the list in pages while it shrinks, so a page may miss jobs. It passes over the list again until a
pass finds nothing to do. It skips the ids it has put back already, because such a job may have died again meanwhile.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from msgspec import Struct

from fileq.brokers.protocol import FullBroker
from fileq.brokers.types import Record, Revival
from fileq.commands.admin.job_summary import JobSummary, id_in, summarize
from fileq.core.errors import ConfigError
from fileq.core.job import Job, State, decode_or_none, encode
from fileq.files.globs import Globs

PLACE = "dead_letter"
_BATCH = 200
_NOT_A_JOB = "these bytes are not a job, and a retry would bury them again; delete them"


class DeadJob(Struct, frozen=True):
    """The stored bytes of a dead job, the job decoded from them, and its record."""

    raw: bytes
    id: str
    job: Job | None
    record: Record | None

    @property
    def error(self) -> str:
        error = self.job.error if self.job is not None else None
        return error or (self.record.error if self.record is not None else "")

    def summary(self) -> JobSummary:
        return summarize(self.raw, self.record, state=State.DEAD)


class DeadJobResult(Struct, frozen=True):
    """What was done with one dead job: `retried`, `deleted`, `refused` or `unknown`, and why."""

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


def list_dead(broker: FullBroker, limit: int, *, match: str | None = None, error: str | None = None) -> DeadJobs:
    """The newest dead jobs, newest first; with conditions, the newest that match them."""
    total = broker.census().dead
    if match is None and error is None:
        found = list(_with_records(broker, broker.peek(PLACE, limit)))
    else:
        matches = _condition(match, error)
        # Pages come oldest first; only the last `limit` matches are kept.
        found = []
        for page in broker.pages(PLACE):
            found = [*found, *(dead for dead in _with_records(broker, page) if matches(dead))][-limit:]
        found.reverse()
    return DeadJobs(total, tuple(dead.summary() for dead in found))


def retry(broker: FullBroker, ids: Sequence[str], *, queue: str, is_dry_run: bool = False) -> DlqReport:
    """Puts these jobs back with the same id and all failure counts reset. `queue` is used where the record has none."""
    found = _by_ids(broker, ids)
    results = []
    for id in dict.fromkeys(ids):
        dead = found.get(id)
        if dead is None:
            results.append(DeadJobResult(id, "unknown", reason="it is not in the dead-letter queue"))
        elif dead.job is None:
            results.append(DeadJobResult(id, "refused", reason=_NOT_A_JOB))
        elif is_dry_run or broker.revive([revival(dead, queue)])[0]:
            results.append(DeadJobResult(id, "retried", dead.job.filepath))
        else:
            results.append(DeadJobResult(id, "unknown", reason="it left the dead-letter queue a moment ago"))
    return DlqReport(sum(r.result == "retried" for r in results), is_dry_run, tuple(results))


def retry_all(
    broker: FullBroker,
    *,
    queue: str,
    match: str | None = None,
    error: str | None = None,
    is_dry_run: bool = False,
    shown: int = 1000,
) -> DlqReport:
    """Puts back every job that matches the conditions. The report counts all and names the first `shown`."""
    matches = _condition(match, error)
    done: set[str] = set()
    refused: set[str] = set()
    count = 0
    results: list[DeadJobResult] = []
    while True:
        before = len(done)
        for batch in _batches(broker, matches, done | refused):
            for dead in batch:
                if dead.job is None and dead.id not in refused:
                    refused.add(dead.id)
                    results.append(DeadJobResult(dead.id, "refused", reason=_NOT_A_JOB))
            jobs = [dead for dead in batch if dead.job is not None]
            moved = [True] * len(jobs) if is_dry_run else broker.revive([revival(dead, queue) for dead in jobs])
            for dead, is_moved in zip(jobs, moved, strict=True):
                done.add(dead.id)
                count += is_moved
                if is_moved and dead.job is not None and len(results) < shown:
                    results.append(DeadJobResult(dead.id, "retried", dead.job.filepath))
        if is_dry_run or len(done) == before:
            return DlqReport(count, is_dry_run, tuple(results))


def _batches(broker: FullBroker, matches: Callable[[DeadJob], bool], handled: set[str]) -> Iterator[list[DeadJob]]:
    for page in broker.pages(PLACE, _BATCH):
        batch = [dead for dead in _with_records(broker, page) if dead.id not in handled and matches(dead)]
        # The same id may be in the list twice. Only one of them goes into a batch: the broker identifies jobs by id.
        unique = {dead.id: dead for dead in reversed(batch)}
        if unique:
            yield list(unique.values())


def delete(broker: FullBroker, ids: Sequence[str]) -> DlqReport:
    found = _by_ids(broker, ids)
    results = []
    for id in dict.fromkeys(ids):
        dead = found.get(id)
        if dead is not None and broker.discard([(id, dead.raw)]):
            results.append(DeadJobResult(id, "deleted", dead.job.filepath if dead.job is not None else ""))
        else:
            results.append(DeadJobResult(id, "unknown", reason="it is not in the dead-letter queue"))
    return DlqReport(sum(r.result == "deleted" for r in results), False, tuple(results))


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
        discarded = broker.discard([(id_in(raw), raw) for raw in page])
        if not discarded:
            break  # another command deleted these jobs first
        deleted += discarded
        left -= len(page)
    return deleted


def revival(dead: DeadJob, queue: str) -> Revival:
    """The job as new. If its file was moved after it had died, the job is for the file where it is now."""
    assert dead.job is not None
    fresh = dead.job.but(retries=0, recoveries=0, error=None, failed_at=None, first_error=dead.error or None)
    if dead.record is not None and dead.record.moved_to:
        fresh = fresh.at(dead.record.moved_to)
    return Revival(dead.raw, dead.id, encode(fresh), queue)


def _condition(match: str | None, error: str | None) -> Callable[[DeadJob], bool]:
    globs = path_matcher(match) if match is not None else None

    def matches(dead: DeadJob) -> bool:
        if globs is not None and (dead.job is None or not dead.job.filepath or not globs(dead.job.path)):
            return False
        return error is None or error.casefold() in dead.error.casefold()

    return matches


def path_matcher(pattern: str) -> Callable[[bytes], bool]:
    """Returns a predicate for paths. A pattern without a slash matches the file name, any other the whole path."""
    if not pattern:
        raise ConfigError("--match is empty; give a glob such as '*.pdf' or '/srv/inbox/**/*.pdf'")
    globs = Globs([pattern.lstrip("/") if "/" in pattern else f"**/{pattern}"])

    def matches(path: bytes) -> bool:
        prefix, slash, name = path.decode(errors="surrogateescape").lstrip("/").rpartition("/")
        return globs.match(prefix + slash, name)

    return matches


def _with_records(broker: FullBroker, raws: Sequence[bytes]) -> Iterator[DeadJob]:
    ids = [id_in(raw) for raw in raws]
    for raw, id, record in zip(raws, ids, broker.records(ids), strict=True):
        yield DeadJob(raw, id, decode_or_none(raw), record)


def _by_ids(broker: FullBroker, ids: Sequence[str]) -> dict[str, DeadJob]:
    """Finds dead jobs by their records; searches the whole list only for ids without one."""
    found = {}
    for id, record in zip(ids, broker.records(ids), strict=True):
        if record is not None and record.state is State.DEAD:
            found[id] = DeadJob(record.raw, id, decode_or_none(record.raw), record)
    missing = set(ids) - set(found)
    if missing:
        for page in broker.pages(PLACE):
            for dead in _with_records(broker, page):
                if dead.id in missing:
                    found[dead.id] = dead
                    missing.discard(dead.id)
            if not missing:
                break
    return found
