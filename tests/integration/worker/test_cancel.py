"""An operator cancels running jobs. The installed program, on a server and on SQLite."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import closing

import msgspec

from fileq.brokers.protocol import Subscription
from fileq.brokers.types import CancelResult, WireEvent
from fileq.core.job import State
from tests.support.parallel_scenarios import parallel_scenario, running_scenarios
from tests.support.waiting import wait_until
from tests.support.worker_setup import TTL_S, WorkerSetup, ids, is_running

__all__ = ["running_scenarios"]
OBEDIENT, STUBBORN = ["obedient", "obedient_in_thread"], ["stubborn", "stubborn_in_thread"]


@parallel_scenario("valkey", "sqlite")
def test_a_cancelled_running_job_is_signalled_then_killed_and_never_tried_again(setup: WorkerSetup) -> None:
    worker = setup.worker(count=5)
    cancelled = [*OBEDIENT, *STUBBORN]
    for type in cancelled:
        setup.enqueue(type, type)
    setup.enqueue("gated", "bystander")
    setup.wait_logged("start", 5)
    with closing(setup.broker.subscribe()) as subscription:
        cancelled_s = time.time()
        assert setup.broker.cancel([*cancelled, "unknown"]) == [*[CancelResult.REQUESTED] * 4, CancelResult.UNKNOWN]
        assert sorted(setup.wait_logged("cancelled", 2)) == OBEDIENT
        # Its worker learns of it at its next renewal, a third of a heartbeat later at most.
        assert max(line.at_s for line in setup.handler_log("cancelled")) - cancelled_s < TTL_S
        setup.wait_for(State.CANCELLED, OBEDIENT)
        assert setup.states(STUBBORN) == {"running": 2}, "they have five seconds to stop"
        setup.wait_for(State.CANCELLED, cancelled)
        events = [event for event in published(subscription) if event.event != "job:started"]
    assert [(event.event, event.retry_count) for event in events] == [("job:cancelled", 0)] * 4
    assert sorted(event.job_id for event in events) == sorted(cancelled)
    [child] = [line.pid for line in setup.handler_log("start") if line.id == "stubborn"]
    wait_until(lambda: not is_running(child), 5, "what did not stop was killed")
    assert [line["reason"] for line in worker.events("thread.abandoned")] == ["it did not stop in time"]
    for job in cancelled:
        assert [attempt.outcome for attempt in setup.record(job).attempts] == ["cancelled"]
        assert (setup.job(job).retries, setup.job(job).recoveries) == (0, 0)
    assert len(setup.broker.peek("cancelled", 10)) == 4
    # The slots are free again, and the other job was not disturbed.
    setup.wait_for(State.COMPLETED, setup.enqueue("note", *ids("note", 20)))
    setup.open_gate()
    setup.wait_for(State.COMPLETED, ["bystander"])
    assert setup.record("bystander").attempt_count == 1
    assert sorted(setup.logged("start")) == sorted([*cancelled, "bystander"]), "none was run twice"
    census = setup.census()
    assert (census.counters["cancelled"], census.counters["completed"], census.drift) == (4, 21, 0)
    assert [census.counters.get(name, 0) for name in ("failed", "retried", "recovered", "dead")] == [0] * 4
    assert setup.broker.cancel(["obedient", "bystander"]) == [CancelResult.ENDED] * 2
    assert worker.stop() == 0


def test_a_running_job_is_cancelled_long_before_the_next_renewal(each_setup: WorkerSetup) -> None:
    """The next renewal is more than three minutes away, and no slot is free, so nothing else wakes the worker."""
    setup = each_setup
    setup.worker(count=2, heartbeat_ttl="10m")
    setup.enqueue("obedient", "obedient")
    setup.enqueue("gated", "bystander")
    setup.wait_logged("start", 2)
    assert setup.broker.cancel(["obedient"]) == [CancelResult.REQUESTED]
    setup.wait_for(State.CANCELLED, ["obedient"])
    setup.open_gate()
    setup.wait_for(State.COMPLETED, ["bystander"])
    assert setup.record("bystander").attempt_count == 1


def published(subscription: Subscription) -> Iterator[WireEvent]:
    while (event := subscription.get(0.5)) is not None:
        yield msgspec.json.decode(event, type=WireEvent)
