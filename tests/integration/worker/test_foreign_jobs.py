"""Jobs that other programs pushed, with values that no fileq would write. Each costs only itself.

The installed program, on a real server and on SQLite."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
from hypothesis import HealthCheck, given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from fileq.core.job import State
from fileq.testing.conformance.builders import foreign
from tests.support.parallel_scenarios import parallel_scenario, running_scenarios
from tests.support.program import Program
from tests.support.waiting import wait_until
from tests.support.worker_setup import WorkerSetup, ids

__all__ = ["running_scenarios"]

TOO_LARGE = 2**64 - 1
NUMBERS = ("filesize", "retries", "recoveries", "attempts_before", "max_retries", "timeout", "file_inode")
TEXTS = (
    *("id", "filepath", "priority", "creation_time", "trace_id", "span_id", "type", "process_at", "deadline"),
    *("signature", "filepath_b64", "batch_id", "error", "failed_at", "first_error", "moved_from"),
)

odd_numbers = st.one_of(
    st.sampled_from([-1, 0, 1, 2**31 - 1, 2**31, 2**63 - 1, 2**63, TOO_LARGE, 10**30, 0.5, -0.0, 1e308, -1e308]),
    st.integers(),
    st.floats(allow_nan=False, allow_infinity=False),
)
odd_texts = st.one_of(
    st.text(max_size=30),
    st.sampled_from(["", "\0", "\x1b[31m", "\u2028", "../" * 50, "/dev/zero", "/proc/self/mem", "x" * 5000, "\ud7ff"]),
    st.datetimes().map(str),
    st.sampled_from(["0001-01-01T00:00:00Z", "9999-12-31T23:59:59.999Z", "2026-13-45", "infinity"]),
)
odd_values = st.one_of(
    odd_numbers, odd_texts, st.none(), st.booleans(), st.lists(st.integers(), max_size=2), st.just({"a": [{}]})
)
# Few fields of each job are odd, and most of those have the right type: one that is not a job reaches no handler.
odd_field = st.one_of(
    *[st.tuples(st.just(name), odd_numbers) for name in NUMBERS],
    *[st.tuples(st.just(name), odd_texts) for name in TEXTS],
    st.tuples(st.sampled_from([*NUMBERS, *TEXTS, "payload", "unknown field"]), odd_values),
)
odd_fields = st.lists(odd_field, min_size=1, max_size=2).map(dict)


@parallel_scenario("valkey", "sqlite")
def test_a_job_with_a_number_that_is_too_large_is_dead_and_the_others_run(setup: WorkerSetup) -> None:
    worker = setup.worker(count=4)
    hostile = [foreign(f"hostile-{name}", filepath="", type="note", **{name: TOO_LARGE}) for name in NUMBERS]
    setup.push("low", *hostile)
    healthy = setup.enqueue("note", *ids("healthy", 8))
    setup.wait_for(State.COMPLETED, healthy)
    worker.wait_for("job.dead", count=len(NUMBERS))
    assert all(event["error"].startswith("not a job: ") for event in worker.events("job.dead"))
    assert setup.census().dead == len(NUMBERS)
    assert worker.stop() == 0


@parallel_scenario("valkey", "sqlite")
def test_a_job_with_an_id_and_a_type_runs(setup: WorkerSetup) -> None:
    worker = setup.worker(count=2)
    setup.push("low", b'{"id":"few","type":"note"}', b'{"id":"none"}')
    setup.wait_for(State.COMPLETED, ["few"])
    worker.wait_for("job.dead")
    [dead] = worker.events("job.dead")
    assert dead["error"] == "not a job: it has neither filepath nor type"
    assert worker.stop() == 0


@parallel_scenario("valkey", "sqlite")
def test_a_job_of_20_mb_is_dead_and_the_others_run(setup: WorkerSetup) -> None:
    worker = setup.worker(count=2)
    setup.push("low", foreign("long", filepath="", type="note", payload="x" * (20 << 20)))
    healthy = setup.enqueue("note", *ids("healthy", 4))
    setup.wait_for(State.COMPLETED, healthy)
    worker.wait_for("job.dead")
    assert " bytes; at most " in worker.events("job.dead")[0]["error"]
    assert (setup.census().dead, setup.logged("start").count("long")) == (1, 0)
    assert worker.stop() == 0


@parallel_scenario("valkey", "sqlite")
def test_whatever_the_fields_of_a_job_are_the_worker_goes_on(setup: WorkerSetup) -> None:
    worker = setup.worker(count=4, max_retries=0, circuit_breaker__enabled=False)
    number = itertools.count()

    # The same examples in every run: a program and a server are too slow for many, and shrinking needs the same ones.
    @hypothesis_settings(max_examples=12, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
    @given(st.lists(odd_fields, min_size=20, max_size=40))
    def push_and_wait(batch: list[dict[str, Any]]) -> None:
        hostile = [odd_job(f"hostile-{next(number)}", fields) for fields in batch]
        setup.push("low", *hostile)
        setup.push("low", *hostile[:2])  # the same bytes a second time
        (healthy,) = setup.enqueue("note", f"healthy-{next(number)}")
        setup.wait_for(State.COMPLETED, [healthy])
        wait_until(lambda: nothing_waits(setup), 20, f"nothing waits after {batch}")
        assert worker.process.poll() is None

    push_and_wait()
    assert not worker.events("worker.failed")
    assert worker.stop() == 0


SABOTAGE = """
from fileq.worker.pump import Pump

def turn(self, may_claim=True, *, is_woken=True):
    raise ZeroDivisionError("sabotage")

Pump.turn = turn
"""


@pytest.mark.parametrize("once", [(), ("--once",)])
def test_a_worker_whose_loop_fails_ends_with_an_error(setup: WorkerSetup, once: tuple[str, ...]) -> None:
    (setup.directory / "sabotage.py").write_text(SABOTAGE)
    setup.enqueue("note", "waits")
    worker: Program = setup.worker(str(setup.inbox), *once, wait=False, imports="sabotage")
    assert worker.wait() == 1
    assert "ZeroDivisionError" in worker.text()
    assert setup.record("waits").state is State.PENDING


def odd_job(id: str, fields: dict[str, Any]) -> bytes:
    return foreign(**{"id": id, "filepath": "", "type": "note", **fields})


def nothing_waits(setup: WorkerSetup) -> bool:
    census = setup.census()
    return not (sum(census.pending.values()) or census.running)
