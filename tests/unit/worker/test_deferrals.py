"""When deferred jobs are due again, and how they are released when their reason ends. The test moves the clock."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pytest

from fileq.brokers.types import Record
from fileq.core.errors import BrokerUnavailable
from fileq.core.job import Claim, State, encode
from fileq.core.settlement import Settlement, defer
from fileq.testing.conformance.builders import a_job
from fileq.worker.deferrals import DELIVERIES_RUN, PAGE, Deferrals
from tests.support.clocks import ManualClocks

REASON = "the root /data is missing"


class Setup:
    """Deferrals, and a broker that records which jobs it makes due and may be unreachable."""

    def __init__(self) -> None:
        self.clocks = ManualClocks()
        self.deferrals = Deferrals(self, monotonic=self.clocks.monotonic)  # type: ignore[arg-type]
        self.due: list[list[str]] = []  # pages
        self.scheduled: dict[str, str] = {}  # id → why another process has deferred it; "" for a job that was not
        self.is_away = False

    def due_now(self, ids: Sequence[str]) -> list[bool]:
        if self.is_away:
            raise BrokerUnavailable("away")
        self.due.append(list(ids))
        return [True] * len(ids)

    def peek(self, place: str, limit: int) -> list[bytes]:
        return [raw for page in self.pages(place) for raw in page][:limit]

    def pages(self, place: str) -> Iterator[list[bytes]]:
        assert place == "scheduled"
        for id in self.scheduled:
            yield [encode(a_job(id))]

    def records(self, ids: Sequence[str]) -> list[Record]:
        reasons = [self.scheduled.get(id, REASON) for id in ids]
        states = [State.DEFERRED if reason else State.RETRYING for reason in reasons]
        return [
            Record(id=id, state=state, queue="low", raw=b"", created_ms=0, deferred=reason)
            for id, state, reason in zip(ids, states, reasons, strict=True)
        ]

    def decide(self, id: str, wait_s: float = 30.0) -> Settlement:
        claim = Claim("s1", 1, "low", b"{}", a_job(id), id)
        return defer(claim, reason=REASON, delay_ms=self.deferrals.delay_ms(REASON, wait_s))

    def defer(self, *ids: str, wait_s: float = 30.0) -> list[int]:
        """Defers these jobs and returns their delays."""
        settlements = [self.decide(id, wait_s) for id in ids]
        for settlement in settlements:
            self.deferrals.settled(settlement)
        return [settlement.delay_ms for settlement in settlements]

    def released(self) -> list[str]:
        while self.deferrals.turn() == 0.0:
            pass
        return [id for page in self.due for id in page]


@pytest.fixture
def setup() -> Setup:
    return Setup()


def names(count: int) -> list[str]:
    return [f"job-{i}" for i in range(count)]


def test_jobs_of_one_reason_are_due_one_after_the_other(setup: Setup) -> None:
    assert setup.defer("a", "b", "c") == [30_000, 30_010, 30_020]
    setup.clocks.advance(10)
    assert setup.defer("d", wait_s=20.0) == [20_030], "behind the last one, though its reason may end earlier"


def test_deliveries_come_back_ten_times_a_second(setup: Setup) -> None:
    """Each delivery that ends releases the next one, so those that come back by themselves are claimed in vain."""
    delays = [setup.deferrals.delay_ms(DELIVERIES_RUN, 0.0) for _ in range(50)]
    assert delays == [1000 + 100 * n for n in range(50)]


def test_a_delay_is_at_least_a_second_and_at_most_ten_minutes(setup: Setup) -> None:
    assert setup.defer("a", wait_s=0.0) == [1000]
    assert max(setup.defer(*names(1000), wait_s=3600.0)) <= 600_000


def test_a_hundred_thousand_jobs_come_back_at_a_bounded_rate(setup: Setup) -> None:
    delays = setup.defer(*names(100_000), wait_s=5.0)
    assert max(delays) <= 600_000
    in_each_second = [0] * 601
    for delay_ms in delays:
        in_each_second[delay_ms // 1000] += 1
    assert max(in_each_second[:300]) <= 101
    assert max(in_each_second) <= 301, "three rows of 100 a second: all of them must come back within ten minutes"


def test_nothing_is_released_while_the_reason_lasts(setup: Setup) -> None:
    setup.defer("a", "b")
    assert setup.released() == []


def test_when_the_reason_ends_its_jobs_are_released_page_by_page_in_order(setup: Setup) -> None:
    setup.defer(*names(2 * PAGE + 1))
    setup.deferrals.end(REASON)
    assert setup.deferrals.wake.is_set(), "the loop must not wait out its pause"
    assert setup.released() == names(2 * PAGE + 1)
    assert [len(page) for page in setup.due] == [PAGE, PAGE, 1]
    assert setup.released() == names(2 * PAGE + 1), "once each"


def test_a_page_that_did_not_reach_the_broker_is_sent_again(setup: Setup) -> None:
    setup.defer("a")
    setup.deferrals.end(REASON)
    setup.is_away = True
    with pytest.raises(BrokerUnavailable):
        setup.deferrals.turn()
    setup.is_away = False
    assert setup.released() == ["a"]


def test_a_job_whose_settlement_arrives_after_the_end_of_its_reason_is_released_too(setup: Setup) -> None:
    late = setup.decide("late")
    setup.deferrals.end(REASON)
    assert setup.released() == []
    assert setup.deferrals.settled(late) is False
    assert setup.released() == ["late"]


def test_the_first_job_of_a_reason_is_reported_and_again_after_the_reason_ended(setup: Setup) -> None:
    assert [setup.deferrals.settled(setup.decide(id)) for id in "abc"] == [True, False, False]
    setup.deferrals.end(REASON)
    assert [setup.deferrals.settled(setup.decide(id)) for id in "de"] == [True, False]


def test_a_job_that_has_come_back_by_itself_is_forgotten(setup: Setup) -> None:
    setup.defer("a", "b", wait_s=1.0)
    setup.clocks.advance(10)
    setup.defer("b", wait_s=1.0)
    setup.deferrals.end(REASON)
    assert setup.released() == ["b"]


def test_the_first_jobs_of_a_reason_that_lasts_are_released_and_the_others_wait(setup: Setup) -> None:
    setup.defer("a", "b", "c", "d")
    assert setup.deferrals.release(REASON, 2) == 2
    assert setup.deferrals.wake.is_set()
    assert setup.released() == ["a", "b"]
    assert setup.deferrals.release(REASON, 9) == 2
    assert setup.released() == ["a", "b", "c", "d"]
    assert setup.deferrals.release(REASON, 1) == setup.deferrals.release("another reason", 1) == 0


def test_a_job_whose_deferral_is_under_way_is_released_when_the_broker_has_deferred_it(setup: Setup) -> None:
    late, later = setup.decide("late"), setup.decide("later")
    assert setup.deferrals.release(REASON, 1) == 1
    assert setup.released() == []
    setup.deferrals.settled(late)
    setup.deferrals.settled(later)
    assert setup.released() == ["late"]


def test_a_deferral_that_the_broker_refused_is_not_waited_for(setup: Setup) -> None:
    lost = setup.decide("lost")
    assert setup.deferrals.release(REASON, 1) == 1
    setup.deferrals.fenced(lost)
    assert not setup.deferrals.is_any_waiting(REASON)
    setup.defer("a")
    assert setup.released() == []
    assert setup.deferrals.is_any_waiting(REASON)


def test_a_job_that_is_due_already_does_not_count_as_released(setup: Setup) -> None:
    setup.defer("due", wait_s=1.0)
    setup.clocks.advance(1)
    setup.defer("a", wait_s=1.0)
    assert setup.deferrals.release(REASON, 1) == 1
    assert setup.released() == ["a"]


def test_a_planned_release_happens_at_its_time_and_the_loop_waits_no_longer(setup: Setup) -> None:
    setup.defer("a", "b", "c")
    setup.deferrals.release_later(REASON, 0.25, 2)
    setup.deferrals.release_later(REASON, 9.0, 1)
    assert setup.released() == []
    assert setup.deferrals.turn() == pytest.approx(0.25)
    setup.clocks.advance(0.25)
    assert setup.released() == ["a", "b"]
    setup.clocks.advance(9)
    assert setup.released() == ["a", "b"], "the second plan was dropped"


def test_a_reason_has_waiting_jobs_until_a_while_after_the_last_one_came_back(setup: Setup) -> None:
    setup.defer("a", "b", wait_s=1.0)
    setup.clocks.advance(1.5)
    assert setup.deferrals.is_any_waiting(REASON), "it may be deferred again"
    setup.clocks.advance(1)
    assert not setup.deferrals.is_any_waiting(REASON)


def test_jobs_that_an_ended_process_deferred_are_released_at_the_start(setup: Setup) -> None:
    setup.scheduled = {"a": "the breaker was open", "b": "", "c": REASON}
    assert setup.released() == ["a", "c"]
    assert setup.released() == ["a", "c"], "once"


def test_a_search_releases_only_jobs_whose_reason_does_not_last_here(setup: Setup) -> None:
    assert setup.released() == []
    setup.defer("c")
    setup.scheduled = {"a": "the breaker was open", "c": REASON}
    setup.deferrals.request_search()
    assert setup.released() == ["a"]


def test_jobs_that_another_process_has_released_are_no_longer_waited_for(setup: Setup) -> None:
    setup.defer(*names(5), wait_s=300.0)
    assert setup.deferrals.is_any_waiting(REASON)
    assert setup.released() == []
    assert setup.deferrals.is_any_waiting(REASON), "their records say that they wait"
    setup.scheduled = dict.fromkeys(names(5), "")
    setup.clocks.advance(2)
    assert setup.released() == []
    assert not setup.deferrals.is_any_waiting(REASON)


def test_what_is_not_found_elsewhere_is_looked_for_a_few_times(setup: Setup) -> None:
    assert setup.released() == []
    setup.deferrals.release_elsewhere(REASON, 1)
    assert setup.deferrals.turn() < 0.1
    setup.scheduled = {"retried": "", "a": REASON, "b": REASON}
    setup.clocks.advance(0.1)
    assert setup.released() == ["a"]
    setup.scheduled = {}
    setup.deferrals.release_elsewhere(REASON, 1)
    for _ in range(5):
        setup.clocks.advance(0.2)
        setup.deferrals.turn()
    setup.scheduled = {"b": REASON}
    setup.clocks.advance(0.2)
    assert setup.released() == ["a"], "it is not waited for for ever"
