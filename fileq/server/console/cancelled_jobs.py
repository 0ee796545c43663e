"""Jobs that people cancelled a moment ago, with what became of them: their rows leave the page of workers. Does no
I/O."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from msgspec import Struct

from fileq.brokers.types import Overview, Record
from fileq.commands.action_log import LoggedAction
from fileq.commands.bulk_actions import JobAction
from fileq.core.job import Job, State, decode_or_none, parse_time

RECENT_S = 900.0
SHOWN = 10


class CancelledJob(Struct, frozen=True):
    """`status` is what the job is now. It may be completed: then it was faster than its cancellation. `name` is its
    file or type, or its id if these are not known."""

    id: str
    name: str
    status: str
    by: str
    at: str


def cancelled_ids(log: Sequence[LoggedAction], now_ms: int) -> dict[str, LoggedAction]:
    """The jobs that were to be cancelled within the last minutes, the newest first, each with its last cancellation."""
    found: dict[str, LoggedAction] = {}
    for one in log:
        at = parse_time(one.at)
        if one.action is JobAction.CANCEL and at is not None and now_ms / 1000 - at.timestamp() <= RECENT_S:
            found |= {id: one for id in one.ids if id not in found}
    return found


def cancelled_jobs(
    ids: Mapping[str, LoggedAction], records: Iterable[Record | None], overview: Overview, *, hides_paths: bool
) -> list[CancelledJob]:
    """Those that a worker had started and that have ended. `overview` has the newest jobs of each state: they tell the
    names."""
    ended = [one for one in records if one is not None and one.id in ids and one.started_ms and _has_ended(one)]
    jobs = (decode_or_none(raw) for raws in overview.first.values() for raw in raws) if ended else ()
    named = {job.id: job for job in jobs if job is not None}
    shown = sorted(ended, key=lambda one: ids[one.id].at, reverse=True)[:SHOWN]
    return [
        CancelledJob(
            one.id, _name(one.id, named.get(one.id), hides_paths), one.state.value, ids[one.id].by, ids[one.id].at
        )
        for one in shown
    ]


def _has_ended(record: Record) -> bool:
    return record.state in (State.CANCELLED, State.COMPLETED, State.DEAD)


def _name(id: str, job: Job | None, hides_paths: bool) -> str:
    if job is None:
        return id
    return (job.filepath if not hides_paths else "") or job.type or id
