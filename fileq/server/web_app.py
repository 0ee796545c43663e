"""The whole server as one ASGI application: what holds for every answer, and which part serves a path.

Adds the request id and security headers, refuses foreign hosts, answers CORS. The API is below /api/v1. Every check
that holds for all its endpoints is here, and nowhere else, in this order: who sends the request, other sites, which
route, read-only, rate, scope, headers, body, then the function. Whatever the end, an unsafe request of a known caller
is audited.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Awaitable, Callable, Mapping
from ipaddress import ip_address
from typing import Any, TypeAlias

import msgspec
from msgspec import UNSET, Struct
from msgspec.structs import replace
from starlette.requests import ClientDisconnect, Request
from starlette.responses import RedirectResponse, Response
from starlette.types import Receive, Scope, Send
from starlette.websockets import WebSocket

from fileq.config.http_settings import is_loopback
from fileq.core.text import shown_json
from fileq.server.api.live_endpoints import serve_events
from fileq.server.authentication import BROKER_HEADER, Caller, RequestSender, check_not_cross_site, check_same_site
from fileq.server.hidden_paths import without_paths
from fileq.server.limits import RequestBody, drop_rest, values_of
from fileq.server.problems import PROBLEMS, ApiProblem, decode_body, decode_query
from fileq.server.route import (
    JSON,
    SAFE,
    ApiAnswer,
    ApiRequest,
    Route,
    RouteTable,
    Row,
    etag_of,
    is_unchanged,
    plain_path,
    request_path,
)
from fileq.server.routes import ROUTES
from fileq.server.services import AuditNote, Services

API = "/api/v1"
Answerer: TypeAlias = Callable[[Request, RequestSender, str], Awaitable[Response]]
SHORT_BODY = 16 << 10
DECODE_S = 10.0
_REQUEST_ID = re.compile(r"[A-Za-z0-9._-]{8,64}")
SECURITY_HEADERS = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
        "form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cache-Control": "no-store",
}
_TOO_SLOW = PROBLEMS["too-slow"][0]
_CORS_ANSWER = {"Access-Control-Expose-Headers": "X-Request-Id, ETag, Retry-After, Location"}
_CORS_PREFLIGHT = {
    "Access-Control-Allow-Methods": "GET, POST, PUT, DELETE",
    "Access-Control-Allow-Headers": (
        "Authorization, X-API-Key, Content-Type, Content-Digest, Idempotency-Key, If-Match, If-None-Match, "
        "Last-Event-ID, X-Request-Id"
    ),
    "Access-Control-Max-Age": "600",
}


class WebRoute(Row, frozen=True, kw_only=True, dict=True):
    """What is served beside the API."""

    function: Answerer


class WebApp:
    def __init__(self, services: Services) -> None:
        self._services = services
        self._settings = services.config.server
        self._endpoints = RouteTable(ROUTES, "endpoint", f"GET {API}/openapi.json lists them")
        own = self._console_routes() if self._settings.console else (WebRoute(path="/login", function=self._login),)
        self._health_headers = {BROKER_HEADER: services.signer.broker_mark}
        health = WebRoute(path="/healthz", function=self._healthz)
        self._others = RouteTable((health, *own), "page", f"the API is below {API}")

    def _console_routes(self) -> tuple[WebRoute, ...]:
        # Imported only here: a server without a console needs no templates.
        from fileq.server.console.console_app import Console

        console = Console(self._services)
        return (
            WebRoute(path="/", function=console.home),
            WebRoute(path="/dashboard/", function=console.home),
            WebRoute(path="/dashboard", function=console.view),
            WebRoute(path="/dashboard/{view:path}", function=console.view),
            WebRoute(path="/static/{name}", function=console.static),
            WebRoute(path="/login", function=console.login),
            WebRoute(method="POST", path="/login", function=console.login),
            WebRoute(method="POST", path="/logout", function=console.logout),
        )

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            await self._serve(Request(scope, receive), send)
        elif scope["type"] == "websocket":
            await self._serve_socket(WebSocket(scope, receive, send))

    async def _serve(self, request: Request, send: Send) -> None:
        given = request.headers.get("x-request-id", "")
        request_id = given if _REQUEST_ID.fullmatch(given) else secrets.token_hex(8)
        sender = self._sender(request)
        try:
            response = await self._answer(request, sender, request_id)
            if response.headers.get("connection") == "close" and response.status_code != _TOO_SLOW:
                await drop_rest(request)
        except ClientDisconnect:
            return
        for name, value in SECURITY_HEADERS.items():
            response.headers.setdefault(name, value)
        response.headers["X-Request-Id"] = request_id
        self._add_cors(request, response)
        await response(request.scope, request.receive, send)

    async def _answer(self, request: Request, sender: RequestSender, request_id: str) -> Response:
        if not self._is_own_host(sender.host):
            detail = f"Host is {sender.host[:100]!r}, which is not a name of this server; add it to server.hosts"
            return ApiProblem("wrong-host", detail).response(request_id)
        path = request_path(request.scope, self._settings.base_path)
        if request.method == "OPTIONS" and "access-control-request-method" in request.headers:
            return Response(status_code=204)
        if path.startswith(f"{API}/"):
            return await self._call(request, path.removeprefix(API), sender, request_id)
        try:
            found, _ = self._others.find(request.method, path)
            return await found.function(request, sender, request_id)
        except ApiProblem as problem:
            return problem.response(request_id)

    def _sender(self, request: Request | WebSocket) -> RequestSender:
        address = request.client.host if request.client is not None else ""
        scheme = "https" if request.scope["scheme"] in ("https", "wss") else "http"
        return self._services.authentication.sender(address, scheme, request.headers)

    def _is_own_host(self, host: str) -> bool:
        """A page of another site can give its name our address, but it can't give its name away."""
        name = host.rpartition(":")[0] if re.search(r":\d*\Z", host) else host
        name = name.strip("[]").lower().rstrip(".")
        own = {"localhost", "127.0.0.1", "::1", *map(str.lower, (self._settings.bind, *self._settings.hosts))}
        return name in own or (not is_loopback(self._settings.bind) and _is_address(name))

    def _add_cors(self, request: Request, response: Response) -> None:
        origin = request.headers.get("origin")
        if self._settings.cors_origins:
            response.headers.add_vary_header("Origin")
        if origin in self._settings.cors_origins:
            response.headers.update({"Access-Control-Allow-Origin": origin, **_CORS_ANSWER})
            if request.method == "OPTIONS":
                response.headers.update(_CORS_PREFLIGHT)

    async def _serve_socket(self, socket: WebSocket) -> None:
        """A WebSocket is not subject to the same-origin policy, so the Origin is always compared."""
        sender = self._sender(socket)
        path: str = socket.scope["path"].removeprefix(self._settings.base_path)
        origin = socket.headers.get("origin")
        is_own = origin is None or origin == sender.origin or origin in self._settings.cors_origins
        if path != f"{API}/ws" or not is_own or not self._is_own_host(sender.host):
            await socket.close(1008)
            return
        await serve_events(self._services, socket, sender)

    async def _healthz(self, request: Request, sender: RequestSender, request_id: str) -> Response:
        return Response(b'{"status":"ok"}', headers=self._health_headers, media_type="application/json")

    async def _login(self, request: Request, sender: RequestSender, request_id: str) -> Response:
        """The one-time link. Any other use of /login belongs to the web pages."""
        services, token = self._services, request.query_params.get("once", "")
        if request.method != "GET" or not token:  # a program that looks at links sends HEAD
            raise ApiProblem("not-found", "'fileq login-link' on the server prints a link to log in")
        try:
            cookie = await services.authentication.login_by_link(token, sender)
        except Exception as error:
            raise services.reported(error, "login", request_id, names_broker=False) from error
        return RedirectResponse(f"{self._settings.base_path}{API}/whoami", 303, {"Set-Cookie": cookie})

    async def _call(self, request: Request, path: str, sender: RequestSender, request_id: str) -> Response:
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
                check_same_site(headers, sender)
            elif caller.is_browser:
                check_not_cross_site(headers)
            found, params = self._endpoints.find(request.method, path)
            action = found.name
            if found.is_unsafe and self._settings.read_only:
                raise ApiProblem("read-only", "server.read_only is set: only GET is answered")
            self._services.rate_limiter.take(caller.id)
            caller.require(found.scopes, serves_limited=found.serves_limited)
            with self._services.bodies.of(caller.id) as body:
                made = await self._read(found, params, request, body, caller)
                response, count = await self._run(found, replace(made, note=note))
        except ClientDisconnect:
            raise
        except Exception as error:
            is_admin = caller is not None and caller.is_admin
            problem = self._services.reported(error, action, request_id, names_broker=is_admin)
            response = problem.response(request_id)
        is_audited = found.is_audited if found is not None else request.method not in SAFE
        if caller is not None and is_audited:
            log, result = self._services.audit, response.status_code
            log.add(log.entry(caller.name, caller.id, action, shown, count, result, request_id, **vars(note)))
        return response

    async def _read(
        self, route: Route, params: Mapping[str, str], request: Request, given: RequestBody, caller: Caller
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
                if (kind := headers.get("content-type", "")).partition(";")[0].strip().lower() != JSON:
                    raise ApiProblem("unsupported-media-type", f"Content-Type is {kind[:100]!r}; it must be {JSON}")
                body = await self._decoded(raw, route.body, given)
            elif raw:
                raise ApiProblem("invalid", "this endpoint takes no body")
        return ApiRequest(caller, params, query, body, self._services, headers, raw, request)

    async def _decoded(self, raw: bytes, type: type[Struct], given: RequestBody) -> Any:
        """A long body is decoded in a thread, so that other requests go on meanwhile."""
        if len(raw) <= SHORT_BODY:
            return decode_body(raw, type)
        pool = self._services.pool
        given.take_values(await pool.call(lambda: values_of(raw), timeout_s=DECODE_S))
        return await pool.call(lambda: decode_body(raw, type), timeout_s=DECODE_S)

    async def _run(self, route: Route, made: ApiRequest[Any, Any]) -> tuple[Response, int]:
        """The answer, and the count for the audit. What a thread returns is also encoded there: it may be long."""
        if route.is_async:
            return _response(route, made, await route.function(made))
        scans_for = made.caller.id if route.is_scan else ""
        timeout_s = route.timeout_s if route.timeout_s is not None else 30.0 if route.is_scan else None
        return await self._services.pool.call(
            lambda: _response(route, made, route.function(made)), scans_for=scans_for, timeout_s=timeout_s
        )


def _is_address(name: str) -> bool:
    try:
        ip_address(name)
    except ValueError:
        return False
    return True


def _response(route: Route, request: ApiRequest[Any, Any], content: Any) -> tuple[Response, int]:
    if isinstance(content, Response):
        return content, 1
    answer = content if isinstance(content, ApiAnswer) else ApiAnswer(content)
    shown = without_paths(msgspec.to_builtins(answer.content)) if request.services.hides_paths else answer.content
    body = shown_json(shown)
    more = dict(answer.headers)
    if route.has_etag:
        more["ETag"] = etag_of(body)
        if not route.is_unsafe and is_unchanged(request.headers, more["ETag"]):
            return Response(status_code=304, headers=more), answer.count
    return Response(body, answer.status or route.status, more, JSON), answer.count


def _check_accept(route: Route, accept: str) -> None:
    made = route.media_type
    wanted = [part.partition(";")[0].strip().lower() for part in accept.split(",") if part.strip()]
    possible = {made, *route.other_types}
    if wanted and {*possible, *(f"{one.partition('/')[0]}/*" for one in possible), "*/*"}.isdisjoint(wanted):
        raise ApiProblem("not-acceptable", f"the answer is {made}; Accept is {accept[:100]!r}")
