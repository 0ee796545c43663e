"""The test class that an author of a broker subclasses. It gathers the test functions of all verb modules.

Each verb is a nested class, so that pytest names a test `TestShelf::TestClaim::test_first_in_first_out`.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from types import ModuleType

import pytest

from fileq.brokers.protocol import Waiter
from fileq.testing.conformance import (
    admit_tests,
    batch_cancel_tests,
    batch_ends_tests,
    batch_join_tests,
    batch_nesting_tests,
    batch_state_machine_tests,
    batch_tests,
    bury_tests,
    cancel_tests,
    catalog_tests,
    census_tests,
    claim_tests,
    clear_tests,
    complete_tests,
    crash_batch_tests,
    crash_follow_up_tests,
    crash_tests,
    dead_letter_tests,
    defer_tests,
    due_now_tests,
    earlier_job_tests,
    enqueue_tests,
    events_tests,
    finish_orders_tests,
    fire_tests,
    follow_up_tests,
    foreign_tests,
    ledger_identity_tests,
    ledger_tests,
    outputs_tests,
    overdue_tests,
    overview_tests,
    own_jobs_tests,
    page_tests,
    pause_tests,
    producers_tests,
    promote_tests,
    rate_limit_tests,
    realign_tests,
    reap_tests,
    records_tests,
    registry_tests,
    release_tests,
    renew_tests,
    repair_tests,
    retry_tests,
    schedules_tests,
    settle_tests,
    state_machine_tests,
    undecodable_tests,
    unique_key_tests,
    waiting_tests,
)
from fileq.testing.conformance.harness import Harness, MakeHarness, OpenHarness, harness_maker


def _tests_of(module: ModuleType) -> type:
    """A class whose static methods are the test functions of one module."""
    tests = {name: staticmethod(value) for name, value in vars(module).items() if name.startswith("test_")}
    marks = getattr(module, "pytestmark", [])
    return type(module.__name__.rpartition(".")[2], (), {"__doc__": module.__doc__, "pytestmark": marks, **tests})


class BrokerConformance:
    """All tests that a broker must pass. Subclass it under a name with `Test` and define the fixture `open_harness`.

    To leave a group out, set it to None in the subclass: `TestOverview = None`."""

    TestAdmit = _tests_of(admit_tests)
    TestBatch = _tests_of(batch_tests)
    TestBatchCancel = _tests_of(batch_cancel_tests)
    TestBatchEnds = _tests_of(batch_ends_tests)
    TestBatchJoin = _tests_of(batch_join_tests)
    TestBatchNesting = _tests_of(batch_nesting_tests)
    TestBatchStateMachine = _tests_of(batch_state_machine_tests)
    TestBury = _tests_of(bury_tests)
    TestCancel = _tests_of(cancel_tests)
    TestCatalog = _tests_of(catalog_tests)
    TestCensus = _tests_of(census_tests)
    TestClaim = _tests_of(claim_tests)
    TestClear = _tests_of(clear_tests)
    TestComplete = _tests_of(complete_tests)
    TestCrash = _tests_of(crash_tests)
    TestCrashBatch = _tests_of(crash_batch_tests)
    TestCrashFollowUp = _tests_of(crash_follow_up_tests)
    TestDeadLetter = _tests_of(dead_letter_tests)
    TestDefer = _tests_of(defer_tests)
    TestDueNow = _tests_of(due_now_tests)
    TestEarlierJob = _tests_of(earlier_job_tests)
    TestEnqueue = _tests_of(enqueue_tests)
    TestEvents = _tests_of(events_tests)
    TestFire = _tests_of(fire_tests)
    TestFollowUp = _tests_of(follow_up_tests)
    TestForeign = _tests_of(foreign_tests)
    TestLedger = _tests_of(ledger_tests)
    TestLedgerIdentity = _tests_of(ledger_identity_tests)
    TestOutputs = _tests_of(outputs_tests)
    TestOwnJobs = _tests_of(own_jobs_tests)
    TestOverdue = _tests_of(overdue_tests)
    TestOverview = _tests_of(overview_tests)
    TestPage = _tests_of(page_tests)
    TestPause = _tests_of(pause_tests)
    TestProducers = _tests_of(producers_tests)
    TestPromote = _tests_of(promote_tests)
    TestRateLimit = _tests_of(rate_limit_tests)
    TestRealign = _tests_of(realign_tests)
    TestReap = _tests_of(reap_tests)
    TestRecords = _tests_of(records_tests)
    TestRegistry = _tests_of(registry_tests)
    TestRelease = _tests_of(release_tests)
    TestFinishOrders = _tests_of(finish_orders_tests)
    TestRenew = _tests_of(renew_tests)
    TestRepair = _tests_of(repair_tests)
    TestRetry = _tests_of(retry_tests)
    TestSchedules = _tests_of(schedules_tests)
    TestSettle = _tests_of(settle_tests)
    TestStateMachine = _tests_of(state_machine_tests)
    TestUndecodable = _tests_of(undecodable_tests)
    TestUniqueKey = _tests_of(unique_key_tests)
    TestWaiting = _tests_of(waiting_tests)

    @pytest.fixture
    def make_harness(self, open_harness: OpenHarness) -> Iterator[MakeHarness]:
        with harness_maker(open_harness) as make:
            yield make

    @pytest.fixture
    def harness(self, make_harness: MakeHarness) -> Harness:
        return make_harness()

    @pytest.fixture
    def state_machine_examples(self) -> int:
        """How many random sequences the state machine tries."""
        return 60

    @pytest.fixture
    def waiter(self, harness: Harness) -> Iterator[Waiter]:
        with closing(harness.broker.waiter()) as waiter:
            yield waiter
