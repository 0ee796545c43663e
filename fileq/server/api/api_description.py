"""GET /openapi.json: the API described by its own table."""

from __future__ import annotations

from functools import cache

from msgspec import UnsetType
from starlette.responses import Response

from fileq.core.api_key import Scope
from fileq.server.route import JSON, ApiRequest, NoQuery, Route


@cache
def _document() -> bytes:
    from fileq.server.openapi import openapi_json  # imports the table, which imports this module

    return openapi_json()


async def show_description(request: ApiRequest[NoQuery, UnsetType]) -> Response:
    return Response(_document(), media_type=JSON)


ROUTES = (
    Route(
        method="GET",
        path="/openapi.json",
        area="description",
        scopes=tuple(Scope),
        summary="this description, as OpenAPI 3.1",
        function=show_description,
        response=JSON,
        serves_limited=True,
    ),
)
