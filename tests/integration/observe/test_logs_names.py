"""Log lines of the real program name the job's file or type, and fit a terminal of 100 columns."""

from __future__ import annotations

import re

import pytest

from fileq.core.job import State
from tests.support.program import command
from tests.support.terminal import Terminal
from tests.support.waiting import wait_until
from tests.support.worker_setup import WorkerSetup

ROUTES = '[{match: "**/*.bad", use: "worker_handlers:fails"}, {match: "**/*", use: "worker_handlers:note"}]'


def test_every_line_about_a_job_names_its_file_or_its_type(each_setup: WorkerSetup) -> None:
    setup = each_setup
    path = setup.inbox / "a.pdf"
    path.write_bytes(b"x")
    program = setup.worker(role="all", count=1, observability__log_level="debug", handlers=ROUTES)
    setup.enqueue("fails_twice", "job-1")
    setup.wait_for(State.COMPLETED, ["job-1"])
    wait_until(lambda: len(program.events("job.completed")) == 2, 30)
    lines = [line for line in program.logs() if "job_id" in line]
    assert {"job.produced", "job.claimed", "job.failed", "job.completed"} <= {line["event"] for line in lines}
    for line in lines:
        named = (line.get("filepath"), line.get("type"))
        assert named == ((None, "fails_twice") if line["job_id"] == "job-1" else (str(path), None)), line


def test_the_line_of_the_start_names_directory_broker_and_handlers(each_setup: WorkerSetup) -> None:
    program = each_setup.worker(count=1, handlers=ROUTES)
    [started] = program.events("role.started")
    assert started["directory"] == str(each_setup.inbox)
    assert started["broker"] == each_setup.broker.kind
    assert started["handlers"][:2] == ["worker_handlers:fails", "worker_handlers:note"]
    assert started["routes"] >= len(started["handlers"])


def test_on_a_console_the_frequent_lines_fit_100_columns(sqlite_setup: WorkerSetup) -> None:
    setup = sqlite_setup
    (setup.directory / "talker.py").write_text("def talk(job, context): print('read 7 pages of it')\n")
    directory = setup.inbox / "a customer with a long name" / "2026"
    directory.mkdir(parents=True)
    (directory / "invoice-number-000000012.pdf").write_bytes(b"x")
    settings = {"observability__log_format": "console", "observability__log_level": "debug"}
    handlers = '[{match: "**/*", use: "talker:talk"}]'
    program = setup.worker(role="all", count=1, wait=False, handlers=handlers, **settings)
    wait_until(lambda: "job.completed" in program.text(), 30)
    wait_until(lambda: "role.started" in program.text(), 30)
    program.process.terminate()
    program.process.wait(30)
    lines = program.text().splitlines()
    of_job = ("job.produced", "job.claimed", "handler.printed", "job.completed")
    for event in ("broker.opened", "role.started", *of_job, "role.stopped"):
        [line] = [line for line in lines if f" {event} " in f"{line} "]
        assert len(line) <= 100, line
        if event in of_job:
            assert "number-000000012.pdf" in line


def test_on_a_terminal_what_a_handler_prints_is_shown_only_if_the_attempt_fails(sqlite_setup: WorkerSetup) -> None:
    setup = sqlite_setup
    for name in ("good.txt", "fails.bad"):
        (setup.inbox / name).write_bytes(b"x\n")
    routes = """[{match: "**/*.bad", command: [sh, "-c", "echo before the error; exit 1"], max_retries: 0},
        {match: "**/*", command: [wc, "-l", "{filepath}"]}]"""
    settings = setup.all_settings(handlers=routes, count=1, observability__metrics_port=0)
    terminal = Terminal(command("all", str(setup.inbox), settings=settings), setup.directory)
    try:
        for event in ("completed", "dead"):
            terminal.wait_shown(rf"job\.{event}.*\n")
        terminal.interrupt()
        _, text = terminal.finish()
    finally:
        terminal.close()
    assert "good.txt" in text
    [printed] = [line for line in text.splitlines() if "handler.printed" in line]
    assert "before the error" in printed


@pytest.mark.parametrize(
    ("columns", "shown"),
    [
        (80, "/invoice-number-000000012.pdf duration="),
        (140, "/customer/with/a/long/name/2026/invoice-number-000000012.pdf duration="),
    ],
)
def test_a_line_too_long_for_the_terminal_loses_details_first_and_never_the_name_of_the_file(
    sqlite_setup: WorkerSetup, columns: int, shown: str
) -> None:
    setup = sqlite_setup
    directory = setup.inbox / ("d" * 100) / "a/customer/with/a/long/name/2026"
    directory.mkdir(parents=True)
    (directory / "invoice-number-000000012.pdf").write_bytes(b"x")
    settings = setup.all_settings(handlers=ROUTES, count=1, observability__metrics_port=0)
    terminal = Terminal(command("all", str(setup.inbox), settings=settings), setup.directory, columns)
    try:
        terminal.wait_shown(r"job\.completed.*\n")
        terminal.interrupt()
        _, text = terminal.finish()
    finally:
        terminal.close()
    lines = [re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", line) for line in re.split(r"[\r\n]+", text)]
    [line] = [line for line in lines if "invoice-number" in line]
    assert " job.completed " in line, "one line for each file"
    assert shown in line
    assert len(line) <= columns, line
