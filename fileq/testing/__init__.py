"""Tools for tests: `run` calls a handler as a worker would."""

from fileq.testing.handlers import run

__all__ = ["run"]
