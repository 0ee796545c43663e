"""The producers as `fileq stats` shows them: what each one reported last, as values and as text."""

from __future__ import annotations

from collections.abc import Iterable

from msgspec import Struct

from fileq.brokers.types import ProducerView, ScanInfo
from fileq.commands.admin.formatting import (
    ENDLESS,
    Cell,
    Screen,
    age,
    cut,
    number,
    plural,
    seconds_between,
    table,
)
from fileq.core.job import stamp
from fileq.core.text import printable

_SHOWN = 2  # producers on a screen of limited height
_STYLES = {"held": "yellow", "lost": "red", "stuck": "red"}


class LastScan(Struct, frozen=True):
    """The last scan of the whole directory that ended."""

    began: str | None
    ended: str | None
    seconds: float
    found: int
    is_complete: bool
    skipped: dict[str, int]


class ProducerProcess(Struct, frozen=True):
    """One producer that is alive."""

    id: str
    host: str
    pid: int
    version: str
    started: str | None
    roots: tuple[str, ...]
    state: str
    problem: str
    held_by: str
    held_since: str | None
    last_scan: LastScan | None
    enqueued: int
    waiting: int


def summarise(views: Iterable[ProducerView]) -> tuple[ProducerProcess, ...]:
    return tuple(_summary(view) for view in views)


def _summary(view: ProducerView) -> ProducerProcess:
    info = view.info
    return ProducerProcess(
        id=view.id,
        host=info.host,
        pid=info.pid,
        version=info.version,
        started=stamp(info.started_ms),
        roots=info.roots,
        state=info.state,
        problem=info.problem,
        held_by=info.held_by,
        held_since=stamp(info.held_since_ms),
        last_scan=_scan(info.last_scan) if info.last_scan is not None else None,
        enqueued=info.enqueued,
        waiting=info.waiting,
    )


def _scan(scan: ScanInfo) -> LastScan:
    seconds = (scan.ended_ms - scan.began_ms) / 1000
    return LastScan(stamp(scan.began_ms), stamp(scan.ended_ms), seconds, scan.found, scan.is_complete, scan.skipped)


def producer_lines(producers: tuple[ProducerProcess, ...], screen: Screen, at: str) -> list[str]:
    """A header; for each producer a line, its directory, and what holds it back.

    Where the height is limited: without the directories, and only the first producers."""
    if not producers:
        return ["no producers"]
    is_endless = screen.height == ENDLESS
    most = len(producers) if is_endless else _SHOWN
    rows: list[tuple[str | Cell, ...]] = [("producer", "state", "last scan", "enqueued", "up", "version")]
    for one in producers[:most]:
        rows.append(
            (
                Cell(f"{printable(one.host)} {one.pid}", "bold"),
                Cell(printable(one.state), _STYLES.get(one.state, "")),
                _scan_text(one, at),
                number(one.enqueued),
                age(seconds_between(one.started, at)),
                printable(one.version),
            )
        )
    header, *lines = table(rows, screen, right=(3,), flexible=0, from_left=False)
    shown = [header]
    for one, line in zip(producers, lines, strict=False):
        directories = [cut(f"  scans {printable(', '.join(one.roots))}", screen.width)] if is_endless else []
        directories += _skipped_lines(one, screen) if is_endless else []
        shown += [line, *directories, *_obstacle_lines(one, screen, at)]
    if (hidden := len(producers) - most) > 0:
        shown.append(screen.paint(f"  and {number(hidden)} more: fileq stats --json", "dim"))
    return shown


def _scan_text(one: ProducerProcess, at: str) -> str:
    scan = one.last_scan
    if scan is None:
        return "none yet"
    missed = "" if scan.is_complete else ", incomplete"
    return f"{age(seconds_between(scan.ended, at))} ago: {plural(scan.found, 'file')}{missed}"


def _skipped_lines(one: ProducerProcess, screen: Screen) -> list[str]:
    if one.last_scan is None or not one.last_scan.skipped:
        return []
    most_first = sorted(one.last_scan.skipped.items(), key=lambda item: (-item[1], item[0]))
    counts = ", ".join(f"{number(count)} {printable(reason)}" for reason, count in most_first)
    return [cut(f"  skipped {counts}; 'fileq trace PATH' says why", screen.width)]


def _obstacle_lines(one: ProducerProcess, screen: Screen, at: str) -> list[str]:
    lines = []
    if one.problem:
        lines.append(screen.paint(cut(f"  {printable(one.problem)}", screen.width), "red"))
    if one.held_by:
        since = age(seconds_between(one.held_since, at))
        held = f"  held by {printable(one.held_by)} for {since}; {plural(one.waiting, 'file waits', 'files wait')}"
        lines.append(screen.paint(cut(held, screen.width), "yellow"))
    return lines
