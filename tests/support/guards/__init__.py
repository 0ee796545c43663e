"""The guards of fileq: the lines that hold its guarantees, each with a mutant that breaks it. See tests/mutants.py."""

from tests.support.guards.broker_guards import BROKER_GUARDS
from tests.support.guards.guard import Guard
from tests.support.guards.other_guards import OTHER_GUARDS
from tests.support.guards.redis_guards import REDIS_GUARDS
from tests.support.guards.worker_guards import WORKER_GUARDS

GUARDS: tuple[Guard, ...] = (*REDIS_GUARDS, *BROKER_GUARDS, *WORKER_GUARDS, *OTHER_GUARDS)

__all__ = ["GUARDS", "Guard"]
