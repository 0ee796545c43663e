"""Claims that a pump makes in advance while jobs are tiny: they wait, run in order, or go back."""

from __future__ import annotations

import random

import pytest

from fileq.core.errors import BrokerUnavailable
from fileq.core.job import decode
from fileq.core.outcome import Changed, Died, Done, Failed
from fileq.worker.prefetch import HELD_MAX, WAIT_MAX_S
from tests.support.pump_setup import PumpSetup
from tests.support.sqlite_store import change_one_row

STEP_S = 0.0005


class FastSetup(PumpSetup):
    """A pump whose tiny jobs have just made it claim in advance: two jobs run, and others wait."""

    def __init__(self, *, waiting: int = 10, is_ready: bool = True, **options: object) -> None:
        super().__init__(**options)  # type: ignore[arg-type]
        self.total = 0
        if is_ready:
            self.run_until_claims_wait()
            self.enqueue(*self.names(waiting))

    def names(self, count: int) -> list[str]:
        names = [f"{self.total + i:05}" for i in range(count)]
        self.total += count
        return names

    def tick(self) -> None:
        self.clocks.advance(STEP_S)
        self.pump.turn()

    def run_until_claims_wait(self) -> None:
        while len(self.held()) < 10:
            if len(self.queued()) < 100:
                self.enqueue(*self.names(100))
            self.executor.end(Done())
            self.tick()

    def held(self) -> list[str]:
        return [decode(view.raw).id for view in self.broker.workers() if view.raw]

    def running(self) -> list[str]:
        return [decode(task.raw).id for task in self.executor.running.values()]

    def waiting(self) -> list[str]:
        settled = {decode(task.raw).id for task, _ in self.executor.ended}
        return sorted(set(self.held()) - set(self.running()) - settled)

    def queued(self) -> list[str]:
        return [decode(raw).id for page in self.broker.pages("low") for raw in page]

    def stall(self) -> None:
        """No job ends for so long that those that wait are released."""
        self.clocks.advance(WAIT_MAX_S)
        self.pump.turn()


@pytest.fixture
def setup() -> FastSetup:
    return FastSetup()


def test_while_jobs_are_tiny_more_are_claimed_than_run(setup: FastSetup) -> None:
    assert len(setup.running()) == 2
    assert 2 < len(setup.held()) <= HELD_MAX
    assert setup.submitted() == sorted(setup.submitted()), "first come, first served"
    assert setup.events.count("job.claimed") == len(setup.submitted())


def test_a_claim_that_waits_begins_when_a_task_ends_without_a_round_trip(setup: FastSetup) -> None:
    first = setup.waiting()[:2]
    setup.broker.is_away = True
    setup.executor.end(Done())
    with pytest.raises(BrokerUnavailable):
        setup.pump.turn()
    assert setup.running() == first


def test_jobs_that_are_not_tiny_are_not_claimed_in_advance() -> None:
    setup = FastSetup(is_ready=False)
    setup.enqueue(*setup.names(200))
    for _ in range(50):
        setup.executor.end(Done())
        setup.clocks.advance(0.02)
        setup.pump.turn()
        assert len(setup.held()) == 2
    assert len(setup.broker.workers()) == 2


def test_what_has_waited_too_long_goes_back_to_the_front_of_its_queue_in_its_order(setup: FastSetup) -> None:
    waiting, behind = setup.waiting(), setup.queued()
    due_s = setup.pump.next_due_s()
    assert setup.clocks.seconds < due_s <= setup.clocks.seconds + WAIT_MAX_S
    setup.stall()
    setup.pump.turn()
    assert setup.held() == setup.running()
    assert setup.queued() == waiting + behind
    [record] = setup.broker.records([waiting[0]])
    assert record is not None
    job = decode(record.raw)
    assert (record.state, job.retries, job.recoveries) == ("pending", 0, 0)


def test_after_that_no_more_is_claimed_than_runs(setup: FastSetup) -> None:
    setup.stall()
    for _ in range(20):
        setup.executor.end(Done())
        setup.tick()
        assert len(setup.held()) <= 2


def test_a_job_that_waits_long_lets_the_others_go_on_as_long_as_one_slot_is_fast(setup: FastSetup) -> None:
    slow, *_ = setup.running()
    for _ in range(40):
        setup.executor.end(Done(), *(id for id in setup.running() if id != slow))
        setup.tick()
    assert setup.events.count("job.released") == 0
    assert slow in setup.running()


def test_a_worker_that_stops_releases_what_waits_in_its_next_turn_and_finishes_what_runs(setup: FastSetup) -> None:
    waiting, behind, running = setup.waiting(), setup.queued(), setup.running()
    setup.pump.is_quiet = True
    assert setup.pump.turn() == 0
    assert setup.queued() == waiting + behind
    assert setup.running() == running
    setup.executor.end(Done())
    setup.pump.turn()
    assert setup.pump.is_idle
    setup.pump.finish()
    assert setup.broker.workers() == []
    assert setup.held() == []


def test_a_breaker_that_opens_defers_what_waits(setup: FastSetup) -> None:
    failed = 0
    while setup.breakers.is_closed:
        failed += len(setup.running())
        setup.executor.end(Failed("broken", "E"))
        setup.tick()
    waiting = setup.waiting()
    before = len(setup.submitted())
    assert len(setup.held()) == len(waiting) + len(setup.running())
    setup.executor.end(Done())
    for _ in range(3):
        setup.tick()
    assert len(setup.submitted()) == before, "no job of an open route begins"
    assert {setup.state(id) for id in waiting} == {"deferred"}


def test_nothing_is_claimed_in_advance_while_a_breaker_is_not_closed() -> None:
    handlers = [
        {"match": "bad*", "use": "fileq.handlers:checksum"},
        {"match": "**/*", "use": "fileq.handlers:checksum"},
    ]
    setup = FastSetup(handlers=handlers)
    while setup.breakers.is_closed:
        setup.enqueue(*(f"bad{name}" for name in setup.names(1)))
        for id in setup.running():
            setup.executor.end(Failed("broken", "E") if id.startswith("bad") else Done(), id)
        setup.tick()
    setup.enqueue(*setup.names(300))
    for _ in range(30):
        setup.executor.end(Done())
        setup.tick()
    assert len(setup.held()) == 2
    assert setup.queued()


def test_a_worker_with_a_limited_route_claims_nothing_in_advance() -> None:
    route = {"match": "**/*", "use": "fileq.handlers:checksum", "max_running": 1}
    setup = FastSetup(is_ready=False, handlers=[route])
    setup.enqueue(*setup.names(100))
    for _ in range(50):
        setup.executor.end(Done())
        setup.tick()
        assert len(setup.running()) <= 1
        assert len(setup.broker.workers()) == 2


def test_a_later_version_of_a_file_does_not_begin_while_an_earlier_one_waits(setup: FastSetup) -> None:
    setup.enqueue_version("twice", "1-1", "earlier")
    setup.enqueue_version("twice", "2-2", "later")
    while "earlier" not in setup.held():
        setup.executor.end(Done())
        setup.tick()
    while setup.state("earlier") == "running":
        assert "later" not in setup.running()
        setup.executor.end(Done())
        setup.tick()
    assert setup.state("earlier") == "completed"


def test_a_changed_file_keeps_its_place_among_those_that_run(setup: FastSetup) -> None:
    changed, *_ = setup.running()
    setup.executor.end(Changed("9-9"))
    setup.pump.turn()
    assert changed in setup.running()
    assert len(setup.running()) == 2


@pytest.fixture
def renewing() -> FastSetup:
    """The next turn renews the heartbeats, while claims wait that are not overdue."""
    setup = FastSetup(is_ready=False)
    renewal_s = setup.pump.next_due_s()
    setup.clocks.advance(renewal_s - setup.clocks.seconds - 0.02)
    while setup.clocks.seconds + 2 * STEP_S < renewal_s:
        if len(setup.queued()) < 100:
            setup.enqueue(*setup.names(100))
        setup.executor.end(Done())
        setup.tick()
    assert len(setup.waiting()) > 4
    assert not setup.broker.renewed
    setup.clocks.advance(2 * STEP_S)
    return setup


def test_renewals_name_what_waits(renewing: FastSetup) -> None:
    waiting = renewing.waiting()
    renewing.pump.turn(may_claim=False)
    [holdings] = renewing.broker.renewed
    assert {renewing.raw(id) for id in waiting} <= {raw for _, raw in holdings}
    assert renewing.waiting() == waiting
    assert {view.slot for view in renewing.broker.workers()} == {slot for slot, _ in holdings}


def test_a_job_that_is_cancelled_while_it_waits_never_begins(renewing: FastSetup) -> None:
    id = renewing.waiting()[-1]
    renewing.broker.cancel([id])
    renewing.pump.turn(may_claim=False)
    assert renewing.state(id) == "cancelled"
    while renewing.waiting():
        renewing.executor.end(Done())
        renewing.tick()
    assert id not in renewing.submitted()


def test_a_job_that_is_lost_while_it_waits_never_begins(renewing: FastSetup) -> None:
    id = renewing.waiting()[-1]
    [slot] = [view.slot for view in renewing.broker.workers() if view.raw == renewing.raw(id)]
    change_one_row(renewing.broker, "UPDATE slots SET held = NULL WHERE slot = ?", slot)
    for _ in range(20):
        renewing.pump.turn(may_claim=False)
        renewing.executor.end(Done())
    assert id not in renewing.submitted()
    assert renewing.pump.is_idle


def test_slots_that_are_gone_while_their_claims_wait_are_replaced(setup: FastSetup) -> None:
    waiting, count = setup.waiting(), len(setup.broker.workers())
    setup.reap_all()
    setup.pump.turn(may_claim=False)
    assert setup.events.count("slot.replaced") == count
    assert not set(waiting) & set(setup.submitted())
    assert setup.executor.running == {}


def test_extra_slots_are_marked_and_deregistered_once_they_are_not_needed(setup: FastSetup) -> None:
    extra = [view for view in setup.broker.workers() if view.info.is_extra]
    assert len(extra) == HELD_MAX - 2 == len(setup.broker.workers()) - 2
    while setup.held():
        setup.executor.end(Done())
        setup.tick()
    setup.advance_to_renewal()
    setup.pump.turn()
    assert [view.info.is_extra for view in setup.broker.workers()] == [False, False]
    setup.enqueue("last")
    setup.pump.turn()
    assert setup.running() == ["last"]


def test_extra_slots_that_hold_jobs_stay_registered(renewing: FastSetup) -> None:
    slots = renewing.slot_ids()
    renewing.breakers.is_closed = False  # nothing more is claimed in advance
    renewing.pump.turn(may_claim=False)
    assert renewing.broker.renewed
    assert renewing.slot_ids() == slots


@pytest.mark.parametrize("seed", range(20))
def test_whatever_happens_each_job_is_completed_once_and_none_is_left(seed: int) -> None:
    chance = random.Random(seed)
    setup = FastSetup(waiting=300)
    for _ in range(600):
        ids = [id for id in setup.running() if chance.random() < 0.7]
        for id in ids:
            setup.executor.end(Died("crashed") if chance.random() < 0.01 else Done(), id)
        if chance.random() < 0.03:
            setup.broker.loses_replies = 1
        setup.clocks.advance(chance.choice((0.0001, STEP_S, STEP_S, 0.003, 0.02)))
        try:
            setup.pump.turn()
        except BrokerUnavailable:
            continue
    names = [f"{i:05}" for i in range(setup.total)]
    for _ in range(2000):
        setup.executor.end(Done())
        setup.tick()
        if not setup.executor.running and not setup.queued() and not setup.held():
            setup.clocks.advance(1.0)  # for the jobs that died twice
            setup.broker.promote()
        if setup.broker.census().counters["completed"] >= setup.total and not setup.held():
            break
    for _ in range(20):  # nothing is left that would be completed again
        setup.tick()
    assert {setup.state(id) for id in names} == {"completed"}
    assert setup.broker.census().counters["completed"] == setup.total
    assert setup.pump.is_idle
