"""Queues, producers and workers, from one overview of the broker. The cost does not depend on their length."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from typing import Annotated

from msgspec import Struct
from msgspec.structs import asdict, replace

from fileq.brokers.local_processes import Neighbours
from fileq.brokers.protocol import FullBroker
from fileq.brokers.types import Overview, ProducerView
from fileq.commands.admin.pauses import NOTES, PauseNote
from fileq.core.documented import means
from fileq.core.job import stamp
from fileq.queries.documents import Time, WorkerDocument, worker_documents
from fileq.queries.job_filter import waiting_since_ms
from fileq.queries.job_ids import id_in

HOUR_MS = 3_600_000
LATE_MS = 60_000  # a worker fires a schedule within a second; after this time none does
_RATES = ("produced", "completed", "failed", "dead")
_TOTALS = (
    *("adopted", "cancelled", "completed", "consumed", "dead", "deleted", "failed", "fenced", "produced", "recovered"),
    *("released", "retried", "superseded"),
)
_ERROR = "error:"
GONE_STATE = "gone"  # the state of a producer of this machine whose process has ended
LAST_MINUTE = "last_minute"  # values of `eta_basis`: the time whose rate the ETA assumes
LAST_HOURS = "last_hours"
_SHORTEST_ETA_S = 1.0
_LONGER_THAN_USUAL = 2
_SAMPLES = 16  # refreshes over which the current rate is computed


class QueueStats(Struct, frozen=True):
    """One queue."""

    name: str
    length: Annotated[int, means("pending jobs")]
    oldest_age_s: Annotated[float | None, means("how long the next job has been pending")]
    is_paused: bool
    pause: Annotated[PauseNote | None, means("null if it is not paused, or if it is unknown who paused it")] = None


def queues_of(overview: Overview, notes: Mapping[str, PauseNote] = {}) -> tuple[QueueStats, ...]:
    """`notes` are needed only while a queue is paused."""
    census = overview.census
    found = []
    for name, length in census.pending.items():
        front, is_paused = overview.fronts.get(name), name in census.paused
        since_ms = waiting_since_ms(front) if front is not None else None
        age_s = None if since_ms is None else max(0, census.now_ms - since_ms) / 1000
        found.append(QueueStats(name, length, age_s, is_paused, notes.get(name) if is_paused else None))
    return tuple(found)


class LastScan(Struct, frozen=True):
    """The last scan of the whole directory that ended."""

    started_at: Time
    ended_at: Time
    duration_s: float
    found: int
    is_complete: bool
    skipped: Annotated[dict[str, int], means("how many entries it skipped, by reason: excluded, symlink, …")]


class ProducerProcess(Struct, frozen=True):
    """One producer whose lease has not ended, and what it reported last. If it is gone, nothing holds it back."""

    id: str
    host: str
    pid: int
    version: str
    started_at: Time
    roots: Annotated[tuple[str, ...], means("the directories it scans")]
    state: Annotated[
        str,
        means(
            "scanning, watching, held, lost (a directory cannot be read), stuck (no progress) or gone (a"
            " process on this machine that ended without a clean stop)"
        ),
    ]
    problem: Annotated[str, means("why a directory cannot be read; empty if it can")]
    held_by: Annotated[str, means("the setting that limits enqueueing, such as producer.rate_limit_per_sec, or empty")]
    held_since: Annotated[Time, means("since when, without interruption")]
    last_scan: Annotated[LastScan | None, means("null, or the last full scan")]
    enqueued: Annotated[int, means("files enqueued since it started")]
    waiting: Annotated[int, means("files found but not enqueued yet")]


def _summary(view: ProducerView, neighbours: Neighbours) -> ProducerProcess:
    info, last = view.info, None
    if neighbours.is_gone(info.process):
        info = replace(info, state=GONE_STATE, problem="", held_by="", held_since_ms=0)
    if (scan := info.last_scan) is not None:
        seconds = (scan.ended_ms - scan.began_ms) / 1000
        times = stamp(scan.began_ms), stamp(scan.ended_ms), seconds
        last = LastScan(*times, scan.found, scan.is_complete, scan.skipped)
    same = ("host", "pid", "version", "roots", "state", "problem", "held_by", "enqueued", "waiting")
    return ProducerProcess(
        id=view.id,
        started_at=stamp(info.started_ms),
        held_since=stamp(info.held_since_ms),
        last_scan=last,
        **{name: getattr(info, name) for name in same},
    )


class Throughput(Struct, frozen=True):
    """How many jobs were produced, completed, … within `seconds`. The errors by kind are those of failed attempts, of
    refused jobs and of deaths (DEATH_KINDS)."""

    seconds: float
    produced: int
    completed: int
    failed: Annotated[int, means("attempts")]
    dead: int
    refused: Annotated[int, means("dead without an attempt: not a job, no handler, a vanished file")] = 0

    def per_second(self, name: str) -> float:
        count: int = getattr(self, name)
        return count / self.seconds if self.seconds > 0 else 0.0


class ErrorCount(Struct, frozen=True):
    kind: str
    this_hour: int
    last_hour: int


class ScheduleCounts(Struct, frozen=True):
    count: int
    paused: int
    late: Annotated[tuple[str, ...], means("names of schedules overdue by more than a minute")]


class Stats(Struct, frozen=True):
    broker: Annotated[str, means("kind of broker")]
    where: Annotated[str, means("its address or file")]
    at: Annotated[str, means("current time on the broker's clock (RFC 3339)")]
    queues: tuple[QueueStats, ...]
    scheduled: Annotated[int, means("scheduled, retrying and deferred jobs")]
    processing: Annotated[int, means("jobs held by slots, including those about to be deferred")]
    heartbeats: Annotated[int, means("slots with a heartbeat, including those that hold prefetched jobs")]
    completed: Annotated[int, means("jobs in this list")]
    dead: Annotated[int, means("jobs in this list")]
    cancelled: Annotated[int, means("jobs in this list")]
    orders: Annotated[int, means("files of ended jobs still to be moved or deleted (worker.after)")]
    totals: Annotated[
        Mapping[str, int],
        means(
            "all counters since the first start: jobs produced, adopted (pushed by other programs), completed, dead,"
            " cancelled, deleted, recovered and superseded; claims consumed and released; attempts failed, retried and"
            " fenced"
        ),
    ]
    this_hour: Throughput
    last_hour: Throughput
    now: Annotated[Throughput | None, means("over the last refreshes, with --watch; else null")]
    eta_s: Annotated[
        float | None,
        means(
            "seconds until the backlog is done at the current rate; null if unknown, for example while a"
            " job runs much longer than usual"
        ),
    ]
    eta_per_second: Annotated[float | None, means("that rate: jobs completed or dead per second")]
    eta_basis: Annotated[str | None, means("last_minute, or last_hours if no job ended in the last minute")]
    workers: tuple[WorkerDocument, ...]
    producers: Annotated[tuple[ProducerProcess, ...], means("live producers")]
    errors: Annotated[tuple[ErrorCount, ...], means("failed attempts, crashes and refused jobs by kind")]
    schedules: ScheduleCounts

    @property
    def waiting(self) -> int:
        return sum(queue.length for queue in self.queues)

    @property
    def deferred(self) -> int:
        """Jobs that wait because of a circuit breaker, as the workers that are alive report them."""
        return sum(one.deferred for process in self.workers if process.is_alive for one in process.breakers)


class Eta(Struct, frozen=True):
    """When the backlog will be done, at how many jobs a second, and of which time that rate is: fields of Stats."""

    eta_s: float | None
    eta_per_second: float | None = None
    eta_basis: str | None = None


class RecentTotals:
    """The counters at the last refreshes, from which the current rate is computed."""

    def __init__(self) -> None:
        self._samples: deque[tuple[int, Mapping[str, int]]] = deque(maxlen=_SAMPLES)

    def add(self, at_ms: int, totals: Mapping[str, int]) -> Throughput | None:
        """The throughput since the earliest sample that is kept; None for the first sample."""
        self._samples.append((at_ms, totals))
        first_ms, first = self._samples[0]
        if at_ms <= first_ms:
            return None
        grown = {name: max(0, count - first.get(name, 0)) for name, count in totals.items()}
        return _throughput((at_ms - first_ms) / 1000, grown)


def _refused(counters: Mapping[str, int]) -> int:
    """How many jobs were refused: the errors, counted by kind, minus failed attempts and minus deaths.

    Deaths are counted as `recovered`."""
    errors = sum(count for name, count in counters.items() if name.startswith(_ERROR))
    return max(0, errors - counters.get("recovered", 0) - counters.get("failed", 0))


def gather(broker: FullBroker, recent: RecentTotals | None = None) -> Stats:
    """The stats from one overview, and who paused queues; with `recent` also the rates since the calls before."""
    overview = broker.overview(2)
    census = overview.census
    now = recent.add(census.now_ms, census.counters) if recent is not None else None
    this_hour, last_hour = _throughputs(overview)
    neighbours = Neighbours()
    workers = worker_documents(overview.workers, census.now_ms)
    return Stats(
        broker=broker.kind,
        where=broker.where,
        at=stamp(census.now_ms) or "",
        queues=queues_of(overview, NOTES.all(broker) if census.paused else {}),
        processing=census.running,
        **{name: getattr(census, name) for name in ("scheduled", "heartbeats", "completed", "dead", "cancelled")},
        orders=overview.orders,
        totals={name: census.counters.get(name, 0) for name in _TOTALS},
        this_hour=this_hour,
        last_hour=last_hour,
        now=now,
        **asdict(eta_of(overview, lambda: ended_per_second(broker, overview))),
        workers=workers,
        producers=tuple(_summary(view, neighbours) for view in overview.producers),
        errors=_errors(overview),
        schedules=_schedules(broker, census.now_ms),
    )


def _schedules(broker: FullBroker, now_ms: int) -> ScheduleCounts:
    states = broker.schedules()
    fires = {name: state.next_ms for name, state in states.items() if not state.is_paused}
    late = tuple(sorted(name for name, next_ms in fires.items() if next_ms < now_ms - LATE_MS))
    return ScheduleCounts(len(states), len(states) - len(fires), late)


def _throughputs(overview: Overview) -> tuple[Throughput, Throughput]:
    hour, passed_ms = divmod(overview.census.now_ms, HOUR_MS)
    this_hour = _throughput(max(1, passed_ms) / 1000, overview.hours.get(hour, {}))
    return this_hour, _throughput(HOUR_MS / 1000, overview.hours.get(hour - 1, {}))


def _throughput(seconds: float, counters: Mapping[str, int]) -> Throughput:
    return Throughput(seconds, **{name: counters.get(name, 0) for name in _RATES}, refused=_refused(counters))


def eta_of(overview: Overview, last_minute: Callable[[], float]) -> Eta:
    """For all pending and running jobs, without new ones, paused queues and jobs due later.

    The rate is that of the last minute, which is asked for only if it is needed. If no job ended in it, jobs may take
    longer than that: then it is the rate of this hour and the last. There is no ETA without a living worker, nor if a
    job runs for much longer than that rate explains: it is unlike those that ended, and nothing is known about it."""
    census = overview.census
    backlog = census.running + sum(n for name, n in census.pending.items() if name not in census.paused)
    if not backlog:
        return Eta(0.0)
    if not any(view.is_alive for view in overview.workers):
        return Eta(None)
    per_second, basis = last_minute(), LAST_MINUTE
    if not per_second:
        recent = _since_first_worker(overview, *_throughputs(overview))
        per_second, basis = recent.per_second("completed") + recent.per_second("dead"), LAST_HOURS
    if not per_second:
        return Eta(None)
    usual_s = backlog / per_second  # at least what a job takes, because all that run are in the backlog
    running_ms = (census.now_ms - view.since_ms for view in overview.workers if view.raw and view.since_ms)
    is_known = max(running_ms, default=0) / 1000 <= _LONGER_THAN_USUAL * usual_s + _SHORTEST_ETA_S
    return Eta(max(_SHORTEST_ETA_S, usual_s) if is_known else None, per_second, basis)


def _since_first_worker(overview: Overview, this_hour: Throughput, last_hour: Throughput) -> Throughput:
    """This hour and the last. Excludes the time before the first worker started."""
    now_ms, started_ms = overview.census.now_ms, _first_started_ms(overview)
    seconds = min(this_hour.seconds + last_hour.seconds, max(1.0, (now_ms - started_ms) / 1000))
    hours = (this_hour,) if seconds <= this_hour.seconds else (this_hour, last_hour)
    return Throughput(seconds, **{name: sum(getattr(hour, name) for hour in hours) for name in _RATES})


def _first_started_ms(overview: Overview) -> int:
    return min((view.info.started_ms for view in overview.workers if view.is_alive), default=0)


def _errors(overview: Overview) -> tuple[ErrorCount, ...]:
    hour = overview.census.now_ms // HOUR_MS
    this, last = overview.hours.get(hour, {}), overview.hours.get(hour - 1, {})
    kinds = {name for name in (*this, *last) if name.startswith(_ERROR)}
    found = (ErrorCount(name.removeprefix(_ERROR), this.get(name, 0), last.get(name, 0)) for name in kinds)
    return tuple(sorted(found, key=lambda e: (-e.this_hour, -e.last_hour, e.kind)))


# How fast jobs ended in the last minute, from outlines of the newest ended jobs. Changes nothing.
#
# The broker counts by the hour, which says little about now. The lists of ended jobs are newest first, so the outlines
# of the first ones tell how many ended within the minute. The cost is bounded: two calls for each of two lists.


WINDOW_MS = 60_000
MOST = 250  # ended jobs of one list that are looked at


def ended_per_second(broker: FullBroker, overview: Overview) -> float:
    """Jobs that were completed or died in the last minute, per second. The time before the first worker started does
    not count. If more than `MOST` jobs ended, it is the rate over the newest `MOST`."""
    now_ms, started_ms = overview.census.now_ms, _first_started_ms(overview)
    window_ms = max(1000, min(WINDOW_MS, now_ms - started_ms))
    completed = _rate(broker, "completed", overview.census.counters.get("completed", 0), now_ms, window_ms)
    return completed + _rate(broker, "dead_letter", overview.census.dead, now_ms, window_ms)


def _rate(broker: FullBroker, place: str, total: int, now_ms: int, window_ms: int) -> float:
    """`total` jobs were ever put into this place, as far as is known; the place may keep fewer."""
    ids = [id_in(raw) for raw in broker.peek(place, MOST)]
    outlines = broker.outlines(ids) if ids else []
    recent = [one.ended_ms for one in outlines if one is not None and one.ended_ms >= now_ms - window_ms]
    if recent and len(recent) == len(ids) < total:
        # All that the place has are of this minute, and there were more: only their own time says how fast they were.
        return len(recent) / max(0.001, (now_ms - recent[-1]) / 1000)
    return len(recent) / (window_ms / 1000)
