"""`fileq admin stats` and `fileq admin workers`: how the queues stand, and who works on them."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import TYPE_CHECKING

from fileq.cli.arguments import add_json
from fileq.cli.command import Command, Context
from fileq.cli.pages import page_of_stdout, print_lines
from fileq.commands.admin.schema import STATS_FIELDS, WORKERS_FIELDS

if TYPE_CHECKING:
    from fileq.commands.admin.stats import Stats

EVERY_S = 2.0


def _seconds(text: str) -> float:
    try:
        seconds = float(text.removesuffix("s"))
    except ValueError:
        seconds = 0.0
    if not 0.1 <= seconds <= 86_400:
        raise argparse.ArgumentTypeError(f"is {text!r}; it must be a number of seconds, 0.1 or more")
    return seconds


def _arguments(parser: argparse.ArgumentParser) -> None:
    add_json(parser)
    parser.add_argument(
        "--watch",
        nargs="?",
        type=_seconds,
        const=EVERY_S,
        metavar="SECONDS",
        help=f"refresh every so often ({EVERY_S:g} s unless given) until Ctrl-C; with --json a line each time",
    )


def _stats(context: Context) -> int:
    if context.options.watch is not None:
        return _watch(context, context.options.watch)
    from fileq.commands.admin.stats import gather

    stats = gather(context.broker())
    if context.options.json:
        context.print_json(stats)
        return 0
    from fileq.commands.admin.stats_text import render

    print_lines(render(stats, page_of_stdout(is_endless=True)))
    return 0


def _watch(context: Context, interval_s: float) -> int:
    import sys

    from fileq.commands.admin.watch import watch

    try:
        if sys.stdout.isatty() and not context.options.json:
            _watch_in_place(context, interval_s)
        else:
            watch(context.broker, _show_blocks(context), interval_s)
    except KeyboardInterrupt:
        pass
    return 0


def _show_blocks(context: Context) -> Callable[[Stats | None, str], None]:
    """A block each time, for files and pipes."""
    import sys

    from fileq.commands.admin.stats_text import render

    def show(stats: Stats | None, trouble: str) -> None:
        if trouble:
            print(f"fileq: {trouble}", file=sys.stderr, flush=True)
        elif context.options.json:
            context.print_json(stats)
            sys.stdout.flush()
        elif stats is not None:
            print_lines([*render(stats, page_of_stdout()), ""])
            sys.stdout.flush()

    return show


def _watch_in_place(context: Context, interval_s: float) -> None:
    from rich.live import Live
    from rich.text import Text

    from fileq.commands.admin.stats_text import render
    from fileq.commands.admin.watch import watch

    with Live(console=context.console, auto_refresh=False, screen=True, vertical_overflow="crop") as live:

        def show(stats: Stats | None, trouble: str) -> None:
            page = page_of_stdout()
            lines = render(stats, page._replace(height=page.height - bool(trouble))) if stats is not None else []
            if trouble:
                lines.insert(0, page.paint(trouble[: page.width], "red"))
            live.update(Text.from_ansi("\n".join(lines), no_wrap=True, overflow="crop"), refresh=True)

        watch(context.broker, show, interval_s)


def _workers(context: Context) -> int:
    from fileq.commands.admin.control import workers

    found = workers(context.broker())
    if context.options.json:
        context.print_json(found)
        return 0
    if not found.workers:
        print("no workers; start one with 'fileq worker'")
        return 0
    from fileq.commands.admin.stats_text import process_table, slot_table

    page = page_of_stdout(is_endless=True)
    heads = process_table(found.workers, page, found.at)
    lines = [heads[0]]
    for process, head in zip(found.workers, heads[1:], strict=True):
        lines += [head, *slot_table(process.jobs, page, with_slots=True)]
    print_lines(lines)
    return 0


COMMANDS = (
    Command(
        words=("admin", "stats"),
        summary="how the queues stand: lengths, rates, workers, errors",
        description="""\
Shows which broker this is and where; how many jobs wait in each queue and how old the next one out is; what is
scheduled, processed, completed and dead; the rates of this hour and the last and when the backlog will be done; the
workers and what they are on; failed attempts by kind of error. It costs the broker the same whatever the queues hold.

With --watch it refreshes in place until Ctrl-C, with the rates of the last refreshes beside the hourly ones. It goes on
while the broker is away, and says so.""",
        examples=(
            ("fileq stats", "one look (`admin` may be left out)"),
            ("fileq stats --watch", "a look every 2 s, in place"),
            ("fileq stats --json | jq .dead", "for programs"),
        ),
        arguments=_arguments,
        run=_stats,
        json_fields=STATS_FIELDS,
    ),
    Command(
        words=("admin", "workers"),
        summary="each worker process, its slots, and what they are on",
        description="""\
Lists every worker process that the broker knows: how many of its slots are busy, its breaker, whether it is alive or
silent (no heartbeat), since when it runs; and what each busy slot is on and for how long. A silent one is forgotten,
and its jobs are given back, by the next reaper.""",
        examples=(("fileq workers", "who works on what"),),
        arguments=add_json,
        run=_workers,
        json_fields=WORKERS_FIELDS,
    ),
)
