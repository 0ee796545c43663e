"""The pump's heartbeats: renewals, lost claims, slots that are gone, cancellations."""

from __future__ import annotations

import pytest

from fileq.core.errors import BrokerUnavailable
from fileq.core.outcome import Cancelled, Done
from fileq.queries.documents import worker_documents
from fileq.queries.job_queries import wait_reasons
from fileq.testing.conformance.builders import worker_info
from fileq.worker.heartbeats import CANCELS_EVERY_S
from tests.support.pump_setup import TTL_S, PumpSetup
from tests.support.sqlite_store import change_one_row


@pytest.fixture
def setup() -> PumpSetup:
    return PumpSetup()


def test_heartbeats_are_renewed_after_a_third_of_their_time(setup: PumpSetup) -> None:
    setup.enqueue("a")
    setup.pump.turn()
    for _ in range(9):
        setup.advance_to_renewal()
        setup.pump.turn()
    assert setup.broker.suspects() == []
    assert setup.pump.next_due_s() == setup.clocks.seconds + TTL_S / 3
    assert setup.submitted() == ["a"]


def test_renewals_name_every_slot_and_what_it_holds(setup: PumpSetup) -> None:
    setup.enqueue("a")
    setup.pump.turn()
    [task] = setup.executor.submitted
    setup.advance_to_renewal()
    setup.pump.turn()
    [holdings] = setup.broker.renewed
    assert {slot for slot, _ in holdings} == setup.slot_ids()
    assert sorted(raw for _, raw in holdings) == [b"", task.raw]
    assert (task.key.slot, task.raw) in holdings


def test_a_slot_that_is_gone_continues_under_a_new_id_and_ends_what_it_ran(setup: PumpSetup) -> None:
    setup.enqueue("a")
    setup.pump.turn()
    [running] = setup.executor.running
    old_ids = setup.slot_ids()
    setup.reap_all()
    assert setup.broker.workers() == []
    setup.pump.turn()
    assert setup.executor.abandoned == [running]
    assert setup.events.count("job.fenced") == 1
    assert len(setup.slot_ids()) == 2
    assert not old_ids & setup.slot_ids()
    assert setup.submitted() == ["a", "a"], "it was back in its queue, so this worker may claim it again"
    setup.executor.end(Done())
    setup.pump.turn()
    assert setup.state("a") == "completed"


def test_an_outcome_that_comes_after_its_slot_is_gone_is_fenced_and_reported(setup: PumpSetup) -> None:
    setup.enqueue("a")
    setup.pump.turn()
    setup.reap_all()
    setup.executor.end(Done())
    setup.pump.turn(may_claim=False)
    assert setup.events.count("job.fenced") == 1
    assert setup.events.count("job.completed") == 0
    assert setup.state("a") == "pending"


def test_a_job_that_was_lost_is_abandoned_and_its_slot_is_free(setup: PumpSetup) -> None:
    setup.enqueue("a")
    setup.pump.turn()
    [key] = setup.executor.running
    change_one_row(
        setup.broker, "UPDATE slots SET held = NULL WHERE slot = ?", key.slot
    )  # a failover has undone the claim
    setup.advance_to_renewal()
    setup.pump.turn(may_claim=False)
    assert setup.executor.abandoned == [key]
    assert setup.pump.is_idle
    assert setup.events.count("job.fenced") == 1
    assert key.slot in setup.slot_ids()


def test_an_outcome_of_a_lost_job_is_ignored(setup: PumpSetup) -> None:
    """The executor may have had it ready when the job was lost."""
    setup.enqueue("a")
    setup.pump.turn()
    [(key, task)] = setup.executor.running.items()
    change_one_row(setup.broker, "UPDATE slots SET held = NULL WHERE slot = ?", key.slot)
    setup.advance_to_renewal()
    setup.pump.turn(may_claim=False)
    setup.executor.ended.append((task, Done()))
    setup.pump.turn(may_claim=False)
    assert setup.pump.is_idle
    assert setup.events.count("job.completed") == 0


def test_a_job_that_a_slot_holds_without_knowing_it_is_run(setup: PumpSetup) -> None:
    setup.enqueue("a")
    setup.broker.loses_replies = 1
    with pytest.raises(BrokerUnavailable):
        setup.pump.turn()
    setup.advance_to_renewal()
    setup.pump.turn(may_claim=False)
    assert setup.submitted() == ["a"]
    setup.executor.end(Done())
    setup.pump.turn()
    assert setup.state("a") == "completed"


def test_a_stopping_worker_gives_back_a_job_that_it_holds_without_knowing_it(setup: PumpSetup) -> None:
    setup.enqueue("a")
    setup.broker.loses_replies = 1
    with pytest.raises(BrokerUnavailable):
        setup.pump.turn()
    setup.pump.is_quiet = True
    setup.advance_to_renewal()
    setup.pump.turn()
    assert setup.submitted() == []
    setup.pump.finish()
    assert setup.state("a") == "pending"


def test_a_running_job_is_cancelled_once(setup: PumpSetup) -> None:
    setup.enqueue("a")
    setup.pump.turn()
    [key] = setup.executor.running
    setup.broker.cancel(["a"])
    for _ in range(3):
        setup.advance_to_renewal()
        setup.pump.turn()
    assert setup.executor.cancelled == [key]
    setup.executor.end(Cancelled())
    setup.pump.turn()
    assert setup.state("a") == "cancelled"


def test_a_cancellation_that_was_reported_is_learned_without_waiting_for_a_renewal(setup: PumpSetup) -> None:
    setup.enqueue("a")
    setup.pump.turn()
    setup.clocks.advance(CANCELS_EVERY_S)
    setup.broker.cancel(["a"])
    setup.pump.turn()
    assert setup.executor.cancelled == [], "without a report it is learned at the next renewal"
    setup.pump.look_for_cancels()
    assert setup.pump.next_due_s() == setup.clocks.seconds
    setup.pump.turn()
    assert len(setup.executor.cancelled) == 1
    assert setup.pump.next_due_s() == setup.clocks.seconds + TTL_S / 3


def test_many_reports_of_cancellations_share_a_renewal(setup: PumpSetup) -> None:
    setup.enqueue("a")
    setup.pump.turn()
    setup.clocks.advance(CANCELS_EVERY_S)
    for _ in range(10):
        setup.pump.look_for_cancels()
        setup.pump.turn()
        setup.clocks.advance(CANCELS_EVERY_S / 10)
    assert len(setup.broker.renewed) == 1
    setup.clocks.advance(CANCELS_EVERY_S / 10)
    setup.pump.turn()
    assert len(setup.broker.renewed) == 2, "the later ones are not lost"


def test_a_worker_without_jobs_does_nothing_about_cancellations(setup: PumpSetup) -> None:
    setup.pump.look_for_cancels()
    setup.pump.turn()
    assert setup.broker.renewed == []


def test_a_pump_that_drains_says_so_at_once_and_its_other_jobs_wait_for_another_worker(setup: PumpSetup) -> None:
    setup.enqueue("a")
    setup.pump.turn()
    setup.enqueue("b")
    assert {view.info.is_draining for view in setup.broker.workers()} == {False}
    setup.pump.is_quiet = True
    setup.pump.turn()
    assert setup.submitted() == ["a"]
    [process] = worker_documents(setup.broker.workers(), setup.broker.census().now_ms)
    assert (process.is_draining, process.is_claiming, process.busy) == (True, False, 1)
    waits = wait_reasons(setup.broker, setup.broker.records(["a", "b"]))
    assert waits == {"b": ("every worker is draining and claims nothing",)}


def test_a_running_job_says_that_its_worker_is_gone(setup: PumpSetup) -> None:
    setup.enqueue("a")
    setup.pump.turn()
    assert wait_reasons(setup.broker, setup.broker.records(["a"])) == {}
    setup.clocks.advance(TTL_S + 1)
    [reason] = wait_reasons(setup.broker, setup.broker.records(["a"]))["a"]
    assert reason.startswith("its worker is gone or has lost its heartbeat; the next one to start will take the job")
    setup.broker.register({"another": worker_info()})
    [reason] = wait_reasons(setup.broker, setup.broker.records(["a"]))["a"]
    assert reason.endswith("another one will take the job back")
