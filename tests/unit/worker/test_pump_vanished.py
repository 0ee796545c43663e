"""The pump and files that have vanished: by accident, or because an earlier job of their version was processed."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from fileq.brokers.types import Entry, Record
from fileq.core.errors import BrokerUnavailable
from fileq.core.job import State, Version, file_job
from fileq.core.outcome import Done, Failed
from tests.support.pump_setup import NOW, PumpSetup, UnreliableBroker

VANISHED = Failed("file vanished", "FileVanished", is_permanent=True, is_sample=False, is_vanished=True)
PATH = b"/data/a"


class RecordsBroker(UnreliableBroker):
    """Counts the calls of records, and can lose their replies."""

    reads = 0
    loses_records = 0

    def records(self, ids: Sequence[str]) -> list[Record | None]:
        self.reads += 1
        if self.loses_records:
            self.loses_records -= 1
            raise BrokerUnavailable("the reply was lost")
        return super().records(ids)


class VanishedSetup(PumpSetup):
    broker_class = RecordsBroker
    broker: RecordsBroker

    def enqueue_again(self, id: str, signature: str = "1-1", delay_ms: int = 0) -> None:
        """As `fileq enqueue` does: also if this version is known."""
        job = file_job(PATH, size=1, priority="low", now=NOW, signature=signature, id=id)
        self.broker.enqueue([Entry(job, "low", version=Version(PATH, signature), always=True, delay_ms=delay_ms)])
        self.clocks.advance(0.01)

    def run(self, ran: object) -> None:
        """Runs the next job to this end."""
        self.pump.turn()
        self.executor.end(ran)
        self.pump.turn(may_claim=False)
        self.clocks.advance(0.01)


@pytest.mark.parametrize("after", ["delete", "keep"])
def test_a_job_is_skipped_if_the_file_was_taken_away_after_an_earlier_job_of_its_version(after: str) -> None:
    setup = VanishedSetup(count=1, after=after)
    setup.enqueue_again("first")
    setup.enqueue_again("second")
    setup.enqueue_again("third")
    setup.run(Done())
    setup.run(VANISHED)
    setup.run(VANISHED)
    state = State.COMPLETED if after == "delete" else State.DEAD
    assert [setup.state(id) for id in ("first", "second", "third")] == [State.COMPLETED, state, state]


def test_a_job_is_skipped_too_if_a_newer_job_of_its_version_was_faster() -> None:
    setup = VanishedSetup(count=1, after="delete")
    setup.enqueue_again("first", delay_ms=5000)
    setup.enqueue_again("second")
    setup.enqueue_again("third", delay_ms=9000)
    setup.run(Done())
    assert setup.state("second") is State.COMPLETED
    for _ in range(2):
        setup.clocks.advance(5)
        setup.broker.promote(10)
        setup.run(VANISHED)
    assert [setup.state(id) for id in ("first", "third")] == [State.COMPLETED, State.COMPLETED]


def test_a_job_of_another_version_or_enqueued_after_the_end_is_not_skipped() -> None:
    setup = VanishedSetup(count=1, after="delete")
    setup.enqueue_again("first")
    setup.enqueue_again("newer", signature="2-2")
    setup.run(Done())
    setup.enqueue_again("later")
    setup.run(VANISHED)
    setup.run(VANISHED)
    assert [setup.state(id) for id in ("newer", "later")] == [State.DEAD, State.DEAD]


def test_an_earlier_job_that_died_does_not_count() -> None:
    setup = VanishedSetup(count=1, after="delete")
    setup.enqueue_again("first")
    setup.enqueue_again("second")
    setup.run(Failed("no", "ValueError", is_permanent=True))
    setup.run(VANISHED)
    assert setup.state("second") is State.DEAD


def test_records_whose_reply_was_lost_are_read_again_and_usual_ends_read_none() -> None:
    setup = VanishedSetup(count=1, after="delete")
    setup.enqueue_again("first")
    setup.enqueue_again("second")
    setup.run(Done())
    assert setup.broker.reads == 0
    setup.broker.loses_records = 1
    with pytest.raises(BrokerUnavailable):
        setup.run(VANISHED)
    assert setup.pump.is_turn_due
    setup.pump.turn(may_claim=False)
    assert setup.state("second") is State.COMPLETED


def test_a_job_that_is_lost_while_its_records_are_unread_is_not_settled() -> None:
    setup = VanishedSetup(count=1, after="delete")
    setup.enqueue_again("first")
    setup.broker.loses_records = 1
    with pytest.raises(BrokerUnavailable):
        setup.run(VANISHED)
    setup.reap_all()
    setup.broker.loses_records = 1
    with pytest.raises(BrokerUnavailable):
        setup.pump.turn(may_claim=False)
    setup.pump.turn(may_claim=False)
    assert setup.events.count("job.fenced") == 1
    assert setup.state("first") is State.PENDING
