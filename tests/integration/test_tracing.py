"""Traces of the real program, as a collector sees them: one trace from the file to the end of its handler."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager
from datetime import UTC, datetime

import pytest

from fileq.brokers.types import Entry
from fileq.job import State, typed_job
from tests.collector import Collector, Seen, black_hole, grpc_collector, http_collector, refusing
from tests.integration.program import Program, run
from tests.integration.working import Farm, on_files
from tests.waiting import wait_until

TRACE_ID, SPAN_ID = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"


@pytest.fixture
def collector() -> Iterator[Collector]:
    with http_collector() as collector:
        yield collector


def traced(endpoint: str) -> dict[str, object]:
    return {"observability__tracing__enabled": True, "observability__tracing__endpoint": endpoint}


def producer(farm: Farm, endpoint: str) -> Program:
    return Program("producer", str(farm.inbox), cwd=farm.directory, settings=farm.all_settings(**traced(endpoint)))


def one(spans: list[Seen]) -> Seen:
    [span] = spans
    return span


# one trace


@pytest.mark.parametrize("protocol", ["http", "grpc"])
def test_produce_consume_and_process_are_one_trace_across_processes(each_farm: Farm, protocol: str) -> None:
    farm = each_farm
    opened: AbstractContextManager[Collector] = http_collector() if protocol == "http" else grpc_collector()
    with opened as collector, producer(farm, collector.endpoint) as first:
        second = farm.worker(count=2, handlers=on_files("on_file"), **traced(collector.endpoint))
        (farm.inbox / "a").write_bytes(b"12345")
        process = one(collector.wait("process"))
        produce, consume = one(collector.wait("produce")), one(collector.wait("consume"))
        assert (produce.parent_id, consume.parent_id, process.parent_id) == ("", produce.span_id, consume.span_id)
        assert produce.trace_id == consume.trace_id == process.trace_id
        assert len({produce.span_id, consume.span_id, process.span_id}) == 3
        job_id = farm.told("file")[0]
        job = farm.job(job_id)
        assert (job.trace_id, job.span_id) == (produce.trace_id, produce.span_id)
        assert {span.service for span in collector.spans()} == {"fileq"}
        about = {"job.id": job_id, "job.queue": "low"}
        assert produce.attributes == {**about, "job.size": 5}
        assert consume.attributes == {**about, "job.attempt": 1}
        assert process.attributes == {**about, "job.attempt": 1, "job.outcome": "completed"}
        assert not any(span.is_error for span in collector.spans())
        assert produce.start_ns <= produce.end_ns
        assert consume.start_ns <= consume.end_ns <= process.end_ns
        assert (first.stop(), second.stop()) == (0, 0)
        [made] = first.events("job.produced")
        [done] = second.events("job.completed")
        assert (made["job_id"], made["trace_id"], made["span_id"]) == (job_id, produce.trace_id, produce.span_id)
        assert (done["trace_id"], done["span_id"]) == (process.trace_id, process.span_id)
        assert len(collector.spans()) == 3


def test_a_job_that_another_program_pushed_continues_the_trace_it_brings(farm: Farm, collector: Collector) -> None:
    """As a plain LPUSH of the eight fields."""
    fields = {"id": "foreign", "filepath": str(farm.inbox / "a"), "filesize": 1, "priority": "high", "retries": 0}
    ids = {"creation_time": "2026-01-01T00:00:00Z", "trace_id": TRACE_ID, "span_id": SPAN_ID}
    (farm.inbox / "a").write_bytes(b"x")
    farm.broker.link.call("LPUSH", "jobqueue:high_priority", json.dumps({**fields, **ids}))  # type: ignore[attr-defined]
    farm.worker(count=1, handlers=on_files("on_file"), **traced(collector.endpoint))
    process = one(collector.wait("process"))
    consume = one(collector.spans("consume"))
    assert (consume.trace_id, consume.parent_id) == (TRACE_ID, SPAN_ID)
    assert (process.trace_id, process.parent_id) == (TRACE_ID, consume.span_id)
    assert process.attributes["job.queue"] == "high"


def test_a_job_without_ids_starts_its_own_trace_and_all_attempts_share_it(
    sqlite_farm: Farm, collector: Collector
) -> None:
    farm = sqlite_farm
    program = farm.worker(count=2, **traced(collector.endpoint))
    farm.enqueue("fails_twice", "again")
    farm.enqueue("permanent", "dies")
    farm.enqueue("exits", "crashes", max_retries=0)
    attempts = collector.wait("process", 3, "again")
    consumes = collector.spans("consume", "again")
    assert [span.parent_id for span in consumes] == ["", "", ""]
    assert len({span.trace_id for span in (*attempts, *consumes)}) == 1
    assert len({span.span_id for span in attempts}) == 3
    assert [span.parent_id for span in attempts] == [span.span_id for span in consumes]
    outcomes = [(s.attributes["job.attempt"], s.attributes["job.outcome"], s.is_error, s.message) for s in attempts]
    assert [outcome[:3] for outcome in outcomes] == [(1, "failed", True), (2, "failed", True), (3, "completed", False)]
    assert "not yet" in outcomes[0][3]
    dead = one(collector.wait("process", 1, "dies"))
    assert (dead.is_error, dead.attributes["job.outcome"]) == (True, "dead")
    assert "never" in dead.attributes["job.error"]
    died = collector.wait("process", 4, "crashes")
    assert {span.attributes["job.outcome"] for span in died} == {"died", "dead"}
    assert {span.is_error for span in died} == {True}
    assert {line["trace_id"] for line in program.events("job.failed")} == {attempts[0].trace_id}


def test_a_process_span_lasts_as_long_as_the_attempt_and_consume_is_short(
    sqlite_farm: Farm, collector: Collector
) -> None:
    farm = sqlite_farm
    farm.worker(count=1, **traced(collector.endpoint))
    farm.enqueue("work", "slow", payload=0.4)
    process = one(collector.wait("process"))
    [start], [end] = farm.diary("start"), farm.diary("end")
    assert process.start_ns / 1e9 <= start.at_s
    assert process.end_ns / 1e9 >= end.at_s - 0.001  # of a millisecond, as durations are
    assert one(collector.spans("consume")).seconds < 0.1


def test_a_handler_sees_its_trace_in_its_log_and_a_command_in_its_environment(
    sqlite_farm: Farm, collector: Collector
) -> None:
    farm = sqlite_farm
    (farm.directory / "chatty.py").write_text(
        "import fileq\n\n\n"
        "@fileq.handler(type='chatty')\n"
        "def chatty(job, context):\n"
        "    context.log.info('handler.spoke', traceparent=context.traceparent)\n"
    )
    out = farm.directory / "environment"
    command = ["sh", "-c", f"echo $TRACEPARENT > {out}"]
    (farm.inbox / "a").write_bytes(b"x")
    program = Program(
        "all",
        str(farm.inbox),
        "--app-dir",
        str(farm.directory),
        cwd=farm.directory,
        settings={
            **farm.all_settings(**traced(collector.endpoint)),
            "imports": "worker_handlers,chatty",
            "handlers": json.dumps([{"match": "**/*", "command": command}]),
        },
    )
    with program:
        farm.enqueue("chatty", "speaks")
        process = one(collector.wait("process", 1, "speaks"))
        said = program.wait_for("handler.spoke")
        assert (said["trace_id"], said["span_id"]) == (process.trace_id, process.span_id)
        assert said["traceparent"] == f"00-{process.trace_id}-{process.span_id}-01"
        of_file = one([span for span in collector.wait("process", 2) if span.attributes["job.id"] != "speaks"])
        assert out.read_text() == f"00-{of_file.trace_id}-{of_file.span_id}-01\n"


def test_once_sends_its_spans_before_it_ends(sqlite_farm: Farm, collector: Collector) -> None:
    farm = sqlite_farm
    (farm.inbox / "a").write_bytes(b"x")
    ended = run(
        "all", str(farm.inbox), "--once", cwd=farm.directory, settings=farm.all_settings(**traced(collector.endpoint))
    )
    assert ended.returncode == 0
    assert {span.name for span in collector.spans()} == {"produce", "consume", "process"}


def test_what_waits_is_sent_at_the_end(sqlite_farm: Farm, collector: Collector) -> None:
    program = sqlite_farm.worker(count=2, **traced(collector.endpoint))
    jobs = sqlite_farm.enqueue("note", *(f"job-{n}" for n in range(50)))
    sqlite_farm.wait_for(State.COMPLETED, jobs)
    assert program.stop() == 0
    assert sorted(span.attributes["job.id"] for span in collector.spans("process")) == sorted(jobs)


def test_without_tracing_nothing_of_it_is_loaded_and_jobs_have_no_ids(sqlite_farm: Farm) -> None:
    farm = sqlite_farm
    (farm.directory / "spy.py").write_text(
        "import sys\nimport fileq\n\n\n"
        "@fileq.handler(type='spy', isolation='thread')\n"
        "def spy(job, context):\n"
        "    heavy = ('fileq.observe.tracing', 'opentelemetry.sdk.trace', 'opentelemetry.exporter', 'grpc')\n"
        "    return [name for name in sys.modules if name.startswith(heavy)]\n"
    )  # the client library of Redis loads other parts of it by itself
    (farm.inbox / "a").write_bytes(b"x")
    arguments = ("all", str(farm.inbox), "--app-dir", str(farm.directory))
    settings = {**farm.all_settings(handlers=on_files("on_file")), "imports": "worker_handlers,spy"}
    with Program(*arguments, cwd=farm.directory, settings=settings) as program:
        farm.enqueue("spy", "spy")
        farm.wait_for(State.COMPLETED, ["spy"])
        assert farm.record("spy").result == b"[]"
        [job_id] = farm.wait_told("file", 1)
        assert (farm.job(job_id).trace_id, farm.job(job_id).span_id) == ("", "")
        done = program.wait_for("job.completed")
        assert (done["trace_id"], done["span_id"]) == ("", "")


# collectors that are no good


@pytest.mark.parametrize("protocol", ["http", "grpc"])
@pytest.mark.parametrize("fault", ["refuses", "hangs"])
def test_a_dead_collector_costs_one_line_and_at_most_three_seconds_at_the_end(
    sqlite_farm: Farm, protocol: str, fault: str
) -> None:
    farm = sqlite_farm
    with refusing() if fault == "refuses" else black_hole() as address:
        program = farm.worker(count=4, **traced(f"{protocol}://user:hunter2@{address}"))
        jobs = farm.enqueue("note", *(f"job-{n}" for n in range(300)))
        farm.wait_for(State.COMPLETED, jobs)
        if fault == "refuses":
            program.wait_for("collector.lost")
            more = farm.enqueue("note", *(f"more-{n}" for n in range(300)))
            farm.wait_for(State.COMPLETED, more)
        stopping_s = time.monotonic()
        assert program.stop() == 0
        assert time.monotonic() - stopping_s < 3 + 1.5  # and what stopping takes by itself
        assert len(program.events("collector.lost")) == (fault == "refuses")
        assert {line["event"].partition(".")[0] for line in program.logs()} >= {"job", "role"}
        assert "hunter2" not in program.text()


def test_a_collector_that_comes_back_gets_what_comes_after_and_that_is_told(
    sqlite_farm: Farm, monkeypatch: pytest.MonkeyPatch
) -> None:
    from fileq.observe import tracing

    monkeypatch.setattr(tracing, "DELAY_S", 0.02)
    monkeypatch.setattr(tracing, "REST_S", 0.02)
    told: list[tuple[str, dict[str, object]]] = []

    def emit(event: str, **fields: object) -> None:
        told.append((event, fields))

    with http_collector() as collector:
        monkeypatch.setattr(tracing, "TIMEOUT_S", 0.5)
        collector.take, take = lambda body: 1 / 0, collector.take  # type: ignore[method-assign,assignment]
        listening = tracing.Tracing(tracing.make_exporter(collector.endpoint), emit)
        try:
            send = listening.around(lambda event, **fields: None)
            job = typed_job("t", None, priority="low", now=datetime.now(UTC), id="x")
            for n in range(3):
                send("job.claimed", job=job.but(id=f"lost-{n}"), queue="low", worker_id=f"s{n}", job_id=f"lost-{n}")
            wait_until(lambda: told)
            collector.take = take  # type: ignore[method-assign]

            def arrived() -> bool:
                send("job.claimed", job=job, queue="low", worker_id="s", job_id="x")
                return bool(collector.spans("consume", "x"))

            wait_until(arrived, every_s=0.05)
            wait_until(lambda: len(told) == 2)
        finally:
            listening.close()
    assert [event for event, _ in told] == ["collector.lost", "collector.found"]
    assert told[1][1]["dropped"] >= 3  # type: ignore[operator]


def test_credentials_of_the_collector_are_sent_as_a_header(sqlite_farm: Farm, collector: Collector) -> None:
    endpoint = collector.endpoint.replace("http://", "http://user:hunter2@")
    program = sqlite_farm.worker(count=1, **traced(endpoint))
    sqlite_farm.enqueue("note", "a")
    collector.wait("process")
    assert collector.authorizations == {"Basic dXNlcjpodW50ZXIy"}
    assert "hunter2" not in program.text()


def test_ids_that_are_none_are_not_taken_for_ids(sqlite_farm: Farm, collector: Collector) -> None:
    farm = sqlite_farm
    now = datetime.now(UTC)
    odd = [("x" * 32, SPAN_ID), ("0" * 32, SPAN_ID), (TRACE_ID[:-1], SPAN_ID), (TRACE_ID.upper(), "")]
    for n, (trace_id, span_id) in enumerate(odd):
        job = typed_job("note", None, priority="low", now=now, id=f"odd-{n}").but(trace_id=trace_id, span_id=span_id)
        farm.broker.enqueue([Entry(job, "low")])
    farm.worker(count=1, **traced(collector.endpoint))
    collector.wait("process", len(odd))
    consumes = [one(collector.spans("consume", f"odd-{n}")) for n in range(len(odd))]
    assert [span.parent_id for span in consumes] == [""] * len(odd)
    assert all(re.fullmatch(r"[0-9a-f]{32}", span.trace_id) for span in consumes)
    assert [span.trace_id == TRACE_ID for span in consumes] == [False, False, False, True]
