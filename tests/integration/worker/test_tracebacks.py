"""A failed attempt of the real program keeps its traceback: `fileq show` prints it, the dead letter has it."""

from __future__ import annotations

import json

import pytest

from fileq.core.job import State
from tests.support.program import run
from tests.support.worker_setup import WorkerSetup

MODULE = """
import fileq


def parse(text):
    return int(text)


def fail(job, context):
    try:
        parse("x")
    except ValueError as error:
        raise RuntimeError(f"attempt {context.attempt}") from error


fileq.handler(type="in_child", max_retries=1)(fail)
fileq.handler(type="in_thread", max_retries=1, isolation="thread")(lambda job, context: fail(job, context))


@fileq.handler(type="async", max_retries=1)
async def later(job, context):
    fail(job, context)
"""


@pytest.mark.parametrize("type", ["in_child", "in_thread", "async"])
def test_the_traceback_of_a_dead_job_is_shown(each_setup: WorkerSetup, type: str) -> None:
    setup = each_setup
    (setup.directory / "failing.py").write_text(MODULE)
    setup.worker(count=1, handlers='[{type: unused, use: "failing:fail"}]')
    setup.enqueue(type, "job-1")
    setup.wait_for(State.DEAD, ["job-1"])
    shown = run("show", "job-1", "--json", cwd=setup.directory, settings=setup.settings)
    attempts = json.loads(shown.stdout)["attempts"]
    assert [attempt["number"] for attempt in attempts] == [1, 2]
    for attempt in attempts:
        text = attempt["traceback"]
        assert "in parse" in text
        assert "ValueError: invalid literal for int()" in text
        assert text.splitlines()[-1] == f"RuntimeError: attempt {attempt['number']}"
        assert "/fileq/" not in text
        assert "asyncio" not in text
    readable = run("show", "job-1", cwd=setup.directory, settings=setup.settings).stdout
    assert readable.count("in parse") == 2
    assert "RuntimeError: attempt 2" in readable


@pytest.mark.parametrize("type", ["in_child", "in_thread"])
def test_a_traceback_shows_the_lines_that_ran_also_when_the_file_has_changed(
    sqlite_setup: WorkerSetup, type: str
) -> None:
    setup, module = sqlite_setup, sqlite_setup.directory / "failing.py"
    module.write_text(MODULE)
    setup.worker(count=1, handlers='[{type: unused, use: "failing:fail"}]')
    module.write_text(MODULE.replace("return int(text)", "return 0  # fixed"))
    setup.enqueue(type, "job-1")
    setup.wait_for(State.DEAD, ["job-1"])
    for attempt in setup.record("job-1").attempts:
        assert "return int(text)" in attempt.traceback
        assert "fixed" not in attempt.traceback


SLOW = """
import asyncio
import hashlib
import time
import fileq


def ask_the_server():
    while True:
        time.sleep(0.01)


def wait(job, context):
    print("asking")
    ask_the_server()


fileq.handler(type="in_child", max_retries=0, timeout=0.5)(wait)
fileq.handler(type="in_thread", max_retries=0, timeout=0.5, isolation="thread")(lambda job, context: wait(job, context))


async def ask_politely():
    await asyncio.sleep(60)


@fileq.handler(type="async", max_retries=0, timeout=0.5)
async def later(job, context):
    await ask_politely()


async def ask_rudely(job, context):
    time.sleep(5)


fileq.handler(type="async_blocked_in_thread", max_retries=0, timeout=0.5, isolation="thread")(ask_rudely)


@fileq.handler(type="in_c", max_retries=0, timeout=0.5)
def in_c(job, context):
    hashlib.pbkdf2_hmac("sha256", b"", b"", 10**9)
"""


@pytest.mark.parametrize(
    ("type", "place"),
    [
        ("in_child", "in ask_the_server"),
        ("in_thread", "in ask_the_server"),
        ("async", "in ask_politely"),
    ],
)
def test_a_job_that_timed_out_is_shown_with_the_place_where_its_handler_was(
    each_setup: WorkerSetup, type: str, place: str
) -> None:
    setup = each_setup
    (setup.directory / "slow.py").write_text(SLOW)
    setup.worker(count=1, handlers='[{type: unused, use: "slow:wait"}]')
    setup.enqueue(type, "job-1")
    setup.wait_for(State.DEAD, ["job-1"])
    [attempt] = setup.record("job-1").attempts
    assert attempt.error == "timed out after 500ms"
    assert attempt.output == ("" if type == "async" else "asking")
    assert place in attempt.traceback
    assert "/fileq/" not in attempt.traceback
    assert "<string>" not in attempt.traceback
    assert "threading.py" not in attempt.traceback
    shown = run("show", "job-1", cwd=setup.directory, settings=setup.settings).stdout
    assert place in shown
    assert ("await asyncio.sleep(60)" if type == "async" else "ask_the_server()") in shown


def test_a_coroutine_that_blocks_its_event_loop_is_found(sqlite_setup: WorkerSetup) -> None:
    setup = sqlite_setup
    (setup.directory / "slow.py").write_text(SLOW)
    setup.worker(count=1, handlers='[{type: unused, use: "slow:wait"}]')
    setup.enqueue("async_blocked_in_thread", "job-1")
    setup.wait_for(State.DEAD, ["job-1"])
    [attempt] = setup.record("job-1").attempts
    [line] = [line for line in attempt.traceback.splitlines() if " in " in line]
    assert line.endswith("in ask_rudely")


def test_a_handler_that_does_not_answer_is_killed_all_the_same(sqlite_setup: WorkerSetup) -> None:
    setup = sqlite_setup
    (setup.directory / "slow.py").write_text(SLOW)
    setup.worker(count=1, handlers='[{type: unused, use: "slow:wait"}]')
    setup.enqueue("in_c", "job-1")
    setup.wait_for(State.DEAD, ["job-1"])
    [attempt] = setup.record("job-1").attempts
    assert (attempt.error, attempt.traceback) == ("timed out after 500ms", "")
