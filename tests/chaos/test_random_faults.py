"""Random faults for some seconds: in the end every file has been processed.

A failure prints its seed. CHAOS_SEED=… injects the same faults in the same order, though not at the same instants.
CHAOS_S=300 injects many more; `make soak` does so for minutes and prints figures.
"""

from __future__ import annotations

import os
import secrets

import pytest

from tests.support.fault_proxy import FaultProxy
from tests.support.parallel_scenarios import parallel_scenario, running_scenarios, setup_with_own_server
from tests.support.random_faults import RandomFaults, run_with_faults
from tests.support.worker_setup import WorkerSetup

__all__ = ["running_scenarios"]
CHAOS_S = float(os.environ.get("CHAOS_S", "5"))
LONGEST_S = CHAOS_S + 400  # longer than all waits together, so that a failure prints its seed
pytestmark = pytest.mark.timeout(LONGEST_S + 20)


@parallel_scenario("valkey", timeout_s=LONGEST_S)
def test_with_processes_and_the_server_killed_every_file_is_processed(setup: WorkerSetup) -> None:
    with setup_with_own_server(setup) as (server, setup):
        run_with_faults(RandomFaults(setup, seed(), server=server), CHAOS_S)


@parallel_scenario("valkey", timeout_s=LONGEST_S)
def test_with_requests_and_replies_lost_every_file_is_processed(setup: WorkerSetup) -> None:
    with setup_with_own_server(setup) as (server, setup), FaultProxy(server.port) as proxy:
        run_with_faults(RandomFaults(setup, seed(), proxy=proxy), CHAOS_S)


@parallel_scenario("sqlite", timeout_s=LONGEST_S)
def test_with_processes_killed_on_sqlite_every_file_is_processed(setup: WorkerSetup) -> None:
    run_with_faults(RandomFaults(setup, seed()), CHAOS_S)


def seed() -> int:
    return int(os.environ.get("CHAOS_SEED") or secrets.randbelow(1_000_000))
