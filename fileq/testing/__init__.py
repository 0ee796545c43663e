"""Tools for tests: `run` calls a handler as a worker would, and raises TimedOut when its time is over. `queue` is a
whole queue with a clock of its own."""

from typing import TYPE_CHECKING

from fileq.handlers.outcomes import TimedOut
from fileq.testing.handlers import run

if TYPE_CHECKING:
    from fileq.testing.trial_queue import TrialQueue, queue

__all__ = ["TimedOut", "TrialQueue", "queue", "run"]

if not TYPE_CHECKING:

    def __getattr__(name):
        """`queue` imports most of the program, which tests of single handlers do not need."""
        if name not in ("TrialQueue", "queue"):
            raise AttributeError(f"module 'fileq.testing' has no attribute {name!r}")
        from fileq.testing import trial_queue

        return getattr(trial_queue, name)
