"""The reaper: two checks one renewal apart, none of them soon after an outage. The test moves the clock."""

from __future__ import annotations

from collections.abc import Collection
from datetime import UTC, datetime

import pytest

from fileq.brokers.local_processes import ProcessId
from fileq.brokers.lost_workers import LostSlot
from fileq.brokers.memory import MemoryBroker
from fileq.brokers.types import Entry, Suspect, WorkerInfo
from fileq.config import config_from
from fileq.core.errors import BrokerUnavailable
from fileq.core.job import State, decode, file_job, typed_job
from fileq.worker.reaper import CHILDREN_END_S, Reaper
from tests.support.clocks import ManualClocks, RecordedEvents
from tests.support.registered_process import RegisteredProcess
from tests.support.sqlite_store import change_one_row

TTL_S, REAP_S = 30.0, 5.0
RENEWAL_S = TTL_S / 3


class UnreliableBroker(MemoryBroker):
    """Can be unreachable. Keeps whether each check was a sweep."""

    is_away = False
    reaps_first: Reaper | None = None  # another reaper that reaps between the check and the reaping of this one
    sweeps: list[bool]

    def processes(self, here: ProcessId) -> list[ProcessId]:
        if self.is_away:
            raise BrokerUnavailable("away")
        return super().processes(here)

    def suspects(self, *, sweep: bool = False, gone: Collection[ProcessId] = ()) -> list[Suspect]:
        if self.is_away:
            raise BrokerUnavailable("away")
        self.sweeps = [*getattr(self, "sweeps", []), sweep]
        found = super().suspects(sweep=sweep, gone=gone)
        other, self.reaps_first = self.reaps_first, None
        if other is not None:
            other.turn()
        return found


class ReaperSetup:
    """A reaper, and workers whose heartbeats the test controls."""

    def __init__(self) -> None:
        self.clocks = ManualClocks()
        self.events = RecordedEvents()
        self.config = config_from(
            {"broker": "memory", "worker": {"heartbeat_ttl": f"{TTL_S}s", "reap_interval": f"{REAP_S}s"}}
        )
        self.broker = UnreliableBroker(self.config, clock=lambda: self.clocks.wall_ns() // 1_000_000)
        self.lost: list[LostSlot] = []
        self.dead: list[str] = []
        self.reaper = self.new_reaper()

    def new_reaper(self) -> Reaper:
        return Reaper(
            self.config,
            self.broker,
            note_lost=self.lost.extend,
            on_dead=self.dead.append,
            emit=self.events,
            monotonic=self.clocks.monotonic,
        )

    def claim(self, id: str, slot: str = "slot", info: WorkerInfo | None = None) -> bytes:
        """Enqueues a job and claims it for that slot; its raw bytes."""
        self.broker.register({slot: info or WorkerInfo("host", 1, 0, "0", ("low",))})
        self.broker.enqueue([Entry(typed_job("t", None, priority="low", now=datetime.now(UTC), id=id), "low")])
        [claim] = self.broker.settle_and_claim([], [slot]).claims
        return claim.raw

    def let_checks_count(self) -> None:
        """Lets the connection last for a heartbeat."""
        self.reaper.turn()
        self.clocks.advance(TTL_S)

    def state(self, id: str) -> State:
        record = self.broker.records([id])[0]
        assert record is not None
        return record.state


@pytest.fixture
def setup() -> ReaperSetup:
    return ReaperSetup()


def test_a_silent_slot_is_reaped_at_the_second_check_one_renewal_later(setup: ReaperSetup) -> None:
    setup.let_checks_count()
    setup.claim("a")
    setup.clocks.advance(TTL_S)
    pause_s = setup.reaper.turn()
    assert setup.state("a") == "running", "one check proves nothing"
    assert 0 < pause_s <= REAP_S
    setup.clocks.advance(RENEWAL_S - 0.001)
    assert setup.reaper.turn() == pytest.approx(0.001), "the second check comes as soon as possible"
    assert setup.state("a") == "running", "a renewal has not passed"
    setup.clocks.advance(0.002)
    setup.reaper.turn()
    assert setup.state("a") == "pending"
    record = setup.broker.records(["a"])[0]
    assert record is not None
    assert (decode(record.raw).recoveries, decode(record.raw).retries) == (1, 0)
    assert setup.broker.workers() == [], "the dead slot is no longer registered"
    [lost] = setup.lost
    assert (lost.slot, lost.jobs, round(lost.silent_s)) == ("slot", 1, 40), "it is noted once"
    assert setup.events.fields("job.recovered")["lost_by"] == "slot"
    assert record.attempts[0].error == "its worker died (no heartbeat for 40s or more)"


def test_a_job_that_a_reaper_buries_is_reported_as_dead(setup: ReaperSetup) -> None:
    setup.let_checks_count()
    for death in range(setup.config.worker.max_recoveries + 1):
        if death == 0:
            setup.claim("a")
        else:
            setup.broker.register({"slot": WorkerInfo("host", 1, 0, "0", ("low",))})
            setup.broker.promote()
            assert setup.broker.settle_and_claim([], ["slot"]).claims
        setup.clocks.advance(TTL_S)
        setup.reaper.turn()
        setup.clocks.advance(RENEWAL_S)
        setup.reaper.turn()
        setup.clocks.advance(60)  # longer than every backoff
    assert setup.state("a") == "dead"
    assert (setup.events.count("job.recovered"), setup.events.count("job.dead")) == (3, 1)
    assert setup.events.fields("job.dead")["lost_by"] == "slot"
    assert setup.dead == ["a"]


def test_the_order_for_the_file_goes_with_a_burial(setup: ReaperSetup) -> None:
    setup.config = config_from(
        {"broker": "memory", "worker": {"max_recoveries": 0, "after": {"dead": "move:/failed", "completed": "delete"}}}
    )
    setup.reaper = setup.new_reaper()
    setup.let_checks_count()
    job = file_job(b"/in/a", size=1, priority="low", now=datetime.now(UTC), signature="1-2", id="a")
    setup.broker.register({"slot": WorkerInfo("host", 1, 0, "0", ("low",))})
    setup.broker.enqueue([Entry(job, "low")])
    setup.broker.settle_and_claim([], ["slot"])
    for wait_s in (TTL_S, RENEWAL_S):
        setup.clocks.advance(wait_s)
        setup.reaper.turn()
    assert [(order.id, order.body) for order in setup.broker.orders(-1)] == [("a", b"bury 1-2\n/in/a")]


def test_a_slot_that_renews_between_two_checks_keeps_its_job(setup: ReaperSetup) -> None:
    setup.let_checks_count()
    raw = setup.claim("a")
    setup.clocks.advance(TTL_S)
    setup.reaper.turn()
    setup.broker.renew([("slot", raw)])
    setup.clocks.advance(RENEWAL_S)
    setup.reaper.turn()
    setup.clocks.advance(TTL_S - RENEWAL_S)  # silent again: a first check
    setup.reaper.turn()
    assert setup.state("a") == "running"
    assert setup.events.count("job.recovered") == 0


def test_checks_of_a_reaper_that_has_just_started_do_not_count(setup: ReaperSetup) -> None:
    setup.claim("a")
    setup.clocks.advance(TTL_S)
    ready_s = setup.clocks.seconds + TTL_S
    while setup.clocks.seconds < ready_s:
        pause_s = setup.reaper.turn()
        assert setup.state("a") == "running"
        setup.clocks.advance(pause_s)
    assert setup.clocks.seconds == pytest.approx(ready_s), "and the first check that counts comes as soon as possible"
    setup.reaper.turn()
    setup.clocks.advance(RENEWAL_S + 0.001)
    setup.reaper.turn()
    assert setup.state("a") == "pending"


def test_after_an_outage_checks_count_only_once_the_connection_has_lasted_for_a_heartbeat(setup: ReaperSetup) -> None:
    setup.let_checks_count()
    raw = setup.claim("a")
    setup.clocks.advance(TTL_S)
    setup.reaper.turn()  # a first check of a silent slot, which the outage invalidates
    setup.broker.is_away = True
    setup.clocks.advance(REAP_S)
    with pytest.raises(BrokerUnavailable):
        setup.reaper.turn()
    setup.clocks.advance(2 * TTL_S)
    setup.broker.is_away = False
    for _ in range(5):
        setup.reaper.turn()
        assert setup.state("a") == "running"
        setup.clocks.advance(TTL_S / 5 - 0.001)
    setup.broker.renew([("slot", raw)])  # its worker has reconnected too
    for _ in range(3):
        setup.reaper.turn()
        setup.clocks.advance(RENEWAL_S)
        setup.broker.renew([("slot", raw)])
    assert setup.state("a") == "running"


def test_a_check_before_an_outage_is_not_the_first_of_two(setup: ReaperSetup) -> None:
    setup.let_checks_count()
    setup.claim("a")
    setup.clocks.advance(TTL_S)
    setup.reaper.turn()
    setup.broker.is_away = True
    setup.clocks.advance(REAP_S)
    with pytest.raises(BrokerUnavailable):
        setup.reaper.turn()
    setup.broker.is_away = False
    setup.reaper.turn()
    setup.clocks.advance(TTL_S)
    setup.reaper.turn()
    assert setup.state("a") == "running", "the first check that counts"
    setup.clocks.advance(RENEWAL_S + 0.001)
    setup.reaper.turn()
    assert setup.state("a") == "pending"


def test_only_one_of_two_reapers_gives_the_job_back(setup: ReaperSetup) -> None:
    other = setup.new_reaper()
    other.turn()
    setup.let_checks_count()
    setup.claim("a")
    setup.clocks.advance(TTL_S)
    setup.reaper.turn()
    other.turn()
    setup.clocks.advance(RENEWAL_S + 0.001)
    setup.reaper.turn()
    other.turn()
    assert setup.events.count("job.recovered") == 1
    assert len(setup.broker.peek("low", 9)) == 1


def test_a_reaper_that_comes_too_late_reports_nothing(setup: ReaperSetup) -> None:
    """Both reapers have seen the dead slot before one of them moves its job."""
    faster = setup.new_reaper()
    faster.turn()
    setup.let_checks_count()
    setup.claim("a")
    setup.clocks.advance(TTL_S)
    faster.turn()
    setup.reaper.turn()
    setup.clocks.advance(RENEWAL_S + 0.001)
    setup.broker.reaps_first = faster
    setup.reaper.turn()
    assert setup.state("a") == "pending"
    assert setup.events.count("job.recovered") == 1


def test_a_slot_without_a_job_is_deregistered_too(setup: ReaperSetup) -> None:
    setup.let_checks_count()
    setup.broker.register({"idle": WorkerInfo("host", 1, 0, "0", ("low",))})
    setup.clocks.advance(TTL_S)
    setup.reaper.turn()
    setup.clocks.advance(RENEWAL_S + 0.001)
    setup.reaper.turn()
    assert setup.broker.workers() == []
    assert setup.events.count("job.recovered") == 0


def test_unregistered_slots_are_searched_once_checks_count_and_every_few_minutes(setup: ReaperSetup) -> None:
    """A search reads all keys of the broker. Before checks count it would be for nothing."""
    for _ in range(40):
        setup.reaper.turn()
        setup.clocks.advance(10)
    assert setup.broker.sweeps.index(True) == TTL_S / 10
    assert 2 <= sum(setup.broker.sweeps) <= 4


def test_the_job_of_an_unregistered_slot_is_given_back(setup: ReaperSetup) -> None:
    setup.claim("a")
    change_one_row(setup.broker, "UPDATE slots SET info = NULL WHERE slot = ?", "slot")
    setup.clocks.advance(TTL_S)
    for _ in range(20):
        setup.clocks.advance(setup.reaper.turn())
    assert setup.state("a") == "pending"
    assert setup.events.count("job.recovered") == 1
    assert sum(setup.broker.sweeps) <= 6


def test_jobs_that_died_together_twice_are_retried_at_different_times(setup: ReaperSetup) -> None:
    """With a jitter of a few per cent they would start, and die, together again."""
    setup.let_checks_count()
    jobs = [f"j{n}" for n in range(16)]
    for job in jobs:
        raw = setup.claim(job, slot=job)
        died_once = raw[:-1] + b',"recoveries":1}'
        change_one_row(setup.broker, "UPDATE slots SET held = ? WHERE slot = ?", died_once, job)
    setup.clocks.advance(TTL_S)
    setup.reaper.turn()
    setup.clocks.advance(RENEWAL_S + 0.001)
    setup.reaper.turn()
    now_ms = setup.clocks.wall_ns() // 1_000_000
    due_ms = (record.due_ms for record in setup.broker.records(jobs) if record is not None)
    waits_s = sorted((ms - now_ms) / 1000 for ms in due_ms)
    backoff = setup.config.worker.backoff
    assert len(waits_s) == 16
    assert waits_s[0] >= backoff.base * (1 - backoff.jitter)
    assert waits_s[-1] - waits_s[0] > backoff.max / 3


def test_the_job_of_a_process_that_is_gone_is_given_back_half_a_second_after_the_first_turn(setup: ReaperSetup) -> None:
    """As after a restart by systemd: the heartbeat of the worker that was killed still lasts for 30 s."""
    with RegisteredProcess() as process:
        setup.claim("a", info=process.info)
        process.kill()
        assert setup.broker.workers()[0].left_ms == TTL_S * 1000
        assert setup.reaper.turn() == CHILDREN_END_S
        assert setup.state("a") == "running", "its handlers may still be ending"
        setup.clocks.advance(CHILDREN_END_S)
        setup.reaper.turn()
    assert setup.state("a") == "pending"
    assert setup.broker.workers() == []
    record = setup.broker.records(["a"])[0]
    assert record is not None
    assert record.attempts[0].error == "its worker died (its process is gone)"
    assert (decode(record.raw).recoveries, setup.events.fields("job.recovered")["lost_by"]) == (1, "slot")
    assert setup.lost == [LostSlot("slot", 0.0, 1, is_gone=True)]


def test_a_neighbour_is_looked_for_every_second_without_a_call_of_the_broker(setup: ReaperSetup) -> None:
    with RegisteredProcess() as process:
        setup.claim("a", info=process.info)
        assert setup.reaper.turn() == 1.0
        for _ in range(3):
            setup.clocks.advance(1.0)
            assert 0 < setup.reaper.turn() <= 1.0
        assert (len(setup.broker.sweeps), setup.state("a")) == (1, "running")
        process.kill()
        setup.clocks.advance(0.25)
        assert setup.reaper.turn() == CHILDREN_END_S
        setup.clocks.advance(CHILDREN_END_S)
        setup.reaper.turn()
    assert (len(setup.broker.sweeps), setup.state("a")) == (2, "pending")


def test_without_a_neighbour_no_turn_comes_before_the_next_check(setup: ReaperSetup) -> None:
    setup.claim("a")
    assert setup.reaper.turn() > 0.8 * REAP_S


def test_a_call_of_a_dead_process_that_is_executed_late_is_undone_a_second_later(setup: ReaperSetup) -> None:
    with RegisteredProcess() as process:
        setup.claim("a", info=process.info)
        process.kill()
        setup.reaper.turn()
        setup.clocks.advance(CHILDREN_END_S)
        setup.reaper.turn()
        setup.claim("b", "late", process.info)  # takes the job that was given back
        setup.clocks.advance(1.0)
        setup.reaper.turn()
    assert (setup.state("a"), setup.state("b")) == ("retrying", "pending"), "a died twice"
    assert setup.broker.workers() == []


def test_a_process_that_is_stopped_keeps_its_job(setup: ReaperSetup) -> None:
    with RegisteredProcess() as process:
        setup.claim("a", info=process.info)
        process.stop()
        for _ in range(3):
            setup.reaper.turn()
            setup.clocks.advance(1.0)
    assert setup.state("a") == "running"
