"""Who is let in: hosts, origins, rates, sessions, HTTP Basic, proxies; and the program's start, stop and outages."""

from __future__ import annotations

import base64
import contextlib
import http.client
import signal
import subprocess
import threading
from pathlib import Path

from fileq.server.sessions import COOKIE
from tests.support.api_client import ADMIN_KEY, API, ApiClient, served_api
from tests.support.program import Program, command, environment, run
from tests.support.servers.server import Server
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


def test_an_outage_of_redis_is_a_503_and_ends_by_itself(tmp_path: Path, valkey: Server) -> None:
    settings = {"broker": "redis", "redis.addr": valkey.address, "server.port": 0}
    with Program("serve", cwd=tmp_path, settings=settings, variables={"API_KEY": ADMIN_KEY}) as program:
        client = ApiClient(int(program.wait_for("server.opened")["url"].rpartition(":")[2]), ADMIN_KEY)
        assert client.post("/jobs", {"type": "x"}).status == 201
        valkey.pause()
        away = client.call("GET", "/stats")
        valkey.resume()
        assert (away.slug, away.headers["retry-after"]) == ("broker-away", "1")
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
