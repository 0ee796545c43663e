"""Keys are nowhere but in the header: not in the log, the process list, the audit, the answers, the files."""

from __future__ import annotations

from pathlib import Path

from tests.support.api_client import ADMIN_KEY, ApiClient
from tests.support.program import Program, run
from tests.support.waiting import wait_until


def test_keys_are_not_in_logs_answers_files_and_process_lists(tmp_path: Path) -> None:
    settings = {"server.port": 0, "observability.log_level": "debug"}
    with Program("serve", cwd=tmp_path, settings=settings, variables={"API_KEY": ADMIN_KEY}) as program:
        client = ApiClient(int(program.wait_for("server.opened")["url"].rpartition(":")[2]), ADMIN_KEY)
        key = client.post("/keys", {"name": "mine", "scopes": ["admin"]}).json["key"]
        mine = client.with_key(key)
        answers = [
            mine.call("GET", "/keys"),
            mine.call("GET", "/whoami"),
            mine.call("GET", "/config"),
            mine.post("/jobs", {"type": "x", "nonsense": 1}),
            mine.call("GET", f"/nothing/{'x' * 300}"),
            mine.delete("/jobs/unknown"),
            mine.with_key("").call("GET", f"/jobs?api_key={key}", headers={"Authorization": f"Bearer {key[:-1]}"}),
            mine.with_key("").call("GET", "/stats", headers={"Authorization": f"Basic {key}"}),
            mine.with_key("").call("GET", f"/stats?key={ADMIN_KEY}"),
        ]
        assert [answer.status for answer in answers] == [200, 200, 200, 422, 404, 404, 401, 401, 401]
        assert mine.delete(f"/keys/{key}").status == 404, "the id is meant; the key is not kept"
        for pid in (program.process.pid, *children_of(program.process.pid)):
            assert not {key, ADMIN_KEY} & {*Path(f"/proc/{pid}/cmdline").read_text().split("\0")}
        wait_until(lambda: program.events("request.audited"))
        assert program.stop() == 0
        written = b"".join(path.read_bytes() for path in tmp_path.rglob("*") if path.is_file())
        shown = b"".join(answer.body for answer in answers) + program.text().encode() + written
    assert ADMIN_KEY.encode() not in shown
    assert key.encode() not in shown
    assert key.split("_", 2)[2].encode() not in shown, "not even the secret part alone"


def children_of(pid: int) -> list[int]:
    return [int(word) for word in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def test_a_guessable_password_is_refused(tmp_path: Path) -> None:
    (tmp_path / "password").write_text("admin\n")
    given = {"server.port": 0, "server.username": "admin", "server.password_file": str(tmp_path / "password")}
    guessable = run("serve", cwd=tmp_path, settings=given)
    assert (guessable.returncode, "is the same as server.username" in guessable.stderr) == (2, True), guessable.stderr
