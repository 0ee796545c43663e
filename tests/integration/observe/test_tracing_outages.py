"""A collector that is down or hangs costs one log line and a bounded time at the end."""

from __future__ import annotations

import time
from datetime import UTC, datetime

import pytest

from fileq.core.job import State, typed_job
from fileq.observe import tracing
from tests.support.clocks import RecordedEvents
from tests.support.event_samples import claim_event
from tests.support.otlp_collector import http_collector, refusing_address, silent_collector, traced
from tests.support.parallel_scenarios import parallel_scenario, running_scenarios
from tests.support.program import Program
from tests.support.waiting import wait_until
from tests.support.worker_setup import WorkerSetup

__all__ = ["running_scenarios"]


@parallel_scenario("sqlite")
def test_a_collector_that_refuses_http_costs_one_line_and_no_time(setup: WorkerSetup) -> None:
    with refusing_address() as address:
        assert_refusal_costs_one_line(setup, f"http://user:hunter2@{address}")


@parallel_scenario("sqlite")
def test_a_collector_that_refuses_grpc_costs_one_line_and_no_time(setup: WorkerSetup) -> None:
    with refusing_address() as address:
        assert_refusal_costs_one_line(setup, f"grpc://user:hunter2@{address}")


@parallel_scenario("sqlite")
def test_an_http_collector_that_hangs_costs_at_most_three_seconds_at_the_end(setup: WorkerSetup) -> None:
    with silent_collector() as address:
        assert_hanging_costs_three_seconds_at_the_end(setup, f"http://user:hunter2@{address}")


@parallel_scenario("sqlite")
def test_a_grpc_collector_that_hangs_costs_at_most_three_seconds_at_the_end(setup: WorkerSetup) -> None:
    with silent_collector() as address:
        assert_hanging_costs_three_seconds_at_the_end(setup, f"grpc://user:hunter2@{address}")


def assert_refusal_costs_one_line(setup: WorkerSetup, endpoint: str) -> None:
    program = setup.worker(count=4, **traced(endpoint))
    for name in ("job", "more"):
        jobs = setup.enqueue("note", *(f"{name}-{n}" for n in range(300)))
        setup.wait_for(State.COMPLETED, jobs)
        program.wait_for("collector.lost")
    assert_stops_in_time(program)
    assert len(program.events("collector.lost")) == 1


def assert_hanging_costs_three_seconds_at_the_end(setup: WorkerSetup, endpoint: str) -> None:
    program = setup.worker(count=4, **traced(endpoint))
    jobs = setup.enqueue("note", *(f"job-{n}" for n in range(200)))
    setup.wait_for(State.COMPLETED, jobs)
    assert_stops_in_time(program)


def assert_stops_in_time(program: Program) -> None:
    """And every line it wrote is one of ours."""
    assert program.stop() == 0
    ended_s = time.time()
    [line] = program.events("role.stopped")
    waited_s = ended_s - datetime.fromisoformat(line["timestamp"]).timestamp()
    assert waited_s < 3 + 0.9  # the interpreter takes its time to end, too
    assert "hunter2" not in program.text()


def test_after_an_outage_the_collector_receives_new_spans_and_the_outage_is_reported(
    sqlite_setup: WorkerSetup, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tracing, "BATCH_DELAY_S", 0.02)
    monkeypatch.setattr(tracing, "FAILURE_PAUSE_S", 0.02)
    events = RecordedEvents()

    with http_collector() as collector:
        monkeypatch.setattr(tracing, "TIMEOUT_S", 0.5)
        collector.take, take = lambda body: 1 / 0, collector.take  # type: ignore[method-assign,assignment]
        listening = tracing.Tracing(tracing.make_exporter(collector.endpoint), events)
        try:
            send = listening.traced
            job = typed_job("t", None, priority="low", now=datetime.now(UTC), id="x")
            for n in range(3):
                send(claim_event(job.but(id=f"lost-{n}"), f"s{n}"))
            wait_until(lambda: events.events)
            collector.take = take  # type: ignore[method-assign]

            def arrived() -> bool:
                send(claim_event(job, "s"))
                return bool(collector.spans("consume", "x"))

            wait_until(arrived, every_s=0.05)
            wait_until(lambda: len(events.events) == 2)
        finally:
            listening.close()
    assert [event for event, _ in events.events] == ["collector.lost", "collector.restored"]
    assert events.fields("collector.restored")["dropped"] >= 3  # type: ignore[operator]
