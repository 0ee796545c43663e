"""The pump with turns underway: a broker that has done its part, and whose answers come when the test lets them."""

from __future__ import annotations

import random
from collections.abc import Sequence

import pytest

from fileq.brokers.protocol import PendingReply
from fileq.brokers.types import Renewal, TurnReply
from fileq.core.errors import BrokerUnavailable
from fileq.core.job import State, decode
from fileq.core.outcome import Done, Failed
from fileq.core.settlement import Settlement
from fileq.worker.turns import UNDERWAY_MAX
from tests.unit.test_pump import Bench, Shaky


class Awaited:
    is_answered = False

    def __init__(self, broker: Distant, answer: TurnReply, slots: frozenset[str]) -> None:
        self.broker = broker
        self.answer = answer
        self.slots = slots
        self.is_dropped = False

    def take(self) -> TurnReply:
        self.broker.underway.remove(self)
        if self.broker.loses_answers:
            self.broker.loses_answers -= 1
            self.broker.has_lost = True
            raise BrokerUnavailable("the answer was lost")
        return self.answer

    def drop(self) -> None:
        self.is_dropped = True
        self.broker.underway.remove(self)


class Distant(Shaky):
    """Does at once what a turn asks, and answers later. Insists on what the pump promises."""

    loses_answers = 0
    has_lost = False

    def __init__(self, *arguments: object, **options: object) -> None:
        super().__init__(*arguments, **options)  # type: ignore[arg-type]
        self.underway: list[Awaited] = []
        self.sizes: list[int] = []
        self.most_underway = 0

    def send_settle_and_claim(self, settlements: Sequence[Settlement], slots: Sequence[str]) -> PendingReply:
        about = frozenset((*slots, *(s.claim.slot for s in settlements)))
        assert not any(about & awaited.slots for awaited in self.underway), "a slot is in two turns"
        assert len(self.underway) < UNDERWAY_MAX
        settled = {s.claim.slot for s in settlements}
        holding = [slot for slot in slots if self.store.processing[slot] and slot not in settled]
        assert not holding or self.has_lost, "a slot asks for a job while it holds one"
        self.sizes.append(len(about))
        awaited = Awaited(self, self.settle_and_claim(settlements, slots), about)
        self.underway.append(awaited)
        self.most_underway = max(self.most_underway, len(self.underway))
        return awaited

    def renew(self, holdings: Sequence[tuple[str, bytes]]) -> list[Renewal]:
        assert not self.underway, "a renewal crosses a turn"
        return super().renew(holdings)


class DistantBench(Bench):
    broker_class = Distant
    broker: Distant

    def turn_until_quiet(self) -> None:
        self.pump.turn()
        while self.pump.has_news:
            self.pump.turn()


@pytest.fixture
def bench() -> DistantBench:
    return DistantBench(count=4)


def test_a_turn_is_begun_and_its_answer_taken_at_the_next(bench: DistantBench) -> None:
    bench.enqueue("a")
    assert bench.pump.turn() == 0
    assert bench.pump.has_news
    assert not bench.pump.is_idle
    assert bench.pump.turn() == 1
    assert bench.submitted() == ["a"]


def test_what_a_turn_brings_after_quiet_never_begins_and_is_given_back(bench: DistantBench) -> None:
    bench.enqueue("a", "b")
    bench.pump.turn()
    bench.pump.is_quiet = True
    bench.pump.cancel_all(0.0)
    bench.turn_until_quiet()
    assert bench.submitted() == []
    assert bench.pump.is_idle
    assert [decode(raw).id for page in bench.broker.pages("low") for raw in page] == ["a", "b"]
    assert bench.broker.census().counters["released"] == 2


def test_a_slot_that_asked_in_vain_does_not_ask_again_by_itself(bench: DistantBench) -> None:
    bench.turn_until_quiet()
    assert len(bench.broker.sizes) == 1
    assert bench.pump.is_hungry
    assert bench.pump.is_idle


def test_under_load_two_turns_are_underway_about_half_of_the_slots_each(bench: DistantBench) -> None:
    bench.enqueue(*(f"job-{i}" for i in range(40)))
    bench.turn_until_quiet()
    while bench.places.running:
        bench.places.end(Done())
        bench.turn_until_quiet()
    assert bench.broker.most_underway == UNDERWAY_MAX
    assert set(bench.broker.sizes[2:-2]) == {2}
    assert all(bench.state(f"job-{i}") is State.COMPLETED for i in range(40))


def test_an_answer_that_was_lost_is_asked_for_again_and_nothing_runs_twice(bench: DistantBench) -> None:
    bench.enqueue("a", "b")
    bench.pump.turn()
    bench.broker.loses_answers = 1
    with pytest.raises(BrokerUnavailable):
        bench.pump.turn()
    bench.turn_until_quiet()
    assert bench.submitted() == ["a", "b"]
    bench.places.end(Done())
    bench.pump.turn()
    bench.broker.loses_answers = 1
    with pytest.raises(BrokerUnavailable):
        bench.turn_until_quiet()
    bench.turn_until_quiet()
    assert bench.broker.census().counters["completed"] == 2
    assert bench.submitted() == ["a", "b"]


def test_a_job_that_was_claimed_by_a_turn_without_an_answer_begins_with_the_next_turn(bench: DistantBench) -> None:
    """Also if other slots have enough to say to fill that turn."""
    bench.enqueue("a", "b")
    bench.turn_until_quiet()
    bench.enqueue("c")
    bench.pump.turn()
    bench.places.end(Done())
    bench.broker.loses_answers = 1
    with pytest.raises(BrokerUnavailable):
        bench.turn_until_quiet()
    bench.turn_until_quiet()
    assert bench.submitted() == ["a", "b", "c"]


def test_without_an_answer_no_turn_that_was_underway_is_sent_again(bench: DistantBench) -> None:
    bench.enqueue(*(f"job-{i}" for i in range(12)))
    bench.turn_until_quiet()
    bench.places.end(Done())
    bench.pump.turn()
    bench.pump.turn()
    first, other = bench.broker.underway
    bench.broker.loses_answers = 1
    with pytest.raises(BrokerUnavailable):
        bench.pump.turn()
    assert other.is_dropped
    assert not first.is_dropped
    bench.turn_until_quiet()
    assert len(set(bench.submitted())) == len(bench.submitted()) == 8


def test_a_renewal_waits_for_the_turns_underway(bench: DistantBench) -> None:
    bench.enqueue("a")
    bench.pump.turn()
    bench.let_renewal_come()
    bench.pump.turn()
    bench.pump.turn()
    assert bench.submitted() == ["a"], "what the turn claimed is not taken for unexpected"


def test_a_half_open_breaker_lets_one_probe_through_while_turns_are_underway() -> None:
    bench = DistantBench(count=4, min_samples=2, cooldown_period="10s")
    bench.enqueue(*(f"job-{i}" for i in range(12)))
    bench.turn_until_quiet()
    bench.places.end(Failed("no", "ValueError"))
    bench.turn_until_quiet()
    assert bench.breaker.state == "open"
    bench.hands.advance(11)
    before = len(bench.places.submitted)
    bench.turn_until_quiet()
    bench.turn_until_quiet()
    assert len(bench.places.submitted) - before == 1
    bench.places.end(Done())
    bench.turn_until_quiet()
    assert bench.breaker.state == "closed"
    assert len(bench.places.submitted) - before > 1


def test_whoever_stops_with_a_turn_underway_drops_it(bench: DistantBench) -> None:
    bench.enqueue("a")
    bench.pump.turn()
    [awaited] = bench.broker.underway
    bench.pump.finish()
    assert awaited.is_dropped
    assert bench.state("a") is State.PENDING, "the slot is gone, and what it had claimed is back in its queue"


@pytest.mark.parametrize("seed", range(30))
def test_whatever_ends_when_and_whichever_answers_are_lost_each_job_runs_once(seed: int) -> None:
    chance = random.Random(seed)
    bench = DistantBench(count=chance.randint(1, 7))
    ids = [f"job-{i}" for i in range(60)]
    for _ in range(2_000):
        if ids and chance.random() < 0.3:
            bench.enqueue(*(ids.pop() for _ in range(min(len(ids), chance.randint(1, 9)))))
        bench.broker.loses_answers = int(chance.random() < 0.1)
        for key in [key for key in bench.places.running if chance.random() < 0.4]:
            bench.places.ended.append((bench.places.running.pop(key), Done()))
        if chance.random() < 0.02:
            bench.let_renewal_come()
        try:
            bench.pump.turn()
        except BrokerUnavailable:
            continue
        if not ids and bench.broker.census().counters.get("completed") == 60 and bench.pump.is_idle:
            break
    assert sorted(bench.submitted()) == sorted(f"job-{i}" for i in range(60))
    assert bench.broker.census().drift == 0
    assert bench.pump.is_idle
