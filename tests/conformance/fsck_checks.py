"""Runs fsck on the broker of a harness, and asserts what a repair leaves."""

from fileq.commands.admin.fsck.check import fsck
from fileq.core.settlement import cancel
from fileq.testing.conformance.builders import (
    completed,
    dead,
    enqueue,
    failed,
    running,
    settle,
    snapshot,
)


def check(harness, *, repair=False, broker=None, meanwhile=lambda: None):
    """Runs fsck; calls `meanwhile` between its two checks."""
    return fsck(broker or harness.broker, harness.config, is_repairing=repair, sleep=lambda seconds: meanwhile())


def kinds(report):
    return sorted((problem.kind, problem.id) for problem in report.problems)


def fill(harness):
    """Puts jobs into every state and every place, without any damage."""
    completed(harness, "c1", "c2")
    dead(harness, "d1")
    settle(harness, cancel(running(harness, "x1")))
    settle(harness, failed(running(harness, "r1")))
    running(harness, "run1", "w2")
    enqueue(harness, "s1", delay_ms=60_000)
    enqueue(harness, "h1", "h2", queue="high")
    enqueue(harness, "l1", "l2")


def assert_repaired(harness, *ids):
    """Repairs, asserts that a second repair does nothing, and returns what the first one did."""
    report = check(harness, repair=True)
    assert report.is_clean, report
    assert report.problems == ()
    before = snapshot(harness, *ids)
    again = check(harness, repair=True)
    assert (again.is_clean, again.repairs) == (True, ())
    assert snapshot(harness, *ids) == before
    return [(repair.action, repair.id) for repair in report.repairs]
