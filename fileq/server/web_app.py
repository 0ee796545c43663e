"""The whole server as one ASGI application: what holds for every answer, and which part serves a path.

Adds the request id and security headers, refuses foreign hosts, answers CORS. The API is below /api/v1; other parts,
such as web pages, are registered with `add`.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Awaitable, Callable
from ipaddress import ip_address
from typing import TypeAlias

from starlette.requests import ClientDisconnect, Request
from starlette.responses import RedirectResponse, Response
from starlette.types import Receive, Scope, Send
from starlette.websockets import WebSocket

from fileq.config.http_settings import is_loopback
from fileq.server.api_app import ApiApp, problem_response
from fileq.server.authentication import RequestSender
from fileq.server.base_path import plain_path, request_path
from fileq.server.live_streams import EventSocket
from fileq.server.problems import PROBLEMS, ApiProblem, problem_of
from fileq.server.request_bodies import drop_rest
from fileq.server.routes import ROUTES
from fileq.server.services import Services

API = "/api/v1"
Page: TypeAlias = Callable[[Request, RequestSender, str], Awaitable[Response]]
Socket: TypeAlias = Callable[[WebSocket, RequestSender], Awaitable[None]]
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
_CORS_METHODS = "GET, POST, PUT, DELETE"
_CORS_HEADERS = (
    "Authorization, X-API-Key, Content-Type, Content-Digest, Idempotency-Key, If-Match, If-None-Match, Last-Event-ID, "
    "X-Request-Id"
)


class WebApp:
    """`add` registers a page for the paths that match a pattern, `add_socket` a WebSocket below /api/v1."""

    def __init__(self, services: Services) -> None:
        self._services = services
        self._settings = services.config.server
        self._api = ApiApp(ROUTES, services)
        self._pages: list[tuple[re.Pattern[str], Page]] = []
        self._sockets: dict[str, Socket] = {}
        self.add(r"/healthz", _healthz)
        if self._settings.console:
            self._add_console()
        else:
            self.add(r"/login", self._login)
        self.add_socket("/ws", EventSocket(services).serve)

    def _add_console(self) -> None:
        # Imported only here: a server without pages needs no templates.
        from fileq.server.console.console_app import Console
        from fileq.server.console.login_page import LoginPage

        console, login = Console(self._services), LoginPage(self._services)
        self.add(r"/|/dashboard/", console.home)
        self.add(r"/dashboard(/.+)?", console.page)
        self.add(r"/static/[^/]+", console.static)
        self.add(r"/login", login.login)
        self.add(r"/logout", login.logout)

    def add(self, pattern: str, page: Page) -> None:
        self._pages.append((re.compile(pattern), page))

    def add_socket(self, path: str, socket: Socket) -> None:
        self._sockets[path] = socket

    def stop_streams(self) -> None:
        self._services.stop_streams()

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
            return problem_response(ApiProblem("wrong-host", detail), request_id)
        path = self._path(request)
        if request.method == "OPTIONS" and "access-control-request-method" in request.headers:
            return Response(status_code=204)
        if path.startswith(f"{API}/"):
            return await self._api.answer(request, path.removeprefix(API), sender, request_id)
        path = plain_path(path)
        for pattern, page in self._pages:
            if pattern.fullmatch(path):
                try:
                    return await page(request, sender, request_id)
                except ApiProblem as problem:
                    return problem_response(problem, request_id)
        return problem_response(
            ApiProblem("not-found", f"there is no {path[:200]!r}; the API is below {API}"), request_id
        )

    def _path(self, request: Request) -> str:
        return request_path(request.scope, self._settings.base_path)

    def _sender(self, request: Request | WebSocket) -> RequestSender:
        address = request.client.host if request.client is not None else ""
        scheme = "https" if request.scope["scheme"] in ("https", "wss") else "http"
        return self._services.authentication.sender(address, scheme, request.headers)

    def _is_own_host(self, host: str) -> bool:
        """A page of another site can give its name our address, but it can't give its name away."""
        name = host.rpartition(":")[0] if re.search(r":\d*\Z", host) else host
        name = name.strip("[]").lower().rstrip(".")
        own = {
            "localhost",
            "127.0.0.1",
            "::1",
            self._settings.bind.lower(),
            *(one.lower() for one in self._settings.hosts),
        }
        return name in own or (not is_loopback(self._settings.bind) and _is_address(name))

    def _add_cors(self, request: Request, response: Response) -> None:
        origin = request.headers.get("origin")
        if not self._settings.cors_origins:
            return
        response.headers.add_vary_header("Origin")
        if origin not in self._settings.cors_origins:
            return
        response.headers["Access-Control-Allow-Origin"] = origin
        response.headers["Access-Control-Expose-Headers"] = "X-Request-Id, ETag, Retry-After, Location"
        if request.method == "OPTIONS":
            response.headers["Access-Control-Allow-Methods"] = _CORS_METHODS
            response.headers["Access-Control-Allow-Headers"] = _CORS_HEADERS
            response.headers["Access-Control-Max-Age"] = "600"

    async def _serve_socket(self, socket: WebSocket) -> None:
        """A WebSocket is not subject to the same-origin policy, so the Origin is always compared."""
        sender = self._sender(socket)
        path: str = socket.scope["path"].removeprefix(self._settings.base_path)
        serve = self._sockets.get(path.removeprefix(API)) if path.startswith(API) else None
        origin = socket.headers.get("origin")
        is_own = origin is None or origin == f"{sender.scheme}://{sender.host}" or origin in self._settings.cors_origins
        if serve is None or not is_own or not self._is_own_host(sender.host):
            await socket.close(1008)
            return
        await serve(socket, sender)

    async def _login(self, request: Request, sender: RequestSender, request_id: str) -> Response:
        """The one-time link. Any other use of /login belongs to the web pages."""
        services, token = self._services, request.query_params.get("once", "")
        if request.method != "GET" or not token:
            raise ApiProblem("not-found", "'fileq login-link' on the server prints a link to log in")
        try:
            id = await services.link_login.subject(token, sender.address)
        except Exception as error:
            if (problem := problem_of(error)) is None:
                raise
            raise problem from error
        response = RedirectResponse(f"{self._settings.base_path}{API}/whoami", 303)
        response.headers["Set-Cookie"] = services.sessions.cookie(id, is_https=sender.scheme == "https")
        return response


async def _healthz(request: Request, sender: RequestSender, request_id: str) -> Response:
    return Response(b'{"status":"ok"}', media_type="application/json")


def _is_address(name: str) -> bool:
    try:
        ip_address(name)
    except ValueError:
        return False
    return True
