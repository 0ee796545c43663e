"""`fileq admin stats` and `fileq admin workers`."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import select
import signal
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest
from msgspec.structs import replace

from fileq.brokers import open_broker
from fileq.cli.stats_text import refreshed, render
from fileq.cli.terminal import Screen
from fileq.commands.admin.stats import RecentTotals, gather
from fileq.config import config_from
from fileq.core.job import rfc3339_ms
from fileq.core.settlement import complete, release
from fileq.core.text import broker_name
from fileq.testing.conformance.builders import (
    an_entry,
    burial,
    claims_of,
    completed,
    dead,
    enqueue,
    failed,
    names,
    register,
    running,
    settle,
    worker_info,
)
from fileq.testing.conformance.producers_tests import producer_info
from tests.support.command_line import CommandLine
from tests.support.program import command, environment, run
from tests.support.servers import Server
from tests.support.waiting import wait_until


def test_an_empty_broker(shell: CommandLine) -> None:
    out = shell.run("admin", "stats")
    assert out.startswith(f"fileq on {broker_name(shell.broker.kind)} {shell.broker.where}, ")
    assert "No jobs pending." in out
    assert "no workers" in out
    stats = shell.json("stats")
    assert [(queue["name"], queue["length"], queue["oldest_age_s"]) for queue in stats["queues"]] == [
        ("high", 0, None),
        ("low", 0, None),
    ]
    assert (stats["eta_s"], stats["workers"], stats["errors"], stats["now"]) == (0.0, [], [], None)
    assert "no workers" in shell.run("workers")
    assert shell.json("workers")["workers"] == []


def test_counters_that_are_0_are_among_the_totals(shell: CommandLine) -> None:
    enqueue(shell, "a")
    totals = shell.json("stats")["totals"]
    assert (totals["produced"], totals["consumed"], totals["dead"], totals["completed"]) == (1, 0, 0, 0)


def test_everything_is_counted(shell: CommandLine) -> None:
    dead(shell, "d")
    settle(shell, complete(running(shell, "c")))
    settle(shell, failed(running(shell, "r"), kind="OSError", delay_ms=60_000))
    running(shell, "run", "w2")
    enqueue(shell, *names(5), queue="high")
    shell.broker.enqueue([an_entry("later", delay_ms=60_000)])
    shell.broker.pause("low")
    stats = shell.json("stats")
    assert [(queue["name"], queue["length"], queue["is_paused"]) for queue in stats["queues"]] == [
        ("high", 5, False),
        ("low", 0, True),
    ]
    assert (stats["scheduled"], stats["processing"], stats["heartbeats"]) == (2, 1, 2)
    assert (stats["completed"], stats["dead"], stats["cancelled"]) == (1, 1, 0)
    assert stats["totals"]["produced"] == 10
    assert (stats["this_hour"]["completed"], stats["this_hour"]["failed"], stats["this_hour"]["dead"]) == (1, 2, 1)
    assert {error["kind"]: error["this_hour"] for error in stats["errors"]} == {"OSError": 1, "ValueError": 1}
    [worker] = stats["workers"]
    shown = [worker[name] for name in ("host", "pid", "slots", "busy", "is_alive")]
    assert shown == ["alpha", 4242, 2, 1, True]
    [job] = worker["jobs"]
    assert (job["worker_id"], job["id"], job["path"]) == ("w2", "run", "/data/run.pdf")
    assert 0 <= job["running_s"] < 60
    out = shell.run("stats")
    assert "/data/run.pdf" in out
    assert "OSError" in out
    assert "paused" in out


def test_the_errors_by_kind_add_up_to_the_failed_attempts_and_the_refused_jobs(shell: CommandLine) -> None:
    settle(shell, failed(running(shell, "r"), kind="OSError", delay_ms=60_000))
    assert "refused" not in shell.run("stats")
    settle(shell, burial(running(shell, "no handler"), kind="NoHandler", refused=True))
    stats = shell.json("stats")
    this_hour = stats["this_hour"]
    assert (this_hour["failed"], this_hour["refused"], this_hour["dead"]) == (1, 1, 1)
    assert sum(error["this_hour"] for error in stats["errors"]) == this_hour["failed"] + this_hour["refused"]
    rows = re.findall(r"^(failed|refused|dead) +(\d+) +\d", shell.run("stats"), re.MULTILINE)
    assert rows == [("failed", "1"), ("refused", "1"), ("dead", "1")]
    assert "errors by kind from failed attempts and refused jobs" in shell.run("stats")
    narrow = render(gather(shell.broker), Screen(100, 24))
    assert any(line.startswith("errors this hour (last hour) from failed attempts and refused") for line in narrow)


def test_the_kinds_of_errors_that_are_not_shown_are_counted(shell: CommandLine) -> None:
    for number in range(9):
        settle(shell, failed(running(shell, f"job-{number}"), kind=f"Kind{number}", delay_ms=60_000))
    assert "\nand 1 more kind\n" in shell.run("stats")
    settle(shell, failed(running(shell, "another"), kind="Another", delay_ms=60_000))
    assert "\nand 2 more kinds\n" in shell.run("stats")


def test_deaths_are_errors_by_kind_and_neither_failed_nor_refused(shell: CommandLine) -> None:
    settle(shell, release(running(shell, "a"), error="exited with status 1", kind="Crash", died=True))
    stats = shell.json("stats")
    assert stats["errors"] == [{"kind": "Crash", "this_hour": 1, "last_hour": 0}]
    assert (stats["this_hour"]["failed"], stats["this_hour"]["refused"]) == (0, 0)
    assert "errors by kind from failed attempts and crashes" in shell.run("stats")


def test_files_that_are_still_to_be_moved_are_shown(shell: CommandLine) -> None:
    claim = running(shell, "a")
    assert shell.json("stats")["orders"] == 0
    assert "moved or deleted" not in shell.run("stats")
    settle(shell, replace(complete(claim), order=b"complete 1-2\n/in/a"))
    assert shell.json("stats")["orders"] == 1
    [line] = [line for line in shell.run("stats").splitlines() if line.startswith("after jobs")]
    assert " ".join(line.split()) == "after jobs 1 files to move or delete (worker.after)"


def test_the_oldest_age_is_that_of_the_next_job(shell: CommandLine) -> None:
    now_ms = time.time_ns() // 1_000_000
    old, new = an_entry("old"), an_entry("new")
    created = {"old": rfc3339_ms(now_ms - 7_200_000), "new": rfc3339_ms(now_ms)}
    shell.broker.enqueue([replace(e, job=e.job.but(creation_time=created[e.job.id])) for e in (old, new)])
    [_, low] = shell.json("stats")["queues"]
    assert 7_190 < low["oldest_age_s"] < 7_260
    assert "2h00m" in shell.run("stats")


def test_slots_for_jobs_that_are_claimed_in_advance_are_not_shown(shell: CommandLine) -> None:
    """Any slot may hold a job that runs: those that were claimed first do."""
    shell.broker.register({"s0": worker_info(pid=1), "s1": worker_info(pid=1), "s2": worker_info(pid=1, is_extra=True)})
    enqueue(shell, "x")
    shell.broker.settle_and_claim([], ["s2"])
    [worker] = shell.json("workers")["workers"]
    assert (worker["slots"], worker["busy"], [job["worker_id"] for job in worker["jobs"]]) == (2, 1, ["s2"])
    enqueue(shell, "y", "z", "behind")
    assert "waits" not in shell.run("show", "behind")
    shell.broker.settle_and_claim([], ["s0", "s1"])
    [worker] = shell.json("stats")["workers"]
    assert (worker["slots"], worker["busy"], len(worker["jobs"])) == (2, 2, 2)
    assert "all slots are busy (2 jobs running)" in shell.run("show", "behind")


def test_workers_are_grouped_by_their_process_with_their_breaker(shell: CommandLine) -> None:
    infos = {f"a{i}": worker_info(host="alpha", pid=1, breaker="open") for i in range(3)}
    shell.broker.register({**infos, "b0": worker_info(host="beta", pid=1)})
    enqueue(shell, "x", "y")
    shell.broker.settle_and_claim([], ["a0", "b0"])
    workers = shell.json("workers")
    assert (workers["slots"], workers["busy"]) == (4, 2)
    assert [(w["host"], w["slots"], w["busy"], w["breaker"]) for w in workers["workers"]] == [
        ("alpha", 3, 1, "open"),
        ("beta", 1, 1, "closed"),
    ]
    assert "every circuit breaker is open" not in shell.run("stats")
    shell.broker.register({"b0": worker_info(host="beta", pid=1, breaker="open")})
    assert "2 jobs left; every circuit breaker is open, so no jobs start." in shell.run("stats")
    out = shell.run("workers")
    assert "1 of 3" in out
    assert "/data/x.pdf" in out
    assert " a0 " in out


def test_the_text_is_never_wider_or_higher_than_the_terminal(shell: CommandLine) -> None:
    slots = names(40, "slot")
    for i in range(40):
        shell.broker.enqueue([an_entry(f"j{i}", queue="high")])
    claims_of(shell, *slots)
    for kind in ("A" * 60, "B" * 60, "C"):
        settle(shell, failed(running(shell, f"f{kind}", "w"), kind=kind, delay_ms=60_000))
    for i in range(4):
        held = producer_info(host="h" * 60, roots=("/r" * 60,), state="held", held_by="producer.max_pending")
        shell.broker.report_producer(f"p{i}", held, 60_000)
    lines = render(gather(shell.broker), Screen(80, 24))
    assert len(lines) <= 24
    assert max(map(len, lines)) <= 80
    assert any("and" in line and "more: fileq workers" in line for line in lines)
    assert "  and 2 more: fileq stats --json" in lines


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("stats", "--watch=x"), "--watch is 'x'; it must be a number of seconds"),
        (("stats", "--watch=0"), "it must be a number of seconds"),
        (("stats", "--jsn"), "unknown option '--jsn'"),
        (("workers", "here"), "unexpected argument 'here'"),
    ],
)
def test_a_wrong_argument_is_one_line(shell: CommandLine, words: tuple[str, ...], said: str) -> None:
    assert said in shell.fail(*words, code=2)


def test_the_eta_follows_from_the_rate_of_the_last_minute(shell: CommandLine) -> None:
    completed(shell, *names(6, "done"))
    enqueue(shell, *names(3))
    stats = shell.json("stats")
    assert (stats["eta_basis"], stats["eta_per_second"], stats["eta_s"]) == ("last_minute", 0.1, 30.0)
    assert "3 jobs left, done in about 30s (6.0/min in the last minute)." in shell.run("stats")
    shell.broker.deregister(["w1"])
    assert shell.json("stats")["eta_s"] is None
    assert "3 jobs left; no worker is running." in shell.run("stats")
    shell.broker.pause("low")
    assert "No jobs pending; 3 more in paused queues." in shell.run("stats")


def test_the_rates_of_a_watch_are_computed_between_refreshes(shell: CommandLine) -> None:
    recent = RecentTotals()
    assert gather(shell.broker, recent).now is None
    enqueue(shell, *names(4))
    register(shell, "w1")
    for claim in shell.broker.settle_and_claim([], ["w1"]).claims:
        settle(shell, complete(claim))
    now = wait_until(lambda: gather(shell.broker, recent).now)
    assert (now.produced, now.completed, now.failed) == (4, 1, 0)
    assert now.seconds > 0


def test_a_watch_continues_while_the_server_is_unreachable(valkey: Server) -> None:
    config = config_from({"redis": {"addr": valkey.address, "max_retries": 0, "min_idle_conns": 0}})
    seen: list[tuple[bool, str]] = []
    happens = [valkey.kill, lambda: None, valkey.start, lambda: None]
    with closing(open_broker(config)) as broker:
        refreshes = refreshed(lambda: broker, 1.0, sleep=lambda seconds: None)
        for (stats, outage), happen in zip(refreshes, happens, strict=False):
            seen.append((stats is not None, outage))
            happen()
    assert [bool(outage) for _, outage in seen] == [False, True, True, False]
    assert all(has_stats for has_stats, _ in seen), "the last stats stay on the screen"
    assert seen[1][1].startswith("unreachable for ")
    assert "is unavailable" in seen[1][1]


def test_a_watch_on_a_pipe_prints_a_block_each_time_and_exits_0_on_ctrl_c(shell: CommandLine) -> None:
    with subprocess.Popen(
        command("stats", "--watch", "0.1", settings=shell.settings),
        cwd=shell.directory,
        env=environment(PYTHONUNBUFFERED="1"),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        titles = 0
        while titles < 3:
            line = process.stdout.readline()
            assert line, "it ended"
            titles += line.startswith("fileq on ")
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=20)
        assert (process.returncode, err) == (0, "")


@contextmanager
def on_a_terminal(shell: CommandLine, *words: str, **environ: str) -> Iterator[tuple[subprocess.Popen[bytes], int]]:
    """Runs the real program on a terminal of 80 by 24; yields it and our end of the terminal."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
    try:
        with subprocess.Popen(
            command(*words, settings=shell.settings),
            cwd=shell.directory,
            env={**environment(), "TERM": "xterm", "COLUMNS": "", "LINES": "", **environ},
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
        ) as process:
            os.close(theirs)
            try:
                yield process, ours
            finally:
                process.kill()
    finally:
        os.close(ours)


def read_until(ours: int, wanted: bytes, seen: bytes = b"") -> bytes:
    def more() -> bytes:
        nonlocal seen
        if select.select([ours], [], [], 0.1)[0]:
            seen += os.read(ours, 65536)
        return seen if wanted in seen else b""

    return wait_until(more, 30, f"{wanted!r} on the terminal")


def test_on_a_terminal_a_watch_refreshes_in_place_and_restores_the_screen(shell: CommandLine) -> None:
    dead(shell, "a")
    with on_a_terminal(shell, "stats", "--watch", "0.2") as (process, ours):
        seen = read_until(ours, b"fileq dlq list")
        assert b"\x1b[?1049h" in seen, "the alternate screen"
        enqueue(shell, *names(17), queue="high")
        seen = read_until(ours, b"17")
        process.send_signal(signal.SIGINT)
        read_until(ours, b"\x1b[?1049l")
        assert process.wait(20) == 0


def test_only_terminals_without_no_color_get_colours(shell: CommandLine) -> None:
    dead(shell, "a")
    with on_a_terminal(shell, "stats") as (process, ours):
        assert b"\x1b[31mdead" in read_until(ours, b"No jobs pending.")
        assert process.wait(20) == 0
    with on_a_terminal(shell, "stats", NO_COLOR="1") as (process, ours):
        assert b"\x1b[" not in read_until(ours, b"No jobs pending.")
        assert process.wait(20) == 0
    assert "\x1b" not in shell.run("stats")


def test_stats_does_not_load_rich(shell: CommandLine) -> None:
    code = (
        "import sys\nfrom fileq.cli import main\n"
        "assert main(sys.argv[1:]) == 0\n"
        "assert 'rich' not in sys.modules and 'structlog' not in sys.modules and 'bracex' not in sys.modules"
    )
    ended = subprocess.run(
        [sys.executable, "-c", code, "stats", *shell.sets],
        cwd=shell.directory,
        env=environment(),
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert ended.returncode == 0, ended.stderr


def test_without_a_database_nothing_is_created_and_the_exit_code_is_4(tmp_path: Path) -> None:
    ended = run("admin", "stats", cwd=tmp_path, settings={"sqlite.path": str(tmp_path / "none.db")})
    assert ended.returncode == 4
    assert "no database at" in ended.stderr
    assert list(tmp_path.iterdir()) == []
