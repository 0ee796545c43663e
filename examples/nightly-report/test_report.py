from __future__ import annotations

import os
from datetime import UTC, datetime
from pathlib import Path

import pytest
import report

import fileq.testing
from fileq.config import load

HERE = Path(__file__).parent


@pytest.fixture(autouse=True)
def reports(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(report, "REPORTS", str(tmp_path / "reports"))
    return tmp_path / "reports"


def test_a_report_counts_the_files_of_the_last_hours(tmp_path: Path, reports: Path) -> None:
    time = datetime(2026, 11, 17, 1, 30, tzinfo=UTC)
    (tmp_path / "in").mkdir()
    for name, hours in (("new", 2), ("old", 30)):
        (tmp_path / "in" / name).write_text("text")
        os.utime(tmp_path / "in" / name, (0, time.timestamp() - hours * 3600))
    payload = {"directory": str(tmp_path / "in"), "scheduled_for": "2026-11-17T01:30:00.000Z"}
    for _ in range(2):  # a repetition does no harm
        found = fileq.testing.run(report.report, type="report", payload=payload)
        assert found == {"files": 1, "bytes": 4, "missed": 0}
    assert [path.name for path in reports.iterdir()] == ["2026-11-17.json"]


def test_it_runs_on_the_nights_before_working_days() -> None:
    config = load(str(HERE / "config.yaml"), environ={}).config
    with fileq.testing.queue(config=config, app_dir=str(HERE)) as q:
        q.advance("7d")
        assert len(q.fired("nightly-report")) == 5
        assert q.dead == []
