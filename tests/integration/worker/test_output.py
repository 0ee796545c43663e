"""What a handler prints in a child process: events while it runs, and the tail in the record of a failed attempt."""

from __future__ import annotations

import json
import os
import socket
from typing import Any

import pytest

from fileq.core.job import State
from tests.support.program import Program, run
from tests.support.worker_setup import WorkerSetup

MODULE = r"""
import logging, os, socket, subprocess, sys, time
import fileq

log = logging.getLogger("parser")


@fileq.handler(type="speaks", max_retries=0)
def speaks(job, context):
    print("to stdout\x1b[31m")
    print("to stderr", file=sys.stderr)
    log.info("page %d", 3)
    log.error("no pages")
    subprocess.run(["echo", "from a program"])
    context.log.info("own.event")
    print("no newline", end="")
    raise ValueError("broken")


@fileq.handler(type="configures", max_retries=0)
def configures(job, context):
    logging.basicConfig(level=logging.DEBUG, format="%(levelname)s|%(message)s", force=True)
    log.debug("fine")
    log.warning("once")
    raise ValueError("broken")


@fileq.handler(type="dies", max_retries=0)
def dies(job, context):
    print("last words", flush=True)
    os._exit(3)


@fileq.handler(type="hangs", max_retries=0, timeout=1.0)
def hangs(job, context):
    print("before the loop")
    time.sleep(60)


@fileq.handler(type="shares", max_retries=0)
def shares(job, context):
    # Another process gets stdout of this one, and keeps it open.
    with socket.socket(socket.AF_UNIX) as other:
        other.connect("holder.socket")
        print("shared")
        socket.send_fds(other, [b"x"], [1])
        other.recv(1)
    if job.payload == "dies":
        os._exit(3)
    raise ValueError("broken")


@fileq.handler(type="succeeds")
def succeeds(job, context):
    print("fine " + job.id)


@fileq.handler(type="complains", max_retries=0)
def complains(job, context):
    print("wrong " + job.id)
    raise ValueError("broken")


@fileq.handler(type="floods", max_retries=0)
def floods(job, context):
    for _ in range(300):
        os.write(1, b"x" * 99 + b"\n" + b"y" * 65436 + b"\n")
    print("the end")
    raise ValueError("broken")
"""


def started(setup: WorkerSetup, **settings: object) -> Program:
    (setup.directory / "speaking.py").write_text(MODULE)
    return setup.worker(count=1, handlers='[{type: unused, use: "speaking:complains"}]', max_recoveries=0, **settings)


def shown(setup: WorkerSetup, id: str, *options: str) -> Any:
    answer = run("show", id, *options, cwd=setup.directory, settings=setup.settings).stdout
    return json.loads(answer) if options else answer


def test_printed_lines_are_events_and_the_failed_attempt_keeps_them(each_setup: WorkerSetup) -> None:
    program = started(each_setup)
    each_setup.enqueue("speaks", "job-1")
    each_setup.wait_for(State.DEAD, ["job-1"])
    program.wait_for("job.dead")
    lines = program.events("handler.printed")
    assert [(line["text"], line["level"], line.get("logger")) for line in lines] == [
        ("to stdout\x1b[31m", "info", None),
        ("to stderr", "info", None),
        ("page 3", "info", "parser"),
        ("no pages", "error", "parser"),
        ("from a program", "info", None),
        ("no newline", "info", None),
    ]
    assert {(line["job_id"], line["type"]) for line in lines} == {("job-1", "speaks")}
    assert len(program.events("own.event")) == 1
    history = shown(each_setup, "job-1", "--json")
    texts = [line["text"] for line in lines]
    assert history["attempts"][0]["output"].splitlines() == texts
    assert history["attempts"][-1]["output"].splitlines() == texts
    readable = shown(each_setup, "job-1")
    assert "no pages" in readable
    assert "\x1b[31m" not in readable
    listed = run("dlq", "list", "--json", cwd=each_setup.directory, settings=each_setup.settings).stdout
    assert json.loads(listed)["jobs"][0]["attempts"][-1]["output"].splitlines() == texts


@pytest.mark.parametrize(
    ("type", "output"),
    [("configures", "DEBUG|fine\nWARNING|once"), ("dies", "last words"), ("hangs", "before the loop")],
)
def test_the_tail_is_kept_however_the_attempt_ends(each_setup: WorkerSetup, type: str, output: str) -> None:
    started(each_setup)
    each_setup.enqueue(type, "job-1")
    each_setup.wait_for(State.DEAD, ["job-1"])
    assert [attempt.output for attempt in each_setup.record("job-1").attempts] == [output]


@pytest.mark.parametrize("end", ["dies", "raises"])
def test_a_process_that_keeps_the_pipe_open_holds_up_nothing(
    setup: WorkerSetup, monkeypatch: pytest.MonkeyPatch, end: str
) -> None:
    """The test is that process: the fork server kills those below it."""
    monkeypatch.chdir(setup.directory)  # the path of a socket must be short
    program = started(setup)
    with socket.socket(socket.AF_UNIX) as server:
        server.bind("holder.socket")
        server.listen()
        server.settimeout(20)
        setup.enqueue("shares", "shares", payload=end)
        with server.accept()[0] as child:
            _, (pipe,), _, _ = socket.recv_fds(child, 1, 1)
            child.sendall(b"x")
    with open(pipe, "wb", buffering=0):
        setup.enqueue("complains", "job-2")
        setup.wait_for(State.DEAD, ["shares", "job-2"])
        assert [setup.record(id).attempts[0].output for id in ("shares", "job-2")] == ["shared", "wrong job-2"]
        assert program.stop() == 0
        with pytest.raises(BrokenPipeError):
            os.write(pipe, b"too late\n")


def test_tasks_of_one_child_are_not_mixed_up_and_a_completed_job_keeps_nothing(setup: WorkerSetup) -> None:
    program = started(setup, circuit_breaker__enabled="false")
    ids = [f"job-{n}" for n in range(20)]
    for number, id in enumerate(ids):
        setup.enqueue("complains" if number % 2 else "succeeds", id)
    setup.wait_ended(ids)
    outputs = [setup.record(id).attempts[0].output for id in ids]
    assert outputs == [f"wrong {id}" if n % 2 else "" for n, id in enumerate(ids)]
    program.wait_for("handler.printed", count=len(ids))
    assert all(line["text"].endswith(f" {line['job_id']}") for line in program.events("handler.printed"))


def test_a_flood_is_bounded_and_counted(each_setup: WorkerSetup) -> None:
    program = started(each_setup)
    each_setup.enqueue("floods", "job-1")
    each_setup.wait_for(State.DEAD, ["job-1"])
    output = each_setup.record("job-1").attempts[0].output
    assert output.endswith("\nthe end")
    assert len(output.encode()) <= 8192
    program.wait_for("job.dead")
    lines = program.events("handler.printed")
    skipped = sum(line["lines"] for line in program.events("handler.output_skipped"))
    assert len(lines) + skipped == 601
    assert max(len(line["text"]) for line in lines) == 4097


def test_what_a_command_prints_is_logged_and_kept(each_setup: WorkerSetup) -> None:
    route = '{type: shell, command: [sh, -c, "echo out; echo err >&2; exit 3"], max_retries: 0}'
    program = each_setup.worker(count=1, handlers=f"[{route}]")
    each_setup.enqueue("shell", "job-1")
    each_setup.wait_for(State.DEAD, ["job-1"])
    assert sorted(each_setup.record("job-1").attempts[0].output.splitlines()) == ["err", "out"]
    assert sorted(line["text"] for line in program.events("handler.printed")) == ["err", "out"]


def test_without_capture_handlers_print_to_stderr_of_the_worker(setup: WorkerSetup) -> None:
    program = started(setup, capture_output="false")
    setup.enqueue("complains", "job-1")
    setup.wait_for(State.DEAD, ["job-1"])
    assert "wrong job-1\n" in program.text()
    assert "handler.printed" not in program.text()
    assert setup.record("job-1").attempts[0].output == ""


def test_without_capture_commands_print_to_stderr_of_the_worker(each_setup: WorkerSetup) -> None:
    route = '{type: shell, command: [sh, -c, "echo said; exit 3"], max_retries: 0}'
    program = each_setup.worker(count=1, handlers=f"[{route}]", capture_output="false")
    each_setup.enqueue("shell", "job-1")
    each_setup.wait_for(State.DEAD, ["job-1"])
    assert "said" in program.text().splitlines()
    assert "handler.printed" not in program.text()
