"""What a worker puts into a settlement besides the outcome: the retry policy that decides it, the order for the file
(`worker.after`), and the jobs that follow: requested by the handler, `on_completed`, `on_dead`, deliveries of webhooks.

Only computes. The broker keeps the order and enqueues the jobs in the step that applies the settlement, so they exist
exactly if that took effect: a failed, cancelled, lost or superseded attempt leaves none but the deliveries about it.

What a kill -9 leaves: before that step nothing, after it all of them. A job that is run again gives the same ids.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import TYPE_CHECKING, TypeAlias

from msgspec import UNSET, Raw
from msgspec.structs import replace

from fileq.config.schema import AfterSettings, WorkerSettings
from fileq.core.job import (
    Claim,
    Job,
    Version,
    attempt_span_id,
    file_job,
    parent_of,
    typed_job,
    wall_clock_ms,
)
from fileq.core.outcome import EndingPayload, FollowUp, FollowUpRequest, Made, follow_up_id
from fileq.core.own_jobs import DELIVERY_BATCHES, is_own_type
from fileq.core.settlement import Backoff, Policy, Settlement, Verb
from fileq.core.webhook import DELIVERY_ROUTE
from fileq.files.paths import Paths

if TYPE_CHECKING:  # importing the routes would slow down `fileq fsck`
    from fileq.handlers.routes import Routes

KEEP = "keep"
_DELIVERY = re.compile(rf"{DELIVERY_BATCHES}[\w.-]+")  # any program can push a job with any batch_id
AddFollowUps: TypeAlias = Callable[[Settlement], Settlement]


def worker_policy(worker: WorkerSettings) -> Policy:
    """For claims without a route."""
    return _policy(worker, worker.max_retries, worker.backoff)


def route_policies(worker: WorkerSettings, routes: Routes) -> tuple[Policy, ...]:
    """By the number of the route; the last one is for deliveries of webhooks."""
    known = (*routes, routes[DELIVERY_ROUTE])
    return tuple(_policy(worker, route.max_retries, route.backoff, route.route_name) for route in known)


def _policy(worker: WorkerSettings, max_retries: int, backoff: Backoff, handler: str = "") -> Policy:
    """A route may have its own `max_retries` and backoff; `max_recoveries` and `vanished` are always the worker's."""
    return Policy(max_retries, worker.max_recoveries, backoff, worker.vanished == "skip", handler)


def rules_of(after: AfterSettings) -> dict[Verb, str]:
    """The rule for each verb whose files are not kept."""
    rules = {Verb.COMPLETE: after.completed, Verb.BURY: after.dead}
    return {verb: rule for verb, rule in rules.items() if rule != KEEP}


def with_order(settlement: Settlement, processed: str | None, rules: Mapping[Verb, str]) -> Settlement:
    """The settlement with the order for its file, if a rule says so. `processed` is the signature of the version that
    was processed. The order for a member of a delivery names its batch: it waits until that is sealed.

    The file of a superseded job belongs to the job of its newer version, so it is kept. A file at the path of a
    vanished one is not the file of this job. The order does not name the rule: each worker follows its own
    configuration, so a program that can write to the broker cannot choose a directory."""
    job = settlement.claim.job
    if job is None or not job.filepath or settlement.superseded or settlement.vanished or settlement.verb not in rules:
        return settlement
    delivery = f" {job.batch_id}" if _DELIVERY.fullmatch(job.batch_id or "") else ""
    return replace(settlement, order=f"{settlement.verb.value} {processed or ''}{delivery}\n".encode() + job.path)


class FollowUps:
    """`is_any` says whether a route has `on_completed` or `on_dead`, or there are webhooks. Without them, and without
    requests of a handler, there is nothing to do for a settlement."""

    def __init__(self, routes: Routes, paths: Paths, now_ms: Callable[[], int] = wall_clock_ms) -> None:
        self._routes = routes
        self._paths = paths
        self._now_ms = now_ms
        self._is_chained = any(route.on_completed or route.on_dead for route in routes)
        self._subscriptions = routes.subscriptions

    @property
    def is_any(self) -> bool:
        return self._is_chained or (self._subscriptions is not None and self._subscriptions.is_any)

    def added(self, settlement: Settlement, route: int | None = None, made: Made | None = None) -> Settlement:
        """The settlement with what follows from it. `route` is looked up if the caller does not know it; a job that no
        route takes has no `on_dead`."""
        settlement, subscriptions = self._chained(settlement, route, made), self._subscriptions
        job = settlement.claim.job
        if job is None or subscriptions is None or not subscriptions.is_any:
            return settlement
        found = subscriptions.settled(settlement, self._now_ms())
        deliveries = [replace(one, job=self._following(one.job, settlement.claim, job)) for one in found]
        return replace(settlement, follow_ups=(*settlement.follow_ups, *deliveries)) if deliveries else settlement

    def _chained(self, settlement: Settlement, route: int | None, made: Made | None) -> Settlement:
        """The settlement with what its handler requested, and with the `on_completed` or `on_dead` of its route."""
        job = settlement.claim.job
        if job is None:
            return settlement
        if settlement.verb is Verb.BURY and self._is_chained:
            return self._added_to_buried(settlement, job, route)
        if settlement.verb is not Verb.COMPLETE or settlement.superseded or settlement.vanished:
            return settlement
        follow_ups: list[FollowUp] = []
        if made is not None:
            follow_ups += [self._requested(settlement.claim, job, *one) for one in enumerate(made.follow_ups, 1)]
            outputs = tuple(replace(output, path=self._paths.there(output.path)) for output in made.outputs)
            settlement = replace(settlement, outputs=outputs)
        type = self._routes[route].on_completed if route is not None else None
        if type is not None:
            follow_ups.append(self._told(settlement, job, type, "on_completed"))
        return replace(settlement, follow_ups=tuple(follow_ups)) if follow_ups else settlement

    def _added_to_buried(self, settlement: Settlement, job: Job, route: int | None) -> Settlement:
        if route is None:
            route = self._route_of(job)
        type = self._routes[route].on_dead if route is not None else None
        if type is None:
            return settlement
        # A job can die again after it was put back. The start of the attempt tells one death from another.
        follow_up = self._told(settlement, job, type, "on_dead", settlement.claim.claimed_ms)
        return replace(settlement, follow_ups=(follow_up,))

    def _route_of(self, job: Job) -> int | None:
        path = self._paths.here(job.path) if job.filepath else b""
        try:
            return self._routes.find(job, self._paths.relative(path) if path else "")
        except Exception:  # any program can push a job; prepare() has refused one that fileq was not made for
            return None

    def _told(self, settlement: Settlement, job: Job, type: str, *place: object) -> FollowUp:
        """The job of `on_completed` or `on_dead`. Its payload says how this job ended."""
        queue = settlement.claim.queue
        now = _as_time(self._now_ms())
        path, b64 = job.filepath or None, job.filepath_b64 if job.filepath_b64 is not None else UNSET
        result = Raw(settlement.result) if settlement.result else None
        ending = EndingPayload(job.id, job.type, path, settlement.error or None, b64, result)
        told = typed_job(type, ending, priority=queue, now=now, id=follow_up_id(job.id, *place))
        return FollowUp(self._following(told, settlement.claim, job), queue, is_own=not is_own_type(type))

    def _requested(self, claim: Claim, parent: Job, number: int, request: FollowUpRequest) -> FollowUp:
        options, now_ms, version = request.options, self._now_ms(), None
        queue, now = options.priority or claim.queue, _as_time(now_ms)
        if request.path:
            path = self._paths.there(request.path)
            signature = request.signature
            job = file_job(path, size=request.size, priority=queue, now=now, signature=signature, id=options.id)
            version = Version(path, signature)
        else:
            job = typed_job(request.type, None, priority=queue, now=now, id=options.id)
            job = job.but(payload=Raw(request.payload) if request.payload else UNSET)
        if request.joins:
            options = replace(options, batch=parent.batch_id or "")
        job = options.applied(job, now_ms)
        due = options.delay_ms, options.at_ms
        # An id that fileq chose can be computed by others: a job that they enqueued under it is replaced.
        is_own = options.id == follow_up_id(parent.id, number) and not is_own_type(request.type)
        return FollowUp(self._following(job, claim, parent), queue, *due, version, joins=request.joins, is_own=is_own)

    def _following(self, job: Job, claim: Claim, parent: Job) -> Job:
        """In the trace of its parent: below the span of the attempt that it follows, if there is one."""
        trace_id, span_id = parent.trace_id, parent.span_id
        if self._routes.is_traced:
            trace_id, span_id = parent_of(parent)
            if claim.token:  # no slot held a job that died while it waited; a reaper does not know the claim
                span_id = attempt_span_id(parent, claim.key)
        return job.but(parent_id=parent.id, trace_id=trace_id, span_id=span_id)


def _as_time(now_ms: int) -> datetime:
    return datetime.fromtimestamp(now_ms / 1000, UTC)
