"""The stats as text. Problems are coloured; long names are cut to fit the screen."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING

from fileq.brokers.protocol import FullBroker
from fileq.cli.terminal import (
    ENDLESS,
    Cell,
    Screen,
    age,
    cut,
    name_of,
    number,
    plural,
    rate,
    seconds_between,
    short_ids,
    table,
)
from fileq.commands.admin.stats import GONE_STATE, LAST_MINUTE, RecentTotals, Stats, gather
from fileq.core.errors import BrokerUnavailable
from fileq.core.outcome import DEATH_KINDS
from fileq.core.text import broker_name, printable
from fileq.queries.documents import BreakerDocument, HeldJobDocument, WorkerDocument

if TYPE_CHECKING:
    from fileq.brokers.lost_workers import LostWorker
    from fileq.commands.admin.running_workers import WorkerList
    from fileq.commands.admin.stats import ProducerProcess, QueueStats, Throughput

_JOBS_SHOWN = 20  # running jobs; `fileq workers` lists all of them
_ERRORS_SHOWN = 8
_PRODUCERS_SHOWN = 2  # producers on a screen of limited height
_PRODUCER_STYLES = {"held": "yellow", "lost": "red", "stuck": "red", GONE_STATE: "red"}
_BREAKERS = {"open": "red", "half-open": "yellow"}


def render(stats: Stats, screen: Screen) -> list[str]:
    """All lines. Where the height is limited: without empty lines, and with as many running jobs as fit."""
    is_endless = screen.height == ENDLESS
    gap = [""] if is_endless else []
    head = [*_title(stats, screen), *gap, *_places(stats, screen), *gap, *_rates(stats, screen), *gap]
    producers = [*producer_lines(stats.producers, screen, stats.at), *gap]
    tail = [] if not stats.errors else [*gap, *_errors(stats, screen)] if is_endless else _error_line(stats, screen)
    notes = sum(len(problem_lines(process, screen)) for process in stats.workers)
    room = screen.height - len(head) - len(producers) - len(tail) - len(stats.workers) - notes - 2
    return [*head, *producers, *_workers(stats, screen, max(0, min(_JOBS_SHOWN, room))), *tail]


def _title(stats: Stats, screen: Screen) -> list[str]:
    at = stats.at[:19].replace("T", " ") + "Z"
    broker = broker_name(stats.broker)
    where = cut(printable(stats.where), screen.width - len(broker) - len(at) - 12, from_left=True)
    return [f"{screen.paint('fileq', 'bold')} on {screen.paint(f'{broker} {where}', 'bold')}, {at}"]


def _places(stats: Stats, screen: Screen) -> list[str]:
    rows: list[tuple[str | Cell, ...]] = [("queue", "pending", "oldest", "")]
    for queue in stats.queues:
        oldest = age(queue.oldest_age_s) if queue.length else "-"
        rows.append((queue.name, number(queue.length), oldest, _paused(queue, stats.at)))
    rows.append(("scheduled", number(stats.scheduled), "", _scheduled(stats)))
    rows.append(("processing", number(stats.processing), "", _alive(stats)))
    total = stats.totals.get("completed", 0)
    kept = f"kept, of {number(total)} in all" if total != stats.completed else ""
    rows.append(("completed", number(stats.completed), "", kept))
    if stats.cancelled:
        rows.append(("cancelled", number(stats.cancelled), "", ""))
    style, advice = ("red", "see 'fileq dlq list'") if stats.dead else ("", "")
    rows.append((Cell("dead", style), Cell(number(stats.dead), style), "", advice))
    if stats.orders:
        rows.append(("after jobs", number(stats.orders), "", "files to move or delete (worker.after)"))
    if stats.schedules.count:
        rows.append(("schedules", number(stats.schedules.count), "", _schedules(stats)))
    return table(rows, screen, right=(1, 2), from_left=False)


def _scheduled(stats: Stats) -> str | Cell:
    if stats.deferred:
        return Cell(f"{number(stats.deferred)} deferred by circuit breakers (see below)", "yellow")
    return "scheduled, retrying or deferred" if stats.scheduled else ""


def _paused(queue: QueueStats, at: str) -> Cell:
    if not queue.is_paused or queue.pause is None:
        return Cell("paused" if queue.is_paused else "", "yellow")
    since, reason = age(seconds_between(queue.pause.at, at)), queue.pause.reason
    why = f": {reason}" if reason else ""
    return Cell(f"paused for {since} by {queue.pause.by}{why}", "yellow")


def _schedules(stats: Stats) -> Cell:
    late, paused = stats.schedules.late, stats.schedules.paused
    if late:
        more = f" and {number(len(late) - 3)} more" if len(late) > 3 else ""
        return Cell(f"late: {', '.join(late[:3])}{more}; see 'fileq schedule list'", "red")
    return Cell(f"{number(paused)} paused", "yellow") if paused else Cell("")


def _alive(stats: Stats) -> Cell:
    slots = sum(process.slots for process in stats.workers)
    if not slots:
        return Cell("no worker is running", "red" if stats.waiting or stats.processing else "")
    # `stats.heartbeats` also counts the places of jobs that were claimed in advance: more than a worker has slots.
    alive = sum(process.slots for process in stats.workers if process.is_alive)
    return Cell(f"of {plural(slots, 'slot')}, {number(alive)} alive (with a heartbeat)", "" if alive else "red")


def _rates(stats: Stats, screen: Screen) -> list[str]:
    columns: list[tuple[str, Throughput]] = [("this hour", stats.this_hour), ("last hour", stats.last_hour)]
    if stats.now is not None:
        columns.insert(0, ("now", stats.now))
    rows: list[list[str | Cell]] = [["rate", *(title for title, _ in columns)]]
    shown = {"produced": "enqueued", "completed": "completed", "failed": "failed", "refused": "refused", "dead": "dead"}
    if not any(throughput.refused for _, throughput in columns):
        del shown["refused"]
    for name, title in shown.items():
        style = "red" if name == "dead" and any(throughput.dead for _, throughput in columns) else ""
        amounts = (_amount(throughput, name, throughput is stats.now) for _, throughput in columns)
        rows.append([Cell(text, style) for text in (title, *amounts)])
    return [*table(rows, screen, right=(1, 2, 3)), _eta(stats, screen)]


def _amount(throughput: Throughput, name: str, is_now: bool) -> str:
    """The count and the rate; for "now" only the rate."""
    count = getattr(throughput, name)
    speed = rate(throughput.per_second(name))
    if is_now:
        return speed
    return f"{number(count):>7}  {speed if count else '':>8}"


def _eta(stats: Stats, screen: Screen) -> str:
    paused = sum(queue.length for queue in stats.queues if queue.is_paused)
    backlog = stats.waiting + stats.processing - paused
    to_do = f"{plural(backlog, 'job')} left"
    aside = f"; {number(paused)} more in paused queues" if paused else ""
    aside += f"; {number(stats.scheduled)} scheduled, retrying or deferred" if stats.scheduled else ""
    if not backlog:
        return f"No jobs pending{aside}."
    living = [process for process in stats.workers if process.is_alive]
    if not living:
        return screen.line(f"{to_do}; no worker is running{aside}.", "red")
    if not any(process.is_claiming for process in living):
        is_draining = all(process.is_draining for process in living)
        stopped = f"every {'worker is draining' if is_draining else 'circuit breaker is open'}, so no jobs start"
        return screen.line(f"{to_do}; {stopped}{aside}.", "red")
    if stats.eta_s is None and stats.eta_per_second:
        longest = max((slot.running_s or 0.0 for process in stats.workers for slot in process.jobs), default=0.0)
        why = f"time left unknown: one job has been running for {age(longest)}, longer than usual"
        return screen.line(f"{to_do}; {why}{aside}.", "yellow")
    if stats.eta_s is None:
        return screen.line(f"{to_do}; none completed recently{aside}.", "yellow")
    basis = "in the last minute" if stats.eta_basis == LAST_MINUTE else "in this hour and the last"
    speed = f"({rate(stats.eta_per_second or 0.0)} {basis})"
    return screen.line(f"{to_do}, done in about {age(stats.eta_s)} {speed}{aside}.")


def _workers(stats: Stats, screen: Screen, most_jobs: int) -> list[str]:
    if not stats.workers:
        return ["no workers"]
    lines = worker_lines(stats.workers, screen, stats.at, most_jobs=most_jobs)
    hidden = sum(len(process.jobs) for process in stats.workers) - most_jobs
    if hidden > 0:
        lines.append(screen.paint(f"  and {number(hidden)} more: fileq workers", "dim"))
    return lines


def render_workers(found: WorkerList, screen: Screen) -> list[str]:
    lines = ["no workers; start one with 'fileq worker'"]
    if found.workers:
        lines = worker_lines(found.workers, screen, found.at, with_slots=True)
    return [*lines, *lost_lines(found.lost, screen)]


def worker_lines(
    workers: tuple[WorkerDocument, ...], screen: Screen, at: str, *, most_jobs: int = ENDLESS, with_slots: bool = False
) -> list[str]:
    """A header; for each process a line, its problems and its jobs: `most_jobs` of all processes."""
    header, *heads = process_table(workers, screen, at)
    lines = [header]
    for process, head in zip(workers, heads, strict=True):
        jobs = slot_table(process.jobs[: max(0, most_jobs)], screen, with_slots=with_slots)
        lines += [head, *problem_lines(process, screen), *jobs]
        most_jobs -= len(process.jobs)
    return lines


def process_table(workers: tuple[WorkerDocument, ...], screen: Screen, at: str) -> list[str]:
    rows: list[tuple[str | Cell, ...]] = [("worker", "busy", "breaker", "state", "heartbeat", "up", "version")]
    for process in workers:
        breaker = Cell(process.breaker, _BREAKERS.get(process.breaker, ""))
        states = (_busy(process), breaker, _life(process), _heartbeat(process))
        rows.append((_name(process), *states, age(seconds_between(process.started_at, at)), process.version))
    return table(rows, screen, flexible=0, from_left=False)


def _name(process: WorkerDocument | ProducerProcess) -> Cell:
    return Cell(f"{process.host} {process.pid}", "bold")


def _busy(process: WorkerDocument) -> str:
    """The slots. Deliveries of webhooks take none."""
    return f"{process.busy} of {process.slots}" + (f", {process.deliveries} deliveries" if process.deliveries else "")


def _life(process: WorkerDocument) -> Cell:
    """A process of another machine that was killed counts as alive until its heartbeat ends; what is overdue says so
    before. Without a life and with a heartbeat, it is a process of this machine that is gone."""
    if not process.is_alive and process.heartbeat_age_s is not None:
        return Cell("gone", "red")
    if process.is_silent:
        since = f" for {age(process.heartbeat_age_s)}" if process.heartbeat_age_s is not None else ""
        return Cell(f"silent{since}", "yellow" if process.is_alive else "red")
    return Cell("draining" if process.is_draining else "alive")


def _heartbeat(process: WorkerDocument) -> str:
    if process.heartbeat_age_s is not None:
        return f"{age(process.heartbeat_age_s)} ago"
    is_known = not process.is_alive and process.heartbeat_ttl_s is not None
    return f"over {age(process.heartbeat_ttl_s)} ago" if is_known else "-"


def lost_lines(lost: Sequence[LostWorker], screen: Screen) -> list[str]:
    lines = []
    for one in lost:
        held = f"its {plural(one.jobs, 'job')} moved" if one.jobs else "held no job"
        since = f"{one.since[:19].replace('T', ' ')}Z"
        what = f"its process was gone at {since}" if one.is_gone else f"silent since {since}"
        line = f"lost: {printable(one.host)} {one.pid}, {what}, {held}"
        lines.append(screen.line(line, "red"))
    return lines


def problem_lines(process: WorkerDocument, screen: Screen) -> list[str]:
    """One line for each root that is missing, for each breaker that is not closed (its route, the last error, and when
    one job is tried), and for each limit of a route for which jobs wait."""
    lost = [screen.line(f"  {printable(problem)}; its file jobs are deferred", "red") for problem in process.lost_roots]
    breakers = [screen.line(_breaker_text(one), _BREAKERS[one.state]) for one in process.breakers]
    return [
        *lost,
        *breakers,
        *(screen.line(f"  {printable(why)}; its other jobs are deferred") for why in process.limits),
    ]


def _breaker_text(one: BreakerDocument) -> str:
    probe = f"next try {one.next_probe_at[11:19]}Z" if one.next_probe_at else "probing with one job at a time"
    deferred = f", {plural(one.deferred, 'job')} deferred" if one.deferred else ""
    error = (one.error.splitlines() or [""])[0]
    failed = f"{one.failure_share:.0%} failed"
    return f"  breaker of {printable(one.route)} is {one.state}: {failed}, {probe}{deferred}; {printable(error)}"


def slot_table(slots: tuple[HeldJobDocument, ...], screen: Screen, *, with_slots: bool = False) -> list[str]:
    """One line for each busy slot: how long its job has been running, and the job; with `with_slots` the slot's id."""
    short = short_ids([slot.id for slot in slots])
    rows = []
    for slot in slots:
        name = name_of(slot.path or "", slot.type, short[slot.id])
        rows.append([f"{age(slot.running_s):>6}", *([slot.worker_id] if with_slots else []), name])
    return table(rows, screen, has_header=False, indent=2)


def _error_line(stats: Stats, screen: Screen) -> list[str]:
    counts = ((printable(one.kind), number(one.this_hour), number(one.last_hour)) for one in stats.errors)
    kinds = ", ".join(f"{kind} {this_hour} ({last_hour})" for kind, this_hour, last_hour in counts)
    return [screen.line(f"errors this hour (last hour){_which_errors(stats)}: {kinds}")]


def _which_errors(stats: Stats) -> str:
    """Why the errors are more than the failed attempts."""
    parts = ["failed attempts"]
    if any(error.kind in DEATH_KINDS for error in stats.errors):
        parts.append("crashes")
    if stats.this_hour.refused or stats.last_hour.refused:
        parts.append("refused jobs")
    *first, last = parts
    return f" from {', '.join(first)} and {last}" if first else ""


def _errors(stats: Stats, screen: Screen) -> list[str]:
    rows: list[tuple[str, ...]] = [(f"errors by kind{_which_errors(stats)}", "this hour", "last hour")]
    for error in stats.errors[:_ERRORS_SHOWN]:
        rows.append((error.kind, number(error.this_hour), number(error.last_hour)))
    more = len(stats.errors) - _ERRORS_SHOWN
    return [*table(rows, screen, right=(1, 2), flexible=0), *([f"and {plural(more, 'more kind')}"] if more > 0 else [])]


def producer_lines(producers: tuple[ProducerProcess, ...], screen: Screen, at: str) -> list[str]:
    """A header; for each producer a line, its directory, and what holds it back.

    Where the height is limited: without the directories, and only the first producers."""
    if not producers:
        return ["no producers"]
    is_endless = screen.height == ENDLESS
    most = len(producers) if is_endless else _PRODUCERS_SHOWN
    rows: list[tuple[str | Cell, ...]] = [("producer", "state", "last scan", "enqueued", "up", "version")]
    for one in producers[:most]:
        state = Cell(one.state, _PRODUCER_STYLES.get(one.state, ""))
        up = age(seconds_between(one.started_at, at))
        rows.append((_name(one), state, _scan_text(one, at), number(one.enqueued), up, one.version))
    header, *lines = table(rows, screen, right=(3,), flexible=0, from_left=False)
    shown = [header]
    for one, line in zip(producers, lines, strict=False):
        directories = [screen.line(f"  scans {printable(', '.join(one.roots))}")] if is_endless else []
        directories += _skipped_lines(one, screen) if is_endless else []
        shown += [line, *directories, *_producer_problems(one, screen, at)]
    if (hidden := len(producers) - most) > 0:
        shown.append(screen.paint(f"  and {number(hidden)} more: fileq stats --json", "dim"))
    return shown


def _scan_text(one: ProducerProcess, at: str) -> str:
    scan = one.last_scan
    if scan is None:
        return "none yet"
    missed = "" if scan.is_complete else ", incomplete"
    return f"{age(seconds_between(scan.ended_at, at))} ago: {plural(scan.found, 'file')}{missed}"


def _skipped_lines(one: ProducerProcess, screen: Screen) -> list[str]:
    if one.last_scan is None or not one.last_scan.skipped:
        return []
    most_first = sorted(one.last_scan.skipped.items(), key=lambda item: (-item[1], item[0]))
    counts = ", ".join(f"{number(count)} {printable(reason)}" for reason, count in most_first)
    return [screen.line(f"  skipped {counts}; for the reason: 'fileq trace PATH'")]


def _producer_problems(one: ProducerProcess, screen: Screen, at: str) -> list[str]:
    lines = []
    if one.problem:
        lines.append(screen.line(f"  {printable(one.problem)}", "red"))
    if one.held_by:
        since = age(seconds_between(one.held_since, at))
        held = f"  held by {printable(one.held_by)} for {since}; {plural(one.waiting, 'file waits', 'files wait')}"
        lines.append(screen.line(held, "yellow"))
    return lines


def refreshed(
    open_broker: Callable[[], FullBroker], interval_s: float, sleep: Callable[[float], None] = time.sleep
) -> Iterator[tuple[Stats | None, str]]:
    """For `fileq stats --watch`: the last stats every `interval_s`, for ever, and the outage ("" while the broker
    answers). An unreachable broker is tried each time."""
    broker = open_broker()  # a failure here is raised: nothing has been shown yet
    recent = RecentTotals()
    stats: Stats | None = None
    down_since_s = 0.0
    while True:
        outage = ""
        try:
            stats, down_since_s = gather(broker, recent), 0.0
        except BrokerUnavailable as error:
            now_s = time.monotonic()
            down_since_s = down_since_s or now_s
            outage = f"unreachable for {age(now_s - down_since_s)}, reconnecting: {error}"
        yield stats, outage
        sleep(interval_s)
