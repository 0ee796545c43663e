"""The stats as a page: what is wrong stands out, what is long gives way."""

from __future__ import annotations

from fileq.commands.admin.stats import Flow, Process, Slot, Stats
from fileq.commands.admin.text import ENDLESS, Cell, Page, age, cut, number, plural, rate, table
from fileq.core.job import parse_time
from fileq.core.text import printable

_JOBS_SHOWN = 20  # of what workers are on; `fileq workers` has them all
_ERRORS_SHOWN = 8
_BREAKERS = {"open": "red", "half-open": "yellow"}


def render(stats: Stats, page: Page) -> list[str]:
    """The whole page; where its height is limited, dense, and with as many running jobs as fit."""
    is_high = page.height == ENDLESS
    gap = [""] if is_high else []
    head = [*_title(stats, page), *gap, *_places(stats, page), *gap, *_rates(stats, page), *gap]
    tail = [] if not stats.errors else [*gap, *_errors(stats, page)] if is_high else _errors_in_short(stats, page)
    room = page.height - len(head) - len(tail) - len(stats.workers) - 2
    return [*head, *_workers(stats, page, max(0, min(_JOBS_SHOWN, room))), *tail]


def _title(stats: Stats, page: Page) -> list[str]:
    at = stats.at[:19].replace("T", " ") + "Z"
    where = cut(printable(stats.where), page.width - len(stats.broker) - len(at) - 12, from_left=True)
    return [f"{page.paint('fileq', 'bold')} on {page.paint(f'{stats.broker} {where}', 'bold')}, {at}"]


def _places(stats: Stats, page: Page) -> list[str]:
    rows: list[tuple[str | Cell, ...]] = [("queue", "waiting", "oldest", "")]
    for queue in stats.queues:
        oldest = age(queue.oldest_age_s) if queue.length else "-"
        rows.append((queue.name, number(queue.length), oldest, Cell("paused", "yellow") if queue.is_paused else ""))
    rows.append(("scheduled", number(stats.scheduled), "", "delayed or to be retried" if stats.scheduled else ""))
    rows.append(("processing", number(stats.processing), "", _alive(stats)))
    total = stats.totals.get("completed", 0)
    in_all = f"listed, of {number(total)} in all" if total != stats.completed else ""
    rows.append(("completed", number(stats.completed), "", in_all))
    if stats.cancelled:
        rows.append(("cancelled", number(stats.cancelled), "", ""))
    is_bad = stats.dead > 0
    rows.append(
        (
            Cell("dead", "red" if is_bad else ""),
            Cell(number(stats.dead), "red" if is_bad else ""),
            "",
            "see: fileq dlq list" if is_bad else "",
        )
    )
    return table(rows, page, right=(1, 2), from_left=False)


def _alive(stats: Stats) -> Cell:
    slots = sum(process.slots for process in stats.workers)
    if not slots:
        return Cell("no worker is running", "red" if stats.waiting or stats.processing else "")
    style = "red" if not stats.heartbeats else ""
    return Cell(f"of {plural(slots, 'slot')}, {plural(stats.heartbeats, 'heartbeat')}", style)


def _rates(stats: Stats, page: Page) -> list[str]:
    flows: list[tuple[str, Flow]] = [("this hour", stats.this_hour), ("last hour", stats.last_hour)]
    if stats.now is not None:
        flows.insert(0, ("now", stats.now))
    rows: list[list[str | Cell]] = [["rate", *(title for title, _ in flows)]]
    for name, title in (("produced", "enqueued"), ("completed", "completed"), ("failed", "failed"), ("dead", "died")):
        style = "red" if name == "dead" and any(flow.dead for _, flow in flows) else ""
        rows.append([Cell(title, style), *(Cell(_amount(flow, name, flow is stats.now), style) for _, flow in flows)])
    return [*table(rows, page, right=(1, 2, 3)), _eta(stats, page)]


def _amount(flow: Flow, name: str, is_now: bool) -> str:
    """How many and how fast; of now only how fast."""
    count = getattr(flow, name)
    fast = rate(flow.a_second(name))
    if is_now:
        return fast
    return f"{number(count):>7}  {fast if count else '':>8}"


def _eta(stats: Stats, page: Page) -> str:
    paused = sum(queue.length for queue in stats.queues if queue.is_paused)
    backlog = stats.waiting + stats.processing - paused
    aside = f"; {number(paused)} in paused queues" if paused else ""
    is_held_back = stats.workers and all(process.breaker == "open" for process in stats.workers if process.is_alive)
    if backlog and is_held_back:
        return page.paint(f"{plural(backlog, 'job')} to do; every breaker is open, nothing is claimed{aside}.", "red")
    if not backlog:
        return f"Nothing waits{aside}."
    if stats.eta_s is None:
        return page.paint(f"{plural(backlog, 'job')} to do; none has been done lately{aside}.", "yellow")
    return f"{plural(backlog, 'job')} to do, done in about {age(stats.eta_s)} at this rate{aside}."


def _workers(stats: Stats, page: Page, most_jobs: int) -> list[str]:
    if not stats.workers:
        return ["no workers"]
    lines = []
    left = most_jobs
    heads = process_table(stats.workers, page, stats.at)
    lines.append(heads[0])
    for process, head in zip(stats.workers, heads[1:], strict=True):
        lines.append(head)
        lines += slot_table(process.jobs[:left], page)
        left = max(0, left - len(process.jobs))
    hidden = sum(process.busy for process in stats.workers) - most_jobs
    if hidden > 0:
        lines.append(page.paint(f"  and {number(hidden)} more: fileq workers", "dim"))
    return lines


def process_table(workers: tuple[Process, ...], page: Page, at: str) -> list[str]:
    """A header and a line a process."""
    rows: list[tuple[str | Cell, ...]] = [("worker", "busy", "breaker", "state", "up", "version")]
    for process in workers:
        is_ok = process.is_alive
        rows.append(
            (
                Cell(f"{printable(process.host)} {process.pid}", "bold"),
                f"{process.busy} of {process.slots}",
                Cell(process.breaker, _BREAKERS.get(process.breaker, "")),
                Cell("alive" if is_ok else "silent", "" if is_ok else "red"),
                age(_seconds_between(process.started, at)),
                printable(process.version),
            )
        )
    return table(rows, page, flexible=0, from_left=False)


def _seconds_between(then: str | None, at: str) -> float | None:
    start, end = parse_time(then or ""), parse_time(at)
    return (end - start).total_seconds() if start is not None and end is not None else None


def slot_table(slots: tuple[Slot, ...], page: Page, *, with_slots: bool = False) -> list[str]:
    """A line a busy slot: for how long, on what; the slot's own name only where somebody asks."""
    rows = [
        (
            f"{age(slot.running_s):>6}",
            *([printable(slot.slot)] if with_slots else []),
            name_of(slot.filepath, slot.type, slot.job_id),
        )
        for slot in slots
    ]
    return table(rows, page, has_header=False, indent=2)


def name_of(filepath: str, type: str | None, id: str) -> str:
    """What people call a job: its file, or else its type and its id."""
    if filepath:
        return printable(filepath)
    return f"{printable(type)} {printable(id)}" if type else printable(id) or "bytes that are no job"


def _errors_in_short(stats: Stats, page: Page) -> list[str]:
    kinds = ", ".join(
        f"{printable(error.kind)} {number(error.this_hour)} ({number(error.last_hour)})" for error in stats.errors
    )
    return [cut(f"errors this hour (and last): {kinds}", page.width)]


def _errors(stats: Stats, page: Page) -> list[str]:
    rows: list[tuple[str, ...]] = [("errors by kind", "this hour", "last hour")]
    for error in stats.errors[:_ERRORS_SHOWN]:
        rows.append((printable(error.kind), number(error.this_hour), number(error.last_hour)))
    more = len(stats.errors) - _ERRORS_SHOWN
    return [*table(rows, page, right=(1, 2), flexible=0), *([f"and {more} more kinds"] if more > 0 else [])]
