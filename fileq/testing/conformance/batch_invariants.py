"""The two brokers of the state machine for batches, and what must hold after every step."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from hypothesis.stateful import RuleBasedStateMachine, invariant

from fileq.core.batch import Batch, BatchState, CallbackKind
from fileq.testing.conformance.batch_builders import STATES
from fileq.testing.conformance.builders import without_left_ms
from fileq.testing.conformance.compared_brokers import Pair, census_of
from fileq.testing.conformance.harness import FakeClock, Harness
from fileq.testing.conformance.memory_harness import MemoryHarness


class ComparedBatches(RuleBasedStateMachine):
    """The model and the broker under test, with the members of some batches. Has no rules."""

    open_real: Callable[[FakeClock], Harness]
    slots: tuple[str, ...]

    def __init__(self) -> None:
        super().__init__()
        self.clock = FakeClock()
        self.real = type(self).open_real(self.clock)
        self.model = MemoryHarness(self.real.config, self.clock)
        self.ids: list[str] = []  # of all batches; no id is used twice
        self.views: list[Batch] = []
        self.held: dict[str, Pair] = {}
        self.added = 0  # jobs, without callbacks
        self.fired: dict[str, tuple[CallbackKind, ...]] = {}
        self.once_cancelled: set[str] = set()
        self.children: dict[str, set[str]] = {}  # of each batch, also those that expired since
        self.damaged: set[str] = set()  # ids of jobs that lost their record
        self.follow_ups = 0

    def same(self, call: Callable[[Any], Any]) -> Any:
        """Calls both brokers, asserts equal replies and returns the reply."""
        expected, got = call(self.model.broker), call(self.real.broker)
        assert got == expected
        return got

    def new_id(self) -> str:
        self.follow_ups += 1
        return f"f{self.follow_ups}"

    def claim(self) -> None:
        """Claims for every slot that is free."""
        free = [slot for slot in self.slots if slot not in self.held]
        expected, got = (h.broker.settle_and_claim([], free).claims for h in (self.model, self.real))
        assert [(c.slot, c.raw, c.is_cancelled) for c in got] == [(c.slot, c.raw, c.is_cancelled) for c in expected]
        self.held |= {one.slot: Pair(one, other) for one, other in zip(expected, got, strict=True)}

    # what must hold after every step

    @invariant()
    def every_promise_holds(self) -> None:
        self.views = list(self.same(lambda broker: broker.batch_page().batches))
        unfinished = self.same(lambda broker: [view.id for view in broker.batch_page(unfinished=True).batches])
        assert self.same(lambda broker: broker.census().unfinished_batches) == len(unfinished)
        self.same(lambda broker: without_left_ms(broker.workers()))
        jobs = [id for page in self.model.broker.ids() for id in page]
        self.records = self.same(lambda broker: broker.records(sorted(jobs)))
        self.once_cancelled |= {view.id for view in self.views if view.is_cancelled}
        for view in self.views:
            self.children.setdefault(view.parent, set()).add(view.id)
        for view in self.views:
            self.counts_are_those_of_the_members(view)
            self.callbacks_fire_when_they_are_due(view)
        self.callbacks_are_enqueued_once()

    def counts_are_those_of_the_members(self, view: Batch) -> None:
        assert view.total == sum(getattr(view, state) for state in STATES), view
        assert min(getattr(view, state) for state in STATES) >= 0, view
        unfinished = set(self.same(lambda broker: sorted(broker.unfinished_members(view.id).ids)))
        dead = set(self.same(lambda broker: sorted(broker.dead_members(view.id).ids)))
        uncounted = [child for child in self.views if child.parent == view.id and not child.is_counted]
        assert view.waiting + view.running == len(unfinished) + len(uncounted), view
        assert len(dead) <= view.dead <= len(dead) + len(self.children.get(view.id, ())), view
        if not self.damaged:
            mine = [record for record in self.records if record.batch == view.id]
            assert unfinished == {record.id for record in mine if record.state.is_unfinished}, view
            assert dead == {record.id for record in mine if record.state == "dead"}, view

    def callbacks_fire_when_they_are_due(self, view: Batch) -> None:
        is_finished, kinds = view.state is BatchState.FINISHED, {callback.kind for callback in view.callbacks}
        is_success = view.completed == view.total and view.id not in self.once_cancelled
        assert set(self.fired.get(view.id, ())) <= set(view.fired) <= kinds, view
        assert len(set(view.fired)) == len(view.fired), view
        due = {
            CallbackKind.THEN: is_finished and is_success,
            CallbackKind.CATCH: bool(view.dead_id),
            CallbackKind.FINALLY: is_finished,
        }
        for kind in kinds:
            assert kind in view.fired or not due[kind], view
        if CallbackKind.THEN in view.fired:
            assert is_finished, view
            assert view.completed == view.total, view
        assert CallbackKind.CATCH not in view.fired or view.dead_id, view

    def callbacks_are_enqueued_once(self) -> None:
        """Every job that was produced was added by a rule or is a callback."""
        self.fired |= {view.id: view.fired for view in self.views}
        produced = self.same(census_of).counters.get("produced", 0)
        assert produced == self.added + sum(map(len, self.fired.values()))
