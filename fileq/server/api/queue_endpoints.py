"""Queues and workers: how many jobs wait, who works on what; pause, resume and clear a queue. The state of all of them:
counts and rates, now, by the hour and of the last hour; the configuration."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Annotated, Any

from msgspec import Meta, Struct, UnsetType

from fileq.brokers.protocol import FullBroker
from fileq.brokers.types import Overview
from fileq.commands.admin.pauses import NOTES, REASON_LENGTH, PauseNote, set_paused
from fileq.commands.admin.running_workers import WorkerList, workers
from fileq.commands.admin.stats import GONE_STATE, HOUR_MS, gather, queues_of
from fileq.config.show import redacted
from fileq.core.api_key import Scope
from fileq.core.job import stamp
from fileq.core.text import did_you_mean
from fileq.server.problems import ApiProblem
from fileq.server.route import ApiAnswer, ApiRequest, NoQuery, RouteList
from fileq.server.services import EVERY_S, RATES, LiveSample, per_second

ROUTES = RouteList("queues")


class QueueDocument(Struct, frozen=True):
    """`oldest_age_s` is for how long the job that comes out next has been ready; null without one. `workers` are the
    slots of living workers that claim from it. `pause` says who paused it, when and why; null if that is not known."""

    name: str
    waiting: int
    oldest_age_s: float | None
    is_paused: bool
    workers: int
    pause: PauseNote | None = None


class QueueList(Struct, frozen=True):
    """Highest priority first. `scheduled` counts the scheduled, retrying and deferred jobs of all queues."""

    at: str
    queues: tuple[QueueDocument, ...]
    waiting: int
    scheduled: int
    running: int


class QueueMessage(Struct, frozen=True):
    """`has_changed` is false if the queue was so already. `reason` is why it is paused; "" if no reason is known."""

    message: str
    queue: str
    is_paused: bool
    has_changed: bool
    waiting: int
    reason: str = ""


class PauseOrder(Struct, frozen=True, forbid_unknown_fields=True):
    """`reason` is shown to others, with the name of the caller."""

    reason: Annotated[str, Meta(max_length=REASON_LENGTH)] = ""


@ROUTES.add("GET /queues", Scope.READ, "the queues: pending jobs, the oldest one, paused or not")
def list_queues(request: ApiRequest[NoQuery, UnsetType]) -> QueueList:
    return queue_list(request.broker, request.broker.overview(1))


def queue_list(broker: FullBroker, overview: Overview) -> QueueList:
    """One round trip if a queue is paused, for the notes about it."""
    notes = NOTES.all(broker) if overview.census.paused else {}
    living = [view.info for view in overview.workers if view.is_alive and not view.info.is_extra]
    slots = Counter(name for info in living for name in {*info.queues})
    queues = tuple(
        QueueDocument(one.name, one.length, one.oldest_age_s, one.is_paused, slots[one.name], one.pause)
        for one in queues_of(overview, notes)
    )
    census = overview.census
    waiting = sum(queue.waiting for queue in queues)
    return QueueList(stamp(census.now_ms) or "", queues, waiting, census.scheduled, census.running)


@ROUTES.add("GET /queues/{name}", Scope.READ, "one queue", has_etag=True)
def show_queue(request: ApiRequest[NoQuery, UnsetType]) -> QueueDocument:
    name = _known(request)
    return next(queue for queue in list_queues(request).queues if queue.name == name)


@ROUTES.add("POST /queues/{name}/pause", Scope.OPERATE, "pause a queue", is_body_optional=True)
def pause_queue(request: ApiRequest[NoQuery, PauseOrder]) -> QueueMessage:
    """No job of the queue is claimed until it is resumed. Jobs that run go on. A reason for a queue that is paused
    already replaces the one before."""
    return _set_paused(request, is_paused=True, reason=request.body.reason)


@ROUTES.add("POST /queues/{name}/resume", Scope.OPERATE, "resume a queue")
def resume_queue(request: ApiRequest[NoQuery, UnsetType]) -> QueueMessage:
    return _set_paused(request, is_paused=False)


def _set_paused(request: ApiRequest[NoQuery, Any], *, is_paused: bool, reason: str = "") -> QueueMessage:
    name, queues, who = _known(request), request.config.worker.priorities, request.caller.name
    result = set_paused(request.broker, name, queues, paused=is_paused, by=who, reason=reason)
    was_paused = is_paused != result.has_changed
    before = {"paused": was_paused, "reason": result.old_reason}
    request.note.changed(before, {"paused": is_paused, "reason": result.reason})
    messages = ("Queue paused", "Queue was already paused") if is_paused else ("Queue resumed", "Queue was not paused")
    message = messages[0 if result.has_changed else 1]
    return QueueMessage(message, name, result.is_paused, result.has_changed, result.waiting, result.reason)


def _known(request: ApiRequest[Any, Any]) -> str:
    name, queues = request.params["name"], request.config.worker.priorities
    if name not in queues:
        advice = did_you_mean(name[:100], queues, f"the queues are {', '.join(queues)}")
        raise ApiProblem("not-found", f"no queue is named {name[:100]!r}; {advice}")
    return name


@ROUTES.add("GET /workers", Scope.READ, "worker processes and what they run")
def list_workers(request: ApiRequest[NoQuery, UnsetType]) -> WorkerList:
    """Worker processes with their slots and the jobs that they run, and those that died within the last hour."""
    return workers(request.broker)


# Cancels what waits in a queue, as Client.clear() does: a bounded number of jobs with each request.

CLEARED_MAX = 5_000  # jobs of one request


class ClearQuery(Struct, frozen=True, forbid_unknown_fields=True):
    """At most `limit` jobs, those that leave the queue next."""

    limit: Annotated[int, Meta(ge=1, le=1_000_000_000)] = CLEARED_MAX


class ClearedJobs(Struct, frozen=True):
    """`is_partial`: the request has cancelled as many as one can; repeat it for the rest."""

    cleared: int
    is_partial: bool


@ROUTES.add("POST /queues/{name}/clear", Scope.OPERATE, "cancel the pending jobs of a queue", is_scan=True)
def clear_queue(request: ApiRequest[ClearQuery, UnsetType]) -> ApiAnswer[ClearedJobs]:
    name = _known(request)
    limit = min(request.query.limit, CLEARED_MAX)
    count = request.services.transport.clear(name, limit)
    return ApiAnswer(ClearedJobs(count, count == limit < request.query.limit), count=count)


# The state of all queues.

DAY_HOURS = 24
HOURS_MAX = 720  # brokers keep 30 days
MINUTE_SAMPLES = round(60 / EVERY_S)
ERROR_PREFIX = "error:"


class JobsToday(Struct, frozen=True):
    """Since midnight UTC. `failed` counts attempts."""

    processed: int
    failed: int


class StatsDocument(Struct, frozen=True):
    """`queues` is the number of waiting jobs by queue. `active_workers` counts the slots of living worker processes.
    `total_failed` counts attempts."""

    queues: dict[str, int]
    total_processed: int
    total_failed: int
    dead_count: int
    active_workers: int
    jobs_today: JobsToday
    at: str
    broker: str
    waiting: int
    scheduled: int
    running: int
    completed: int
    cancelled: int
    paused: tuple[str, ...]
    worker_processes: int
    producers: int
    oldest_age_s: float | None
    completed_per_second: float
    eta_s: float | None


class HoursQuery(Struct, frozen=True, forbid_unknown_fields=True):
    hours: Annotated[int, Meta(ge=1, le=HOURS_MAX)] = DAY_HOURS


class HourStats(Struct, frozen=True):
    """What happened within one hour. `failed` counts attempts; `errors` counts them by their kind."""

    hour: str
    produced: int
    completed: int
    failed: int
    dead: int
    errors: dict[str, int]


class HourlyStats(Struct, frozen=True):
    """The oldest hour first; the last one is the present hour. Hours without jobs are there too."""

    hours: tuple[HourStats, ...]


class LiveStats(Struct, frozen=True):
    """Samples of the last hour, oldest first, as this server took them; the rates are those of the last minute."""

    interval_s: float
    samples: tuple[LiveSample, ...]
    produced_per_second: float
    completed_per_second: float
    failed_per_second: float
    dead_per_second: float


class ConfigDocument(Struct, frozen=True):
    """The configuration of this server. Secrets are masked."""

    config: dict[str, Any]


@ROUTES.add("GET /stats", Scope.READ, "counts, rates and workers", area="state")
def show_stats(request: ApiRequest[NoQuery, UnsetType]) -> StatsDocument:
    broker = request.broker
    stats = gather(broker)
    now_hour = request.services.now_ms() // HOUR_MS
    today = [counters for hour, counters in broker.hourly(DAY_HOURS).items() if hour >= now_hour - now_hour % 24]
    living = [process for process in stats.workers if process.is_alive]
    ages = [queue.oldest_age_s for queue in stats.queues if queue.oldest_age_s is not None]
    same = ("at", "broker", "waiting", "scheduled", "completed", "cancelled", "eta_s")
    return StatsDocument(
        queues={queue.name: queue.length for queue in stats.queues},
        total_processed=stats.totals.get("completed", 0),
        total_failed=stats.totals.get("failed", 0),
        dead_count=stats.dead,
        active_workers=sum(process.slots for process in living),
        jobs_today=JobsToday(*(sum(one.get(name, 0) for one in today) for name in ("completed", "failed"))),
        running=stats.processing,
        paused=tuple(queue.name for queue in stats.queues if queue.is_paused),
        worker_processes=len(living),
        producers=sum(one.state != GONE_STATE for one in stats.producers),
        oldest_age_s=max(ages, default=None),
        completed_per_second=stats.this_hour.per_second("completed"),
        **{name: getattr(stats, name) for name in same},
    )


@ROUTES.add("GET /stats/hourly", Scope.READ, "jobs by the hour, up to 30 days", area="state")
def show_hourly_stats(request: ApiRequest[HoursQuery, UnsetType]) -> HourlyStats:
    count = request.query.hours
    return HourlyStats(hours_of(request.broker.hourly(count), count, request.services.now_ms()))


def hours_of(found: Mapping[int, Mapping[str, int]], count: int, now_ms: int) -> tuple[HourStats, ...]:
    """The last hours from the counters of those that have some."""
    newest = max([now_ms // HOUR_MS, *found])
    return tuple(_hour(hour, found.get(hour, {})) for hour in range(newest - count + 1, newest + 1))


def _hour(hour: int, counters: Mapping[str, int]) -> HourStats:
    errors = {name.removeprefix(ERROR_PREFIX): n for name, n in counters.items() if name.startswith(ERROR_PREFIX)}
    counts = {name: counters.get(name, 0) for name in RATES}
    return HourStats(stamp(hour * HOUR_MS) or "", **counts, errors=dict(sorted(errors.items())))


@ROUTES.add("GET /stats/live", Scope.READ, "counts and rates of the last hour", area="state")
def show_live_stats(request: ApiRequest[NoQuery, UnsetType]) -> LiveStats:
    """A server takes a sample every 5 seconds, so one that has just started knows little."""
    request.services.samples.take()
    samples = request.services.samples.read()
    last = samples[-MINUTE_SAMPLES:]
    return LiveStats(EVERY_S, tuple(samples), *(per_second(last, name) for name in RATES))


@ROUTES.add("GET /config", Scope.ADMIN, "the configuration, without secrets", area="state")
def show_config(request: ApiRequest[NoQuery, UnsetType]) -> ConfigDocument:
    return ConfigDocument(redacted(request.config))
