"""openapi.json and docs/api.md, written from the route table and the schemas of its Structs: `make docs`."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import msgspec
from msgspec import Struct

from fileq.server.problems import MEDIA_TYPE, PROBLEMS, ProblemDocument
from fileq.server.route import JSON, Route
from fileq.server.routes import ROUTES

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
    if route.body is not None:
        found += _WITH_BODY
    if route.method == "PUT" and route.has_etag:
        found += ["precondition-failed", "precondition-required"]
    return sorted(set(found), key=list(PROBLEMS).index)


def openapi() -> dict[str, Any]:
    structs = _structs()
    schemas, components = msgspec.json.schema_components(structs, ref_template=_REF)
    refs = dict(zip(structs, schemas, strict=True))
    paths: dict[str, dict[str, Any]] = {}
    for route in ROUTES:
        paths.setdefault(route.open_path, {})[route.method.lower()] = _operation(route, refs, components)
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "fileq",
            "version": "1",
            "summary": "Jobs of a file-processing queue: enqueue, look at, cancel, retry.",
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
        found["requestBody"] = {
            "required": not route.is_body_optional,
            "content": {JSON: {"schema": refs[route.body]}},
        }
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


_HEAD = """\
# REST API

`fileq serve` serves the API below `/api/v1`, and `fileq start` does so beside a producer and a worker. Every request
needs a key, which `fileq keys create` makes, as `X-API-Key: fq_…` or `Authorization: Bearer fq_…`:

```sh
curl -H "X-API-Key: $KEY" -H "Content-Type: application/json" -d '{"type": "report", "payload": {"day": 1}}' \\
  http://127.0.0.1:8080/api/v1/jobs                                      # enqueue a job
curl -H "X-API-Key: $KEY" http://127.0.0.1:8080/api/v1/jobs/ID           # what became of it
curl -H "X-API-Key: $KEY" -T scan.pdf http://127.0.0.1:8080/api/v1/uploads/2026/scan.pdf
curl -H "X-API-Key: $KEY" -N "http://127.0.0.1:8080/api/v1/events?events=job.dead"
```

`make docs` writes this page from the table of endpoints. [openapi.json](openapi.json) describes the same as OpenAPI
3.1, with every field; a server has it at `/api/v1/openapi.json`. [production.md](production.md#the-server) is about
proxies, keys and single sign-on.

- A slash in an id is written as `%2F`. Other programs may push jobs with such ids.
- Bodies are JSON. Times are RFC 3339 in UTC. Answers may get new fields; unknown fields of requests are refused.
- A problem is `application/problem+json` (RFC 9457). Its `type` is `urn:fileq:problem:` and one of the slugs below,
  `instance` names the request, which `X-Request-Id` names too, and `errors` lists everything that is wrong with a body.
- `Idempotency-Key` on a `POST` that enqueues jobs: a repeat returns the jobs of the first request, as long as their
  records live. With another body it is refused.
- A job, queue, batch, operation or schedule has an `ETag`. With `If-None-Match`, the first four are answered with 304
  while they stay the same. `PUT /schedules/{name}` needs the ETag as `If-Match`, so that no client overwrites a change
  that it has not seen; `If-None-Match: *` only creates.
- Lists: `page` and `limit` reach the first 10,000 jobs; `next_cursor` has no such end. A request looks at no more than
  10,000 elements, or 2,000 to 5,000 where the records of jobs must be read. If it ended early, `is_partial` is true:
  follow `next_cursor`, even if there are no jobs on this page. `total` is exact without conditions, and with some if
  the whole list was read; otherwise it is null.
- `GET /dead/groups` looks at the newest 7,500 dead jobs, or 2,000 where records must be read; `scanned` and `total`
  say how many there were, and for a restricted key how many of its jobs match, as in lists. `GET /files` with a status
  looks at 5,000 files, and `GET /files/tree` counts 4,000.
- The conditions are the same for lists, groups and actions; `tag.colour=red` in a query is `{"tag": {"colour": "red"}}`
  in a body.
- Actions on many jobs take two requests: `{"action": "retry", "filter": {"error": "timeout"}}` is a dry run and answers
  `matched`; the same with `"dry_run": false, "expect": N` acts, unless more than 1 % more jobs match by then. More than
  1,000 jobs are done by an operation: 202, and `GET /operations/{id}` shows its progress.
- Uploads: the body is the file. It appears below `server.upload_dir` when it is complete and on the disk; a producer
  that scans this directory enqueues it. `Content-Digest: sha-256=:…:` is compared, and `If-None-Match: *` replaces no
  file.
- Events: [events.md](events.md#over-http) describes the stream and how a client continues it.
- `429` and `503` have `Retry-After`, in seconds. The limit is `server.rate_limit` for each key.
- Scopes: `read`, `enqueue`, `operate` (includes `read`), `files`, `admin` (includes all). An endpoint needs one of
  those in its row.
- The `timeout` and `max_retries` of a key that is restricted or has no `read` can lower those of the job's route, not
  raise them: the worker uses the lower ones, although the answer shows what was asked for.
- A key without `read` sees only the jobs and batches that it made itself; about others it learns no more than that an
  id or a unique key is taken (`duplicate`). Adding to a batch of another caller, and sealing it, takes `operate`.
- A key with `allowed_types` or `path_prefix` is restricted: it enqueues, sees and changes only jobs of these types and
  jobs of files below this directory, and has the batches that it made itself. What it does not name is not allowed:
  with a directory only, there are no types and no commands. Endpoints marked “whole” are about more than a restriction
  can name, and refuse such keys and keys without `read`.
- Paths in requests have no `..`, and tags do not begin with `fileq.`.
"""


def api_markdown() -> str:
    lines = [_HEAD]
    for area in dict.fromkeys(route.area for route in ROUTES):
        lines += [f"## {area.capitalize()}", "", "| request | scope | answer | purpose |", "|---|---|---|---|"]
        lines += [_row(route) for route in ROUTES if route.area == area]
        lines.append("")
    lines += ["## Problems", "", "| slug | status | meaning |", "|---|---|---|"]
    lines += [f"| `{slug}` | {status} | {title} |" for slug, (status, title) in PROBLEMS.items()]
    return "\n".join(lines) + "\n"


def _row(route: Route) -> str:
    scopes = ", ".join(f"`{scope}`" for scope in route.scopes) or "any key"
    scopes += "" if route.serves_limited else ", whole"
    made = route.response.__name__ if route.response is not None else route.media_type
    statuses = " or ".join(str(status) for status in (route.status, *route.statuses))
    names = [field.encode_name for field in msgspec.structs.fields(route.query)]
    query = f"?{'&'.join(f'{name}=' for name in names)}" if names else ""
    taken = f" {route.body.__name__}" if route.body is not None else ""
    return f"| `{route.method} {route.open_path}{query}`{taken} | {scopes} | {statuses} {made} | {route.summary} |"


def main(pages: list[str]) -> None:
    for page in pages:
        text = openapi_json() if re.search(r"\.json\Z", page) else api_markdown().encode()
        Path(page).write_bytes(text)


if __name__ == "__main__":
    main(sys.argv[1:])
