"""What the real program writes: one line an event in the form that was asked for, also by the processes it starts."""

from __future__ import annotations

import json
import re
import subprocess

import pytest

from fileq.core.job import State
from tests.support.program import Program, command, environment, run
from tests.support.waiting import wait_until
from tests.support.worker_setup import WorkerSetup

TALKER = """
import fileq


def talk(job, context):
    context.log.debug("talker.whispered")
    context.log.info("talker.spoke", text="two\\nlines", odd="\\udcff", page=3)
    context.log.bind(part=1).warning("talker.shouted")
    try:
        raise ValueError("caught")
    except ValueError:
        context.log.exception("talker.stumbled")


@fileq.handler(type="child")
def in_child(job, context):
    talk(job, context)


@fileq.handler(type="thread", isolation="thread")
def in_thread(job, context):
    talk(job, context)
"""
SPOKEN = ["talker.whispered", "talker.spoke", "talker.shouted", "talker.stumbled"]


def talking(setup: WorkerSetup, **settings: object) -> Program:
    (setup.directory / "talker.py").write_text(TALKER)
    return Program(
        "worker",
        str(setup.inbox),
        "--app-dir",
        str(setup.directory),
        cwd=setup.directory,
        settings={**setup.all_settings(count=2, **settings), "imports": "talker"},
        wait="observability__log_level" not in settings or settings["observability__log_level"] == "debug",
    )


@pytest.mark.parametrize("isolation", ["child", "thread"])
@pytest.mark.parametrize(("level", "count"), [("debug", 4), ("warn", 2)])
def test_a_handlers_lines_have_the_level_and_the_form_of_all_others(
    sqlite_setup: WorkerSetup, isolation: str, level: str, count: int
) -> None:
    with talking(sqlite_setup, observability__log_level=level) as program:
        sqlite_setup.enqueue(isolation, "job-1")
        sqlite_setup.wait_for(State.COMPLETED, ["job-1"])
        lines = [line for line in program.logs() if line["event"].startswith("talker.")]
    assert [line["event"] for line in lines] == SPOKEN[-count:]
    assert {(line["job_id"], line["attempt"]) for line in lines} == {("job-1", 1)}
    assert all(re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d+Z", line["timestamp"]) for line in lines)
    shouted, stumbled = lines[-2:]
    assert (shouted["level"], shouted["part"], stumbled["level"]) == ("warning", 1, "error")
    assert "ValueError: caught" in stumbled["exception"]
    if level == "debug":
        assert (lines[1]["text"], lines[1]["odd"], lines[1]["page"]) == ("two\nlines", "\\udcff", 3)


def test_on_a_console_every_event_is_one_line_also_from_a_child(sqlite_setup: WorkerSetup) -> None:
    """But for tracebacks."""
    settings = {"observability__log_format": "console", "observability__log_level": "debug"}
    (sqlite_setup.directory / "talker.py").write_text(TALKER)
    with Program(
        "worker",
        str(sqlite_setup.inbox),
        "--app-dir",
        str(sqlite_setup.directory),
        cwd=sqlite_setup.directory,
        settings={**sqlite_setup.all_settings(count=1, **settings), "imports": "talker"},
        wait=False,
    ) as program:
        sqlite_setup.enqueue("child", "job-1")
        # A job can be done before the role says that it has started.
        wait_until(lambda: {"role.started", "job.completed"} <= set(re.findall(r"[a-z]+\.[a-z]+", program.text())), 30)
        text = program.text()
    for event in ("role.started", "job.claimed", *SPOKEN, "job.completed"):
        [line] = [line for line in text.splitlines() if event in line]
        assert not line.startswith("{")
    assert "text='two\\nlines'" in text or "text=two\\nlines" in text
    assert "Traceback (most recent call last)" in text


def test_every_transition_of_a_job_is_one_line(each_setup: WorkerSetup) -> None:
    setup = each_setup
    program = setup.worker(count=1, observability__log_level="debug")
    setup.enqueue("fails_twice", "job-1")
    setup.wait_for(State.COMPLETED, ["job-1"])
    program.wait_for("job.completed")
    lines = [line for line in program.logs() if line.get("job_id") == "job-1"]
    assert [line["event"] for line in lines] == [
        *("job.claimed", "job.failed"),
        *("job.claimed", "job.failed"),
        *("job.claimed", "job.completed"),
    ]
    assert all({"trace_id", "span_id", "worker_id"} <= line.keys() for line in lines)
    assert "job" not in lines[0]


def test_lines_of_many_processes_do_not_mix(sqlite_setup: WorkerSetup) -> None:
    with talking(sqlite_setup) as program:
        jobs = sqlite_setup.enqueue("child", *(f"job-{n}" for n in range(200)))
        sqlite_setup.wait_for(State.COMPLETED, jobs)
        lines = program.logs()  # each of them is JSON, or this fails
    assert sum(line["event"] == "talker.spoke" for line in lines) == 200


def test_try_writes_a_handlers_lines_too(sqlite_setup: WorkerSetup) -> None:
    (sqlite_setup.directory / "talker.py").write_text(TALKER)
    (sqlite_setup.inbox / "a").write_bytes(b"x")
    ended = run(
        "try",
        str(sqlite_setup.inbox / "a"),
        cwd=sqlite_setup.directory,
        settings={"handlers": '[{match: "**/*", use: "talker:talk"}]', "producer.scan_dir": sqlite_setup.inbox},
    )
    assert ended.returncode == 0
    lines = [json.loads(line) for line in ended.stderr.splitlines() if line.startswith("{")]
    assert [line["event"] for line in lines] == SPOKEN[1:]


def test_a_full_disk_below_the_log_stops_no_work(sqlite_setup: WorkerSetup) -> None:
    jobs = sqlite_setup.enqueue("note", *(f"job-{n}" for n in range(20)))
    settings = {"observability.metrics_port": 0, **sqlite_setup.all_settings(count=2)}
    with open("/dev/full", "w") as full:
        worker = subprocess.Popen(
            command("worker", str(sqlite_setup.inbox), "--app-dir", str(sqlite_setup.directory), settings=settings),
            cwd=sqlite_setup.directory,
            env=environment(),
            stderr=full,
        )
        with worker:
            sqlite_setup.wait_for(State.COMPLETED, jobs)
            assert worker.poll() is None
            worker.terminate()
