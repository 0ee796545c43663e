"""Batches of a client, in a queue of the test's own process."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import fileq
import fileq.testing
from fileq.brokers.protocol import Subscription
from fileq.client.event_stream import PublishedBatchEvent
from fileq.core.batch import BatchFacts, BatchState, CallbackKind
from fileq.core.errors import BrokerUnavailable, JobError
from fileq.testing.trial_queue import TrialQueue
from tests.support import batch_jobs
from tests.support.batch_jobs import Report, after, breaks, doubled, grows, grows_by_file, grows_parent, typed_after

FINALLY = CallbackKind.FINALLY


@pytest.fixture
def q() -> Iterator[TrialQueue]:
    batch_jobs.is_fixed = False
    with fileq.testing.queue(imports=["tests.support.batch_jobs"]) as queue:
        yield queue


def results(q: TrialQueue) -> dict[str, object]:
    """By the last part of the id: then, catch or finally."""
    return {job.id.rpartition(".")[2]: job.payload for job in q.completed("after")}


def facts(q: TrialQueue) -> dict[str, Any]:
    return {job.id.rpartition(".")[2]: job.result for job in q.completed("after")}


def test_the_payload_of_a_callback_is_exactly_what_its_caller_gave(q: TrialQueue) -> None:
    """Keys that the batch added itself were refused, and a Struct that forbids unknown fields could not be given."""
    with q.batch(then=typed_after.call(Report("mine", 7))) as batch:
        batch.add(doubled, 1)
    q.drain()
    [job] = q.completed("typed_after")
    assert job.payload == Report("mine", 7)
    assert job.result == f"mine, 7: then of batch {batch.id} is not a member of it; use context.enqueue()"
    with q.batch(finally_=fileq.Call("elsewhere", [1, "\0facts"])) as batch:
        pass
    assert q.client.job(f"{batch.id}.finally").status().status == "pending"
    [listed] = q.client.jobs(type="elsewhere")
    assert (listed.payload, listed.batch_facts) == ([1, "\0facts"], BatchFacts(batch.id, FINALLY, 0, 0, 0, 0, 0))


def test_a_callback_of_a_child_adds_to_the_parent(q: TrialQueue) -> None:
    with q.batch() as parent:
        with q.batch(parent=parent, then=grows_parent) as child:
            child.add(doubled, 1)
        q.drain()
    assert q.client.job(f"{child.id}.then").wait() == parent.id
    q.drain()
    assert (parent.status().total, parent.status().completed) == (3, 3)


def test_the_callbacks_of_a_batch_run_once_after_its_jobs(q: TrialQueue) -> None:
    with q.batch("night", then=after.call({"table": "a"}), catch=after, finally_="after") as batch:
        handles = batch.add_many([doubled.call(1), doubled.call(2)])
        batch.add(grows, 3)
        assert batch.status().status == BatchState.OPEN
    assert (batch.status().status, batch.status().waiting) == ("sealed", 3)
    assert batch.id.startswith("night-")
    status = batch.wait()
    assert (status.total, status.completed, status.is_success, status.ended) == (4, 4, True, 4)
    q.drain()
    assert results(q) == {"then": {"table": "a"}, "finally": None}
    counts = {"id": batch.id, "total": 4, "completed": 4, "dead": 0, "cancelled": 0, "deleted": 0}
    none = {"first_dead": "", "first_error": ""}
    assert facts(q) == {kind: {**counts, "callback": kind, **none} for kind in ("then", "finally")}
    assert [handle.wait() for handle in handles] == [2, 4]
    assert {job.batch_id for job in batch.jobs()} == {batch.id}


def test_the_first_death_cancels_the_rest_and_names_itself(q: TrialQueue) -> None:
    with q.batch(then=after, catch=after, finally_=after) as batch:
        dead = batch.add(breaks, 1)
        batch.add(doubled, 2)
        batch.add(doubled, 3, delay="1h")
    q.drain()
    status = batch.status()
    assert (status.dead, status.cancelled, status.is_cancelled, status.is_success) == (1, 2, True, False)
    assert status.first_dead == dead.id
    caught = facts(q)["catch"]
    assert (caught["first_dead"], caught["first_error"]) == (dead.id, status.first_error)
    assert results(q).keys() == {"catch", "finally"}
    assert [job.error for job in q.client.jobs(status="cancelled")] == [f"batch {batch.id} was cancelled"] * 2
    assert [job.id for job in batch.jobs(dead=True)] == [dead.id]


def test_a_retry_without_dead_jobs_leaves_a_batch_cancelled(q: TrialQueue) -> None:
    with q.batch("empty", then=after) as batch:
        batch.cancel()
    q.drain()
    assert batch.retry().count == 0
    status = batch.status()
    assert (status.is_cancelled, status.is_success) == (True, False), "its callback did not run"


def test_a_dead_job_that_is_retried_runs_although_its_death_cancelled_its_batch(q: TrialQueue) -> None:
    with q.batch(then=after) as batch:
        dead = batch.add(breaks, 1)
    q.drain()
    assert batch.status().is_cancelled
    batch_jobs.is_fixed = True
    dead.retry()
    q.drain()
    assert (dead.status().status, batch.status().is_success) == ("completed", True)
    assert results(q).keys() == {"then"}


def test_failures_that_are_allowed_cancel_nothing_and_a_retry_fires_then(q: TrialQueue) -> None:
    with q.batch(then=after, finally_=after, allow_failures=True) as batch:
        batch.add(breaks, 1)
        batch.add(doubled, 2)
    assert (batch.wait().dead, batch.status().completed) == (1, 1)
    q.drain()
    assert results(q).keys() == {"finally"}
    batch_jobs.is_fixed = True
    assert batch.retry().count == 1
    assert batch.wait().is_success
    q.drain()
    assert sorted(job.id for job in q.completed("after")) == [f"{batch.id}.finally", f"{batch.id}.then"]


def test_an_empty_batch_is_finished_when_it_is_sealed(q: TrialQueue) -> None:
    batch = q.batch(then=after)
    assert batch.seal()
    assert not batch.seal()
    assert batch.wait(0).is_success
    q.drain()
    assert results(q).keys() == {"then"}


def test_an_exception_in_the_block_cancels_the_batch_and_goes_on(q: TrialQueue) -> None:
    batch = q.batch(then=after)

    def fill() -> None:
        with batch:
            batch.add(doubled, 1)
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fill()
    assert (batch.status().is_cancelled, batch.status().cancelled) == (True, 1)
    assert not batch.cancel()
    q.drain()
    assert q.completed() == []


def test_a_sealed_batch_takes_no_jobs_but_from_its_own(q: TrialQueue) -> None:
    with q.batch() as batch:
        job = batch.add(grows_by_file, str(q.directory))
    for add in (lambda: batch.add(doubled, 1), lambda: q.client.enqueue(doubled, 1, batch=batch.id)):
        with pytest.raises(fileq.BatchError, match=f"batch {batch.id} no longer accepts jobs.*1 of 1 jobs"):
            add()
    job.wait()
    assert batch.status().total == 2


def test_a_nested_batch_is_one_member_and_its_callbacks_too(q: TrialQueue) -> None:
    with q.batch("outer", then=after) as outer, q.batch("inner", then=after, parent=outer) as inner:
        inner.add(doubled, 1)
    assert inner.status().parent == outer.id
    q.drain()
    assert (outer.status().total, outer.status().is_success) == (2, True)
    assert [job.id for job in q.completed("after")] == [f"{inner.id}.then", f"{outer.id}.then"]


def test_the_priority_of_a_batch_is_for_jobs_without_one(q: TrialQueue) -> None:
    batch = q.batch(priority="high", then=after)
    for one in (batch, q.client.find_batch(batch.id)):
        assert one.add(doubled, 1).status().queue == "high"
        assert one.add(doubled, 1, priority="low").status().queue == "low"
    path = q.directory / "a.bin"
    path.write_bytes(b"1")
    assert batch.add_file(path).status().queue == "high"
    assert batch.add_many([Path(path)])[0].status().queue == "high"
    assert batch.status().total == 6


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"name": "a b"}, "the name of the batch is 'a b'; it must match"),
        ({"catch": typed_after}, "catch: task 'typed_after' needs a payload of type Report"),
        ({"finally_": fileq.Call("x", object())}, "finally: the payload of task 'x' is not JSON"),
        ({"then": fileq.Call("x", delay=3)}, "then: delay can't be given"),
        ({"then": doubled.call({"a": 1})}, "then: .*Expected `int`, got `object`"),  # type: ignore[arg-type]
        ({"then": "", "catch": fileq.Call("x", id="a")}, r"then: task is ''; give a task.*\ncatch: id can't be given"),
        ({"priority": "odd"}, "priority is 'odd'; it must be one of"),
    ],
)
def test_a_batch_that_cannot_work_is_refused(q: TrialQueue, options: dict[str, object], message: str) -> None:
    with pytest.raises(fileq.ConfigError, match=message):
        q.client.batch(**options)  # type: ignore[arg-type]


def test_an_unknown_batch_is_an_error(q: TrialQueue) -> None:
    with pytest.raises(
        fileq.BatchError,
        match=r"no batch has the id 'nope' \(finished ones are kept for 30 days\); see 'fileq batch list'",
    ):
        q.client.find_batch("nope")
    with pytest.raises(fileq.FileqError, match="its parent nope does not exist"):
        q.batch(parent="nope")


def test_a_wait_that_takes_too_long_ends(q: TrialQueue) -> None:
    batch = q.batch()
    with pytest.raises(TimeoutError, match=f"batch {batch.id} is not finished within 0s; it is open: it ends only"):
        batch.wait(0)
    batch.add(doubled, 1)
    batch.seal()
    with pytest.raises(TimeoutError, match=r"0 of 1 jobs have ended$"):
        batch.wait(0)


def test_the_wait_for_a_batch_begins_during_an_outage(q: TrialQueue, monkeypatch: pytest.MonkeyPatch) -> None:
    with q.batch() as batch:
        batch.add(doubled, 1)
    transport, outages = q.client.transport(), [BrokerUnavailable("away")]
    subscribe = transport.subscribe

    def flaky() -> Subscription:
        if outages:
            raise outages.pop()
        return subscribe()

    monkeypatch.setattr(transport, "subscribe", flaky)
    assert batch.wait().is_success
    assert outages == []


def test_the_end_of_a_batch_is_an_event_without_a_job(q: TrialQueue) -> None:
    with q.client.events("batch.finished") as events:
        with q.batch() as batch:
            batch.add(doubled, 1)
        event = next(events)
    assert isinstance(event, PublishedBatchEvent)
    assert (event.event, event.batch_id, event.job_id, event.total) == ("batch:finished", batch.id, "", 1)


def test_an_async_batch_has_the_same_methods(q: TrialQueue) -> None:
    async def use(client: fileq.AsyncClient) -> None:
        async with client.batch("night", then=after) as batch:
            handle = await batch.add(doubled, 1)
            await batch.add_many([doubled.call(2)])
        assert (await batch.wait()).is_success
        assert await handle.wait() == 2
        assert len([job async for job in batch.jobs()]) == 2
        later = await client.batch()
        with pytest.raises(RuntimeError, match="not created yet"):
            _ = client.batch().id
        await (await client.find_batch(later.id)).add_file(q.directory / "a.bin", priority="high")
        assert await later.seal()
        assert await later.cancel()
        assert (await later.retry()).count == 0
        assert (await later.status()).cancelled == 1

    (q.directory / "a.bin").write_bytes(b"1")
    asyncio.run(use(fileq.AsyncClient.of(q.client)))


def test_a_handler_outside_a_batch_has_none() -> None:
    assert fileq.testing.run(lambda job, context: context.batch) is None
    assert fileq.testing.run(lambda job, context: context.batch.id, batch="b") == "b"
    with pytest.raises(JobError, match="give a task, or its name"):
        fileq.testing.run(lambda job, context: context.batch.add(doubled.call(1)), batch="b", id="a")
    added = fileq.testing.run(lambda job, context: context.batch.add("doubled", 1, delay="5m"), batch="b", id="a")
    assert isinstance(added, str)
