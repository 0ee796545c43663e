"""What fsck found and did, as values for --json and as text.

The values of `kind` and `action` are part of the --json contract and keep their spelling.
"""

from __future__ import annotations

from collections.abc import Mapping

from msgspec import Struct, field

from fileq.brokers.types import Census
from fileq.commands.admin.formatting import Screen, number, plural
from fileq.core.text import printable

SHOWN = 20  # of each kind, in text
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
_ACTIONS = {"reinstated": "restored"}  # where the text differs from the JSON value


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


def render(report: Report, screen: Screen) -> list[str]:
    lines = [*_balance_lines(report.balance, screen), ""]
    if report.repairs:
        lines += [screen.paint("repairs", "bold")]
        lines += [_repair_line(repair) for repair in report.repairs[:SHOWN]]
        lines += _more(len(report.repairs), screen)
        lines.append("")
    for problem in report.problems[:SHOWN]:
        lines.append(f"{screen.paint('problem', 'red')}: {problem.subject}: {problem.describe()}")
        if problem.filepath:
            lines.append(f"         {printable(problem.filepath)}")
    lines += _more(report.problem_count, screen)
    lines += [f"copies: job {printable(c.id)} {c.count}×; each will run" for c in report.duplicates[:SHOWN]]
    lines += _more(len(report.duplicates), screen)
    if report.undecodable:
        undecodable = plural(report.undecodable, "list element is not a job", "list elements are not jobs")
        lines.append(f"note: {undecodable}; see 'fileq dlq list'")
    return [*lines, _verdict(report, screen)]


def _repair_line(repair: Repair) -> str:
    action = _ACTIONS.get(repair.action, repair.action)
    return f"  {action} {printable(repair.id)}{': ' if repair.detail else ''}{repair.detail}"


def _more(count: int, screen: Screen) -> list[str]:
    return [screen.paint(f"  and {number(count - SHOWN)} more; --json lists them", "dim")] if count > SHOWN else []


def _balance_lines(balance: Balance, screen: Screen) -> list[str]:
    left = balance.produced + balance.adopted
    parts = [
        (balance.pending, "pending"),
        (balance.scheduled, "scheduled or retrying"),
        (balance.running, "running"),
        (balance.dead, "dead"),
        (balance.completed, "completed"),
        (balance.cancelled, "cancelled"),
        (balance.deleted, "deleted"),
    ]
    right = sum(count for count, _ in parts)
    lines = [f"{number(balance.produced)} produced + {number(balance.adopted)} adopted = {number(left)}"]
    line = f"{number(right)} ="
    for i, (count, name) in enumerate(parts):
        part = f" {'+ ' if i else ''}{number(count)} {name}"
        if len(line) + len(part) > min(screen.width, 80):
            lines.append(line)
            line = " " * 4
        line += part
    lines.append(line)
    if balance.unclaimed and balance.is_exact:
        lines.append(f"pending includes {number(balance.unclaimed)} that other programs pushed, not claimed yet")
    if balance.excess > 0:
        lines.append(
            screen.paint(f"{plural(balance.excess, 'job')} missing: entered the broker, not accounted for", "red")
        )
    elif balance.excess < 0:
        lines.append(screen.paint(f"{plural(-balance.excess, 'job')} surplus: more than entered the broker", "red"))
    return lines


def _verdict(report: Report, screen: Screen) -> str:
    checked = (
        f"{plural(report.elements, 'element')}, {plural(report.records, 'record')}, {plural(report.slots, 'slot')}"
        + (f", {plural(report.batches, 'batch', 'batches')}" if report.batches else "")
    )
    if report.is_clean:
        inexact = "" if report.balance.is_exact else "; too busy to count the jobs of other programs"
        return screen.paint(f"clean: checked {checked}{inexact}", "green")
    advice = "some problems could not be repaired" if report.is_repair else "'fileq fsck --repair' repairs what it can"
    return screen.paint(f"not clean; {advice} (checked {checked})", "red")
