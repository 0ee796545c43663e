"""Batches with the installed program on each kind of broker: empty, nested, cancelled while its jobs are claimed."""

from __future__ import annotations

import json
import os
import re
from typing import Any

from fileq.client.broker_transport import BrokerTransport
from fileq.client.client import Client
from fileq.client.tasks import TaskCall
from fileq.core.job import State, wall_clock_ms
from tests.support.program import run
from tests.support.waiting import wait_until
from tests.support.worker_setup import WorkerSetup

JOBS = """
import fileq
from worker_handlers import log

@fileq.hook("batch.finished")
def tell(event):
    log("finished", event.data["batch_id"])

@fileq.handler(type="grows")
def grows(job, context):
    context.batch.add("note", {"from": job.id})

@fileq.handler(type="note", isolation="thread")
def note(job, context):
    pass

@fileq.handler(type="breaks", max_retries=0)
def breaks(job, context):
    raise ValueError("broken")
"""


def fileq_json(setup: WorkerSetup, *words: str, code: int = 0) -> dict[str, Any]:
    settings = {**setup.settings, "producer.scan_dir": setup.inbox}
    ended = run(*words, "--json", cwd=setup.directory, settings=settings)
    assert ended.returncode == code, ended.stderr
    found: dict[str, Any] = json.loads(ended.stdout)
    return found


def test_batches_end_as_they_should(each_setup: WorkerSetup) -> None:
    setup = each_setup
    (setup.directory / "batch_handlers.py").write_text(JOBS)
    client = Client.over(BrokerTransport(setup.broker, setup.config, clock=wall_clock_ms))
    many = client.batch("many", then="note", finally_="note")
    many.add_many([TaskCall("note") for _ in range(2000)])
    many.seal()
    worker = setup.worker(count=2, imports="[worker_handlers, batch_handlers]")
    wait_until(lambda: many.status().completed > 0)
    assert many.cancel()
    outer = client.batch("outer", then="note", catch="note", allow_failures=True)
    with outer, client.batch("inner", then="breaks", parent=outer) as inner:
        inner.add("grows")
    empty = client.batch("empty", then="note")
    empty.seal()
    for batch in (many, outer, inner, empty):
        batch.wait(60)
    assert many.status().is_cancelled
    assert many.status().completed + many.status().cancelled == 2000
    assert (inner.status().total, inner.status().is_success) == (2, True)
    assert (outer.status().total, outer.status().completed, outer.status().dead) == (2, 1, 1)
    assert outer.status().first_dead == f"{inner.id}.then"
    fired = [f"{many.id}.finally", f"{outer.id}.catch", f"{empty.id}.then"]
    setup.wait_for(State.COMPLETED, fired)
    assert setup.broker.records([f"{many.id}.then", f"{outer.id}.then"]) == [None, None]

    shown = fileq_json(setup, "batch", "show", outer.id)
    assert [one["status"] for one in shown["callbacks"]] == [None, "completed"]
    assert [one["id"] for one in shown["failures"]] == [f"{inner.id}.then"]
    assert {one["id"] for one in fileq_json(setup, "batch", "list")["batches"]} == {
        *(many.id, outer.id, inner.id, empty.id)
    }
    assert fileq_json(setup, "batch", "retry", outer.id)["retried"] == 1
    wait_until(lambda: outer.status().is_finished)
    # It was sealed, so the worker has finished it. The others may have been finished by the call that sealed them.
    wait_until(lambda: outer.id in setup.logged("finished"))
    assert worker.metric("batches_finished_total") >= 1
    assert worker.stop() == 0
    assert setup.census().drift == 0


def test_a_failed_batch_finishes_at_once_although_members_are_due_in_an_hour(each_setup: WorkerSetup) -> None:
    """The check of each minute would find them too, so this is one minute at most: wait() allows less."""
    setup = each_setup
    (setup.directory / "batch_handlers.py").write_text(JOBS)
    client = Client.over(BrokerTransport(setup.broker, setup.config, clock=wall_clock_ms))
    worker = setup.worker(count=2, imports="[worker_handlers, batch_handlers]")
    setup.wait_for(State.COMPLETED, [client.enqueue("note").id])  # its first check of batches is over
    outer = client.batch("outer", finally_="note")
    with outer:
        outer.add("note", delay="1h")
        with client.batch("beside", parent=outer) as beside:
            beside.add("note", delay="1h")
        with client.batch("inner", parent=outer) as inner:
            inner.add("note", delay="1h")
            inner.add("breaks")  # the last: once it is dead, outer takes no more
    for batch in (inner, outer, beside):
        batch.wait(25)
        assert batch.status().is_cancelled
    assert [batch.status().cancelled for batch in (inner, beside)] == [1, 1]
    setup.wait_for(State.COMPLETED, [f"{outer.id}.finally"])
    assert worker.stop() == 0
    assert setup.census().drift == 0


def test_the_command_line_creates_seals_and_cancels(each_setup: WorkerSetup) -> None:
    setup = each_setup
    for name in ("a.csv", "b.csv"):
        (setup.inbox / name).write_text(name)
    (setup.inbox / "list.json").write_text('[{"path": "a.csv", "size": 5}, {"path": "b.csv"}]')
    made = fileq_json(setup, "batch", "create", "--name", "files", "--manifest", str(setup.inbox / "list.json"))
    assert (made["status"], made["total"], made["waiting"]) == ("sealed", 2, 2)
    opened = fileq_json(setup, "admin", "batch", "create", "--name", "open", "--then", "note")
    added = fileq_json(setup, "enqueue", str(setup.inbox / "a.csv"), "--batch", opened["id"])
    assert added["batch_id"] == opened["id"]
    assert fileq_json(setup, "show", added["jobs"][0]["id"])["batch_id"] == opened["id"]
    assert len(fileq_json(setup, "list", "--batch", opened["id"])["jobs"]) == 1
    assert fileq_json(setup, "batch", "seal", opened["id"])["status"] == "sealed"
    cancelled = fileq_json(setup, "batch", "cancel", opened["id"])
    assert (cancelled["status"], cancelled["is_cancelled"], cancelled["cancelled"]) == ("finished", True, 1)
    settings = {**setup.settings, "producer.scan_dir": setup.inbox}
    for words, message in (
        (("batch", "show", "nope"), "no batch has the id 'nope'"),
        (("batch", "seal", opened["id"]), "is not open but finished"),
        (("batch", "cancel", opened["id"]), f"batch {opened['id']} is already cancelled"),
        (("enqueue", str(setup.inbox / "a.csv"), "--batch", opened["id"]), "is cancelled; it no longer accepts jobs"),
    ):
        ended = run(*words, cwd=setup.directory, settings=settings)
        assert ended.returncode == 1
        assert re.search(message, ended.stderr)
    os.mkfifo(setup.inbox / "pipe")  # C2: it is not waited for
    listed = f'[{{"path": "a.csv", "size": 6}}, {{"path": "c.csv"}}, {{"path": "pipe", "sha256": "{"0" * 64}"}}]'
    (setup.inbox / "list.json").write_text(listed)
    ended = run("batch", "create", "--manifest", str(setup.inbox / "list.json"), cwd=setup.directory, settings=settings)
    assert ended.returncode == 2
    assert "'a.csv' has 5 bytes; the manifest says 6" in ended.stderr
    assert "'c.csv' of the manifest can't be read" in ended.stderr
    assert "'pipe' of the manifest is not a regular file" in ended.stderr
