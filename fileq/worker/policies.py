"""The retry policies of a worker: the only place that builds a Policy from the configuration."""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec import Struct

from fileq.config import WorkerSettings
from fileq.core.retry import Backoff, Policy
from fileq.core.webhook import DELIVERY_ROUTE

if TYPE_CHECKING:  # importing the routes would slow down `fileq fsck`
    from fileq.handlers.routes import Routes


class Policies(Struct, frozen=True):
    """`worker` is for claims without a route; `routes` has one policy for each route, by its number; the last
    one is for deliveries of webhooks."""

    worker: Policy
    routes: tuple[Policy, ...]


def policies_of(worker: WorkerSettings, routes: Routes) -> Policies:
    known = (*routes, routes[DELIVERY_ROUTE])
    by_route = (_policy(worker, route.max_retries, route.backoff, route.route_name) for route in known)
    return Policies(worker_policy(worker), tuple(by_route))


def worker_policy(worker: WorkerSettings) -> Policy:
    return _policy(worker, worker.max_retries, worker.backoff)


def _policy(worker: WorkerSettings, max_retries: int, backoff: Backoff, handler: str = "") -> Policy:
    """A route may have its own `max_retries` and backoff; `max_recoveries` and `vanished` are always the worker's."""
    return Policy(max_retries, worker.max_recoveries, backoff, worker.vanished == "skip", handler)
