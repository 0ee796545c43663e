"""The reaper: two looks a renewal apart, none of them soon after the broker was away. The clock is turned by hand."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from fileq.brokers.memory import MemoryBroker
from fileq.brokers.types import Entry, Suspect, WorkerInfo
from fileq.config import config_from
from fileq.core.errors import BrokerUnavailable
from fileq.core.job import State, decode, typed_job
from fileq.worker.reaper import Reaper
from tests.support.clocks import ManualClocks, RecordedEvents

TTL_S, REAP_S = 30.0, 5.0
RENEWAL_S = TTL_S / 3


class Shaky(MemoryBroker):
    is_away = False
    sweeps: list[bool]

    def suspects(self, *, sweep: bool = False) -> list[Suspect]:
        if self.is_away:
            raise BrokerUnavailable("away")
        self.sweeps = [*getattr(self, "sweeps", []), sweep]
        return super().suspects(sweep=sweep)


class Graveyard:
    """A reaper, and workers that live as long as the test lets them."""

    def __init__(self) -> None:
        self.hands = ManualClocks()
        self.told = RecordedEvents()
        self.config = config_from(
            {"broker": "memory", "worker": {"heartbeat_ttl": f"{TTL_S}s", "reap_interval": f"{REAP_S}s"}}
        )
        self.broker = Shaky(self.config, clock=lambda: self.hands.wall_ns() // 1_000_000)
        self.reaper = self.new_reaper()

    def new_reaper(self) -> Reaper:
        return Reaper(self.config, self.broker, emit=self.told, monotonic=self.hands.monotonic)

    def running(self, id: str, slot: str = "slot") -> bytes:
        """A job in the hands of that slot."""
        self.broker.register({slot: WorkerInfo("host", 1, 0, "0", ("low",))})
        self.broker.enqueue([Entry(typed_job("t", None, priority="low", now=datetime.now(UTC), id=id), "low")])
        [claim] = self.broker.settle_and_claim([], [slot]).claims
        return claim.raw

    def settle_in(self) -> None:
        """The reaper has been connected for long enough."""
        self.reaper.turn()
        self.hands.advance(TTL_S)

    def state(self, id: str) -> State:
        record = self.broker.records([id])[0]
        assert record is not None
        return record.state


@pytest.fixture
def yard() -> Graveyard:
    return Graveyard()


def test_a_silent_slot_is_reaped_at_the_second_look_a_renewal_later(yard: Graveyard) -> None:
    yard.settle_in()
    yard.running("a")
    yard.hands.advance(TTL_S)
    pause_s = yard.reaper.turn()
    assert yard.state("a") == "running", "one look proves nothing"
    assert 0 < pause_s <= REAP_S
    yard.hands.advance(RENEWAL_S - 0.001)
    assert yard.reaper.turn() == pytest.approx(0.001), "the second look comes as soon as it may"
    assert yard.state("a") == "running", "a renewal has not passed"
    yard.hands.advance(0.002)
    yard.reaper.turn()
    assert yard.state("a") == "pending"
    record = yard.broker.records(["a"])[0]
    assert record is not None
    assert (decode(record.raw).recoveries, decode(record.raw).retries) == (1, 0)
    assert yard.broker.workers() == [], "the dead slot is forgotten"
    assert yard.told.fields("job.recovered")["lost_by"] == "slot"


def test_a_job_that_a_reaper_gives_up_is_told_as_dead(yard: Graveyard) -> None:
    yard.settle_in()
    for death in range(yard.config.worker.max_recoveries + 1):
        if death == 0:
            yard.running("a")
        else:
            yard.broker.register({"slot": WorkerInfo("host", 1, 0, "0", ("low",))})
            yard.broker.promote()
            assert yard.broker.settle_and_claim([], ["slot"]).claims
        yard.hands.advance(TTL_S)
        yard.reaper.turn()
        yard.hands.advance(RENEWAL_S)
        yard.reaper.turn()
        yard.hands.advance(60)  # whatever backoff there was
    assert yard.state("a") == "dead"
    assert (yard.told.count("job.recovered"), yard.told.count("job.dead")) == (3, 1)
    assert yard.told.fields("job.dead")["lost_by"] == "slot"


def test_a_slot_that_was_silent_at_one_look_and_renewed_before_the_second_keeps_its_job(yard: Graveyard) -> None:
    yard.settle_in()
    raw = yard.running("a")
    yard.hands.advance(TTL_S)
    yard.reaper.turn()
    yard.broker.renew([("slot", raw)])
    yard.hands.advance(RENEWAL_S)
    yard.reaper.turn()
    yard.hands.advance(TTL_S - RENEWAL_S)  # silent again: the first look of a new silence
    yard.reaper.turn()
    assert yard.state("a") == "running"
    assert yard.told.count("job.recovered") == 0


def test_a_reaper_that_has_just_started_trusts_no_look(yard: Graveyard) -> None:
    yard.running("a")
    yard.hands.advance(TTL_S)
    ready_s = yard.hands.seconds + TTL_S
    while yard.hands.seconds < ready_s:
        pause_s = yard.reaper.turn()
        assert yard.state("a") == "running"
        yard.hands.advance(pause_s)
    assert yard.hands.seconds == pytest.approx(ready_s), "and looks as soon as it may"
    yard.reaper.turn()
    yard.hands.advance(RENEWAL_S + 0.001)
    yard.reaper.turn()
    assert yard.state("a") == "pending"


def test_after_an_outage_looks_count_only_once_the_connection_has_stood_for_a_heartbeat(yard: Graveyard) -> None:
    yard.settle_in()
    raw = yard.running("a")
    yard.hands.advance(TTL_S)
    yard.reaper.turn()  # a first look at a silent slot, which the outage makes void
    yard.broker.is_away = True
    with pytest.raises(BrokerUnavailable):
        yard.reaper.turn()
    yard.hands.advance(2 * TTL_S)
    yard.broker.is_away = False
    for _ in range(5):
        yard.reaper.turn()
        assert yard.state("a") == "running"
        yard.hands.advance(TTL_S / 5 - 0.001)
    yard.broker.renew([("slot", raw)])  # its worker has found the broker too
    for _ in range(3):
        yard.reaper.turn()
        yard.hands.advance(RENEWAL_S)
        yard.broker.renew([("slot", raw)])
    assert yard.state("a") == "running"


def test_a_look_before_an_outage_is_not_the_first_of_two(yard: Graveyard) -> None:
    yard.settle_in()
    yard.running("a")
    yard.hands.advance(TTL_S)
    yard.reaper.turn()
    yard.broker.is_away = True
    with pytest.raises(BrokerUnavailable):
        yard.reaper.turn()
    yard.broker.is_away = False
    yard.reaper.turn()
    yard.hands.advance(TTL_S)
    yard.reaper.turn()
    assert yard.state("a") == "running", "the first look that counts"
    yard.hands.advance(RENEWAL_S + 0.001)
    yard.reaper.turn()
    assert yard.state("a") == "pending"


def test_of_two_reapers_one_gives_the_job_back(yard: Graveyard) -> None:
    other = yard.new_reaper()
    other.turn()
    yard.settle_in()
    yard.running("a")
    yard.hands.advance(TTL_S)
    yard.reaper.turn()
    other.turn()
    yard.hands.advance(RENEWAL_S + 0.001)
    yard.reaper.turn()
    other.turn()
    assert yard.told.count("job.recovered") == 1
    assert len(yard.broker.peek("low", 9)) == 1


def test_a_slot_without_a_job_is_forgotten_too(yard: Graveyard) -> None:
    yard.settle_in()
    yard.broker.register({"idle": WorkerInfo("host", 1, 0, "0", ("low",))})
    yard.hands.advance(TTL_S)
    yard.reaper.turn()
    yard.hands.advance(RENEWAL_S + 0.001)
    yard.reaper.turn()
    assert yard.broker.workers() == []
    assert yard.told.count("job.recovered") == 0


def test_lists_without_an_entry_are_looked_for_at_start_and_every_few_minutes(yard: Graveyard) -> None:
    for _ in range(40):
        yard.reaper.turn()
        yard.hands.advance(10)
    assert yard.broker.sweeps[0]
    assert 2 <= sum(yard.broker.sweeps) <= 4


def test_jobs_that_died_together_twice_are_drawn_apart(yard: Graveyard) -> None:
    """A few per cent of jitter would have them start, and die, together again."""
    yard.settle_in()
    jobs = [f"j{n}" for n in range(16)]
    for job in jobs:
        raw = yard.running(job, slot=job)
        died_once = raw[:-1] + b',"recoveries":1}'
        yard.broker.store.processing[job] = [died_once]
    yard.hands.advance(TTL_S)
    yard.reaper.turn()
    yard.hands.advance(RENEWAL_S + 0.001)
    yard.reaper.turn()
    now_ms = yard.hands.wall_ns() // 1_000_000
    waits_s = sorted((due_ms - now_ms) / 1000 for due_ms in yard.broker.store.scheduled.values())
    backoff = yard.config.worker.backoff
    assert len(waits_s) == 16
    assert waits_s[0] >= backoff.base * (1 - backoff.jitter)
    assert waits_s[-1] - waits_s[0] > backoff.max / 3
