"""The one table of endpoints, and the description of the API that is made from it.

A new area is a module in api/ with ROUTES, and one line here. GET /openapi.json describes the API by this table.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cache
from typing import Any

import msgspec
from msgspec import Struct, UnsetType
from starlette.responses import Response

from fileq.core.api_key import Scope
from fileq.queries.documents import BatchDocument, EnqueuedDocument, JobDocument
from fileq.server.api import (
    access_endpoints,
    action_endpoints,
    batch_endpoints,
    definition_endpoints,
    file_endpoints,
    job_endpoints,
    live_endpoints,
    queue_endpoints,
)
from fileq.server.problems import MEDIA_TYPE, PROBLEMS, ProblemDocument
from fileq.server.route import JSON, ApiRequest, NoQuery, Route, RouteList

DESCRIPTION = RouteList("description")


@DESCRIPTION.add("GET /openapi.json", tuple(Scope), "this description, as OpenAPI 3.1", serves_limited=True)
async def show_description(request: ApiRequest[NoQuery, UnsetType]) -> Response:
    return Response(openapi_json(), media_type=JSON)


# In the order of docs/api.md. Of two routes that match a path the first one is used.
ROUTES: tuple[Route, ...] = (
    *job_endpoints.ROUTES,
    *action_endpoints.ROUTES,
    *action_endpoints.DEAD,
    *queue_endpoints.ROUTES,
    *batch_endpoints.ROUTES,
    *definition_endpoints.SCHEDULES,
    *definition_endpoints.WEBHOOKS,
    *file_endpoints.ROUTES,
    *live_endpoints.ROUTES,
    *access_endpoints.ROUTES,
    *DESCRIPTION,
)

_REF = "#/components/schemas/{name}"
COMMON = (
    "unauthenticated",
    "forbidden",
    "cross-site",
    "wrong-host",
    "not-acceptable",
    "rate-limited",
    "broker-away",
    "busy",
    "internal",
)
_WITH_BODY = ("malformed-request", "too-large", "too-slow", "unsupported-media-type", "invalid")


def slugs_of(route: Route) -> list[str]:
    """The problems that this endpoint can answer with."""
    found = [*COMMON, "invalid", *route.problems]
    if not route.serves_limited:
        found.append("not-allowed")
    if route.parameters:
        found.append("not-found")
    if route.is_unsafe:
        found.append("read-only")
    if route.has_idempotency_key:
        found.append("idempotency-mismatch")
    if route.body is not None:
        found += _WITH_BODY
    if route.method == "PUT" and route.has_etag:
        found += ["precondition-failed", "precondition-required"]
    return sorted(set(found), key=list(PROBLEMS).index)


def openapi() -> dict[str, Any]:
    structs = _structs()
    schemas, components = msgspec.json.schema_components(structs, ref_template=_REF)
    refs = dict(zip(structs, schemas, strict=True))
    for document in (JobDocument, EnqueuedDocument, BatchDocument):  # their defaults are for clients
        components[document.__name__]["required"] = list(document.__struct_fields__)
    paths: dict[str, dict[str, Any]] = {}
    for route in ROUTES:
        paths.setdefault(route.open_path, {})[route.method.lower()] = _operation(route, refs, components)
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "fileq",
            "version": "1",
            "summary": "Jobs of a file-processing queue: enqueue, inspect, cancel, retry.",
            "license": {"name": "MIT", "identifier": "MIT"},
        },
        "servers": [{"url": "/api/v1"}],
        "security": [{"key": []}, {"bearer": []}, {"session": []}, {"basic": []}],
        "paths": paths,
        "components": {
            "schemas": dict(sorted(components.items())),
            "securitySchemes": {
                "key": {"type": "apiKey", "in": "header", "name": "X-API-Key"},
                "bearer": {"type": "http", "scheme": "bearer"},
                "session": {"type": "apiKey", "in": "cookie", "name": "fileq_session"},
                "basic": {"type": "http", "scheme": "basic"},
            },
        },
    }


@cache
def openapi_json() -> bytes:
    return msgspec.json.format(msgspec.json.encode(openapi()), indent=1) + b"\n"


def _structs() -> list[type[Struct]]:
    found: dict[type[Struct], None] = {ProblemDocument: None}
    for route in ROUTES:
        for one in (route.body, route.query, route.response):
            if isinstance(one, type):
                found[one] = None
    return list(found)


def _operation(route: Route, refs: Mapping[Any, Any], components: Mapping[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = {
        "operationId": route.name,
        "summary": route.summary,
        "tags": [route.area],
        "parameters": [*_parameters(route, components)],
        "responses": _responses(route, refs),
        "x-scopes": [scope.value for scope in route.scopes],
        "x-serves-limited": route.serves_limited,
    }
    if route.function.__doc__:
        found["description"] = " ".join(route.function.__doc__.split())
    if route.body is not None:
        found["requestBody"] = {"required": not route.is_body_optional, "content": {JSON: {"schema": refs[route.body]}}}
    return found


def _parameters(route: Route, components: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    for name in route.parameters:
        yield {"name": name, "in": "path", "required": True, "schema": {"type": "string"}}
    schema = components[route.query.__name__]
    for name, shape in schema.get("properties", {}).items():
        is_required = name in schema.get("required", [])
        yield {"name": name, "in": "query", "required": is_required, "schema": shape}
    for header, is_sent in (
        ("Idempotency-Key", route.has_idempotency_key),
        ("If-None-Match", route.has_etag and not route.is_unsafe),
        ("If-Match", route.method == "PUT" and route.has_etag),
        *((header, True) for header in route.headers),
    ):
        if is_sent:
            yield {"name": header, "in": "header", "required": False, "schema": {"type": "string"}}


def _responses(route: Route, refs: Mapping[Any, Any]) -> dict[str, Any]:
    is_json = route.response is not None
    plain: dict[str, Any] = {kind: {} for kind in (route.media_type, *route.other_types)}
    content = {JSON: {"schema": refs[route.response]}} if is_json else plain
    found = {str(route.status): {"description": route.summary, "content": content}}
    found |= {str(status): {"description": why, "content": content} for status, why in route.statuses.items()}
    if route.has_etag and not route.is_unsafe:
        found["304"] = {"description": "not changed since the ETag in If-None-Match"}
    problem = {MEDIA_TYPE: {"schema": refs[ProblemDocument]}}
    by_status: dict[int, list[str]] = {}
    for slug in slugs_of(route):
        by_status.setdefault(PROBLEMS[slug][0], []).append(slug)
    found |= {str(status): {"description": ", ".join(slugs), "content": problem} for status, slugs in by_status.items()}
    return dict(sorted(found.items()))
