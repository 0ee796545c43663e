"""The pauses of the scheduler between its turns, and when it realigns scheduled jobs."""

from __future__ import annotations

import itertools
import subprocess
import sys
from typing import Any

import pytest

from fileq.brokers.local_processes import this_process
from fileq.brokers.types import Promoted
from fileq.core.errors import BrokerUnavailable
from fileq.worker.lease import LONGEST_ASK_S
from fileq.worker.scheduler import (
    CANCELS_S,
    LEASE_S,
    LONGEST_PAUSE_S,
    LONGEST_WATCHED_PAUSE_S,
    PAGE,
    SWEEP_EVERY_S,
    Scheduler,
)
from tests.support.clocks import ManualClocks

NOW_MS = 1_000_000


class PromotingBroker:
    patience = 1.0

    def __init__(self, promoted: Promoted, pages: int = 1) -> None:
        self.promoted = promoted
        self.pages = pages
        self.limits: list[int] = []
        self.realigned: list[int] = []  # the offsets
        self.swept: list[str] = []  # the cursors
        self.holder = ""  # of the lease, if it is another process
        self.requests = 0

    def lease(self, name: str, holder: str, ttl_ms: int, *, instead_of: str = "") -> str:
        return holder if self.holder in ("", instead_of) else self.holder

    def cancel_requests(self) -> int:
        return self.requests

    def promote(self, limit: int) -> Promoted:
        self.limits.append(limit)
        return self.promoted

    def realign(self, offset: int, limit: int) -> int | None:
        self.realigned.append(offset)
        return offset + limit if offset + limit < self.pages * limit else None

    def sweep_unique(self, cursor: str) -> str | None:
        self.swept.append(cursor)
        return str(len(self.swept)) if len(self.swept) % self.pages else None


@pytest.mark.parametrize(
    ("count", "due_in_ms", "pause_s"),
    [
        (PAGE, 10_000, 0.0),  # more jobs may be due
        (PAGE, None, 0.0),
        (PAGE - 1, None, LONGEST_PAUSE_S),
        (0, None, LONGEST_PAUSE_S),
        (0, 10_000, LONGEST_PAUSE_S),
        (3, 25, 0.025),
        (3, 0, 0.001),  # due in this millisecond: not a busy loop
        (3, -5, 0.001),
    ],
)
def test_the_pause_ends_when_the_next_job_is_due_and_is_never_long(
    count: int, due_in_ms: int | None, pause_s: float
) -> None:
    next_due_ms = None if due_in_ms is None else NOW_MS + due_in_ms
    broker: Any = PromotingBroker(Promoted(count, next_due_ms, NOW_MS))
    assert Scheduler(broker).turn() == pytest.approx(pause_s)
    assert broker.limits == [PAGE]


def watched_broker(next_due_ms: int | None = None, pages: int = 1) -> Any:
    return PromotingBroker(Promoted(0, next_due_ms, NOW_MS, None, is_watched=True), pages)


def test_it_sleeps_longer_while_the_broker_reports_changes() -> None:
    assert Scheduler(watched_broker()).turn() == LONGEST_WATCHED_PAUSE_S
    assert Scheduler(watched_broker(NOW_MS + 300)).turn() == pytest.approx(0.3)


def test_pages_to_realign_or_sweep_follow_each_other_without_that_pause() -> None:
    scheduler = Scheduler(watched_broker(pages=3))
    assert [scheduler.turn() for _ in range(3)] == [LONGEST_PAUSE_S, LONGEST_PAUSE_S, LONGEST_WATCHED_PAUSE_S]


def test_a_report_before_the_turn_is_answered_by_it_and_one_during_it_is_kept() -> None:
    broker = watched_broker()
    scheduler = Scheduler(broker)
    scheduler.wake.set()
    scheduler.turn()
    assert not scheduler.wake.is_set()
    broker.promote = lambda _: scheduler.wake.set() or broker.promoted
    scheduler.turn()
    assert scheduler.wake.is_set()


def test_a_request_to_cancel_running_jobs_is_passed_on_once() -> None:
    broker = watched_broker()
    broker.promoted = Promoted(0, None, NOW_MS, cancel_requests=7)
    calls: list[int] = []
    scheduler = Scheduler(broker, cancel_requested=lambda: calls.append(broker.promoted.cancel_requests))
    scheduler.turn()
    assert calls == [], "those before its start are known to its worker"
    for requests in (8, 8, 10, 0):
        broker.promoted = Promoted(0, None, NOW_MS, cancel_requests=requests)
        scheduler.turn()
    assert calls == [8, 10, 0], "also after the number was lost"


@pytest.mark.parametrize(
    ("in_ms", "is_reached", "pause_s"), [(300, False, 0.3), (0, True, LONGEST_WATCHED_PAUSE_S), (-5, True, 1.0)]
)
def test_it_sleeps_until_the_next_deadline_and_then_wakes_the_loop_that_looks_at_it(
    in_ms: int, is_reached: bool, pause_s: float
) -> None:
    """And is not busy until that loop has looked."""
    broker, calls = watched_broker(), list[int]()
    broker.promoted = Promoted(0, None, NOW_MS, is_watched=True, next_deadline_ms=NOW_MS + in_ms)
    scheduler = Scheduler(broker, deadline_reached=lambda: calls.append(1))
    assert scheduler.turn() == pytest.approx(pause_s)
    assert bool(calls) is is_reached


class Times:
    """The clock of the broker and the monotonic clock of the process."""

    def __init__(self, pages: int = 1) -> None:
        self.broker: Any = PromotingBroker(Promoted(0, None, NOW_MS), pages)
        self.passed_s = 0.0
        self.scheduler = Scheduler(self.broker, monotonic=lambda: self.passed_s)

    def turn(self, *, after_s: float = 0.04, step_ms: int = 0) -> list[int]:
        """Makes a turn, and returns the offsets that it realigned. `step_ms` is a step of the broker's clock."""
        self.passed_s += after_s
        now_ms = self.broker.promoted.now_ms + round(after_s * 1000) + step_ms
        self.broker.promoted = Promoted(0, None, now_ms)
        self.broker.realigned.clear()
        self.scheduler.turn()
        return list(self.broker.realigned)


def test_all_pages_are_realigned_at_the_start_one_in_a_turn() -> None:
    times = Times(pages=3)
    assert [times.turn() for _ in range(5)] == [[0], [PAGE], [2 * PAGE], [], []]


@pytest.mark.parametrize("after_s", [0.001, 0.04, 5.0, 600.0])
def test_after_a_step_back_all_pages_are_realigned_again(after_s: float) -> None:
    times = Times(pages=2)
    assert [times.turn() for _ in range(3)] == [[0], [PAGE], []]
    assert times.turn(after_s=after_s, step_ms=-3_600_000) == [0]
    assert [times.turn() for _ in range(2)] == [[PAGE], []]


def test_a_step_during_a_walk_starts_it_again() -> None:
    times = Times(pages=3)
    assert [times.turn(), times.turn(), times.turn(step_ms=-5000)] == [[0], [PAGE], [0]]


@pytest.mark.parametrize("step_ms", [0, 1000, 3_600_000, -999])
def test_without_a_step_back_nothing_is_realigned_after_the_start(step_ms: int) -> None:
    times = Times()
    times.turn()
    assert [times.turn(after_s=after_s, step_ms=step_ms) for after_s in (0.001, 0.04)] == [[], []]


def test_a_page_that_the_broker_could_not_realign_is_tried_again() -> None:
    times = Times(pages=2)
    times.turn()
    realign = times.broker.realign

    def unreachable(offset: int, limit: int) -> int | None:
        raise BrokerUnavailable("away")

    times.broker.realign = unreachable
    with pytest.raises(BrokerUnavailable):
        times.turn()
    times.broker.realign = realign
    assert [times.turn(), times.turn()] == [[PAGE], []]


def test_a_slow_reply_is_not_taken_for_a_step() -> None:
    times = Times()
    times.turn()

    class Slow(PromotingBroker):
        def promote(self, limit: int) -> Promoted:
            times.passed_s += 10  # on the way back
            return super().promote(limit)

    slow = Slow(Promoted(0, None, NOW_MS))
    scheduler = Scheduler(slow, monotonic=lambda: times.passed_s)  # type: ignore[arg-type]
    scheduler.turn()
    slow.promoted = Promoted(0, None, NOW_MS + 40)
    times.passed_s += 0.04
    scheduler.turn()
    assert slow.realigned == [0]


def test_unique_keys_are_swept_page_by_page_and_again_after_an_hour() -> None:
    times = Times(pages=3)
    for _ in range(5):
        times.scheduler.turn()
    assert times.broker.swept == ["", "1", "2"]
    times.passed_s += SWEEP_EVERY_S - 1
    times.scheduler.turn()
    assert len(times.broker.swept) == 3
    times.passed_s += 1
    times.scheduler.turn()
    assert times.broker.swept == ["", "1", "2", ""]


@pytest.mark.parametrize("is_busy", [True, False])
def test_without_the_lease_it_promotes_nothing_and_looks_for_cancellations(is_busy: bool) -> None:
    broker, clocks, requested = PromotingBroker(Promoted(0, None, NOW_MS)), ManualClocks(), list[float]()
    broker.holder = "another process"
    scheduler = Scheduler(
        broker,  # type: ignore[arg-type]
        cancel_requested=lambda: requested.append(clocks.monotonic()),
        is_busy=lambda: is_busy,
        monotonic=clocks.monotonic,
    )
    for broker.requests in (7, 7, 8, 8):
        assert scheduler.turn() == CANCELS_S
        clocks.advance(CANCELS_S)
    assert (broker.limits, len(requested)) == ([], 1 if is_busy else 0)


def test_a_lease_that_becomes_free_is_taken_within_seconds() -> None:
    broker, clocks = PromotingBroker(Promoted(0, None, NOW_MS)), ManualClocks()
    broker.holder = "another process"
    scheduler = Scheduler(broker, monotonic=clocks.monotonic)  # type: ignore[arg-type]
    scheduler.turn()
    broker.holder, end_s = "", clocks.monotonic() + LONGEST_ASK_S
    while clocks.monotonic() < end_s:
        clocks.advance(scheduler.turn())
    assert PAGE in broker.limits


@pytest.mark.parametrize("patience", [1.0, 4.0])
def test_a_refused_scheduler_asks_for_the_lease_less_often_each_time(patience: float) -> None:
    broker, clocks, asked_s = PromotingBroker(Promoted(0, None, NOW_MS)), ManualClocks(), list[float]()
    broker.holder, broker.patience = "another process", patience
    ask = broker.lease
    broker.lease = lambda *args, **more: asked_s.append(clocks.monotonic()) or ask(*args, **more)  # type: ignore[method-assign, func-returns-value]
    scheduler = Scheduler(broker, monotonic=clocks.monotonic)  # type: ignore[arg-type]
    for _ in range(round(60 / CANCELS_S)):
        clocks.advance(scheduler.turn())
    pauses_s = [later - before for before, later in itertools.pairwise(asked_s)]
    assert len(asked_s) < 30
    assert pauses_s[0] <= LEASE_S * 2
    assert LONGEST_ASK_S * patience / 2 < max(pauses_s) <= LONGEST_ASK_S * patience


def test_a_lease_of_a_process_that_ended_on_this_machine_is_taken_at_once() -> None:
    child = subprocess.Popen([sys.executable, "-c", "import sys; sys.stdin.read()"], stdin=subprocess.PIPE)
    broker, clocks = PromotingBroker(Promoted(0, None, NOW_MS)), ManualClocks()
    own = this_process()
    with open(f"/proc/{child.pid}/stat") as file:
        start = file.read().rpartition(")")[2].split()[19]
    broker.holder = f"0 {own.boot_id} {own.namespaces} {child.pid} {start}"
    scheduler = Scheduler(broker, monotonic=clocks.monotonic)  # type: ignore[arg-type]
    for _ in range(10):  # so that it asks seldom
        clocks.advance(scheduler.turn())
    assert broker.limits == []
    child.kill()
    child.communicate()
    clocks.advance(LEASE_S)
    scheduler.turn()
    assert broker.limits == [PAGE]
