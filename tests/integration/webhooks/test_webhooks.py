"""Webhooks with the installed program, on each kind of broker."""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Iterator

import pytest
from msgspec.structs import replace

from fileq.cli.stats_text import process_table
from fileq.cli.terminal import Screen
from fileq.client.broker_transport import BrokerTransport
from fileq.commands import webhooks
from fileq.commands.admin.stats import gather
from fileq.commands.webhooks import DeliverySummary
from fileq.config import Config, config_from
from fileq.core.job import State
from fileq.core.webhook import DELIVERIES_MAX, DELIVERY_TYPE, WebhookFilter
from tests.support.program import Program
from tests.support.waiting import wait_until
from tests.support.webhook_receiver import Received, Receiver, Reply, open_receiver
from tests.support.worker_setup import WorkerSetup, ids

ENDINGS = ("job.completed", "job.failed", "job.dead", "job.cancelled", "job.recovered")
EFFECTIVE_S = 5.0


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    with open_receiver() as receiver:
        yield receiver


def allowed(receiver: Receiver) -> dict[str, object]:
    return {
        "webhooks.allow_http": "true",
        "webhooks.allow_networks": "[127.0.0.0/8]",
        "webhooks.allow_ports": f"[{receiver.port}]",
    }


def configured(setup: WorkerSetup, receiver: Receiver) -> Config:
    webhooks = {key.partition(".")[2]: value for key, value in allowed(receiver).items()}
    read = config_from({"webhooks": {**webhooks, "allow_networks": ["127.0.0.0/8"], "allow_ports": [receiver.port]}})
    return replace(setup.config, webhooks=read.webhooks)


def add(setup: WorkerSetup, receiver: Receiver, name: str, *events: str, path: str = "") -> str:
    """Adds a webhook and returns its secret."""
    config, url = configured(setup, receiver), receiver.url + path
    return webhooks.add(setup.broker, config, name, url, events, WebhookFilter()).secret


def cancel(setup: WorkerSetup, receiver: Receiver, id: str) -> None:
    BrokerTransport(setup.broker, configured(setup, receiver)).cancel(id)


def worker_of(setup: WorkerSetup, receiver: Receiver, **settings: object) -> Program:
    named = {key.replace(".", "__"): value for key, value in allowed(receiver).items()}
    return setup.worker(**named, **settings)


def deliveries(setup: WorkerSetup, receiver: Receiver, name: str) -> tuple[DeliverySummary, ...]:
    return webhooks.deliveries(setup.broker, configured(setup, receiver), name, 100).deliveries


def told(receiver: Receiver, id: str) -> list[str]:
    """The events about this job, in the order of their arrival."""
    return [one.told["type"] for one in list(receiver.received) if one.told["data"].get("id") == id]


def test_each_event_of_a_job_is_sent_once_signed_and_listed(each_setup: WorkerSetup, receiver: Receiver) -> None:
    setup = each_setup
    secret = add(setup, receiver, "all", *ENDINGS)
    assert webhooks.test(setup.broker, configured(setup, receiver), "all").answer_status == 204
    setup.enqueue("note", "waiting")
    cancel(setup, receiver, "waiting")
    setup.enqueue("note", "done")
    setup.enqueue("unpicklable", "fails", max_retries=1)
    setup.enqueue("exits", "crashes")
    setup.enqueue("obedient", "stopped")
    worker = worker_of(setup, receiver, count=2, max_recoveries=1)
    setup.wait_logged("start", 3)
    cancel(setup, receiver, "stopped")
    setup.wait_ended(["done", "fails", "crashes", "stopped"])
    expected = {
        "waiting": ["job.cancelled"],
        "done": ["job.completed"],
        "fails": ["job.failed", "job.dead"],
        "crashes": ["job.recovered", "job.dead"],
        "stopped": ["job.cancelled"],
    }
    wait_until(lambda: len(receiver.received) >= 8)
    assert {id: sorted(told(receiver, id)) for id in expected} == {id: sorted(of) for id, of in expected.items()}
    assert all(one.is_signed_by(secret) for one in receiver.received)
    assert max(Counter(one.id for one in receiver.received).values()) == 1
    listed = {one.id: one for one in deliveries(setup, receiver, "all")}
    sent = {one.id: one for one in receiver.received if one.told["type"] != "webhook.test"}
    assert listed.keys() == sent.keys(), "no delivery is about a delivery"
    setup.wait_for(State.COMPLETED, list(sent))
    assert {one.told["data"]["id"] for one in sent.values()} == {setup.job(id).parent_id for id in sent}
    dead = next(one.told["data"] for one in sent.values() if one.told["type"] == "job.dead")
    assert dead["error"]
    assert worker.metric("webhook_deliveries_total") == 7
    assert secret not in worker.text()
    assert worker.stop() == 0
    assert setup.census().drift == 0


def test_a_definition_takes_effect_within_5_seconds(each_setup: WorkerSetup, receiver: Receiver) -> None:
    setup = each_setup
    worker_of(setup, receiver, count=1)
    add(setup, receiver, "late", "job.completed")
    tries = iter(range(1000))

    def is_told() -> bool:
        setup.enqueue("note", f"n-{next(tries)}")
        return bool(receiver.received)

    wait_until(is_told, EFFECTIVE_S, every_s=0.1)


def test_a_receiver_that_hangs_slows_no_other_job(each_setup: WorkerSetup, receiver: Receiver) -> None:
    """The worker has one slot only; more deliveries hang than it makes at once."""
    setup = each_setup
    receiver.answer = receiver.hang
    add(setup, receiver, "hangs", "job.completed")
    first, later = ids("a", 8), ids("b", 30)
    setup.enqueue("note", *first)
    worker_of(setup, receiver, count=1)
    wait_until(lambda: receiver.running == DELIVERIES_MAX)
    setup.enqueue("note", *later)
    setup.wait_for(State.COMPLETED, later, timeout_s=10)
    assert receiver.running == DELIVERIES_MAX, "they still hang"
    setup.enqueue("gated", "own")
    setup.wait_logged("start", 1)
    [process] = gather(setup.broker).workers
    assert (process.busy, process.slots, process.deliveries) == (1, 1, DELIVERIES_MAX)
    assert [slot.id for slot in process.jobs][:1] == ["own"], "deliveries hide no job"
    assert "1 of 1, 4 deliveries" in process_table((process,), Screen(), "2026-01-01T00:00:00.000Z")[1]
    setup.open_gate()
    assert len(receiver.received) == DELIVERIES_MAX
    receiver.released.set()
    wait_until(lambda: len({one.id for one in receiver.received}) == len([*first, *later, "own"]), 60)
    assert receiver.most_running == DELIVERIES_MAX


def test_a_delivery_that_is_cancelled_gives_its_thread_back(each_setup: WorkerSetup, receiver: Receiver) -> None:
    """It kept the thread until its receiver had not answered for 20 s."""
    setup, receiver.answer = each_setup, receiver.hang
    add(setup, receiver, "hangs", "job.completed")
    worker = worker_of(setup, receiver, count=1)
    setup.enqueue("note", "first")
    wait_until(lambda: receiver.running == 1, 20, "the receiver hangs")
    [delivery] = deliveries(setup, receiver, "hangs")
    cancel(setup, receiver, delivery.id)
    setup.wait_for(State.CANCELLED, [delivery.id])
    assert worker.events("thread.abandoned") == worker.events("webhook.failed") == []
    assert worker.stop() == 0


def test_receivers_that_fail_redirect_and_are_gone(each_setup: WorkerSetup, receiver: Receiver) -> None:
    setup = each_setup

    def answer(received: Received) -> Reply:
        if received.path.endswith("/moved"):
            return Reply(302, {"Location": f"http://127.0.0.1:{receiver.port}/inside"})
        return Reply(410) if received.path.endswith("/gone") else Reply(503, {"Retry-After": "60"}, b"not \x1b[31mnow")

    receiver.answer = answer
    for name in ("down", "moved", "gone"):
        add(setup, receiver, name, "job.completed", path=f"/{name}")
    setup.enqueue("note", "a")
    worker = worker_of(setup, receiver, count=1)
    assert worker.wait_for("webhook.disabled")["webhook"] == "gone"
    waiting = {}
    for name in ("down", "moved"):
        waiting[name] = wait_until(functools.partial(failed, setup, receiver, name))
    assert waiting["down"].error == r"the receiver answered 503: not \x1b[31mnow"
    assert waiting["moved"].error == "the receiver answered 302"
    assert after_s(setup, waiting["down"].id) == pytest.approx(60, abs=1)
    assert after_s(setup, waiting["moved"].id) == pytest.approx(5, abs=1)
    [gone] = deliveries(setup, receiver, "gone")
    setup.wait_for(State.DEAD, [gone.id])
    assert sorted(one.path for one in receiver.received) == ["/hook/down", "/hook/gone", "/hook/moved"]
    state = {one.name: one.status for one in webhooks.list_all(setup.broker, configured(setup, receiver)).webhooks}
    assert state == {"down": "enabled", "moved": "enabled", "gone": "disabled"}
    assert worker.metric("webhook_failures_total") == 3
    assert worker.metric("webhooks_disabled_total") == 1
    more = (f"more-{n}" for n in range(1000))
    wait_until(lambda: is_left_out(setup, next(more)), EFFECTIVE_S, every_s=0.1)


def failed(setup: WorkerSetup, receiver: Receiver, name: str) -> DeliverySummary | None:
    found = deliveries(setup, receiver, name)
    return found[0] if found and found[0].status == "retrying" else None


def after_s(setup: WorkerSetup, id: str) -> float:
    record = setup.record(id)
    return (record.due_ms - record.since_ms) / 1000


def is_left_out(setup: WorkerSetup, id: str) -> bool:
    """Whether a job that is completed now has deliveries of the two other webhooks only."""
    setup.enqueue("note", id)
    setup.wait_for(State.COMPLETED, [id])
    return len(setup.record(id).follow_ups) == 2


def test_what_a_killed_worker_leaves_is_sent_by_another_one(each_setup: WorkerSetup, receiver: Receiver) -> None:
    """Killed between the transition and the delivery, in a delivery, and in a job, which a reaper buries."""
    setup = each_setup
    receiver.answer = receiver.hang
    add(setup, receiver, "all", "job.completed", "job.dead")
    done = ids("a", DELIVERIES_MAX + 2)
    setup.enqueue("note", *done)
    worker = worker_of(setup, receiver, count=1, max_recoveries=1)
    setup.wait_for(State.COMPLETED, done)
    wait_until(lambda: receiver.running == DELIVERIES_MAX)
    setup.enqueue("stubborn", "b", recoveries=1)
    setup.wait_logged("start", 1)
    worker.kill()
    receiver.released.set()
    made = [id for job in done for id in setup.record(job).follow_ups]
    assert len(made) == len(done), "each event has its delivery"
    worker_of(setup, receiver, count=1, max_recoveries=1)
    setup.wait_for(State.DEAD, ["b"])
    setup.wait_for(State.COMPLETED, [*made, *setup.record("b").follow_ups])
    assert told(receiver, "b") == ["job.dead"]
    sent = Counter(one.id for one in receiver.received if one.told["type"] == "job.completed")
    assert sent.keys() == set(made)
    assert sent.total() == len(made) + DELIVERIES_MAX, "those that were under way are sent again under the same id"
    assert all(setup.job(id).type == DELIVERY_TYPE for id in made)
