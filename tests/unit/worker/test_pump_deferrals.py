"""Jobs that the pump defers because the breaker of their route is open."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest
from msgspec.structs import replace

from fileq.brokers.schedules import Fire, FireResult, Overlap
from fileq.brokers.types import Entry, Record, WorkerInfo, WorkerView
from fileq.core.errors import BrokerUnavailable
from fileq.core.job import file_job, typed_job
from fileq.core.outcome import Done, Failed, FollowUp
from tests.support.pump_setup import NOW, PumpSetup

ROUTES = [
    {"match": "**/*.pdf", "use": "fileq.handlers:checksum", "max_retries": 0},
    {"match": "**/*", "use": "fileq.handlers:checksum"},
]


def opened(count: int = 2) -> PumpSetup:
    """A pump whose breaker of *.pdf is open."""
    setup = PumpSetup(count=count, handlers=ROUTES, min_samples=1, cooldown_period="10s")
    setup.enqueue("broken.pdf")
    setup.pump.turn()
    setup.executor.end(Failed("no", "ValueError"))
    setup.pump.turn()
    assert setup.breakers.state == "open"
    return setup


def turn(setup: PumpSetup, times: int = 4) -> None:
    for _ in range(times):
        setup.pump.turn()


def test_jobs_of_an_open_route_are_deferred_and_the_others_run() -> None:
    setup = opened()
    setup.enqueue("a.pdf", "b.txt", "c.pdf", "d.txt")
    turn(setup)
    assert setup.submitted() == ["broken.pdf", "b.txt", "d.txt"]
    [record] = setup.broker.records(["c.pdf"])
    assert record is not None
    assert (record.state, record.attempt_count, record.deferred_count) == ("deferred", 0, 1)
    assert record.deferred == "the circuit breaker of **/*.pdf is open"
    assert record.due_ms - setup.clocks.wall_ns() // 1_000_000 == 10_010


def test_a_deferral_is_logged_once_for_its_reason_and_is_no_claim() -> None:
    setup = opened()
    setup.enqueue("a.pdf", "b.pdf", "c.pdf")
    turn(setup)
    assert (setup.events.count("job.deferred"), setup.events.count("job.claimed")) == (1, 1)
    assert setup.events.fields("job.deferred")["job_id"] == "a.pdf"
    assert setup.events.fields("job.claimed")["job_id"] == "broken.pdf"


def test_the_first_job_after_the_cooldown_is_the_probe_and_its_success_releases_the_rest() -> None:
    setup = opened()
    setup.enqueue("a.pdf", "b.pdf", "c.pdf")
    turn(setup)
    setup.clocks.advance(10.5)
    setup.broker.promote()
    turn(setup)
    assert setup.submitted() == ["broken.pdf", "a.pdf"]
    assert [setup.state(id) for id in ("b.pdf", "c.pdf")] == ["deferred", "deferred"]
    setup.executor.end(Done())
    turn(setup)
    assert setup.breakers.state == "closed"
    assert setup.deferrals.turn() == 0.0
    turn(setup)
    assert setup.submitted() == ["broken.pdf", "a.pdf", "b.pdf", "c.pdf"]


def test_workers_show_the_open_breaker_and_read_resets_at_their_renewal() -> None:
    setup = opened()
    turn(setup, 1)
    [shown] = setup.broker.workers()[0].info.breakers
    assert (shown.route, shown.error) == ("**/*.pdf", "no")
    setup.broker.reset_breaker("**/*.pdf")
    setup.advance_to_renewal()
    turn(setup, 2)
    assert {view.info.breakers for view in setup.broker.workers()} == {()}
    assert setup.breakers.state == "closed"


def test_while_every_route_is_open_claims_stop_and_the_first_cooldown_starts_one_job_at_a_time() -> None:
    setup = opened()
    setup.enqueue("broken.txt")
    turn(setup)
    setup.executor.end(Failed("no", "ValueError"))
    turn(setup)
    setup.enqueue("a.pdf", "b.txt")
    assert [setup.pump.turn() for _ in range(3)] == [0, 0, 0]
    assert {view.info.is_claiming for view in setup.broker.workers()} == {False}
    setup.clocks.advance(10)
    assert [setup.pump.turn(), setup.pump.turn()] == [1, 1]
    assert setup.submitted() == ["broken.pdf", "broken.txt", "a.pdf", "b.txt"]


def test_a_job_waits_while_an_earlier_job_of_its_file_runs() -> None:
    setup = PumpSetup(count=3)
    for id, signature in (("first", "v1"), ("second", "v2"), ("third", "v3")):
        setup.enqueue_version("report.pdf", signature, id)
    turn(setup)
    assert [task.raw for task in setup.executor.submitted] == [setup.raw("first")]
    for id in ("second", "third"):
        [record] = setup.broker.records([id])
        assert record is not None
        assert (record.state, record.attempt_count) == ("deferred", 0)
        assert record.deferred == "an earlier job of this file is running"
        assert record.due_ms - setup.clocks.wall_ns() // 1_000_000 <= 1010
    setup.executor.end(Done())
    setup.clocks.advance(1.1)
    setup.broker.promote()
    turn(setup)
    assert [task.raw for task in setup.executor.submitted] == [setup.raw("first"), setup.raw("second")]
    assert setup.state("third") == "deferred"


def test_a_job_of_a_schedule_waits_until_the_last_one_has_ended() -> None:
    setup = PumpSetup(count=3, handlers=[{"type": "report", "use": "fileq.handlers:checksum"}])
    setup.broker.define_schedule("nightly", "r1", 1000)
    for slot in (1000, 2000):
        job = typed_job("report", None, priority="low", now=datetime.now(UTC), id=f"sched.{slot}")
        entry = FollowUp(job, "low", is_own=True)
        fire = Fire("nightly", "r1", slot, slot + 1000, entry, overlap=Overlap.QUEUE)
        assert setup.broker.fire(fire) is FireResult.FIRED
    turn(setup)
    assert [task.raw for task in setup.executor.submitted] == [setup.raw("sched.1000")]
    [record] = setup.broker.records(["sched.2000"])
    assert record is not None
    assert record.deferred == "the last job of its schedule has not ended"
    setup.executor.end(Done())
    setup.clocks.advance(1.1)
    setup.broker.promote()
    turn(setup)
    assert setup.state("sched.2000") == "running"
    assert setup.events.count("job.deferred") == 1


def test_each_job_that_waits_for_an_earlier_one_is_logged_once() -> None:
    setup = PumpSetup(count=3)
    for id, signature in (("first", "v1"), ("second", "v2"), ("third", "v3")):
        setup.enqueue_version("report.pdf", signature, id)
    for _ in range(3):
        turn(setup)
        setup.clocks.advance(1.1)
        setup.broker.promote()
    assert setup.events.count("job.deferred") == 2


def test_a_job_that_waits_for_an_earlier_one_is_no_probe_of_a_breaker() -> None:
    setup = PumpSetup(count=3, handlers=ROUTES, min_samples=1, cooldown_period="10s")
    setup.enqueue_version("a.pdf", "v1", "first")
    setup.enqueue("broken.pdf")
    turn(setup)
    setup.executor.end(Failed("no", "ValueError"), "broken.pdf")
    turn(setup)
    setup.enqueue_version("a.pdf", "v2", "second")
    setup.enqueue("probe.pdf")
    setup.clocks.advance(10)
    turn(setup)
    assert setup.submitted() == ["a.pdf", "broken.pdf", "probe.pdf"]


def test_good_jobs_do_not_wait_for_bad_ones_that_are_retried() -> None:
    """150 bad jobs fail and come back before a good one arrives. The first try after the cooldown is the good one."""
    routes = [{**ROUTES[0], "max_retries": 5}, ROUTES[1]]
    setup = PumpSetup(count=2, handlers=routes, min_samples=150, cooldown_period="30s")
    setup.enqueue(*(f"{n}.pdf" for n in range(150)))
    while setup.breakers.is_closed:
        turn(setup, 1)
        setup.executor.end(Failed("no", "ValueError"))
    for _ in range(5):
        setup.clocks.advance(1)
        setup.broker.promote()
        turn(setup, 80)
    assert setup.deferrals.count(setup.breakers.reason(0)) >= 149
    setup.enqueue("good.pdf")
    turn(setup)
    before = len(setup.submitted())
    for _ in range(280):
        setup.clocks.advance(0.1)
        setup.broker.promote()
        turn(setup, 20)
    assert setup.submitted()[before:] == ["good.pdf"], "it is the probe, and there is one"
    setup.executor.end(Done())
    turn(setup)
    assert setup.breakers.is_closed


def test_good_jobs_do_not_wait_for_bad_ones_if_there_is_only_one_route() -> None:
    """Then nothing is claimed while the breaker is open: the bad jobs are before the good one in the queue."""
    routes = [{"match": "**/*", "use": "fileq.handlers:checksum", "max_retries": 5}]
    setup = PumpSetup(count=2, handlers=routes, min_samples=20, cooldown_period="30s")
    setup.enqueue(*(f"{n}.pdf" for n in range(20)))
    while setup.breakers.is_closed:
        turn(setup, 1)
        setup.executor.end(Failed("no", "ValueError"))
    setup.clocks.advance(10)
    setup.broker.promote()
    setup.enqueue("good.pdf")
    before = len(setup.submitted())
    setup.clocks.advance(20)
    turn(setup, 60)
    assert setup.submitted()[before:] == ["good.pdf"]


def test_the_registry_says_how_many_jobs_a_breaker_defers() -> None:
    setup = opened()
    setup.enqueue("a.pdf", "b.pdf", "c.pdf")
    turn(setup)
    setup.clocks.advance(1)
    turn(setup)
    [shown] = setup.broker.workers()[0].info.breakers
    assert shown.deferred == 3
    setup.broker.cancel(["a.pdf"])
    setup.clocks.advance(2)
    while setup.deferrals.turn() == 0.0:
        pass
    turn(setup)
    assert setup.broker.workers()[0].info.breakers[0].deferred == 2


def test_a_breaker_whose_last_job_has_ended_closes_after_a_window() -> None:
    setup = opened()
    setup.enqueue("a.pdf")
    turn(setup)
    setup.broker.cancel(["a.pdf"])
    for _ in range(70):
        setup.clocks.advance(1)
        while setup.deferrals.turn() == 0.0:
            pass
        turn(setup)
    assert setup.breakers.state == "closed"
    assert setup.events.fields("breaker.closed")["route"] == "**/*.pdf"
    assert setup.broker.workers()[0].info.breakers == ()


def test_a_job_that_fails_at_each_retry_is_one_failure_for_the_breaker() -> None:
    routes = [{**ROUTES[0], "max_retries": 5}, ROUTES[1]]
    setup = PumpSetup(handlers=routes, min_samples=2)
    setup.enqueue("bad.pdf")
    for _ in range(4):
        turn(setup)
        setup.executor.end(Failed("no", "ValueError"))
        turn(setup)
        setup.clocks.advance(10)
        setup.broker.promote()
    assert len(setup.submitted()) >= 4
    assert setup.breakers.is_closed


# jobs that only another worker has a handler for

OTHER = WorkerInfo("away", 7, 0, "1", ("low",), types=("resize",), globs=("**/*.png",), roots=("/data",))
PDF_ROUTE = [{"match": "**/*.pdf", "use": "fileq.handlers:checksum"}]


def beside(other: WorkerInfo = OTHER) -> PumpSetup:
    """A pump that takes PDF files, beside another worker."""
    setup = PumpSetup(handlers=PDF_ROUTE)
    setup.broker.register({"away-7-0": other})
    return setup


def test_a_file_below_no_root_here_is_left_to_a_running_worker_that_has_its_root_and_a_route_for_it() -> None:
    job = file_job(b"/volume/sub/a.pdf", size=1, priority="low", now=NOW, id="a")
    theirs = replace(OTHER, globs=("sub/*.pdf",), roots=("/volume", "/volume2"))
    for info, deferred in (
        (theirs, "this worker has no root for this file; worker away-7 has one"),
        (replace(theirs, roots=("/vol",)), ""),
        (replace(theirs, globs=("*.png",)), ""),
    ):
        setup = beside(info)
        setup.broker.enqueue([Entry(job, "low")])
        turn(setup)
        record = record_of(setup, "a")
        assert (record.deferred, setup.submitted()) == (deferred, [] if deferred else ["a.pdf"])


def record_of(setup: PumpSetup, id: str) -> Record:
    [record] = setup.broker.records([id])
    assert record is not None
    return record


def test_a_job_without_a_handler_here_is_left_to_a_running_worker_that_has_one() -> None:
    setup = beside()
    for id in ("first", "second"):
        setup.enqueue_typed("resize", id)
    setup.enqueue("a.png")
    turn(setup)
    reason = "this worker has no handler for type 'resize'; worker away-7 has one"
    for id, expected in {
        "first": reason,
        "second": reason,
        "a.png": "this worker has no route for this file; worker away-7 has one",
    }.items():
        record = record_of(setup, id)
        assert (record.state, record.deferred, record.attempt_count) == ("deferred", expected, 0)
    assert setup.events.count("job.deferred") == 2, "one line for each reason"
    assert setup.submitted() == []


def test_a_job_that_no_running_worker_takes_is_dead_at_once() -> None:
    setup = beside()
    setup.enqueue_typed("resice", "typo")
    setup.enqueue("a.gif")
    turn(setup)
    assert (setup.state("typo"), setup.state("a.gif")) == ("dead", "dead")
    assert record_of(setup, "typo").error.startswith("no handler for type 'resice'")


def test_a_worker_that_does_not_claim_from_the_queue_of_a_job_gets_none_of_it() -> None:
    setup = beside(replace(OTHER, queues=("high",)))
    setup.enqueue_typed("resize", "job")
    turn(setup)
    assert setup.state("job") == "dead"


def test_a_job_left_to_a_worker_that_has_gone_is_dead() -> None:
    setup = beside()
    setup.enqueue_typed("resize", "job")
    turn(setup)
    setup.broker.deregister(["away-7-0"])
    setup.clocks.advance(3)
    setup.broker.promote()
    turn(setup)
    assert setup.state("job") == "dead"


def test_the_delay_of_a_job_that_another_worker_does_not_get_to_grows_to_a_bound() -> None:
    setup = beside()
    setup.enqueue_typed("resize", "job")
    delays = []
    for _ in range(6):
        turn(setup)
        delays.append((record_of(setup, "job").due_ms - setup.clocks.wall_ns() // 1_000_000) / 1000)
        setup.clocks.advance(delays[-1] + 0.1)
        setup.broker.register({"away-7-0": OTHER})
        setup.broker.promote()
    assert delays == [1.0, 1.5, 2.25, 3.0, 3.0, 3.0]


def test_the_registry_is_read_once_in_two_seconds_for_jobs_without_a_handler(monkeypatch: pytest.MonkeyPatch) -> None:
    setup, reads = beside(), []
    workers = setup.broker.workers

    def counted() -> list[WorkerView]:
        reads.append(setup.clocks.monotonic())
        return workers()

    monkeypatch.setattr(setup.broker, "workers", counted)
    setup.enqueue(*(f"{n}.pdf" for n in range(3)))
    turn(setup)
    assert reads == [], "a job with a handler costs nothing"
    setup.executor.end(Done())
    for n in range(20):
        setup.enqueue_typed("resize" if n % 2 else "resice", f"job-{n}")
    turn(setup, 40)
    assert len(reads) == 1
    setup.clocks.advance(2)
    setup.enqueue_typed("resize", "later")
    turn(setup)
    assert len(reads) == 2


def test_a_job_waits_while_the_registry_can_not_be_read(monkeypatch: pytest.MonkeyPatch) -> None:
    setup = beside()

    def unreachable() -> list[WorkerView]:
        raise BrokerUnavailable("away")

    monkeypatch.setattr(setup.broker, "workers", unreachable)
    setup.enqueue_typed("resize", "job")
    turn(setup)
    assert setup.state("job") == "deferred"
    monkeypatch.undo()
    setup.broker.deregister(["away-7-0"])
    setup.clocks.advance(3)
    setup.broker.promote()
    turn(setup)
    assert setup.state("job") == "dead"
