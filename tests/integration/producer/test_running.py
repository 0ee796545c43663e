"""The running producer: start, endpoints, a missing scan_dir, back-pressure, outages, signals."""

import contextlib
import json
import os
import signal
import socket
import threading
import time
from pathlib import Path

import pytest

from fileq.core.job import decode
from tests.integration.conftest import redis_broker_setup
from tests.support.producer_setup import BrokerSetup, jobs_of, pending, wait_for_scans, wait_pending
from tests.support.program import run
from tests.support.servers import Server, available_servers
from tests.support.waiting import wait_until

# start


@pytest.mark.parametrize("once", [[], ["--once"]])
@pytest.mark.parametrize(("make", "what"), [(lambda path: None, "does not exist"), (Path.touch, "is not a directory")])
def test_a_wrong_scan_dir_is_one_line_and_exit_2_and_creates_no_file(
    tmp_path: Path, make, what: str, once: list[str]
) -> None:
    make(tmp_path / "in")
    before = sorted(tmp_path.iterdir())
    ended = run("producer", "in", *once, cwd=tmp_path)
    assert (ended.returncode, ended.stdout) == (2, "")
    [line] = ended.stderr.splitlines()
    assert "producer.scan_dir is 'in'" in line
    assert what in line
    assert sorted(tmp_path.iterdir()) == before


def test_every_start_logs_the_broker_and_how_it_was_chosen(broker_setup: BrokerSetup) -> None:
    with broker_setup.producer() as program:
        [line] = program.events("broker.opened")
        assert line["broker"] == broker_setup.kind
        assert "redis.addr" in line["chosen"]


def test_an_unreachable_broker_at_start_is_one_line_and_exit_4(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    ended = run("producer", "in", cwd=tmp_path, settings={"redis.addr": "127.0.0.1:1"})
    assert ended.returncode == 4
    assert len(ended.stderr.splitlines()) == 1
    assert "Traceback" not in ended.stderr


def test_a_configured_metrics_port_that_is_taken_is_exit_2(on_sqlite: BrokerSetup) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with on_sqlite.producer(observability__metrics_port=port, wait=False) as program:
            assert program.wait() == 2
            last = program.text().splitlines()[-1]
            assert last.endswith(f"{port} on 127.0.0.1: Address already in use; choose another, or 0 for any"), last
            assert "Traceback" not in program.text()


def test_if_the_default_metrics_port_is_taken_another_one_is_used(on_sqlite: BrokerSetup) -> None:
    with socket.socket() as taken:
        with contextlib.suppress(OSError):  # another process uses it
            taken.bind(("127.0.0.1", 9090))
            taken.listen()
        with on_sqlite.producer(observability__metrics_port=None) as program:
            [line] = program.events("http.port_taken")
            assert (line["level"], line["wanted"]) == ("warning", 9090)
            assert program.readiness()[0] == 200


# endpoints


def test_metrics_count_jobs_skipped_files_and_scans(broker_setup: BrokerSetup) -> None:
    for name in ("a", "b", "x.tmp"):
        broker_setup.write(name)
    with broker_setup.producer() as program:
        wait_until(lambda: program.metric("jobs_produced_total") == 2)
        wait_for_scans(program)
        # Reported by the producer's turn, perhaps after the scan has ended.
        wait_until(lambda: program.metric('producer_files_skipped_total{reason="excluded"}') == 1)
        text = program.get("/metrics")[1]
        assert program.metric('producer_files_skipped_total{reason="changing"}') == 0
        assert "# TYPE producer_scan_duration_seconds histogram" in text
        assert str(broker_setup.directory) not in text
        assert program.get("/healthz")[0] == 200
        assert program.readiness() == (200, {"status": "ok"})
        assert program.get("/nothing")[0] == 404


def test_a_file_that_keeps_changing_is_counted_and_enqueued_in_the_end(on_sqlite: BrokerSetup) -> None:
    broker_setup = on_sqlite
    done = threading.Event()

    def write() -> None:
        with open(broker_setup.inbox / "log", "wb", buffering=0) as file:
            while not done.wait(0.03):
                file.write(b"x")

    writer = threading.Thread(target=write)
    with broker_setup.producer() as program:
        writer.start()
        try:
            changing = 'producer_files_skipped_total{reason="changing"}'
            wait_until(lambda: program.metric(changing) >= 2, what="the file is counted")
            assert broker_setup.jobs() == []
        finally:
            done.set()
            writer.join()
        broker_setup.wait_for_names("log")
        assert broker_setup.jobs()[0].filesize == os.path.getsize(broker_setup.inbox / "log")


# a missing scan_dir


def test_without_scan_dir_the_producer_is_not_ready_and_recovers_when_it_returns(broker_setup: BrokerSetup) -> None:
    broker_setup.write("a")
    aside = broker_setup.directory / "aside"
    with broker_setup.producer(rescan_interval="1h") as program:
        broker_setup.wait_for_names("a")
        broker_setup.inbox.rename(aside)
        wait_until(lambda: program.readiness()[0] == 503)
        reasons = program.readiness()[1]["reasons"]
        assert str(broker_setup.inbox) in reasons["producer"]
        assert "No such file" in reasons["producer"]
        assert program.get("/healthz")[0] == 200
        (aside / "b").write_bytes(b"x")
        aside.rename(broker_setup.inbox)
        wait_until(lambda: program.readiness()[0] == 200)
        broker_setup.wait_for_names("a", "b")
        broker_setup.write("c")
        broker_setup.wait_for_names("a", "b", "c")
        assert len(program.events("scan_dir.lost")) == len(program.events("scan_dir.restored")) == 1


# back-pressure


def test_at_most_max_pending_jobs_wait(broker_setup: BrokerSetup) -> None:
    for n in range(30):
        broker_setup.write(str(n))
    with broker_setup.producer(max_pending=10, rescan_interval="200ms") as program, broker_setup.open() as broker:
        wait_pending(broker, 10)
        wait_for_scans(program, 1)
        for total in (15, 20):
            oldest = [decode(raw).id for raw in broker.peek("low", 5)]
            broker.cancel(oldest)
            wait_until(lambda total=total: broker.census().counters["produced"] == total, what=f"{total} produced")
            assert pending(broker) == 10


# outages


def test_an_outage_of_redis_is_logged_in_two_lines_and_loses_no_job(tmp_path: Path) -> None:
    binary = available_servers()["valkey"]
    assert binary is not None
    with Server(binary, aof=True) as server:
        broker_setup = redis_broker_setup(tmp_path, server)
        done = threading.Event()
        names: list[str] = []

        def write() -> None:
            while not done.wait(0.01):
                names.append(f"{len(names) % 7}/{len(names)}")
                broker_setup.write(names[-1])

        writer = threading.Thread(target=write)
        with broker_setup.producer(settle="20ms", rescan_interval="1s") as program:
            writer.start()
            try:
                wait_until(lambda: program.metric("jobs_produced_total") >= 20)
                server.kill()
                program.wait_for("broker.lost")
                wait_until(lambda: program.readiness()[0] == 503)
                assert "unavailable" in program.readiness()[1]["reasons"]["producer"]
                assert program.get("/healthz")[0] == 200
                seen = len(names)
                wait_until(lambda: len(names) >= seen + 100)  # about a second: more than one attempt to reconnect
                server.start()
                program.wait_for("broker.restored")
                wait_until(lambda: program.readiness()[0] == 200)
            finally:
                done.set()
                writer.join()
            broker_setup.wait_for_names(*names, timeout_s=20)
            others = [line["event"] for line in program.logs() if line["event"] != "job.produced"]
            assert others == ["broker.opened", "http.opened", "role.started", "broker.lost", "broker.restored"]
            assert program.events("broker.restored")[0]["seconds"] > 0
            with broker_setup.open() as broker:
                assert broker.census().drift == 0
                assert len(jobs_of(broker)) == len(names)
        server.close_clients()


def test_a_database_that_stays_locked_is_an_outage(on_sqlite: BrokerSetup) -> None:
    """Another process hangs while it holds the write lock."""
    import fcntl

    broker_setup = on_sqlite
    with broker_setup.producer(rescan_interval="1h") as program:
        wait_for_scans(program)
        fd = os.open(broker_setup.directory / "fileq.db-lock", os.O_RDONLY)
        fcntl.flock(fd, fcntl.LOCK_EX)
        broker_setup.write("a")
        program.wait_for("broker.lost", 20)
        assert program.readiness()[0] == 503
        os.close(fd)
        program.wait_for("broker.restored", 20)
        broker_setup.wait_for_names("a")


# signals


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_a_busy_producer_soon(broker_setup: BrokerSetup, number: signal.Signals) -> None:
    for n in range(600):
        broker_setup.write(str(n))
    with broker_setup.producer(rate_limit_per_sec=50) as program, broker_setup.open() as broker:
        wait_pending(broker, 50)
        started_s = time.monotonic()
        program.signal(number)
        assert program.wait() == 0
        assert time.monotonic() - started_s < 5
        assert program.logs()[-1]["event"] == "role.stopped"
        assert broker.census().drift == 0


def test_the_producer_stops_in_time_while_its_broker_is_away(tmp_path: Path) -> None:
    binary = available_servers()["valkey"]
    assert binary is not None
    with Server(binary) as server:
        broker_setup = redis_broker_setup(tmp_path, server)
        with broker_setup.producer() as program:
            server.kill()
            broker_setup.write("a")
            program.wait_for("broker.lost")
            assert program.stop(10) == 0


def test_logs_have_no_control_characters_and_one_line_per_event(on_sqlite: BrokerSetup) -> None:
    broker_setup = on_sqlite
    broker_setup.write("a\nb\x1b[2J\u2028\x9b".encode() + b"\xff")
    with broker_setup.producer() as program:
        line = program.wait_for("job.produced")
        assert line["filepath"].endswith("a\nb\x1b[2J\u2028\x9b\\xff")
        assert all(json.loads(text) for text in program.text().splitlines())
        assert program.text().isascii()
    with broker_setup.producer(observability__log_format="console", wait=False, settle_unclosed="0s") as program:
        broker_setup.write(b"c\x1b[2J")
        broker_setup.write(b"d\ne")
        wait_until(lambda: program.text().count("job.produced") == 2, 20)
        lines = [line for line in program.text().splitlines() if "job.produced" in line]
        assert len(lines) == 2
        assert any("/c\\x1b[2J" in line for line in lines)
        assert "\x1b" not in program.text()
