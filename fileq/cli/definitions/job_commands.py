"""`fileq admin peek|list|show|trace|cancel`: look at jobs, and cancel them."""

from __future__ import annotations

import argparse
import os

from fileq.cli.arguments import add_json, utf8_text, whole_number
from fileq.cli.command import Command, Invocation
from fileq.cli.filters import UNFINISHED, add_dry_run, add_filters, check_choice, filter_of
from fileq.cli.screen import print_lines, screen_of_stdout
from fileq.commands.admin.json_schema import CANCEL_FIELDS, HISTORY_FIELDS, JOB_FIELDS, TRACE_FIELDS
from fileq.core.errors import ConfigError

_LIST_FIELDS = (("jobs[]", "one object for each job"), *((f"jobs[].{name}", meaning) for name, meaning in JOB_FIELDS))


def _peek_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--queue",
        metavar="PLACE",
        help="a queue, or dead_letter, completed, scheduled, cancelled (default: all queues)",
    )
    parser.add_argument(
        "-n", type=whole_number(1), default=10, metavar="N", dest="limit", help="show at most N (default: 10)"
    )
    add_json(parser)


def _peek(invocation: Invocation) -> int:
    from fileq.queries.job_queries import peek, place_named

    queues = invocation.loaded().config.worker.priorities
    name = invocation.options.queue
    places = [place_named(name, queues)] if name is not None else list(queues)
    found = {place: peek(invocation.broker(), place, invocation.options.limit) for place in places}
    if invocation.options.json:
        invocation.print_json({"jobs": [job for jobs in found.values() for job in jobs]})
        return 0
    from fileq.commands.admin.formatting import now_ms
    from fileq.commands.admin.queries_text import render_peek

    print_lines(render_peek(found, queues, screen_of_stdout(), now_ms()))
    return 0


def _list_arguments(parser: argparse.ArgumentParser) -> None:
    add_filters(parser, limit=50)
    add_json(parser)


def _list(invocation: Invocation) -> int:
    from fileq.queries.job_queries import list_jobs

    queues = invocation.loaded().config.worker.priorities
    wanted = filter_of(invocation.options, queues)
    jobs = list_jobs(invocation.broker(), queues, wanted)
    if invocation.options.json:
        invocation.print_json({"jobs": jobs})
        return 0
    if not jobs:
        print("no job matches")
        return 0
    from fileq.commands.admin.formatting import now_ms
    from fileq.commands.admin.queries_text import job_table

    print_lines(job_table(jobs, screen_of_stdout(), now_ms()))
    return 0


def _show_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("id", type=utf8_text, metavar="ID", help="id of a job, or its first characters")
    add_json(parser)


def _show(invocation: Invocation) -> int:
    from fileq.queries.job_queries import show
    from fileq.queries.job_summary import resolve_ids

    broker = invocation.broker()
    [id] = resolve_ids(broker, [invocation.options.id])
    history = show(broker, id)
    if invocation.options.json:
        invocation.print_json(history)
        return 0
    from fileq.commands.admin.formatting import now_ms
    from fileq.commands.admin.queries_text import render_history

    print_lines(render_history(history, screen_of_stdout(), now_ms()))
    return 0


def _trace_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("path", metavar="PATH", help="path of the file on the producer; it need not exist any more")
    add_json(parser)


def _trace(invocation: Invocation) -> int:
    from fileq.queries.job_queries import FileNotKnown, trace

    path = os.path.abspath(os.fsencode(invocation.options.path))
    try:
        traced = trace(invocation.broker(), path)
    except FileNotKnown:
        from fileq.commands.untaken_files import why_not_taken
        from fileq.core.text import quoted_path

        if reason := why_not_taken(invocation.loaded().config, path):
            raise FileNotKnown(f"{quoted_path(path)} was never enqueued: {reason}") from None
        raise
    if invocation.options.json:
        invocation.print_json(traced)
        return 0
    from fileq.commands.admin.formatting import now_ms
    from fileq.commands.admin.queries_text import render_trace

    print_lines(render_trace(traced, screen_of_stdout(), now_ms()))
    return 0


def _cancel_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("ids", nargs="*", type=utf8_text, metavar="ID", help="id of a job, or its first characters")
    parser.add_argument("--all", action="store_true", help="all jobs that have not ended and meet the filters")
    parser.add_argument("--yes", action="store_true", help="confirms --all; without it the command only counts")
    add_dry_run(parser)
    add_filters(parser, states=UNFINISHED)
    add_json(parser)


def _cancel(invocation: Invocation) -> int:
    from fileq.brokers.clocks import wall_clock_ms
    from fileq.commands.admin.control import cancel, cancel_all
    from fileq.commands.admin.formatting import plural
    from fileq.commands.bulk_actions import JobAction
    from fileq.commands.hand_actions import note_command
    from fileq.queries.job_summary import resolve_ids
    from fileq.webhooks.subscriptions import Withdrawals

    options, config = invocation.options, invocation.loaded().config
    worker = config.worker
    wanted = filter_of(options, worker.priorities)
    check_choice(options, wanted, "fileq admin cancel", "jobs")
    is_dry_run = options.dry_run or (options.all and not options.yes)
    broker, ttl_s = invocation.broker(), worker.heartbeat_ttl
    told = Withdrawals(broker, config, wall_clock_ms).of_ids
    if options.all:
        done = cancel_all(broker, worker.priorities, wanted, ttl_s, is_dry_run=is_dry_run, follow_ups=told)
    else:
        done = cancel(broker, resolve_ids(broker, options.ids), ttl_s, is_dry_run=is_dry_run, follow_ups=told)
    if not is_dry_run:
        jobs = {one.id: one.filepath for one in done.results if one.result in ("cancelled", "requested")}
        chosen = wanted if options.all else None
        invocation.note(note_command, JobAction.CANCEL, jobs, count=done.count, wanted=chosen)
    if options.json:
        invocation.print_json(done)
    else:
        from fileq.commands.admin.queries_text import render_cancellation

        print_lines(render_cancellation(done, has_total=options.all))
    if is_dry_run and not options.dry_run:
        raise ConfigError(f"cancel --all would cancel {plural(done.count, 'job')}; add --yes to confirm")
    return 1 if done.has_failed else 0


COMMANDS = (
    Command(
        words=("admin", "peek"),
        summary="show the next jobs of a queue",
        description="""\
Shows the jobs that are claimed next from each queue, or from one. For `scheduled` it shows the jobs that are due first;
for `dead_letter`, `completed` and `cancelled` the newest. Changes nothing.""",
        examples=(
            ("fileq peek", "the next ten jobs of each queue"),
            ("fileq peek --queue high -n 3", "the next three jobs of one queue"),
            ("fileq peek --queue completed", "the jobs that were completed last"),
        ),
        arguments=_peek_arguments,
        run=_peek,
        json_fields=_LIST_FIELDS,
    ),
    Command(
        words=("admin", "list"),
        summary="list jobs by state, type, file, error, time and queue",
        description="""\
Lists jobs in one state, or in all states: running, pending, retrying, scheduled, dead, completed, cancelled. Waiting
jobs are listed in the order in which they are claimed, ended jobs newest first. `processing` is another name for
running, `failed` for retrying.

A retrying job that waits without having failed, because of a limit for example, is shown as `retrying (deferred)`, with
the reason below the table. --state deferred lists only such jobs. In --json their state is retrying, and `deferred` is
the reason.""",
        examples=(
            ("fileq list --state failed", "jobs that wait for another attempt"),
            ("fileq list --type thumbnail --limit 5 --json", "five jobs of one type, as JSON"),
            (
                "fileq list --state dead --error Timeout --since 2h",
                "what became dead by a timeout in the last two hours",
            ),
        ),
        arguments=_list_arguments,
        run=_list,
        json_fields=_LIST_FIELDS,
    ),
    Command(
        words=("admin", "show"),
        summary="show one job with all its attempts",
        description="""\
Shows everything known about a job: its state, its file, and every attempt with worker, duration and error. `waits` says
why a waiting job does not run: a paused queue, no running worker, a time, the reason for which it was deferred. `failed
attempts` counts against max_retries; `fileq dlq retry` sets it to 0. `came from` is the first path of a file that
worker.after had moved before the job was put back. `after` an attempt is the duration that its worker measured.

The record of a completed or cancelled job is kept for worker.history_ttl; the record of a dead job until it is retried
or deleted.""",
        examples=(("fileq show 2f6c1d0e", "what happened to this job"),),
        arguments=_show_arguments,
        run=_show,
        json_fields=HISTORY_FIELDS,
    ),
    Command(
        words=("admin", "trace"),
        summary="show everything known about a file, version by version",
        description="""\
Shows the history of a file. For every version that the ledger or a record still knows: when it was enqueued, each
attempt with worker, duration and error, and the outcome. The path is the one that the producer uses; a relative path is
resolved here. The path to which a worker moved the file (worker.after) works too. Exit code 1 if nothing is known about
the file. If it exists here, the error names the rule that leaves it out: a glob, a link, a missing marker, …""",
        examples=(("fileq trace inbox/invoice-17.pdf", "was it processed, and if not, why?"),),
        arguments=_trace_arguments,
        run=_trace,
        json_fields=TRACE_FIELDS,
    ),
    Command(
        words=("admin", "cancel"),
        summary="cancel waiting or running jobs",
        description="""\
A waiting job is removed from its queue at once. The worker of a running job sets context.cancelled within a second (if
it is stopping, or misses the message, at most a third of worker.heartbeat_ttl later), and stops a handler by force that
still runs 5 s after that. A job that has already ended or is unknown is not changed; then the exit code is 1.

With --all: every job that has not ended and meets the filters; deliveries of webhooks only with --type. A cancelled job
can't be put back, so --all needs --yes; without it the command names what it would cancel and ends with exit code
2.""",
        examples=(
            ("fileq cancel 2f6c1d0e", "one job; several ids may be given"),
            ("fileq cancel --all --queue low --match '*.tmp.pdf' --dry-run", "show which jobs would be cancelled"),
            ("fileq cancel --all --state scheduled --yes", "all jobs that are not due yet"),
        ),
        arguments=_cancel_arguments,
        run=_cancel,
        json_fields=CANCEL_FIELDS,
        only_confirms=True,
    ),
)
