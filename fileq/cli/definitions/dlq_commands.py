"""`fileq admin dlq list|groups|retry|delete` and `fileq admin purge-dlq`: the dead-letter queue."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from fileq.cli.arguments import add_json, utf8_text, whole_number
from fileq.cli.command import Command, Invocation
from fileq.cli.filters import add_dry_run, add_filters, check_choice, filter_of
from fileq.cli.reload_note import print_reload_note
from fileq.cli.screen import print_lines, screen_of_stdout
from fileq.commands.admin.json_schema import DLQ_GROUPS_FIELDS, DLQ_LIST_FIELDS, DLQ_REPORT_FIELDS, PURGE_FIELDS
from fileq.core.errors import ConfigError

if TYPE_CHECKING:
    from fileq.commands.admin.dlq import DlqReport
    from fileq.queries.job_filter import JobFilter

_GROUPED = 100_000  # dead jobs that `dlq groups` looks at


def _list_arguments(parser: argparse.ArgumentParser) -> None:
    add_filters(parser, limit=50, time="jobs that became dead", states=("dead",))
    add_json(parser)


def _list(invocation: Invocation) -> int:
    from fileq.commands.admin.dlq import list_dead

    queues = invocation.loaded().config.worker.priorities
    dead = list_dead(invocation.broker(), queues, filter_of(invocation.options, queues))
    if invocation.options.json:
        invocation.print_json(dead)
        return 0
    from fileq.commands.admin.dlq_text import render_dead
    from fileq.commands.admin.formatting import now_ms

    print_lines(render_dead(dead, screen_of_stdout(), now_ms()))
    return 0


def _groups_arguments(parser: argparse.ArgumentParser) -> None:
    words = ("fingerprint", "directory", "kind", "type")
    parser.add_argument(
        "--by", choices=words, default="fingerprint", metavar="WORD", help=f"{', '.join(words)} (default: fingerprint)"
    )
    parser.add_argument("--limit", type=whole_number(1), default=20, metavar="N", help="at most N groups (default: 20)")
    add_json(parser)


def _groups(invocation: Invocation) -> int:
    from fileq.queries.dead_jobs import group_dead
    from fileq.queries.job_filter import JobFilter

    options = invocation.options
    found = group_dead(invocation.broker(), JobFilter(), options.by, limit=options.limit, scan_max=_GROUPED)
    if options.json:
        invocation.print_json(found)
        return 0
    from fileq.commands.admin.dlq_text import render_groups
    from fileq.commands.admin.formatting import now_ms

    print_lines(render_groups(found, screen_of_stdout(), now_ms()))
    return 0


def _retry_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "ids", nargs="*", type=utf8_text, metavar="ID", help="id of a dead job, or its first characters"
    )
    parser.add_argument("--all", action="store_true", help="all dead jobs that meet the filters, the oldest first")
    add_dry_run(parser)
    add_filters(parser, time="jobs that became dead", states=("dead",))
    add_json(parser)


def _retry(invocation: Invocation) -> int:
    from fileq.commands.admin.dlq import PLACE, retry, retry_all
    from fileq.queries.job_summary import resolve_ids

    options = invocation.options
    queues = invocation.loaded().config.worker.priorities
    wanted = filter_of(options, queues)
    check_choice(options, wanted, "fileq admin dlq retry", "dead jobs")
    broker = invocation.broker()
    if options.all:
        report = retry_all(broker, wanted, queue=queues[-1], is_dry_run=options.dry_run)
    else:
        ids = resolve_ids(broker, options.ids, places=[PLACE])
        report = retry(broker, ids, queue=queues[-1], is_dry_run=options.dry_run)
    _note(invocation, "retry", report, wanted)
    if report.count:
        print_reload_note(invocation)
    return _print_report(invocation, report, "put back", has_failed=report.has_failed and not options.all)


def _note(invocation: Invocation, action: str, report: DlqReport, wanted: JobFilter) -> None:
    """Tells others what was done, and by whom."""
    from fileq.commands.bulk_actions import JobAction
    from fileq.commands.hand_actions import note_command

    if not report.is_dry_run:
        jobs = {one.id: one.filepath for one in report.results if one.result in ("retried", "deleted")}
        chosen = wanted if invocation.options.all else None
        invocation.note(note_command, JobAction(action), jobs, count=report.count, wanted=chosen)


def _print_report(invocation: Invocation, report: DlqReport, verb: str, *, has_failed: bool) -> int:
    if invocation.options.json:
        invocation.print_json(report)
    else:
        from fileq.commands.admin.dlq_text import render_report

        print_lines(render_report(report, verb, screen_of_stdout()))
    return 1 if has_failed else 0


def _delete_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "ids",
        type=utf8_text,
        nargs="*",
        metavar="ID",
        help="id of a dead job, or raw-<sha1> for bytes that are not a job; or its first characters",
    )
    parser.add_argument("--all", action="store_true", help="all dead jobs that meet the filters, the oldest first")
    parser.add_argument("--yes", action="store_true", help="confirms --all; without it the command only counts")
    add_dry_run(parser)
    add_filters(parser, time="jobs that became dead", states=("dead",))
    add_json(parser)


def _delete(invocation: Invocation) -> int:
    from fileq.commands.admin.dlq import PLACE, delete, delete_all
    from fileq.commands.admin.formatting import plural
    from fileq.queries.job_summary import resolve_ids

    options = invocation.options
    wanted = filter_of(options, invocation.loaded().config.worker.priorities)
    check_choice(options, wanted, "fileq admin dlq delete", "dead jobs")
    broker = invocation.broker()
    if not options.all:
        report = delete(broker, resolve_ids(broker, options.ids, places=[PLACE]), is_dry_run=options.dry_run)
        _note(invocation, "delete", report, wanted)
        return _print_report(invocation, report, "deleted", has_failed=report.has_failed)
    report = delete_all(broker, wanted, is_dry_run=options.dry_run or not options.yes)
    _note(invocation, "delete", report, wanted)
    _print_report(invocation, report, "deleted", has_failed=False)
    if not options.yes and not options.dry_run:
        raise ConfigError(f"dlq delete --all would delete {plural(report.count, 'dead job')}; add --yes to confirm")
    return 0


def _purge_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--yes", action="store_true", help="delete; without it the command only counts (or: --force)")
    add_json(parser)


def _purge(invocation: Invocation) -> int:
    from fileq.commands.admin.dlq import count_dead, purge
    from fileq.commands.admin.formatting import plural
    from fileq.commands.bulk_actions import JobAction
    from fileq.commands.hand_actions import note_command

    broker = invocation.broker()
    if not invocation.options.yes:
        count = count_dead(broker)
        if invocation.options.json:
            invocation.print_json({"deleted": 0, "dead": count})
        else:
            print(f"{plural(count, 'dead job')}; nothing was deleted")
        raise ConfigError("purge-dlq deletes all dead jobs permanently; add --yes to confirm")
    deleted = purge(broker)
    invocation.note(note_command, JobAction.DELETE, {}, count=deleted)
    if invocation.options.json:
        invocation.print_json({"deleted": deleted, "dead": deleted})
    else:
        print(f"{plural(deleted, 'dead job')} deleted")
    return 0


COMMANDS = (
    Command(
        words=("admin", "dlq", "list"),
        summary="list dead jobs with attempts, error and times",
        description="""\
Lists the dead-letter queue, newest first: for each job its id, when it became dead, the number of its attempts, its
queue, its file and the first line of its error. Bytes that are not a job are listed under raw-<sha1>. `fileq show ID`
shows one job in full.""",
        examples=(
            ("fileq dlq list", "the newest fifty"),
            ("fileq dlq list --match '*.pdf' --error timeout", "only jobs that match both conditions"),
        ),
        arguments=_list_arguments,
        run=_list,
        json_fields=DLQ_LIST_FIELDS,
    ),
    Command(
        words=("admin", "dlq", "groups"),
        summary="group dead jobs by their cause",
        description="""\
Groups dead jobs, the largest group first: how many there are, the newest error, when the first and the last became
dead, and the directories and extensions in which most of their files are. Jobs with the same fingerprint died of the
same cause: the same kind of error, the same handler, the same wording, raised in the same function of your code. Looks
at the newest 100,000 dead jobs and says so if there are more.""",
        examples=(
            ("fileq dlq groups", "what went wrong, and how often"),
            ("fileq dlq groups --by directory", "where the files are"),
        ),
        arguments=_groups_arguments,
        run=_groups,
        json_fields=DLQ_GROUPS_FIELDS,
    ),
    Command(
        words=("admin", "dlq", "retry"),
        summary="put dead jobs back into their queues",
        description="""\
Puts dead jobs back into the queues they came from, as new jobs with the same id: retries, recoveries and error are
reset. The command can be interrupted and repeated: no job is lost or runs twice. Bytes that are not a job are refused,
because a retry would bury them again. Exit code 1 if a job that was named by its id could not be put back.

Workers that are running use the handlers and the configuration that they have loaded. After a fix reload them (SIGHUP)
or restart them first. The command and its dry run say so if a file that they have loaded has changed: the configuration
file, or a handler in the current directory, with the modules there that it imports.""",
        examples=(
            ("fileq dlq retry 2f6c1d0e", "one job; several ids may be given"),
            ("fileq dlq retry --all --error 'connection refused' --dry-run", "show which jobs would be put back"),
            ("fileq dlq retry --all --match '/srv/inbox/2026/**'", "all jobs for files of one directory"),
            ("fileq dlq retry --all --fingerprint 3f9a", "one group of 'fileq dlq groups'"),
        ),
        arguments=_retry_arguments,
        run=_retry,
        json_fields=DLQ_REPORT_FIELDS,
        only_confirms=True,
    ),
    Command(
        words=("admin", "dlq", "delete"),
        summary="delete dead jobs permanently",
        description="""\
Deletes dead jobs and their records. Files are not touched. Exit code 1 if an id is not that of a dead job.

With --all: every dead job that meets the filters. Deleted jobs can't be put back, so --all needs --yes; without it the
command names what it would delete and ends with exit code 2.""",
        examples=(
            ("fileq dlq delete raw-da39a3ee5e6b4b0d3255bfef95601890afd80709", "bytes that are not a job"),
            ("fileq dlq delete --all --error FileVanished --yes", "all jobs whose file was gone"),
        ),
        arguments=_delete_arguments,
        run=_delete,
        json_fields=DLQ_REPORT_FIELDS,
        only_confirms=True,
    ),
    Command(
        words=("admin", "purge-dlq"),
        summary="delete all dead jobs",
        description="""\
Deletes all dead jobs with their records and prints how many. Without --yes it only prints how many there are and ends
with exit code 2.""",
        examples=(
            ("fileq purge-dlq", "show how many jobs would be deleted"),
            ("fileq purge-dlq --yes", "delete them"),
        ),
        arguments=_purge_arguments,
        run=_purge,
        json_fields=PURGE_FIELDS,
        only_confirms=True,
    ),
)
