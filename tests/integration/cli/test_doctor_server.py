"""`fileq doctor serve` checks the address, the keys, the proxy and the uploads of the REST server."""

from __future__ import annotations

from pathlib import Path

from fileq.config.http_settings import OUTSIDE_KEY
from tests.support.doctor import Doctor
from tests.support.program import Program, run

OPEN = {"server__bind": "0.0.0.0", "server__port": 0}


def test_a_server_that_others_reach_needs_a_key_and_should_have_tls(cwd: Path, doctor: Doctor) -> None:
    assert doctor("serve", **OPEN).wrong == ["server key"]
    assert "fileq keys create" in doctor.find("server key")[0]["advice"]
    assert (doctor.status("server TLS"), doctor.status("server hosts")) == ("unknown", "unknown")
    assert list(cwd.iterdir()) == [cwd / "data"], "nothing is created"
    assert run("keys", "create", "ann", "--scope", "admin", "--expires", "2d", cwd=cwd).returncode == 0
    named = {**OPEN, "server__trusted_proxies": "10.0.0.0/8", "server__hosts": "queue.example"}
    assert doctor("serve", **named).code == 0
    assert (doctor.status("server TLS"), doctor.status("server hosts")) == ("ok", "")
    assert doctor.status("server key") == "ok", "a key that was made for two days is no news"


def test_on_loopback_a_missing_key_is_a_note_and_only_a_configured_server_is_checked(cwd: Path, doctor: Doctor) -> None:
    assert not doctor().find("server")
    assert doctor(server__port=0).status("server") == "ok"
    assert doctor("serve", server__port=0).status("server key") == "unknown"
    assert {"handlers", "server", "scan_dir"} <= {check["name"] for check in doctor("start", server__port=0).checks}


def test_secret_files_proxies_and_uploads_are_checked(cwd: Path, doctor: Doctor) -> None:
    proxy = {"server__auth_header": "X-User", "server__trusted_proxies": "0.0.0.0/0"}
    files = {"server__api_key_file": "key", "server__username": "admin", "server__password_file": "password"}
    (cwd / "password").write_text("admin\n")
    given = {"server__port": 0, "server__upload_dir": "none", **proxy, **files}
    assert doctor("serve", **given).wrong == [
        *("server api_key_file", "server password_file"),
        *("server proxy", "server uploads"),
    ]
    (cwd / "key").write_text("guessable")
    assert doctor("serve", **given).find("server api_key_file")[0]["detail"] == f"key must hold {OUTSIDE_KEY}"
    for name in ("key", "password"):
        (cwd / name).write_text("a-long-enough-secret")
        (cwd / name).chmod(0o600)
    (cwd / "key").chmod(0o644)
    (cwd / "data" / "up").mkdir()
    fixed = {**given, "server__upload_dir": "data/up", "server__trusted_proxies": "127.0.0.1"}
    assert doctor("serve", **fixed).code == 0
    assert (doctor.status("server api_key_file"), doctor.status("server uploads")) == ("unknown", "ok")
    (cwd / "up").mkdir()
    assert doctor("serve", **{**fixed, "server__upload_dir": "up"}).status("server uploads") == "unknown"


def test_a_port_that_a_running_server_has_is_not_a_problem(cwd: Path, doctor: Doctor) -> None:
    with Program("serve", cwd=cwd, settings={"server.port": 0}, variables={"API_KEY": "k" * 20}) as program:
        port = program.wait_for("server.opened")["url"].rpartition(":")[2]
        assert doctor("serve", server__port=port).status("server") == "ok"
        assert "running fileq" in doctor.find("server")[0]["detail"]
        metrics = program.wait_for("http.opened")["port"]
        assert doctor("serve", server__port=metrics).wrong == ["server"]
