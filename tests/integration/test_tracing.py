"""Traces of the real program, as a collector sees them: one trace from the file to the end of its handler."""

from __future__ import annotations

import json
import re
import signal
import time
from collections.abc import Iterator
from datetime import UTC, datetime

import pytest
from msgspec import Struct
from redis import Redis

from fileq.brokers.types import Entry
from fileq.core.events import ignore
from fileq.core.job import State, typed_job
from tests.support.clocks import Told
from tests.support.event_samples import claim_event
from tests.support.otlp_collector import Collector, Seen, black_hole, grpc_collector, http_collector, refusing
from tests.support.parallel_scenarios import together, under_way
from tests.support.program import Program, run
from tests.support.waiting import wait_until
from tests.support.worker_setup import Farm, farm_on, on_files, pass_s

__all__ = ["under_way"]
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


class Shop(Struct):
    """A worker that is traced, which tests share: each has jobs of its own."""

    farm: Farm
    collector: Collector
    program: Program


@pytest.fixture(scope="module")
def shop(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shop]:
    directory = tmp_path_factory.mktemp("shop")
    with http_collector() as collector, farm_on(directory, {"sqlite.path": str(directory / "fileq.db")}) as farm:
        endpoint = collector.endpoint.replace("http://", "http://user:hunter2@")
        yield Shop(farm, collector, farm.worker(count=2, **traced(endpoint)))


# one trace


@together("redis")
def test_produce_consume_and_process_are_one_trace_over_http_and_redis(farm: Farm) -> None:
    with http_collector() as collector:
        assert_one_trace_across_processes(farm, collector)


@together("sqlite")
def test_produce_consume_and_process_are_one_trace_over_grpc_and_sqlite(farm: Farm) -> None:
    with grpc_collector() as collector:
        assert_one_trace_across_processes(farm, collector)


def assert_one_trace_across_processes(farm: Farm, collector: Collector) -> None:
    with producer(farm, collector.endpoint) as first:
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


@together("redis")
def test_a_job_that_another_program_pushed_continues_the_trace_it_brings(farm: Farm) -> None:
    """As a plain LPUSH of the eight fields."""
    fields = {"id": "foreign", "filepath": str(farm.inbox / "a"), "filesize": 1, "priority": "high", "retries": 0}
    ids = {"creation_time": "2026-01-01T00:00:00Z", "trace_id": TRACE_ID, "span_id": SPAN_ID}
    (farm.inbox / "a").write_bytes(b"x")
    with Redis.from_url(f"redis://{farm.settings['redis.addr']}/{farm.settings['redis.db']}") as client:
        client.lpush("jobqueue:high_priority", json.dumps({**fields, **ids}))
    with http_collector() as collector:
        farm.worker(count=1, handlers=on_files("on_file"), **traced(collector.endpoint))
        process = one(collector.wait("process"))
        consume = one(collector.spans("consume"))
        assert (consume.trace_id, consume.parent_id) == (TRACE_ID, SPAN_ID)
        assert (process.trace_id, process.parent_id) == (TRACE_ID, consume.span_id)
        assert process.attributes["job.queue"] == "high"


@together("sqlite")
def test_a_job_that_a_person_enqueued_begins_its_trace_there(farm: Farm) -> None:
    (farm.inbox / "a").write_bytes(b"12345")
    with http_collector() as collector:
        settings = farm.all_settings(producer__scan_dir=farm.inbox, **traced(collector.endpoint))
        ended = run("enqueue", str(farm.inbox / "a"), "--id", "wanted", cwd=farm.directory, settings=settings)
        assert (ended.returncode, ended.stdout, ended.stderr) == (0, "wanted\n", "")
        produce = one(collector.spans("produce"))  # it was sent before the command ended
        run("enqueue", str(farm.inbox / "a"), "--id", "wanted", cwd=farm.directory, settings=settings)
        farm.worker(count=1, handlers=on_files("on_file"), **traced(collector.endpoint))
        consume = one(collector.wait("consume"))
        assert (consume.trace_id, consume.parent_id) == (produce.trace_id, produce.span_id)
        assert produce.attributes == {"job.id": "wanted", "job.queue": "low", "job.size": 5}
        assert len(collector.spans("produce")) == 1, "the second time there was nothing to produce"


@together("sqlite")
def test_without_a_collector_a_person_s_jobs_are_enqueued_all_the_same(farm: Farm) -> None:
    with refusing() as address:
        assert_enqueued_without_spans(farm, address)


@together("sqlite")
def test_with_a_collector_that_hangs_a_person_s_jobs_are_enqueued_all_the_same(farm: Farm) -> None:
    with black_hole() as address:
        assert_enqueued_without_spans(farm, address)


@together("sqlite")
def test_who_loses_patience_with_the_collector_is_told_what_was_enqueued(farm: Farm) -> None:
    with black_hole() as address:
        settings = farm.all_settings(**traced(f"http://{address}"))
        with Program("enqueue", "--type", "note", "--id", "x", cwd=farm.directory, settings=settings, wait=False) as it:
            wait_until(lambda: farm.broker.records(["x"])[0])
            pass_s(0.4)  # now it waits for the collector
            it.signal(signal.SIGINT)
            assert (it.wait(), it.text().splitlines()[:1]) in ((130, ["x"]), (0, ["x"]))


def assert_enqueued_without_spans(farm: Farm, address: str) -> None:
    (farm.inbox / "a").write_bytes(b"12345")
    settings = farm.all_settings(producer__scan_dir=farm.inbox, **traced(f"http://user:hunter2@{address}"))
    ended = run("enqueue", str(farm.inbox / "a"), "--id", "wanted", cwd=farm.directory, settings=settings)
    assert (ended.returncode, ended.stdout) == (0, "wanted\n")
    [line] = ended.stderr.splitlines()
    assert line.startswith("fileq: not all spans of these jobs were sent: ")
    assert "hunter2" not in line
    assert farm.job("wanted").trace_id


def test_a_job_without_ids_starts_its_own_trace_and_all_attempts_share_it(shop: Shop) -> None:
    collector = shop.collector
    shop.farm.enqueue("fails_twice", "again")
    shop.farm.enqueue("permanent", "dies")
    shop.farm.enqueue("exits", "crashes", max_retries=0)
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
    shop.farm.enqueue("work", "slow", payload=0.4)
    process = one(shop.collector.wait("process", 1, "slow"))
    [start] = [line for line in shop.farm.diary("start") if line.id == "slow"]
    [end] = shop.farm.diary("end")
    assert process.start_ns / 1e9 <= start.at_s
    assert process.end_ns / 1e9 >= end.at_s - 0.001  # of a millisecond, as durations are
    assert one(shop.collector.spans("consume", "slow")).seconds < 0.1


def test_ids_that_are_none_are_not_taken_for_ids(shop: Shop) -> None:
    odd = [("x" * 32, SPAN_ID), ("0" * 32, SPAN_ID), (TRACE_ID[:-1], SPAN_ID), (TRACE_ID.upper(), "")]
    for n, (trace_id, span_id) in enumerate(odd):
        job = typed_job("note", None, priority="low", now=datetime.now(UTC), id=f"odd-{n}")
        shop.farm.broker.enqueue([Entry(job.but(trace_id=trace_id, span_id=span_id), "low")])
    consumes = [one(shop.collector.wait("consume", 1, f"odd-{n}")) for n in range(len(odd))]
    assert [span.parent_id for span in consumes] == [""] * len(odd)
    assert all(re.fullmatch(r"[0-9a-f]{32}", span.trace_id) for span in consumes)
    assert [span.trace_id == TRACE_ID for span in consumes] == [False, False, False, True]


def test_credentials_of_the_collector_are_sent_as_a_header_and_shown_nowhere(shop: Shop) -> None:
    shop.farm.enqueue("note", "a")
    shop.collector.wait("process", 1, "a")
    assert shop.collector.authorizations == {"Basic dXNlcjpodW50ZXIy"}
    assert "hunter2" not in shop.program.text()


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
    assert sorted(span.name for span in collector.spans()) == ["consume", "process", "produce"]


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


@together("sqlite")
def test_a_collector_that_refuses_http_costs_one_line_and_no_time(farm: Farm) -> None:
    with refusing() as address:
        assert_refusal_costs_one_line(farm, f"http://user:hunter2@{address}")


@together("sqlite")
def test_a_collector_that_refuses_grpc_costs_one_line_and_no_time(farm: Farm) -> None:
    with refusing() as address:
        assert_refusal_costs_one_line(farm, f"grpc://user:hunter2@{address}")


@together("sqlite")
def test_an_http_collector_that_hangs_costs_at_most_three_seconds_at_the_end(farm: Farm) -> None:
    with black_hole() as address:
        assert_hanging_costs_three_seconds_at_the_end(farm, f"http://user:hunter2@{address}")


@together("sqlite")
def test_a_grpc_collector_that_hangs_costs_at_most_three_seconds_at_the_end(farm: Farm) -> None:
    with black_hole() as address:
        assert_hanging_costs_three_seconds_at_the_end(farm, f"grpc://user:hunter2@{address}")


def assert_refusal_costs_one_line(farm: Farm, endpoint: str) -> None:
    program = farm.worker(count=4, **traced(endpoint))
    for name in ("job", "more"):
        jobs = farm.enqueue("note", *(f"{name}-{n}" for n in range(300)))
        farm.wait_for(State.COMPLETED, jobs)
        program.wait_for("collector.lost")
    assert_stops_in_time(program)
    assert len(program.events("collector.lost")) == 1


def assert_hanging_costs_three_seconds_at_the_end(farm: Farm, endpoint: str) -> None:
    program = farm.worker(count=4, **traced(endpoint))
    jobs = farm.enqueue("note", *(f"job-{n}" for n in range(200)))
    farm.wait_for(State.COMPLETED, jobs)
    assert_stops_in_time(program)


def assert_stops_in_time(program: Program) -> None:
    """And every line it wrote is one of ours."""
    assert program.stop() == 0
    ended_s = time.time()
    [line] = program.events("role.stopped")
    waited_s = ended_s - datetime.fromisoformat(line["timestamp"]).timestamp()
    assert waited_s < 3 + 0.9  # the interpreter takes its time to end, too
    assert "hunter2" not in program.text()


def test_a_collector_that_comes_back_gets_what_comes_after_and_that_is_told(
    sqlite_farm: Farm, monkeypatch: pytest.MonkeyPatch
) -> None:
    from fileq.observe import span_sender, tracing

    monkeypatch.setattr(span_sender, "BATCH_DELAY_S", 0.02)
    monkeypatch.setattr(span_sender, "FAILURE_PAUSE_S", 0.02)
    told = Told()

    with http_collector() as collector:
        monkeypatch.setattr(span_sender, "TIMEOUT_S", 0.5)
        collector.take, take = lambda body: 1 / 0, collector.take  # type: ignore[method-assign,assignment]
        listening = tracing.Tracing(span_sender.make_exporter(collector.endpoint), told)
        try:
            send = listening.around(ignore)
            job = typed_job("t", None, priority="low", now=datetime.now(UTC), id="x")
            for n in range(3):
                send(claim_event(job.but(id=f"lost-{n}"), f"s{n}"))
            wait_until(lambda: told.events)
            collector.take = take  # type: ignore[method-assign]

            def arrived() -> bool:
                send(claim_event(job, "s"))
                return bool(collector.spans("consume", "x"))

            wait_until(arrived, every_s=0.05)
            wait_until(lambda: len(told.events) == 2)
        finally:
            listening.close()
    assert [event for event, _ in told.events] == ["collector.lost", "collector.restored"]
    assert told.fields("collector.restored")["dropped"] >= 3  # type: ignore[operator]
