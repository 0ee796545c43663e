"""What the pump does when the broker rejects an outcome, forgets a slot, repeats a claim, or a child dies."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from fileq.brokers.types import TurnReply
from fileq.core.job import State
from fileq.core.outcome import Died, Done
from fileq.core.settlement import Settlement, SettleResult
from tests.support.pump_setup import PumpSetup, UnreliableBroker


class FencingBroker(UnreliableBroker):
    """Rejects every settlement, as if the slot had lost the job."""

    def settle_and_claim(self, settlements: Sequence[Settlement], slots: Sequence[str]) -> TurnReply:
        reply = super().settle_and_claim([], slots)
        return TurnReply(tuple(SettleResult.FENCED for _ in settlements), reply.claims, reply.gone)


class RepeatingBroker(UnreliableBroker):
    """Returns the claims of all slots that hold a job, also of those that the call does not name."""

    def settle_and_claim(self, settlements: Sequence[Settlement], slots: Sequence[str]) -> TurnReply:
        return super().settle_and_claim(settlements, [view.slot for view in self.workers()])


class FencedSetup(PumpSetup):
    broker_class = FencingBroker


class RepeatedSetup(PumpSetup):
    broker_class = RepeatingBroker


def test_a_fenced_outcome_is_not_reported_as_completed_and_its_file_stays(tmp_path: Path) -> None:
    file = tmp_path / "a"
    file.write_bytes(b"x")
    setup = FencedSetup(count=1, root=str(tmp_path), after="delete")
    setup.enqueue("a")
    setup.pump.turn()
    setup.executor.end(Done())
    setup.pump.turn(may_claim=False)
    setup.pump.finish()
    assert setup.events.count("job.fenced") == 1
    assert setup.events.count("job.completed") == 0
    assert file.exists()


def test_an_outcome_that_the_broker_accepts_is_reported_and_its_file_deleted(tmp_path: Path) -> None:
    file = tmp_path / "a"
    file.write_bytes(b"x")
    setup = PumpSetup(count=1, root=str(tmp_path), after="delete")
    setup.enqueue("a")
    setup.pump.turn()
    setup.executor.end(Done())
    setup.pump.turn(may_claim=False)
    setup.pump.finish()
    assert setup.events.count("job.completed") == 1
    assert setup.state("a") is State.COMPLETED
    assert not file.exists()


def test_a_slot_that_a_claim_finds_gone_is_replaced_at_once() -> None:
    """Without waiting for the next renewal."""
    setup = PumpSetup(count=2)
    before = setup.slot_ids()
    setup.broker.deregister(sorted(before))
    setup.enqueue("a")
    setup.pump.turn()
    assert len(setup.slot_ids()) == 2
    assert not before & setup.slot_ids()
    setup.pump.turn()
    assert setup.submitted() == ["a"]


def test_a_claim_for_a_slot_that_is_not_free_does_not_run() -> None:
    setup = RepeatedSetup(count=2)
    setup.enqueue("a")
    setup.pump.turn()
    setup.pump.turn()
    assert setup.submitted() == ["a"]


def test_a_death_is_a_failure_for_the_breaker() -> None:
    setup = PumpSetup(count=2, min_samples=2)
    setup.enqueue("a", "b")
    setup.pump.turn()
    setup.executor.end(Died("killed by a signal"))
    setup.pump.turn()
    assert setup.breakers.state == "open"
