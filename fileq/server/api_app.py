"""One request to the API, step by step. Every check that holds for all endpoints is here, and nowhere else.

Order: who sends it, which route, other sites, read-only, rate, scope, headers, body, then the function. Whatever the
end, an unsafe request of a known caller is audited.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
from msgspec import UNSET, Struct
from msgspec.structs import replace
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response

from fileq.core.events import RequestFailed
from fileq.server.audit import AuditNote
from fileq.server.authentication import RequestSender
from fileq.server.base_path import plain_path
from fileq.server.conditional import etag_of, is_unchanged
from fileq.server.csrf import check_not_cross_site, check_same_site
from fileq.server.decoding import decode_body, decode_query
from fileq.server.hidden_paths import without_paths
from fileq.server.identity import Caller
from fileq.server.problems import MEDIA_TYPE, ApiProblem, problem_of
from fileq.server.request_bodies import RequestBody
from fileq.server.route import JSON, SAFE, ApiAnswer, ApiRequest, Route
from fileq.server.services import Services

SHORT_BODY = 16 << 10
DECODE_S = 10.0


class ApiApp:
    """Serves the routes of the table below a path that the caller has removed."""

    def __init__(self, routes: Sequence[Route], services: Services) -> None:
        self._routes = routes
        self._services = services

    async def answer(self, request: Request, path: str, sender: RequestSender, request_id: str) -> Response:
        """Never raises, except for a client that has gone."""
        caller: Caller | None = None
        shown = plain_path(path)
        action, count = f"{request.method} {shown}", 1
        found: Route | None = None
        note = AuditNote()
        try:
            headers = request.headers
            caller = await self._services.authentication.caller(headers, request.cookies, sender)
            if caller.is_browser and request.method not in SAFE:
                check_same_site(headers, sender.scheme, sender.host)
            elif caller.is_browser:
                check_not_cross_site(headers)
            found, params = self._route(request.method, path)
            action = found.name
            if found.is_unsafe and self._services.config.server.read_only:
                raise ApiProblem("read-only", "server.read_only is set: only GET is answered")
            self._services.rate_limiter.take(caller.id)
            caller.require(found.scopes, serves_limited=found.serves_limited)
            with self._services.bodies.of(caller.id) as body:
                made = await self._read(found, params, request, body, caller, request_id)
                response, count = await self._run(found, replace(made, note=note))
        except ClientDisconnect:
            raise
        except Exception as error:
            response = self._problem(error, action, request_id)
        is_audited = found.is_audited if found is not None else request.method not in SAFE
        if caller is not None and is_audited:
            self._services.audit.add(
                caller.name,
                caller.id,
                action,
                shown,
                count=count,
                result=response.status_code,
                request_id=request_id,
                note=note,
            )
        return response

    def _route(self, method: str, path: str) -> tuple[Route, Mapping[str, str]]:
        allowed = []
        wanted = "GET" if method == "HEAD" else method
        for route in self._routes:
            if (found := route.pattern.fullmatch(path)) is None:
                continue
            if route.method == wanted:
                return route, {name: plain_path(value) for name, value in found.groupdict().items()}
            allowed.append(route.method)
        if allowed:
            names = ", ".join(sorted({*allowed, *(["HEAD"] if "GET" in allowed else [])}))
            raise ApiProblem(
                "method-not-allowed", f"{method} is not allowed here; there are {names}", headers={"Allow": names}
            )
        raise ApiProblem(
            "not-found", f"there is no endpoint {plain_path(path)[:200]!r}; GET /api/v1/openapi.json lists them"
        )

    async def _read(
        self,
        route: Route,
        params: Mapping[str, str],
        request: Request,
        given: RequestBody,
        caller: Caller,
        id: str,
    ) -> ApiRequest[Any, Any]:
        headers = request.headers
        _check_accept(route, headers.get("accept", ""))
        query = decode_query(request.query_params.multi_items(), route.query)
        raw, body = b"", UNSET
        if route.reads_body:
            raw = await given.read(request, route.body_max)
            if route.body is not None and not raw and route.is_body_optional:
                body = decode_body(b"{}", route.body)  # type: ignore[assignment]
            elif route.body is not None:
                _check_content_type(headers.get("content-type", ""))
                body = await self._decoded(raw, route.body)
            elif raw:
                raise ApiProblem("invalid", "this endpoint takes no body")
        return ApiRequest(caller, params, query, body, self._services, id, headers, raw, request)

    async def _decoded(self, raw: bytes, type: type[Struct]) -> Any:
        """A long body is decoded in a thread, so that other requests go on meanwhile."""
        if len(raw) <= SHORT_BODY:
            return decode_body(raw, type)
        return await self._services.pool.call(lambda: decode_body(raw, type), timeout_s=DECODE_S)

    async def _run(self, route: Route, made: ApiRequest[Any, Any]) -> tuple[Response, int]:
        """The answer, and the count for the audit. What a thread returns is also encoded there: it may be long."""
        hides_paths = self._services.hides_paths
        if route.is_async:
            return _response(route, await route.function(made), made.headers, hides_paths=hides_paths)

        def work() -> tuple[Response, int]:
            return _response(route, route.function(made), made.headers, hides_paths=hides_paths)

        scans_for = made.caller.id if route.is_scan else ""
        timeout_s = route.timeout_s if route.timeout_s is not None else 30.0 if route.is_scan else None
        return await self._services.pool.call(work, scans_for=scans_for, timeout_s=timeout_s)

    def _problem(self, error: Exception, action: str, request_id: str) -> Response:
        problem = problem_of(error)
        if problem is None:
            self._services.emit(RequestFailed(action, request_id, repr(error)[:500], error))
            problem = ApiProblem("internal", "see the log of the server for this request id")
        return problem_response(problem, request_id)


def problem_response(problem: ApiProblem, request_id: str) -> Response:
    return Response(problem.body(request_id), problem.status, problem.headers, MEDIA_TYPE)


def _response(route: Route, content: Any, headers: Mapping[str, str], *, hides_paths: bool) -> tuple[Response, int]:
    if isinstance(content, Response):
        return content, 1
    answer = content if isinstance(content, ApiAnswer) else ApiAnswer(content)
    shown = without_paths(msgspec.to_builtins(answer.content)) if hides_paths else answer.content
    body = encoded(shown)
    more = dict(answer.headers)
    if route.has_etag:
        more["ETag"] = etag_of(body)
        if not route.is_unsafe and is_unchanged(headers, more["ETag"]):
            return Response(status_code=304, headers=more), answer.count
    return Response(body, answer.status or route.status, more, JSON), answer.count


def encoded(content: Any) -> bytes:
    try:
        return msgspec.json.encode(content)
    except UnicodeEncodeError:  # a file name that is not UTF-8
        return msgspec.json.encode(_escaped(msgspec.to_builtins(content)))


def _escaped(value: Any) -> Any:
    if isinstance(value, str):
        return value.encode(errors="backslashreplace").decode()
    if isinstance(value, dict):
        return {_escaped(key): _escaped(item) for key, item in value.items()}
    return [_escaped(item) for item in value] if isinstance(value, list | tuple) else value


def _check_accept(route: Route, accept: str) -> None:
    made = route.response if isinstance(route.response, str) else JSON
    wanted = [part.partition(";")[0].strip().lower() for part in accept.split(",") if part.strip()]
    possible = {made, *route.other_types}
    if wanted and {*possible, *(f"{one.partition('/')[0]}/*" for one in possible), "*/*"}.isdisjoint(wanted):
        raise ApiProblem("not-acceptable", f"the answer is {made}; Accept is {accept[:100]!r}")


def _check_content_type(content_type: str) -> None:
    if content_type.partition(";")[0].strip().lower() != JSON:
        raise ApiProblem("unsupported-media-type", f"Content-Type is {content_type[:100]!r}; it must be {JSON}")
