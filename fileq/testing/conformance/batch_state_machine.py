"""A state machine for batches: random sequences of what adds, ends and counts members, on a broker and on its model.

As in state_machine.py, both brokers use one clock and get the same calls, and every reply must be equal. Besides, the
counts are compared with the records of the members, and the number of jobs with the callbacks that have fired: that
holds for the model too. At the end all jobs are finished, and then every batch is.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

from hypothesis import strategies as st
from hypothesis.stateful import initialize, precondition, rule
from msgspec.structs import replace

from fileq.brokers.batches import NewBatch
from fileq.brokers.types import EnqueueResult, Entry
from fileq.core.batch import BatchState, CallbackKind
from fileq.core.errors import BrokerError
from fileq.core.outcome import FollowUp
from fileq.core.settlement import SettleResult, cancel, complete
from fileq.testing.conformance.batch_builders import JOB_QUEUE, callback
from fileq.testing.conformance.batch_invariants import ComparedBatches
from fileq.testing.conformance.builders import MakeSettlement, a_job, burial, id_of, raws_in, recovered, worker_info
from fileq.testing.conformance.strategies import Death, revival

SLOTS = ("s1", "s2", "s3")
IDS = ("m1", "m2", "m3", "m4", "m5", "m6")
BATCHES_MAX = 4
MONTH_S = 31 * 24 * 3600
DEATHS: tuple[Death, ...] = (recovered, lambda claim: burial(claim, died=True))
WAYS = ("complete", "complete", "complete and follow", "bury", "bury and follow", "cancel", "release")

which = st.integers(0, BATCHES_MAX - 1)
members = st.lists(st.sampled_from(IDS), min_size=1, max_size=3, unique=True)
all_ways = st.lists(st.sampled_from(WAYS), min_size=len(SLOTS), max_size=len(SLOTS))
kinds = st.sampled_from([tuple(CallbackKind), (CallbackKind.FINALLY,), (CallbackKind.THEN, CallbackKind.CATCH)])


class BatchRules(ComparedBatches):
    """The verbs of batches."""

    @precondition(lambda self: len(self.ids) < BATCHES_MAX)
    @rule(kinds=kinds, allow=st.booleans(), parent=st.none() | which)
    def create(self, kinds: tuple[CallbackKind, ...], allow: bool, parent: int | None) -> None:
        id, parent_id = f"b{len(self.ids)}", self.batch(parent) if parent is not None else ""
        callbacks = tuple(callback(id, kind, parent_id) for kind in kinds)
        new = NewBatch(id, parent=parent_id, allow_failures=allow, callbacks=callbacks)
        if self.same(lambda broker: or_error(lambda: broker.create_batch(new))) is True:
            self.ids.append(id)

    def batch(self, index: int) -> str:
        return self.ids[index % len(self.ids)]

    @rule(batch=which)
    def seal(self, batch: int) -> None:
        self.same(lambda broker: broker.seal_batch(self.batch(batch)))

    @rule(batch=which, is_old=st.booleans())
    def cancel_batch(self, batch: int, is_old: bool) -> None:
        since_ms = self.clock.ms - 60_000 if is_old else None
        self.same(lambda broker: broker.cancel_batch(self.batch(batch), untouched_since_ms=since_ms))

    @rule(batch=which)
    def revive_members(self, batch: int) -> None:
        """What `batch retry` does."""
        id = self.batch(batch)
        dead = set(self.same(lambda broker: sorted(broker.dead_members(id).ids)))
        self.revive_those([raw for raw in raws_in(self.model, "dead_letter") if id_of(raw) in dead])

    @rule(batch=which, ids=members)
    def join(self, batch: int, ids: list[str]) -> None:
        self.same(lambda broker: broker.join_batch(self.batch(batch), ids))

    @rule(batch=which)
    def reconcile(self, batch: int) -> None:
        id = self.batch(batch)
        found = self.same(lambda broker: sorted(broker.unfinished_members(id).ids))
        self.same(lambda broker: broker.count_members(id, [*found, *IDS]))

    def revive_those(self, raws: list[bytes]) -> None:
        self.same(lambda broker: broker.revive([revival(raw, JOB_QUEUE) for raw in raws]))


class BatchMachine(BatchRules):
    """All rules. A subclass sets `open_real`."""

    slots = SLOTS

    def teardown(self) -> None:
        try:
            if sys.exc_info()[0] is None:  # after a failed step, hypothesis must report that step
                self.drain()
        finally:
            self.real.close()

    @initialize(kinds=kinds, allow=st.booleans())
    def start(self, kinds: tuple[CallbackKind, ...], allow: bool) -> None:
        self.register()
        self.create(kinds, allow, None)

    def register(self) -> None:
        for harness in (self.model, self.real):
            harness.broker.register(dict.fromkeys(SLOTS, worker_info()))

    @rule(batch=which, ids=members, delay_ms=st.sampled_from([0, 0, 500]))
    def add(self, batch: int, ids: list[str], delay_ms: int) -> None:
        entries = [Entry(a_job(id, batch_id=self.batch(batch)), JOB_QUEUE, delay_ms=delay_ms, joins=True) for id in ids]
        answer = self.same(lambda broker: broker.enqueue(entries))
        self.added += answer.results.count(EnqueueResult.ENQUEUED)

    @rule(ids=members)
    def add_outside(self, ids: list[str]) -> None:
        answer = self.same(lambda broker: broker.enqueue([Entry(a_job(id), JOB_QUEUE) for id in ids]))
        self.added += answer.results.count(EnqueueResult.ENQUEUED)

    @rule(rounds=st.lists(st.tuples(which, members, all_ways), min_size=1, max_size=3))
    def work(self, rounds: list[tuple[int, list[str], list[str]]]) -> None:
        """The normal work: members are added, and every slot settles what it holds and claims again."""
        for batch, ids, ways in rounds:
            self.add(batch, ids, 0)
            self.settle_all(dict(zip(SLOTS, ways, strict=True)), batch)
            self.claim()

    @rule(batch=which, ways=all_ways)
    def settle_and_seal(self, batch: int, ways: list[str]) -> None:
        self.claim()
        self.seal(batch)
        self.settle_all(dict(zip(SLOTS, ways, strict=True)), batch)

    def settle_all(self, ways: dict[str, str], batch: int) -> None:
        """Those that complete do it in one call."""
        together = [slot for slot in self.held if ways[slot] == "complete"]
        for slots in (together, *([slot] for slot in list(self.held) if slot not in together)):
            self.settle(slots, [self.end_of(ways[slot], slot, batch) for slot in slots])

    def settle(self, slots: list[str], ends: list[MakeSettlement]) -> None:
        pairs = [self.held.pop(slot) for slot in slots]
        made = [(end(pair.model), end(pair.real)) for pair, end in zip(pairs, ends, strict=True)]
        expected = self.model.broker.settle_and_claim([one for one, _ in made], [])
        got = self.real.broker.settle_and_claim([one for _, one in made], [])
        assert got.settled == expected.settled == (SettleResult.DONE,) * len(slots)
        assert sorted(got.finished_batches) == sorted(expected.finished_batches)
        self.added += sum(len(one.follow_ups) for one, _ in made)

    def end_of(self, way: str, slot: str, batch: int) -> MakeSettlement:
        """A way to settle what the slot holds. A member of a cancelled batch must be settled as cancelled."""
        if self.held[slot].model.is_cancelled:
            return cancel
        ends: dict[str, MakeSettlement] = {"complete": complete, "bury": burial, "cancel": cancel, "release": recovered}
        end = ends[way.removesuffix(" and follow")]
        if not way.endswith("follow"):
            return end
        follow_up = FollowUp(a_job(self.new_id(), batch_id=self.batch(batch)), JOB_QUEUE, joins=True)
        return lambda claim: replace(end(claim), follow_ups=(follow_up,))

    @rule(ids=members)
    def cancel_jobs(self, ids: list[str]) -> None:
        self.same(lambda broker: broker.cancel(ids))

    @rule()
    def clear(self) -> None:
        raws = self.same(lambda broker: broker.peek(JOB_QUEUE, 2))
        self.same(lambda broker: broker.clear(JOB_QUEUE, raws))

    @rule(count=st.integers(1, 3))
    def revive(self, count: int) -> None:
        self.revive_those(raws_in(self.model, "dead_letter")[:count])

    @rule(count=st.integers(1, 3))
    def delete(self, count: int) -> None:
        raws = raws_in(self.model, "dead_letter")[:count]
        self.same(lambda broker: broker.discard([(id_of(raw), raw) for raw in raws]))

    @rule(death=st.sampled_from(DEATHS), seconds=st.sampled_from([30, 30, 120, MONTH_S]))
    def slots_die(self, death: Death, seconds: float) -> None:
        """Every slot renews what it holds; then its process is killed, and a reaper settles. Time may pass besides."""
        held = [(slot, pair.model.raw) for slot, pair in self.held.items()]
        self.same(lambda broker: [(one.slot, one.status) for one in broker.renew(held)])
        self.time_passes(seconds)
        found = zip(*(harness.broker.suspects(sweep=True) for harness in (self.model, self.real)), strict=True)
        for expected, got in found:
            by_model, by_real = [death(claim) for claim in expected.claims], [death(claim) for claim in got.claims]
            assert self.real.broker.reap(got.slot, by_real) == self.model.broker.reap(expected.slot, by_model)
        self.held.clear()
        self.register()

    @rule()
    def one_second_passes(self) -> None:
        self.time_passes(1)
        self.same(lambda broker: broker.promote())

    def time_passes(self, seconds: float) -> None:
        self.real.advance(seconds)  # both use one clock

    # damage

    @rule(id=st.sampled_from(IDS))
    def lose_record(self, id: str) -> None:
        """As a failover that loses a write. The counts of the batch are wrong until they are reconciled."""
        if self.model.broker.records([id]) != [None]:
            self.model.remove_record(id)
            self.real.remove_record(id)
            self.damaged.add(id)

    # the end

    def drain(self) -> None:
        """Finishes every job and counts what the damage left; then every batch is finished."""
        self.slots_die(recovered, 30)
        for index in range(len(self.ids)):
            self.seal(index)
        self.one_second_passes()
        self.claim()
        for _ in range(10 * self.added + 100):
            if not self.held:
                break
            for slot in list(self.held):
                self.settle([slot], [self.end_of("complete", slot, 0)])
            self.claim()
        for index in range(len(self.ids)) if self.damaged else ():
            self.reconcile(index)
        self.every_promise_holds()
        assert not self.damaged or not self.held
        unfinished = [view for view in self.views if view.state is not BatchState.FINISHED]
        assert self.damaged or unfinished == []


def or_error(call: Callable[[], Any]) -> Any:
    """What the call returns, or the text of the error."""
    try:
        return call()
    except BrokerError as error:
        return str(error)
