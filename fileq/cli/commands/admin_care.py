"""`fileq admin pause|resume|reprocess|fsck`: what an operator does to queues."""

from __future__ import annotations

import argparse

from fileq.cli.arguments import add_json, moment_or_ago
from fileq.cli.command import Command, Context
from fileq.cli.pages import page_of_stdout, print_lines
from fileq.commands.admin.schema import FSCK_FIELDS, PAUSE_FIELDS, REPROCESS_FIELDS


def _queue(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("queue", metavar="QUEUE", help="one of worker.priorities, such as low")
    add_json(parser)


def _set_paused(context: Context, *, paused: bool) -> int:
    from fileq.commands.admin.control import set_paused
    from fileq.commands.admin.text import plural

    queues = context.loaded().config.worker.priorities
    done = set_paused(context.broker(), context.options.queue, queues, paused=paused)
    if context.options.json:
        context.print_json(done)
        return 0
    word = "paused" if paused else "open"
    already = "" if done.has_changed else " already"
    aside = "; running jobs finish, new ones wait" if paused else ""
    print(f"{done.queue} is {word}{already}, {plural(done.waiting, 'job')} in it{aside}")
    return 0


def _reprocess_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--match", metavar="GLOB", help="only files like this: '*.pdf' by name, with a slash by the whole path"
    )
    parser.add_argument(
        "--since", type=moment_or_ago, metavar="T", help="only those modified since: 2h, 2026-11-01, RFC 3339"
    )
    parser.add_argument("--dry-run", action="store_true", help="only say what would be done")
    add_json(parser)


def _reprocess(context: Context) -> int:
    from fileq.commands.admin.reprocess import reprocess

    options, config = context.options, context.loaded().config
    done = reprocess(
        context.broker(),
        config,
        match=options.match,
        since_ms=options.since,
        is_dry_run=options.dry_run,
        here=config.paths.here,
    )
    if options.json:
        context.print_json(done)
        return 0
    from fileq.commands.admin.text import plural
    from fileq.core.text import printable

    lines = [f"missing: {printable(file.filepath)}" for file in done.files if file.result == "missing"]
    would = "would be " if done.is_dry_run else ""
    aside = f"; {plural(done.missing, 'file')} missing" if done.missing else ""
    aside += f"; {plural(done.unfinished, 'file')} left out, still waiting or running" if done.unfinished else ""
    print_lines([*lines, f"{plural(done.enqueued, 'file')} {would}enqueued again{aside}"])
    return 0


def _fsck_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--repair", action="store_true", help="put back what can be put back, and say what was done")
    add_json(parser)


def _fsck(context: Context) -> int:
    from fileq.commands.admin.fsck import fsck

    config = context.loaded().config
    report = fsck(context.broker(), config, is_repairing=context.options.repair, here=config.paths.here)
    if context.options.json:
        context.print_json(report)
    else:
        from fileq.commands.admin.fsck.report import render

        print_lines(render(report, page_of_stdout()))
    return 0 if report.is_clean else 1


COMMANDS = (
    Command(
        words=("admin", "pause"),
        summary="stop claiming from a queue",
        description="""\
Workers stop claiming from the queue within a second. Running jobs finish, and jobs still come in and wait. It stays so,
across restarts, until `fileq resume`.""",
        examples=(("fileq pause low", "only urgent jobs for now"),),
        arguments=_queue,
        run=lambda context: _set_paused(context, paused=True),
        json_fields=PAUSE_FIELDS,
    ),
    Command(
        words=("admin", "resume"),
        summary="claim from a queue again",
        description="Workers claim from the queue again, at once. One that was not paused stays as it is.",
        examples=(("fileq resume low", "go on"),),
        arguments=_queue,
        run=lambda context: _set_paused(context, paused=False),
        json_fields=PAUSE_FIELDS,
    ),
    Command(
        words=("admin", "reprocess"),
        summary="enqueue known versions of files again",
        description="""\
Enqueues the newest known version of each file again, whether its job was completed or died: after a handler was mended,
for example. Files that are gone are reported and left out; so are files whose last job has not ended yet.""",
        examples=(
            ("fileq reprocess --match '*.pdf' --since 2h --dry-run", "which would it be?"),
            ("fileq reprocess --match '/srv/inbox/2026/**' --since 2026-11-01", "all of a directory, modified since"),
        ),
        arguments=_reprocess_arguments,
        run=_reprocess,
        json_fields=REPROCESS_FIELDS,
    ),
    Command(
        words=("admin", "fsck"),
        summary="prove that nothing was lost",
        description="""\
Proves, on a live system, that every job that was taken in is accounted for: produced + adopted = pending + scheduled +
retrying + running + dead + completed + cancelled + deleted; and that lists, records, slots and counters agree. A job is
named only if it is wrong at two looks, so it takes some seconds when something is. Exit code 1 if anything is wrong.

With --repair: jobs of slots that died are given back; jobs whose record says that they wait or run, and that are
nowhere, are put back; elements without a record get one; files whose job left no trace are enqueued again; and what is
then still out of balance is counted as deleted or adopted. Each is one step that looks again first; it can be
interrupted and repeated, with workers running. Says what it did; exit code 0 if all is well after it.""",
        examples=(
            ("fileq fsck", "is anything lost?"),
            ("fileq fsck --repair", "put it back"),
        ),
        arguments=_fsck_arguments,
        run=_fsck,
        json_fields=FSCK_FIELDS,
    ),
)
