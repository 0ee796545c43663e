"""Jobs that the pump defers because a limit of their route is reached. The broker is in memory; the test moves time."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest

from fileq.brokers.types import Admission, AdmitRequest
from fileq.core.errors import BrokerUnavailable
from fileq.core.job import Claim
from fileq.core.outcome import Done, Failed
from fileq.core.settlement import defer
from tests.support.pump_setup import PumpSetup, UnreliableBroker

FULL = "the limit of **/*.pdf is reached (max_running_total: 1)"


OTHER = "another-worker"  # a slot of another process


class CountingBroker(UnreliableBroker):
    """Counts the calls of admit, and can lose their replies."""

    admissions = 0
    loses_admissions = 0
    before_admit: Callable[[], object] | None = None

    def admit(self, requests: Sequence[AdmitRequest]) -> list[Admission]:
        self.admissions += 1
        if self.before_admit is not None:
            self.before_admit()
            self.before_admit = None
        answers = super().admit(requests)
        if self.loses_admissions:
            self.loses_admissions -= 1
            raise BrokerUnavailable("the reply was lost")
        return answers


class LimitedSetup(PumpSetup):
    broker_class = CountingBroker
    broker: CountingBroker

    def __init__(self, *, count: int = 4, breaker: dict[str, Any] | None = None, **limits: Any) -> None:
        pdf = {"match": "**/*.pdf", "use": "fileq.handlers:checksum", "max_retries": 0, **limits}
        others = {"match": "**/*", "use": "fileq.handlers:checksum"}
        super().__init__(count=count, handlers=[pdf, others], **(breaker or {}))

    def turn(self, times: int = 4) -> None:
        for _ in range(times):
            self.pump.turn()

    def release_all(self) -> None:
        """As the scheduler and the loop of deferred jobs do."""
        self.broker.promote(500)
        while self.deferrals.turn() == 0.0:
            pass

    def claim_elsewhere(self, id: str) -> Claim:
        """The only free slot of another worker claims this job, the next of its queue."""
        info = self.broker.workers()[0].info
        self.broker.register({OTHER: info})
        [claim] = self.broker.settle_and_claim([], [OTHER]).claims
        assert claim.id == id
        return claim

    def reason(self, id: str) -> str:
        [record] = self.broker.records([id])
        assert record is not None
        return record.deferred


@pytest.mark.parametrize("limit", ["max_running", "max_running_total"])
def test_as_many_as_the_limit_run_and_the_others_wait_while_other_routes_run(limit: str) -> None:
    setup = LimitedSetup(**{limit: 1})
    setup.enqueue("a.pdf", "b.pdf", "c.pdf", "d.txt", "e.txt")
    setup.turn()
    assert sorted(setup.submitted()) == ["a.pdf", "d.txt", "e.txt"]
    assert setup.state("b.pdf") == "deferred"
    assert setup.reason("b.pdf") == f"the limit of **/*.pdf is reached ({limit}: 1)"
    assert (setup.events.count("job.deferred"), setup.events.count("job.claimed")) == (1, 3)


@pytest.mark.parametrize("limit", ["max_running", "max_running_total"])
def test_when_a_job_ends_the_first_deferred_one_runs_at_once(limit: str) -> None:
    setup = LimitedSetup(**{limit: 1})
    setup.enqueue("a.pdf", "b.pdf", "c.pdf")
    for id in ("a.pdf", "b.pdf", "c.pdf"):
        setup.turn()
        assert setup.submitted()[-1] == id
        setup.executor.end(Done(), id)
        setup.turn(1)
        setup.release_all()
    setup.turn()
    assert [setup.state(id) for id in ("a.pdf", "b.pdf", "c.pdf")] == ["completed"] * 3


def test_max_running_is_counted_without_the_broker() -> None:
    setup = LimitedSetup(max_running=1)
    setup.enqueue("a.pdf", "b.pdf", "c.txt")
    setup.turn()
    assert setup.broker.admissions == 0


def test_unlimited_jobs_cause_no_call_and_limited_ones_one_for_each_turn() -> None:
    setup = LimitedSetup(count=6, max_running_total=9)
    setup.enqueue("a.txt", "b.txt")
    setup.turn()
    assert setup.broker.admissions == 0
    setup.enqueue("a.pdf", "b.pdf", "c.pdf", "d.txt")
    setup.turn(1)
    assert (setup.broker.admissions, len(setup.submitted())) == (1, 6)


def test_a_route_with_both_limits_obeys_the_smaller_one_and_waits_for_neither_alone() -> None:
    setup = LimitedSetup(max_running=3, max_running_total=2)
    setup.enqueue(*(f"{n}.pdf" for n in range(4)))
    setup.turn()
    assert setup.submitted() == ["0.pdf", "1.pdf"]
    setup.executor.end(Done())
    setup.turn()
    setup.release_all()
    setup.turn()
    assert sorted(setup.submitted()) == ["0.pdf", "1.pdf", "2.pdf", "3.pdf"]


def test_a_rate_refuses_until_its_window_ends_and_then_as_many_run_at_once() -> None:
    setup = LimitedSetup(rate="2/m")
    setup.enqueue(*(f"{n}.pdf" for n in range(7)))
    setup.turn()
    assert setup.submitted() == ["0.pdf", "1.pdf"]
    assert setup.reason("2.pdf") == "the limit of **/*.pdf is reached (rate: 2/m)"
    setup.executor.end(Done())
    setup.turn()
    setup.release_all()
    setup.turn()
    assert len(setup.submitted()) == 2, "the end of a job does not end the window"
    setup.clocks.advance(59)
    setup.release_all()
    setup.turn()
    assert len(setup.submitted()) == 2
    setup.clocks.advance(1)
    setup.release_all()
    setup.turn()
    assert setup.submitted() == ["0.pdf", "1.pdf", "2.pdf", "3.pdf"]


def test_a_lost_reply_of_admit_is_asked_again_and_each_job_runs_once() -> None:
    setup = LimitedSetup(max_running_total=1, rate="1/h")
    setup.enqueue("a.pdf", "b.txt")
    setup.broker.loses_admissions = 1
    with pytest.raises(BrokerUnavailable):
        setup.turn(1)
    setup.pump.turn(may_claim=False)
    assert sorted(setup.submitted()) == ["a.pdf", "b.txt"]
    setup.turn()
    assert setup.broker.admissions == 2


def test_a_refused_job_is_not_the_probe_and_the_breaker_does_not_count_it() -> None:
    setup = LimitedSetup(max_running_total=1, breaker={"min_samples": 1, "cooldown_period": "10s"})
    other = LimitedSetup(max_running_total=1)
    setup.enqueue("broken.pdf")
    setup.turn(1)
    setup.executor.end(Failed("no", "ValueError"))
    setup.turn(1)
    assert setup.breakers.state == "open"
    # Another worker holds the only permit.
    [slot] = list(other.slot_ids())[:1]
    info = other.broker.workers()[0].info
    setup.broker.register({slot: info})
    setup.enqueue("elsewhere.pdf")
    [held] = setup.broker.settle_and_claim([], [slot]).claims
    setup.broker.admit([AdmitRequest("**/*.pdf", slot, held.raw, 1)])
    setup.clocks.advance(10)
    setup.enqueue("refused.pdf")
    setup.turn()
    assert setup.reason("refused.pdf") == FULL
    assert setup.breakers.state == "half-open"
    setup.broker.deregister([slot])
    setup.turn()
    setup.executor.end(Done())
    setup.turn()
    assert setup.submitted() == ["broken.pdf", "elsewhere.pdf"]
    assert setup.breakers.state == "closed"


def test_when_a_job_ends_a_job_that_another_worker_deferred_runs_at_once() -> None:
    setup = LimitedSetup(max_running_total=1)
    setup.release_all()
    setup.enqueue("a.pdf")
    setup.turn()
    setup.enqueue("b.pdf", "c.pdf")
    for id in ("b.pdf", "c.pdf"):
        setup.broker.settle_and_claim([defer(setup.claim_elsewhere(id), reason=FULL, delay_ms=600_000)], [])
    for id in ("a.pdf", "b.pdf", "c.pdf"):
        assert setup.submitted()[-1] == id
        setup.executor.end(Done())
        setup.turn()
        setup.clocks.advance(0.1)
        setup.release_all()
        setup.turn()


def test_in_place_of_a_job_that_another_worker_has_taken_the_next_one_is_released() -> None:
    setup = LimitedSetup(max_running_total=1)
    setup.enqueue("a.pdf", "b.pdf", "c.pdf")
    setup.turn()
    setup.release_all()
    setup.broker.due_now(["b.pdf"])
    setup.claim_elsewhere("b.pdf")
    setup.executor.end(Done())
    setup.turn()
    setup.release_all()
    setup.turn()
    assert setup.submitted() == ["a.pdf", "c.pdf"]


def test_a_limit_is_no_longer_shown_a_second_after_its_last_job_has_started() -> None:
    setup = LimitedSetup(max_running_total=1)
    setup.enqueue("a.pdf", "b.pdf")
    setup.turn()
    assert {view.info.limits for view in setup.broker.workers()} == {(FULL,)}
    setup.clocks.advance(1)  # the deferred job comes back by itself
    setup.executor.end(Done())
    setup.turn()
    setup.release_all()
    setup.turn()
    assert setup.submitted() == ["a.pdf", "b.pdf"]
    setup.clocks.advance(1)
    setup.turn()
    assert {view.info.limits for view in setup.broker.workers()} == {()}, "without waiting for the next renewal"


def test_workers_show_the_limit_while_jobs_wait_for_it() -> None:
    setup = LimitedSetup(max_running_total=1)
    setup.enqueue("a.pdf", "b.pdf")
    setup.turn()
    assert {view.info.limits for view in setup.broker.workers()} == {(FULL,)}
    setup.executor.end(Done())
    setup.turn()
    setup.release_all()
    setup.turn()
    setup.advance_to_renewal()
    setup.turn()
    assert {view.info.limits for view in setup.broker.workers()} == {()}
    assert setup.submitted() == ["a.pdf", "b.pdf"]


def test_a_deferral_of_a_slot_that_is_gone_is_not_waited_for() -> None:
    setup = LimitedSetup(count=2, max_running_total=1)
    setup.enqueue("a.pdf", "b.pdf")
    setup.turn(1)
    setup.reap_all()
    setup.turn()
    assert setup.events.count("job.fenced") == 2
    for _ in range(2):
        setup.executor.end(Done())
        setup.turn()
        setup.release_all()
        setup.turn()
    assert [setup.state(id) for id in ("a.pdf", "b.pdf")] == ["completed"] * 2
    setup.advance_to_renewal()
    setup.turn()
    assert {view.info.limits for view in setup.broker.workers()} == {()}


def test_when_a_running_job_is_lost_the_first_deferred_one_runs_at_once() -> None:
    setup = LimitedSetup(count=2, max_running_total=1)
    setup.enqueue("a.pdf", "b.pdf")
    setup.turn()
    assert (setup.submitted(), setup.state("b.pdf")) == (["a.pdf"], "deferred")
    setup.broker.deregister([view.slot for view in setup.broker.workers() if view.raw])
    setup.broker.loses_admissions = 1  # then the pump renews its slots at once
    with pytest.raises(BrokerUnavailable):
        setup.turn(1)
    setup.pump.turn(may_claim=False)
    assert setup.events.count("job.fenced") == 1
    setup.deferrals.turn()
    assert setup.state("b.pdf") == "pending"


def test_a_job_that_its_slot_lost_before_it_was_admitted_does_not_run() -> None:
    setup = LimitedSetup(count=1, max_running_total=1)
    setup.enqueue("a.pdf")
    setup.broker.before_admit = setup.reap_all
    setup.turn(1)
    assert setup.submitted() == []
    assert setup.events.count("job.fenced") == 1
    assert setup.reason("a.pdf") == ""
    setup.turn()
    assert setup.submitted() == ["a.pdf"]
