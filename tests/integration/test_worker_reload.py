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

    def write(self, module: str) -> None:
        (self.setup.directory / "app.py").write_text(module.replace("{options}", self._options))

    def reload(self, event: str = "config.reloaded") -> dict[str, Any]:
        count = len(self.program.events(event)) + 1
        self.program.signal(signal.SIGHUP)
        return self.program.wait_for(event, count=count)

    def result(self, type: str, id: str) -> Any:
        self.setup.enqueue(type, id)
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
    assert [(w["started"], w["is_finishing"], w["is_claiming"], w["busy"]) for w in reloading.workers()] == [
        (before["started"], True, False, 1),
        (before["started"], False, True, 0),
    ]
    (directory / "go").touch()
    assert reloading.finished("slow") == "old"
    assert setup.record("slow").state is State.COMPLETED
    assert reloading.program.stop() == 0
    assert not reloading.program.events("worker.failed")


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
