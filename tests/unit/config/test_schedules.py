"""The section `schedules`: what it means for the broker, where it can be set, and everything that is wrong with one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from fileq.config import config_from, load
from fileq.config.show import redacted, to_listing
from fileq.core.errors import ConfigError
from fileq.core.schedule import ScheduleDefinition


def problems_of(**schedules: Any) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        config_from({"schedules": schedules})
    return [line.removeprefix("the given values: ") for line in caught.value.problems]


def test_a_schedule_has_the_defaults_of_the_documentation() -> None:
    schedule = config_from({"schedules": {"a.b-c_1": {"cron": "@daily", "type": "t"}}}).schedules["a.b-c_1"]
    assert schedule.definition == ScheduleDefinition(cron="@daily", type="t")
    assert (schedule.timezone, schedule.missed, schedule.overlap, schedule.within, schedule.paused) == (
        *("UTC", "last", "skip", 600.0, False),
    )


def test_every_key_of_a_schedule_is_read_from_a_file(tmp_path: Path) -> None:
    (tmp_path / "config.yaml").write_text(
        """
schedules:
  nightly-report:
    cron: "30 2 * * 1-5"
    timezone: Europe/Berlin
    type: report
    payload: {days: 7, share: 0.5, all: true, name: "7", when: 2026-01-01, none: ~, list: [1, b], word: yes}
    priority: high
    missed: all:3
    overlap: cancel
    within: 5m
    paused: true
    max_retries: 0
    timeout: 1h
"""
    )
    [schedule] = load(cwd=tmp_path, environ={}).config.schedules.values()
    assert schedule.paused
    assert schedule.definition == ScheduleDefinition(
        cron="30 2 * * 1-5",
        timezone="Europe/Berlin",
        type="report",
        payload={
            **{"days": 7, "share": 0.5, "all": True, "name": "7", "when": "2026-01-01", "none": None},
            **{"list": [1, "b"], "word": "yes"},
        },
        priority="high",
        missed="all:3",
        overlap="cancel",
        within_s=300.0,
        max_retries=0,
        timeout_s=3600.0,
    )


def test_scan_and_reprocess_are_jobs_of_fileq_itself() -> None:
    schedules = {
        "scan": {"cron": "@hourly", "scan": "/srv/inbox"},
        "again": {"cron": "@daily", "reprocess": {"match": "**/*.pdf", "since": "1d"}},
    }
    found = config_from({"schedules": schedules}).schedules
    scan, again = found["scan"].definition, found["again"].definition
    assert (scan.type, scan.payload) == ("fileq.scan", {"dir": "/srv/inbox"})
    assert (again.type, again.payload) == ("fileq.reprocess", {"match": "**/*.pdf", "since_s": 86_400.0})


def test_a_schedule_can_be_set_in_the_environment_and_by_set() -> None:
    loaded = load(
        sets=["schedules.a.b.cron=@daily", "schedules.a.b.scan=./in", "schedules.e.paused=true"],
        environ={"FILEQ_SCHEDULES": "{e: {cron: '@every 5m', type: t, payload: {a: 1}}}"},
        cwd="/nonexistent",
    )
    schedules = loaded.config.schedules
    assert (schedules["a.b"].cron, schedules["a.b"].scan) == ("@daily", "./in")
    assert (schedules["e"].payload, schedules["e"].paused) == ({"a": 1}, True)
    rows = {row.key: row.value for row in to_listing(loaded) if row.key.startswith("schedules")}
    assert rows == {
        "schedules.a.b": '{cron: "@daily", scan: "./in"}',
        "schedules.e": '{cron: "@every 5m", type: t, payload: {a: 1}, paused: true}',
    }


def test_a_configuration_with_schedules_can_be_written_and_read_back() -> None:
    config = config_from(
        {
            "handlers": [],
            "schedules": {"s": {"cron": "@daily", "type": "t", "payload": {"n": 1, "s": "1", "b": False, "m": {}}}},
        }
    )
    assert config_from(redacted(config)) == config


def test_all_that_is_wrong_is_named_at_once_with_its_path() -> None:
    found = problems_of(
        **{
            "a b": {"cron": "61 * * * *", "type": "t"},
            "x": {"cron": "@daily", "timezone": "Europe/Berlim", "type": "t", "missed": "all:0", "overlap": "stop"},
            "y": {"cron": "@daily", "type": "t", "pasued": "true", "payload": "text"},
        }
    )
    assert found == [
        "schedules.a b is 'a b'; it must be a name that matches [A-Za-z0-9._-]{1,100}",
        "schedules.a b.cron is '61 * * * *'; it must be 5 fields such as '30 2 * * 1-5', @hourly, @daily, @weekly, "
        "@monthly, @yearly, or '@every 15m'; its minute is invalid",
        "schedules.x.timezone is 'Europe/Berlim'; it must be a time zone such as Europe/Berlin; did you mean "
        "Europe/Berlin?",
        "schedules.x.missed is 'all:0'; it must be skip, last or all:N, with N from 1 to 1000",
        "schedules.x.overlap is 'stop'; it must be allow, skip, queue or cancel",
        "unknown key 'schedules.y.pasued'; did you mean 'schedules.y.paused'?",
        "schedules.y.payload is 'text'; it must be a mapping such as {a: b}",
    ]


@pytest.mark.parametrize(
    ("schedule", "problem"),
    [
        ({"type": "t"}, "schedules.s has no cron"),
        ({"cron": "@daily"}, "schedules.s has neither type nor reprocess nor scan"),
        ({"cron": "@daily", "type": "t", "scan": "d"}, "schedules.s has both type and scan"),
        ({"cron": "@daily", "scan": "d", "payload": {"a": 1}}, "schedules.s.payload goes with a type only"),
        (
            {"cron": "@daily", "type": "t", "payload": {"missed": 1}},
            "schedules.s.payload can't be used: it has the key",
        ),
        ({"cron": "@daily", "type": "fileq.scan"}, "types that begin with 'fileq.' are fileq's own"),
        ({"cron": "@daily", "reprocess": {}}, "schedules.s.reprocess has neither match nor since"),
        (
            {"cron": "@daily", "type": "t", "priority": "mid"},
            "schedules.s.priority is 'mid'; it must be one of high or",
        ),
        ({"cron": "x" * 201, "type": "t"}, "it must be at most 200 characters"),
        ({"cron": "0 0 */20 2 MON#5", "type": "t"}, "no day matches it"),
    ],
)
def test_what_does_not_go_together_is_named(schedule: dict[str, Any], problem: str) -> None:
    [found] = problems_of(s=schedule)
    assert problem in found


def test_a_configuration_without_schedules_imports_neither_cronsim_nor_zones() -> None:
    import subprocess
    import sys

    code = "import sys; from fileq.config import load; load(environ={}, cwd='/nonexistent'); "
    code += "print(sorted({'cronsim', 'zoneinfo', 'hashlib'} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


@pytest.mark.parametrize("what", [{"type": "\udcff"}, {"scan": "\udcff"}, {"reprocess": {"match": "\udcff"}}])
def test_the_texts_of_a_schedule_are_utf8(what: dict[str, Any]) -> None:
    """Its definition is JSON on the broker."""
    with pytest.raises(ConfigError, match="it must be"):
        config_from({"schedules": {"a": {"cron": "@daily", **what}}})
