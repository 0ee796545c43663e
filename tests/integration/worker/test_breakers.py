"""A route whose handler fails stops only itself. The installed program, on both brokers."""

from __future__ import annotations

import json
import re

from fileq.brokers.types import Census, Record
from fileq.client.broker_transport import BrokerTransport
from fileq.core.job import decode
from tests.support import program
from tests.support.waiting import wait_until
from tests.support.worker_setup import MODULE, WorkerSetup, ids, let_time_pass

NEVER_AGAIN = {"circuit_breaker__min_samples": 5, "circuit_breaker__cooldown_period": "1h", "max_retries": 0}
BAD_AND_GOOD = f'[{{match: "**/*.bad", use: "{MODULE}:fails"}}, {{match: "**/*", use: "{MODULE}:on_file"}}]'
OPEN = "the circuit breaker of fails is open"


def fileq(setup: WorkerSetup, *words: str) -> str:
    done = program.run(*words, cwd=setup.directory, settings=setup.all_settings())
    assert done.returncode == 0, done.stderr
    return done.stdout


def deferred(setup: WorkerSetup, jobs: list[str]) -> list[str]:
    return [job for job, record in zip(jobs, setup.broker.records(jobs), strict=True) if record and record.deferred]


def was_tried(record: Record | None) -> bool:
    """Whether the job has been claimed at least once; its record is gone or kept when it is dead."""
    return record is None or record.deferred_count > 0 or record.attempt_count > 0


def came_back(census: Census) -> int:
    """Jobs that were due so far: those claimed, and those that a loaded machine has not claimed yet."""
    return census.counters["consumed"] + sum(census.pending.values())


def test_forty_healthy_files_beside_a_failing_route_finish(each_setup: WorkerSetup) -> None:
    setup = each_setup
    names = [*(f"{n}.bad" for n in range(20)), *(f"{n}.txt" for n in range(40))]
    for name in names:
        (setup.inbox / name).write_text(name)
        setup.enqueue_file(setup.inbox / name, name)
    worker = setup.worker(count=2, handlers=BAD_AND_GOOD, **NEVER_AGAIN)
    assert setup.wait_ended(names[20:], 20) == {"completed": 40}
    opened = worker.wait_for("breaker.opened")
    assert (opened["route"], opened["failure_share"], opened["next_probe_s"]) == ("**/*.bad", 1.0, 3600)
    assert "ValueError: broken" in opened["error"]
    wait_until(lambda: setup.states(names[:20])["deferred"] + setup.states(names[:20])["dead"] == 20)
    assert len(worker.events("job.deferred")) == 1, "once for its reason"
    waiting = deferred(setup, names[:20])
    assert len(waiting) >= 10
    assert {setup.record(job).attempt_count for job in waiting} == {0}
    assert setup.census().drift == 0


def test_an_open_breaker_is_shown_and_a_reset_runs_its_jobs_at_once(each_setup: WorkerSetup) -> None:
    setup = each_setup
    jobs = setup.enqueue("fails", *ids("job", 30))
    worker = setup.worker(count=1, **NEVER_AGAIN)
    wait_until(lambda: len(deferred(setup, jobs)) == 25)
    assert worker.metric('fileq_breaker_state{route="fails"}') == worker.metric("circuit_breaker_state") == 2
    assert worker.metric('fileq_breaker_state{route="note"}') == 0
    assert worker.metric('fileq_breaker_deferred{route="fails"}') == 25
    wait_until(lambda: "25 deferred by circuit breakers" in fileq(setup, "stats"))
    for words in (("workers",), ("stats",)):
        text = fileq(setup, *words)
        assert re.search(r"breaker of fails is open: 100% failed, next try \S+, 25 jobs deferred; ", text)
        [process] = json.loads(fileq(setup, *words, "--json"))["workers"]
        [shown] = process["breakers"]
        assert (shown["route"], shown["state"], process["is_claiming"]) == ("fails", "open", True)
        assert shown["deferred"] == 25
        assert "ValueError: broken" in shown["error"]
    assert setup.record(jobs[-1]).deferred == OPEN
    setup.open_gate("repaired")
    report = json.loads(fileq(setup, "breaker", "reset", "fails", "--json"))
    assert [(one["route"], one["state"]) for one in report["open"]] == [("fails", "open")]
    worker.wait_for("breaker.closed")
    assert setup.wait_ended(jobs) == {"dead": 5, "completed": 25}
    assert "no worker reports an open breaker" in fileq(setup, "breaker", "reset")


def test_a_dead_job_that_is_tried_as_a_probe_runs_although_the_breaker_is_open(each_setup: WorkerSetup) -> None:
    """If it fails, the breaker stays open. If it completes, the breaker closes, and its deferred jobs run."""
    setup = each_setup
    jobs = setup.enqueue("fails", *ids("job", 8))
    worker = setup.worker(count=1, **NEVER_AGAIN)
    wait_until(lambda: len(deferred(setup, jobs)) == 3)
    [first, second, *_] = [job for job in jobs if job not in deferred(setup, jobs)]
    transport = BrokerTransport(setup.broker, setup.config)
    transport.retry(first, is_probe=True)
    wait_until(lambda: setup.record(first).attempt_count == 2, what="an attempt of the probe")
    wait_until(lambda: setup.states([first])["dead"] == 1)
    assert (len(deferred(setup, jobs)), worker.metric("circuit_breaker_state")) == (3, 2)
    setup.open_gate("repaired")
    transport.retry(second, is_probe=True)
    worker.wait_for("breaker.closed")
    assert setup.wait_ended(jobs) == {"dead": 4, "completed": 4}
    assert not decode(setup.record(first).raw).breaker_probe, "a later retry of the job obeys the breaker"


def test_a_new_worker_runs_at_once_what_an_ended_one_had_deferred(each_setup: WorkerSetup) -> None:
    setup = each_setup
    jobs = setup.enqueue("fails", *ids("job", 15))
    worker = setup.worker(count=1, **NEVER_AGAIN)
    wait_until(lambda: len(deferred(setup, jobs)) == 10)
    assert worker.stop() == 0
    setup.open_gate("repaired")
    setup.worker(count=1, **NEVER_AGAIN)
    assert setup.wait_ended(jobs) == {"dead": 5, "completed": 10}


def test_jobs_behind_thousands_of_deferred_ones_start_and_the_churn_is_bounded(each_setup: WorkerSetup) -> None:
    """1,500 jobs of a route that fails again at every probe; a hundred thousand take minutes."""
    setup = each_setup
    broken = setup.enqueue("fails", *ids("broken", 1500))
    healthy = setup.enqueue("note", *ids("healthy", 10))
    setup.worker(circuit_breaker__min_samples=5, circuit_breaker__cooldown_period="1s", max_retries=0, count=8)
    assert setup.wait_ended(healthy, 60) == {"completed": 10}
    wait_until(lambda: all(was_tried(record) for record in setup.broker.records(broken)), 30)
    before = setup.census()
    let_time_pass(5)
    after = setup.census()
    assert (came_back(after) - came_back(before)) / (after.now_ms - before.now_ms) * 1000 <= 105
    assert after.drift == 0


def test_a_breaker_whose_route_has_no_jobs_left_closes_and_everything_that_shows_it_follows(
    each_setup: WorkerSetup,
) -> None:
    setup = each_setup
    jobs = setup.enqueue("fails", *ids("job", 5))
    quick = {"circuit_breaker__window": "1s", "circuit_breaker__cooldown_period": "1s"}
    worker = setup.worker(count=5, circuit_breaker__min_samples=5, max_retries=0, **quick)
    assert setup.wait_ended(jobs) == {"dead": 5}
    assert worker.wait_for("breaker.opened")["route"] == "fails"
    assert worker.wait_for("breaker.closed")["route"] == "fails"
    assert worker.metric('fileq_breaker_state{route="fails"}') == worker.metric("circuit_breaker_state") == 0
    assert worker.metric('fileq_breaker_deferred{route="fails"}') == 0
    wait_until(lambda: "breaker of fails" not in fileq(setup, "stats"))
    setup.open_gate("repaired")
    more = setup.enqueue("fails", *ids("more", 5))
    assert setup.wait_ended(more) == {"completed": 5}
