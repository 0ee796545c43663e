"""The rate of the last minute, from which the ETA of `fileq stats` follows."""

import pytest

from fileq.cli.stats_text import render
from fileq.cli.terminal import Screen
from fileq.commands.admin import stats
from fileq.commands.admin.stats import gather
from fileq.core.settlement import complete
from fileq.testing.conformance.builders import (
    burial,
    claims_of,
    completed,
    enqueue,
    names,
    register,
    running,
    settle,
    worker_info,
)
from fileq.testing.conformance.harness import config_of
from fileq.testing.conformance.memory_harness import MemoryHarness


def make(**settings):
    return MemoryHarness(config_of("memory", settings))


def eta_of(harness):
    """The ETA while the worker that ended the jobs is alive."""
    harness.broker.renew([("w1", b"")])
    stats = gather(harness.broker)
    return stats.eta_s, stats.eta_per_second, stats.eta_basis


def end(harness, count, prefix, *, every_s):
    for id in names(count, prefix):
        completed(harness, id)
        harness.advance(every_s)


@pytest.mark.parametrize("count", [1, 2, 3, 7, 8, 9, 30])
def test_the_rate_is_that_of_the_last_minute_and_not_of_the_hour(count):
    harness = make()
    end(harness, 100, "early", every_s=0.1)
    harness.advance(300)
    end(harness, count, "late", every_s=1.0)
    enqueue(harness, *names(6))
    assert eta_of(harness) == (pytest.approx(6 / (count / 60)), pytest.approx(count / 60), "last_minute")


def test_dead_jobs_count_as_done():
    harness = make()
    completed(harness, "a")
    settle(harness, burial(running(harness, "b")))
    enqueue(harness, *names(4))
    assert eta_of(harness) == (pytest.approx(120), pytest.approx(2 / 60), "last_minute")


def test_if_no_job_ended_in_the_last_minute_the_rate_is_that_of_the_hours():
    harness = make()
    end(harness, 100, "early", every_s=1.0)
    harness.advance(61)
    enqueue(harness, "a")
    _, per_second, basis = eta_of(harness)
    assert basis == "last_hours"
    assert per_second > 0


def test_without_any_ended_job_there_is_no_eta_and_without_a_backlog_it_is_zero():
    harness = make()
    register(harness, "w1")
    assert eta_of(harness) == (0.0, None, None)
    enqueue(harness, "a")
    assert eta_of(harness) == (None, None, None)


def test_without_a_living_worker_there_is_no_eta():
    harness = make()
    completed(harness, *names(5, "done"))
    enqueue(harness, "a", "b")
    assert gather(harness.broker).eta_s is not None
    harness.advance(harness.config.worker.heartbeat_ttl)
    stats = gather(harness.broker)
    assert (stats.eta_s, stats.eta_per_second, stats.eta_basis) == (None, None, None)
    assert "2 jobs left; no worker is running." in render(stats, Screen(80, 24))


def test_jobs_that_only_draining_workers_could_run_are_not_claimed():
    harness = make()
    harness.broker.register({"w1": worker_info(is_draining=True)})
    enqueue(harness, "a")
    lines = render(gather(harness.broker), Screen(80, 24))
    assert "1 job left; every worker is draining, so no jobs start." in lines
    assert any(" draining " in line and " 0 of 1 " in line for line in lines)


def test_the_time_before_the_first_worker_started_does_not_count():
    harness = make()
    harness.broker.register({"w1": worker_info(started_ms=harness.clock.ms)})
    end(harness, 10, "job", every_s=1.0)
    harness.broker.register({"w1": worker_info(started_ms=harness.clock.ms - 10_000)})
    enqueue(harness, "a")
    assert eta_of(harness) == (pytest.approx(1), pytest.approx(1), "last_minute")


@pytest.mark.parametrize("settings", [{}, {"worker.completed_max": 100}])
def test_the_rate_of_many_jobs_is_that_of_the_newest(settings, monkeypatch):
    monkeypatch.setattr(stats, "MOST", 100)
    harness = make(**settings)
    end(harness, 300, "job", every_s=0.05)
    enqueue(harness, *names(40, "waiting"))
    assert eta_of(harness) == (pytest.approx(2), pytest.approx(20), "last_minute")


def test_jobs_without_a_record_do_not_disturb():
    harness = make()
    completed(harness, *names(5))
    for id in names(5):
        harness.remove_record(id)
    enqueue(harness, "a")
    assert eta_of(harness)[2] == "last_hours"


def test_the_cost_does_not_depend_on_the_number_of_jobs():
    harness = make()
    slots = names(500, "slot")
    for start in range(5):
        enqueue(harness, *names(500, f"job{start}"))
        harness.broker.settle_and_claim([complete(claim) for claim in claims_of(harness, *slots)], [])
    register(harness, "w1")
    read = []
    outlines = harness.broker.outlines
    harness.broker.outlines = lambda ids: read.append(len(ids)) or outlines(ids)
    enqueue(harness, "a")
    gather(harness.broker)
    assert 0 < sum(read) <= stats.MOST


def test_nothing_is_known_about_a_job_that_runs_for_much_longer_than_the_others_took():
    harness = make()
    running(harness, "long", slot="w2")
    end(harness, 480, "job", every_s=0.1)
    harness.broker.renew([("w2", b"")])
    eta_s, per_second, _ = eta_of(harness)
    assert (eta_s, per_second > 1) == (None, True)
    why = "time left unknown: one job has been running for 48s, longer than usual"
    assert f"1 job left; {why}." in render(gather(harness.broker), Screen(200, 24))
    enqueue(harness, *names(3000, "pending"))
    assert eta_of(harness)[0] > 48, "behind so many jobs it does not matter"


def test_while_a_job_runs_it_is_not_done_in_0_s():
    harness = make()
    end(harness, 300, "job", every_s=0.01)
    running(harness, "a", slot="w2")
    assert eta_of(harness)[0] == 1.0
