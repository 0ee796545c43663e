"""The two brokers of the state machine, and what must hold after every step."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import msgspec
from hypothesis.stateful import RuleBasedStateMachine, invariant

from fileq.brokers.types import Suspect
from fileq.core.job import DELAYED_STATES, Claim, State
from fileq.testing.conformance.builders import id_of, places, without_left_ms
from fileq.testing.conformance.harness import FakeClock, Harness
from fileq.testing.conformance.memory_harness import MemoryHarness
from fileq.testing.conformance.strategies import ALL_IDS, GARBAGE, MADE_IDS, OUR_IDS, OUTPUTS


class Pair(msgspec.Struct):
    """One claim: that of the model and that of the broker under test."""

    model: Claim
    real: Claim


class ComparedBrokers(RuleBasedStateMachine):
    """The model and the broker under test, and what must hold after every step. Has no rules."""

    open_real: Callable[[FakeClock], Harness]

    def __init__(self) -> None:
        super().__init__()
        self.clock = FakeClock()
        self.real = type(self).open_real(self.clock)
        self.model = MemoryHarness(self.real.config, self.clock)
        self.claims: list[Pair] = []
        self.suspected: list[tuple[Suspect, Suspect]] = []
        self.once_dead: list[bytes] = []
        self.once_overdue: list[Claim] = []
        self.added = 0

    def same(self, call: Callable[[Any], Any]) -> Any:
        """Calls both brokers, asserts equal replies and returns the reply."""
        expected, got = call(self.model.broker), call(self.real.broker)
        assert got == expected
        return got

    @contextmanager
    def made_jobs_counted(self) -> Iterator[None]:
        """Adds the jobs that the calls in the block make, as the model counts them."""
        before = self.model.broker.census().counters.get("produced", 0)
        yield
        self.added += self.model.broker.census().counters.get("produced", 0) - before

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
        self.same(lambda broker: without_left_ms(broker.workers()))
        self.same(lambda broker: sorted(broker.ledger(b"")))
        self.same(lambda broker: broker.schedules())
        self.same(lambda broker: broker.documents("webhooks"))
        self.same(lambda broker: broker.makers([output.path for output in OUTPUTS]))
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
        scheduled = {id_of(raw) for place, raw in self.places if place == "scheduled"}
        for id, record in zip(ALL_IDS, self.records, strict=False):
            if id in (*OUR_IDS, *MADE_IDS):
                has_ended = record is None or record.state in (State.COMPLETED, State.CANCELLED)
                assert present.count(id) == int(not has_ended)
                assert (id in scheduled) == (record is not None and record.state in DELAYED_STATES)
                assert record is None or record.state is not State.DEFERRED or record.deferred


def nonzero(counts: Mapping[str, int]) -> dict[str, int]:
    return {name: n for name, n in counts.items() if n}


def census_of(broker: Any) -> Any:
    census = broker.census()
    return msgspec.structs.replace(census, counters=nonzero(census.counters), pending=dict(census.pending))
