"""Which deliveries follow from what happens to a job, and how they run, through a pump on the memory broker."""

from __future__ import annotations

import json
from typing import Any

import pytest
from msgspec import Raw
from msgspec.structs import replace

from fileq.brokers.types import Entry, Revival
from fileq.client.broker_transport import BrokerTransport
from fileq.commands.admin.fsck.check import OnDead
from fileq.config import config_from
from fileq.core.errors import BrokerUnavailable
from fileq.core.job import Job, State, decode, encode, file_job, typed_job
from fileq.core.outcome import Cancelled, Changed, Died, Done, Failed, Released
from fileq.core.webhook import DELIVERIES_MAX, DELIVERY_ROUTE, DELIVERY_TYPE, WEBHOOK_EVENTS, Webhook, WebhookFilter
from fileq.queries.documents import JobDocument
from fileq.webhooks.store import WebhookStore
from fileq.webhooks.subscriptions import BODY_MAX, withdrawn_data
from fileq.worker.reaper import Reaper, reap
from fileq.worker.settlements import FollowUps, worker_policy
from tests.support.pump_setup import NOW, TTL_S, PumpSetup

URL = "https://example.org/hook"
STATUSES = {
    "job.completed": "completed",
    "job.failed": "retrying",
    "job.dead": "dead",
    "job.recovered": "pending",
    "job.cancelled": "cancelled",
}


def about(*events: str, name: str = "all", **conditions: str) -> Webhook:
    return Webhook(name, URL, events or WEBHOOK_EVENTS, WebhookFilter(**conditions))


@pytest.fixture
def told() -> PumpSetup:
    """A worker with one slot and a webhook about everything."""
    return PumpSetup(count=1, webhooks=[about()])


def deliveries(setup: PumpSetup) -> list[Job]:
    """Those that wait."""
    return [job for job in map(decode, setup.broker.peek("low", 1000)) if job.type == DELIVERY_TYPE]


def bodies(setup: PumpSetup) -> list[dict[str, Any]]:
    return [job.payload_value["body"] for job in deliveries(setup)]


def end(setup: PumpSetup, ran: Any, id: str = "a") -> None:
    setup.enqueue(id)
    setup.pump.turn()
    setup.executor.end(ran)
    setup.pump.turn(may_claim=False)


@pytest.mark.parametrize(
    ("ran", "event", "outcome"),
    [
        (Done(b'{"n":1}'), "job.completed", "completed"),
        (Failed("broken", "X"), "job.failed", "failed"),
        (Failed("broken", "X", is_permanent=True), "job.dead", "failed"),
        (Died("killed by SIGKILL"), "job.recovered", "died"),
        (Cancelled(), "job.cancelled", "cancelled"),
    ],
    ids=repr,
)
def test_the_end_of_an_attempt_is_told(told: PumpSetup, ran: Any, event: str, outcome: str) -> None:
    end(told, ran)
    [body] = bodies(told)
    data = body["data"]
    [attempt] = data["attempts"]
    assert (body["type"], attempt["outcome"], data["id"], data["path"]) == (event, outcome, "a", "/data/a")
    assert (data["priority"], attempt["number"], attempt["traceback"]) == ("low", 1, "")
    assert data.keys() == set(JobDocument.__struct_fields__), "the document of a job, as everywhere"
    assert data["status"] == STATUSES[event]
    assert ("broken" in (data["error"] or "")) == isinstance(ran, Failed)
    assert data["result"] == ({"n": 1} if isinstance(ran, Done) else None)
    [job] = deliveries(told)
    assert (job.parent_id, job.priority) == ("a", "low")


def test_a_job_that_is_given_back_or_deferred_is_not_told(told: PumpSetup) -> None:
    end(told, Released())
    assert deliveries(told) == []


def test_a_superseded_job_is_told_as_such(told: PumpSetup) -> None:
    told.enqueue_version("f", "1-1", "old")
    told.pump.turn()
    told.enqueue_version("f", "2-2", "new")
    told.executor.end(Changed("2-2"))
    told.pump.turn(may_claim=False)
    told.pump.turn(may_claim=False)
    assert [(body["type"], body["data"]["attempts"][0]["outcome"]) for body in bodies(told)] == [
        ("job.completed", "superseded")
    ]


def test_without_webhooks_a_settlement_is_left_as_it_is() -> None:
    setup = PumpSetup(count=1)
    follow_ups = FollowUps(setup.routes, setup.config.paths)
    assert not follow_ups.is_any
    setup.subscriptions.set([])
    end(setup, Done())
    assert deliveries(setup) == []


def test_each_attempt_and_each_webhook_has_its_own_delivery_and_a_repeat_has_none() -> None:
    setup = PumpSetup(count=1, webhooks=[about(name="one"), about(name="two")])
    end(setup, Failed("x", "X", is_permanent=True))
    assert len(deliveries(setup)) == 2
    raw = setup.raw("a")
    setup.clocks.advance(1)
    setup.broker.revive([Revival(raw, "a", encode(decode(raw).but(error=None, retries=0)), "low")])
    turns(setup)
    assert running(setup) == (2, 1), "the deliveries, and the job beside them"
    setup.broker.loses_replies = 1
    setup.executor.end(Failed("x", "X", is_permanent=True), "a")
    with pytest.raises(BrokerUnavailable):
        setup.pump.turn(may_claim=False)
    setup.pump.turn(may_claim=False)
    assert setup.state("a") is State.DEAD
    made = [job.id for job in deliveries(setup)]
    assert len(made) == len(set(made)) == 2, "another death, other deliveries; the repeat of the call adds none"


def test_jobs_of_fileq_itself_are_not_told(told: PumpSetup) -> None:
    end(told, Done())
    told.pump.turn()
    told.executor.end(Failed("x", "X", is_permanent=True))
    told.pump.turn(may_claim=False)
    assert told.broker.census().dead == 1, "the delivery has failed"
    assert deliveries(told) == []


@pytest.mark.parametrize(
    ("conditions", "is_told"),
    [
        ({}, True),
        ({"match": "sub/*.pdf"}, True),
        ({"match": "*.pdf"}, False),
        ({"match": "**/*.pdf", "priority": "low"}, True),
        ({"priority": "high"}, False),
        ({"type": "report"}, False),
        ({"batch": "b1"}, True),
        ({"batch": "b2"}, False),
    ],
    ids=repr,
)
def test_all_conditions_must_hold(conditions: dict[str, str], is_told: bool) -> None:
    setup = PumpSetup(webhooks=[about(**conditions)])
    job = file_job(b"/data/sub/a.pdf", size=1, priority="low", now=NOW, id="a").but(batch_id="b1")
    setup.broker.enqueue([Entry(job, "low")])
    setup.pump.turn()
    setup.executor.end(Done())
    setup.pump.turn(may_claim=False)
    assert bool(deliveries(setup)) == is_told


def test_a_type_is_matched_exactly() -> None:
    setup = PumpSetup(webhooks=[about(type="report")], handlers=[{"type": "report", "use": "fileq.handlers:simulate"}])
    setup.enqueue_typed("report", "a")
    setup.enqueue_typed("reports", "b")
    setup.pump.turn()
    setup.executor.end(Done())
    setup.pump.turn(may_claim=False)
    setup.pump.turn(may_claim=False)
    assert [body["data"]["id"] for body in bodies(setup)] == ["a"]


def test_a_reaper_tells_too(told: PumpSetup) -> None:
    told.enqueue("a")
    told.pump.turn()
    follow_ups = FollowUps(told.routes, told.config.paths)
    reaper = Reaper(told.config, told.broker, add_follow_ups=follow_ups.added, monotonic=told.clocks.monotonic)
    for _ in range(6):
        reaper.turn()
        told.clocks.advance(TTL_S)
    assert [body["type"] for body in bodies(told)] == ["job.recovered"]


@pytest.mark.parametrize("is_cleared", [False, True])
def test_jobs_that_are_cancelled_while_they_wait_are_told(told: PumpSetup, is_cleared: bool) -> None:
    allowed = config_from({"broker": "memory"}).webhooks
    WebhookStore(told.broker, allowed, lambda: 0).add(about())
    told.enqueue("a", "b")
    transport = BrokerTransport(told.broker, replace(told.config, webhooks=allowed), clock=lambda: 0)
    if is_cleared:
        assert transport.clear("low") == 2
    else:
        transport.cancel("a")
        transport.cancel("a")
    told_about = [(body["type"], body["data"]["id"]) for body in bodies(told)]
    assert told_about == [("job.cancelled", id) for id in (("a", "b") if is_cleared else ("a",))]


def test_what_fsck_gives_back_is_told(told: PumpSetup) -> None:
    WebhookStore(told.broker, told.config.webhooks, lambda: 0).add(about("job.recovered"))
    told.enqueue("a")
    told.pump.turn()
    told.clocks.advance(2 * TTL_S)
    [suspect] = told.broker.suspects()
    on_dead = OnDead(told.config, "", told.broker)
    policy = worker_policy(told.config.worker)
    assert len(reap(told.broker, suspect, policy, {}, "no heartbeat", on_dead)) == 1
    assert [body["type"] for body in bodies(told)] == ["job.recovered"]


# how deliveries run


def enqueue_deliveries(setup: PumpSetup, count: int) -> None:
    for n in range(count):
        job = typed_job(DELIVERY_TYPE, {"webhook": "all"}, priority="low", now=NOW, id=f"d{n}")
        setup.broker.enqueue([Entry(job, "low", is_own=True)])


def running(setup: PumpSetup) -> tuple[int, int]:
    """Deliveries and other jobs that run."""
    found = [task.route == DELIVERY_ROUTE for task in setup.executor.running.values()]
    return sum(found), len(found) - sum(found)


def turns(setup: PumpSetup, count: int = 30) -> None:
    for _ in range(count):
        setup.pump.turn()


@pytest.mark.parametrize("count", [1, 2, 16, 70])
def test_deliveries_take_no_slot_from_other_jobs(count: int) -> None:
    setup = PumpSetup(count=count, webhooks=[about()])
    enqueue_deliveries(setup, DELIVERIES_MAX + 3)
    turns(setup)
    assert running(setup) == (DELIVERIES_MAX, 0)
    assert setup.state("d6") is State.DEFERRED, "those beyond the limit are deferred"
    setup.enqueue(*(f"j{n}" for n in range(count + 5)))
    turns(setup)
    assert running(setup) == (DELIVERIES_MAX, count), "all slots are for jobs, and no more"
    for task in list(setup.executor.running.values()):
        if task.route != DELIVERY_ROUTE:
            setup.executor.ended.append((setup.executor.running.pop(task.key), Done()))
    turns(setup)
    assert running(setup) == (DELIVERIES_MAX, 5 if count > 4 else count)


def test_the_end_of_a_delivery_makes_the_next_one_due() -> None:
    setup = PumpSetup(count=1, webhooks=[about()])
    enqueue_deliveries(setup, DELIVERIES_MAX + 1)
    turns(setup)
    assert setup.state(f"d{DELIVERIES_MAX}") is State.DEFERRED
    key, task = next(iter(setup.executor.running.items()))
    setup.executor.ended.append((setup.executor.running.pop(key), Done()))
    turns(setup, 2)
    setup.deferrals.turn()
    turns(setup, 2)
    assert setup.state(f"d{DELIVERIES_MAX}") is State.RUNNING, "without a wait"
    assert task.route == DELIVERY_ROUTE


def test_a_delivery_that_is_lost_leaves_its_room() -> None:
    setup = PumpSetup(count=1, webhooks=[about()])
    enqueue_deliveries(setup, 2)
    turns(setup)
    setup.reap_all()
    setup.enqueue("j0", "j1")
    turns(setup)
    assert setup.executor.abandoned
    assert running(setup)[1] <= 1


def test_no_breaker_stops_deliveries() -> None:
    setup = PumpSetup(count=1, webhooks=[about("job.cancelled")], min_samples=1, failure_threshold=0.1)
    end(setup, Failed("x", "X"))
    assert setup.breakers.is_limiting
    setup.breakers.has_deliveries = lambda: setup.subscriptions.is_any
    enqueue_deliveries(setup, 1)
    turns(setup)
    assert running(setup) == (1, 0)
    setup.executor.end(Failed("x", "X", is_sample=False))
    turns(setup, 2)
    assert setup.state("d0") is State.RETRYING


def test_a_delivery_counts_for_no_breaker() -> None:
    setup = PumpSetup(count=1, min_samples=1, failure_threshold=0.1)
    setup.breakers.record(DELIVERY_ROUTE, "d0", False, "x")
    assert setup.breakers.is_closed
    setup.breakers.record(0, "j0", False, "x")
    assert not setup.breakers.is_closed


def test_the_route_of_deliveries_is_not_in_the_table() -> None:
    setup = PumpSetup()
    assert len(setup.routes) == len(list(setup.routes)) == 1
    route = setup.routes[DELIVERY_ROUTE]
    assert (route.type, route.max_retries, route.timeout) == (DELIVERY_TYPE, 9, 30.0)
    assert route.backoff.delays == (5, 300, 1800, 7200, 18_000, 36_000, 50_400, 72_000, 86_400)
    assert "fileq.webhook" not in setup.routes.refusal(typed_job("x", None, priority="low", now=NOW))


def test_what_a_caller_gave_is_not_sent() -> None:
    job = typed_job("report", {"card": "4111"}, priority="low", now=NOW, id="a")
    data = withdrawn_data(job.but(unknown={"token": Raw(b'"t"')}), "low", 2, 1_000)
    assert (data["payload"], data["other_fields"], data["left_out"]) == (None, {}, ("payload", "other_fields"))
    assert (data["status"], data["attempt_count"], data["completed_at"]) == ("cancelled", 2, "1970-01-01T00:00:01.000Z")


def test_a_long_error_of_an_attempt_is_sent_short(told: PumpSetup) -> None:
    end(told, Failed("\x01" * 4_000, "X", is_permanent=True))
    [body] = bodies(told)
    assert len(json.dumps(body, separators=(",", ":"))) <= BODY_MAX
    assert (body["data"]["attempts"], "attempts" in body["data"]["cut"]) == ([], True)
