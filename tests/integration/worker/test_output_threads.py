"""What a handler prints in a thread of the worker: events while it runs, and the tail in a failed attempt."""

from __future__ import annotations

import pytest

from fileq.core.job import State
from tests.support.program import Program, run
from tests.support.worker_setup import WorkerSetup

MODULE = r"""
import asyncio, logging, sys, threading, time
import fileq

logging.basicConfig(level=logging.INFO, format="%(message)s")
log = logging.getLogger("parser")
together = threading.Barrier(2)


def speaks(job, context):
    print("to stdout")
    print("to stderr", file=sys.stderr)
    log.info("page %d", 3)
    log.error("no pages")
    sys.stdout.buffer.write(b"bytes\n")
    sys.stdout.writelines(["several\n", "lines\n"])
    context.log.info("own.event")
    print(sys.stdout.isatty(), end="")
    raise ValueError("broken")


async def awaits(job, context):
    print("before")
    await asyncio.to_thread(print, "in a thread")
    log.info("after")
    raise ValueError("broken")


def hangs(job, context):
    print("before the wait", end="")
    context.cancelled.wait()
    time.sleep(60)


def prints_beside_another(job, context):
    for number in range(20):
        together.wait(10)
        print(job.id, number)
    if job.id == "bad":
        raise ValueError("broken")
"""
TYPES = ("speaks", "awaits", "prints_beside_another")


def started(setup: WorkerSetup, **settings: object) -> Program:
    (setup.directory / "speaking.py").write_text(MODULE)
    routes = [f'{{type: {t}, use: "speaking:{t}", isolation: thread, max_retries: 0}}' for t in TYPES]
    hangs = '{type: hangs, use: "speaking:hangs", isolation: thread, max_retries: 0, timeout: 1s}'
    shell = '{type: shell, command: [sh, -c, "echo out; exit 3"], isolation: thread, max_retries: 0}'
    return setup.worker(count=2, handlers=f"[{', '.join([*routes, hangs, shell])}]", **settings)


def test_printed_lines_are_events_and_the_failed_attempt_keeps_them(each_setup: WorkerSetup) -> None:
    program = started(each_setup)
    each_setup.enqueue("speaks", "job-1")
    each_setup.wait_for(State.DEAD, ["job-1"])
    program.wait_for("job.dead")
    lines = program.events("handler.printed")
    assert [(line["text"], line["level"], line.get("logger")) for line in lines] == [
        ("to stdout", "info", None),
        ("to stderr", "info", None),
        ("page 3", "info", "parser"),
        ("no pages", "error", "parser"),
        ("bytes", "info", None),
        ("several", "info", None),
        ("lines", "info", None),
        ("False", "info", None),
    ]
    assert {(line["job_id"], line["type"]) for line in lines} == {("job-1", "speaks")}
    assert len(program.events("own.event")) == 1
    texts = [line["text"] for line in lines]
    assert each_setup.record("job-1").attempts[0].output.splitlines() == texts
    readable = run("show", "job-1", cwd=each_setup.directory, settings=each_setup.settings).stdout
    assert "no pages" in readable


@pytest.mark.parametrize(
    ("type", "output"),
    [("awaits", "before\nin a thread\nafter"), ("hangs", "before the wait"), ("shell", "out")],
)
def test_the_tail_is_kept_however_the_attempt_ends(setup: WorkerSetup, type: str, output: str) -> None:
    program = started(setup)
    setup.enqueue(type, "job-1")
    setup.wait_for(State.DEAD, ["job-1"])
    assert [attempt.output for attempt in setup.record("job-1").attempts] == [output]
    assert [line["text"] for line in program.events("handler.printed")] == output.splitlines()


def test_two_tasks_at_the_same_time_are_not_mixed_up(setup: WorkerSetup) -> None:
    program = started(setup)
    setup.enqueue("prints_beside_another", "good", "bad")
    setup.wait_ended(["good", "bad"])
    wanted = {id: [f"{id} {number}" for number in range(20)] for id in ("good", "bad")}
    assert setup.record("bad").attempts[0].output.splitlines() == wanted["bad"]
    assert setup.record("good").attempts[0].output == ""
    lines = program.events("handler.printed")
    assert {id: [line["text"] for line in lines if line["job_id"] == id] for id in wanted} == wanted


def test_without_capture_handlers_print_to_the_streams_of_the_worker(setup: WorkerSetup) -> None:
    program = started(setup, capture_output="false")
    setup.enqueue("speaks", "job-1")
    setup.wait_for(State.DEAD, ["job-1"])
    assert "to stderr\n" in program.text()
    assert "handler.printed" not in program.text()
    assert setup.record("job-1").attempts[0].output == ""
