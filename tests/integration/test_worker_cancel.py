"""An operator cancels running jobs. The installed program, on a server and on SQLite."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import closing

import msgspec

from fileq.brokers.protocol import Subscription
from fileq.brokers.types import CancelResult, WireEvent
from fileq.core.job import State
from tests.support.parallel_scenarios import together, under_way
from tests.support.waiting import wait_until
from tests.support.worker_setup import TTL_S, Farm, ids, is_running

__all__ = ["under_way"]
OBEDIENT, STUBBORN = ["obedient", "obedient_in_thread"], ["stubborn", "stubborn_in_thread"]


@together("valkey", "sqlite")
def test_a_cancelled_running_job_is_signalled_then_killed_and_never_tried_again(farm: Farm) -> None:
    worker = farm.worker(count=5)
    cancelled = [*OBEDIENT, *STUBBORN]
    for type in cancelled:
        farm.enqueue(type, type)
    farm.enqueue("gated", "bystander")
    farm.wait_told("start", 5)
    with closing(farm.broker.subscribe()) as subscription:
        cancelled_s = time.time()
        assert farm.broker.cancel([*cancelled, "unknown"]) == [*[CancelResult.REQUESTED] * 4, CancelResult.UNKNOWN]
        assert sorted(farm.wait_told("cancelled", 2)) == OBEDIENT
        # Its worker learns of it at its next renewal, a third of a heartbeat later at most.
        assert max(line.at_s for line in farm.diary("cancelled")) - cancelled_s < TTL_S
        farm.wait_for(State.CANCELLED, OBEDIENT)
        assert farm.states(STUBBORN) == {"running": 2}, "they have five seconds to stop"
        farm.wait_for(State.CANCELLED, cancelled)
        events = [event for event in published(subscription) if event.event != "job:started"]
    assert [(event.event, event.retry_count) for event in events] == [("job:cancelled", 0)] * 4
    assert sorted(event.job_id for event in events) == sorted(cancelled)
    [child] = [line.pid for line in farm.diary("start") if line.id == "stubborn"]
    wait_until(lambda: not is_running(child), 5, "what did not stop was killed")
    assert [line["reason"] for line in worker.events("thread.abandoned")] == ["it did not stop in time"]
    for job in cancelled:
        assert [attempt.outcome for attempt in farm.record(job).attempts] == ["cancelled"]
        assert (farm.job(job).retries, farm.job(job).recoveries) == (0, 0)
    assert len(farm.broker.peek("cancelled", 10)) == 4
    # The slots are free again, and the other job was not disturbed.
    farm.wait_for(State.COMPLETED, farm.enqueue("note", *ids("note", 20)))
    farm.open_gate()
    farm.wait_for(State.COMPLETED, ["bystander"])
    assert farm.record("bystander").attempt_count == 1
    assert sorted(farm.told("start")) == sorted([*cancelled, "bystander"]), "none was run twice"
    census = farm.census()
    assert (census.counters["cancelled"], census.counters["completed"], census.drift) == (4, 21, 0)
    assert [census.counters.get(name, 0) for name in ("failed", "retried", "recovered", "dead")] == [0] * 4
    assert farm.broker.cancel(["obedient", "bystander"]) == [CancelResult.ENDED] * 2
    assert worker.stop() == 0


def published(subscription: Subscription) -> Iterator[WireEvent]:
    while (event := subscription.get(0.5)) is not None:
        yield msgspec.json.decode(event, type=WireEvent)
