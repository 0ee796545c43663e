"""`fileq admin peek|list|show|trace|cancel`: jobs, looked at and cancelled."""

from __future__ import annotations

import argparse
import os

from fileq.cli.arguments import add_json, whole
from fileq.cli.command import Command, Context
from fileq.cli.pages import page_of_stdout, print_lines
from fileq.commands.admin.schema import CANCEL_FIELDS, HISTORY_FIELDS, JOB_FIELDS, TRACE_FIELDS
from fileq.core.job import State

_LIST_FIELDS = (("jobs[]", "the jobs"), *((f"jobs[].{name}", meaning) for name, meaning in JOB_FIELDS))
_STATES = (*(state.value for state in State), "processing", "failed")


def _peek_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--queue", metavar="NAME", help="a queue, or dead_letter, completed, scheduled, cancelled (default: each queue)"
    )
    parser.add_argument("-n", type=whole(1), default=10, metavar="N", dest="limit", help="how many (default: 10)")
    add_json(parser)


def _peek(context: Context) -> int:
    from fileq.commands.admin.looking import peek, place_named

    queues = context.loaded().config.worker.priorities
    word = context.options.queue
    places = [place_named(word, queues)] if word is not None else list(queues)
    found = {place: peek(context.broker(), place, context.options.limit) for place in places}
    if context.options.json:
        context.print_json({"jobs": [job for jobs in found.values() for job in jobs]})
        return 0
    from fileq.commands.admin.looking_text import job_table, now_ms

    page, lines = page_of_stdout(), []
    for place, jobs in found.items():
        title = f"{place}: {'empty' if not jobs else f'the next {len(jobs)}'}"
        if place not in queues and place != "scheduled" and jobs:
            title = f"{place}: the newest {len(jobs)}"
        lines += [page.paint(title, "bold"), *(job_table(jobs, page, now_ms()) if jobs else [])]
    print_lines(lines)
    return 0


def _state(text: str) -> State:
    try:
        return State.from_filter(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"is {text!r}; it must be one of {', '.join(_STATES)}") from None


def _list_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--state", type=_state, metavar="S", help=f"only of this state: {', '.join(_STATES)}")
    parser.add_argument("--type", metavar="T", help="only of this type")
    parser.add_argument("--limit", type=whole(1), default=50, metavar="N", help="at most so many (default: 50)")
    add_json(parser)


def _list(context: Context) -> int:
    from fileq.commands.admin.looking import list_jobs

    options = context.options
    queues = context.loaded().config.worker.priorities
    jobs = list_jobs(context.broker(), queues, state=options.state, type=options.type, limit=options.limit)
    if options.json:
        context.print_json({"jobs": jobs})
        return 0
    if not jobs:
        print("no such jobs")
        return 0
    from fileq.commands.admin.looking_text import job_table, now_ms

    print_lines(job_table(jobs, page_of_stdout(), now_ms()))
    return 0


def _id(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("id", metavar="ID", help="a job's id")
    add_json(parser)


def _show(context: Context) -> int:
    from fileq.commands.admin.looking import show

    told = show(context.broker(), context.options.id)
    if context.options.json:
        context.print_json(told)
        return 0
    from fileq.commands.admin.looking_text import now_ms, render_history

    print_lines(render_history(told, page_of_stdout(), now_ms()))
    return 0


def _path(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("path", metavar="PATH", help="the file, as the producer sees it; it need not exist any more")
    add_json(parser)


def _trace(context: Context) -> int:
    from fileq.commands.admin.looking import trace
    from fileq.core.errors import BrokerError

    told = trace(context.broker(), os.path.abspath(os.fsencode(context.options.path)))
    if not told.versions:
        raise BrokerError(
            f"nothing is known of {told.filepath!r}; is it the producer's path, under its scan_dir and included?"
        )
    if context.options.json:
        context.print_json(told)
        return 0
    from fileq.commands.admin.looking_text import now_ms, render_trace

    print_lines(render_trace(told, page_of_stdout(), now_ms()))
    return 0


def _ids(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("ids", nargs="+", metavar="ID", help="a job's id")
    add_json(parser)


def _cancel(context: Context) -> int:
    from fileq.commands.admin.control import cancel, describe

    done = cancel(context.broker(), context.options.ids, context.loaded().config.worker.heartbeat_ttl)
    if context.options.json:
        context.print_json(done)
    else:
        from fileq.core.text import printable

        print_lines(f"{printable(result.id)}: {describe(result, done.within_s)}" for result in done.results)
    return 1 if done.has_failed else 0


COMMANDS = (
    Command(
        words=("admin", "peek"),
        summary="the next jobs out of a queue",
        description="""\
Shows the next jobs out of each queue, or of one; of `scheduled` those due first, of `dead_letter`, `completed` and
`cancelled` the newest. Nothing moves.""",
        examples=(
            ("fileq peek", "the next ten of each queue"),
            ("fileq peek --queue high -n 3", "the next three of one"),
            ("fileq peek --queue completed", "what was completed last"),
        ),
        arguments=_peek_arguments,
        run=_peek,
        json_fields=_LIST_FIELDS,
    ),
    Command(
        words=("admin", "list"),
        summary="jobs by state and type",
        description="""\
Lists jobs: of one state or, the liveliest first, of all; waiting ones in the order of their turn, ended ones newest
first. `processing` means running, `failed` means retrying.""",
        examples=(
            ("fileq list --state failed", "jobs that wait for another attempt"),
            ("fileq list --type thumbnail --limit 5 --json", "five jobs of a type, for programs"),
        ),
        arguments=_list_arguments,
        run=_list,
        json_fields=_LIST_FIELDS,
    ),
    Command(
        words=("admin", "show"),
        summary="one job's whole history",
        description="""\
Shows all that is known of a job: its state, its file, and every attempt with worker, duration and error. The record of
a job that has ended is kept for worker.history_ttl, that of a dead one as long as it is dead.""",
        examples=(("fileq show 2f6c1d0e-5b7a-4c3f-9e21-8d4b6a7c9f10", "what happened to it"),),
        arguments=_id,
        run=_show,
        json_fields=HISTORY_FIELDS,
    ),
    Command(
        words=("admin", "trace"),
        summary="everything known of a file, version by version",
        description="""\
Shows what became of a file: for every version that the ledger or a record still knows when it was enqueued, each
attempt with worker, duration and error, and the outcome. The path is the producer's; a relative one is resolved here.
Exit code 1 when nothing is known of it.""",
        examples=(("fileq trace inbox/invoice-17.pdf", "was it processed, and if not, why?"),),
        arguments=_path,
        run=_trace,
        json_fields=TRACE_FIELDS,
    ),
    Command(
        words=("admin", "cancel"),
        summary="take jobs out of their queue, or end them in their worker",
        description="""\
A waiting job leaves its queue at once. A running one is ended by its worker within a renewal of its heartbeat, a third
of worker.heartbeat_ttl. A job that has ended, or that nobody knows, is left alone; then the exit code is 1.""",
        examples=(("fileq cancel 2f6c1d0e-5b7a-4c3f-9e21-8d4b6a7c9f10", "one job; more ids may follow"),),
        arguments=_ids,
        run=_cancel,
        json_fields=CANCEL_FIELDS,
    ),
)
