"""Lists the running workers, and requests that they close their circuit breakers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated

from msgspec import Struct

from fileq.brokers.catalog import Document
from fileq.brokers.lost_workers import LOST_WORKERS, LostWorker, lost_workers_in
from fileq.brokers.protocol import FullBroker
from fileq.brokers.types import Overview
from fileq.commands.admin.worker_checks import check_route, is_configured
from fileq.config import Config
from fileq.core.documented import means
from fileq.core.job import stamp
from fileq.queries.documents import WorkerDocument, worker_documents


class WorkerList(Struct, frozen=True):
    at: Annotated[str, means("the time of the broker's clock (RFC 3339)")]
    workers: Annotated[tuple[WorkerDocument, ...], means("one object for each process")]
    slots: Annotated[int, means("in all processes")]
    busy: Annotated[int, means("in all processes")]
    lost: Annotated[
        tuple[LostWorker, ...], means("processes that died in the last hour and were removed, the newest first")
    ] = ()


class ReportedBreaker(Struct, frozen=True):
    """A breaker that a worker reports as open or half-open."""

    host: str
    pid: int
    route: str
    state: str
    error: str


class BreakerReset(Struct, frozen=True):
    route: Annotated[str, means("the route whose breakers are reset; empty for all routes")]
    open: Annotated[tuple[ReportedBreaker, ...], means("the breakers of that route that workers report")]
    within_s: Annotated[float, means("time until every worker has reset its breakers")]
    is_configured: Annotated[bool, means("the configuration of the command has this route")]


def reset_breaker(broker: FullBroker, config: Config, route: str) -> BreakerReset:
    """Requests that all workers close the breakers of this route, or with "" of all routes, at their next renewal.

    ConfigError for a name that no worker reports and that the configuration does not have."""
    reported = tuple(
        ReportedBreaker(process.host, process.pid, one.route, one.state, one.error)
        for process in workers(broker).workers
        for one in process.breakers
    )
    check_route(route, config, [one.route for one in reported])
    broker.reset_breaker(route)
    wanted = tuple(one for one in reported if route in ("", one.route))
    return BreakerReset(route, wanted, config.worker.heartbeat_ttl / 3, is_configured(route, config))


def workers(broker: FullBroker) -> WorkerList:
    """Two round trips."""
    return workers_in(broker.overview(1), broker.documents(LOST_WORKERS.kind))


def workers_in(overview: Overview, documents: Mapping[str, Document]) -> WorkerList:
    """The processes of this overview, and those that died: `documents` are those of the kind LOST."""
    now_ms = overview.census.now_ms
    found = worker_documents(overview.workers, now_ms)
    known = {(process.host, process.pid) for process in found}  # such as one that was only frozen
    lost = [one for one in lost_workers_in(documents, now_ms) if (one.host, one.pid) not in known]
    return WorkerList(stamp(now_ms) or "", found, sum(p.slots for p in found), sum(p.busy for p in found), tuple(lost))
