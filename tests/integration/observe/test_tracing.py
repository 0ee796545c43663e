"""Traces of the real program, as a collector sees them: one trace from the file to the end of its handler."""

from __future__ import annotations

import json
import re
import signal
from collections.abc import Iterator
from datetime import UTC, datetime

import pytest
from msgspec import Struct
from redis import Redis

from fileq.brokers.types import Entry
from fileq.core.job import State, typed_job
from tests.support.otlp_collector import (
    Collector,
    ReceivedSpan,
    grpc_collector,
    http_collector,
    refusing_address,
    silent_collector,
    traced,
)
from tests.support.parallel_scenarios import parallel_scenario, running_scenarios
from tests.support.program import Program, run
from tests.support.waiting import wait_until
from tests.support.worker_setup import WorkerSetup, let_time_pass, on_files, open_worker_setup

__all__ = ["running_scenarios"]
TRACE_ID, SPAN_ID = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"


@pytest.fixture
def collector() -> Iterator[Collector]:
    with http_collector() as collector:
        yield collector


def producer(setup: WorkerSetup, endpoint: str) -> Program:
    return Program("producer", str(setup.inbox), cwd=setup.directory, settings=setup.all_settings(**traced(endpoint)))


def one(spans: list[ReceivedSpan]) -> ReceivedSpan:
    [span] = spans
    return span


class Shop(Struct):
    """A worker that is traced, which tests share: each has jobs of its own."""

    setup: WorkerSetup
    collector: Collector
    program: Program


@pytest.fixture(scope="module")
def shop(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shop]:
    directory = tmp_path_factory.mktemp("shop")
    with (
        http_collector() as collector,
        open_worker_setup(directory, {"sqlite.path": str(directory / "fileq.db")}) as setup,
    ):
        endpoint = collector.endpoint.replace("http://", "http://user:hunter2@")
        yield Shop(setup, collector, setup.worker(count=2, **traced(endpoint)))


# one trace


@parallel_scenario("redis")
def test_produce_consume_and_process_are_one_trace_over_http_and_redis(setup: WorkerSetup) -> None:
    with http_collector() as collector:
        assert_one_trace_across_processes(setup, collector)


@parallel_scenario("sqlite")
def test_produce_consume_and_process_are_one_trace_over_grpc_and_sqlite(setup: WorkerSetup) -> None:
    with grpc_collector() as collector:
        assert_one_trace_across_processes(setup, collector)


def assert_one_trace_across_processes(setup: WorkerSetup, collector: Collector) -> None:
    with producer(setup, collector.endpoint) as first:
        second = setup.worker(count=2, handlers=on_files("on_file"), **traced(collector.endpoint))
        (setup.inbox / "a").write_bytes(b"12345")
        process = one(collector.wait("process"))
        produce, consume = one(collector.wait("produce")), one(collector.wait("consume"))
        assert (produce.parent_id, consume.parent_id, process.parent_id) == ("", produce.span_id, consume.span_id)
        assert produce.trace_id == consume.trace_id == process.trace_id
        assert len({produce.span_id, consume.span_id, process.span_id}) == 3
        job_id = setup.logged("file")[0]
        job = setup.job(job_id)
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


@parallel_scenario("redis")
def test_a_job_that_another_program_pushed_continues_the_trace_it_brings(setup: WorkerSetup) -> None:
    """As a plain LPUSH of the eight fields."""
    fields = {"id": "foreign", "filepath": str(setup.inbox / "a"), "filesize": 1, "priority": "high", "retries": 0}
    ids = {"creation_time": "2026-01-01T00:00:00Z", "trace_id": TRACE_ID, "span_id": SPAN_ID}
    (setup.inbox / "a").write_bytes(b"x")
    with Redis.from_url(f"redis://{setup.settings['redis.addr']}/{setup.settings['redis.db']}") as client:
        client.lpush("jobqueue:high_priority", json.dumps({**fields, **ids}))
    with http_collector() as collector:
        setup.worker(count=1, handlers=on_files("on_file"), **traced(collector.endpoint))
        process = one(collector.wait("process"))
        consume = one(collector.spans("consume"))
        assert (consume.trace_id, consume.parent_id) == (TRACE_ID, SPAN_ID)
        assert (process.trace_id, process.parent_id) == (TRACE_ID, consume.span_id)
        assert process.attributes["job.queue"] == "high"


@parallel_scenario("sqlite")
def test_a_job_that_a_person_enqueued_begins_its_trace_there(setup: WorkerSetup) -> None:
    (setup.inbox / "a").write_bytes(b"12345")
    with http_collector() as collector:
        settings = setup.all_settings(producer__scan_dir=setup.inbox, **traced(collector.endpoint))
        ended = run("enqueue", str(setup.inbox / "a"), "--id", "wanted", cwd=setup.directory, settings=settings)
        assert (ended.returncode, ended.stdout, ended.stderr) == (0, "wanted\n", "")
        produce = one(collector.spans("produce"))  # it was sent before the command ended
        run("enqueue", str(setup.inbox / "a"), "--id", "wanted", cwd=setup.directory, settings=settings)
        setup.worker(count=1, handlers=on_files("on_file"), **traced(collector.endpoint))
        consume = one(collector.wait("consume"))
        assert (consume.trace_id, consume.parent_id) == (produce.trace_id, produce.span_id)
        assert produce.attributes == {"job.id": "wanted", "job.queue": "low", "job.size": 5}
        assert len(collector.spans("produce")) == 1, "the second time there was nothing to produce"


@parallel_scenario("sqlite")
def test_without_a_collector_a_person_s_jobs_are_enqueued_all_the_same(setup: WorkerSetup) -> None:
    with refusing_address() as address:
        assert_enqueued_without_spans(setup, address)


@parallel_scenario("sqlite")
def test_with_a_collector_that_hangs_a_person_s_jobs_are_enqueued_all_the_same(setup: WorkerSetup) -> None:
    with silent_collector() as address:
        assert_enqueued_without_spans(setup, address)


@parallel_scenario("sqlite")
def test_who_loses_patience_with_the_collector_is_told_what_was_enqueued(setup: WorkerSetup) -> None:
    with silent_collector() as address:
        settings = setup.all_settings(**traced(f"http://{address}"))
        with Program(
            "enqueue", "--type", "note", "--id", "x", cwd=setup.directory, settings=settings, wait=False
        ) as it:
            wait_until(lambda: setup.broker.records(["x"])[0])
            let_time_pass(0.4)  # now it waits for the collector
            it.signal(signal.SIGINT)
            # 0 if the collector's time was up before the signal came; then a line about the spans is there too.
            assert it.wait() in (130, 0)
            assert "x" in it.text().splitlines()


def assert_enqueued_without_spans(setup: WorkerSetup, address: str) -> None:
    (setup.inbox / "a").write_bytes(b"12345")
    settings = setup.all_settings(producer__scan_dir=setup.inbox, **traced(f"http://user:hunter2@{address}"))
    ended = run("enqueue", str(setup.inbox / "a"), "--id", "wanted", cwd=setup.directory, settings=settings)
    assert (ended.returncode, ended.stdout) == (0, "wanted\n")
    [line] = ended.stderr.splitlines()
    assert line.startswith("fileq: some trace spans of these jobs were not sent: ")
    assert "hunter2" not in line
    assert setup.job("wanted").trace_id


def test_a_job_without_ids_starts_its_own_trace_and_all_attempts_share_it(shop: Shop) -> None:
    collector = shop.collector
    shop.setup.enqueue("fails_twice", "again")
    shop.setup.enqueue("permanent", "dies")
    shop.setup.enqueue("exits", "crashes", max_retries=0)
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
    failed = [line for line in shop.program.events("job.failed") if line["job_id"] == "again"]
    assert {line["trace_id"] for line in failed} == {attempts[0].trace_id}


def test_a_process_span_lasts_as_long_as_the_attempt_and_consume_is_short(shop: Shop) -> None:
    shop.setup.enqueue("work", "slow", payload=0.4)
    process = one(shop.collector.wait("process", 1, "slow"))
    [start] = [line for line in shop.setup.handler_log("start") if line.id == "slow"]
    [end] = shop.setup.handler_log("end")
    assert process.start_ns / 1e9 <= start.at_s
    assert process.end_ns / 1e9 >= end.at_s - 0.001  # of a millisecond, as durations are
    assert one(shop.collector.spans("consume", "slow")).seconds < 0.1


def test_ids_that_are_none_are_not_taken_for_ids(shop: Shop) -> None:
    odd = [("x" * 32, SPAN_ID), ("0" * 32, SPAN_ID), (TRACE_ID[:-1], SPAN_ID), (TRACE_ID.upper(), "")]
    for n, (trace_id, span_id) in enumerate(odd):
        job = typed_job("note", None, priority="low", now=datetime.now(UTC), id=f"odd-{n}")
        shop.setup.broker.enqueue([Entry(job.but(trace_id=trace_id, span_id=span_id), "low")])
    consumes = [one(shop.collector.wait("consume", 1, f"odd-{n}")) for n in range(len(odd))]
    assert [span.parent_id for span in consumes] == [""] * len(odd)
    assert all(re.fullmatch(r"[0-9a-f]{32}", span.trace_id) for span in consumes)
    assert [span.trace_id == TRACE_ID for span in consumes] == [False, False, False, True]


def test_credentials_of_the_collector_are_sent_as_a_header_and_shown_nowhere(shop: Shop) -> None:
    shop.setup.enqueue("note", "a")
    shop.collector.wait("process", 1, "a")
    assert shop.collector.authorizations == {"Basic dXNlcjpodW50ZXIy"}
    assert "hunter2" not in shop.program.text()


def test_a_handler_sees_its_trace_in_its_log_and_a_command_in_its_environment(
    sqlite_setup: WorkerSetup, collector: Collector
) -> None:
    setup = sqlite_setup
    (setup.directory / "chatty.py").write_text(
        "import fileq\n\n\n"
        "@fileq.handler(type='chatty')\n"
        "def chatty(job, context):\n"
        "    context.log.info('handler.spoke', traceparent=context.traceparent)\n"
    )
    out = setup.directory / "environment"
    command = ["sh", "-c", f"echo $TRACEPARENT > {out}"]
    (setup.inbox / "a").write_bytes(b"x")
    program = Program(
        "all",
        str(setup.inbox),
        "--app-dir",
        str(setup.directory),
        cwd=setup.directory,
        settings={
            **setup.all_settings(**traced(collector.endpoint)),
            "imports": "worker_handlers,chatty",
            "handlers": json.dumps([{"match": "**/*", "command": command}]),
        },
    )
    with program:
        setup.enqueue("chatty", "speaks")
        process = one(collector.wait("process", 1, "speaks"))
        said = program.wait_for("handler.spoke")
        assert (said["trace_id"], said["span_id"]) == (process.trace_id, process.span_id)
        assert said["traceparent"] == f"00-{process.trace_id}-{process.span_id}-01"
        of_file = one([span for span in collector.wait("process", 2) if span.attributes["job.id"] != "speaks"])
        assert out.read_text() == f"00-{of_file.trace_id}-{of_file.span_id}-01\n"


def test_once_sends_its_spans_before_it_ends(sqlite_setup: WorkerSetup, collector: Collector) -> None:
    setup = sqlite_setup
    (setup.inbox / "a").write_bytes(b"x")
    ended = run(
        "all",
        str(setup.inbox),
        "--once",
        cwd=setup.directory,
        settings=setup.all_settings(**traced(collector.endpoint)),
    )
    assert ended.returncode == 0
    assert sorted(span.name for span in collector.spans()) == ["consume", "process", "produce"]


def test_without_tracing_nothing_of_it_is_loaded_and_jobs_have_no_ids(sqlite_setup: WorkerSetup) -> None:
    setup = sqlite_setup
    (setup.directory / "spy.py").write_text(
        "import sys\nimport fileq\n\n\n"
        "@fileq.handler(type='spy', isolation='thread')\n"
        "def spy(job, context):\n"
        "    heavy = ('fileq.observe.tracing', 'opentelemetry.sdk.trace', 'opentelemetry.exporter', 'grpc')\n"
        "    return [name for name in sys.modules if name.startswith(heavy)]\n"
    )  # the client library of Redis loads other parts of it by itself
    (setup.inbox / "a").write_bytes(b"x")
    arguments = ("all", str(setup.inbox), "--app-dir", str(setup.directory))
    settings = {**setup.all_settings(handlers=on_files("on_file")), "imports": "worker_handlers,spy"}
    with Program(*arguments, cwd=setup.directory, settings=settings) as program:
        setup.enqueue("spy", "spy")
        setup.wait_for(State.COMPLETED, ["spy"])
        assert setup.record("spy").result == b"[]"
        [job_id] = setup.wait_logged("file", 1)
        assert (setup.job(job_id).trace_id, setup.job(job_id).span_id) == ("", "")
        done = program.wait_for("job.completed")
        assert (done["trace_id"], done["span_id"]) == ("", "")
