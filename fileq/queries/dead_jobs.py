"""Dead jobs: a list of them, and their groups.

By groups an operator sees a few causes and not thousands of jobs. A bounded number of dead jobs is looked at, the
newest first, and the answer says if there are more. Of most of them only the bytes and the fingerprint are read, so
10,000 of them cost a broker about 50 ms at most. Whole records are read for the samples. Changes nothing.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Annotated, Literal, TypeAlias

from msgspec import Struct
from msgspec.structs import replace

from fileq.brokers.protocol import FullBroker
from fileq.core.documented import means
from fileq.core.job import State, parsed_ms, stamp
from fileq.core.outcome import kind_of
from fileq.queries.documents import JobDocument, Time
from fileq.queries.job_filter import Conditions, JobFilter, StoredJob
from fileq.queries.job_selection import OUTLINE_COST, complete_records, outlined, select

GroupedBy: TypeAlias = Literal["fingerprint", "directory", "kind", "type"]
SCAN_MAX = 10_000
_PAGE = 500
_IDS = 20  # how many ids a group names
_PARTS = 24  # how many parts a timeline has
_NAMED = 3  # how many directories and extensions a group names


class DeadJobs(Struct, frozen=True):
    total: Annotated[int, means("jobs in the dead-letter queue")]
    jobs: Annotated[tuple[JobDocument, ...], means("newest first")]


def list_dead(broker: FullBroker, queues: Sequence[str], wanted: JobFilter) -> DeadJobs:
    """The newest dead jobs, newest first; with conditions, the newest that meet them."""
    states = wanted.states((State.DEAD,), "the dead-letter queue holds dead jobs only")
    found = tuple(dead.document() for dead in select(broker, queues, wanted, states))
    return DeadJobs(broker.census().dead, found)


class NameCount(Struct, frozen=True):
    name: str
    count: int


class DeadGroup(Struct, frozen=True):
    """Dead jobs that have something in common."""

    key: Annotated[str, means("the fingerprint, directory, kind or type that its jobs share")]
    count: int
    fingerprint: Annotated[str, means("of the newest job, like error, kind, type and sample")]
    error: str
    kind: str
    type: str | None
    first: Annotated[Time, means("when the first of them died")]
    last: Annotated[Time, means("when the last of them died")]
    directories: Annotated[tuple[NameCount, ...], means("most common directories of its files, at most 3")]
    extensions: Annotated[tuple[NameCount, ...], means("most common extensions of its files, at most 3")]
    sample_id: str
    sample_path: str
    newest_ids: Annotated[tuple[str, ...], means("of its newest 20 jobs")] = ()
    timeline: Annotated[tuple[int, ...], means("deaths in 24 equal parts of timeline_from to timeline_until")] = ()
    newest_times: Annotated[tuple[str | None, ...], means("when each of newest_ids died")] = ()


class DeadGroups(Struct, frozen=True):
    """The dead jobs in groups."""

    by: Annotated[str, means("fingerprint, directory, kind or type")]
    total: Annotated[int, means("jobs in the dead-letter queue")]
    scanned: Annotated[int, means("dead jobs examined, newest first")]
    is_partial: Annotated[bool, means("older dead jobs were not examined")]
    group_count: Annotated[int, means("groups found, including those beyond the limit")]
    groups: Annotated[tuple[DeadGroup, ...], means("largest first")]
    timeline_from: Annotated[Time, means("the first death found")] = None
    timeline_until: Annotated[Time, means("the last death found")] = None
    newest_ids: Annotated[tuple[str, ...], means("of the newest 20 jobs of all groups")] = ()


def group_dead(
    broker: FullBroker, wanted: JobFilter, by: GroupedBy = "fingerprint", *, limit: int = 20, scan_max: int = SCAN_MAX
) -> DeadGroups:
    """The largest groups of the dead jobs that meet the conditions, among the newest `scan_max`.

    Fewer jobs are looked at if the bytes of a job do not say enough: reading an outline costs as much as OUTLINE_COST
    jobs."""
    prefix = (wanted.fingerprint or "") if by == "fingerprint" else ""
    if prefix:  # the fingerprints are read anyway, without outlines
        wanted = replace(wanted, fingerprint=None)
    conditions, found, cursor, scanned, total = Conditions(wanted), dict[str, _Gathered](), "", 0, 0
    newest_ids: list[str] = []
    cost, cost_of_one = 0, OUTLINE_COST if conditions.needs_records or wanted.queue is not None else 1
    while cost < scan_max:
        size = min(_PAGE, -(-(scan_max - cost) // cost_of_one))
        page = broker.page("dead_letter", cursor, size)
        total = max(total, page.total)
        scanned += len(page.raws)
        jobs = outlined(broker, page.raws, "dead_letter", conditions).jobs
        cost += len(page.raws) * cost_of_one + _add_dates(broker, jobs) * OUTLINE_COST
        keys = _fingerprints(broker, jobs) if by == "fingerprint" else [_key_of(dead, by) for dead in jobs]
        for key, dead in zip(keys, jobs, strict=True):
            if not key.startswith(prefix):
                continue
            if (gathered := found.get(key)) is None:
                gathered = found[key] = _Gathered(dead)
            gathered.add(dead)
            if len(newest_ids) < _IDS:
                newest_ids.append(dead.id)
        cursor = page.next_cursor
        if not cursor:
            break
    largest = sorted(found.items(), key=lambda item: (-item[1].count, item[0]))[:limit]
    newest = complete_records(broker, [gathered.newest for _, gathered in largest])
    groups = tuple(gathered.group(key, dead) for (key, gathered), dead in zip(largest, newest, strict=True))
    if wanted.only is not None:  # how many jobs others have is not for this caller
        total = scanned = sum(gathered.count for gathered in found.values())
    seen = DeadGroups(by, total, scanned, bool(cursor), len(found), groups, newest_ids=tuple(newest_ids))
    return _with_timelines(seen, found)


def _with_timelines(groups: DeadGroups, found: Mapping[str, _Gathered]) -> DeadGroups:
    times = [time for gathered in found.values() for time in gathered.times_ms]
    if not times:
        return groups
    first, last = min(times), max(times)
    with_each = tuple(
        replace(group, timeline=timeline(found[group.key].times_ms, first, last, _PARTS)) for group in groups.groups
    )
    return replace(groups, groups=with_each, timeline_from=stamp(first), timeline_until=stamp(last))


def timeline(times_ms: Iterable[int], first_ms: int, last_ms: int, parts: int) -> tuple[int, ...]:
    """How many of the times are in each of these equal parts of the time from the first to the last, both included."""
    counts, length = [0] * parts, last_ms - first_ms + 1
    for time in times_ms:
        counts[(time - first_ms) * parts // length] += 1
    return tuple(counts)


def _add_dates(broker: FullBroker, jobs: list[StoredJob]) -> int:
    """Adds outlines to the jobs whose bytes do not say when they died. Returns how many these are."""
    undated = [i for i, dead in enumerate(jobs) if dead.record is None and not _failed_at(dead)]
    outlines = broker.outlines([jobs[i].id for i in undated]) if undated else []
    for i, outline in zip(undated, outlines, strict=True):
        jobs[i] = replace(jobs[i], record=outline)
    return len(undated)


def _fingerprints(broker: FullBroker, jobs: Sequence[StoredJob]) -> list[str]:
    """Of each job. Without a recorded one, as of a job that another program pushed, it follows from the bytes."""
    unread = [i for i, dead in enumerate(jobs) if dead.record is None]
    recorded = [dead.record.fingerprint if dead.record is not None else "" for dead in jobs]
    for i, found in zip(unread, broker.fingerprints([jobs[i].id for i in unread]) if unread else (), strict=True):
        recorded[i] = found
    return [found or dead.fingerprint for found, dead in zip(recorded, jobs, strict=True)]


def _key_of(dead: StoredJob, by: GroupedBy) -> str:
    if by == "kind":
        return kind_of(dead.error)
    if by == "type":
        return (dead.job.type if dead.job is not None else "") or ""
    return _path_of(dead).rpartition("/")[0]


def _failed_at(dead: StoredJob) -> str:
    return (dead.job.failed_at if dead.job is not None else "") or ""


def _path_of(dead: StoredJob) -> str:
    return dead.job.filepath if dead.job is not None else ""


class _Gathered:
    """A group while jobs are added to it, the newest first."""

    def __init__(self, newest: StoredJob) -> None:
        self.newest = newest
        self.count = 0
        self._ids: list[str] = []
        self._newest_ms: list[int] = []
        self.times_ms: list[int] = []  # of those deaths whose time is known
        self._directories = Counter[str]()
        self._extensions = Counter[str]()

    def add(self, dead: StoredJob) -> None:
        self.count += 1
        died_ms = (parsed_ms(_failed_at(dead)) if dead.record is None else 0) or dead.time_ms
        if len(self._ids) < _IDS:
            self._ids.append(dead.id)
            self._newest_ms.append(died_ms)
        if died_ms:
            self.times_ms.append(died_ms)
        if path := _path_of(dead):
            directory, _, name = path.rpartition("/")
            self._directories[directory or "/"] += 1
            stem, dot, extension = name.rpartition(".")
            self._extensions[f".{extension}" if stem and dot else "(none)"] += 1

    def group(self, key: str, newest: StoredJob) -> DeadGroup:
        """`newest` is with its whole record."""
        is_first_known = len(self.times_ms) == self.count
        return DeadGroup(
            key=key,
            count=self.count,
            fingerprint=newest.fingerprint,
            error=newest.document().error or "",
            kind=kind_of(newest.error),
            type=newest.job.type if newest.job is not None else None,
            first=stamp(min(self.times_ms)) if is_first_known else None,
            last=stamp(max(self.times_ms, default=0)),
            directories=_most(self._directories),
            extensions=_most(self._extensions),
            sample_id=newest.id,
            sample_path=_path_of(newest),
            newest_ids=tuple(self._ids),
            newest_times=tuple(map(stamp, self._newest_ms)),
        )


def _most(counts: Counter[str]) -> tuple[NameCount, ...]:
    """The largest; of equal ones the one that was seen first."""
    return tuple(NameCount(name, count) for name, count in counts.most_common(_NAMED))
