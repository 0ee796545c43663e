"""Which row of a table serves a path; the rows of the API, what their functions get, and the path of a request.

A plain function runs in a thread of the pool and may call the broker; it returns the Struct of its answer, or an
ApiAnswer. An `async def` runs in the event loop and must never call the broker itself, only through `services.pool`.
"""

from __future__ import annotations

import hashlib
import inspect
import re
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any, Generic, TypeVar, get_args, get_origin, get_type_hints
from urllib.parse import quote, unquote

import msgspec
from msgspec import UNSET, Struct, UnsetType, field

from fileq.core.api_key import Scope
from fileq.server.authentication import Caller
from fileq.server.hidden_paths import without_paths
from fileq.server.problems import ApiProblem
from fileq.server.services import AuditNote

if TYPE_CHECKING:
    from starlette.requests import Request

    from fileq.brokers.protocol import FullBroker
    from fileq.config import Config
    from fileq.server.services import Services

T = TypeVar("T")
Q = TypeVar("Q")
B = TypeVar("B")
C = TypeVar("C", bound=Struct, covariant=True)
SAFE = ("GET", "HEAD")
BODY_MAX = 1 << 20
JSON = "application/json"
_PARAMETER = re.compile(r"\{(\w+)(:path)?\}")


class Row(Struct, frozen=True, kw_only=True, dict=True):
    """What serves a path. {name} in it is one part, {name:path} the rest."""

    path: str
    method: str = "GET"

    @cached_property
    def pattern(self) -> re.Pattern[str]:
        parts, end = [], 0
        for found in _PARAMETER.finditer(self.path):
            parts.append(re.escape(self.path[end : found.start()]))
            parts.append(f"(?P<{found[1]}>{'.+' if found[2] else '[^/]+'})")
            end = found.end()
        return re.compile("".join([*parts, re.escape(self.path[end:])]), re.DOTALL)

    @property
    def parameters(self) -> list[str]:
        return [found[1] for found in _PARAMETER.finditer(self.path)]

    @property
    def open_path(self) -> str:
        """The path as OpenAPI writes it."""
        return _PARAMETER.sub(r"{\1}", self.path)


R = TypeVar("R", bound=Row)


class RouteTable(Generic[R]):
    """Of two rows that match a path the first one is used. `what` the rows are, and where a caller finds them, is for
    the error."""

    def __init__(self, rows: Sequence[R], what: str, advice: str) -> None:
        self._rows = rows
        self._what = what
        self._advice = advice

    def find(self, method: str, path: str) -> tuple[R, Mapping[str, str]]:
        """The row, and the parameters in its path; HEAD is served as GET. Raises ApiProblem if there is none."""
        allowed = []
        wanted = "GET" if method == "HEAD" else method
        for row in self._rows:
            if (found := row.pattern.fullmatch(path)) is None:
                continue
            if row.method == wanted:
                return row, {name: plain_path(value) for name, value in found.groupdict().items()}
            allowed.append(row.method)
        if allowed:
            names = ", ".join(sorted({*allowed, *(["HEAD"] if "GET" in allowed else [])}))
            detail = f"{method} is not allowed here; use {names}"
            raise ApiProblem("method-not-allowed", detail, headers={"Allow": names})
        raise ApiProblem("not-found", f"there is no {self._what} {plain_path(path)[:200]!r}; {self._advice}")


class NoQuery(Struct, frozen=True, forbid_unknown_fields=True):
    """For endpoints without query parameters."""


NO_QUERY = NoQuery()


class ApiRequest(Struct, Generic[Q, B], frozen=True):
    """One request that may be served: `query` and `body` are decoded and valid.

    `raw_body` is the body as it was sent. `http` is the request of the web framework, for endpoints that stream.
    `origin` is scheme and host of this server, as a browser knows them. `note` is what the audit says about it."""

    caller: Caller
    params: Mapping[str, str]
    query: Q
    body: B
    services: Services
    headers: Mapping[str, str] = {}
    raw_body: bytes = b""
    http: Request | None = None
    origin: str = ""
    note: AuditNote = field(default_factory=AuditNote)

    @property
    def broker(self) -> FullBroker:
        return self.services.broker

    @property
    def config(self) -> Config:
        return self.services.config

    @property
    def id(self) -> str:
        """Of what the path names."""
        return self.params["id"]

    def ask(self, function: Callable[[ApiRequest[Any, Any]], T], query: Struct = NO_QUERY, *, body: Any = UNSET) -> T:
        """What another endpoint returns for this caller and the same path parameters. Raises ApiProblem."""
        return self.shown(function(ApiRequest(self.caller, self.params, query, body, self.services)))

    def shown(self, answer: T) -> T:
        """The answer as the API sends it: without paths if this server hides them."""
        if not self.services.hides_paths:
            return answer
        return msgspec.convert(without_paths(msgspec.to_builtins(answer)), type(answer))

    def has(self, scope: Scope) -> bool:
        """Whether the caller may use what needs this scope, on this server."""
        return scope in self.caller.scopes and (scope is Scope.READ or not self.config.server.read_only)


class ApiAnswer(Struct, Generic[C], frozen=True):
    """An answer with another status than the route's, or with headers. `count` is what the audit says."""

    content: C
    status: int = 0  # 0: that of the route
    headers: dict[str, str] = {}
    count: int = 1


F = TypeVar("F", bound=Callable[[ApiRequest[Any, Any]], Any])


class Endpoint(Row, frozen=True, kw_only=True, dict=True):
    """What a function serves; the query and the body that it takes are those of its `request`.

    A caller needs one of `scopes`; with none any known caller is accepted. `is_scan`: looks through lists, so that few
    run at a time. `serves_limited`: the function shows and changes only what `caller` sees, so that callers with a
    restriction or without the scope `read` are let in; see Caller."""

    function: Callable[[ApiRequest[Any, Any]], Any]
    scopes: tuple[Scope, ...]
    is_scan: bool = False
    timeout_s: float | None = None  # None: the pool's own
    serves_limited: bool = False

    @cached_property
    def types(self) -> dict[str, Any]:
        return get_type_hints(self.function)

    @cached_property
    def query(self) -> type[Struct]:
        found: type[Struct] = get_args(self.types["request"])[0]
        return found


class Route(Endpoint, frozen=True, kw_only=True, dict=True):
    """One endpoint of the API. `path` is below /api/v1.

    `media_type` is that of an answer that is not a Struct. `statuses` are other statuses of success than `status`, with
    their meaning. `problems` are slugs beyond those that every endpoint has. `has_etag`: one resource, whose answer has
    an ETag. `reads_body` False: the function reads the body itself, from `http`. `other_types` are further media types
    of the answer, `headers` those that the request may have beside the usual ones. `is_body_optional`: no body counts
    as `{}`."""

    summary: str
    area: str
    media_type: str = JSON
    is_body_optional: bool = False
    status: int = 200
    statuses: Mapping[int, str] = {}
    problems: tuple[str, ...] = ()
    has_etag: bool = False
    has_idempotency_key: bool = False
    other_types: tuple[str, ...] = ()
    headers: tuple[str, ...] = ()
    audited: bool | None = None  # None: if it is unsafe
    reads_body: bool = True
    body_max: int = BODY_MAX

    @cached_property
    def body(self) -> type[Struct] | None:
        found = get_args(self.types["request"])[1]
        return found if found is not UnsetType else None

    @cached_property
    def response(self) -> type[Struct] | None:
        """None if the function makes the whole answer."""
        found = self.types["return"]
        found = get_args(found)[0] if get_origin(found) is ApiAnswer else found
        return found if isinstance(found, type) and issubclass(found, Struct) else None

    @property
    def is_unsafe(self) -> bool:
        return self.method not in SAFE

    @property
    def is_audited(self) -> bool:
        return self.is_unsafe if self.audited is None else self.audited

    @cached_property
    def is_async(self) -> bool:
        return inspect.iscoroutinefunction(self.function)

    @property
    def name(self) -> str:
        return self.function.__name__


class RouteList(list[Route]):
    """The endpoints of a module, in the order in which their functions stand there."""

    def __init__(self, area: str) -> None:
        self._area = area

    def add(self, line: str, scopes: Scope | tuple[Scope, ...], summary: str, **options: Any) -> Callable[[F], F]:
        """Makes a function an endpoint. `line` is `GET /path`, `options` are fields of Route."""
        method, path = line.split(" ")

        def added(function: F) -> F:
            given = {"area": self._area, **options}
            needed = (scopes,) if isinstance(scopes, Scope) else scopes
            self.append(Route(method=method, path=path, scopes=needed, summary=summary, function=function, **given))
            return function

        return added


# The path of a request: below which path a proxy serves this server, and slashes that are part of a name.
#
# Other programs may push jobs whose ids contain a slash. In an address such a slash is written as %2F. A decoded path
# would not tell it from one that separates two parts, so it is ENCODED_SLASH there until a route has found its parts.

ENCODED_SLASH = "\udc2f"  # decoding never yields it


def request_path(scope: Mapping[str, Any], base_path: str) -> str:
    """The decoded path of a request without `server.base_path`. Proxies may remove that or leave it in."""
    path: str = scope["path"]
    raw: bytes = scope.get("raw_path") or b""
    if b"%2f" in raw.lower():
        path = "/".join(unquote(part).replace("/", ENCODED_SLASH) for part in raw.decode("latin-1").split("/"))
    return path.removeprefix(base_path) if base_path and path.startswith(f"{base_path}/") else path


def plain_path(path: str) -> str:
    """The path, or a part of it, as people write it."""
    return path.replace(ENCODED_SLASH, "/")


def quoted_path(path: str) -> str:
    """The path as an address has it."""
    return "/".join(quote(plain_path(part), safe="", errors="surrogateescape") for part in path.split("/"))


# ETag, If-None-Match and If-Match.


def etag_of(body: bytes) -> str:
    return f'"{hashlib.sha256(body).hexdigest()[:32]}"'


def is_unchanged(headers: Mapping[str, str], etag: str) -> bool:
    """Whether the caller has this representation already (If-None-Match)."""
    given = headers.get("if-none-match", "")
    return given.strip() == "*" or etag in [part.strip().removeprefix("W/") for part in given.split(",")]


def check_etag(headers: Mapping[str, str], etag: str | None) -> None:
    """For PUT: raises ApiProblem 428 without If-Match, and 412 if the resource is another one than the caller saw.
    `etag` is that with which GET would answer now; None if there is no such resource: then a PUT without If-Match
    creates one."""
    given = headers.get("if-match")
    if etag is None:
        if given is not None:
            raise ApiProblem("precondition-failed", "the resource does not exist; send If-None-Match: * to create it")
        return
    if headers.get("if-none-match", "").strip() == "*":
        raise ApiProblem("precondition-failed", "the resource already exists, and If-None-Match: * is set")
    if given is None:
        raise ApiProblem("precondition-required", "send If-Match with the ETag of the last GET")
    if given.strip() != "*" and etag not in [part.strip() for part in given.split(",")]:
        detail = f"the resource has changed; its ETag is now {etag}"
        raise ApiProblem("precondition-failed", detail, headers={"ETag": etag})
