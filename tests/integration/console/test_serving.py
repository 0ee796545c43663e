"""The web pages without a browser: who may see them, what every answer has, what hostile names become."""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path

import pytest

from fileq.core.api_key import Scope
from fileq.server.console.console_app import NAVIGATION, VIEWS
from fileq.server.console.view import MEDIA_TYPES, content_of
from fileq.server.web_app import SECURITY_HEADERS
from tests.support.api_client import ADMIN_KEY, ApiClient, Reply, ServedApi, served_api

# The file that htmx's package 2.0.11 has as dist/htmx.min.js.
HTMX_SHA256 = "d6fdc75f204e6bdefa99b69bf1e6d4ac69b8a364f77929f45c13476b4000f717"
FRONT_END_BYTES = 100_000
HOSTILE = (
    b"<script>alert(1)<script>.pdf",
    b'"><svg onload=alert(1)>.pdf',
    b"{{7*7}}.pdf",
    "turned \u202egpj.pdf".encode(),
    b"bytes \xff\xfe.pdf",
    b"line\nbreak.pdf",
    b"n" * 255,
)


@pytest.fixture(scope="module")
def api(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServedApi]:
    with served_api(tmp_path_factory.mktemp("console")) as api:
        yield api


def logged_in(client: ApiClient, key: str) -> str:
    """The cookie of a session that the form of the page begins."""
    headers = {"Content-Type": "application/x-www-form-urlencoded", "Sec-Fetch-Site": "same-origin"}
    reply = client.with_key("").send("POST", "/login?next=/dashboard/jobs", f"key={key}".encode(), headers)
    assert (reply.status, reply.headers["location"]) == (303, "/dashboard/jobs"), reply.body
    return reply.headers["set-cookie"].partition(";")[0]


def shown(client: ApiClient, path: str, cookie: str) -> Reply:
    return client.with_key("").send("GET", path, headers={"Cookie": cookie})


def addresses() -> list[str]:
    """Every page that has no parameters."""
    return [f"/dashboard{page.open_path}" for page in VIEWS if "{" not in page.open_path]


class Elements(HTMLParser):
    """The elements of a page, with their attributes."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.found: list[tuple[str, dict[str, str | None]]] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attrs)))


def test_a_page_needs_a_session_and_the_login_leads_back_to_it(api: ServedApi) -> None:
    stranger = api.client.with_key("")
    reply = stranger.send("GET", "/dashboard/jobs?status=dead")
    assert (reply.status, reply.headers["location"]) == (303, "/login?next=/dashboard/jobs%3Fstatus%3Ddead")
    part = stranger.send("GET", "/dashboard", headers={"HX-Request": "true"})
    assert (part.status, part.headers["hx-redirect"]) == (401, "/login?next=/dashboard")
    cookie = logged_in(api.client, ADMIN_KEY)
    assert shown(api.client, "/dashboard", cookie).status == 200
    assert stranger.send("GET", "/").headers["location"] == "/dashboard"
    out = stranger.send("POST", "/logout", headers={"Cookie": cookie, "Sec-Fetch-Site": "same-origin"})
    assert "Max-Age=0" in out.headers["set-cookie"]
    for method, path in (("POST", "/login"), ("POST", "/logout")):
        assert stranger.send(method, path, b"key=x", {"Sec-Fetch-Site": "cross-site"}).status == 403, path


@pytest.mark.parametrize("given", ["https://example.com", "//example.com", "/api/v1/stats", "/dashboard\\@x", ""])
def test_the_login_leads_to_our_own_pages_only(api: ServedApi, given: str) -> None:
    headers = {"Content-Type": "application/x-www-form-urlencoded", "Sec-Fetch-Site": "same-origin"}
    reply = api.client.with_key("").send("POST", f"/login?next={given}", f"key={ADMIN_KEY}".encode(), headers)
    assert reply.headers["location"] == "/dashboard"


def test_wrong_keys_are_refused_and_the_right_one_still_logs_in(api: ServedApi) -> None:
    """Finding: wrong keys locked out server.api_key for their address, also in the form of the login."""
    headers = {"Content-Type": "application/x-www-form-urlencoded", "Sec-Fetch-Site": "same-origin"}
    statuses = [api.client.with_key("").send("POST", "/login", b"key=wrong", headers).status for _ in range(25)]
    assert statuses == [401] * 25
    assert shown(api.client, "/dashboard", logged_in(api.client, ADMIN_KEY)).status == 200


def test_every_page_has_a_scope_and_refuses_a_key_without_it(api: ServedApi) -> None:
    enqueuer = api.client_with(Scope.ENQUEUE)
    cookie = logged_in(api.client, enqueuer.key)
    for path in addresses():
        reply = shown(api.client, path, cookie)
        assert reply.status == 403, path
        assert b"This page needs the scope" in reply.body
        assert api.client.with_key("").send("POST", path, b"", {"Cookie": cookie}).status in (403, 405), path


def test_every_answer_has_the_security_headers_and_no_inline_code(api: ServedApi) -> None:
    cookie = logged_in(api.client, ADMIN_KEY)
    for path in [*addresses(), "/login", "/dashboard/nothing", "/static/console.js"]:
        reply = shown(api.client, path, cookie)
        for name, value in SECURITY_HEADERS.items():
            if name != "Cache-Control":
                assert reply.headers[name.lower()] == value, path
        if not path.startswith("/static"):
            for tag, attributes in Elements(reply.body.decode()).found:
                assert not {name for name in attributes if name.startswith("on") or name == "style"}, (path, tag)
                assert tag != "style", path
                assert tag != "script" or attributes.get("src"), path


def test_the_front_end_is_small_and_htmx_is_the_released_file() -> None:
    assert hashlib.sha256(content_of("htmx.min.js")).hexdigest() == HTMX_SHA256
    assert sum(len(content_of(name)) for name in MEDIA_TYPES) < FRONT_END_BYTES


def test_static_files_are_kept_for_as_long_as_their_version(api: ServedApi) -> None:
    cookie = logged_in(api.client, ADMIN_KEY)
    page = shown(api.client, "/dashboard", cookie).body.decode()
    [address] = re.findall(r'href="(/static/console\.css\?v=\w+)"', page)
    stranger = api.client.with_key("")
    assert "immutable" in stranger.send("GET", address).headers["cache-control"]
    assert stranger.send("GET", "/static/console.css?v=old").headers["cache-control"] == "no-cache"
    assert stranger.send("GET", "/static/secrets.txt").status == 404


def test_the_page_to_log_in_has_the_chosen_theme(api: ServedApi) -> None:
    reply = api.client.with_key("").send("GET", "/login", headers={"Cookie": "fileq_theme=light"})
    assert b'<html lang="en" data-theme="light">' in reply.body


def test_the_keys_of_the_navigation_are_different() -> None:
    letters = [page.letter for page in NAVIGATION]
    assert len(set(letters)) == len(letters)


def test_hostile_names_are_text_on_every_page(tmp_path: Path) -> None:
    for name in HOSTILE:
        (tmp_path / os.fsdecode(name)).write_bytes(b"x")
    with served_api(tmp_path, {"server": {"files": "preview"}}) as api:
        for name in HOSTILE:
            api.client.post("/jobs", {"type": f"t {name.decode('utf-8', 'replace')}"[:100]})
            api.client.post("/jobs", {"path": str(tmp_path / os.fsdecode(name)) if name.isascii() else "x"})
        cookie = logged_in(api.client, ADMIN_KEY)
        for path in sorted(addresses(), key=lambda path: path == "/dashboard/jobs"):
            text = shown(api.client, path, cookie).body.decode()
            found = Elements(text).found
            assert [tag for tag, _ in found].count("script") in (0, 2), path  # a part of a page has none
            assert not {name for _, attributes in found for name in attributes if name.startswith("on")}, path
            assert "49.pdf" not in text, path
            assert "\u202e" not in text, path
        assert "alert(1)" in text or "7*7" in text, "the names are shown"


def test_an_unknown_page_and_a_wrong_query_are_pages_too(api: ServedApi) -> None:
    cookie = logged_in(api.client, ADMIN_KEY)
    for path, status, word in (
        ("/dashboard/nothing", 404, "no page"),
        ("/dashboard/jobs?limit=100000", 422, "limit"),
        ("/dashboard/jobs?status=nonsense", 422, "status"),
        ("/dashboard/jobs/unknown", 404, "unknown"),
    ):
        reply = shown(api.client, path, cookie)
        assert (reply.status, reply.headers["content-type"]) == (status, "text/html; charset=utf-8"), path
        assert word in reply.body.decode()


def test_the_page_of_a_job_has_it_for_curl_and_the_command_line(api: ServedApi) -> None:
    api.client.post("/jobs", {"type": "report", "id": "weekly"})
    page = shown(api.client, "/dashboard/jobs/weekly", logged_in(api.client, ADMIN_KEY)).body.decode()
    server = api.config.server
    assert f"http://{server.bind}:{server.port}/api/v1/jobs/weekly" in page
    assert "fileq show weekly" in page
