"""The text of `fileq batch`: a list, one batch, and a line that shows how far a batch is."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from fileq.brokers.protocol import FullBroker
from fileq.cli.job_text import STATE_STYLES, ago, error_lines, when
from fileq.cli.terminal import Cell, Screen, columns, cut, name_of, number, plural, record, remark, table
from fileq.client.batch_handle import RECHECK_S, wait_for_batch
from fileq.core.text import printable
from fileq.queries.documents import BatchDocument, CallbackDocument, known_batch

_BAR_MAX = 30  # columns
_REDRAW_S = 0.25
_CLEAR = "\r\x1b[K"
_COUNTS = ("waiting", "running", "completed", "dead", "cancelled", "deleted")


def render_batches(batches: Sequence[BatchDocument], screen: Screen) -> list[str]:
    if not batches:
        return ["no batches; create one with 'fileq batch create' or 'fileq enqueue --batch NAME'"]
    has_deleted = any(one.deleted for one in batches)  # rare; without the column all fits in 80
    deleted = ["deleted"] if has_deleted else []
    rows: list[list[str | Cell]] = [["id", "status", "jobs", "left", "completed", "dead", "cancelled", *deleted, "age"]]
    for one in batches:
        row: list[str | Cell] = [one.id, _state(one), number(one.total)]
        row += [number(one.waiting + one.running), number(one.completed)]
        row += [Cell(number(one.dead), "red" if one.dead else ""), number(one.cancelled)]
        row += [number(one.deleted)] if has_deleted else []
        rows.append([*row, ago(one.created_at)])
    return table(rows, screen, right=range(2, len(rows[0])), flexible=0, from_left=False)


def _state(one: BatchDocument) -> Cell:
    if one.is_cancelled:
        return Cell("cancelled" if one.is_finished else "cancelling", "yellow")
    if one.is_finished:
        return Cell("finished", "green" if one.is_success else "red")
    return Cell(one.status)


def render_batch(one: BatchDocument, screen: Screen) -> list[str]:
    counts = [f"{number(count)} {name}" for name in _COUNTS if (count := getattr(one, name))]
    state = one.status + (", cancelled" if one.is_cancelled else "")
    facts: list[tuple[str, str | Cell]] = [
        ("id", Cell(one.id, "bold")),
        ("name", one.name),
        ("status", Cell(state, _state(one).style)),
        ("parent", one.parent or ""),
        ("failures", "allowed" if one.allow_failures else "the first dead job cancels the rest"),
        ("queue", one.priority),
        ("jobs", number(one.total) + (f": {', '.join(counts)}" if counts else "")),
        ("created", when(one.created_at)),
        ("sealed", when(one.sealed_at)),
        ("finished", when(one.finished_at)),
        *((callback.kind, _callback(callback)) for callback in one.callbacks),
    ]
    return [*record(facts, screen), *_failures(one, screen)]


def _callback(callback: CallbackDocument) -> Cell:
    if not callback.is_fired:
        return Cell("not enqueued", "dim")
    what = f"{callback.type or '?'}, job {callback.job_id}: {callback.status or 'record expired'}"
    error = f": {callback.error}" if callback.error and callback.status != "completed" else ""
    return Cell(what + error, STATE_STYLES.get(callback.status or "", ""))


def _failures(one: BatchDocument, screen: Screen) -> list[str]:
    if not one.failures:
        if one.dead and one.first_error:  # a child batch
            return ["", f"first failure: {printable(one.first_dead or '')}", *_indented(one.first_error, screen)]
        return []
    shown = f", the first {len(one.failures)}" if one.dead > len(one.failures) else ""
    lines = ["", screen.paint(f"{plural(one.dead, 'dead member')}{shown}", "bold")]
    for failure in one.failures:
        lines.append(f"  {printable(failure.id)}  {name_of(failure.path or '', failure.type, '').strip()}")
        lines += [f"  {line}" for line in _indented(failure.error or "", screen)[:1]]
    return [*lines, f"to retry them: 'fileq batch retry {printable(one.id)}'"]


def _indented(error: str, screen: Screen) -> list[str]:
    return [f"  {screen.paint(line, 'red')}" for line in error_lines(error)]


def progress_line(status: BatchDocument, width: int) -> str:
    """`nightly-3f… [#########---------] 120/500, 3 dead`, as long as the terminal is wide, at most."""
    bad = [f"{number(count)} {name}" for name in ("dead", "cancelled", "deleted") if (count := getattr(status, name))]
    counts = ", ".join([f"{number(status.ended)}/{number(status.total)}", *bad])
    room = width - columns(counts) - 5  # two brackets, two blanks, the cursor
    bar = min(_BAR_MAX, max(0, room - 12))
    done = bar * status.ended // status.total if status.total else bar
    name = cut(printable(status.id), max(0, room - bar))
    return f"{name} [{'#' * done}{'-' * (bar - done)}] {counts}"


def ending_line(one: BatchDocument) -> str:
    counts = ", ".join(f"{number(count)} {name}" for name in _COUNTS if (count := getattr(one, name)))
    return printable(f"batch {one.id} {'cancelled' if one.is_cancelled else one.status}: {counts or 'no jobs'}")


def shown_wait(broker: FullBroker, id: str) -> BatchDocument:
    """Waits until a batch is finished, and shows on a terminal how far it is. Only reads.

    Returns the status of the finished batch. The line is drawn on stderr, so that stdout has only results."""
    is_drawn = sys.stderr.isatty()

    def draw(status: BatchDocument | None) -> None:
        import shutil  # it imports every compression there is

        if is_drawn:
            line = progress_line(status, shutil.get_terminal_size().columns) if status is not None else ""
            print(_CLEAR + line, end="", file=sys.stderr, flush=True)

    def report(text: str) -> None:
        draw(None)
        remark(text)

    read, recheck_s = lambda: known_batch(id, *broker.batches_by_id([id])), _REDRAW_S if is_drawn else RECHECK_S
    try:
        return wait_for_batch(read, broker.subscribe, id, report=report, on_status=draw, recheck_s=recheck_s)
    finally:
        draw(None)
