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
