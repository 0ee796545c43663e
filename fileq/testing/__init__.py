"""Tools for tests: `run` calls a handler as a worker would, and raises TimedOut when its time is over."""

from fileq.handlers.outcomes import TimedOut
from fileq.testing.handlers import run

__all__ = ["TimedOut", "run"]
