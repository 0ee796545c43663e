"""/metrics, /healthz and /readyz of the real program, with brokers that stop, die and come back."""

from __future__ import annotations

import math
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

from prometheus_client.parser import text_string_to_metric_families

from fileq.brokers.types import WorkerInfo
from fileq.core.job import State
from fileq.observe.logs import line_fields
from tests.conftest import require
from tests.support.parallel_scenarios import parallel_scenario, running_scenarios
from tests.support.producer_setup import BrokerSetup, wait_for_scans
from tests.support.program import Program, run
from tests.support.reference_tables import event_types
from tests.support.servers import Server, available_servers
from tests.support.waiting import wait_until
from tests.support.worker_setup import WorkerSetup, ids, on_files, open_worker_setup

__all__ = ["running_scenarios"]
BACK_S = 3.0  # within which it is ready again
NOOP = '[{match: "**/*", use: "fileq.handlers:simulate", isolation: thread}]'


@contextmanager
def shaken(setup: WorkerSetup) -> Iterator[tuple[Server, WorkerSetup]]:
    """A server that may be stopped and killed, and a setup on it."""
    binary = available_servers()["valkey"]
    assert binary is not None
    directory = setup.directory / "shaken"
    directory.mkdir()
    with Server(binary, aof=True) as server, open_worker_setup(directory, {"redis.addr": server.address}) as own:
        yield server, own


def values(text: str) -> dict[str, float]:
    return {
        f"{sample.name}{sorted(sample.labels.items())}": sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def scrape(program: Program) -> dict[str, float]:
    return values(program.get("/metrics")[1])


def assert_lines_are_documented(program: Program) -> None:
    """Every log line is one of the event classes, from which docs/events.md is written."""
    kinds = {kind.name: kind for kind in event_types()}
    for line in program.logs():
        kind = kinds[line["event"]]
        assert line.keys() - {"event", "level", "timestamp", "exception"} <= set(line_fields(kind)), line
        assert line["level"] == kind.level


# metrics


def test_a_scrape_passes_promtool(each_setup: WorkerSetup) -> None:
    promtool = require("prometheus", shutil.which("promtool"))
    (each_setup.inbox / "a").write_bytes(b"x")
    (each_setup.inbox / "b.tmp").write_bytes(b"x")
    with each_setup.worker(role="all", handlers=on_files("on_file")) as program:
        wait_until(lambda: program.metric("jobs_completed_total") == 1)
        text = program.get("/metrics")[1]
    checked = subprocess.run([promtool, "check", "metrics"], input=text, text=True, capture_output=True, check=False)
    assert (checked.returncode, checked.stdout, checked.stderr) == (0, "", "")


def test_ten_thousand_files_and_a_hundred_restarts_add_no_series(sqlite_setup: WorkerSetup) -> None:
    """Of workers elsewhere, which come and go in the registry, and of the children of this one."""
    setup = sqlite_setup
    program = setup.worker(role="all", count=8, handlers=NOOP, max_recoveries=0, circuit_breaker__enabled=False)
    wait_until(lambda: scrape(program))
    before = set(scrape(program))
    for n in range(10_000):
        (setup.inbox / f"{n}.txt").touch()
    for n in range(100):
        slot = f"elsewhere-{n}-0-{n:08x}"
        setup.broker.register({slot: WorkerInfo("elsewhere", n, 0, "0", ("high", "low"))})
        setup.broker.deregister([slot])
    deaths = setup.enqueue("exits", *ids("death", 100))
    setup.wait_for(State.DEAD, deaths, 60)
    wait_until(lambda: program.metric("jobs_completed_total") == 10_000, 60, every_s=0.1)
    assert program.metric("jobs_produced_total") == 10_000
    assert program.metric("jobs_dead_letter_total") == 100
    assert set(scrape(program)) == before
    assert program.stop() == 0
    again = setup.worker(role="all", handlers=NOOP)
    assert set(scrape(again)) == before


def test_every_process_shows_the_same_depths(each_setup: WorkerSetup) -> None:
    setup = each_setup
    setup.broker.pause("high")
    setup.enqueue("gated", "runs-1", "runs-2")
    setup.enqueue("note", "waits", queue="high")
    setup.enqueue("permanent", "dies")
    worker = setup.worker(count=3)
    setup.wait_logged("start", 3)
    setup.wait_for(State.DEAD, ["dies"])
    setup.enqueue("fails", "again", payload=None)
    producer = Program("producer", str(setup.inbox), cwd=setup.directory, settings=setup.all_settings())
    with producer:
        wait_until(lambda: setup.census().running == 2 and setup.states(["again"])["dead"] == 1, 20)
        expected = {"high": 1, "low": 0, "scheduled": 0, "dead_letter": 2, "processing": 2}
        for program in (worker, producer):
            names = {place: f'queue_length{{queue="{place}"}}' for place in expected}
            wait_until(lambda p=program, n=names: {k: p.metric(v) for k, v in n.items()} == expected)  # type: ignore[misc]
            assert program.metric("fileq_broker_up") == 1
            wait_until(lambda p=program: p.metric('queue_oldest_age_seconds{queue="high"}') > 1)  # type: ignore[misc]
            assert program.metric('queue_oldest_age_seconds{queue="low"}') == 0
        assert worker.metric("worker_active") == 3
        assert producer.metric("worker_active") == 0
        assert worker.metric("jobs_consumed_total") == 3 + 4  # and each attempt of the one that fails
        assert worker.metric("job_pickup_latency_seconds_count") == 4  # of first attempts
        assert worker.metric("jobs_retried_total") == 3
        setup.open_gate()
        assert worker.stop() == 0
        assert_lines_are_documented(worker)
        assert_lines_are_documented(producer)


@parallel_scenario("sqlite")
def test_while_the_broker_is_silent_scrapes_are_quick_and_whole(setup: WorkerSetup) -> None:
    with shaken(setup) as (server, own):
        program = own.worker(count=2, redis__read_timeout="30s")
        own.enqueue("note", "a")
        wait_until(lambda: program.metric("jobs_completed_total") == 1)
        before = scrape(program)
        server.pause()
        try:
            wait_until(lambda: program.metric("fileq_broker_up") == 0)
            with ThreadPoolExecutor(8) as pool:
                started_s = time.monotonic()
                found = [f.result() for f in [pool.submit(scrape, program) for _ in range(40)]]
                assert time.monotonic() - started_s < 10  # forty of them; the broker's time-out alone is thirty seconds
            for one in found:
                assert one.keys() == before.keys()
                assert one["jobs_completed_total[]"] == 1
                assert math.isnan(one["queue_length[('queue', 'low')]"])
        finally:
            server.resume()
        wait_until(lambda: program.metric("fileq_broker_up") == 1, BACK_S)
        assert program.metric('queue_length{queue="low"}') == 0


# health


@parallel_scenario("sqlite")
def test_while_redis_is_dead_it_is_healthy_and_not_ready_and_soon_after_it_is_ready(setup: WorkerSetup) -> None:
    with shaken(setup) as (server, own):
        assert_not_ready_while_away(own, server.kill, server.start, away_s=2.0)


@parallel_scenario("sqlite")
def test_while_redis_is_silent_it_is_healthy_and_not_ready_and_soon_after_it_is_ready(setup: WorkerSetup) -> None:
    """For longer than a heartbeat, in one call and in two."""
    with shaken(setup) as (server, own):
        assert_not_ready_while_away(own, server.pause, server.resume, away_s=6.5)


def assert_not_ready_while_away(
    setup: WorkerSetup, leave: Callable[[], object], come_back: Callable[[], object], *, away_s: float
) -> None:
    patient = {"redis__read_timeout": "5s"}
    programs = [setup.worker(count=2, role="all", **patient), setup.worker(count=2, **patient)]
    settings = setup.all_settings(**patient)
    with Program("producer", str(setup.inbox), cwd=setup.directory, settings=settings) as producer:
        programs.append(producer)
        for program in programs:
            assert program.readiness() == (200, {"status": "ok"})
        leave()
        left_s = time.monotonic()
        for program in programs:
            wait_until(lambda p=program: p.readiness()[0] == 503, 4)  # type: ignore[misc]
            assert {type(reason) for reason in program.readiness()[1]["reasons"].values()} == {str}
        while time.monotonic() - left_s < away_s:
            for program in programs:
                assert program.readiness()[0] == 503
                assert program.get("/healthz") == (200, '{"status": "ok"}\n')
        come_back()
        for program in programs:
            wait_until(lambda p=program: p.readiness()[0] == 200, BACK_S)  # type: ignore[misc]
        for program in programs:
            assert len(program.events("broker.lost")) <= 1
            assert_lines_are_documented(program)


@parallel_scenario("redis")
def test_an_open_breaker_leaves_it_ready_and_is_seen(setup: WorkerSetup) -> None:
    settings = {"circuit_breaker__min_samples": 3, "circuit_breaker__cooldown_period": "1h"}
    program = setup.worker(count=2, max_retries=0, **settings)
    setup.enqueue("fails", *ids("f", 4))
    wait_until(lambda: program.metric("circuit_breaker_state") == 2)
    assert program.metric("circuit_breaker_trips_total") == 1
    assert program.readiness() == (200, {"status": "ok"})


@parallel_scenario("redis")
def test_while_it_drains_it_is_healthy_and_not_ready(setup: WorkerSetup) -> None:
    program = setup.worker(count=2)
    setup.enqueue("gated", "slow")
    setup.wait_logged("start", 1)
    program.signal(signal.SIGTERM)
    wait_until(lambda: program.readiness()[0] == 503)
    assert program.readiness()[1]["reasons"]["worker"] == "shutting down"
    assert program.get("/healthz") == (200, '{"status": "ok"}\n')
    assert program.metric("worker_active") == 2
    setup.open_gate()
    assert program.wait() == 0


@parallel_scenario("redis")
def test_while_a_root_is_missing_a_worker_is_healthy_and_not_ready(setup: WorkerSetup) -> None:
    program = setup.worker(count=2)
    aside = setup.directory / "aside"
    setup.inbox.rename(aside)
    wait_until(lambda: program.readiness()[0] == 503)
    assert str(setup.inbox) in program.readiness()[1]["reasons"]["worker"]
    assert program.get("/healthz")[0] == 200
    aside.rename(setup.inbox)
    wait_until(lambda: program.readiness()[0] == 200)


# the port


def test_a_taken_port_that_was_chosen_ends_a_worker_with_2(sqlite_setup: WorkerSetup) -> None:
    first = sqlite_setup.worker(count=1)
    second = sqlite_setup.worker(wait=False, count=1, observability__metrics_port=first.port)
    assert second.wait() == 2
    assert f"observability.metrics_port is {first.port}" in second.text().splitlines()[-1]
    assert "Traceback" not in second.text()


def test_once_serves_nothing(on_sqlite: BrokerSetup) -> None:
    on_sqlite.write("a")
    for role in ("producer", "all"):
        ended = run(role, str(on_sqlite.inbox), "--once", cwd=on_sqlite.directory, settings=on_sqlite.all_settings())
        assert ended.returncode == 0
        assert "role.started" not in ended.stderr
        assert "http." not in ended.stderr


def test_a_producer_scans_are_timed(on_sqlite: BrokerSetup) -> None:
    with on_sqlite.producer() as program:
        wait_for_scans(program)
        assert program.metric('producer_scan_duration_seconds_bucket{le="+Inf"}') >= 1


def test_a_probe_may_ask_for_the_head_only(on_sqlite: BrokerSetup) -> None:
    with on_sqlite.producer() as program:
        for path in ("/healthz", "/readyz", "/metrics"):
            with socket.create_connection(("127.0.0.1", program.port), 10) as connection:
                connection.sendall(f"HEAD {path} HTTP/1.0\r\n\r\n".encode())
                head, _, body = b"".join(iter(lambda c=connection: c.recv(4096), b"")).partition(b"\r\n\r\n")  # type: ignore[misc]
                assert (head.split()[1], body) == (b"200", b"")


def test_a_probe_may_name_no_version_of_http(on_sqlite: BrokerSetup) -> None:
    """N13: the line break of such a request was a part of the path, which was not found."""
    with on_sqlite.producer() as program, socket.create_connection(("127.0.0.1", program.port), 10) as connection:
        connection.sendall(b"GET /healthz\r\n\r\n")
        assert connection.recv(4096).split()[1] == b"200"
