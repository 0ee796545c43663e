"""Groups of dead jobs, so that an operator sees a few causes and not thousands of jobs. Changes nothing.

Looks at a bounded number of dead jobs, the newest first, and says if there are more.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Literal, TypeAlias

from msgspec import Struct
from msgspec.structs import replace

from fileq.brokers.protocol import FullBroker
from fileq.client.job_filter import Conditions, JobFilter, StoredJob
from fileq.client.job_selection import outlined
from fileq.core.error_kinds import kind_of
from fileq.core.job import stamp

GroupedBy: TypeAlias = Literal["fingerprint", "directory", "kind", "type"]
SCAN_MAX = 10_000
_PAGE = 500
_PARTS = 24  # of a timeline
_NAMED = 3  # directories and extensions of a group


class NameCount(Struct, frozen=True):
    name: str
    count: int


class DeadGroup(Struct, frozen=True):
    """Dead jobs that share `key`. The error, its kind, the type, the fingerprint and the sample are of the newest.
    `timeline` is how many died in each of 24 equal parts of the time of the whole answer, from `timeline_from` to
    `timeline_until`."""

    key: str
    count: int
    fingerprint: str
    error: str
    kind: str
    type: str | None
    first: str | None
    last: str | None
    directories: tuple[NameCount, ...]
    extensions: tuple[NameCount, ...]
    sample_id: str
    sample_path: str
    timeline: tuple[int, ...] = ()


class DeadGroups(Struct, frozen=True):
    """`is_partial`: older dead jobs were not looked at. `group_count` includes the groups beyond the limit. The
    timelines begin with the first death that was seen and end with the last; null if there is none."""

    by: str
    total: int
    scanned: int
    is_partial: bool
    group_count: int
    groups: tuple[DeadGroup, ...]
    timeline_from: str | None = None
    timeline_until: str | None = None


def group_dead(
    broker: FullBroker, wanted: JobFilter, by: GroupedBy = "fingerprint", *, limit: int = 20, scan_max: int = SCAN_MAX
) -> DeadGroups:
    """The largest groups of the dead jobs that meet the conditions."""
    conditions, found, cursor, scanned, total = Conditions(wanted), dict[str, _Gathered](), "", 0, 0
    while scanned < scan_max:
        page = broker.page("dead_letter", cursor, min(_PAGE, scan_max - scanned))
        total = max(total, page.total)
        scanned += len(page.raws)
        for dead in outlined(broker, page.raws, "dead_letter", conditions, is_outline_needed=True):
            key = _key_of(dead, by)
            if key not in found:
                found[key] = _Gathered(dead)
            found[key].add(dead)
        cursor = page.next_cursor
        if not cursor:
            break
    largest = sorted(found.items(), key=lambda item: (-item[1].count, item[0]))[:limit]
    groups = tuple(gathered.group(key) for key, gathered in largest)
    return _with_timelines(DeadGroups(by, total, scanned, bool(cursor), len(found), groups), found)


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


def _key_of(dead: StoredJob, by: GroupedBy) -> str:
    if by == "fingerprint":
        return dead.fingerprint
    if by == "kind":
        return kind_of(dead.error)
    if by == "type":
        return (dead.job.type if dead.job is not None else "") or ""
    return _path_of(dead).rpartition("/")[0]


def _path_of(dead: StoredJob) -> str:
    return dead.job.filepath if dead.job is not None else ""


class _Gathered:
    """A group while jobs are added to it, the newest first."""

    def __init__(self, newest: StoredJob) -> None:
        self._newest = newest
        self.count = 0
        self._first_ms = self._last_ms = newest.time_ms
        self.times_ms: list[int] = []  # of those deaths whose time is known
        self._directories: Counter[str] = Counter()
        self._extensions: Counter[str] = Counter()

    def add(self, dead: StoredJob) -> None:
        self.count += 1
        self._first_ms, self._last_ms = min(self._first_ms, dead.time_ms), max(self._last_ms, dead.time_ms)
        if dead.time_ms:
            self.times_ms.append(dead.time_ms)
        if path := _path_of(dead):
            directory, _, name = path.rpartition("/")
            self._directories[directory or "/"] += 1
            stem, dot, extension = name.rpartition(".")
            self._extensions[f".{extension}" if stem and dot else "(none)"] += 1

    def group(self, key: str) -> DeadGroup:
        newest = self._newest
        return DeadGroup(
            key=key,
            count=self.count,
            fingerprint=newest.fingerprint,
            error=newest.summary().error,
            kind=kind_of(newest.error),
            type=newest.job.type if newest.job is not None else None,
            first=stamp(self._first_ms),
            last=stamp(self._last_ms),
            directories=_most(self._directories),
            extensions=_most(self._extensions),
            sample_id=newest.id,
            sample_path=_path_of(newest),
        )


def _most(counts: Counter[str]) -> tuple[NameCount, ...]:
    return tuple(NameCount(name, count) for name, count in counts.most_common(_NAMED))
