"""One turn of the pump after the other: claims, settlements, lost replies."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from fileq.brokers.types import Entry
from fileq.core.errors import BrokerUnavailable
from fileq.core.job import State, rfc3339, typed_job
from fileq.core.outcome import Cancelled, Died, Done, Failed, Released, Task
from tests.support.pump_setup import NOW, PumpSetup
from tests.support.sqlite_store import push_raw


@pytest.fixture
def setup() -> PumpSetup:
    return PumpSetup()


def test_a_turn_claims_for_every_free_slot_and_submits(setup: PumpSetup) -> None:
    setup.enqueue("a", "b", "c")
    assert setup.pump.turn() == 2
    assert setup.submitted() == ["a", "b"]
    assert setup.pump.turn() == 0
    assert setup.pump.running_count == 2
    assert not setup.pump.is_underfilled, "no slot is free, so no wake-up is needed"


def test_what_ends_while_it_is_submitted_makes_a_turn_due_at_once(
    setup: PumpSetup, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No descriptor becomes readable for it: a pump that waited now would leave it unsettled."""
    submit = setup.executor.submit

    def submit_and_end(tasks: Sequence[Task]) -> None:
        submit(tasks)
        setup.executor.end(Done())

    monkeypatch.setattr(setup.executor, "submit", submit_and_end)
    setup.enqueue("a", "b")
    assert setup.pump.turn() == 2
    assert setup.pump.is_turn_due
    setup.pump.turn()
    assert (setup.state("a"), setup.state("b")) == (State.COMPLETED, State.COMPLETED)


@pytest.mark.parametrize(("broker_year", "state"), [(1, State.DEAD), (-1, State.RUNNING)])
def test_the_clock_of_the_broker_decides_on_a_deadline(broker_year: int, state: State) -> None:
    """low: deadlines use the worker's clock. Here that is the machine's, by which the deadline is about now."""
    setup = PumpSetup(count=1, handlers=[{"type": "t", "use": "fileq.handlers:checksum"}])
    now, half_a_year = datetime.now(UTC), timedelta(days=183)
    setup.clocks.wall = round((now + 2 * broker_year * half_a_year).timestamp()) * 10**9
    deadline = rfc3339(now + broker_year * half_a_year)
    setup.broker.enqueue([Entry(typed_job("t", None, priority="low", now=NOW, id="a").but(deadline=deadline), "low")])
    setup.pump.turn()
    setup.pump.turn(may_claim=False)
    assert setup.state("a") is state


def test_outcomes_are_settled_and_their_slots_filled_in_one_round_trip(setup: PumpSetup) -> None:
    setup.enqueue("a", "b", "c")
    setup.pump.turn()
    setup.executor.end(Done())
    before = setup.broker.calls
    assert setup.pump.turn() == 1
    assert setup.broker.calls == before + 1
    assert [setup.state(id) for id in "abc"] == ["completed", "completed", "running"]
    assert setup.pump.is_underfilled


def test_the_events_of_a_turn_are_emitted_together_and_those_of_claims_before_their_tasks_are_submitted(
    setup: PumpSetup,
) -> None:
    setup.enqueue("a", "b", "c")
    setup.pump.turn()
    assert setup.batches == [(["job.claimed", "job.claimed"], 0)]
    setup.executor.end(Done())
    setup.batches.clear()
    setup.pump.turn()
    assert setup.batches == [(["job.claimed"], 2), (["job.completed", "job.completed"], 3)]


def test_an_idle_turn_without_a_claim_makes_no_round_trip(setup: PumpSetup) -> None:
    before = setup.broker.calls
    setup.pump.turn(may_claim=False)
    assert setup.broker.calls == before


def test_a_quiet_pump_settles_and_claims_nothing(setup: PumpSetup) -> None:
    setup.enqueue("a", "b", "c")
    setup.pump.turn()
    setup.pump.is_quiet = True
    setup.executor.end(Done())
    assert setup.pump.turn() == 0
    assert [setup.state(id) for id in "abc"] == ["completed", "completed", "pending"]
    assert setup.pump.is_idle
    setup.pump.finish()
    assert setup.broker.workers() == []


@pytest.mark.parametrize(
    ("ran", "state", "event"),
    [
        (Done(), "completed", "job.completed"),
        (Failed("no", "ValueError"), "retrying", "job.failed"),
        (Failed("no", "Permanent", is_permanent=True), "dead", "job.dead"),
        (Died("SIGKILL"), "pending", "job.recovered"),
        (Cancelled(), "cancelled", "job.cancelled"),
        (Released(), "pending", "job.released"),
    ],
)
def test_every_outcome_is_settled_and_reported(ran: Any, state: str, event: str) -> None:
    setup = PumpSetup(count=1)
    setup.enqueue("a")
    setup.pump.turn()
    setup.executor.end(ran)
    setup.pump.is_quiet = True
    setup.pump.turn()
    assert setup.state("a") == state
    assert setup.events.count(event) == 1


def test_a_claim_that_cannot_be_run_is_buried_without_running_and_is_no_sample() -> None:
    setup = PumpSetup(count=2, min_samples=1)
    push_raw(setup.broker, "low", b"no job")
    setup.broker.enqueue([Entry(typed_job("unknown", None, priority="low", now=NOW, id="typed"), "low")])
    setup.pump.turn()
    assert setup.pump.is_turn_due, "it is settled at once"
    setup.pump.turn()
    assert setup.submitted() == []
    assert setup.broker.peek("dead_letter", 9)[1] == b"no job"
    assert setup.state("typed") == "dead"
    assert setup.breakers.state == "closed"
    assert ["is_failure" in fields for event, fields in setup.events.events if event == "job.dead"] == [False, False]


# lost replies


def test_after_a_lost_reply_a_claim_is_submitted_once(setup: PumpSetup) -> None:
    setup.enqueue("a")
    setup.broker.loses_replies = 1
    with pytest.raises(BrokerUnavailable):
        setup.pump.turn()
    assert setup.submitted() == []
    setup.pump.turn()
    setup.pump.turn()
    assert setup.submitted() == ["a"]


def test_after_a_lost_reply_an_outcome_is_settled_again_with_one_effect_and_never_run_again(setup: PumpSetup) -> None:
    setup.enqueue("a", "b", "c", "d")
    setup.pump.turn()
    setup.executor.end(Done())
    setup.broker.loses_replies = 2
    for _ in range(2):
        with pytest.raises(BrokerUnavailable):
            setup.pump.turn()
    setup.pump.turn()
    assert setup.submitted() == ["a", "b", "c", "d"]
    assert setup.broker.census().counters["completed"] == 2
    assert setup.events.count("job.completed") == 2
    assert setup.events.count("job.fenced") == 0


def test_while_the_broker_is_away_outcomes_are_kept(setup: PumpSetup) -> None:
    setup.enqueue("a", "b")
    setup.pump.turn()
    setup.broker.is_away = True
    setup.executor.end(Done())
    for _ in range(3):
        with pytest.raises(BrokerUnavailable):
            setup.pump.turn()
    assert setup.pump.is_turn_due
    setup.broker.is_away = False
    setup.pump.turn()
    assert [setup.state(id) for id in "ab"] == ["completed", "completed"]


# the breaker


def test_a_probe_whose_reply_was_lost_is_claimed_again() -> None:
    setup = PumpSetup(count=2, min_samples=1, cooldown_period="10s")
    setup.enqueue("a", "b")
    setup.pump.turn()
    setup.executor.end(Failed("no", "ValueError", is_permanent=True))
    setup.pump.turn()
    assert setup.breakers.state == "open"
    setup.enqueue("c", "d")
    assert setup.pump.turn() == 0
    setup.clocks.advance(10)
    setup.broker.loses_replies = 1
    with pytest.raises(BrokerUnavailable):
        setup.pump.turn()
    assert setup.pump.turn() == 1
    assert setup.submitted() == ["a", "b", "c"]
    setup.executor.end(Done())
    setup.pump.turn()
    assert setup.breakers.state == "closed"
    assert {view.info.breaker for view in setup.broker.workers()} == {"closed"}


def test_a_probe_without_a_job_a_stale_result_and_a_shutdown_do_not_decide_the_breaker() -> None:
    setup = PumpSetup(count=2, min_samples=1, cooldown_period="10s")
    setup.enqueue("fails", "stale")
    setup.pump.turn()
    setup.executor.end(Failed("no", "ValueError", is_permanent=True), "fails")
    setup.pump.turn()
    setup.clocks.advance(10)
    assert [setup.pump.turn(), setup.pump.turn()] == [0, 0], "there is no job to probe with"
    assert setup.breakers.state == "half-open"
    setup.enqueue("probe", "waits")
    assert setup.pump.turn() == 1
    setup.executor.end(Failed("no", "ValueError", is_permanent=True), "stale")
    assert setup.pump.turn() == 0, "one probe at a time"
    assert setup.breakers.state == "half-open"
    setup.pump.cancel_all(0.0)  # a shutdown
    setup.pump.is_quiet = True
    setup.pump.turn()
    assert setup.breakers.state == "half-open"
    assert [setup.state(id) for id in ("probe", "waits")] == ["pending", "pending"]
