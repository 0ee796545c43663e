"""`fileq enqueue --wait` and the payload in `fileq show`, on the real program."""

from __future__ import annotations

import json
import signal

from fileq.core.job import State
from tests.support.fault_proxy import FaultProxy
from tests.support.program import Program, run
from tests.support.servers import Server
from tests.support.waiting import wait_until
from tests.support.worker_setup import WorkerSetup

MODULE = """
import fileq


@fileq.handler(type="double")
def double(job, context):
    return {"doubled": job.payload["n"] * 2}


@fileq.handler(type="refuse")
def refuse(job, context):
    raise fileq.Permanent("never")


@fileq.handler(match="**/*.txt")
def size(job, context):
    return job.filesize
"""
HANDLERS = '[{type: unused, use: "waited:double"}]'


def working(setup: WorkerSetup) -> None:
    (setup.directory / "waited.py").write_text(MODULE)
    setup.worker(count=2, handlers=HANDLERS)


def waiting(setup: WorkerSetup, *options: str, **settings: object) -> Program:
    named = {key.replace("__", "."): value for key, value in settings.items()}
    line = ("enqueue", "--wait", "--type", "double", "--payload", '{"n": 21}', *options)
    return Program(*line, cwd=setup.directory, settings={**setup.settings, **named}, wait=False)


def has_job(setup: WorkerSetup, id: str, state: State) -> bool:
    record = setup.broker.records([id])[0]
    return record is not None and record.state is state


def test_the_result_of_a_completed_job_is_shown(each_setup: WorkerSetup) -> None:
    working(each_setup)
    with waiting(each_setup, "--id", "job-1") as program:
        assert program.wait(30) == 0
        assert program.text().splitlines() == ["job-1", 'job-1 completed: {"doubled":42}']
    again = waiting(each_setup, "--id", "job-1", "--json")
    with again:
        assert again.wait(30) == 0
        [job] = json.loads(again.text())["jobs"]
    assert (job["id"], job["fate"], job["status"], job["result"]) == (
        "job-1",
        "duplicate",
        "completed",
        {"doubled": 42},
    )
    shown = run("show", "job-1", "--json", cwd=each_setup.directory, settings=each_setup.settings)
    assert json.loads(shown.stdout)["payload"] == {"n": 21}
    readable = run("show", "job-1", cwd=each_setup.directory, settings=each_setup.settings).stdout
    facts = [line.split() for line in readable.splitlines()]
    assert ["payload", '{"n":21}'] in facts
    assert ["result", '{"doubled":42}'] in facts


def test_a_dead_job_is_exit_code_3_and_every_job_is_shown(each_setup: WorkerSetup) -> None:
    working(each_setup)
    paths = [each_setup.inbox / name for name in ("a.txt", "b.unknown")]
    for path in paths:
        path.write_bytes(b"12345")
    settings = {**each_setup.settings, "producer.scan_dir": each_setup.inbox}
    ended = run("enqueue", "--wait", "--json", *map(str, paths), cwd=each_setup.directory, settings=settings)
    assert ended.returncode == 3
    first, second = json.loads(ended.stdout)["jobs"]
    assert (first["status"], first["result"], first["error"]) == ("completed", 5, None)
    assert (second["status"], second["result"]) == ("dead", None)
    assert "no handler" in second["error"]


def test_a_cancelled_job_is_exit_code_1(each_setup: WorkerSetup) -> None:
    with waiting(each_setup, "--id", "job-1") as program:
        wait_until(lambda: has_job(each_setup, "job-1", State.PENDING), 20)
        each_setup.broker.cancel(["job-1"])
        assert program.wait(20) == 1
        assert program.text().splitlines() == ["job-1", "job-1 cancelled: cancelled"]


def test_a_wait_says_what_the_job_waits_for(each_setup: WorkerSetup) -> None:
    setup = each_setup
    setup.broker.pause("low")
    with waiting(setup, "--id", "job-1") as program:
        wait_until(lambda: "still waiting: no worker is running" in program.text(), 10)
        assert "still waiting: queue low is paused; 'fileq resume low' resumes it" in program.text()
        program.signal(signal.SIGINT)
        assert program.wait(10) == 130


def test_ctrl_c_leaves_the_job_queued(each_setup: WorkerSetup) -> None:
    with waiting(each_setup, "--id", "job-1") as program:
        wait_until(lambda: "job-1" in program.text(), 20)
        program.signal(signal.SIGINT)
        assert program.wait(20) == 130
        assert "they stay enqueued" in program.text()
    assert has_job(each_setup, "job-1", State.PENDING)


def test_an_outage_does_not_end_the_wait(setup: WorkerSetup, valkey: Server) -> None:
    with (
        FaultProxy(valkey.port) as proxy,
        waiting(setup, "--id", "job-1", redis__addr=f"127.0.0.1:{proxy.port}") as program,
    ):
        wait_until(lambda: "job-1" in program.text(), 20)
        proxy.reset_all()
        working(setup)
        setup.wait_for(State.COMPLETED, ["job-1"])
        assert program.wait(30) == 0
        assert "connected again" in program.text()
        assert 'job-1 completed: {"doubled":42}' in program.text()
