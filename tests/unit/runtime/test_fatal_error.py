"""The error that ends a role: the first one counts, and it is never missed."""

from fileq.core.errors import FileqError
from fileq.runtime.roles import FatalError


def test_the_first_error_is_kept_and_each_report_wakes() -> None:
    fatal, woken = FatalError(), []
    fatal.wake_with(lambda: woken.append(fatal.error))
    first = FileqError("the cause")
    fatal.report(first)
    fatal.report(FileqError("a consequence"))
    assert fatal.error is first
    assert woken == [first, first]


def test_an_error_that_was_reported_before_anything_waits_wakes_too() -> None:
    fatal, woken = FatalError(), []
    fatal.report(FileqError("early"))
    fatal.wake_with(lambda: woken.append(True))
    assert woken == [True]
