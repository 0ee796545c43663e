"""`fileq admin reprocess|fsck`: enqueue known files again, check the broker's consistency and repair it."""

from __future__ import annotations

import argparse

from fileq.cli.arguments import add_app_dir, add_json
from fileq.cli.command import Command, Invocation
from fileq.cli.filters import ENDED, add_dry_run, add_filters, check_filtered, filter_of
from fileq.cli.reload_note import print_reload_note
from fileq.cli.screen import print_lines, screen_of_stdout
from fileq.commands.admin.json_schema import FSCK_FIELDS, REPROCESS_FIELDS


def _reprocess_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--all", action="store_true", help="all known files; needed if no filter is given")
    add_dry_run(parser)
    add_filters(parser, time="files modified", states=ENDED, has_batch=False)
    add_json(parser)


def _reprocess(invocation: Invocation) -> int:
    from fileq.commands.admin.reprocess import render, reprocess
    from fileq.commands.hand_actions import note_reprocess

    options, config = invocation.options, invocation.loaded().config
    wanted = filter_of(options, config.worker.priorities)
    check_filtered(options, wanted, "fileq admin reprocess", "files")
    report = reprocess(
        invocation.broker(),
        config,
        wanted=wanted,
        is_dry_run=options.dry_run,
        here=config.paths.here,
    )
    if not options.dry_run:
        invocation.note(note_reprocess, report.enqueued, wanted)
    if report.enqueued:
        print_reload_note(invocation)
    if options.json:
        invocation.print_json(report)
    else:
        print_lines(render(report))
    return 0


def _fsck_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--repair", action="store_true", help="repair what can be repaired, and report it")
    add_app_dir(parser)
    add_json(parser)


def _fsck(invocation: Invocation) -> int:
    from fileq.commands.admin.fsck import fsck

    config = invocation.loaded().config
    options = invocation.options
    report = fsck(
        invocation.broker(), config, is_repairing=options.repair, here=config.paths.here, app_dir=options.app_dir
    )
    if invocation.options.json:
        invocation.print_json(report)
    else:
        from fileq.commands.admin.fsck.report import render

        print_lines(render(report, screen_of_stdout()))
    return 0 if report.is_clean else 1


COMMANDS = (
    Command(
        words=("admin", "reprocess"),
        summary="enqueue known files again",
        description="""\
Enqueues the newest known version of each file again, whether its last job was completed or is dead; for example after a
handler was fixed. Skips and reports files that no longer exist, and files whose last job has not ended yet. The line
must give a filter or --all.

--match, --since and --until are about the files; --state, --type, --error and --queue are about the last job of each
file. A job whose record has expired (worker.history_ttl) meets none of these. A pattern with a slash also matches the
path that worker.after moved a file to, until the record of its job expires.""",
        examples=(
            ("fileq reprocess --match '*.pdf' --since 2h --dry-run", "show which files would be enqueued"),
            ("fileq reprocess --state completed --queue high", "files whose last job was completed in this queue"),
            (
                "fileq reprocess --match '/srv/inbox/2026/**' --since 2026-11-01",
                "all files of a directory modified since then",
            ),
            ("fileq reprocess --all --dry-run", "show that every known file would be enqueued"),
        ),
        arguments=_reprocess_arguments,
        run=_reprocess,
        json_fields=REPROCESS_FIELDS,
        only_confirms=True,
    ),
    Command(
        words=("admin", "fsck"),
        summary="prove that no job was lost, and repair",
        description="""\
Proves, while workers are running, that every job that entered the broker is accounted for: produced + adopted = pending
+ scheduled + retrying + running + dead + completed + cancelled + deleted. Also checks that lists, records, slots and
counters agree. Every problem is checked twice before it is reported, so a check that finds one takes some seconds. Exit
code 1 if there is a problem.

With --repair: jobs of dead slots return to their queues; jobs that are missing from the list that their record names
are restored; jobs without a record get one; files whose job left no trace are enqueued again; the difference that
remains is counted as deleted or adopted. Each repair is one atomic step that checks again first. The command can be
interrupted and repeated while workers are running. It lists what it did. Exit code 0 if no problem remains.""",
        examples=(
            ("fileq fsck", "is anything lost?"),
            ("fileq fsck --repair", "repair it"),
        ),
        arguments=_fsck_arguments,
        run=_fsck,
        json_fields=FSCK_FIELDS,
    ),
)
