"""`fileq all --once` and `fileq worker --once`: they process everything and end with an exit code for the result."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from datetime import UTC, datetime

from fileq.brokers.types import Entry
from fileq.core.job import State, typed_job
from tests.support import program
from tests.support.terminal import Terminal
from tests.support.worker_setup import WorkerSetup, ids, is_running, on_files


def all_once(setup: WorkerSetup, **settings: object) -> subprocess.CompletedProcess[str]:
    arguments = ("all", str(setup.inbox), "--once", "--app-dir", str(setup.directory))
    return program.run(*arguments, cwd=setup.directory, settings=setup.all_settings(**settings), timeout_s=100)


def test_thousands_of_files_are_processed_once_each(sqlite_setup: WorkerSetup) -> None:
    setup = sqlite_setup
    for n in range(3_000):
        (setup.inbox / f"{n:05}.{'pdf' if n % 10 == 0 else 'txt'}").write_bytes(b"x" * (n % 7))
    ended = all_once(setup, handlers=on_files("on_file"))
    assert ended.returncode == 0, ended.stderr
    assert "completed 3000, retried 0, dead 0" in ended.stdout
    processed = setup.logged("file")
    assert len(processed) == len(set(processed)) == 3_000
    census = setup.census()
    assert (census.drift, census.running, census.heartbeats, census.scheduled) == (0, 0, 0, 0)
    assert (census.counters["produced"], census.counters["completed"]) == (3_000, 3_000)
    assert setup.broker.workers() == []
    again = all_once(setup, handlers=on_files("on_file"))
    assert (again.returncode, len(setup.logged("file"))) == (0, 3_000)


def test_the_first_dead_jobs_are_named_and_the_others_counted(sqlite_setup: WorkerSetup) -> None:
    for number in range(12):
        (sqlite_setup.inbox / str(number)).write_bytes(b"x")
    ended = all_once(sqlite_setup, handlers=on_files("fails"), max_retries=0)
    *_, last_dead, last = ended.stdout.splitlines()
    assert last_dead.startswith("dead: ")
    assert last == "and 2 more; see 'fileq dlq list'"


def test_a_job_that_dies_in_this_run_gives_exit_code_3_and_one_dead_before_does_not(sqlite_setup: WorkerSetup) -> None:
    setup = sqlite_setup
    (setup.inbox / "file").write_bytes(b"x")
    ended = all_once(setup, handlers=on_files("fails"), max_retries=1)
    assert ended.returncode == 3, ended.stderr
    assert "completed 0, retried 1, dead 1" in ended.stdout
    assert f"dead: {setup.inbox}/file: ValueError: broken" in ended.stdout
    assert setup.census().dead == 1
    assert all_once(setup, handlers=on_files("fails")).returncode == 0


def test_paused_and_scheduled_jobs_are_left_and_reported_and_retries_are_waited_for(each_setup: WorkerSetup) -> None:
    setup = each_setup
    setup.broker.pause("high")
    setup.enqueue("note", "paused-1", "paused-2", queue="high")
    later = typed_job("note", None, priority="low", now=datetime.now(UTC), id="tomorrow")
    setup.broker.enqueue([Entry(later, "low", delay_ms=86_400_000)])
    setup.enqueue("fails_twice", "twice")
    ended = all_once(setup)
    assert ended.returncode == 0, ended.stderr
    assert "left 2 in high, which is paused" in ended.stdout
    assert "left 1 scheduled for later" in ended.stdout
    assert setup.states(["twice"]) == {"completed": 1}
    assert setup.states(["paused-1", "paused-2"]) == {"pending": 2}
    assert setup.states(["tomorrow"]) == {"scheduled": 1}
    assert setup.logged("note") == []
    assert setup.census().drift == 0


def test_a_worker_once_ends_when_nothing_is_left_and_scans_nothing(each_setup: WorkerSetup) -> None:
    setup = each_setup
    (setup.inbox / "file").write_bytes(b"x")
    setup.enqueue("note", "one", "two")
    setup.enqueue("fails", "dies", max_retries=0)
    arguments = ("worker", str(setup.inbox), "--once", "--app-dir", str(setup.directory))
    ended = program.run(*arguments, cwd=setup.directory, settings=setup.all_settings(handlers=on_files("on_file")))
    assert ended.returncode == 3, ended.stderr
    assert ended.stdout.startswith("completed 2, retried 0, dead 1 in ")
    assert sorted(setup.logged("note")) == ["one", "two"]
    assert setup.logged("file") == []
    assert program.run(*arguments, cwd=setup.directory, settings=setup.all_settings()).returncode == 0


def test_a_run_once_leaves_jobs_whose_breaker_is_open_and_exits_with_1(each_setup: WorkerSetup) -> None:
    setup = each_setup
    breaker = {"circuit_breaker__min_samples": 2, "circuit_breaker__cooldown_period": "1h"}
    setup.enqueue("exits", *ids("crash", 8))
    setup.enqueue("note", "one")
    ended = all_once(setup, count=1, **breaker)
    assert ended.returncode == 1, ended.stderr
    assert "left 8 deferred: the circuit breaker of exits is open (" in ended.stdout
    assert "8 jobs stay deferred until the next run: the circuit breaker of exits is open (" in ended.stderr
    assert setup.states(["one"]) == {"completed": 1}, "other routes are not concerned"
    assert setup.states(ids("crash", 8)) == {"deferred": 8}
    assert setup.census().running == 0


def test_a_run_once_ends_when_every_breaker_is_open(sqlite_setup: WorkerSetup) -> None:
    """Then nothing is claimed: jobs stay pending instead of deferred."""
    setup = sqlite_setup
    (setup.directory / "only.py").write_text("def broken(job, context):\n    raise ValueError('broken')\n")
    for n in range(8):
        (setup.inbox / f"{n}").write_bytes(b"x")
    breaker = {"circuit_breaker__min_samples": 2, "circuit_breaker__cooldown_period": "1h"}
    ended = all_once(setup, count=1, imports="[]", handlers='[{match: "*", use: "only:broken"}]', **breaker)
    assert ended.returncode == 1, ended.stderr
    assert "left 8 deferred: the circuit breaker of * is open (ValueError: broken" in ended.stdout
    assert "8 jobs stay deferred until the next run" in ended.stderr
    census = setup.census()
    assert (census.running, sum(census.pending.values()) + census.scheduled) == (0, 8)


# on a terminal


@contextmanager
def on_terminal(setup: WorkerSetup, *, columns: int = 80, **settings: object) -> Iterator[Terminal]:
    arguments = ("all", str(setup.inbox), "--once", "--app-dir", str(setup.directory))
    words = program.command(*arguments, settings=setup.all_settings(**settings))
    with closing(Terminal(words, setup.directory, columns)) as terminal:
        yield terminal


def test_a_line_shows_the_progress_and_the_summary_names_the_dead_jobs(sqlite_setup: WorkerSetup) -> None:
    setup = sqlite_setup
    for n in range(20):
        (setup.inbox / f"{n:02}").write_bytes(b"x")
    (setup.inbox / "bad\nname.pdf").write_bytes(b"x")

    def touch() -> None:  # no file is stable, however long the start and the first line take
        for path in setup.inbox.iterdir():
            os.utime(path, (time.time() + 60, time.time() + 60))

    touch()
    bad = '[{match: "bad*", use: "worker_handlers:fails"}, '
    handlers = on_files("on_file_after_gate").replace("[", bad)
    with on_terminal(
        setup, columns=120, count=4, max_retries=0, handlers=handlers, producer__settle_unclosed="1500ms"
    ) as terminal:
        terminal.wait_shown(r"running 0  failed 0  dead 0  0/s  left 21  still being written 21", meanwhile=touch)
        terminal.wait_shown(r"done 0  running 4  failed 1  dead 1  0/s  left 20\b")
        setup.open_gate()
        out, shown = terminal.finish(3)
    assert "broker.opened" in shown, "every start names its broker"
    assert not any(word in shown for word in ("job.completed", "job.failed", "job.dead")), "the line counts them"
    found, ended, dead = out.splitlines()
    assert found.startswith("found 21, enqueued 21, already known 0 in ")
    assert ended.startswith("completed 20, retried 0, dead 1 in ")
    assert dead.startswith(f"dead: {setup.inbox}/bad\\nname.pdf: ValueError: broken"), "in one line"


def test_a_line_that_is_too_long_is_wrapped_and_not_cut(setup: WorkerSetup) -> None:
    for n in range(12):
        (setup.inbox / f"{n:02}").write_bytes(b"x")
    with on_terminal(setup, handlers=on_files("on_file"), producer__rate_limit_per_sec=5) as terminal:
        _, shown = terminal.finish()
    assert all(word in shown for word in ("held", "producer.rate_limit_per_sec", "jobqueue:rate_limit:producer"))


def test_the_first_ctrl_c_lets_jobs_finish_and_the_second_gives_them_back(sqlite_setup: WorkerSetup) -> None:
    setup = sqlite_setup
    gated = setup.enqueue("gated", "gated")
    stubborn = setup.enqueue("stubborn", *ids("stubborn", 2))
    waiting = setup.enqueue("note", *ids("note", 5))
    with on_terminal(setup, count=3, shutdown_timeout="60s") as terminal:
        setup.wait_logged("start", 3)
        terminal.interrupt()
        terminal.wait_shown("stopping: 3 running may finish; Ctrl-C again")
        setup.open_gate()
        setup.wait_for(State.COMPLETED, gated)
        terminal.interrupt()
        out, _ = terminal.finish(130)
    assert "interrupted: completed 1, retried 0, dead 0 in " in out
    assert "left 7 for a later run" in out
    assert_given_back(setup, [*stubborn, *waiting])


def test_a_signal_without_a_terminal_is_logged_and_leaves_nothing_to_recover(setup: WorkerSetup) -> None:
    jobs = setup.enqueue("stubborn", *ids("job", 4))
    worker = setup.worker(str(setup.inbox), "--once", role="all", wait=False, count=2, shutdown_timeout="60s")
    setup.wait_logged("start", 2)
    worker.signal(signal.SIGTERM)
    assert worker.wait_for("role.stopping")["signal"] == "SIGTERM"
    worker.signal(signal.SIGTERM)
    assert worker.wait(20) == 130
    assert "interrupted: completed 0, retried 0, dead 0 in" in worker.text()
    assert_given_back(setup, jobs)


def assert_given_back(setup: WorkerSetup, jobs: list[str]) -> None:
    assert setup.states(jobs) == {"pending": len(jobs)}
    assert {(setup.job(job).retries, setup.job(job).recoveries) for job in jobs} == {(0, 0)}
    assert not any(is_running(line.pid) for line in setup.handler_log("start"))
    census = setup.census()
    assert (census.running, census.heartbeats, census.drift) == (0, 0, 0)
    assert setup.broker.workers() == []
