"""A type that no task takes, in `enqueue`, `schedule add`, `batch create` and `config check --handlers`."""

from __future__ import annotations

from pathlib import Path
from subprocess import CompletedProcess

import pytest
from msgspec.structs import replace

import fileq
from fileq.core.job import State
from tests.support.api_client import ADMIN_KEY, served_broker
from tests.support.program import run
from tests.support.waiting import wait_until
from tests.support.worker_setup import WorkerSetup

TASKS = """
import fileq

@fileq.task("thumbnail")
def thumbnail(job: fileq.JobView, context: fileq.Context) -> str:
    return "made"
"""


def typed(setup: WorkerSetup, *words: str) -> CompletedProcess[str]:
    ended = run(*words, cwd=setup.directory, settings=setup.settings)
    assert ended.returncode == 0, ended.stderr
    return ended


def test_a_type_that_no_running_worker_takes_is_enqueued_with_a_warning(each_setup: WorkerSetup) -> None:
    setup = each_setup
    (setup.directory / "pictures.py").write_text(TASKS)
    assert typed(setup, "enqueue", "--type", "thumbnial", "--delay", "1h").stderr == "", "nothing is known yet"
    with setup.worker(imports="pictures") as worker:
        wait_until(lambda: any(view.is_alive for view in setup.broker.workers()), 20)
        assert typed(setup, "enqueue", "--type", "thumbnail", "--id", "right").stderr == ""
        wrong = typed(setup, "enqueue", "--type", "thumbnial", "--id", "wrong", "--delay", "1h", "--json")
        assert " ".join(wrong.stderr.split()) == (
            "fileq: no running worker takes jobs of type 'thumbnial'; they will die when a worker claims them; "
            "did you mean 'thumbnail'?"
        )
        assert setup.record("wrong").state is State.SCHEDULED, "another machine may have the task"
        assert typed(setup, "enqueue", "--type", "thumbnial", "--delay", "1h", "-q").stderr == ""
        document = '{"type": "thumbnial", "delay": "1h"}'
        assert typed(setup, "enqueue", document, document).stderr == wrong.stderr, "the same, once"
        added = typed(setup, "schedule", "add", "nightly", "@daily", "--type", "report")
        assert "type 'report'" in added.stderr
        assert " added; " in added.stdout
        assert typed(setup, "schedule", "add", "often", "@daily", "--type", "thumbnail").stderr == ""
        assert typed(setup, "schedule", "add", "scans", "@daily", "--scan", str(setup.inbox)).stderr == ""
        assert "type 'load'" in typed(setup, "batch", "create", "--then", "load", "--catch", "thumbnail").stderr
        setup.wait_for(State.COMPLETED, ["right"])
        assert worker.stop() == 0


def test_jobs_that_no_running_worker_takes_are_a_warning_to_every_caller(
    each_setup: WorkerSetup, caplog: pytest.LogCaptureFixture
) -> None:
    setup = each_setup
    (setup.directory / "pictures.py").write_text(TASKS)
    stray, taken = setup.inbox / "stray.csv", setup.inbox / "taken.txt"
    for file in (stray, taken):
        file.write_text("x")
    about_file = (
        f"no running worker takes '{stray}'; its job will die when a worker claims it; add a route that matches it"
    )
    about_type = "no running worker takes jobs of type 'thumbnial'; they will die when a worker claims them; "
    producer = replace(setup.config.producer, scan_dir=str(setup.inbox))
    config = replace(setup.config, producer=producer, server=replace(setup.config.server, port=0, api_key=ADMIN_KEY))
    with fileq.Client(config) as client:
        assert client.enqueue("thumbnial", delay="1h").warning == "", "nothing is known yet"
    routes = '[{match: "**/*.txt", command: ["true"]}]'
    with setup.worker(imports="pictures", handlers=routes) as worker, served_broker(config, setup.broker) as port:
        wait_until(lambda: any(view.is_alive for view in setup.broker.workers()), 20)
        place = ("--set", f"producer.scan_dir={setup.inbox}", "--delay", "1h")
        assert typed(setup, "enqueue", str(taken), *place).stderr == ""
        assert " ".join(typed(setup, "enqueue", str(stray), *place).stderr.split()) == f"fileq: {about_file}"
        assert typed(setup, "enqueue", str(stray), *place, "-q").stderr == ""
        clients = fileq.Client(config), fileq.Client(f"http://127.0.0.1:{port}", key=ADMIN_KEY)
        for client in clients:
            caplog.clear()
            with client:
                assert (client.enqueue("thumbnail").warning, client.enqueue_file(taken).warning) == ("", "")
                assert caplog.messages == []
                typo, file = client.enqueue_many([fileq.Call("thumbnial", delay="1h"), stray])
                assert typo.warning == f"{about_type}did you mean 'thumbnail'?"
                assert file.warning == about_file
                again = client.enqueue("thumbnial", delay="1h"), client.enqueue_file(stray, delay="1h")
                assert [handle.warning for handle in again] == [typo.warning, about_file]
                assert caplog.messages == [typo.warning, about_file], "each is logged once, not for every job"
        caplog.clear()
        with fileq.Client(config) as direct:
            direct.batch(then="thumbnial", catch="thumbnail", finally_=fileq.Call("thumbnali"))
            direct.schedule("nightly", "@daily", "thumbnaill")
            direct.schedule("weekly", "@weekly", "thumbnail")
        named = [message.split("'")[1] for message in caplog.messages]
        assert named == ["thumbnial", "thumbnali", "thumbnaill"], "callbacks and schedules are checked as jobs are"
        assert worker.stop() == 0


def test_config_check_refuses_a_schedule_whose_type_no_task_takes(tmp_path: Path) -> None:
    (tmp_path / "pictures.py").write_text(TASKS)
    config = tmp_path / "config.yaml"
    text = "imports: [pictures]\nproducer: {scan_dir: .}\nschedules: {nightly: {cron: '@daily', type: TYPE}}\n"
    config.write_text(text.replace("TYPE", "thumbnail"))
    assert run("config", "check", "--handlers", cwd=tmp_path).returncode == 0
    config.write_text(text.replace("TYPE", "thumbnial"))
    assert run("config", "check", cwd=tmp_path).returncode == 0, "the tasks are unknown without an import"
    ended = run("config", "check", "--handlers", cwd=tmp_path)
    assert ended.returncode == 2
    problem = "schedules.nightly: no task or route takes jobs of type 'thumbnial': they would be dead; did you mean"
    assert problem in " ".join(ended.stderr.split())
    worker = run("worker", "--once", cwd=tmp_path)
    assert worker.returncode == 0, "another worker may have the task"
    assert "schedules.nightly: no task or route takes" in worker.stderr


MONTHLY = """
import fileq
from msgspec import Struct

print("imported")

class Month(Struct):
    month: int

@fileq.task("report")
def report(job: fileq.JobView[Month], context: fileq.Context) -> int:
    return job.payload.month
"""
UNFIT = "task 'report' takes a payload of type Month: Expected `int`, got `str` - at `$.month`"


def test_a_payload_that_its_task_does_not_take_is_a_warning(sqlite_setup: WorkerSetup) -> None:
    setup = sqlite_setup
    (setup.directory / "monthly.py").write_text(MONTHLY)
    config = setup.directory / "config.yaml"
    config.write_text("imports: [monthly]\nproducer: {scan_dir: .}\n")
    right, wrong = '{"month": 1}', '{"month": "May"}'
    for words in (
        ("enqueue", "--type", "report", "--payload"),
        ("schedule", "add", "monthly", "@monthly", "--type", "report", "--payload"),
    ):
        assert "takes a payload" not in typed(setup, *words, right).stderr
        ended = typed(setup, *words, wrong)
        assert f"{UNFIT}; its jobs will die when a worker claims them" in " ".join(ended.stderr.split())
        assert "imported" not in ended.stdout
        assert typed(setup, *words, wrong, "-q").stderr == ""
    assert UNFIT in " ".join(typed(setup, "schedule", "run", "monthly").stderr.split())


def test_a_callback_whose_task_needs_a_payload_is_a_warning(sqlite_setup: WorkerSetup) -> None:
    setup = sqlite_setup
    (setup.directory / "monthly.py").write_text(MONTHLY)
    (setup.directory / "config.yaml").write_text("imports: [monthly]\nproducer: {scan_dir: .}\n")
    (setup.directory / "a.txt").touch()
    for words in ("batch", "create"), ("enqueue", "a.txt", "--batch", "night"):
        for kind in "--then", "--catch", "--finally":
            shown = " ".join(typed(setup, *words, kind, "report").stderr.split())
            assert "task 'report' needs a payload of type Month" in shown
            assert "its jobs will die when a worker claims them" in shown
            assert typed(setup, *words, kind, "report", "-q").stderr == ""


def test_schedule_run_warns_of_a_type_that_no_route_takes(sqlite_setup: WorkerSetup) -> None:
    setup = sqlite_setup
    (setup.directory / "config.yaml").write_text("handlers: [{type: report, use: 'fileq.handlers:simulate'}]\n")
    assert "type 'reprot'" in typed(setup, "schedule", "add", "monthly", "@monthly", "--type", "reprot").stderr
    assert "type 'reprot'" in typed(setup, "schedule", "run", "monthly").stderr


def test_config_check_refuses_a_schedule_whose_payload_its_task_does_not_take(tmp_path: Path) -> None:
    (tmp_path / "monthly.py").write_text(MONTHLY)
    config = tmp_path / "config.yaml"
    schedule = "{cron: '@monthly', type: report, payload: {month: M}}"
    text = f"imports: [monthly]\nproducer: {{scan_dir: .}}\nschedules: {{m: {schedule}}}\n"
    config.write_text(text.replace("M}", "1}"))
    assert run("config", "check", "--handlers", cwd=tmp_path).returncode == 0
    config.write_text(text.replace("M}", "May}"))
    ended = run("config", "check", "--handlers", cwd=tmp_path)
    assert ended.returncode == 2
    assert f"schedules.m: {UNFIT}; its jobs would be dead" in " ".join(ended.stderr.split())
    worker = run("worker", "--once", cwd=tmp_path)
    assert worker.returncode == 0, "another worker may have another version of the task"
    assert "schedules.m: task 'report' takes a payload of type Month" in worker.stderr
