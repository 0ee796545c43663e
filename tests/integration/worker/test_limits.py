"""The limits of a route: in one worker process, in all, and beside a worker that is killed. The installed program."""

from __future__ import annotations

import json
import time
from collections.abc import Iterable

from fileq.core.job import State
from tests.support import program
from tests.support.parallel_scenarios import parallel_scenario, running_scenarios
from tests.support.waiting import wait_until
from tests.support.worker_setup import MODULE, WorkerSetup, ids, is_running

__all__ = ["running_scenarios"]


def route(type: str, function: str, limit: str) -> str:
    return f'{{type: {type}, use: "{MODULE}:{function}", {limit}}}'


def most_at_once(spans: Iterable[tuple[float, float]]) -> int:
    """How many of these (start, end) there were at the same time at most."""
    steps = sorted(step for start, end in spans for step in ((start, 1), (end, -1)))  # an end comes before a start
    running = most = 0
    for _, step in steps:
        running += step
        most = max(most, running)
    return most


def finished_runs(setup: WorkerSetup) -> list[tuple[float, float]]:
    """When each handler that came to its end started and ended, by its own log. A handler runs in one process."""
    started: dict[str, float] = {}
    spans = []
    for line in setup.handler_log():
        if line.word == "start":
            started[line.id] = line.at_s
        elif line.word == "end":
            spans.append((started[line.id], line.at_s))
    return spans


def deferred(setup: WorkerSetup, jobs: list[str]) -> list[str]:
    return [record.deferred for record in setup.broker.records(jobs) if record and record.deferred]


def wait_until_tried_again(setup: WorkerSetup, jobs: list[str]) -> None:
    """Waits until each of these jobs runs or has been refused once more."""
    before = {job: setup.record(job).deferred_count for job in jobs}

    def is_tried(job: str) -> bool:
        record = setup.record(job)
        return record.state is State.RUNNING or record.deferred_count > before[job]

    wait_until(lambda: all(is_tried(job) for job in jobs), what="all jobs were tried again")


@parallel_scenario("valkey", "sqlite")
def test_a_limit_of_each_kind_holds_back_its_route_and_all_other_jobs_run(setup: WorkerSetup) -> None:
    limits = {"a": "max_running: 1", "b": "max_running_total: 1", "c": "rate: 1/h"}
    jobs = {type: setup.enqueue(type, *ids(type, 3)) for type in limits}
    behind = setup.enqueue("note", *ids("behind", 5))
    routes = ", ".join(route(type, "gated", limit) for type, limit in limits.items())
    worker = setup.worker(count=6, handlers=f"[{routes}]")
    setup.wait_for(State.COMPLETED, behind)
    reasons = {type: f"the limit of {type} is reached ({limit})" for type, limit in limits.items()}
    for type, reason in reasons.items():
        wait_until(lambda t=type, r=reason: deferred(setup, jobs[t]) == [r, r])  # type: ignore[misc]
    setup.wait_logged("start", 3)
    assert sorted(setup.logged("start")) == ["a-0", "b-0", "c-0"]
    for words in ("stats", "workers"):
        text, as_json = (
            program.run(words, *option, cwd=setup.directory, settings=setup.all_settings()).stdout
            for option in ([], ["--json"])
        )
        [process] = json.loads(as_json)["workers"]
        assert sorted(process["limits"]) == sorted(reasons.values())
        assert all(f"{reason}; its other jobs are deferred" in text for reason in reasons.values())
    setup.open_gate()
    setup.wait_for(State.COMPLETED, [*jobs["a"], *jobs["b"], "c-0"])
    assert setup.states(jobs["c"]) == {"completed": 1, "deferred": 2}
    assert {setup.record(job).attempt_count for job in jobs["a"] + jobs["b"]} == {1}
    assert len(worker.events("job.deferred")) == 3, "once for each reason"
    assert setup.census().drift == 0


@parallel_scenario("valkey", "sqlite")
def test_no_more_than_max_running_jobs_of_a_route_work_at_the_same_time_in_a_process(setup: WorkerSetup) -> None:
    jobs = setup.enqueue("work", *ids("job", 12), payload=0.1)
    setup.worker(count=6, handlers=f"[{route('work', 'work', 'max_running: 2')}]")
    setup.wait_for(State.COMPLETED, jobs)
    assert sorted(setup.logged("end")) == sorted(jobs), "each ran once"
    assert most_at_once(finished_runs(setup)) == 2


@parallel_scenario("valkey", "sqlite")
def test_a_killed_worker_keeps_its_permits_until_its_jobs_are_given_back(setup: WorkerSetup) -> None:
    jobs = setup.enqueue("gated", *ids("job", 8))
    handlers = f"[{route('gated', 'gated', 'max_running_total: 2')}]"
    victim = setup.worker(count=2, handlers=handlers)
    setup.wait_logged("start", 2)
    setup.worker(count=len(jobs), handlers=handlers)
    setup.wait_for(State.COMPLETED, setup.enqueue("note", *ids("behind", 5)))
    wait_until(lambda: len(deferred(setup, jobs)) == 6)
    killed = setup.handler_log("start")
    assert len(killed) == 2
    victim.process.kill()
    wait_until(lambda: not any(is_running(line.pid) for line in killed), what="its children are gone")
    setup.wait_logged("start", 4)  # the other worker: the gate is still closed
    wait_until_tried_again(setup, jobs)
    setup.open_gate()
    setup.wait_for(State.COMPLETED, jobs)
    # By the log of the handlers; a killed one counts as long as its permit was taken.
    deaths = {line.id: setup.record(line.id).attempts[0] for line in killed}
    assert {death.outcome for death in deaths.values()} == {"died"}
    held = [(line.at_s, deaths[line.id].ended_ms / 1000) for line in killed]
    assert most_at_once([*held, *finished_runs(setup)]) == 2
    assert sorted(setup.logged("end")) == sorted(jobs), "each came to its end once"
    assert setup.census().drift == 0


@parallel_scenario("valkey", "sqlite")
def test_two_workers_share_the_rate_of_a_route(setup: WorkerSetup) -> None:
    """Each worker has a queue of its own, so both start jobs."""
    per_window, handlers = 4, f"[{route('work', 'work', 'rate: 4/s')}]"
    queues = ("high", "low")
    for queue in queues:
        setup.worker(count=4, handlers=handlers, priorities=f"[{queue}]", producer__default_priority=queue)
    begun_s = time.time()
    jobs = [job for queue in queues for job in setup.enqueue("work", *ids(queue, 6), queue=queue)]
    setup.wait_for(State.COMPLETED, jobs)
    starts = sorted(line.at_s for line in setup.handler_log("start"))
    assert len(starts) == len(jobs)
    # The n-th window cannot begin before n - 1 windows of a second have ended.
    too_early = [n for n, at_s in enumerate(starts) if at_s < begun_s + n // per_window]
    assert too_early == []
    assert setup.census().drift == 0
