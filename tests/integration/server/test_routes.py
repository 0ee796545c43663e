"""Every route of the table: its scope, other sites, its description. A new endpoint is tested here by its row."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import get_args

import msgspec
import pytest
from msgspec import Struct

from fileq.core.api_key import Scope, effective_scopes
from fileq.server.authentication import COOKIE, Sessions, signer_of
from fileq.server.route import Route
from fileq.server.routes import ROUTES, openapi_json
from tests.support.api_client import API, ApiClient, ServedApi, served_api
from tests.support.console_pages import SENDER
from tests.support.reference_tables import api_page

REPOSITORY = Path(__file__).parents[3]
CROSS_SITE = ({"Sec-Fetch-Site": "cross-site"}, {"Origin": "https://evil.example"}, {})


@pytest.fixture(scope="module")
def api(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServedApi]:
    with served_api(tmp_path_factory.mktemp("routes")) as served:
        yield served


@pytest.fixture(scope="module")
def clients(api: ServedApi) -> dict[Scope, ApiClient]:
    return {scope: api.client_with(scope) for scope in Scope}


def path_of(route: Route) -> str:
    return re.sub(r"\{\w+\}", "nothing-is-named-so", route.open_path)


def test_every_route_refuses_callers_without_a_key_and_callers_without_its_scope(
    api: ServedApi, clients: dict[Scope, ApiClient]
) -> None:
    assert len(ROUTES) > 8
    for route in ROUTES:
        shown = f"{route.method} {route.path}"
        assert api.client.with_key("").call(route.method, path_of(route)).slug == "unauthenticated", shown
        for scope, client in clients.items():
            is_allowed = not route.scopes or not effective_scopes([scope]).isdisjoint(route.scopes)
            if is_allowed and not route.reads_body:
                continue  # it may stream
            reply = client.call(route.method, f"{path_of(route)}")
            assert (reply.slug == "forbidden") is not is_allowed, f"{shown} with {scope}: {reply}"


def test_every_unsafe_route_refuses_other_sites_in_all_three_situations_and_accepts_its_own(api: ServedApi) -> None:
    api.client_with(Scope.ADMIN, name="of the session")
    session = session_of(api)
    own = f"http://{api.client.host}"
    for route in ROUTES:
        if not route.is_unsafe:
            continue
        for headers in CROSS_SITE:
            reply = session.call(route.method, path_of(route), headers={**cookie_of(api), **headers})
            assert reply.slug == "cross-site", f"{route.path} with {headers}"
        for headers in ({"Sec-Fetch-Site": "same-origin"}, {"Origin": own}):
            reply = session.call(route.method, path_of(route), headers={**cookie_of(api), **headers})
            assert reply.slug != "cross-site", f"{route.path} with {headers}"
        with_key = api.client.call(route.method, path_of(route), headers={"Sec-Fetch-Site": "cross-site"})
        assert with_key.slug != "cross-site", "a key is not sent by a browser itself"


def session_of(api: ServedApi) -> ApiClient:
    return api.client.with_key("")


def cookie_of(api: ServedApi) -> dict[str, str]:
    from fileq.core.job import wall_clock_ms

    id = next(id for id, key in api.keys.load().items() if key.name == "of the session")
    header = Sessions(signer_of(api.broker), wall_clock_ms, "").cookie(id, SENDER)
    assert header.startswith(f"{COOKIE}=")
    return {"Cookie": header.partition(";")[0]}


def structs_in(kind: object) -> Iterator[type[Struct]]:
    """This one, and all that it has in its fields."""
    if isinstance(kind, type) and issubclass(kind, Struct):
        yield kind
        for field in msgspec.structs.fields(kind):
            yield from structs_in(field.type)
    for part in get_args(kind):
        yield from structs_in(part)


def test_every_row_is_complete_and_its_function_has_a_name_of_its_own() -> None:
    assert len({route.name for route in ROUTES}) == len(ROUTES)
    assert len({(route.method, route.open_path) for route in ROUTES}) == len(ROUTES)
    for route in ROUTES:
        assert route.area, route.path
        assert route.summary, route.path
        assert route.path.startswith("/"), route.path
        assert route.scopes or route.path == "/whoami", f"{route.path} has no scope"
        for struct in filter(None, (route.query, route.body)):
            for found in structs_in(struct):
                assert found.__struct_config__.forbid_unknown_fields, f"{found} takes any field"


def test_the_description_and_the_page_are_those_of_the_table(api: ServedApi) -> None:
    assert (REPOSITORY / "docs/openapi.json").read_bytes() == openapi_json(), "run make docs"
    page = (REPOSITORY / "docs/api.md").read_text()
    assert page == api_page(page), "run make docs"
    assert api.client.send("GET", f"{API}/openapi.json").body == openapi_json()


def test_every_number_in_a_request_has_a_range() -> None:
    import json

    schemas = json.loads(openapi_json())["components"]["schemas"]
    requests = {struct.__name__ for route in ROUTES for struct in (route.query, route.body) if struct is not None}
    for name in requests:
        for field, shape in schemas[name].get("properties", {}).items():
            for one in shape.get("anyOf", [shape]):
                if one.get("type") in ("integer", "number"):
                    assert "minimum" in one, f"{name}.{field}"
                    assert "maximum" in one, f"{name}.{field}"
