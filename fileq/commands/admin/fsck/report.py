"""What fsck found and did, for programs and for people."""

from __future__ import annotations

from collections.abc import Mapping

from msgspec import Struct

from fileq.brokers.types import Census
from fileq.commands.admin.text import Page, number, plural
from fileq.core.text import printable

SHOWN = 20  # of each kind, on a page for people
NAMED = 1000  # of each kind, for programs

_WORDS = {
    "lost": "its record says {state}, and it is not there",
    "unheld": "its record says running, and no slot holds it",
    "unrecorded": "it lies in {state} and has no record",
    "silent": "its slot {state} has no heartbeat",
    "forsaken": "the ledger knows of it, and there is no trace of it",
}


class Problem(Struct, frozen=True):
    """One job that is wrong: `lost`, `unheld`, `unrecorded`, `silent` or `forsaken`. `state` is its record's, the place
    it lies in, or the slot that is silent."""

    kind: str
    id: str
    state: str
    filepath: str = ""

    def words(self) -> str:
        return _WORDS[self.kind].format(state=printable(self.state))


class Copies(Struct, frozen=True):
    """Elements of one id in queues that nobody enqueued here."""

    id: str
    count: int


class Law(Struct, frozen=True):
    """Both sides of the law in one look. `excess` is what is missing (above 0) or too much (below 0) for certain."""

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
    """One thing that was put right: `reaped`, `reinstated`, `recorded`, `enqueued`, `forgotten` or `counted`."""

    action: str
    id: str
    detail: str


class Report(Struct, frozen=True):
    is_clean: bool
    law: Law
    problems: tuple[Problem, ...]
    problem_count: int
    duplicates: tuple[Copies, ...]
    undecodable: int
    elements: int
    records: int
    slots: int
    repairs: tuple[Repair, ...] = ()
    is_repair: bool = False


def law_of(census: Census, unclaimed: int, excess: int, *, is_exact: bool) -> Law:
    counters: Mapping[str, int] = census.counters
    return Law(
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


def render(report: Report, page: Page) -> list[str]:
    lines = [*_law_lines(report.law, page), ""]
    if report.repairs:
        lines += [page.paint("repaired", "bold")]
        lines += [f"  {r.action} {printable(r.id)}{': ' if r.detail else ''}{r.detail}" for r in report.repairs[:SHOWN]]
        lines += _more(len(report.repairs), page)
        lines.append("")
    for problem in report.problems[:SHOWN]:
        lines.append(f"{page.paint('wrong', 'red')}: job {printable(problem.id)}: {problem.words()}")
        if problem.filepath:
            lines.append(f"       {printable(problem.filepath)}")
    lines += _more(report.problem_count, page)
    lines += [f"copies: job {printable(c.id)} {c.count}×; each will run" for c in report.duplicates[:SHOWN]]
    lines += _more(len(report.duplicates), page)
    if report.undecodable:
        lines.append(f"note: {plural(report.undecodable, 'element')} no worker can read; see 'fileq dlq list'")
    return [*lines, _verdict(report, page)]


def _more(count: int, page: Page) -> list[str]:
    return [page.paint(f"  and {number(count - SHOWN)} more; --json names them", "dim")] if count > SHOWN else []


def _law_lines(law: Law, page: Page) -> list[str]:
    left = law.produced + law.adopted
    parts = [
        (law.pending, "pending"),
        (law.scheduled, "scheduled or retrying"),
        (law.running, "running"),
        (law.dead, "dead"),
        (law.completed, "completed"),
        (law.cancelled, "cancelled"),
        (law.deleted, "deleted"),
    ]
    right = sum(count for count, _ in parts)
    lines = [f"{number(law.produced)} produced + {number(law.adopted)} adopted = {number(left)}"]
    line = f"{number(right)} ="
    for i, (count, name) in enumerate(parts):
        part = f" {'+ ' if i else ''}{number(count)} {name}"
        if len(line) + len(part) > min(page.width, 80):
            lines.append(line)
            line = " " * 4
        line += part
    lines.append(line)
    if law.unclaimed and law.is_exact:
        lines.append(f"of these {number(law.unclaimed)} pushed by other programs and not claimed yet")
    if law.excess > 0:
        lines.append(page.paint(f"{plural(law.excess, 'job')} taken in and not accounted for", "red"))
    elif law.excess < 0:
        lines.append(page.paint(f"{plural(-law.excess, 'job')} more than were taken in", "red"))
    return lines


def _verdict(report: Report, page: Page) -> str:
    looked = f"{plural(report.elements, 'element')}, {plural(report.records, 'record')}, {plural(report.slots, 'slot')}"
    if report.is_clean:
        unsure = "" if report.law.is_exact else "; too busy to count what other programs pushed"
        return page.paint(f"clean: {looked} looked at{unsure}", "green")
    advice = "some of it could not be put right" if report.is_repair else "fileq fsck --repair puts back what it can"
    return page.paint(f"not clean; {advice} ({looked})", "red")
