"""What people read of a single run: how fast it goes, what died, and nothing that a terminal would obey."""

from __future__ import annotations

import json
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from fileq.brokers.types import Census, Entry
from fileq.config.schema import CircuitBreakerSettings
from fileq.core.events import BrokerLost, JobCompleted, JobDead, JobFailed
from fileq.core.settlement import defer
from fileq.core.text import printable
from fileq.core.webhook import DELIVERY_TYPE
from fileq.runtime.once import _name, _Pace, is_counted, what_is_left
from fileq.runtime.produce_once import live_line
from fileq.testing.conformance.builders import a_job, claim_one, failed, running, settle
from fileq.testing.conformance.harness import config_of
from fileq.testing.conformance.memory_harness import MemoryHarness
from fileq.worker.breakers import Breakers
from tests.support.event_samples import end_event

NO_DEFERRALS: Any = SimpleNamespace(count=lambda reason: 0)


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
    [("plain ünï", "plain ünï"), ("a\nb", "a\\nb"), ("\x1b[31mred", "\\x1b[31mred"), ("\udcff", "\\xff")],
)
def test_text_for_a_terminal_is_one_line_that_it_does_not_obey(text: str, shown: str) -> None:
    assert printable(text) == shown


def test_the_progress_line_replaces_the_log_lines_of_events_that_it_counts() -> None:
    counted = [end_event(kind) for kind in (JobCompleted, JobFailed, JobDead)]
    assert all(is_counted(event) for event in counted)
    assert not is_counted(BrokerLost("down"))


def test_where_there_is_no_terminal_there_is_no_line(capfd: pytest.CaptureFixture[str]) -> None:
    with live_line("starting") as (show, is_shown):
        show("going on")
    assert (is_shown, *capfd.readouterr()) == (False, "", "")


def test_a_job_that_is_promoted_while_what_is_left_is_counted_is_not_counted_twice(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    harness = MemoryHarness(config_of("memory", {}))
    settle(harness, failed(running(harness, "a"), delay_ms=1_000))
    breakers = Breakers([("*", CircuitBreakerSettings(min_samples=1, cooldown_period=3_600.0))], NO_DEFERRALS)
    breakers.record(0, "a", False, "ValueError: broken")
    worker: Any = SimpleNamespace(breakers=breakers, roots=SimpleNamespace(problems={}))
    before, count = harness.broker.census(), harness.broker.census

    def after_promotion() -> Census:
        harness.advance(2)
        harness.broker.promote()
        return count()

    monkeypatch.setattr(harness.broker, "census", after_promotion)
    assert what_is_left(harness.broker, worker, before) is None, "look again"
    left = what_is_left(harness.broker, worker, count())
    assert left is not None
    assert left.lines == ["left 1 deferred: the circuit breaker of * is open (ValueError: broken)"]


def test_a_job_that_runs_into_its_missing_root_while_what_is_left_is_counted_is_not_one_for_later(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    harness = MemoryHarness(config_of("memory", {}))
    missing = "the root /volume is missing (not mounted?)"
    settle(harness, defer(running(harness, "a"), reason=missing, delay_ms=1_000))
    worker: Any = SimpleNamespace(
        breakers=Breakers([], NO_DEFERRALS), roots=SimpleNamespace(problems={"/volume": missing})
    )
    before, count, pages, claims = harness.broker.census(), harness.broker.census, harness.broker.pages, []

    def after_claim(place: str) -> Iterator[list[bytes]]:
        harness.advance(2)
        harness.broker.promote()
        claims.append(claim_one(harness))
        return pages(place)

    def after_deferral() -> Census:
        while claims:
            settle(harness, defer(claims.pop(), reason=missing, delay_ms=1_000))
        return count()

    monkeypatch.setattr(harness.broker, "pages", after_claim)
    monkeypatch.setattr(harness.broker, "census", after_deferral)
    assert what_is_left(harness.broker, worker, before) is None, "look again"
    monkeypatch.undo()
    left = what_is_left(harness.broker, worker, count())
    assert left is not None
    assert left.lines == [f"left 1 deferred: {missing}"]


def test_a_run_leaves_a_failed_delivery_of_a_webhook_to_the_next_one() -> None:
    """Its receiver may be down for days, and a run of cron or CI would wait as long."""
    harness = MemoryHarness(config_of("memory", {}))
    worker: Any = SimpleNamespace(breakers=Breakers([], NO_DEFERRALS), roots=SimpleNamespace(problems={}))
    delivery = a_job("d", filepath="", type=DELIVERY_TYPE)
    harness.broker.enqueue([Entry(delivery, "low", is_own=True)])
    assert what_is_left(harness.broker, worker, harness.broker.census()) is None, "the first attempt is made"
    settle(harness, failed(claim_one(harness), delay_ms=300_000))
    left = what_is_left(harness.broker, worker, harness.broker.census())
    assert left is not None
    assert (left.lines, left.problem) == (["left 1 retrying: webhook deliveries"], "")
    settle(harness, failed(running(harness, "a"), delay_ms=300_000))
    assert what_is_left(harness.broker, worker, harness.broker.census()) is None, "another job is waited for"
