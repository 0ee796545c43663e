"""Webhooks with the state of their receivers, and the deliveries of one. Only reads; a secret is never on a page.

The secret of a new webhook is in the answer of the API, which the script shows once. It is not kept.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

from msgspec import Meta, Struct

from fileq.commands.webhooks import deliveries, latest_deliveries
from fileq.core.api_key import Scope
from fileq.core.errors import ConfigError
from fileq.core.webhook import WEBHOOK_EVENTS
from fileq.server.api.webhook_endpoints import list_webhooks
from fileq.server.console.page import PageRequest
from fileq.server.problems import ApiProblem

LATEST = 3


class DeliveryLogQuery(Struct, frozen=True, forbid_unknown_fields=True):
    limit: Annotated[int, Meta(ge=1, le=1000)] = 100


def webhooks(request: PageRequest) -> Mapping[str, Any]:
    found = request.ask(list_webhooks)
    services = request.services
    latest = latest_deliveries(services.broker, services.config, LATEST) if found.webhooks else {}
    return {
        "rows": [(one, latest.get(one.name, ())) for one in found.webhooks],
        "problems": found.problems,
        "events": WEBHOOK_EVENTS,
        "queues": services.config.worker.priorities,
        **_permissions(request),
    }


def webhook(request: PageRequest) -> Mapping[str, Any]:
    name, query = request.params["name"], request.query
    known = {one.name: one for one in request.ask(list_webhooks).webhooks}
    services = request.services
    try:
        found = deliveries(services.broker, services.config, name, query.limit, is_known=name in known)
    except ConfigError as error:
        raise ApiProblem("not-found", str(error)) from error
    return {
        "name": name,
        "webhook": known.get(name),
        "deliveries": request.shown(found).deliveries,
        "limit": query.limit,
        **_permissions(request),
    }


def _permissions(request: PageRequest) -> dict[str, bool]:
    return {"may_operate": request.has(Scope.OPERATE), "may_admin": request.has(Scope.ADMIN)}
