"""Client.schedule and the schedules of fileq.testing.queue: everything at its time, nothing waits."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from msgspec import Struct

import fileq
import fileq.testing
from fileq.core.errors import BrokerError, ConfigError
from fileq.testing import TrialQueue
from tests.support import trial_tasks as app

DAILY = {"daily": {"cron": "@daily", "type": "double", "payload": {"n": 4}}}


@pytest.fixture
def q() -> Iterator[TrialQueue]:
    with fileq.testing.queue(imports=["tests.support.trial_tasks"], config={"schedules": DAILY}) as q:
        yield q


def test_the_schedules_of_the_configuration_fire_when_time_passes(q: TrialQueue) -> None:
    assert q.drain() == 0, "a drain has an end"
    assert q.advance("60h") in (2, 3)
    jobs = q.fired("daily")
    assert [job.payload for job in jobs] == [app.Number(4)] * len(jobs)
    assert jobs[-1].result == {"n": 8}
    assert all(job.id.endswith("T000000Z") for job in jobs)

    with pytest.raises(BrokerError, match=r"no schedule is named 'dialy'; did you mean 'daily'\?"):
        q.fired("dialy")


def test_a_program_defines_schedules(q: TrialQueue) -> None:
    for _ in range(2):
        q.client.schedule("hourly", "@hourly", app.double, app.Number(3), timezone="Europe/Berlin", within="5m")
    q.advance("3h")
    assert len(q.fired("hourly")) == 3
    q.client.schedule("hourly", "@yearly", "double", {"n": 1})
    q.advance("3h")
    assert len(q.fired("hourly")) == 3


def test_a_task_without_a_payload_learns_what_a_schedule_adds(q: TrialQueue) -> None:
    @fileq.task("clean_up")
    def clean_up(job: fileq.JobView[None], context: fileq.Context) -> None: ...

    with pytest.raises(ConfigError, match=r"fileq itself gives its job a payload: scheduled_for and missed to that of"):
        q.client.schedule("s", "@daily", clean_up)
    with pytest.raises(ConfigError, match=r"got `object`$"):
        clean_up.enqueue({"days": 1})  # type: ignore[arg-type]


def test_an_async_client_defines_schedules(q: TrialQueue) -> None:
    asyncio.run(fileq.AsyncClient.of(q.client).schedule("hourly", "@hourly", "double", {"n": 1}))
    q.advance("2h")
    assert len(q.fired("hourly")) == 2


class Wrong(Struct):
    m: int


@pytest.mark.parametrize(
    ("arguments", "options", "message"),
    [
        (("s", "@daily", app.double, Wrong(1)), {}, "n"),
        (("s", "@daily", "unknown", [1]), {}, "it must be a mapping or a Struct"),
        (("s", "@daily", "unknown", {"missed": 1}), {}, "which fileq sets itself"),
        (("s", "@daily", "unknown", {1j: 1}), {}, "JSON"),
        (("a b", "@daily", "unknown"), {}, "must match|that matches"),
        (("s", "* * * *", "unknown"), {}, "4 fields"),
        (("s", "@daily", "unknown"), {"timezone": "Mars"}, "a time zone such as"),
        (("s", "@daily", "unknown"), {"priority": "x"}, "one of high or low"),
        (("s", "@daily", "unknown"), {"within": "soon"}, "within is 'soon'"),
        (("s", "@daily", ""), {}, "give a task"),
        (("daily", "@hourly", "unknown"), {}, "is defined by the configuration"),
    ],
)
def test_what_can_not_be_scheduled_is_refused(
    q: TrialQueue, arguments: tuple[Any, ...], options: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        q.client.schedule(*arguments, **options)
    with pytest.raises(TypeError, match=r"'overlaps'; known: .*, timezone, within; did you mean 'overlap'\?$"):
        q.client.schedule("s", "@daily", "double", overlaps="skip")  # type: ignore[call-arg]


def test_a_scheduled_scan_enqueues_new_files_and_reprocessing_known_ones(tmp_path: Path) -> None:
    schedules = {
        "scan": {"cron": "0 * * * *", "scan": str(tmp_path)},
        "again": {"cron": "30 * * * *", "reprocess": {"match": "**/*.txt"}},
    }
    config = {"schedules": schedules, "worker": {"allowed_roots": [str(tmp_path)]}}
    (tmp_path / "a.txt").write_text("hello")
    with fileq.testing.queue(imports=["tests.support.trial_tasks"], config=config) as q:
        q.advance("3h")
        scans, again = q.fired("scan"), q.fired("again")
        assert [(job.result["found"], job.result["enqueued"]) for job in scans] == [(1, 1), (1, 0), (1, 0)]
        assert {job.result["enqueued"] for job in again[1:]} == {1}
        files = [job for job in q.completed() if job.path]
        assert len(files) == 1 + sum(job.result["enqueued"] for job in again)


def test_a_scan_of_a_directory_that_is_gone_fails_and_says_so(tmp_path: Path) -> None:
    config = {"schedules": {"scan": {"cron": "@hourly", "scan": str(tmp_path / "gone"), "max_retries": 0}}}
    with fileq.testing.queue(config=config) as q:
        q.advance("1h")
        [job] = q.dead
        assert "does not exist" in job.error
