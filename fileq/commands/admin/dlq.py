"""The dead-letter queue: look, put back, delete.

Each job is put back, or deleted, in one atomic step of the broker, which finds its element there or does nothing.
So what a kill -9 leaves is always a queue that is right:
1. before a batch: all of it is dead still. The command, repeated, goes on where it ended.
2. in a batch: it is one step of the broker, done or not.
3. after it: these jobs are in their queues. Repeated, the command does not find them here any more.
Two that run at the same time share the work: who comes second is told that the element is gone.

A list that shrinks under a reader moves under him, so a whole sweep goes on until one pass finds nothing more to do;
it does not take up again what it has put back itself and what has died once more meanwhile.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from msgspec import Struct

from fileq.brokers.protocol import FullBroker
from fileq.brokers.types import Record, Revival
from fileq.commands.admin.jobs import JobView, id_in, view
from fileq.core.errors import ConfigError
from fileq.core.job import Job, State, decode_or_none, encode
from fileq.files.globs import Globs

PLACE = "dead_letter"
_BATCH = 200
_NOT_A_JOB = "these bytes are no job, and a retry would only bury them again; delete it, or push what was meant"


class Dead(Struct, frozen=True):
    """A dead element and what is known of it."""

    raw: bytes
    id: str
    job: Job | None
    record: Record | None

    @property
    def error(self) -> str:
        told = self.job.error if self.job is not None else None
        return told or (self.record.error if self.record is not None else "")

    def view(self) -> JobView:
        return view(self.raw, self.record, state=State.DEAD)


class Result(Struct, frozen=True):
    """What became of one dead job: `retried`, `deleted`, `refused` or `unknown`, and why."""

    id: str
    result: str
    filepath: str = ""
    reason: str = ""


class Answer(Struct, frozen=True):
    """`count` is how many were, or with --dry-run would be, put back or deleted."""

    count: int
    is_dry_run: bool
    results: tuple[Result, ...]

    @property
    def has_failed(self) -> bool:
        return any(result.result in ("refused", "unknown") for result in self.results)


class DeadJobs(Struct, frozen=True):
    total: int
    jobs: tuple[JobView, ...]


def list_dead(broker: FullBroker, limit: int, *, match: str | None = None, error: str | None = None) -> DeadJobs:
    """The newest first; with conditions, the newest of those that meet them."""
    total = broker.census().dead
    if match is None and error is None:
        found = list(_with_records(broker, broker.peek(PLACE, limit)))
    else:
        takes = _condition(match, error)
        # Pages come oldest first; only the last that fit are kept.
        found = []
        for page in broker.pages(PLACE):
            found = [*found, *(dead for dead in _with_records(broker, page) if takes(dead))][-limit:]
        found.reverse()
    return DeadJobs(total, tuple(dead.view() for dead in found))


def retry(broker: FullBroker, ids: Sequence[str], *, queue: str, is_dry_run: bool = False) -> Answer:
    """Put these back: same id, no failures counted. `queue` is for those whose record does not tell."""
    found = _by_ids(broker, ids)
    results = []
    for id in dict.fromkeys(ids):
        dead = found.get(id)
        if dead is None:
            results.append(Result(id, "unknown", reason="it is not in the dead-letter queue"))
        elif dead.job is None:
            results.append(Result(id, "refused", reason=_NOT_A_JOB))
        elif is_dry_run or broker.revive([revival(dead, queue)])[0]:
            results.append(Result(id, "retried", dead.job.filepath))
        else:
            results.append(Result(id, "unknown", reason="it left the dead-letter queue a moment ago"))
    return Answer(sum(r.result == "retried" for r in results), is_dry_run, tuple(results))


def retry_all(
    broker: FullBroker,
    *,
    queue: str,
    match: str | None = None,
    error: str | None = None,
    is_dry_run: bool = False,
    shown: int = 1000,
) -> Answer:
    """Put back every job that meets the conditions; the answer names the first ones, and counts all."""
    takes = _condition(match, error)
    done: set[str] = set()
    refused: set[str] = set()
    count = 0
    results: list[Result] = []
    while True:
        before = len(done)
        for batch in _batches(broker, takes, done | refused):
            for dead in batch:
                if dead.job is None and dead.id not in refused:
                    refused.add(dead.id)
                    results.append(Result(dead.id, "refused", reason=_NOT_A_JOB))
            jobs = [dead for dead in batch if dead.job is not None]
            moved = [True] * len(jobs) if is_dry_run else broker.revive([revival(dead, queue) for dead in jobs])
            for dead, is_moved in zip(jobs, moved, strict=True):
                done.add(dead.id)
                count += is_moved
                if is_moved and dead.job is not None and len(results) < shown:
                    results.append(Result(dead.id, "retried", dead.job.filepath))
        if is_dry_run or len(done) == before:
            return Answer(count, is_dry_run, tuple(results))


def _batches(broker: FullBroker, takes: Callable[[Dead], bool], handled: set[str]) -> Iterator[list[Dead]]:
    for page in broker.pages(PLACE, _BATCH):
        batch = [dead for dead in _with_records(broker, page) if dead.id not in handled and takes(dead)]
        # The same id may lie here twice: one at a time, or the second would be taken for the first.
        unique = {dead.id: dead for dead in reversed(batch)}
        if unique:
            yield list(unique.values())


def delete(broker: FullBroker, ids: Sequence[str]) -> Answer:
    found = _by_ids(broker, ids)
    results = []
    for id in dict.fromkeys(ids):
        dead = found.get(id)
        if dead is not None and broker.discard([(id, dead.raw)]):
            results.append(Result(id, "deleted", dead.job.filepath if dead.job is not None else ""))
        else:
            results.append(Result(id, "unknown", reason="it is not in the dead-letter queue"))
    return Answer(sum(r.result == "deleted" for r in results), False, tuple(results))


def count_dead(broker: FullBroker) -> int:
    return broker.census().dead


def purge(broker: FullBroker) -> int:
    """Delete what was dead when it began, oldest first; what dies meanwhile may stay."""
    left = broker.census().dead
    gone = 0
    while left > 0:
        page = next(broker.pages(PLACE, _BATCH), [])[:left]
        if not page:
            break
        now_gone = broker.discard([(id_in(raw), raw) for raw in page])
        if not now_gone:
            break  # somebody else empties it too
        gone += now_gone
        left -= len(page)
    return gone


def revival(dead: Dead, queue: str) -> Revival:
    assert dead.job is not None
    fresh = dead.job.but(retries=0, recoveries=0, error=None, failed_at=None)
    return Revival(dead.raw, dead.id, encode(fresh), queue)


def _condition(match: str | None, error: str | None) -> Callable[[Dead], bool]:
    globs = path_matcher(match) if match is not None else None

    def takes(dead: Dead) -> bool:
        if globs is not None and (dead.job is None or not dead.job.filepath or not globs(dead.job.path)):
            return False
        return error is None or error.casefold() in dead.error.casefold()

    return takes


def path_matcher(pattern: str) -> Callable[[bytes], bool]:
    """Whether a path matches a glob: a pattern without a slash is about the name, others about the whole path."""
    if not pattern:
        raise ConfigError("--match is empty; give a glob such as '*.pdf' or '/srv/inbox/**/*.pdf'")
    globs = Globs([pattern.lstrip("/") if "/" in pattern else f"**/{pattern}"])

    def matches(path: bytes) -> bool:
        prefix, slash, name = path.decode(errors="surrogateescape").lstrip("/").rpartition("/")
        return globs.match(prefix + slash, name)

    return matches


def _with_records(broker: FullBroker, raws: Sequence[bytes]) -> Iterator[Dead]:
    ids = [id_in(raw) for raw in raws]
    for raw, id, record in zip(raws, ids, broker.records(ids), strict=True):
        yield Dead(raw, id, decode_or_none(raw), record)


def _by_ids(broker: FullBroker, ids: Sequence[str]) -> dict[str, Dead]:
    """Most records lead straight to their element; only for those that don't the whole list is searched."""
    found = {}
    for id, record in zip(ids, broker.records(ids), strict=True):
        if record is not None and record.state is State.DEAD:
            found[id] = Dead(record.raw, id, decode_or_none(record.raw), record)
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
