"""The guards of fileq: the lines that hold its guarantees, each with a mutant that breaks it. See tests/mutants.py."""

from tests.support.guards.admit_guards import ADMIT_GUARDS
from tests.support.guards.after_guards import AFTER_GUARDS
from tests.support.guards.batch_count_guards import BATCH_COUNT_GUARDS
from tests.support.guards.bulk_guards import BULK_GUARDS
from tests.support.guards.bundle_guards import BUNDLE_GUARDS
from tests.support.guards.child_guards import CHILD_GUARDS
from tests.support.guards.deadline_guards import DEADLINE_GUARDS
from tests.support.guards.earlier_job_guards import EARLIER_JOB_GUARDS
from tests.support.guards.executor_guards import EXECUTOR_GUARDS
from tests.support.guards.extension_guards import EXTENSION_GUARDS
from tests.support.guards.firing_guards import FIRING_GUARDS
from tests.support.guards.fleet_guards import FLEET_GUARDS
from tests.support.guards.follow_up_guards import FOLLOW_UP_GUARDS
from tests.support.guards.fsck_guards import FSCK_GUARDS
from tests.support.guards.guard import Guard
from tests.support.guards.identity_guards import IDENTITY_GUARDS
from tests.support.guards.limit_guards import LIMIT_GUARDS
from tests.support.guards.observe_guards import OBSERVE_GUARDS
from tests.support.guards.output_guards import OUTPUT_GUARDS
from tests.support.guards.policy_guards import POLICY_GUARDS
from tests.support.guards.prefetch_guards import PREFETCH_GUARDS
from tests.support.guards.producer_guards import PRODUCER_GUARDS
from tests.support.guards.redis_event_guards import REDIS_EVENT_GUARDS
from tests.support.guards.redis_guards import REDIS_GUARDS
from tests.support.guards.redis_repair_guards import REDIS_REPAIR_GUARDS
from tests.support.guards.schedule_guards import SCHEDULE_GUARDS
from tests.support.guards.scheduler_guards import SCHEDULER_GUARDS
from tests.support.guards.security_guards import SECURITY_GUARDS
from tests.support.guards.sqlite_guards import SQLITE_GUARDS
from tests.support.guards.webhook_guards import WEBHOOK_GUARDS
from tests.support.guards.worker_guards import WORKER_GUARDS

GUARDS: tuple[Guard, ...] = (
    *REDIS_GUARDS,
    *REDIS_REPAIR_GUARDS,
    *REDIS_EVENT_GUARDS,
    *SQLITE_GUARDS,
    *ADMIT_GUARDS,
    *DEADLINE_GUARDS,
    *EARLIER_JOB_GUARDS,
    *FOLLOW_UP_GUARDS,
    *BATCH_COUNT_GUARDS,
    *SCHEDULE_GUARDS,
    *FIRING_GUARDS,
    *WORKER_GUARDS,
    *FLEET_GUARDS,
    *SCHEDULER_GUARDS,
    *PREFETCH_GUARDS,
    *LIMIT_GUARDS,
    *POLICY_GUARDS,
    *EXECUTOR_GUARDS,
    *BUNDLE_GUARDS,
    *BULK_GUARDS,
    *CHILD_GUARDS,
    *AFTER_GUARDS,
    *EXTENSION_GUARDS,
    *OUTPUT_GUARDS,
    *PRODUCER_GUARDS,
    *IDENTITY_GUARDS,
    *OBSERVE_GUARDS,
    *FSCK_GUARDS,
    *SECURITY_GUARDS,
    *WEBHOOK_GUARDS,
)

__all__ = ["GUARDS", "Guard"]
