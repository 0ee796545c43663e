"""`fileq admin peek|list|show|trace|cancel|dlq …|purge-dlq`: look at jobs, cancel them, run dead ones again."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from msgspec.structs import asdict, replace

from fileq.cli.arguments import (
    DRY_RUN,
    UNFINISHED,
    argument,
    check_choice,
    check_named,
    filter_of,
    filters,
    utf8_text,
    whole_number,
)
from fileq.cli.command import Invocation, command, declared
from fileq.cli.terminal import Screen, cut, number, plural, screen_of_stdout, short_ids
from fileq.core.errors import ConfigError
from fileq.core.text import printable, quoted_path
from fileq.core.units import two_units

if TYPE_CHECKING:
    from fileq.actions.bulk import ActionReport, JobAction

_DEAD_FILTERS = filters(time="jobs that became dead", states=("dead",))
_ALL_DEAD = argument("--all", action="store_true", help="all dead jobs that match the filters, oldest first")
_CONFIRM = argument("--yes", action="store_true", help="confirms --all; without it, only counts")
_JOB = "fileq.queries.documents:JobDocument"
_EACH = "one object for each job"
_ACTION = declared("fileq.actions.bulk:ActionReport")
_GROUP_WORDS = ("fingerprint", "directory", "kind", "type")
_REPORTED = 20  # jobs named in a report
_GROUPED = 100_000  # dead jobs that `dlq groups` looks at


@command(
    "admin peek",
    "show the next jobs of a queue",
    argument(
        "--queue", metavar="PLACE", help="a queue, dead_letter, completed, scheduled or cancelled (default: all queues)"
    ),
    argument("-n", type=whole_number(1), default=10, metavar="N", dest="limit", help="show at most N (default: 10)"),
    json_fields=declared(_JOB, "jobs[]", _EACH),
)
def _peek(invocation: Invocation) -> int:
    """Shows the jobs that will be claimed next, from each queue or from one. For `scheduled` it shows those due first;
    for `dead_letter`, `completed` and `cancelled`, the newest. Changes nothing.

    $ fileq peek  # the next ten jobs of each queue
    $ fileq peek --queue high -n 3  # the next three jobs of one queue
    $ fileq peek --queue completed  # the latest completed jobs"""
    from fileq.cli.job_text import render_peek
    from fileq.queries.job_queries import peek, place_named

    queues = invocation.config.worker.priorities
    name = invocation.options.queue
    places = [place_named(name, queues)] if name is not None else list(queues)
    found = {place: peek(invocation.broker(), place, invocation.options.limit) for place in places}
    document = {"jobs": [job for jobs in found.values() for job in jobs]}
    return invocation.answer(document, lambda: render_peek(found, queues, screen_of_stdout()))


@command(
    "admin list",
    "list jobs by status, type, file, error, time and tag",
    filters(limit=50),
    json_fields=declared(_JOB, "jobs[]", _EACH, more=(("has_more", "boolean: more jobs match than --limit allows"),)),
)
def _list(invocation: Invocation) -> int:
    """Lists jobs in one status, or in all: running, pending, retrying, deferred, scheduled, dead, completed, cancelled.
    Unfinished jobs are listed in claim order, ended jobs newest first. `processing` is an alias for running, `failed`
    for retrying.

    A deferred job cannot run yet, though nothing failed: an open circuit breaker, a limit of its route, a missing root
    or an earlier job of its file. The reason is shown below the table, and as `deferred` with --json.

    $ fileq list --status failed  # jobs waiting for another attempt
    $ fileq list --type thumbnail --limit 5 --json  # five jobs of one type, as JSON
    $ fileq list --status dead --error Timeout --since 2h  # jobs that died of a timeout in the last two hours"""
    from fileq.cli.job_text import job_table
    from fileq.queries.job_selection import select

    queues = invocation.config.worker.priorities
    limit = invocation.options.limit
    wanted = replace(filter_of(invocation.options, queues), limit=limit + 1)
    found = [stored.document() for stored in select(invocation.broker(), queues, wanted)]
    jobs, has_more = found[:limit], len(found) > limit
    check_named(invocation, len(jobs))

    def text() -> list[str]:
        more = ["", f"the first {plural(limit, 'job')}; --limit shows more"] if has_more else []
        return [*job_table(jobs, screen_of_stdout()), *more] if jobs else ["no jobs match"]

    return invocation.answer({"jobs": jobs, "has_more": has_more}, text)


@command(
    "admin show",
    "show one job with all its attempts",
    argument("id", type=utf8_text, metavar="ID", help="job id, or its first characters"),
    json_fields=declared(_JOB),
)
def _show(invocation: Invocation) -> int:
    """Shows everything known about a job: its status, its file, and every attempt with worker, duration and error.
    `waits` says why a job has not run yet: a paused queue, no running worker, its due time, or why it was deferred.
    `failed attempts` counts against max_retries; `fileq dlq retry` resets it to 0. `moved from` is the original path of
    a file that worker.after had moved before the job was retried. `after` is the duration of an attempt as its worker
    measured it.

    The record of a completed or cancelled job is kept for worker.history_ttl; the record of a dead job until it is
    retried or deleted.

    $ fileq show 2f6c1d0e  # what happened to this job"""
    from fileq.cli.job_text import render_job
    from fileq.queries.job_ids import resolve_ids
    from fileq.queries.job_queries import show

    broker = invocation.broker()
    [id] = resolve_ids(broker, [invocation.options.id])
    job = show(broker, id)
    return invocation.answer(job, lambda: render_job(job, screen_of_stdout()))


@command(
    "admin trace",
    "show everything known about a file, version by version",
    argument("path", metavar="PATH", help="path of the file on the producer; it may no longer exist"),
    json_fields=declared("fileq.commands.untaken_files:LocalTrace"),
)
def _trace(invocation: Invocation) -> int:
    """Shows the history of a file: for each version still in the ledger or in a record, when it was enqueued, each
    attempt with worker, duration and error, and the outcome. Give the path that the producer uses; a relative path is
    resolved on this machine. The path that a worker moved the file to (worker.after) works too. Exit code 1 if nothing
    is known about the file; if it exists here, the error names the rule that excludes it: a glob, a link, a missing
    marker, … If it has changed here since its newest known version, the output says so, and why the new version is not
    enqueued.

    $ fileq trace inbox/invoice-17.pdf  # was it processed, and if not, why?"""
    from fileq.cli.job_text import render_trace
    from fileq.commands.untaken_files import LocalTrace, untaken_version, why_not_taken, with_scanned_directory
    from fileq.files.paths import is_in
    from fileq.queries.job_queries import FileNotKnown, trace

    path, broker = os.path.abspath(os.fsencode(invocation.options.path)), invocation.broker()
    config = with_scanned_directory(invocation.config, path, broker.producers())
    try:
        traced = trace(broker, path)
    except FileNotKnown as error:
        if any(is_in(path, folder) for folder in config.paths.folders):
            why = "worker.after moves files there, and the record of its job has expired or was deleted"
            raise FileNotKnown(f"nothing leads to {quoted_path(path)}: {why}; trace the path it had before") from None
        if reason := why_not_taken(config, path):
            raise FileNotKnown(f"{quoted_path(path)} was never enqueued: {reason}") from None
        raise FileNotKnown(f"there is no such file here, and {error}") from None
    shown = LocalTrace(**asdict(traced), untaken=untaken_version(traced, config, path))
    return invocation.answer(shown, lambda: render_trace(shown, screen_of_stdout()))


@command(
    "admin cancel",
    "cancel unfinished jobs",
    argument("ids", nargs="*", type=utf8_text, metavar="ID", help="job id, or its first characters"),
    argument("--all", action="store_true", help="all unfinished jobs that match the filters"),
    _CONFIRM,
    DRY_RUN,
    filters(states=UNFINISHED),
    json_fields=_ACTION,
    only_confirms=True,
)
def _cancel(invocation: Invocation) -> int:
    """A job that is not running is removed at once. For a running job, its worker sets context.cancelled within a
    second (if it is stopping or misses the message, at most a third of worker.heartbeat_ttl later), and forcibly stops
    the handler if it still runs 5 s after that. A job that has already ended or is unknown is not changed; the exit
    code is then 1.

    With --all: every unfinished job that matches the filters and was enqueued before the command started; webhook
    deliveries only with --type. Jobs pushed by other programs are cancelled when they are near the front of their
    queue, or once a worker has claimed them; until then their ids are unknown. A pushed job that has the id of an
    ended job is not cancelled; the command names it. Cancelled jobs can't be put back, so --all needs --yes; without it
    the command lists what it would cancel and exits with code 2.

    $ fileq cancel 2f6c1d0e  # one job; several ids may be given
    $ fileq cancel --all --queue low --match '*.tmp.pdf' --dry-run  # show which jobs would be cancelled
    $ fileq cancel --all --status scheduled --yes  # all jobs that are not due yet"""
    return _act(invocation, "cancel")


def _act(invocation: Invocation, name: str) -> int:
    """Does the action of this name on the jobs that the line names or chooses. What can't be undone needs --yes with
    --all."""
    from fileq.actions.bulk import BulkActions, JobAction
    from fileq.commands.action_log import note_command
    from fileq.queries.job_ids import resolve_ids

    options, config, broker = invocation.options, invocation.config, invocation.broker
    action, command = JobAction(name), invocation.command.name
    what, places = ("job", ()) if action is JobAction.CANCEL else ("dead job", ("dead_letter",))
    wanted = filter_of(options, config.worker.priorities)
    check_choice(options, wanted, command, f"{what}s")
    is_unconfirmed = options.all and not options.dry_run and not getattr(options, "yes", True)
    is_dry_run = options.dry_run or is_unconfirmed
    actions = BulkActions(broker(), config)
    if options.all:
        jobs = actions.matching(action, wanted)
        report = actions.begin(action, jobs, limit=wanted.limit, is_dry_run=is_dry_run).complete()
        check_named(invocation, report.count)
    else:
        ids = resolve_ids(broker(), options.ids, places=places)
        report = actions.act_on(action, ids, is_dry_run=is_dry_run)
    if not is_dry_run:
        changed = {one.id: one.path for one in report.results if one.is_done}
        chosen = wanted if options.all else None
        invocation.note(note_command, action, changed, count=report.count, wanted=chosen)
    if report.count and action is JobAction.RETRY:
        invocation.note_stale_workers()
    ttl_s = config.worker.heartbeat_ttl
    code = 1 if report.has_failed and not options.all else 0
    has_none = options.all and not report.count and not report.results
    lines = ["no jobs match"] if has_none else _report(report, action, ttl_s, screen_of_stdout())
    invocation.answer(report, lambda: lines, code)
    if is_unconfirmed and report.count:
        words = command.removeprefix("fileq admin ")
        raise ConfigError(f"{words} --all would {action} {plural(report.count, what)}; add --yes to confirm")
    return code


def _report(report: ActionReport, action: JobAction, heartbeat_ttl_s: float, screen: Screen) -> list[str]:
    from fileq.actions.bulk import REQUESTED, REQUESTED_BEFORE

    lines = []
    shown = report.results[:_REPORTED]
    short = short_ids([one.id for one in shown])
    for one in shown:
        id = printable(short[one.id])
        if one.reason:
            lines.append(f"{id}: {screen.paint(one.result, 'red')}: {one.reason}")
        elif one.result == REQUESTED_BEFORE:
            lines.append(f"{id}: is already being cancelled")
        elif one.result == REQUESTED:
            lines.append(f"{id}: {_requested(heartbeat_ttl_s / 3)}  {printable(one.path)}".rstrip())
        else:
            would = f"{one.result.replace('_', ' ')} " if report.is_dry_run else ""
            path = cut(printable(one.path), max(20, screen.width - len(id) - 2), from_left=True)
            lines.append(f"{would}{id}  {path}".rstrip())
    if (more := max(report.count, len(report.results)) - len(shown)) > 0:
        lines.append(f"and {number(more)} more")
    would, verb = "would be " if report.is_dry_run else "", action.done
    if any(one.result == REQUESTED for one in report.results):
        verb = f"{verb} or being cancelled"
    return [*lines, f"{plural(report.count, 'job')} {would}{verb}"]


def _requested(within_s: float) -> str:
    from fileq.worker.executors.protocol import CANCEL_GRACE_S  # with it come parts of the worker

    return (
        f"is running; its worker sets context.cancelled within {two_units(within_s)}, "
        f"and kills it {two_units(CANCEL_GRACE_S)} later if it is still running"
    )


@command(
    "admin dlq list",
    "list dead jobs with attempts, error and times",
    filters(limit=50, time="jobs that became dead", states=("dead",)),
    json_fields=declared("fileq.queries.dead_jobs:DeadJobs"),
)
def _list_dead(invocation: Invocation) -> int:
    """Lists the dead-letter queue, newest first: id, time of death, number of attempts, queue, file and first line of
    the error of each job. Bytes that are not a job are listed under raw-<sha1>. `fileq show ID` shows one job in full.

    $ fileq dlq list  # the newest fifty
    $ fileq dlq list --match '*.pdf' --error timeout  # only jobs that match both conditions"""
    from fileq.cli.job_text import render_dead
    from fileq.queries.dead_jobs import list_dead

    queues = invocation.config.worker.priorities
    dead = list_dead(invocation.broker(), queues, filter_of(invocation.options, queues))
    check_named(invocation, len(dead.jobs))
    return invocation.answer(dead, lambda: render_dead(dead, screen_of_stdout()))


@command(
    "admin dlq groups",
    "group dead jobs by their cause",
    argument("--by", choices=_GROUP_WORDS, default=_GROUP_WORDS[0], metavar="WORD", help=", ".join(_GROUP_WORDS)),
    argument("--limit", type=whole_number(1), default=20, metavar="N", help="at most N groups (default: 20)"),
    json_fields=declared("fileq.queries.dead_jobs:DeadGroups"),
)
def _groups(invocation: Invocation) -> int:
    """Groups dead jobs, largest group first: how many there are, the latest error, when the first and last died, and
    the most common directories and extensions of their files. Jobs with the same fingerprint died of the same cause:
    the same kind of error, the same handler, the same wording, raised in the same function of your code. Covers the
    newest 100,000 dead jobs and says so if there are more.

    $ fileq dlq groups  # what went wrong, and how often
    $ fileq dlq groups --by directory  # where the files are"""
    from fileq.cli.job_text import render_groups
    from fileq.queries.dead_jobs import group_dead
    from fileq.queries.job_filter import JobFilter

    options = invocation.options
    found = group_dead(invocation.broker(), JobFilter(), options.by, limit=options.limit, scan_max=_GROUPED)
    return invocation.answer(found, lambda: render_groups(found, screen_of_stdout()))


@command(
    "admin dlq retry",
    "retry dead jobs",
    argument("ids", nargs="*", type=utf8_text, metavar="ID", help="id of a dead job, or its first characters"),
    _ALL_DEAD,
    DRY_RUN,
    _DEAD_FILTERS,
    json_fields=_ACTION,
    only_confirms=True,
)
def _retry(invocation: Invocation) -> int:
    """Puts dead jobs back into their queues, as new jobs with the same id: retries, recoveries and error are reset. The
    command can be interrupted and repeated: no job is lost or runs twice. With --all, jobs that die while it runs stay
    dead, including those it has retried. Bytes that are not a job are refused, because they would only die again. Exit
    code 1 if a job passed by id could not be retried.

    Running workers use the handlers and configuration they have loaded. After a fix, reload (SIGHUP) or restart them
    first. The command and its dry run warn if a file that they have loaded has changed: the configuration file, or a
    handler in the current directory, with the modules there that it imports.

    $ fileq dlq retry 2f6c1d0e  # one job; several ids may be given
    $ fileq dlq retry --all --error 'connection refused' --dry-run  # show which jobs would be retried
    $ fileq dlq retry --all --match '/srv/inbox/2026/**'  # all jobs for files of one directory
    $ fileq dlq retry --all --fingerprint 3f9a  # one group of 'fileq dlq groups'"""
    return _act(invocation, "retry")


@command(
    "admin dlq delete",
    "delete dead jobs permanently",
    argument(
        "ids",
        type=utf8_text,
        nargs="*",
        metavar="ID",
        help="id of a dead job, or raw-<sha1> for bytes that are not a job; or its first characters",
    ),
    _ALL_DEAD,
    _CONFIRM,
    DRY_RUN,
    _DEAD_FILTERS,
    json_fields=_ACTION,
    only_confirms=True,
)
def _delete(invocation: Invocation) -> int:
    """Deletes dead jobs and their records. Files are not touched. Exit code 1 if an id is not that of a dead job.

    With --all: every dead job that matches the filters. Deleted jobs can't be restored, so --all needs --yes; without
    it the command lists what it would delete and exits with code 2.

    $ fileq dlq delete raw-da39a3ee5e6b4b0d3255bfef95601890afd80709  # bytes that are not a job
    $ fileq dlq delete --all --error FileVanished --yes  # all jobs whose file had vanished"""
    return _act(invocation, "delete")


@command(
    "admin purge-dlq",
    "delete all dead jobs",
    argument("--yes", action="store_true", help="delete; without it, only counts (or: --force)"),
    json_fields=(("deleted", "number: dead jobs that were deleted"), ("dead", "number: dead jobs before the command")),
    only_confirms=True,
)
def _purge(invocation: Invocation) -> int:
    """Deletes all dead jobs with their records and prints how many. Without --yes it only prints how many there are and
    exits with code 2.

    $ fileq purge-dlq  # show how many jobs would be deleted
    $ fileq purge-dlq --yes  # delete them"""
    from fileq.actions.bulk import BulkActions, JobAction
    from fileq.commands.action_log import note_command
    from fileq.queries.job_filter import JobFilter

    broker = invocation.broker()
    if not invocation.options.yes:
        count = broker.census().dead
        invocation.answer({"deleted": 0, "dead": count}, lambda: [f"{plural(count, 'dead job')}; nothing was deleted"])
        raise ConfigError("purge-dlq deletes all dead jobs permanently; add --yes to confirm")
    actions = BulkActions(broker, invocation.config)
    deleted = actions.begin(JobAction.DELETE, actions.matching(JobAction.DELETE, JobFilter())).complete().count
    invocation.note(note_command, JobAction.DELETE, {}, count=deleted)
    return invocation.answer({"deleted": deleted, "dead": deleted}, lambda: [f"{plural(deleted, 'dead job')} deleted"])
