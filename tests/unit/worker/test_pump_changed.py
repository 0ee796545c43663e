"""The pump and files that have changed since they were enqueued."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from fileq.brokers.types import Entry, LedgerEntry
from fileq.core.errors import BrokerUnavailable
from fileq.core.job import Version, file_job
from fileq.core.outcome import Changed, Done
from tests.support.pump_setup import NOW, PumpSetup, UnreliableBroker


class LedgerBroker(UnreliableBroker):
    """Keeps the paths of each lookup, and can lose its replies."""

    loses_lookups = 0

    def lookup(self, paths: Sequence[bytes]) -> list[LedgerEntry | None]:
        self.lookups = [*getattr(self, "lookups", []), list(paths)]
        if self.loses_lookups:
            self.loses_lookups -= 1
            raise BrokerUnavailable("the reply was lost")
        return super().lookup(paths)


class ChangedSetup(PumpSetup):
    broker_class = LedgerBroker
    broker: LedgerBroker


@pytest.fixture
def setup() -> ChangedSetup:
    return ChangedSetup()


def test_a_changed_file_whose_new_version_has_a_job_is_superseded(setup: ChangedSetup) -> None:
    setup.enqueue("a", signature="1-1")
    setup.pump.turn()
    job = file_job(b"/data/a", size=2, priority="low", now=NOW, signature="2-2", id="newer")
    setup.broker.enqueue([Entry(job, "low", version=Version(b"/data/a", "2-2"))])
    setup.executor.end(Changed("2-2"))
    setup.pump.turn(may_claim=False)
    assert setup.state("a") == "completed"
    assert setup.broker.census().counters["superseded"] == 1
    assert len(setup.executor.submitted) == 1


@pytest.mark.parametrize("signature", ["2-2", "1-1"])
def test_a_changed_file_that_no_other_job_is_for_is_run_as_it_is(setup: ChangedSetup, signature: str) -> None:
    """The ledger does not know the version that is there; or it is again the one this job is for."""
    setup.enqueue("a", signature="1-1")
    setup.pump.turn()
    setup.executor.end(Changed(signature))
    setup.pump.turn(may_claim=False)
    assert [task.runs_changed for task in setup.executor.submitted] == [False, True]
    setup.executor.end(Done())
    setup.pump.turn()
    assert setup.state("a") == "completed"
    assert setup.broker.census().counters.get("superseded", 0) == 0


def test_a_batch_of_changed_files_takes_one_lookup(setup: ChangedSetup) -> None:
    setup.enqueue("a", "b", signature="1-1")
    setup.pump.turn()
    setup.executor.end(Changed("2-2"))
    setup.pump.turn(may_claim=False)
    assert setup.broker.lookups == [[b"/data/a", b"/data/b"]]
    assert setup.submitted() == ["a", "b", "a", "b"]


def test_a_lookup_whose_reply_was_lost_is_repeated(setup: ChangedSetup) -> None:
    setup.enqueue("a", signature="1-1")
    setup.pump.turn()
    setup.executor.end(Changed("2-2"))
    setup.broker.loses_lookups = 1
    with pytest.raises(BrokerUnavailable):
        setup.pump.turn(may_claim=False)
    assert setup.pump.is_turn_due
    setup.pump.turn(may_claim=False)
    assert setup.submitted() == ["a", "a"]


def test_a_changed_file_does_not_start_again_while_the_worker_stops(setup: ChangedSetup) -> None:
    setup.enqueue("a", signature="1-1")
    setup.pump.turn()
    setup.executor.end(Changed("2-2"))
    setup.pump.is_quiet = True
    while not setup.pump.is_idle:
        setup.pump.turn()
    assert len(setup.executor.submitted) == 1
    assert setup.state("a") == "pending"
