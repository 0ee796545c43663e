"""What people read of a single run: how fast it goes, what died, and nothing that a terminal would obey."""

from __future__ import annotations

import json
from typing import Any

import pytest

from fileq.core.text import printable
from fileq.runtime.once import _name, _Pace, _without_counted
from fileq.runtime.terminal import live_line


def test_the_pace_is_that_of_the_last_seconds() -> None:
    pace = _Pace()
    assert pace.of(0, 100.0) == 0
    assert pace.of(0, 104.0) == 0, "nothing happened while files settled"
    assert pace.of(300, 106.0) == pytest.approx(150)
    assert pace.of(300, 120.0) == 0, "and none of it counts for ever"


def test_a_dead_job_is_called_by_its_file_or_by_its_type_or_by_its_id() -> None:
    fields: dict[str, Any] = {"id": "a", "filepath": "/in/x", "filesize": 1, "priority": "low", "retries": 0}
    fields |= {"creation_time": "2026-11-16T00:00:00Z", "trace_id": "", "span_id": ""}
    assert _name("a", json.dumps(fields).encode()) == "/in/x"
    assert _name("a", json.dumps({**fields, "filepath": "", "type": "mail"}).encode()) == "mail a"
    assert _name("raw-1", b"\xff") == "raw-1"


@pytest.mark.parametrize(
    ("text", "shown"),
    [("plain ünï", "plain ünï"), ("a\nb", "a\\nb"), ("\x1b[31mred", "\\x1b[31mred"), ("\udcff", "\\udcff")],
)
def test_text_for_a_terminal_is_one_line_that_it_does_not_obey(text: str, shown: str) -> None:
    assert printable(text) == shown


def test_beside_the_line_only_what_it_does_not_count_is_told() -> None:
    told: list[tuple[str, str]] = []

    def emit(event: str, *, level: str = "info", **_fields: object) -> None:
        told.append((event, level))

    quietly = _without_counted(emit)
    for event, level in [("job.completed", "info"), ("job.failed", "warning"), ("job.dead", "error")]:
        quietly(event, level=level)
    quietly("broker.lost", level="warning")
    assert [level for _, level in told] == ["debug", "debug", "debug", "warning"]


def test_where_there_is_no_terminal_there_is_no_line(capfd: pytest.CaptureFixture[str]) -> None:
    with live_line("starting") as (show, is_shown):
        show("going on")
    assert (is_shown, *capfd.readouterr()) == (False, "", "")
