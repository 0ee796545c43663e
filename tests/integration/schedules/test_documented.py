"""docs/schedules.md: its configuration runs with the real worker, its program defines a schedule, its test passes."""

from __future__ import annotations

import json
import re
from pathlib import Path

from fileq.client.options import ScheduleKeywords
from fileq.config.schema import ScheduleSettings
from tests.integration.client.test_documented import in_app
from tests.support.program import Program, run
from tests.support.waiting import wait_until

ROOT = Path(__file__).parents[3]
GUIDE = (ROOT / "docs" / "schedules.md").read_text()
BLOCKS = dict(re.findall(r"```(?:python|yaml)\n# (\S+)\n(.*?)```", GUIDE, re.DOTALL))


def json_of(app: Path, *arguments: str) -> dict[str, object]:
    found: dict[str, object] = json.loads(run(*arguments, "--json", cwd=app).stdout)
    return found


def test_the_guide_runs_as_it_says(tmp_path: Path) -> None:
    assert len(BLOCKS) == GUIDE.count("```") // 2 == 4
    for name, text in BLOCKS.items():
        (tmp_path / name).write_text(text)
    (tmp_path / "data").mkdir()
    options = ("-q", "-c", "/dev/null", "-pno:cacheprovider", "-pno:valkey")
    assert "1 passed" in in_app(tmp_path, "-m", "pytest", *options, "test_report.py")
    with Program("worker", cwd=tmp_path) as worker:
        worker.wait_for("schedule.defined", count=3)
        in_app(tmp_path, "plan.py")
        found = json_of(tmp_path, "schedule", "list")["schedules"]
        assert isinstance(found, list)
        assert {one["name"]: one["status"] for one in found} == {
            **{"again": "paused", "inbox": "active", "nightly-report": "active", "weekly": "active"},
        }
        ids = [json_of(tmp_path, "schedule", "run", name)["id"] for name in ("weekly", "inbox", "again")]

        def results() -> list[object]:
            return [json_of(tmp_path, "show", str(id)).get("result") for id in ids]

        wait_until(lambda: None not in results(), 30)
        weekly, inbox, again = results()
        assert str(weekly).startswith("the 7 days before")
        assert isinstance(inbox, dict)
        assert inbox["found"] == 0
        assert again == {"enqueued": 0, "missing": 0, "unfinished": 0}


def test_every_key_is_in_the_guide() -> None:
    rows = " ".join(re.findall(r"^\| (`.*?) \|", GUIDE, re.MULTILINE))
    names = {*ScheduleSettings.__struct_fields__, *ScheduleKeywords.__annotations__}
    assert [name for name in names if f"`{name}`" not in rows] == []
