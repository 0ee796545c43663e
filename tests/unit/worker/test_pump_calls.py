"""The pump with calls in flight: the broker carries them out at once, and the test decides when the replies come."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence

import pytest

from fileq.brokers.protocol import PendingReply
from fileq.brokers.types import Renewal, TurnReply
from fileq.core.errors import BrokerUnavailable
from fileq.core.job import State, decode
from fileq.core.outcome import Done, Failed
from fileq.core.settlement import Settlement
from fileq.worker.pump import CALLS_MAX
from tests.support.pump_setup import PumpSetup, UnreliableBroker, job_id


class DelayedReply:
    is_answered = False

    def __init__(self, broker: SlowBroker, reply: TurnReply, slots: frozenset[str]) -> None:
        self.broker = broker
        self.reply = reply
        self.slots = slots
        self.is_dropped = False

    def wait(self, timeout_s: float) -> bool:
        assert timeout_s <= 0.01, "tiny tasks wait for their collection"
        self.broker.on_wait()
        return self.broker.replies_in_time

    def take(self) -> TurnReply:
        self.broker.in_flight.remove(self)
        if self.broker.loses_delayed_replies:
            self.broker.loses_delayed_replies -= 1
            self.broker.has_lost = True
            raise BrokerUnavailable("the reply was lost")
        return self.reply

    def drop(self) -> None:
        self.is_dropped = True
        self.broker.in_flight.remove(self)


class SlowBroker(UnreliableBroker):
    """Carries a call out at once and replies later. Checks what the pump guarantees."""

    loses_delayed_replies = 0
    has_lost = False
    replies_in_time = True
    on_wait: Callable[[], object] = staticmethod(lambda: None)

    def __init__(self, *arguments: object, **options: object) -> None:
        super().__init__(*arguments, **options)  # type: ignore[arg-type]
        self.in_flight: list[DelayedReply] = []
        self.sizes: list[int] = []
        self.most_in_flight = 0

    def send_settle_and_claim(self, settlements: Sequence[Settlement], slots: Sequence[str]) -> PendingReply:
        about = frozenset((*slots, *(s.claim.slot for s in settlements)))
        assert not any(about & reply.slots for reply in self.in_flight), "a slot is in two calls"
        assert len(self.in_flight) < CALLS_MAX
        settled = {s.claim.slot for s in settlements}
        holding = [view for view in self.workers() if view.raw and view.slot in slots and view.slot not in settled]
        assert not holding or self.has_lost, "a slot claims while it holds a job"
        self.sizes.append(len(about))
        reply = DelayedReply(self, self.settle_and_claim(settlements, slots), about)
        self.in_flight.append(reply)
        self.most_in_flight = max(self.most_in_flight, len(self.in_flight))
        return reply

    def renew(self, holdings: Sequence[tuple[str, bytes]]) -> list[Renewal]:
        assert not self.in_flight, "a renewal while a call is in flight"
        return super().renew(holdings)


class SlowSetup(PumpSetup):
    broker_class = SlowBroker
    broker: SlowBroker

    def turn_until_nothing_is_due(self) -> None:
        self.pump.turn()
        while self.pump.is_turn_due:
            self.pump.turn()


@pytest.fixture
def setup() -> SlowSetup:
    return SlowSetup(count=4)


def test_a_turn_sends_a_call_and_the_next_turn_takes_its_reply(setup: SlowSetup) -> None:
    setup.enqueue("a")
    assert setup.pump.turn() == 0
    assert setup.pump.is_turn_due
    assert not setup.pump.is_idle
    assert setup.pump.turn() == 1
    assert setup.submitted() == ["a"]


def test_what_is_claimed_after_quiet_never_starts_and_is_released(setup: SlowSetup) -> None:
    setup.enqueue("a", "b")
    setup.pump.turn()
    setup.pump.is_quiet = True
    setup.pump.cancel_all(0.0)
    setup.turn_until_nothing_is_due()
    assert setup.submitted() == []
    assert setup.pump.is_idle
    assert [decode(raw).id for page in setup.broker.pages("low") for raw in page] == ["a", "b"]
    assert setup.broker.census().counters["released"] == 2


def test_a_slot_whose_claim_found_nothing_does_not_claim_again_by_itself(setup: SlowSetup) -> None:
    setup.turn_until_nothing_is_due()
    assert len(setup.broker.sizes) == 1
    assert setup.pump.is_underfilled
    assert setup.pump.is_idle


def test_under_load_two_calls_are_in_flight_about_half_of_the_slots_each(setup: SlowSetup) -> None:
    setup.enqueue(*(f"job-{i}" for i in range(40)))
    setup.turn_until_nothing_is_due()
    while setup.executor.running:
        setup.executor.end(Done())
        setup.turn_until_nothing_is_due()
    assert setup.broker.most_in_flight == CALLS_MAX
    assert set(setup.broker.sizes[2:-2]) == {2}
    assert all(setup.state(f"job-{i}") is State.COMPLETED for i in range(40))


def test_tiny_tasks_are_collected_before_a_reply_that_takes_longer(setup: SlowSetup) -> None:
    setup.enqueue("a", "b", "c", "d", "e")
    setup.turn_until_nothing_is_due()
    setup.executor.end(Done(), "a")
    setup.pump.turn()
    setup.executor.bundles = 1
    setup.broker.replies_in_time = False
    setup.broker.on_wait = lambda: setup.executor.end(Done(), "b")
    setup.broker.loses_delayed_replies = 1
    with pytest.raises(BrokerUnavailable):  # so what the turn has done before is seen
        setup.pump.turn()
    assert [job_id(task) for task, _ in setup.executor.ended] == []
    assert sorted(job_id(task) for task in setup.executor.running.values()) == ["c", "d"]
    setup.broker.on_wait = lambda: None
    setup.turn_until_nothing_is_due()
    assert setup.state("b") is State.COMPLETED


def test_tiny_tasks_that_ended_before_a_late_reply_are_settled_by_a_second_call(setup: SlowSetup) -> None:
    setup.enqueue(*(f"job-{i}" for i in range(12)))
    setup.turn_until_nothing_is_due()
    first, second, third, fourth = setup.submitted()
    setup.executor.end(Done(), first)
    setup.executor.end(Done(), second)
    setup.pump.turn()
    assert len(setup.broker.in_flight) == 1
    setup.executor.bundles = 1
    setup.broker.replies_in_time = False
    setup.broker.on_wait = lambda: [setup.executor.end(Done(), id) for id in (third, fourth)]
    assert setup.pump.turn() == 0, "it took a reply that was late"
    assert len(setup.broker.in_flight) == 2


def test_each_bundle_of_tiny_tasks_is_collected_until_a_second_call_is_worth_it(setup: SlowSetup) -> None:
    setup.enqueue(*(f"job-{i}" for i in range(12)))
    setup.turn_until_nothing_is_due()
    first, second, *others = setup.submitted()
    setup.executor.end(Done(), first)
    setup.executor.end(Done(), second)
    setup.pump.turn()
    setup.executor.bundles = 3
    setup.broker.replies_in_time = False
    setup.broker.on_wait = lambda: setup.executor.end(Done(), others.pop())
    assert setup.pump.turn() == 0, "it took a reply that was late"
    assert (len(setup.broker.in_flight), setup.executor.bundles) == (2, 1)


def test_no_tiny_task_waits_behind_a_slow_one_until_a_late_reply_comes(setup: SlowSetup) -> None:
    setup.enqueue("a", "b", "c", "d", "e")
    setup.turn_until_nothing_is_due()
    setup.executor.end(Done(), "a")
    setup.pump.turn()
    setup.pump.look_for_cancels()  # a renewal is due, and before it the reply
    setup.executor.bundles = 2
    setup.broker.replies_in_time = False
    setup.broker.loses_delayed_replies = 1
    with pytest.raises(BrokerUnavailable):
        setup.pump.turn()
    assert setup.executor.bundles == 0


def test_tiny_tasks_run_while_the_broker_works_but_not_while_it_works_in_this_process(setup: SlowSetup) -> None:
    for each in (setup, PumpSetup(count=4)):
        each.enqueue(*(f"job-{i}" for i in range(12)))
        each.pump.turn()
        while each.pump.is_turn_due or each.executor.running:
            each.executor.end(Done())
            each.pump.turn()
        assert all(each.executor.waits) == (each is not setup)


def test_a_completion_is_reported_while_the_next_tasks_run_and_a_failure_before_they_begin(setup: SlowSetup) -> None:
    setup.enqueue("a", "b", "c", "d", "e", "f")
    setup.turn_until_nothing_is_due()
    setup.batches.clear()
    setup.executor.end(Done(), "a")
    setup.turn_until_nothing_is_due()
    assert [names for names, _ in setup.batches] == [["job.claimed"], ["job.completed"]]
    setup.batches.clear()
    setup.executor.end(Failed("it failed", "Oops"), "b")
    setup.turn_until_nothing_is_due()
    assert [names for names, _ in setup.batches] == [["job.failed"], ["job.claimed"]]


def test_after_a_lost_reply_the_call_is_repeated_and_nothing_runs_twice(setup: SlowSetup) -> None:
    setup.enqueue("a", "b")
    setup.pump.turn()
    setup.broker.loses_delayed_replies = 1
    with pytest.raises(BrokerUnavailable):
        setup.pump.turn()
    setup.turn_until_nothing_is_due()
    assert setup.submitted() == ["a", "b"]
    setup.executor.end(Done())
    setup.pump.turn()
    setup.broker.loses_delayed_replies = 1
    with pytest.raises(BrokerUnavailable):
        setup.turn_until_nothing_is_due()
    setup.turn_until_nothing_is_due()
    assert setup.broker.census().counters["completed"] == 2
    assert setup.submitted() == ["a", "b"]


def test_a_job_that_was_claimed_by_a_call_without_a_reply_starts_with_the_next_turn(setup: SlowSetup) -> None:
    """Also if other slots have enough settlements to fill the next call."""
    setup.enqueue("a", "b")
    setup.turn_until_nothing_is_due()
    setup.enqueue("c")
    setup.pump.turn()
    setup.executor.end(Done())
    setup.broker.loses_delayed_replies = 1
    with pytest.raises(BrokerUnavailable):
        setup.turn_until_nothing_is_due()
    setup.turn_until_nothing_is_due()
    assert setup.submitted() == ["a", "b", "c"]


def test_after_a_lost_reply_no_other_call_in_flight_is_sent_again(setup: SlowSetup) -> None:
    setup.enqueue(*(f"job-{i}" for i in range(12)))
    setup.turn_until_nothing_is_due()
    setup.executor.end(Done())
    setup.pump.turn()
    setup.pump.turn()
    first, other = setup.broker.in_flight
    setup.broker.loses_delayed_replies = 1
    with pytest.raises(BrokerUnavailable):
        setup.pump.turn()
    assert other.is_dropped
    assert not first.is_dropped
    setup.turn_until_nothing_is_due()
    assert len(set(setup.submitted())) == len(setup.submitted()) == 8


def test_a_renewal_waits_for_the_calls_in_flight(setup: SlowSetup) -> None:
    setup.enqueue("a")
    setup.pump.turn()
    setup.advance_to_renewal()
    setup.pump.turn()
    setup.pump.turn()
    assert setup.submitted() == ["a"], "what the call claimed is not mistaken for an unexpected job"


def test_a_half_open_breaker_lets_one_probe_through_while_calls_are_in_flight() -> None:
    setup = SlowSetup(count=4, min_samples=2, cooldown_period="10s")
    setup.enqueue(*(f"job-{i}" for i in range(12)))
    setup.turn_until_nothing_is_due()
    setup.executor.end(Failed("no", "ValueError"))
    setup.turn_until_nothing_is_due()
    assert setup.breakers.state == "open"
    setup.clocks.advance(11)
    before = len(setup.executor.submitted)
    setup.turn_until_nothing_is_due()
    setup.turn_until_nothing_is_due()
    assert len(setup.executor.submitted) - before == 1
    setup.executor.end(Done())
    setup.turn_until_nothing_is_due()
    assert setup.breakers.state == "closed"
    assert len(setup.executor.submitted) - before > 1


def test_a_pump_that_stops_drops_the_call_in_flight(setup: SlowSetup) -> None:
    setup.enqueue("a")
    setup.pump.turn()
    [reply] = setup.broker.in_flight
    setup.pump.finish()
    assert reply.is_dropped
    assert setup.state("a") is State.PENDING, "the slot is gone, and what it had claimed is back in its queue"


@pytest.mark.parametrize("seed", range(30))
def test_each_job_runs_once_in_any_order_of_outcomes_and_lost_replies(seed: int) -> None:
    chance = random.Random(seed)
    setup = SlowSetup(count=chance.randint(1, 7))
    ids = [f"job-{i}" for i in range(60)]
    for _ in range(2_000):
        if ids and chance.random() < 0.3:
            setup.enqueue(*(ids.pop() for _ in range(min(len(ids), chance.randint(1, 9)))))
        setup.broker.loses_delayed_replies = int(chance.random() < 0.1)
        for key in [key for key in setup.executor.running if chance.random() < 0.4]:
            setup.executor.ended.append((setup.executor.running.pop(key), Done()))
        if chance.random() < 0.02:
            setup.advance_to_renewal()
        try:
            setup.pump.turn()
        except BrokerUnavailable:
            continue
        if not ids and setup.broker.census().counters.get("completed") == 60 and setup.pump.is_idle:
            break
    assert sorted(setup.submitted()) == sorted(f"job-{i}" for i in range(60))
    assert setup.broker.census().drift == 0
    assert setup.pump.is_idle
