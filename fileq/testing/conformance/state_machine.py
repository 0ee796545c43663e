"""A state machine that runs random sequences of all verbs on a broker and on the memory broker, its model.

Both use one clock and get the same calls. Every reply must be equal, and after every step everything that can be seen.
After every step no job is lost or doubled: each one is in a place or was counted when it left.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from functools import partial
from typing import Any

from hypothesis import strategies as st
from hypothesis.stateful import initialize, precondition, rule
from msgspec.structs import astuple

from fileq.brokers.protocol import FullBroker
from fileq.brokers.types import AdmitRequest, Enqueued, EnqueueResult, Entry, LeaseStatus, LedgerEntry, Renewal, Suspect
from fileq.core.job import Claim, Version
from fileq.core.settlement import SettleResult, complete, release
from fileq.testing.conformance.builders import burial, id_of, recovered, worker_info
from fileq.testing.conformance.compared_brokers import Pair
from fileq.testing.conformance.job_making_rules import JobMakingRules
from fileq.testing.conformance.strategies import (
    ALL_IDS,
    BURIALS,
    DEATHS,
    ENDS,
    PATHS,
    QUEUES,
    SLOTS,
    Arrival,
    Death,
    all_ends,
    an_entry,
    arrivals,
    as_batch,
    ends,
    queues,
    revival,
    settlement,
    slots,
    which,
)


def comparable(claim: Claim) -> tuple[Any, ...]:
    """A claim without its token, which numbers the claims of one client."""
    when = claim.claimed_ms if claim.job is not None else 0
    flags = claim.job is None, bool(claim.defect), claim.is_blocked
    return claim.slot, claim.queue, claim.raw, flags, claim.id, claim.record_id, when


class BrokerMachine(JobMakingRules):
    """The rules: every verb of the protocol, with random arguments. A subclass sets `open_real`."""

    def teardown(self) -> None:
        try:
            if sys.exc_info()[0] is None:  # after a failed step, hypothesis must report that step
                self.drain()
        finally:
            self.real.close()

    # new jobs

    @initialize()
    def start(self) -> None:
        self.register()

    @rule(arrivals=arrivals)
    def add_jobs(self, arrivals: list[Arrival]) -> None:
        for arrival in arrivals:
            if isinstance(arrival, Entry):
                answer = self.same(partial(enqueue_one, entry=arrival))
                self.added += answer.results.count(EnqueueResult.ENQUEUED)
            else:
                for harness in (self.model, self.real):
                    harness.push_raw(*arrival)
                self.added += 1

    @rule(entries=st.lists(an_entry, max_size=4))
    def enqueue_a_batch(self, entries: list[Entry]) -> None:
        answer = self.same(lambda broker: broker.enqueue(entries))
        self.added += answer.results.count(EnqueueResult.ENQUEUED)

    # working

    @rule(rounds=st.lists(st.tuples(arrivals, all_ends), min_size=1, max_size=4), pause_s=st.sampled_from([0, 1, 0.5]))
    def work(self, rounds: list[tuple[list[Arrival], list[int]]], pause_s: float) -> None:
        """The normal work: jobs are added, every slot settles what it holds and claims again."""
        for coming, chosen in rounds:
            self.add_jobs(coming)
            newest = {pair.model.slot: pair for pair in self.claims}
            held = {view.slot: view.raw for view in self.model.broker.workers() if view.raw}
            mine = [newest[slot] for slot in SLOTS if slot in newest and newest[slot].model.raw == held.get(slot)]
            self.settle_and_claim_in_both(list(zip(mine, chosen, strict=False)), list(SLOTS))
            self.time_passes(pause_s)
            self.promote(500)

    @rule(settling=st.lists(st.tuples(which, ends), max_size=4, unique_by=lambda one: one[0]), slots=slots)
    def settle_and_claim(self, settling: list[tuple[int, int]], slots: list[str]) -> None:
        """Settles new and old claims: held ones, lost ones, settled ones."""
        self.settle_and_claim_in_both(
            [(self.claims[-1 - i], end) for i, end in settling if i < len(self.claims)], slots
        )

    def settle_and_claim_in_both(self, settling: list[tuple[Pair, int]], slots: list[str]) -> None:
        chosen = [(pair, ENDS[end]) for pair, end in settling]
        by_model = as_batch(settlement(end, pair.model) for pair, end in chosen)
        by_real = as_batch(settlement(end, pair.real) for pair, end in chosen)
        with self.made_jobs_counted():
            expected = self.model.broker.settle_and_claim(by_model, slots)
        got = self.real.broker.settle_and_claim(by_real, slots)
        assert got.settled == expected.settled
        assert got.gone == expected.gone
        self.remember(expected.claims, got.claims)

    @rule(slots=slots)
    def settle_and_claim_twice(self, slots: list[str]) -> None:
        """The reply is lost and the worker sends everything again."""
        held = [pair for pair in self.claims if pair.model.slot in slots][-3:]
        for _ in range(2):
            expected = self.model.broker.settle_and_claim([settlement(release, pair.model) for pair in held], slots)
            got = self.real.broker.settle_and_claim([settlement(release, pair.real) for pair in held], slots)
            assert got.settled == expected.settled
            self.remember(expected.claims, got.claims)

    def remember(self, expected: Sequence[Claim], got: Sequence[Claim]) -> None:
        assert [comparable(claim) for claim in got] == [comparable(claim) for claim in expected]
        self.claims += [Pair(*pair) for pair in zip(expected, got, strict=True)]

    @rule(
        holdings=st.lists(st.tuples(st.sampled_from(SLOTS), st.none() | which), max_size=4, unique_by=lambda h: h[0]),
        limit=st.integers(0, 3),
    )
    def renew(self, holdings: list[tuple[str, int | None]], limit: int) -> None:
        """Renews what some slots believe to hold, right or wrong, and then what every slot holds. Before that, asks to
        run what they believe to hold, by a limit that changes."""
        believed = [
            (slot, self.claims[-1 - i].model.raw if i is not None and i < len(self.claims) else b"")
            for slot, i in holdings
        ]
        asked = [AdmitRequest("mail", slot, raw, limit, 5, 3_600_000) for slot, raw in believed]
        self.same(lambda broker: [answer.result for answer in broker.admit(asked)])
        expected, got = self.model.broker.renew(believed), self.real.broker.renew(believed)
        assert [(one.slot, one.status) for one in got] == [(one.slot, one.status) for one in expected]
        self.remember(unexpected_claims(expected), unexpected_claims(got))
        held = [(view.slot, view.raw) for view in self.model.broker.workers() if view.raw]
        self.same(lambda broker: broker.renew(held))

    @rule()
    def register(self) -> None:
        for harness in (self.model, self.real):
            harness.broker.register(dict.fromkeys(SLOTS, worker_info()))

    @rule(slot=st.sampled_from(SLOTS))
    def deregister(self, slot: str) -> None:
        for harness in (self.model, self.real):
            harness.broker.deregister([slot])

    # time, the scheduler and the reaper

    @rule(seconds=st.sampled_from([0.001, 0.999, 1, 10, 29.999, 30, 30, 120, 3600]))
    def time_passes(self, seconds: float) -> None:
        self.real.advance(seconds)  # both use one clock

    @rule(
        limit=st.sampled_from([1, 2, 500]),
        ids=st.lists(st.sampled_from(ALL_IDS), max_size=4),
        step_ms=st.sampled_from([0, 900, 1001, 5000]),
    )
    def promote(self, limit: int, ids: Sequence[str] = (), step_ms: int = 0) -> None:
        """Promotes the jobs that are due, after some are made due, the files of some are moved, and some are realigned.

        The clock steps back for one call only: a longer step changes leases, which differ by broker."""
        self.clock.ms -= step_ms
        self.same(lambda broker: broker.realign(0, limit))
        self.clock.ms += step_ms
        self.same(lambda broker: broker.due_now(ids))
        self.same(lambda broker: sorted(astuple(order) for order in broker.orders(1000)))
        self.same(lambda broker: broker.finish_orders([(id, b"/done/%d" % limit) for id in ids]))
        self.same(lambda broker: broker.promote(limit))

    @rule(limit=st.sampled_from([1, 500]), ends=st.lists(st.sampled_from(BURIALS), min_size=4, max_size=4))
    def bury_overdue(self, limit: int, ends: list[Death]) -> None:
        """Buries jobs whose deadline has passed, by this list of them and by an old one."""
        expected, got = (harness.broker.overdue(limit) for harness in (self.model, self.real))
        assert [comparable(claim) for claim in got] == [comparable(claim) for claim in expected]
        self.once_overdue += expected
        chosen = [end(claim) for end, claim in zip(ends, self.once_overdue[-4:], strict=False)]
        self.making(lambda broker: broker.bury_overdue(chosen))

    @rule(sweep=st.booleans())
    def look_for_suspects(self, sweep: bool) -> None:
        expected, got = (harness.broker.suspects(sweep=sweep) for harness in (self.model, self.real))
        self.suspected = list(zip(expected, got, strict=True))
        assert list(map(comparable_suspect, got)) == list(map(comparable_suspect, expected))

    @rule(deaths=st.lists(st.sampled_from(DEATHS), min_size=1, max_size=4))
    def all_slots_die(self, deaths: list[Death]) -> None:
        """The leases expire, and a reaper settles before the slots renew them."""
        self.time_passes(30)
        self.look_for_suspects(sweep=True)
        for i, death in enumerate(deaths):
            self.reap(i, death)

    @precondition(lambda self: self.suspected)
    @rule(i=which, death=st.sampled_from(DEATHS))
    def reap(self, i: int, death: Death) -> None:
        """Reaps by an old list of suspects: some slots live again, others were reaped already."""
        if self.suspected:
            expected, got = self.suspected[i % len(self.suspected)]
            by_model = [settlement(death, claim) for claim in expected.claims]
            by_real = [settlement(death, claim) for claim in got.claims]
            with self.made_jobs_counted():
                answer = self.model.broker.reap(expected.slot, by_model)
            assert self.real.broker.reap(got.slot, by_real) == answer

    # the operator

    @rule(queue=queues)
    def pause_and_claim(self, queue: str) -> None:
        self.same(lambda broker: broker.pause(queue))
        self.settle_and_claim_in_both([], list(SLOTS))

    @rule(queue=queues)
    def resume(self, queue: str) -> None:
        self.same(lambda broker: broker.resume(queue))

    @precondition(lambda self: self.once_dead)
    @rule(chosen=st.lists(which, min_size=1, max_size=3), queue=queues)
    def revive(self, chosen: list[int], queue: str) -> None:
        raws = [self.once_dead[i % len(self.once_dead)] for i in chosen]
        self.same(lambda broker: broker.revive([revival(raw, queue) for raw in raws]))

    @precondition(lambda self: self.once_dead)
    @rule(chosen=st.lists(which, min_size=1, max_size=3))
    def discard(self, chosen: list[int]) -> None:
        raws = [self.once_dead[i % len(self.once_dead)] for i in chosen]
        self.same(lambda broker: broker.discard([(id_of(raw), raw) for raw in raws]))

    @rule(path=st.sampled_from(PATHS), change=st.sampled_from(["forget", "missing", "stale"]))
    def update_ledger(self, path: bytes, change: str) -> None:
        [was] = self.same(lambda broker: broker.lookup([path]))
        was = was or LedgerEntry()
        self.same(lambda broker: broker.knows([(path, signature) for signature, _ in was.versions]))
        if change == "stale":
            was = was.with_version(Version(path, "elsewhere"), "unknown")
        becomes = None if change == "forget" else LedgerEntry(was.versions, self.clock.ms, "8:1")
        self.same(lambda broker: broker.update_ledger([(path, was, becomes)]))

    def drain(self) -> None:
        """Finishes every job; then no job is left and the drift is zero."""
        for queue in QUEUES:
            self.resume(queue)
        self.all_slots_die([recovered] * len(SLOTS))
        self.time_passes(60)
        self.promote(500)
        self.register()
        for _ in range(self.added):
            expected, got = (harness.broker.settle_and_claim([], ["s1"]) for harness in (self.model, self.real))
            self.remember(expected.claims, got.claims)
            if not got.claims:
                break
            self.finish(self.claims[-1])
        self.everything_visible_is_equal()
        self.no_job_is_lost_or_doubled()
        left = sum(self.census.pending.values()) + self.census.scheduled + self.census.running
        assert (left, self.census.drift) == (0, 0)

    def finish(self, pair: Pair) -> None:
        for harness, claim in ((self.model, pair.model), (self.real, pair.real)):
            end = complete if claim.job is not None else burial
            assert harness.broker.settle_and_claim([end(claim)], []).settled == (SettleResult.DONE,)


def unexpected_claims(renewals: list[Renewal]) -> list[Claim]:
    return [one.claim for one in renewals if one.status is LeaseStatus.UNEXPECTED and one.claim is not None]


def comparable_suspect(suspect: Suspect) -> tuple[Any, ...]:
    return suspect.slot, [comparable(claim) for claim in suspect.claims]


def enqueue_one(broker: FullBroker, entry: Entry) -> Enqueued:
    return broker.enqueue([entry])
