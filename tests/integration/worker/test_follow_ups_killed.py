"""A worker is killed between the end of a handler and the settlement: follow-ups exist exactly if the job is completed.

Each is one program that kills many workers; see tests/support/follow_up_kills.py."""

from __future__ import annotations

from tests.support.follow_up_kills import killed_at_random, killed_everywhere
from tests.support.worker_setup import WorkerSetup

RANDOM_KILLS = 20


def test_follow_ups_exist_exactly_if_the_job_is_completed_wherever_the_worker_is_killed(
    each_setup: WorkerSetup,
) -> None:
    figures = killed_everywhere(each_setup)
    assert figures["kills"] >= 10, "a round trip or two on Redis, call by call"
    assert 0 < figures["completed"] < figures["kills"], "some points are before the settlement, some after it"


def test_follow_ups_exist_exactly_if_the_job_is_completed_whenever_the_worker_is_killed(
    each_setup: WorkerSetup,
) -> None:
    assert killed_at_random(each_setup, RANDOM_KILLS, seed=1)["kills"] > 0
