"""The state of the queue: counts, rates, workers."""

from __future__ import annotations

from msgspec import Struct, UnsetType

from fileq.commands.admin.stats import HOUR_MS, Stats, gather
from fileq.core.api_key import Scope
from fileq.server.route import ApiRequest, NoQuery, Route

DAY_HOURS = 24


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


def show_stats(request: ApiRequest[NoQuery, UnsetType]) -> StatsDocument:
    broker = request.services.broker
    stats = gather(broker)
    now_hour = request.services.now_ms() // HOUR_MS
    today = [counters for hour, counters in broker.hourly(DAY_HOURS).items() if hour >= now_hour - now_hour % 24]
    return _document(
        stats,
        JobsToday(sum(one.get("completed", 0) for one in today), sum(one.get("failed", 0) for one in today)),
    )


def _document(stats: Stats, today: JobsToday) -> StatsDocument:
    living = [process for process in stats.workers if process.is_alive]
    ages = [queue.oldest_age_s for queue in stats.queues if queue.oldest_age_s is not None]
    return StatsDocument(
        queues={queue.name: queue.length for queue in stats.queues},
        total_processed=stats.totals.get("completed", 0),
        total_failed=stats.totals.get("failed", 0),
        dead_count=stats.dead,
        active_workers=sum(process.slots for process in living),
        jobs_today=today,
        at=stats.at,
        broker=stats.broker,
        waiting=stats.waiting,
        scheduled=stats.scheduled,
        running=stats.processing,
        completed=stats.completed,
        cancelled=stats.cancelled,
        paused=tuple(queue.name for queue in stats.queues if queue.is_paused),
        worker_processes=len(living),
        producers=len(stats.producers),
        oldest_age_s=max(ages, default=None),
        completed_per_second=stats.this_hour.per_second("completed"),
        eta_s=stats.eta_s,
    )


ROUTES = (
    Route(
        method="GET",
        path="/stats",
        area="state",
        scopes=(Scope.READ,),
        summary="counts, rates and workers",
        function=show_stats,
        response=StatsDocument,
    ),
)
