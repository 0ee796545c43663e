"""SIGHUP: a worker takes over its handlers and the settings that can change; running jobs finish with the old ones."""

from __future__ import annotations

import json
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from fileq.core.job import State
from tests.support.producer_setup import BrokerSetup
from tests.support.program import Program, run
from tests.support.waiting import wait_until
from tests.support.worker_setup import WorkerSetup

OLD = """
import os, time, fileq

@fileq.handler(type="which"{options})
def which(job, context):
    return "old"

@fileq.handler(type="waiting"{options})
def waiting(job, context):
    open("begun", "w").close()
    while not os.path.exists("go"):
        time.sleep(0.01)
    return "old"
"""
TASKS = """
import fileq

@fileq.task("greet"{options})
def greet(job: fileq.JobView[str], context: fileq.Context) -> str:
    return "hello " + job.payload

@fileq.task("part"{options})
def part(job: fileq.JobView[str], context: fileq.Context) -> str:
    return "goodbye " + job.payload
"""
NEW = OLD.replace("old", "the new one") + "\n\n@fileq.handler(type='added')\ndef added(job, context): return 1\n"
CONFIG = "imports: [app]\nworker: {count: 2, heartbeat_ttl: 3s}\nproducer: {scan_dir: in, settle: 1s}\n"


class Reloading:
    """A worker whose configuration file and handlers a test changes."""

    def __init__(self, setup: WorkerSetup, options: str) -> None:
        self.setup = setup
        self._options = options
        self.config = setup.directory / "config.yaml"
        self.write(OLD)
        self.config.write_text(CONFIG)
        self.program = Program("worker", cwd=setup.directory, settings=setup.settings)

    def write(self, module: str, name: str = "app") -> None:
        (self.setup.directory / f"{name}.py").write_text(module.replace("{options}", self._options))

    def reload(self, event: str = "config.reloaded") -> dict[str, Any]:
        count = len(self.program.events(event)) + 1
        self.program.signal(signal.SIGHUP)
        return self.program.wait_for(event, count=count)

    def result(self, type: str, id: str, payload: Any = None) -> Any:
        self.setup.enqueue(type, id, payload=payload)
        return self.finished(id)

    def workers(self) -> list[dict[str, Any]]:
        answer = run("workers", "--json", cwd=self.setup.directory, settings=self.setup.settings)
        return json.loads(answer.stdout)["workers"]  # type: ignore[no-any-return]

    def finished(self, id: str) -> Any:
        self.setup.wait_for(State.COMPLETED, [id])
        return json.loads(self.setup.record(id).result)


@pytest.fixture(params=["", ', isolation="thread"'], ids=["process", "thread"])
def reloading(request: pytest.FixtureRequest, each_setup: WorkerSetup) -> Iterator[Reloading]:
    made = Reloading(each_setup, request.param)
    with made.program:
        yield made


def test_new_handlers_are_used_and_running_jobs_finish_with_the_old_ones(reloading: Reloading) -> None:
    setup, directory = reloading.setup, reloading.setup.directory
    assert reloading.result("which", "a") == "old"
    setup.enqueue("waiting", "slow")
    [before] = reloading.workers()

    wait_until(lambda: (directory / "begun").exists(), 20)
    reloading.write(NEW)
    event = reloading.reload()
    assert event["changed"] == []
    assert event["routes"] == len(event["handlers"])
    assert {"app:which", "app:added"} <= set(event["handlers"])
    assert reloading.result("which", "b") == "the new one"
    assert reloading.result("added", "c") == 1
    assert reloading.program.readiness()[0] == 200
    assert [(w["started_at"], w["is_draining"], w["is_claiming"], w["busy"]) for w in reloading.workers()] == [
        (before["started_at"], True, False, 1),
        (before["started_at"], False, True, 0),
    ]
    (directory / "go").touch()
    assert reloading.finished("slow") == "old"
    assert setup.record("slow").state is State.COMPLETED
    assert reloading.program.stop() == 0
    assert not reloading.program.events("worker.failed")


def test_jobs_of_a_task_enqueued_before_and_after_a_reload_complete(reloading: Reloading) -> None:
    setup, directory = reloading.setup, reloading.setup.directory
    reloading.config.write_text(CONFIG.replace("[app]", "[app, duties]").replace("count: 2", "count: 1"))
    reloading.write(TASKS, "duties")
    assert {"duties:greet", "duties:part"} <= set(reloading.reload()["handlers"])
    setup.enqueue("waiting", "slow")  # takes the only slot: the next job waits across the reload
    wait_until(lambda: (directory / "begun").exists(), 20)
    setup.enqueue("greet", "before", payload="Ada")
    reloading.write(TASKS.replace("hello", "good day"), "duties")
    assert {"duties:greet", "duties:part"} <= set(reloading.reload()["handlers"])
    assert reloading.finished("before") == "good day Ada"
    assert reloading.result("greet", "after", "Bob") == "good day Bob"
    assert {"duties:greet", "duties:part"} <= set(reloading.reload()["handlers"])
    assert reloading.result("part", "again", "Eve") == "goodbye Eve"
    (directory / "go").touch()
    assert reloading.finished("slow") == "old"


def test_a_reload_that_would_lose_a_type_is_refused(reloading: Reloading) -> None:
    reloading.config.write_text(CONFIG.replace("[app]", "[app, duties]"))
    reloading.write(TASKS, "duties")
    reloading.reload()
    reloading.write("", "duties")
    [problem] = reloading.reload("config.refused")["problems"]
    assert "the types 'greet', 'part', which the modules no longer define" in problem
    assert reloading.result("greet", "a", "Ada") == "hello Ada"

    reloading.write("import nothing_else\n" + OLD)
    reloading.write("", "nothing_else")
    reloading.config.write_text(CONFIG.replace("[app]", "[app, nothing_else]"))
    assert "duties:greet" not in reloading.reload()["handlers"], "the configuration dropped the module"
    reloading.write(OLD.replace('type="which"', 'type="witch"'))
    assert "the type 'which'" in reloading.reload("config.refused")["problems"][0]
    assert reloading.result("which", "b") == "old"


def test_a_stop_also_ends_the_jobs_of_old_handlers(reloading: Reloading) -> None:
    setup = reloading.setup
    setup.enqueue("waiting", "slow")
    wait_until(lambda: (setup.directory / "begun").exists(), 20)
    reloading.reload()
    reloading.program.signal(signal.SIGTERM)
    reloading.program.wait_for("worker.drain_started")
    assert reloading.program.stop() == 0
    assert setup.record("slow").state is State.PENDING, "given back"
    assert setup.broker.census().running == 0


def test_settings_are_taken_over_or_need_a_restart(reloading: Reloading) -> None:
    text = (
        CONFIG.replace("count: 2", "count: 5, timeout: 7s, after: {dead: delete}")
        .replace("3s", "4s")
        .replace("settle: 1s", "settle: 2s")
    )
    reloading.config.write_text(text)
    event = reloading.reload()
    assert event["changed"] == ["worker.count", "worker.timeout"]
    assert event["needs_restart"] == ["worker.heartbeat_ttl", "worker.after.dead", "producer.settle"]
    assert reloading.program.metric("worker_active") == 5


def test_a_broken_configuration_is_refused_and_the_old_one_stays(reloading: Reloading) -> None:
    reloading.config.write_text(CONFIG.replace("count: 2", "count: none"))
    assert "worker.count" in reloading.reload("config.refused")["problems"][0]
    reloading.config.write_text(CONFIG)
    reloading.write("import nowhere")
    assert "nowhere" in reloading.reload("config.refused")["problems"][0]
    assert reloading.result("which", "a") == "old"
    reloading.write(NEW)
    reloading.reload()
    assert reloading.result("which", "b") == "the new one"


DATED = """
from __future__ import annotations
from datetime import datetime
from msgspec import Struct
import fileq

class Report(Struct):
    when: datetime

@fileq.task("dated"{options})
def dated(job: fileq.JobView[Report], context: fileq.Context) -> int:
    return job.payload.when.year
"""


def test_a_module_that_fails_after_its_tasks_were_decorated_is_refused(reloading: Reloading) -> None:
    """The worker ended: the annotations of a task were resolved although its module had failed."""
    reloading.config.write_text(CONFIG.replace("[app]", "[app, dated]"))
    reloading.write(DATED, "dated")
    reloading.reload()
    for line, error in (
        ("1/0", "ZeroDivisionError: division by zero"),
        ("raise SystemExit(3)", "SystemExit: 3"),
        ("from json import nothing", "ImportError: cannot import name 'nothing' from 'json'"),
    ):
        reloading.write(f"{DATED}\n{line}\n", "dated")
        [problem] = reloading.reload("config.refused")["problems"]
        assert problem.startswith(f"imports[1] names the module dated, which can't be imported: {error}"), problem
        assert problem.endswith("dated.py:14)"), problem
    hidden = "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from datetime import datetime\n"
    reloading.write(DATED.replace("from datetime import datetime\n", hidden), "dated")
    [problem] = reloading.reload("config.refused")["problems"]
    assert "task 'dated' (dated:dated) has a payload whose types can't be resolved (name 'datetime' is not " in problem
    assert problem.endswith("define or import its types at the top of the module")
    assert reloading.result("dated", "a", {"when": "2026-01-31T18:00:00Z"}) == 2026


def test_a_producer_reports_what_needs_a_restart(on_sqlite: BrokerSetup, tmp_path: Path) -> None:
    config = tmp_path / "config.yaml"
    config.write_text("producer: {max_pending: 5}\n")
    with on_sqlite.producer() as program:
        config.write_text("producer: {max_pending: 6}\n")
        program.signal(signal.SIGHUP)
        event = program.wait_for("config.reloaded")
        assert (event["changed"], event["needs_restart"]) == ([], ["producer.max_pending"])
        assert "handlers" not in event
        assert program.stop() == 0
