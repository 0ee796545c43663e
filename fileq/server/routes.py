"""The one table of endpoints. A new area is a module in api/ with ROUTES, and one line here.

GET /openapi.json describes the API by this table.
"""

from __future__ import annotations

from functools import cache

from msgspec import UnsetType
from starlette.responses import Response

from fileq.core.api_key import Scope
from fileq.server.api import (
    access_endpoints,
    action_endpoints,
    batch_endpoints,
    dead_endpoints,
    file_endpoints,
    job_endpoints,
    live_endpoints,
    queue_endpoints,
    schedule_endpoints,
    upload_endpoints,
    webhook_endpoints,
)
from fileq.server.route import JSON, ApiRequest, NoQuery, Route, RouteList

DESCRIPTION = RouteList("description")


@cache
def _document() -> bytes:
    from fileq.server.openapi import openapi_json  # it imports this table

    return openapi_json()


@DESCRIPTION.add("GET /openapi.json", tuple(Scope), "this description, as OpenAPI 3.1", serves_limited=True)
async def show_description(request: ApiRequest[NoQuery, UnsetType]) -> Response:
    return Response(_document(), media_type=JSON)


# In the order of docs/api.md. Of two routes that match a path the first one is used.
ROUTES: tuple[Route, ...] = (
    *job_endpoints.ROUTES,
    *action_endpoints.ROUTES,
    *dead_endpoints.ROUTES,
    *queue_endpoints.ROUTES,
    *queue_endpoints.STATE,
    *batch_endpoints.ROUTES,
    *schedule_endpoints.ROUTES,
    *webhook_endpoints.ROUTES,
    *file_endpoints.ROUTES,
    *upload_endpoints.ROUTES,
    *live_endpoints.ROUTES,
    *access_endpoints.ROUTES,
    *DESCRIPTION,
)
