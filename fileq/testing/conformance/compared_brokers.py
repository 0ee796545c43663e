"""The two brokers of the state machine: what is sent to both, and what must be equal or true after every step."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec
from hypothesis.stateful import RuleBasedStateMachine, invariant

from fileq.brokers.types import LeaseStatus, Renewal, Suspect
from fileq.core.claim import Claim
from fileq.core.job import State
from fileq.core.settlement import SettleResult, complete
from fileq.testing.conformance.builders import burial, id_of, places
from fileq.testing.conformance.harness import FakeClock, Harness
from fileq.testing.conformance.memory_harness import MemoryHarness
from fileq.testing.conformance.strategies import ALL_IDS, ENDS, GARBAGE, OUR_IDS, as_batch, settlement


def comparable(claim: Claim) -> tuple[Any, ...]:
    """A claim without its token, which numbers the claims of one client."""
    when = claim.claimed_ms if claim.job is not None else 0
    return claim.slot, claim.queue, claim.raw, claim.job is None, claim.id, claim.record_id, when, bool(claim.defect)


class Pair(msgspec.Struct):
    """One claim: that of the model and that of the broker under test."""

    model: Claim
    real: Claim


class ComparedBrokers(RuleBasedStateMachine):
    """A broker under test and its model, with what both returned so far. A subclass sets `open_real`."""

    open_real: Callable[[FakeClock], Harness]

    def __init__(self) -> None:
        super().__init__()
        self.clock = FakeClock()
        self.real = type(self).open_real(self.clock)
        self.model = MemoryHarness(self.real.config, self.clock)
        self.claims: list[Pair] = []
        self.suspected: list[tuple[Suspect, Suspect]] = []
        self.once_dead: list[bytes] = []
        self.added = 0

    def same(self, call: Callable[[Any], Any]) -> Any:
        """Calls both brokers, asserts equal replies and returns the reply."""
        expected, got = call(self.model.broker), call(self.real.broker)
        assert got == expected
        return got

    def settle_and_claim_in_both(self, settling: list[tuple[Pair, int]], slots: list[str]) -> None:
        chosen = [(pair, ENDS[end]) for pair, end in settling]
        by_model = as_batch(settlement(end, pair.model) for pair, end in chosen)
        by_real = as_batch(settlement(end, pair.real) for pair, end in chosen)
        expected, got = (
            self.model.broker.settle_and_claim(by_model, slots),
            self.real.broker.settle_and_claim(by_real, slots),
        )
        assert got.settled == expected.settled
        assert got.gone == expected.gone
        assert not slots or got.paused == expected.paused
        self.remember(expected.claims, got.claims)

    def remember(self, expected: Sequence[Claim], got: Sequence[Claim]) -> None:
        assert [comparable(claim) for claim in got] == [comparable(claim) for claim in expected]
        self.claims += [Pair(*pair) for pair in zip(expected, got, strict=True)]

    def finish(self, pair: Pair) -> None:
        for harness, claim in ((self.model, pair.model), (self.real, pair.real)):
            end = complete if claim.job is not None else burial
            assert harness.broker.settle_and_claim([end(claim)], []).settled == (SettleResult.DONE,)

    # what must hold after every step

    @invariant()
    def every_promise_holds(self) -> None:
        self.everything_visible_is_equal()
        self.no_job_is_lost_or_doubled()
        self.our_own_jobs_are_in_one_place()

    def everything_visible_is_equal(self) -> None:
        self.places = list(places(self.model))
        assert list(places(self.real)) == self.places
        self.once_dead += [raw for place, raw in self.places if place == "dead_letter" and raw not in self.once_dead]
        ids = [*ALL_IDS, *map(id_of, GARBAGE)]
        self.records = self.model.broker.records(ids)
        for expected, got in zip(self.records, self.real.broker.records(ids), strict=True):
            assert got == expected
        self.census = self.same(census_of)
        self.same(lambda broker: broker.workers())
        self.same(lambda broker: sorted(broker.ledger(b"")))
        self.same(lambda broker: {hour: nonzero(counts) for hour, counts in broker.hourly(3).items()})

    def no_job_is_lost_or_doubled(self) -> None:
        census = self.census
        here = sum(census.pending.values()) + census.scheduled + census.running + census.dead
        gone = sum(census.counters.get(name, 0) for name in ("completed", "cancelled", "deleted"))
        assert here + gone == self.added
        # The drift is the jobs that other programs pushed and that no slot has claimed yet; they are in a queue.
        assert -sum(census.pending.values()) <= census.drift <= 0

    def our_own_jobs_are_in_one_place(self) -> None:
        present = [id_of(raw) for place, raw in self.places if place not in ("completed", "cancelled")]
        for id, record in zip(ALL_IDS, self.records, strict=False):
            if id in OUR_IDS:
                has_ended = record is None or record.state in (State.COMPLETED, State.CANCELLED)
                assert present.count(id) == int(not has_ended)


def unexpected_claims(renewals: list[Renewal]) -> list[Claim]:
    return [one.claim for one in renewals if one.status is LeaseStatus.UNEXPECTED and one.claim is not None]


def comparable_suspect(suspect: Suspect) -> tuple[Any, ...]:
    return suspect.slot, [comparable(claim) for claim in suspect.claims]


def nonzero(counts: Mapping[str, int]) -> dict[str, int]:
    return {name: n for name, n in counts.items() if n}


def census_of(broker: Any) -> Any:
    census = broker.census()
    return msgspec.structs.replace(census, counters=nonzero(census.counters), pending=dict(census.pending))
