"""Hooks: called after the fact, in a thread of their own. What they do changes nothing."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import pytest
from msgspec.structs import replace

import fileq
from fileq.config import config_from
from fileq.core.errors import ConfigError
from fileq.core.events import BrokerRestored, JobCancelled, JobCompleted, JobDead, JobFailed, JobRecovered, JobReleased
from fileq.handlers import extensions
from fileq.handlers.extensions import EventView, Extensions
from fileq.handlers.routes import Routes
from fileq.runtime import observers
from fileq.runtime.observers import REPORT_EVERY_S, HookRunner
from tests.support.clocks import ManualClocks, RecordedEvents
from tests.support.event_samples import claim_event, end_event
from tests.support.waiting import wait_until


@pytest.fixture(autouse=True)
def own_extensions(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(extensions, "EXTENSIONS", Extensions())


class HookSetup:
    """A runner whose reports the test reads and whose clock it moves."""

    def __init__(self) -> None:
        self.reports = RecordedEvents()
        self.clocks = ManualClocks()
        self.runner = HookRunner(self.reports, self.clocks.monotonic)
        self.seen: list[EventView] = []

    def emit(self, *events: Any) -> None:
        listen = self.runner.listener(Routes.load(config_from({}), app_dir="").hooks)
        for event in events:
            listen(event)

    def wait_seen(self, count: int) -> list[EventView]:
        wait_until(lambda: len(self.seen) >= count, 10)
        return self.seen


@pytest.fixture
def setup() -> Iterator[HookSetup]:
    setup = HookSetup()
    yield setup
    setup.runner.close()


def test_a_hook_gets_its_events_in_their_order_and_no_others(setup: HookSetup) -> None:
    fileq.hook("job.started", "job.dead", "broker.restored")(setup.seen.append)
    ends = (JobCompleted, JobFailed, JobCancelled, JobRecovered, JobReleased)
    setup.emit(claim_event(None), *map(end_event, ends), end_event(JobDead, error="x"), BrokerRestored(1.5))
    assert [event.name for event in setup.wait_seen(3)] == ["job.started", "job.dead", "broker.restored"]
    started, dead, restored = setup.seen
    assert (dead.job_id, dead.error, dead.filepath, dead.type) == ("job", "x", "", "")
    assert (restored.job_id, dict(restored.data)) == ("", {"seconds": 1.5})
    assert "job" not in started.data
    assert started.at <= dead.at


def test_the_view_is_read_only(setup: HookSetup) -> None:
    fileq.hook("job.dead")(setup.seen.append)
    setup.emit(end_event(JobDead, error="x"))
    [event] = setup.wait_seen(1)
    with pytest.raises(TypeError):
        event.data["error"] = "y"  # type: ignore[index]
    with pytest.raises(AttributeError):
        event.name = "y"  # type: ignore[misc]


def test_a_job_that_is_given_back_when_the_worker_stops_has_not_started(setup: HookSetup) -> None:
    fileq.hook("job.started")(setup.seen.append)
    setup.emit(replace(claim_event(None), is_run=False), end_event(JobReleased), claim_event(None))
    setup.runner.close()
    assert len(setup.seen) == 1


def test_an_async_hook_is_awaited(setup: HookSetup) -> None:
    @fileq.hook("job.dead")
    async def later(event: EventView) -> None:
        setup.seen.append(event)

    setup.emit(end_event(JobDead))
    assert len(setup.wait_seen(1)) == 1


def test_a_hook_that_raises_is_reported_once_a_minute_and_the_others_are_called(setup: HookSetup) -> None:
    @fileq.hook("job.dead")
    def broken(event: EventView) -> None:
        raise SystemExit("x")

    fileq.hook("job.dead")(setup.seen.append)
    setup.emit(*[end_event(JobDead)] * 3)
    setup.wait_seen(3)
    assert setup.reports.count("hook.failed") == 1
    setup.clocks.advance(REPORT_EVERY_S)
    setup.emit(end_event(JobDead))
    setup.wait_seen(4)
    fields = [fields for _, fields in setup.reports.events]
    assert [one["failures"] for one in fields] == [1, 3]
    assert str(fields[0]["hook"]).endswith("broken")
    assert (fields[0]["event_name"], fields[0]["error"]) == ("job.dead", fields[1]["error"])
    assert str(fields[0]["error"]).startswith("SystemExit: x (at test_hook_runner.py:")


def test_failures_that_were_not_reported_yet_are_reported_at_the_end(setup: HookSetup) -> None:
    @fileq.hook("job.dead")
    def broken(event: EventView) -> None:
        raise ValueError("x")

    setup.emit(*[end_event(JobDead)] * 3)
    setup.runner.close()
    assert [fields["failures"] for _, fields in setup.reports.events] == [1, 2]


def test_a_hook_that_hangs_stops_nothing_and_what_it_missed_is_counted(
    setup: HookSetup, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(observers, "CLOSE_TIMEOUT_S", 0.05)
    gate = threading.Event()

    @fileq.hook("job.dead")
    def hangs(event: EventView) -> None:
        setup.seen.append(event)
        gate.wait(60)

    setup.emit(end_event(JobDead))
    setup.wait_seen(1)
    setup.emit(*[end_event(JobDead)] * (observers.QUEUE_MAX + 3))
    assert setup.reports.fields("hook.events_dropped")["count"] == 1
    assert str(setup.reports.fields("hook.events_dropped")["hook"]).endswith("hangs")
    setup.runner.close()
    counts = [fields["count"] for _, fields in setup.reports.events]
    assert counts == [1, 2 + observers.QUEUE_MAX]
    gate.set()


def test_without_hooks_there_is_no_thread(setup: HookSetup) -> None:
    setup.emit(end_event(JobDead))
    assert not any(thread.name == "hooks" for thread in threading.enumerate())


def test_an_unknown_event_and_a_function_without_a_parameter_are_errors() -> None:
    fileq.hook("job.complete", "nothing")(lambda event: None)
    fileq.hook("job.dead")(lambda: None)
    with pytest.raises(ConfigError) as raised:
        Routes.load(config_from({}), app_dir="")
    complete, nothing, takes = raised.value.problems
    assert complete.endswith("names the event 'job.complete'; did you mean 'job.completed'?")
    assert "names the event 'nothing'; known: job.started, job.completed" in nothing
    assert takes.endswith("which takes (); a hook is called with (event)")


def test_a_hook_without_events_is_an_error() -> None:
    with pytest.raises(ConfigError, match="needs the names of events"):
        fileq.hook(lambda event: None)  # type: ignore[arg-type]
