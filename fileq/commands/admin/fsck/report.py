"""What fsck found and did, as values; --json prints them as they are.

The fields and the values of `kind` and `action` are part of the --json contract.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated

from msgspec import Struct

from fileq.brokers.types import Census
from fileq.core.documented import means
from fileq.core.text import printable

NAMED = 1000  # of each kind, in JSON
_PROBLEMS = {
    "lost": "its record says {detail}, but it was not found there",
    "unheld": "its record says running, but no slot holds it",
    "unrecorded": "it is in {detail}, but has no record",
    "silent": "its slot {detail} has no heartbeat",
    "lost_file": "the ledger knows it, but there is neither a job nor a record",
    "miscounted": "{detail}",
    "uncounted": "{detail} of its members ended or have no record and are not counted",
}
_OF_BATCHES = ("miscounted", "uncounted")


class Problem(Struct, frozen=True):
    """One inconsistent job or batch."""

    kind: Annotated[
        str,
        means(
            "lost (not where its record says), unheld (running, but no slot holds it), unrecorded (without"
            " a record), silent (its slot is dead), lost_file (a file whose job left no trace); of a batch: miscounted"
            " (its counts do not agree), uncounted (it has not counted members that have ended)"
        ),
    ]
    id: Annotated[str, means("of the job or the batch")]
    detail: Annotated[
        str,
        means(
            "the state in its record, the place that holds it, or the id of the silent slot; of a batch:"
            " what is wrong, or how many members it has not counted"
        ),
    ]
    path: str = ""

    def describe(self) -> str:
        return _PROBLEMS[self.kind].format(detail=printable(self.detail))

    @property
    def subject(self) -> str:
        return f"{'batch' if self.kind in _OF_BATCHES else 'job'} {printable(self.id)}"


class DuplicateJob(Struct, frozen=True):
    """Copies of one job in queues that fileq did not enqueue."""

    id: str
    count: int


class Balance(Struct, frozen=True):
    """Both sides of the balance in one census."""

    produced: int
    adopted: int
    pending: int
    scheduled: Annotated[int, means("including retrying and deferred")]
    running: int
    dead: int
    completed: int
    cancelled: int
    deleted: int
    unclaimed: Annotated[int, means("jobs pushed by other programs that no worker has claimed yet")]
    is_exact: Annotated[bool, means("false if the broker was too busy to count them, so only bounds are known")]
    excess: Annotated[int, means("jobs that are certainly missing; below 0: surplus jobs")]


class Repair(Struct, frozen=True):
    action: Annotated[str, means("reaped, restored, recorded, enqueued, forgotten, counted or reconciled (a batch)")]
    id: str
    detail: str


class Report(Struct, frozen=True):
    is_clean: Annotated[bool, means("no problems; with --repair, none remain")]
    balance: Annotated[Balance, means("both sides of the balance")]
    problems: Annotated[tuple[Problem, ...], means(f"at most {NAMED}")]
    problem_count: Annotated[int, means("all problems found, up to 10,000 of a kind at a time")]
    duplicates: Annotated[tuple[DuplicateJob, ...], means("copies by other programs; each runs; not a problem")]
    undecodable: Annotated[int, means("list elements that are not jobs")]
    elements: Annotated[int, means("how many were checked, as are records, slots and batches")]
    records: int
    slots: int
    batches: int = 0
    repairs: Annotated[tuple[Repair, ...], means("in order")] = ()
    is_repair: Annotated[bool, means("--repair was given; the other fields describe the state after it")] = False


def balance_of(census: Census, unclaimed: int, excess: int, *, is_exact: bool) -> Balance:
    counters: Mapping[str, int] = census.counters
    counted = {name: counters.get(name, 0) for name in ("produced", "adopted", "completed", "cancelled", "deleted")}
    places = {"scheduled": census.scheduled, "running": census.running, "dead": census.dead}
    pending = sum(census.pending.values())
    return Balance(**counted, **places, pending=pending, unclaimed=unclaimed, is_exact=is_exact, excess=excess)
