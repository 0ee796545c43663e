"""Operations of the REST server when the server that works on one is gone, or is to stop."""

from __future__ import annotations

import threading
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from fileq.actions.bulk import BulkActions, JobAction, JobChange
from fileq.brokers import open_broker
from fileq.brokers.types import Entry
from fileq.commands.action_log import ActionLog
from fileq.config import config_from
from fileq.config.show import redacted
from fileq.core.job import decode, typed_job
from fileq.queries.job_filter import JobFilter
from fileq.runtime.service import Loop
from fileq.server.api.action_endpoints import AT_ONCE_MAX
from fileq.server.operations import OperationRunner, OperationStore
from tests.support.api_client import ADMIN_KEY, ApiClient, served_api
from tests.support.bulk_actions import act_on_all
from tests.support.dead_jobs import bury
from tests.support.program import Program
from tests.support.servers import Server
from tests.support.waiting import wait_until

DEAD = 4000


def server(tmp_path: Path, address: str) -> tuple[Program, ApiClient]:
    settings = {"broker": "redis", "redis.addr": address, "server.port": 0, "server.rate_limit": "100000/s"}
    program = Program("serve", cwd=tmp_path, settings=settings, variables={"API_KEY": ADMIN_KEY})
    return program, ApiClient(int(program.wait_for("server.opened")["url"].rpartition(":")[2]), ADMIN_KEY)


def test_a_killed_server_leaves_an_operation_that_the_next_one_completes(tmp_path: Path, valkey: Server) -> None:
    config = config_from({"broker": "redis", "redis": {"addr": valkey.address}})
    with closing(open_broker(config)) as broker:
        bury(broker, DEAD)
        first, client = server(tmp_path, valkey.address)
        with first:
            wanted = {"action": "retry", "filter": {"type": "report"}, "dry_run": False, "expect": DEAD}
            made = client.post("/jobs/actions", wanted)
            path = f"/operations/{made.json['operation']['id']}"
            wait_until(lambda: broker.census().dead < DEAD, 30, every_s=0.001)
            first.kill()
        assert 0 < broker.census().dead < DEAD
        second, client = server(tmp_path, valkey.address)
        with second:
            ended = wait_until(lambda: (found := client.get(path))["ended_at"] and found, 60, every_s=0.1)
            assert (ended["state"], ended["done"], ended["takeovers"]) == ("completed", DEAD, 1)
            assert second.wait_for("operation.started")["is_resumed"] is True
            # The server waits less long for Redis, and shows what is configured.
            assert client.get("/config")["config"]["redis"] == redacted(config)["redis"]
            assert second.stop() == 0
        retried = [decode(raw).id for page in broker.pages("low") for raw in page]
        assert (len(retried), len(set(retried)), broker.census().dead) == (DEAD, DEAD, 0)


@pytest.mark.parametrize(("action", "state"), [("delete", "dead"), ("cancel", "pending")])
def test_many_jobs_are_deleted_and_cancelled_on_a_full_server(
    tmp_path: Path, redis_server: Server, action: str, state: str
) -> None:
    """An operation is a document, and a full server took none, although these actions give it room."""
    count = AT_ONCE_MAX + 200
    with served_api(tmp_path, {"broker": "redis", "redis": {"addr": redis_server.address}}) as api:
        if state == "dead":
            bury(api.broker, count)
        else:
            jobs = [typed_job("report", None, priority="low", now=datetime.now(UTC)) for _ in range(count)]
            api.broker.enqueue([Entry(job, "low") for job in jobs])
        with redis_server.client() as client:
            client.config_set("maxmemory", 1)
            try:
                wanted = {"action": action, "filter": {}, "dry_run": False, "expect": count}
                made = api.client.post("/jobs/actions", wanted)
                assert made.status == 202, made
                path = f"/operations/{made.json['operation']['id']}"
                ended = wait_until(lambda: (found := api.client.get(path))["ended_at"] and found, 60, every_s=0.1)
                assert (ended["state"], ended["done"], ended["error"]) == ("completed", count, None)
                assert api.client.get(f"/jobs?status={state}")["total"] == 0
            finally:
                client.config_set("maxmemory", 0)


def test_an_operation_that_needs_room_is_refused_by_a_full_server(tmp_path: Path, valkey: Server) -> None:
    with served_api(tmp_path, {"broker": "redis", "redis": {"addr": valkey.address}}) as api:
        bury(api.broker, AT_ONCE_MAX + 1)
        with valkey.client() as client:
            client.config_set("maxmemory", 1)
            try:
                wanted = {"action": "retry", "filter": {}, "dry_run": False, "expect": AT_ONCE_MAX + 1}
                refused = api.client.post("/jobs/actions", wanted)
                assert (refused.slug, "maxmemory" in refused.json["detail"]) == ("broker-away", True)
                assert api.client.get("/operations")["operations"] == []
            finally:
                client.config_set("maxmemory", 0)


def looping(runner: OperationRunner) -> Loop:
    return Loop(runner, emit=lambda event: None, longest_pause_s=1.0)


class Killed(BaseException):
    """Ends a thread as a kill -9 ends a process: nothing after it runs."""


class StoppingActions(BulkActions):
    """Changes one batch, and is gone before it can write that down."""

    batches_left = 2

    def change(self, action: JobAction, jobs: Any, *, is_dry_run: bool = False) -> list[JobChange]:
        changes = super().change(action, jobs)
        self.batches_left -= 1
        if not self.batches_left:
            raise Killed
        return changes


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_an_operation_is_taken_over_and_does_no_job_twice(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fileq.server.operations.TAKEOVER_S", 0.1)
    monkeypatch.setattr("fileq.server.operations.LOOK_S", 0.02)
    with served_api(tmp_path, {"server": {"read_only": True}}) as api:  # its own runner does not work
        bury(api.broker, 500)
        store = OperationStore(api.broker, lambda: api.broker.census().now_ms)
        wanted = {"matched": 500, "cutoff_ms": store.now_ms()}
        id = store.create(JobAction.RETRY, JobFilter(), {}, created_by="a test", **wanted).id
        log = ActionLog(api.broker, store.now_ms)
        actions = StoppingActions(api.broker, api.config, store.now_ms)
        first = looping(OperationRunner(store, actions, api.events.append, log, threading.Event()))
        hook = threading.excepthook
        threading.excepthook = lambda args: None
        first.start()
        wait_until(lambda: not first._thread.is_alive())
        threading.excepthook = hook
        left = api.client.get(f"/operations/{id}")
        assert (left["state"], left["done"], api.broker.census().dead) == ("running", 200, 100)
        # Jobs that were put back die again meanwhile: the operation has done them already.
        bury(api.broker)
        assert api.broker.census().dead == 500
        whole = BulkActions(api.broker, api.config, store.now_ms)
        second = looping(OperationRunner(store, whole, api.events.append, log, threading.Event()))
        second.start()
        ended = wait_until(lambda: (found := api.client.get(f"/operations/{id}"))["ended_at"] and found, 30)
        second.stop(5.0)
        assert (ended["state"], ended["done"], ended["takeovers"]) == ("completed", 500, 1)
        assert (api.broker.census().dead, sum(api.broker.census().pending.values())) == (400, 100)
        logged = wait_until(lambda: (one := log.all()[0]) and not one.is_running and one, 10, "the end is in the log")
        assert (logged.id, logged.by, logged.count) == (id, "a test", 500)
        assert len({*logged.ids}) == 300, "those of a batch that was never written down are not known"


def test_a_server_that_stops_gives_its_operation_back_and_a_stopped_operation_does_no_more(tmp_path: Path) -> None:
    with served_api(tmp_path, {"server": {"read_only": True}}) as api:
        bury(api.broker, 500)
        store = OperationStore(api.broker, lambda: api.broker.census().now_ms)
        actions = PausingActions(api.broker, api.config, store.now_ms)
        wanted = {"matched": 500, "cutoff_ms": store.now_ms()}
        id = store.create(JobAction.DELETE, JobFilter(), {}, created_by="a test", **wanted).id
        log = ActionLog(api.broker, store.now_ms)
        is_stopping = threading.Event()
        first = looping(OperationRunner(store, actions, api.events.append, log, is_stopping))
        first.start()
        assert actions.has_begun.wait(10)
        is_stopping.set()
        actions.may_go_on.set()
        first.stop(10.0)
        given_back = store.get(id)
        assert given_back is not None
        assert (given_back.owner, given_back.done) == ("", 200)
        actions = PausingActions(api.broker, api.config, store.now_ms)
        second = looping(OperationRunner(store, actions, api.events.append, log, threading.Event()))
        second.start()
        assert actions.has_begun.wait(10)
        stopped = store.stop(id)
        assert stopped is not None
        assert stopped.state == "stopped"
        actions.may_go_on.set()
        wait_until(lambda: api.client.get(f"/operations/{id}")["done"] == 400)
        second.stop(10.0)
        assert api.broker.census().dead == 100


class PausingActions(BulkActions):
    """Waits in its first batch until the test lets it go on."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.has_begun, self.may_go_on = threading.Event(), threading.Event()

    def change(self, action: JobAction, jobs: Any, *, is_dry_run: bool = False) -> list[JobChange]:
        self.has_begun.set()
        assert self.may_go_on.wait(10)
        return super().change(action, jobs)


def test_an_action_that_begins_again_leaves_what_it_did_before(tmp_path: Path) -> None:
    with served_api(tmp_path) as api:
        client, broker = api.client, api.broker
        later = client.post("/jobs", {"type": "a", "delay": "1h"}).json["id"]
        actions = BulkActions(broker, api.config, lambda: 0)
        cutoff_ms = actions.now_ms()
        wait_until(lambda: actions.now_ms() > cutoff_ms)
        after = client.post("/jobs", {"type": "a", "delay": "1h"}).json["id"]
        for action in (JobAction.RUN, JobAction.CANCEL):
            run = actions.begin(action, actions.matching(action, JobFilter()), cutoff_ms=cutoff_ms)
            [batch] = run.batches()
            assert [job.id for job in batch] == [later]
            assert [change.is_done for change in run.change(batch)] == [True]
            assert [change.result for change in run.change(batch)] == ["gone"]
            assert actions.changed(action, [later, after], cutoff_ms) == 2
            assert act_on_all(broker, api.config, action, cutoff_ms=cutoff_ms).count == 0
        assert client.get(f"/jobs/{after}")["status"] == "scheduled"
