"""The reconciler of batches: what it counts, what it cancels, and how much of it in one turn."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

import pytest

from fileq.brokers.batches import NewBatch
from fileq.brokers.memory import MemoryBroker
from fileq.brokers.rules import batches as rules
from fileq.brokers.types import Entry, WorkerInfo
from fileq.config import config_from
from fileq.core.batch import UNTOUCHED_MS, BatchState, CallbackKind
from fileq.core.events import BatchCancelled, BatchFinished, BatchReconciled, Event
from fileq.core.job import State, typed_job
from fileq.core.outcome import Done, Failed
from fileq.core.settlement import bury
from fileq.testing.conformance.batch_builders import callback
from fileq.worker import batch_reconciler
from fileq.worker.batch_reconciler import BatchReconciler
from tests.support.clocks import ManualClocks
from tests.support.pump_setup import PumpSetup

NOW = datetime(2026, 1, 1, tzinfo=UTC)


class Setup:
    def __init__(self) -> None:
        self.now_ms = 1_000_000_000_000
        self.config = config_from({})
        self.broker = MemoryBroker(self.config, clock=lambda: self.now_ms)
        self.events: list[Event] = []
        self.clocks = ManualClocks()
        self.reconciler = BatchReconciler(
            self.config, self.broker, emit=self.events.append, monotonic=self.clocks.monotonic
        )

    def add(self, batch: str, *ids: str, **options: Any) -> None:
        jobs = [typed_job("t", None, priority="low", now=NOW, id=id).but(batch_id=batch) for id in ids]
        assert set(self.broker.enqueue([Entry(job, "low", joins=True, **options) for job in jobs]).results) == {
            "enqueued"
        }

    def state(self, batch: str) -> tuple[BatchState, bool]:
        [view] = self.broker.batches_by_id([batch])
        assert view is not None
        return view.state, view.is_cancelled

    def states(self, *ids: str) -> list[State | None]:
        return [record.state if record is not None else None for record in self.broker.records(ids)]


@pytest.fixture
def setup() -> Setup:
    return Setup()


def test_members_of_a_cancelled_batch_are_cancelled_page_by_page(setup: Setup, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batch_reconciler, "PAGES_A_TURN", 2)
    ids = [f"job{n:04}" for n in range(1300)]
    setup.broker.create_batch(NewBatch("b"))
    setup.add("b", *ids)
    setup.broker.cancel_batch("b")
    setup.reconciler.turn()
    assert 800 <= setup.states(*ids).count(State.CANCELLED) < 1300
    setup.reconciler.turn()
    setup.reconciler.turn()
    assert setup.states(*ids).count(State.CANCELLED) == 1300
    assert setup.state("b") == (BatchState.FINISHED, True)


def test_catch_and_finally_of_a_child_are_not_cancelled_with_its_parent(setup: Setup) -> None:
    kinds = (CallbackKind.CATCH, CallbackKind.FINALLY)
    setup.broker.create_batch(NewBatch("parent"))
    setup.broker.create_batch(NewBatch("child", parent="parent", callbacks=tuple(callback("child", k) for k in kinds)))
    setup.add("child", "a", "b")
    setup.broker.register({"s1": WorkerInfo("h", 1, 0, "1", ("low",))})
    [claim] = setup.broker.settle_and_claim([], ["s1"]).claims
    setup.broker.settle_and_claim([bury(claim, claim.raw, error="wrong")], [])
    setup.reconciler.note_dead("a")
    setup.reconciler.turn()
    assert setup.states("b", "child.catch") == [State.CANCELLED, State.PENDING]
    setup.broker.seal_batch("child")
    setup.broker.cancel_batch("parent")
    setup.reconciler.turn()
    assert setup.states("child.catch", "child.finally") == [State.PENDING] * 2


def test_an_open_batch_is_cancelled_a_day_after_its_last_job(setup: Setup) -> None:
    setup.broker.create_batch(NewBatch("old", name="night"))
    setup.now_ms += UNTOUCHED_MS - 1000
    setup.broker.create_batch(NewBatch("new"))
    setup.broker.create_batch(NewBatch("used"))
    setup.reconciler.turn()
    assert setup.state("old") == (BatchState.OPEN, False)
    setup.now_ms += UNTOUCHED_MS + 1
    setup.add("used", "a", delay_ms=UNTOUCHED_MS)
    setup.reconciler.turn()
    assert setup.state("old") == setup.state("new") == (BatchState.FINISHED, True)
    assert setup.state("used") == (BatchState.OPEN, False)
    assert BatchCancelled("old", "night", "nothing was added to it for 24 hours") in setup.events


def test_a_job_that_ended_uncounted_is_counted_and_the_batch_finishes(
    setup: Setup, monkeypatch: pytest.MonkeyPatch
) -> None:
    setup.broker.create_batch(NewBatch("b"))
    setup.add("b", "a")
    setup.broker.seal_batch("b")
    setup.reconciler.turn()
    assert setup.events == []
    real = setup.broker.count_members

    def count(id: str, job_ids: Sequence[str]) -> int:
        """As if the broker had lost the count of a cancelled job."""
        setup.broker.cancel(job_ids)
        return real(id, job_ids) + len(job_ids)

    monkeypatch.setattr(setup.broker, "count_members", count)
    setup.reconciler.turn()
    assert setup.events == [BatchReconciled("b", None, 1), BatchFinished("b", None, 1, 0, 0, 1, 0)]


def test_running_members_of_other_batches_are_left_alone(setup: Setup) -> None:
    setup.broker.create_batch(NewBatch("b"))
    setup.add("b", "a", "c")
    setup.broker.seal_batch("b")
    setup.broker.register({"w": WorkerInfo("host", 1, 0, "0", ("low",))})
    assert len(setup.broker.settle_and_claim([], ["w"]).claims) == 1
    setup.reconciler.turn()
    assert setup.states("a", "c").count(State.PENDING) == 1
    assert setup.events == []


class FailingBatch:
    """A pump and a reconciler that it tells of deaths; a batch with a job that dies and one that is due in an hour."""

    def __init__(self) -> None:
        self.setup = setup = PumpSetup(count=2, handlers=[{"type": "t", "use": "fileq.handlers:checksum"}])
        self.events: list[Event] = []
        self.reconciler = BatchReconciler(
            setup.config, setup.broker, emit=self.events.append, monotonic=setup.clocks.monotonic
        )
        self.reconciler.turn()
        setup.on_dead = self.reconciler.note_dead
        setup.broker.create_batch(NewBatch("b"))
        for id, delay_ms in (("bad", 0), ("runs", 0), ("later", 3_600_000)):
            job = typed_job("t", None, priority="low", now=NOW, id=id).but(batch_id="b", max_retries=int(id == "runs"))
            setup.broker.enqueue([Entry(job, "low", joins=True, delay_ms=delay_ms)])
        setup.broker.seal_batch("b")
        setup.pump.turn()

    def end(self, id: str, outcome: Any) -> None:
        self.setup.executor.end(outcome, id)
        self.setup.pump.turn()
        self.setup.pump.turn()

    @property
    def is_finished(self) -> bool:
        [view] = self.setup.broker.batches_by_id(["b"])
        return view is not None and view.state is BatchState.FINISHED


def test_the_death_of_a_member_wakes_the_reconciler_which_cancels_what_waits() -> None:
    batch = FailingBatch()
    batch.end("runs", Done())
    assert not batch.reconciler.wake.is_set()
    batch.end("bad", Failed("no", "ValueError", is_permanent=True))
    assert batch.reconciler.wake.is_set()
    assert batch.setup.state("later") == State.SCHEDULED
    batch.reconciler.turn()
    assert batch.setup.state("later") == State.CANCELLED
    assert batch.is_finished
    assert batch.events == [BatchFinished("b", None, 3, 1, 1, 1, 0)], "no worker settled its last job"
    batch.reconciler.turn()
    assert len(batch.events) == 1


def test_a_member_that_is_put_back_after_its_batch_has_failed_is_found_soon() -> None:
    batch = FailingBatch()
    batch.end("bad", Failed("no", "ValueError", is_permanent=True))
    assert batch.reconciler.turn() == batch_reconciler.FIRST_AGAIN_S
    batch.end("runs", Failed("no", "ValueError", after_s=3600))
    assert batch.setup.state("runs") == State.RETRYING
    batch.setup.clocks.advance(batch_reconciler.FIRST_AGAIN_S)
    batch.reconciler.turn()
    assert batch.setup.state("runs") == State.CANCELLED
    assert batch.is_finished
    batch.setup.clocks.advance(1)
    assert batch.reconciler.turn() > 2 * batch_reconciler.FIRST_AGAIN_S, "nothing is left to look at"


def test_children_of_a_batch_that_failed_end_in_the_same_turn(setup: Setup) -> None:
    setup.reconciler.turn()
    setup.broker.create_batch(NewBatch("b"))
    setup.broker.create_batch(NewBatch("child", parent="b"))
    setup.add("b", "bad")
    setup.add("child", "later", delay_ms=3_600_000)
    for id in ("b", "child"):
        setup.broker.seal_batch(id)
    setup.broker.register({"w": WorkerInfo("host", 1, 0, "0", ("low",))})
    [claim] = setup.broker.settle_and_claim([], ["w"]).claims
    setup.broker.settle_and_claim([bury(claim, claim.raw, error="no", kind="E")], [])
    setup.reconciler.note_dead("bad")
    setup.reconciler.turn()
    assert setup.state("b") == setup.state("child") == (BatchState.FINISHED, True)


def test_all_child_batches_of_a_cancelled_one_are_cancelled_without_a_pause(
    setup: Setup, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One page was looked at each minute: of 50,000 child batches the last was cancelled after eight hours."""
    monkeypatch.setattr(rules, "CHILDREN_CANCELLED", 50)
    setup.broker.create_batch(NewBatch("b"))
    for n in range(500):
        setup.broker.create_batch(NewBatch(f"child{n}", parent="b"))
    setup.broker.cancel_batch("b")
    [view] = setup.broker.batches_by_id(["b"])
    assert view is not None
    assert view.waiting == 450
    turns = 1
    while setup.reconciler.turn() == 0:
        turns += 1
    assert setup.state("b") == (BatchState.FINISHED, True)
    assert turns <= 6
