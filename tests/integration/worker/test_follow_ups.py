"""Follow-ups, outputs, middleware and hooks with the installed program, in both isolations, on each kind of broker."""

from __future__ import annotations

import json
import os
import re
from collections import Counter

import pytest

from fileq.core.job import State
from fileq.core.outcome import follow_up_id
from tests.support.program import Program, run
from tests.support.waiting import wait_until
from tests.support.worker_setup import WorkerSetup, is_running

# A module beside the handlers of all worker tests.
PIPELINE = """
import os
import fileq
from worker_handlers import HERE, log

@fileq.middleware
def around(job, context, call):
    log("around", job.id)
    return call()

@fileq.hook("job.started", "job.completed", "job.dead")
def tell(event):
    log(event.name, event.job_id)
    raise ValueError("this changes nothing")

@fileq.hook("job.completed")
def hang(event):
    if event.type == "hangs_hooks":
        log("hook hangs".replace(" ", "_"), event.job_id)
        import time
        time.sleep(3600)

@fileq.handler(type="split", on_completed="told")
def split(job, context):
    path = os.path.join(HERE, "in", job.id + ".part")
    with open(path, "w") as file:
        file.write("part")
    context.output(path)
    context.enqueue_file(path)
    return context.enqueue("note", {"from": job.id}, priority="high")

@fileq.handler(type="split_in_thread", on_completed="told", isolation="thread")
def split_in_thread(job, context):
    return split(job, context)

@fileq.handler(type="fails_late", max_retries=0, on_dead="told")
def fails_late(job, context):
    context.enqueue("note")
    raise ValueError("too late")

@fileq.handler(type="lost", on_dead="told")
def lost(job, context):
    context.enqueue("note")
    log("start", job.id)
    while True:
        context.cancelled.wait(60)

@fileq.handler(type="retried", max_retries=2)
def retried(job, context):
    if context.attempt < 3:
        raise ValueError("not yet")

@fileq.handler(type="retried_in_thread", max_retries=2, isolation="thread")
def retried_in_thread(job, context):
    retried(job, context)

@fileq.handler(type="told")
def told(job, context):
    log("told", job.id)

@fileq.handler(type="hangs_hooks")
def hangs_hooks(job, context):
    pass

@fileq.handler("**/*.part")
def on_part(job, context):
    log("part", job.id)
"""
SETTINGS = {"imports": "[worker_handlers, pipeline]", "handlers": "[{type: list, command: [ls]}]"}


@pytest.fixture
def pipeline(each_setup: WorkerSetup) -> WorkerSetup:
    (each_setup.directory / "pipeline.py").write_text(PIPELINE)
    return each_setup


def worker_of(setup: WorkerSetup, **settings: object) -> Program:
    return setup.worker(count=2, **SETTINGS, **settings)


def follow_ups_of(id: str) -> list[str]:
    return [follow_up_id(id, 1), follow_up_id(id, 2), follow_up_id(id, "on_completed")]


def show(setup: WorkerSetup, *words: str) -> str:
    ended = run(*words, cwd=setup.directory, settings={**setup.settings, "producer.scan_dir": setup.inbox})
    assert ended.returncode == 0, ended.stderr
    return ended.stdout


def test_follow_ups_have_ids_that_the_handler_knows_in_both_isolations(pipeline: WorkerSetup) -> None:
    setup = pipeline
    parents = [*setup.enqueue("split", "a"), *setup.enqueue("split_in_thread", "b")]
    worker = worker_of(setup)
    setup.wait_for(State.COMPLETED, [*parents, *(id for parent in parents for id in follow_ups_of(parent))])
    for id in parents:
        of_file, of_type, on_completed = follow_ups_of(id)
        record = setup.record(id)
        assert record.follow_ups == (of_file, of_type, on_completed)
        assert json.loads(record.result) == of_type
        assert setup.job(of_file).path == os.fsencode(setup.inbox / f"{id}.part")
        assert setup.record(of_type).queue == "high"
        assert setup.job(on_completed).payload_value["result"] == of_type
    assert worker.metric("follow_ups_total") == 6
    assert worker.stop() == 0
    assert setup.census().drift == 0


def test_show_and_trace_name_what_a_job_made_and_what_made_it(pipeline: WorkerSetup) -> None:
    setup = pipeline
    setup.enqueue("split", "a")
    worker_of(setup)
    setup.wait_for(State.COMPLETED, ["a", *follow_ups_of("a")])
    part = setup.inbox / "a.part"
    assert [output.path for output in setup.record("a").outputs] == [os.fsencode(part)]
    first, second, _ = follow_ups_of("a")
    shown = show(setup, "show", "a")
    assert re.search(
        rf"^outputs +{re.escape(str(part))} \(4 bytes\)\n +job {first}\n +job {second}$", shown, re.MULTILINE
    )
    assert re.search(r"^created from +job a$", show(setup, "show", first), re.MULTILINE)
    data = json.loads(show(setup, "show", "a", "--json"))
    assert (data["parent_id"], data["follow_ups"]) == (None, follow_ups_of("a"))
    assert (data["outputs"][0]["path"], data["outputs"][0]["size"]) == (str(part), 4)
    assert json.loads(show(setup, "show", first, "--json"))["parent_id"] == "a"
    assert "created by job a (split)" in show(setup, "trace", str(part))
    assert json.loads(show(setup, "trace", str(part), "--json"))["made_by"]["job_id"] == "a"


def test_a_failed_attempt_leaves_only_its_on_dead(pipeline: WorkerSetup) -> None:
    setup = pipeline
    setup.enqueue("fails_late", "a")
    worker_of(setup)
    setup.wait_for(State.DEAD, ["a"])
    [told] = setup.record("a").follow_ups
    setup.wait_for(State.COMPLETED, [told])
    assert setup.job(told).payload_value["error"].startswith("ValueError: too late")


def test_middleware_runs_around_every_attempt_of_every_kind_of_handler(pipeline: WorkerSetup) -> None:
    setup = pipeline
    retried = [*setup.enqueue("retried", "a"), *setup.enqueue("retried_in_thread", "b")]
    setup.enqueue("list", "c")
    worker_of(setup)
    setup.wait_for(State.COMPLETED, [*retried, "c"])
    assert Counter(setup.logged("around")) == {"a": 3, "b": 3, "c": 1}


def test_hooks_see_the_start_and_the_end_of_each_job_and_their_errors_change_nothing(pipeline: WorkerSetup) -> None:
    setup = pipeline
    setup.enqueue("told", "a")
    setup.enqueue("list", "b")
    setup.enqueue("fails_late", "c")
    worker = worker_of(setup)
    setup.wait_for(State.COMPLETED, ["a", "b"])
    setup.wait_for(State.DEAD, ["c"])
    [told] = setup.record("c").follow_ups
    setup.wait_for(State.COMPLETED, [told])
    wait_until(lambda: set(setup.logged("job.completed")) == {"a", "b", told})
    assert set(setup.logged("job.started")) == {"a", "b", "c", told}
    assert setup.logged("job.dead") == ["c"]
    assert [line["hook"] for line in worker.events("hook.failed")] == ["pipeline:tell"], "one line a minute"


def test_a_job_that_a_reaper_buries_has_its_on_dead(pipeline: WorkerSetup) -> None:
    setup = pipeline
    setup.enqueue("lost", "a")
    worker = worker_of(setup, max_recoveries=0)
    setup.wait_logged("start", 1)
    worker.kill()
    worker_of(setup, max_recoveries=0)
    setup.wait_for(State.DEAD, ["a"])
    [told] = setup.record("a").follow_ups
    setup.wait_for(State.COMPLETED, [told])
    assert setup.job(told).payload_value["error"].startswith("its worker died")


def test_a_hook_that_hangs_stops_neither_jobs_nor_the_worker(pipeline: WorkerSetup) -> None:
    setup = pipeline
    setup.enqueue("hangs_hooks", "a")
    worker = worker_of(setup)
    setup.wait_logged("hook_hangs", 1)
    setup.enqueue("note", "b")
    setup.wait_for(State.COMPLETED, ["a", "b"])
    assert worker.stop() == 0
    assert not is_running(worker.process.pid)
    assert [line["hook"] for line in worker.events("hook.events_dropped")] == ["pipeline:hang"]


def test_before_enqueue_changes_and_vetoes_the_jobs_of_a_producer(each_setup: WorkerSetup) -> None:
    setup = each_setup
    (setup.directory / "gate_keeper.py").write_text(
        "import fileq\n\n"
        "@fileq.before_enqueue\n"
        "def check(job):\n"
        "    return None if job.filepath.endswith('.draft') else job.but(priority='high', max_retries=0)\n"
    )
    (setup.inbox / "a.txt").write_text("a")
    (setup.inbox / "a.draft").write_text("a")
    settings = setup.all_settings(producer__imports="[gate_keeper]")
    arguments = ("producer", str(setup.inbox), "--once", "--app-dir", str(setup.directory))
    ended = run(*arguments, cwd=setup.directory, settings=settings)
    assert ended.returncode == 0, ended.stderr
    assert "skipped 1 (vetoed)" in ended.stdout
    [raw] = setup.broker.peek("high", 10)
    assert (b"a.txt" in raw, b'"max_retries":0' in raw) == (True, True)
    assert setup.broker.peek("low", 10) == []
    (setup.directory / "gate_keeper.py").write_text("syntax error")
    assert run(*arguments, cwd=setup.directory, settings=settings).returncode == 2
