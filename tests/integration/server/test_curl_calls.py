"""examples/rest-api/calls.sh, run against the real program: each answer has the fields and texts of the contract."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any, NamedTuple

from tests.support.api_client import ADMIN_KEY
from tests.support.program import REPOSITORY, Program, environment

EXAMPLE = REPOSITORY / "examples" / "rest-api"
RFC3339 = r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z"


class CurlCall(NamedTuple):
    line: str  # method and path
    status: int
    answer: dict[str, Any]


def calls_of(output: str) -> list[CurlCall]:
    found = re.findall(r"^> (\S+ \S+).*\n(\d+) (.*)$", output, re.MULTILINE)
    return [CurlCall(line, int(status), json.loads(body)) for line, status, body in found]


def test_the_calls_answer_as_the_contract_shows(tmp_path: Path) -> None:
    directory = tmp_path / "rest-api"
    shutil.copytree(EXAMPLE, directory, ignore=shutil.ignore_patterns("__pycache__", "inbox", "*.db*", "*.log"))
    (directory / "inbox").mkdir()
    variables = {"PORT": "0", "API_KEY": ADMIN_KEY, "WORKER_CONCURRENCY": "1"}
    with Program("start", cwd=directory, variables=variables) as program:
        url = program.wait_for("server.opened")["url"]
        ended = subprocess.run(
            ["sh", "calls.sh"],
            cwd=directory,
            env=environment(URL=url, API_KEY=ADMIN_KEY, PATH=os.environ["PATH"], no_proxy="127.0.0.1"),
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        assert program.stop() == 0
        assert ADMIN_KEY not in program.text() + ended.stdout
    assert (ended.returncode, ended.stderr) == (0, ""), ended.stdout
    check_answers(calls_of(ended.stdout))


def check_answers(calls: list[CurlCall]) -> None:
    made, _, got, later, cancelled, broken, died, retried, _, dead, purged, stats, refused = calls
    assert (made.line, made.status) == ("POST /jobs", 201)
    has(made.answer, type="report", status="pending", priority="high")
    assert re.fullmatch(RFC3339, made.answer["created_at"])

    assert got.status == 200
    has(got.answer, id=made.answer["id"], type="report", status="completed", priority="high", retry_count=0)
    has(got.answer, result={"pages": 3}, payload={"pages": 3}, created_at=made.answer["created_at"])
    assert all(re.fullmatch(RFC3339, got.answer[name]) for name in ("started_at", "completed_at"))
    assert got.answer["worker_id"]

    assert (later.status, later.answer["status"]) == (201, "scheduled")
    assert (cancelled.status, cancelled.answer) == (200, {"message": "Job cancelled", "result": "cancelled"})

    assert broken.status == 201
    has(died.answer, status="dead")
    assert "the printer is on fire" in json.dumps(died.answer)
    assert (retried.status, retried.answer) == (200, {"message": "Job re-enqueued", "status": "pending"})
    has(dead.answer, total=1, page=1, limit=20)
    assert [(job["id"], job["status"]) for job in dead.answer["jobs"]] == [(broken.answer["id"], "dead")]
    assert (purged.status, purged.answer) == (200, {"message": "Purged 1 dead job"})

    assert stats.status == 200
    has(stats.answer, queues={"high": 0, "low": 0}, total_processed=1, dead_count=0, active_workers=1)
    assert stats.answer["total_failed"] >= 1
    assert stats.answer["jobs_today"]["processed"] == 1
    assert (refused.status, refused.answer["status"], refused.answer["type"]) == (
        401,
        401,
        "urn:fileq:problem:unauthenticated",
    )


def has(answer: dict[str, Any], **fields: Any) -> None:
    """Fails unless the answer has these fields with these values, besides others."""
    assert {name: answer.get(name) for name in fields} == fields
