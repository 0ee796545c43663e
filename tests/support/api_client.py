"""A client of the REST API for tests. It validates every answer against openapi.json, and a served API for it."""

import http.client
import json
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple
from unittest.mock import patch

from jsonschema import Draft202012Validator

from fileq.brokers import open_broker
from fileq.brokers.protocol import FullBroker
from fileq.commands.api_keys import KeyStore
from fileq.config import Config, config_from
from fileq.core.api_key import Scope
from fileq.core.events import Emit, Event
from fileq.core.job import wall_clock_ms
from fileq.server.console import console_app
from fileq.server.problems import MEDIA_TYPE
from fileq.server.role import ServerService
from fileq.server.routes import ROUTES, openapi

API = "/api/v1"
BUSY_S = 10.0  # so long a page waits for the broker in a test, where a machine that is busy is not an outage
ADMIN_KEY = "an-admin-key-from-outside"


class Reply(NamedTuple):
    status: int
    headers: Mapping[str, str]  # names in lower case
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def slug(self) -> str:
        """Of a problem; "" for another answer."""
        is_problem = self.headers.get("content-type") == MEDIA_TYPE
        return self.json["type"].removeprefix("urn:fileq:problem:") if is_problem else ""


class ApiClient:
    """Sends each request on a connection of its own, so that no test depends on another's."""

    def __init__(self, port: int, key: str = "", host: str = "") -> None:
        self.port = port
        self.key = key
        self.host = host or f"127.0.0.1:{port}"

    def with_key(self, key: str) -> "ApiClient":
        return ApiClient(self.port, key, self.host)

    def send(
        self, method: str, path: str, body: bytes | None = None, headers: Mapping[str, str] | None = None
    ) -> Reply:
        """One request to any path, without validation."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=30)
        given = {"Host": self.host, **({"X-API-Key": self.key} if self.key else {}), **(headers or {})}
        try:
            connection.request(method, path, body, given)
            answer = connection.getresponse()
            found = {name.lower(): value for name, value in answer.getheaders()}
            return Reply(answer.status, found, answer.read())
        finally:
            connection.close()

    def call(self, method: str, path: str, body: Any = None, headers: Mapping[str, str] | None = None) -> Reply:
        """One request below /api/v1, whose answer must be one that openapi.json describes."""
        raw = None if body is None else body if isinstance(body, bytes) else json.dumps(body).encode()
        typed = {"Content-Type": "application/json"} if raw is not None else {}
        reply = self.send(method, f"{API}{path}", raw, typed | dict(headers or {}))
        check_described(method, path, reply)
        return reply

    def get(self, path: str) -> Any:
        """The body of a successful GET."""
        reply = self.call("GET", path)
        assert reply.status == 200, reply
        return reply.json

    def post(self, path: str, body: Any = None, headers: Mapping[str, str] | None = None) -> Reply:
        return self.call("POST", path, body, headers)

    def delete(self, path: str) -> Reply:
        return self.call("DELETE", path)


def check_described(method: str, path: str, reply: Reply) -> None:
    """Fails unless openapi.json has this status with this media type, and a schema that the body meets."""
    plain = path.partition("?")[0]
    route = next((one for one in ROUTES if one.method == method and one.pattern.fullmatch(plain)), None)
    assert reply.headers["x-request-id"]
    if route is None:
        assert reply.slug, f"{method} {path} is in no route, and the answer is not a problem: {reply}"
        _validator("ProblemDocument").validate(reply.json)
        return
    described = description()["paths"][route.open_path][method.lower()]["responses"]
    assert str(reply.status) in described, f"{method} {path}: status {reply.status} is not described: {reply.body!r}"
    content = described[str(reply.status)].get("content", {})
    if not content:
        assert reply.body == b""
        return
    kind = reply.headers["content-type"].partition(";")[0]
    assert kind in content, f"{method} {path}: {kind} is not described"
    if reply.slug:
        assert reply.slug in described[str(reply.status)]["description"].split(", "), reply.json
        assert reply.json["instance"].endswith(reply.headers["x-request-id"])
    if "schema" in content[kind]:
        _validator(re.sub(r".*/", "", content[kind]["schema"]["$ref"])).validate(reply.json)


@cache
def description() -> dict[str, Any]:
    return openapi()


@cache
def _validator(name: str) -> Draft202012Validator:
    schemas = description()["components"]
    return Draft202012Validator({"$ref": f"#/components/schemas/{name}", "components": schemas})


class ServedApi(NamedTuple):
    """A server in this process. `client` has the admin key; `events` is what the server emitted."""

    client: ApiClient
    broker: FullBroker
    config: Config
    events: list[Event]
    keys: KeyStore

    def client_with(self, *scopes: Scope, name: str = "", **options: Any) -> ApiClient:
        """Made by the server itself, which therefore accepts it at once."""
        wanted = {"name": name or f"test {'+'.join(scopes)}", "scopes": scopes, **options}
        return self.client.with_key(self.client.post("/keys", wanted).json["key"])


@contextmanager
def served_api(directory: Path, values: Mapping[str, Any] | None = None) -> Iterator[ServedApi]:
    """Serves the API on a free port, with an SQLite broker unless the values say otherwise. `server` is merged."""
    given = dict(values or {})
    server = {"port": 0, "api_key": ADMIN_KEY, "rate_limit": "100000/s"} | given.pop("server", {})
    base = {"broker": "sqlite", "sqlite": {"path": str(directory / "api.db")}}
    scan_dir = {"producer": {"scan_dir": str(directory)}}
    config = config_from({**base, **scan_dir, **given, "server": server})
    broker, events = open_broker(config), list[Event]()
    try:
        with served_broker(config, broker, events.append) as port:
            client = ApiClient(port, server["api_key"])
            yield ServedApi(client, broker, config, events, KeyStore(broker, wall_clock_ms))
    finally:
        broker.close()


@contextmanager
def served_broker(config: Config, broker: FullBroker, emit: Emit = lambda event: None) -> Iterator[int]:
    """Serves the API of this broker; yields the port."""
    service = ServerService(config, broker, emit=emit)
    with patch.object(console_app, "QUICK_S", BUSY_S):
        service.start()
        try:
            yield service.port
        finally:
            service.stop(10.0)
