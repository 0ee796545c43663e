"""What fsck found and did, as values; --json prints them as they are.

The values of `kind` and `action` are part of the --json contract and keep their spelling.
"""

from __future__ import annotations

from collections.abc import Mapping

from msgspec import Struct, field

from fileq.brokers.types import Census
from fileq.core.text import printable

NAMED = 1000  # of each kind, in JSON
_PROBLEMS = {
    "lost": "its record says {state}, but it was not found there",
    "unheld": "its record says running, but no slot holds it",
    "unrecorded": "it is in {state}, but has no record",
    "silent": "its slot {state} has no heartbeat",
    "forsaken": "the ledger knows it, but there is neither a job nor a record",
    "miscounted": "{state}",
    "uncounted": "{state} of its members ended or have no record, and it has not counted them",
}
_OF_BATCHES = ("miscounted", "uncounted")


class Problem(Struct, frozen=True):
    """One inconsistent job: `lost`, `unheld`, `unrecorded`, `silent` or `forsaken` (a lost file). Or one inconsistent
    batch: `miscounted` or `uncounted`; `id` is that of the batch.

    `state` is the state in its record, the place that holds it, or the id of the silent slot. For a batch it is what is
    wrong, or the number of its members that it has not counted."""

    kind: str
    id: str
    state: str
    filepath: str = ""

    def describe(self) -> str:
        return _PROBLEMS[self.kind].format(state=printable(self.state))

    @property
    def subject(self) -> str:
        return f"{'batch' if self.kind in _OF_BATCHES else 'job'} {printable(self.id)}"


class DuplicateJob(Struct, frozen=True):
    """Copies of one job in queues that fileq did not enqueue."""

    id: str
    count: int


class Balance(Struct, frozen=True):
    """Both sides of the balance in one census. `excess` jobs are certainly missing (above 0) or surplus (below 0)."""

    produced: int
    adopted: int
    pending: int
    scheduled: int
    running: int
    dead: int
    completed: int
    cancelled: int
    deleted: int
    unclaimed: int
    is_exact: bool
    excess: int


class Repair(Struct, frozen=True):
    """One repair: `reaped`, `reinstated`, `recorded`, `enqueued`, `forgotten`, `counted` or `reconciled` (a batch)."""

    action: str
    id: str
    detail: str


class Report(Struct, frozen=True):
    is_clean: bool
    balance: Balance = field(name="law")  # the name of the --json field
    problems: tuple[Problem, ...]
    problem_count: int
    duplicates: tuple[DuplicateJob, ...]
    undecodable: int
    elements: int
    records: int
    slots: int
    batches: int = 0
    repairs: tuple[Repair, ...] = ()
    is_repair: bool = False


def balance_of(census: Census, unclaimed: int, excess: int, *, is_exact: bool) -> Balance:
    counters: Mapping[str, int] = census.counters
    return Balance(
        produced=counters.get("produced", 0),
        adopted=counters.get("adopted", 0),
        pending=sum(census.pending.values()),
        scheduled=census.scheduled,
        running=census.running,
        dead=census.dead,
        completed=counters.get("completed", 0),
        cancelled=counters.get("cancelled", 0),
        deleted=counters.get("deleted", 0),
        unclaimed=unclaimed,
        is_exact=is_exact,
        excess=excess,
    )
