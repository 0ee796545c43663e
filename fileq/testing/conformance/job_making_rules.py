"""Rules of the state machine for what makes jobs without a producer, and for the catalog."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from hypothesis import strategies as st
from hypothesis.stateful import rule

from fileq.brokers.protocol import FullBroker
from fileq.brokers.schedules import Fire, Overlap
from fileq.core.errors import Conflict
from fileq.testing.conformance.builders import id_of
from fileq.testing.conformance.compared_brokers import ComparedBrokers
from fileq.testing.conformance.strategies import ALL_IDS, SCHEDULES, follow_ups, queues

names = st.sampled_from(SCHEDULES)


class JobMakingRules(ComparedBrokers):
    """Cancelling and clearing with follow-ups, schedules, unique keys and documents."""

    def making(self, call: Callable[[FullBroker], Any]) -> Any:
        """As same(), for a call that may enqueue jobs."""
        with self.made_jobs_counted():
            return self.same(call)

    @rule(id=st.sampled_from(ALL_IDS), following=follow_ups)
    def cancel(self, id: str, following: list[Any]) -> None:
        self.making(lambda broker: broker.cancel([id], {id: following}))

    @rule(queue=queues, skip=st.integers(0, 2), following=follow_ups)
    def clear(self, queue: str, skip: int, following: list[Any]) -> None:
        raws = self.same(lambda broker: broker.peek(queue, 5))[skip:]
        wanted = {id_of(raw): following for raw in raws[:1]}
        self.making(lambda broker: broker.clear(queue, raws, wanted))

    @rule(name=names, revision=st.sampled_from(["r1", "r1", "r2"]), next_ms=st.integers(1, 50))
    def define_schedule(self, name: str, revision: str, next_ms: int) -> None:
        self.same(lambda broker: broker.define_schedule(name, revision, next_ms))

    @rule(name=names, change=st.sampled_from(["pause", "resume", "resume", "remove"]))
    def change_schedule(self, name: str, change: str) -> None:
        if change == "pause":
            self.same(lambda broker: broker.pause_schedule(name))
        elif change == "resume":
            self.same(lambda broker: broker.resume_schedule(name, 70))
        else:
            self.same(lambda broker: broker.remove_schedule(name))

    @rule(
        name=names,
        overlap=st.sampled_from(Overlap),
        entry=follow_ups,
        withdrawn=follow_ups,
        is_stale=st.sampled_from([False, False, False, True]),
    )
    def fire(self, name: str, overlap: Overlap, entry: list[Any], withdrawn: list[Any], is_stale: bool) -> None:
        state = self.model.broker.schedules().get(name)
        slot = state.next_ms if state is not None else 1
        wanted = Fire(
            name,
            state.revision if state is not None and not is_stale else "r0",
            slot,
            slot + 10,
            entry[0] if entry else None,
            len(withdrawn),
            overlap,
            tuple(withdrawn),
        )
        self.making(lambda broker: broker.fire(wanted))

    @rule()
    def sweep_unique_keys(self) -> None:
        for harness in (self.model, self.real):
            cursor = harness.broker.sweep_unique()
            while cursor is not None:
                cursor = harness.broker.sweep_unique(cursor)

    @rule(name=names, body=st.sampled_from([b"", b"1", b"\xff\n2"]), expected=st.none() | st.integers(0, 3))
    def put_document(self, name: str, body: bytes, expected: int | None) -> None:
        self.same(lambda broker: or_conflict(lambda: broker.put_document("webhooks", name, body, expected)))

    @rule(name=names, expected=st.none() | st.integers(0, 3))
    def remove_document(self, name: str, expected: int | None) -> None:
        self.same(lambda broker: or_conflict(lambda: broker.remove_document("webhooks", name, expected)))


def or_conflict(call: Callable[[], Any]) -> Any:
    """What the call returns, or the text of the conflict."""
    try:
        return call()
    except Conflict as error:
        return str(error)
