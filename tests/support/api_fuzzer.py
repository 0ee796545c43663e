"""Makes requests for every operation of openapi.json: most nearly right, some far from it. No answer may be a 500.

The values follow the schemas, so that requests get past the checks of the body, and every value may be replaced by
another JSON value. Names of jobs, keys, batches, schedules, webhooks and files that exist are drawn too.
"""

import http.client
import json
from collections import Counter
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import quote, unquote, urlencode

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.strategies import DrawFn, SearchStrategy

from fileq.core.events import RequestFailed
from tests.support.api_client import API, ApiClient, Reply, ServedApi, check_described, description, served_api
from tests.support.dead_jobs import bury

ODD_TEXTS = ("", "\x00", "\ud800", "../../etc/passwd", "\u202e", "a" * 5000, "%2e%2e", "{{7*7}}", "1e400", "-0", "nan")
DIRECTORIES = ("/", "/tmp", "/tmp/x", "~", ".")
STREAM = "text/event-stream"  # such an answer does not end
# Bodies that are accepted. Some requests are one of them with a few fields replaced.
BODIES: dict[tuple[str, str], dict[str, Any]] = {
    ("POST", "/jobs"): {"type": "known"},
    ("POST", "/jobs/bulk"): {"jobs": [{"type": "known"}, {"path": "/tmp/x"}]},
    ("POST", "/jobs/actions"): {"action": "cancel", "filter": {"type": "known"}, "dry_run": True},
    ("POST", "/dead/retry"): {"filter": {}, "dry_run": True},
    ("POST", "/keys"): {"name": "new", "scopes": ["read"]},
    ("POST", "/batches"): {"name": "new", "then": {"type": "known"}},
    ("POST", "/batches/{id}/jobs"): {"jobs": [{"type": "known"}]},
    ("POST", "/schedules/preview"): {"cron": "30 2 * * 1-5"},
    ("PUT", "/schedules/{name}"): {"cron": "@daily", "type": "known"},
    ("POST", "/webhooks"): {"name": "new", "url": "https://hooks.example.com/hook", "events": ["job.dead"]},
    ("POST", "/files/reprocess"): {"match": "*.pdf", "dry_run": True},
}


class FuzzedRequest(NamedTuple):
    method: str
    route: str  # as openapi.json has it
    path: str
    body: bytes | None
    headers: dict[str, str]

    @property
    def curl(self) -> str:
        """The request for a report."""
        return f"{self.method} {self.path} {self.headers} {self.body!r}"


texts = st.one_of(st.text(max_size=20), st.sampled_from(ODD_TEXTS), st.sampled_from(DIRECTORIES))
scalars = st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), texts)
any_json = st.recursive(
    scalars,
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(texts, inner, max_size=3)),
    max_leaves=6,
)
header_texts = st.text(st.characters(min_codepoint=32, max_codepoint=255, blacklist_characters="\x7f"), max_size=30)

seldom = st.sampled_from([False] * 15 + [True])  # not integers(): it prefers small ones


@cache
def operations() -> list[tuple[str, str, dict[str, Any]]]:
    """Method, path and description of each."""
    return [
        (method.upper(), path, operation)
        for path, methods in description()["paths"].items()
        for method, operation in methods.items()
    ]


@cache
def with_body() -> list[tuple[str, str, dict[str, Any]]]:
    return [one for one in operations() if "requestBody" in one[2]]


@st.composite
def fuzzed_requests(draw: DrawFn, known: Sequence[str]) -> FuzzedRequest:
    """One request. `known` are names of things that exist."""
    method, route, operation = draw(st.one_of(st.sampled_from(operations()), st.sampled_from(with_body())))
    path, query, headers = route, dict[str, Any](), dict[str, str]()
    for parameter in operation["parameters"]:
        name = parameter["name"]
        if parameter["in"] == "path":
            value = draw(st.one_of(st.sampled_from([*known, "nothing"]), texts))
            path = path.replace(f"{{{name}}}", quote(value, safe="", errors="surrogatepass"))
        elif name == "timeout":
            query[name] = draw(st.sampled_from(["0", "0.01", "-1", "soon", "1e9"]))  # else it waits for half a minute
        elif draw(st.booleans()):
            if parameter["in"] == "query":
                query[name] = draw(st.one_of(_values(parameter["schema"], known), texts))
            else:
                headers[name] = draw(st.one_of(header_texts, st.sampled_from(["*", '"x"', 'W/"x", "y"'])))
    if draw(seldom):
        query[draw(texts)] = draw(texts)
    body = None
    if "requestBody" in operation:
        [(kind, content)] = operation["requestBody"]["content"].items()
        body, headers["Content-Type"] = draw(_bodies((method, route), content.get("schema", {}), known)), kind
    if draw(seldom):
        names = st.sampled_from(
            ["Content-Type", "Accept", "X-Request-Id", "Origin", "Cookie", "Range", "Content-Digest"]
        )
        headers[draw(names)] = draw(header_texts)
    pairs = [(name, value if isinstance(value, str) else json.dumps(value)) for name, value in query.items()]
    text = urlencode(pairs, errors="surrogatepass")
    return FuzzedRequest(method, route, f"{path}?{text}" if text else path, body, headers)


def _bodies(key: tuple[str, str], schema: dict[str, Any], known: Sequence[str]) -> SearchStrategy[bytes]:
    right = _values(schema, known)
    if key in BODIES:
        changed = _some_fields(schema, known).map(lambda part: {**BODIES[key], **part})
        right = st.one_of(right, changed, changed, changed)
    written = st.one_of(right, right, right, right, any_json).map(lambda value: json.dumps(value).encode())
    return st.one_of(written, written, written, st.binary(max_size=50) | st.just(b"[" * 5000))


def _some_fields(schema: dict[str, Any], known: Sequence[str]) -> SearchStrategy[dict[str, Any]]:
    fields = description()["components"]["schemas"][schema["$ref"].rpartition("/")[2]]["properties"]
    names = st.lists(st.sampled_from(sorted(fields)), min_size=1, max_size=2, unique=True)
    return names.flatmap(
        lambda chosen: st.fixed_dictionaries({name: _values(fields[name], known, 1) for name in chosen})
    )


def _values(schema: dict[str, Any], known: Sequence[str], depth: int = 0) -> SearchStrategy[Any]:
    """Values of the schema; now and then one of another kind in their place."""
    right = _right_values(schema, known, depth)
    return right if depth == 0 else seldom.flatmap(lambda is_other: any_json if is_other else right)


def _right_values(schema: dict[str, Any], known: Sequence[str], depth: int) -> SearchStrategy[Any]:
    if "$ref" in schema:
        named = description()["components"]["schemas"][schema["$ref"].rpartition("/")[2]]
        return _right_values(named, known, depth)
    if "anyOf" in schema:
        return st.one_of(*(_right_values(one, known, depth) for one in schema["anyOf"]))
    if "enum" in schema:
        return st.sampled_from(schema["enum"])
    kind = schema.get("type")
    if kind == "object" and depth < 4:
        return _objects(schema, known, depth)
    if kind == "array" and depth < 4:
        return st.lists(_values(schema.get("items", {}), known, depth + 1), max_size=3)
    simple: dict[str | None, SearchStrategy[Any]] = {
        "string": st.one_of(texts, st.sampled_from([*known, "5m", "2030-01-01T00:00:00Z", "low", "*.pdf"])),
        "integer": st.integers(schema.get("minimum", -(2**63)), schema.get("maximum", 2**64)),
        "number": st.floats(schema.get("minimum"), schema.get("maximum"), allow_nan=False),
        "boolean": st.booleans(),
        "null": st.none(),
    }
    return simple.get(kind, any_json)


def _objects(schema: dict[str, Any], known: Sequence[str], depth: int) -> SearchStrategy[Any]:
    """With few of the optional fields: many of them exclude each other."""
    fields = schema.get("properties", {})
    more = schema.get("additionalProperties")
    if not fields and more is not False:
        return st.dictionaries(texts, _values(more if isinstance(more, dict) else {}, known, depth + 1), max_size=3)
    required = schema.get("required", [])
    optional = [name for name in fields if name not in required]
    chosen = st.lists(st.sampled_from(optional), max_size=4, unique=True) if optional else st.just([])
    return chosen.flatmap(
        lambda names: st.fixed_dictionaries(
            {name: _values(fields[name], known, depth + 1) for name in (*required, *names)}
        )
    )


def sent(client: ApiClient, request: FuzzedRequest) -> Reply:
    """Sends the request. Fails unless the answer is one that openapi.json describes, and not a 500."""
    reply = _answered(client, request)
    assert reply.status != 500, f"{request.curl}\n{reply.body!r}"
    plain = unquote(request.path.partition("?")[0], errors="surrogatepass")
    if "?" not in plain and reply.status != 400:  # 400: not HTTP, which the server library answers itself
        try:
            check_described(request.method, plain, reply)
        except Exception as error:
            raise AssertionError(f"{request.curl}\nanswered {reply.status} {reply.body[:500]!r}\n{error}") from error
    return reply


def _answered(client: ApiClient, request: FuzzedRequest) -> Reply:
    """Of a stream only the head is read."""
    connection = http.client.HTTPConnection("127.0.0.1", client.port, timeout=30)
    try:
        headers = {"Host": client.host, "X-API-Key": client.key, **request.headers}
        connection.request(request.method, f"{API}{request.path}", request.body, headers)
        answer = connection.getresponse()
        found = {name.lower(): value for name, value in answer.getheaders()}
        is_stream = found.get("content-type", "").startswith(STREAM)
        return Reply(answer.status, found, b"" if is_stream else answer.read())
    finally:
        connection.close()


def _made_things(api: ServedApi, directory: Path) -> list[str]:
    """One thing of each kind. Returns what names them."""
    post = api.client.post
    file = directory / "known.pdf"
    file.write_bytes(b"%PDF")
    made = [
        post("/jobs", {"type": "known", "delay": "1h"}),
        post("/jobs", {"path": str(file)}),
        post("/keys", {"name": "known", "scopes": ["read"]}),
        post("/batches", {"id": "known"}),
        post("/webhooks", {"name": "known", "url": "https://hooks.example.com/hook", "events": ["job.dead"]}),
        api.client.call("PUT", "/schedules/known", {"cron": "@daily", "type": "known"}),
    ]
    assert {reply.status for reply in made} == {201}, made
    bury(api.broker, 1, type="known")
    [dead] = api.client.get("/dead?type=known")["jobs"]
    return [*(reply.json["id"] for reply in made[:3]), dead["id"], str(file), "known", "low"]


def fuzz(directory: Path, count: int, *, is_repeatable: bool, values: Mapping[str, Any] | None = None) -> Counter[int]:
    """Sends so many requests to a server in this process. Returns how often each status was answered."""
    seen = Counter[int]()
    (directory / "up").mkdir()
    server = {"upload_dir": str(directory / "up"), "files": "download"}
    with served_api(directory, {**(values or {}), "server": server}) as api:
        known = _made_things(api, directory)

        @settings(
            max_examples=count,
            deadline=None,
            database=None,
            derandomize=is_repeatable,
            suppress_health_check=list(HealthCheck),
        )
        @given(request=fuzzed_requests(known))
        def send(request: FuzzedRequest) -> None:
            seen[sent(api.client, request).status] += 1

        send()
        assert [event for event in api.events if isinstance(event, RequestFailed)] == []
    return seen
