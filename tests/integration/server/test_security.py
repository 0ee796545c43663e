"""Who is let in: hosts, origins, rates, sessions, HTTP Basic, proxies; and the program's start, stop and outages."""

from __future__ import annotations

import base64
import contextlib
import http.client
import re
import signal
import socket
import sqlite3
import subprocess
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import pytest

from fileq.commands.api_keys import ENDED_SESSIONS, LINK_MS, LINKS_MAX, LOGIN_LINKS, KeyStore
from fileq.core.api_key import Scope
from fileq.core.errors import ConfigError
from fileq.core.events import LoginsFailed, RequestFailed
from fileq.core.job import wall_clock_ms
from fileq.core.units import Rate
from fileq.server import authentication, event_hub
from fileq.server.authentication import COOKIE
from tests.support.api_client import ADMIN_KEY, API, ApiClient, Reply, served_api
from tests.support.live_client import SocketClient, SseClient
from tests.support.program import Program, command, environment, run
from tests.support.servers.server import Server
from tests.support.terminal import Terminal
from tests.support.waiting import wait_until

WHOAMI = f"{API}/whoami"


def test_foreign_hosts_other_origins_and_too_many_requests_are_refused(tmp_path: Path) -> None:
    server = {"hosts": ["queue.example"], "cors_origins": ["https://app.example"], "rate_limit": "1/h"}
    with served_api(tmp_path, {"server": server}) as api:
        for host in ("evil.example", "queue.example.evil.example", "", "10.0.0.1"):
            assert api.client.send("GET", WHOAMI, headers={"Host": host}).slug in ("wrong-host", ""), host
            assert api.client.send("GET", WHOAMI, headers={"Host": host}).status in (421, 400), host
        for host in ("queue.example", "QUEUE.example:81"):
            assert api.client.with_key("").send("GET", WHOAMI, headers={"Host": host}).status == 401, host
        allowed = {"Origin": "https://app.example", "Access-Control-Request-Method": "POST"}
        assert api.client.send("OPTIONS", WHOAMI, headers=allowed).headers["access-control-allow-origin"]
        other = api.client.send("OPTIONS", WHOAMI, headers={**allowed, "Origin": "https://evil.example"})
        assert "access-control-allow-origin" not in other.headers
        assert [api.client.call("GET", "/whoami").status for _ in range(3)] == [200, 200, 429]
        assert int(api.client.call("GET", "/whoami").headers["retry-after"]) > 1


def test_a_read_only_server_answers_only_get(tmp_path: Path) -> None:
    with served_api(tmp_path, {"server": {"read_only": True}}) as api:
        assert api.client.get("/whoami")["is_read_only"]
        assert api.client.post("/jobs", {"type": "x"}).slug == "read-only"


def test_basic_and_a_trusted_proxy_name_a_user(tmp_path: Path) -> None:
    (tmp_path / "password").write_text("pass:word\n")
    proxy = {"auth_header": "X-User", "trusted_proxies": ["127.0.0.1"]}
    server = {"username": "ann", "password_file": str(tmp_path / "password"), **proxy}
    with served_api(tmp_path, {"server": server}) as api:
        nobody = api.client.with_key("")

        def basic(text: str) -> dict[str, str]:
            return {"Authorization": f"Basic {base64.b64encode(text.encode()).decode()}"}

        assert nobody.call("GET", "/whoami", headers=basic("ann:pass:word")).json["how"] == "basic"
        assert nobody.call("GET", "/whoami", headers=basic("ann:wrong")).slug == "unauthenticated"
        assert nobody.call("POST", "/jobs", {"type": "x"}, basic("ann:pass:word")).slug == "cross-site"
        assert nobody.call("GET", "/whoami", headers={"X-User": "bob"}).json["id"] == "user:bob"
        tries = [nobody.call("GET", "/whoami", headers=basic("ann:x")).status for _ in range(25)]
        assert 429 in tries, "guessing is limited"
    with served_api(tmp_path, {"server": proxy | {"trusted_proxies": ["10.0.0.1"]}}) as api:
        assert api.client.with_key("").call("GET", "/whoami", headers={"X-User": "bob"}).slug == "unauthenticated"


def test_an_ipv4_proxy_is_trusted_on_a_socket_for_ipv6(tmp_path: Path) -> None:
    """N7: with server.bind "::" the peer is ::ffff:127.0.0.1, which was no trusted proxy: the users that the proxy
    named were refused, and all its clients were one address."""
    server = {"bind": "::", "auth_header": "X-User", "trusted_proxies": ["127.0.0.1"], "hosts": ["localhost"]}
    with served_api(tmp_path, {"server": server}) as api:
        proxied = {"X-User": "bob", "X-Forwarded-For": "::ffff:192.0.2.1"}
        assert api.client.with_key("").call("GET", "/whoami", headers=proxied).json["id"] == "user:bob"
        api.client.with_key("fq_wrong").call("GET", "/whoami", headers={"X-Forwarded-For": "::ffff:192.0.2.1"})
        reported = wait_until(lambda: [event for event in api.events if isinstance(event, LoginsFailed)])
        assert reported[0].address == "192.0.2.1"


def test_a_page_of_another_port_opens_no_stream_with_what_the_browser_adds(tmp_path: Path) -> None:
    """N11: a page of another port of this host opened /events by a no-cors request, with the cookie of a session."""
    proxy = {"auth_header": "X-User", "trusted_proxies": ["127.0.0.1"]}
    with served_api(tmp_path, {"server": proxy}) as api:
        for path in ("/events", "/whoami"):
            for site, status in (("same-site", 403), ("cross-site", 403), ("same-origin", 200), ("none", 200)):
                headers = {"Sec-Fetch-Site": site}
                named = api.client.with_key("").send("HEAD", f"{API}{path}", headers={"X-User": "bob", **headers})
                assert (path, site, named.status) == (path, site, status)
                assert api.client.send("HEAD", f"{API}{path}", headers=headers).status == 200, "a key"


def test_a_new_password_ends_the_streams_of_the_old_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """N12: only those of keys and sessions ended; one that HTTP Basic had opened went on."""
    monkeypatch.setattr(event_hub, "CHECK_S", 0.05)
    file = tmp_path / "password"
    file.write_text("old word\n")
    proxy = {"auth_header": "X-User", "trusted_proxies": ["127.0.0.1"]}
    with served_api(tmp_path, {"server": {"username": "ann", "password_file": str(file), **proxy}}) as api:
        nobody = api.client.with_key("")
        basic = {"Authorization": f"Basic {base64.b64encode(b'ann:old word').decode()}"}
        with SseClient(nobody, basic) as stream, SseClient(nobody, {"X-User": "bob"}) as other:
            file.write_text("new word\n")
            wait_until(lambda: not stream.is_open, what="the stream ends")
            api.client.post("/jobs", {"type": "note"})
            assert other.wait_for_event("job.created"), "a user of the proxy has no password here"


def test_credentials_of_basic_that_are_no_ascii_are_a_failed_login(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """N6: they were answered with 500, without a limit, and each wrote a traceback of 1.7 kB to the log."""
    monkeypatch.setattr(authentication, "OF_ADDRESS", Rate(10, 3_600_000))  # none is forgiven while the test runs
    with served_api(tmp_path, {"server": {"username": "ann", "password": "pass word"}}) as api:
        nobody = api.client.with_key("")
        odd = {"Authorization": "Basic \xff\xfe"}
        assert [nobody.call("GET", "/whoami", headers=odd).status for _ in range(21)] == [401] * 20 + [429]
        assert not [event for event in api.events if isinstance(event, RequestFailed)]


def test_a_new_key_in_the_file_counts_at_once_and_one_that_can_be_guessed_never(tmp_path: Path) -> None:
    """Low: secret.example names 16 characters. The rule for server.api_key holds for the key in a file too."""
    file, first, second = tmp_path / "key", "k" * 20, "l" * 20
    file.write_text("k" * 19)
    settings = {"server.port": 0, "server.api_key_file": str(file)}
    refused = run("serve", cwd=tmp_path, settings=settings)
    assert (refused.returncode, "must hold a key of at least 20 printable characters" in refused.stderr) == (2, True)
    file.write_text(f"{first}\n")
    with served_api(tmp_path, {"server": {"api_key": "", "api_key_file": str(file)}}) as api:

        def statuses() -> list[int]:
            return [api.client.with_key(key).call("GET", "/whoami").status for key in (first, second, "short")]

        assert statuses() == [200, 401, 401]
        file.write_text(second)
        assert statuses() == [401, 200, 401]
        file.write_text("short")
        assert statuses() == [401, 401, 401]


def test_guessing_is_limited_by_address_and_is_one_entry_of_the_audit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Medium: password guessing unlimited and unlogged."""
    monkeypatch.setattr(authentication, "OF_ADDRESS", Rate(10, 3_600_000))  # none is forgiven while the test runs
    (tmp_path / "password").write_text("pass:word\n")
    server = {"username": "ann", "password_file": str(tmp_path / "password"), "trusted_proxies": ["127.0.0.1"]}
    with served_api(tmp_path, {"server": server}) as api:
        stranger, made = api.client.with_key(""), api.client_with(Scope.READ)
        admin = api.client_with(Scope.ADMIN)

        def basic(password: str, address: str) -> Reply:
            text = base64.b64encode(f"ann:{password}".encode()).decode()
            given = {"Authorization": f"Basic {text}", "X-Forwarded-For": f"10.9.9.9, {address}"}
            return stranger.call("GET", "/whoami", headers=given)

        tries = [basic(f"x{n}", "192.0.2.1") for n in range(30)]
        assert [one.status for one in tries] == [401] * 20 + [429] * 10
        assert int(tries[-1].headers["retry-after"]) >= 1
        assert basic("pass:word", "192.0.2.1").status == 429, "the password is not compared any more"
        assert basic("pass:word", "192.0.2.2").status == 200, "another address is not locked out"
        lines = (b"X-Forwarded-For: 192.0.2.2", b"X-Forwarded-For: 192.0.2.1", b"Authorization: Basic eDp5")
        with socket.create_connection(("127.0.0.1", stranger.port), 10) as own:
            own.sendall(b"\r\n".join([b"GET /api/v1/whoami HTTP/1.1", b"Host: localhost", *lines, b"", b""]))
            assert b" 429 " in own.recv(100), "the address that a client claims in a line of its own does not count"
        here = {"X-Forwarded-For": "192.0.2.1"}
        for client in (api.client, made):
            assert client.call("GET", "/whoami", headers=here).status == 200, "a key is too long to be guessed"

        def entries() -> list[dict[str, Any]]:
            found: list[dict[str, Any]] = admin.get("/audit?action=failed_login")["entries"]
            return found

        [entry] = wait_until(entries)
        [event] = [one for one in api.events if isinstance(one, LoginsFailed)]
        assert entry["result"] == 401
        assert entry["count"] == event.failures > 0


@pytest.mark.parametrize(
    ("guesser", "same", "other"),
    [
        ("192.0.2.1:{port}", "192.0.2.1", "192.0.2.2:1"),
        ("[2001:db8::1]:{port}", "2001:db8::1", "[2001:db8:0:1::1]:1"),
        ("[2001:db8::1]", "[2001:db8::2]:1", "[2001:db8:0:1::1]"),
    ],
)
def test_a_forwarded_address_with_a_port_is_the_address(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, guesser: str, same: str, other: str
) -> None:
    """Finding: X-Forwarded-For entries with a port counted as the address of the proxy: all clients were one."""
    monkeypatch.setattr(authentication, "OF_ADDRESS", Rate(10, 3_600_000))  # none is forgiven while the test runs
    server = {"username": "ann", "password": "pass:word", "trusted_proxies": ["127.0.0.1"]}
    with served_api(tmp_path, {"server": server}) as api:

        def status(password: str, address: str) -> int:
            text = base64.b64encode(f"ann:{password}".encode()).decode()
            given = {"Authorization": f"Basic {text}", "X-Forwarded-For": f"192.0.2.9, {address}"}
            return api.client.with_key("").call("GET", "/whoami", headers=given).status

        assert [status("x", guesser.format(port=4000 + n)) for n in range(25)] == [401] * 20 + [429] * 5
        assert status("pass:word", same) == 429
        assert status("pass:word", other) == 200
        assert status("pass:word", "unknown") == 200, "what is no address stands for the proxy"


def test_wrong_keys_and_links_lock_out_no_password_and_no_key(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Finding: strangers lock out HTTP Basic for everyone with wrong keys, and server.api_key for their address."""
    monkeypatch.setattr(authentication, "OF_ADDRESS", Rate(10, 3_600_000))  # none is forgiven while the test runs
    monkeypatch.setattr(authentication, "OF_ALL", Rate(10, 3_600_000))
    server = {"username": "ann", "password": "pass:word", "trusted_proxies": ["127.0.0.1"]}
    with served_api(tmp_path, {"server": server}) as api:
        stranger = api.client.with_key("")
        right = {"Authorization": f"Basic {base64.b64encode(b'ann:pass:word').decode()}"}
        for wrong in ("x" * 20, "fq_abcdefgh_" + "a" * 43):
            guesses = [stranger.with_key(wrong).call("GET", "/whoami").status for _ in range(25)]
            assert guesses == [401] * 25
        for number in range(25):
            there = {"X-Forwarded-For": f"192.0.2.{number}"}
            assert stranger.send("GET", f"/login?once={'x' * 43}", headers=there).status == 401
        assert api.client.call("GET", "/whoami").status == 200, "server.api_key, from the address of the wrong ones"
        assert stranger.call("GET", "/whoami", headers=right).status == 200, "the password too"
        assert wait_until(lambda: [one.failures for one in api.events if isinstance(one, LoginsFailed)])


def test_the_one_time_link_is_limited_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Medium: password guessing unlimited and unlogged."""
    monkeypatch.setattr(authentication, "OF_ADDRESS", Rate(10, 3_600_000))  # none is forgiven while the test runs
    with served_api(tmp_path) as api:
        tries = [api.client.send("GET", f"/login?once={'x' * 43}").status for _ in range(25)]
        assert tries == [401] * 20 + [429] * 5


def test_logging_out_ends_the_session_of_a_key_also_for_a_copy_of_its_cookie(tmp_path: Path) -> None:
    """Low: logout of a key's session leaves its cookie valid."""
    with served_api(tmp_path) as api:
        own, stranger = {"Sec-Fetch-Site": "same-origin"}, api.client.with_key("")

        def cookie_of(key: str) -> dict[str, str]:
            reply = stranger.send("POST", "/login", urlencode({"key": key}).encode(), own)
            assert reply.status == 303
            return {"Cookie": reply.headers["set-cookie"].partition(";")[0]}

        def is_refused(cookie: dict[str, str]) -> bool:
            return stranger.call("GET", "/whoami", headers=cookie).status == 401

        for key in (api.client_with(Scope.READ).key, ADMIN_KEY):
            first, second = cookie_of(key), cookie_of(key)
            with SseClient(stranger, first) as stream:
                assert stranger.send("POST", "/logout", headers={**first, **own}).status == 303
                assert stranger.call("GET", "/whoami", headers=first).slug == "unauthenticated"
                assert stranger.send("GET", "/dashboard", headers=first).status == 303
                assert stranger.call("GET", "/whoami", headers=second).status == 200, "another browser"
                wait_until(lambda: not stream.is_open, 10)
            id = stranger.call("GET", "/whoami", headers=second).json["id"]
            for number in range(150):
                api.keys.end_session(id, f"session-{number}", 1 << 50)
            wait_until(partial(is_refused, first), 10)
            [kept] = [one for name, one in api.broker.documents(ENDED_SESSIONS.kind).items() if name == id]
            assert len(kept.body) < 10_000, "what is kept of ended sessions has a bound"
            wait_until(partial(is_refused, second), 10)
            assert stranger.call("GET", "/whoami", headers=cookie_of(key)).status == 200, "a new login"


def says_a_name(client: ApiClient, own: dict[str, str]) -> None:
    """Of a session by link: harmless texts only, from a page of this server only, and as often as the person likes."""
    for wrong in ("", "x" * 51, "line\nbreak", "turned \u202eround"):
        assert client.call("PUT", "/whoami/name", {"name": wrong}, headers=own).status == 422, wrong
    assert client.call("PUT", "/whoami/name", {"name": "Mia"}, headers={"Cookie": own["Cookie"]}).status == 403
    named = client.call("PUT", "/whoami/name", {"name": " Mia <b> "}, headers=own)
    assert named.json["name"] == "Mia <b> (one-time link)"
    assert client.call("PUT", "/whoami/name", {"name": "Mia <b>"}, headers=own).json == named.json, "repeated"
    assert client.call("GET", "/whoami", headers=own).json["name"] == "Mia <b> (one-time link)"


def test_without_a_key_the_program_prints_a_link_for_one_session_and_refuses_other_binds(tmp_path: Path) -> None:
    refused = run("serve", "--bind", "0.0.0.0", "--port", "0", cwd=tmp_path)
    assert refused.returncode == 2
    assert "there is no key" in refused.stderr
    settings = {"observability.metrics_port": 0, "observability.metrics_bind": "127.0.0.1"}
    with (
        (tmp_path / "log").open("wb") as log,
        subprocess.Popen(
            command("server", "--port", "0", "--login-name", "maria", settings=settings),
            cwd=tmp_path,
            env=environment(),
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
        ) as process,
    ):
        try:
            assert process.stdout is not None
            url = process.stdout.readline().split()[-1]
            address, _, path = url.removeprefix("http://").partition("/")
            client = ApiClient(int(address.rpartition(":")[2]))
            client.send("HEAD", f"/{path}")  # as a program that looks at links: it does not use the link up
            first = client.send("GET", f"/{path}")
            assert first.status == 303
            cookie = first.headers["set-cookie"]
            assert cookie.startswith(f"{COOKIE}=")
            assert "HttpOnly; SameSite=Strict" in cookie
            assert client.send("GET", f"/{path}").status == 401, "the link works once"
            me = client.call("GET", "/whoami", headers={"Cookie": cookie.partition(";")[0]})
            assert (me.json["how"], "admin" in me.json["scopes"]) == ("session", True)
            assert me.json["name"] == "maria (one-time link)"
            says_a_name(client, {"Cookie": cookie.partition(";")[0], "Origin": f"http://{address}"})
            forged = cookie.partition(";")[0][:-2] + "xx"
            assert client.call("GET", "/whoami", headers={"Cookie": forged}).slug == "unauthenticated"
            assert run("keys", "revoke", me.json["id"], cwd=tmp_path).returncode == 0

            def is_refused() -> bool:
                return client.call("GET", "/whoami", headers={"Cookie": cookie.partition(";")[0]}).status == 401

            wait_until(is_refused, 10, every_s=0.1)
        finally:
            process.send_signal(signal.SIGTERM)
            assert process.wait(20) == 0
    assert path.partition("once=")[2] not in (tmp_path / "log").read_text()


def test_at_a_terminal_the_link_is_set_off_from_the_log(tmp_path: Path) -> None:
    settings = {"observability.metrics_port": 0, "observability.metrics_bind": "127.0.0.1"}
    with closing(Terminal(command("serve", "--port", "0", settings=settings), tmp_path, is_stdout=True)) as terminal:
        terminal.wait_shown(r"role\.started")
        terminal.interrupt()
        _, shown = terminal.finish()
    bold_link = r"\x1b\[1mhttp://127\.0\.0\.1:\d+/login\?once=\S{43}\x1b\[0m"
    next_link = r"  The link works once.*'fileq login-link --port \d+'.*"
    set_off = rf"\r\n\r\n  Open the console: {bold_link}\r\n{next_link}\r\n.*\r\n\r\n"
    assert re.search(set_off, shown), shown


def link_of(ended: subprocess.CompletedProcess[str]) -> tuple[int, str]:
    """The port and the path of the link that a command printed."""
    assert ended.returncode == 0, ended.stderr
    address, _, path = ended.stdout.strip().removeprefix("http://").partition("/")
    return int(address.rpartition(":")[2]), f"/{path}"


def test_a_new_link_logs_in_once_within_ten_minutes_also_where_keys_exist(tmp_path: Path) -> None:
    settings = {"broker": "sqlite", "server.port": 0}
    refused = run("login-link", "--port", "1", cwd=tmp_path, settings=settings)
    assert refused.returncode in (1, 4), "neither a server nor a database"
    with Program("serve", cwd=tmp_path, settings=settings, variables={"API_KEY": ADMIN_KEY}) as program:
        port = program.wait_for("server.opened")["url"].rpartition(":")[2]
        nowhere = run("login-link", "--port", "1", cwd=tmp_path, settings=settings)
        assert (nowhere.returncode, nowhere.stdout) == (1, "")
        assert "no fileq server is running at http://127.0.0.1:1; start one with 'fileq serve'" in nowhere.stderr
        made = [
            link_of(run("login-link", "--port", port, "--login-name", "maria", cwd=tmp_path, settings=settings))[1]
            for _ in range(2)
        ]
        client, stored = ApiClient(int(port)), sqlite3.connect(tmp_path / "fileq.db")
        with closing(stored):
            texts = " ".join(stored.iterdump())
        assert all(path.partition("once=")[2] not in texts for path in made), "only the digests are stored"
        client.send("HEAD", made[0])
        first = client.send("GET", made[0])
        assert first.status == 303
        own = {"Cookie": first.headers["set-cookie"].partition(";")[0]}
        me = client.call("GET", "/whoami", headers=own).json
        assert (me["name"], me["how"], "admin" in me["scopes"]) == ("maria (one-time link)", "session", True)
        assert client.send("GET", made[0]).status == 401, "the link works once"
        entries = client.call("GET", "/audit?action=create_login_link", headers=own).json["entries"]
        assert len(entries) == 2
        assert client.send("GET", made[1]).status == 303, "each link is one of its own"


def test_no_link_is_made_for_the_server_of_another_broker(tmp_path: Path) -> None:
    settings = {"broker": "sqlite", "server.port": 0, "sqlite.path": tmp_path / "own.db"}
    with Program("serve", cwd=tmp_path, settings=settings, variables={"API_KEY": ADMIN_KEY}) as program:
        url = program.wait_for("server.opened")["url"]
        others = {**settings, "sqlite.path": tmp_path / "others.db"}
        assert run("keys", "create", "a", "--scope", "read", cwd=tmp_path, settings=others).returncode == 0
        words = ("login-link", "--port", url.rpartition(":")[2])
        refused = run(*words, cwd=tmp_path, settings=others)
        assert (refused.returncode, refused.stdout) == (1, "")
        said = f"fileq: the fileq server at {url} uses another broker or database; "
        assert refused.stderr.startswith(said)
        assert len(refused.stderr.splitlines()) == 1
        assert run(*words, cwd=tmp_path, settings=settings).returncode == 0


def test_of_many_who_open_a_new_link_at_once_one_gets_it_and_none_after_it_expired(tmp_path: Path) -> None:
    with served_api(tmp_path) as api:
        now_ms = wall_clock_ms()
        store = KeyStore(api.broker, lambda: now_ms)
        token = store.create_link("maria")
        with ThreadPoolExecutor(8) as pool:
            got = [*pool.map(lambda _: store.use_link(token), range(8))]
        assert sorted(filter(None, got)) == ["maria"]
        late = store.create_link("maria")
        now_ms += LINK_MS
        assert store.use_link(late) is None
        store.remove_stale()
        assert api.broker.documents(LOGIN_LINKS.kind) == {}
        for _ in range(LINKS_MAX):
            store.create_link("maria")
        with pytest.raises(ConfigError, match="there are 20 unused links"):
            store.create_link("maria")


def test_an_outage_of_redis_is_a_503_and_ends_by_itself(tmp_path: Path, valkey: Server) -> None:
    settings = {"broker": "redis", "redis.addr": valkey.address, "server.port": 0}
    with Program("serve", cwd=tmp_path, settings=settings, variables={"API_KEY": ADMIN_KEY}) as program:
        client = ApiClient(int(program.wait_for("server.opened")["url"].rpartition(":")[2]), ADMIN_KEY)
        assert client.post("/jobs", {"type": "x"}).status == 201
        reader = client.with_key(client.post("/keys", {"name": "r", "scopes": ["read"]}).json["key"])
        assert reader.call("GET", "/stats").status == 200
        valkey.pause()
        answers = [one.call("GET", "/stats") for one in (client, reader)]
        valkey.resume()
        for away, names_broker in zip(answers, (True, False), strict=True):
            assert (away.slug, away.headers["retry-after"]) == ("broker-away", "1")
            assert (valkey.address in away.json["detail"]) is names_broker
        wait_until(lambda: client.call("GET", "/stats").status == 200, 20)
        program.signal(signal.SIGHUP)
        assert program.wait_for("config.reloaded")["needs_restart"] == [], "the short timeouts are no setting"
        assert program.stop() == 0
        assert ADMIN_KEY not in program.text()


def test_start_processes_jobs_and_serves_and_a_waiting_request_does_not_delay_the_stop(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    settings = {"server.port": 0, "producer.settle_unclosed": "0s", "worker.count": 1}
    with Program("start", "in", cwd=tmp_path, settings=settings, variables={"API_KEY": ADMIN_KEY}) as program:
        client = ApiClient(int(program.wait_for("server.opened")["url"].rpartition(":")[2]), ADMIN_KEY)
        (tmp_path / "in" / "a.txt").write_text("a")
        made = client.post("/jobs", {"path": str(tmp_path / "in" / "a.txt")})
        assert made.status == 201
        done = client.call("GET", f"/jobs/{made.json['id']}/wait")
        assert (done.status, done.json["status"], done.json["path"]) == (
            200,
            "completed",
            str(tmp_path / "in" / "a.txt"),
        )
        later = client.post("/jobs", {"type": "later", "delay": "1h"}).json["id"]

        def wait_for_it() -> None:
            with contextlib.suppress(OSError, http.client.HTTPException):  # it may come after the stop
                client.send("GET", f"{API}/jobs/{later}/wait?timeout=60")

        wait = threading.Thread(target=wait_for_it, daemon=True)
        wait.start()
        assert program.stop() == 0
        wait.join(10)
        assert not program.events("server.warned"), "no request was cut off"


PROXY = {"auth_header": "X-User", "trusted_proxies": ["127.0.0.1"]}


def test_another_site_can_not_start_a_check(tmp_path: Path) -> None:
    """L2: a link of another site started a check of the whole broker in the name of a proxy's user."""
    with served_api(tmp_path, {"server": PROXY}) as api:
        browser = api.client.with_key("")
        for page in ("consistency", "environment"):
            for site, is_run, status in (
                ("cross-site", True, 403),
                ("same-site", True, 403),
                ("same-origin", True, 200),
                ("none", True, 200),
                ("cross-site", False, 200),
            ):
                address = f"/dashboard/admin/{page}{'?run=true' if is_run else ''}"
                headers = {"X-User": "bob", "Sec-Fetch-Site": site}
                assert browser.send("GET", address, headers=headers).status == status, (address, site)
            assert api.client.send("GET", f"{address}?run=true", headers={"Sec-Fetch-Site": "cross-site"}).status == 200


def test_a_page_of_another_origin_opens_a_socket_only_with_a_key(tmp_path: Path) -> None:
    """L3: a page of server.cors_origins read the events with the identity that the proxy adds."""
    with served_api(tmp_path, {"server": PROXY | {"cors_origins": ["https://app.example"]}}) as api:
        port, user, foreign = api.client.port, {"X-User": "bob"}, {"Origin": "https://app.example"}
        assert SocketClient(port, f"{API}/ws", user | foreign).status == 403
        for headers in (user, user | {"Origin": f"http://127.0.0.1:{port}"}, {"X-API-Key": ADMIN_KEY} | foreign):
            opened = SocketClient(port, f"{API}/ws", headers)
            assert opened.status == 0, headers
            opened.close()


def test_two_users_in_one_request_are_none(tmp_path: Path) -> None:
    """L4: of two headers with the name of the user the first counted, which a client may have sent."""
    with served_api(tmp_path, {"server": PROXY}) as api:
        for names, status in ((("bob",), 200), (("admin", "bob"), 401), (("bob", "bob"), 401), (("", "bob"), 401)):
            connection = http.client.HTTPConnection("127.0.0.1", api.client.port, timeout=30)
            connection.putrequest("GET", WHOAMI)
            for name in names:
                connection.putheader("X-User", name)
            connection.endheaders()
            answer = connection.getresponse()
            assert answer.status == status, (names, answer.read())
            connection.close()
