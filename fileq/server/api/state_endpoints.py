"""The state of the queue: counts and rates, now, by the hour and of the last hour; the configuration."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

from msgspec import Meta, Struct, UnsetType

from fileq.commands.admin.stats import GONE_STATE, HOUR_MS, gather
from fileq.config.show import redacted
from fileq.core.api_key import Scope
from fileq.core.job import stamp
from fileq.server.background_work import EVERY_S, RATES, LiveSample, per_second
from fileq.server.route import ApiRequest, NoQuery, RouteList

ROUTES = RouteList("state")

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


@ROUTES.add("GET /stats", Scope.READ, "counts, rates and workers")
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


@ROUTES.add("GET /stats/hourly", Scope.READ, "jobs by the hour, up to 30 days")
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


@ROUTES.add("GET /stats/live", Scope.READ, "counts and rates of the last hour")
def show_live_stats(request: ApiRequest[NoQuery, UnsetType]) -> LiveStats:
    """A server takes a sample every 5 seconds, so one that has just started knows little."""
    request.services.samples.take()
    samples = request.services.samples.read()
    last = samples[-MINUTE_SAMPLES:]
    return LiveStats(EVERY_S, tuple(samples), *(per_second(last, name) for name in RATES))


@ROUTES.add("GET /config", Scope.ADMIN, "the configuration, without secrets")
def show_config(request: ApiRequest[NoQuery, UnsetType]) -> ConfigDocument:
    return ConfigDocument(redacted(request.config))
