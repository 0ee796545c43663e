"""`fileq enqueue`: jobs that a person or a script asks for."""

from __future__ import annotations

import argparse
import sys
from typing import TYPE_CHECKING

from fileq.cli.arguments import add_json, duration, moment, whole
from fileq.cli.command import Command, Context
from fileq.core.errors import ConfigError

if TYPE_CHECKING:
    from fileq.brokers.types import Entry

PORTION = 500  # jobs of one call


def _arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("subjects", nargs="*", metavar="PATH", help='files; or commands, as \'{"command": "…"}\'')
    parser.add_argument("--type", metavar="T", help="a job of this type, about no file")
    parser.add_argument("--payload", metavar="JSON", help="what the handler of that type gets as job.payload")
    parser.add_argument("--priority", metavar="P", help="its queue (default: as the producer would choose)")
    when = parser.add_mutually_exclusive_group()
    when.add_argument("--delay", type=duration, default=0.0, metavar="D", help="not before this long from now")
    when.add_argument("--at", type=moment, default=0, metavar="TIME", help="not before this time: 2026-01-31T18:00")
    parser.add_argument("--max-retries", type=whole(), metavar="N", help="in place of worker.max_retries")
    parser.add_argument("--timeout", type=duration, metavar="D", help="of one attempt, in place of worker.timeout")
    parser.add_argument("--id", default="", metavar="ID", help="the job's; queues nothing if there is one of this id")
    add_json(parser)


def _run(context: Context) -> int:
    from fileq.commands.enqueue import COMMAND_TYPE, Wish, entries_for, entry_of_type

    options = context.options
    _check(options)
    config = context.loaded().config
    wish = Wish(
        priority=options.priority or "",
        delay_ms=round(options.delay * 1000),
        at_ms=options.at,
        max_retries=options.max_retries,
        timeout_s=options.timeout,
        id=options.id,
        is_traced=config.observability.tracing.enabled,
    )
    if options.type is not None:
        entries = [entry_of_type(config, options.type, options.payload, wish)]
    else:
        entries = entries_for(config, options.subjects, wish)
    if any(entry.job.type == COMMAND_TYPE for entry in entries) and not config.worker.allow_commands:
        _remark("worker.allow_commands is false here; a worker with this setting will not run the command")
    return _enqueue(context, entries)


def _enqueue(context: Context, entries: list[Entry]) -> int:
    """In portions; after an outage in the middle, what went before it is told. Printed last, because whoever reads it
    may leave early."""
    from fileq.runtime.produce_spans import ProduceSpans

    broker = context.broker(create=True)
    spans = ProduceSpans(context.loaded().config)
    jobs: list[dict[str, str | None]] = []
    try:
        for start in range(0, len(entries), PORTION):
            part = entries[start : start + PORTION]
            fates = broker.enqueue(part).results
            jobs += map(_as_json, part, fates)
            spans.add([entry for entry, fate in zip(part, fates, strict=True) if fate == "enqueued"])
    finally:
        try:
            if unsent := spans.send():
                _remark(f"not all spans of these jobs were sent: {unsent}")
        finally:
            _tell(context, jobs, entries[0].job.batch_id)
    return 0


def _tell(context: Context, jobs: list[dict[str, str | None]], batch_id: str | None) -> None:
    if context.options.json:
        if jobs:
            context.print_json({"jobs": jobs, "batch_id": batch_id})
        return
    for job in jobs:
        print(job["id"])
        if job["fate"] == "duplicate":
            _remark(f"there is a job {job['id']} already; nothing was enqueued")


def _as_json(entry: Entry, fate: str) -> dict[str, str | None]:
    job = entry.job
    return {
        "id": job.id,
        "fate": fate,
        "filepath": job.filepath,
        "type": job.type,
        "priority": job.priority,
        "process_at": job.process_at,
    }


def _check(options: argparse.Namespace) -> None:
    if options.type is not None and options.subjects:
        raise ConfigError(f"--type is for jobs about no file; leave it out, or {options.subjects[0]!r}")
    if options.type is None and options.payload is not None:
        raise ConfigError("--payload needs --type, which says who gets it; see 'fileq enqueue --help'")
    if options.type is None and not options.subjects:
        raise ConfigError("nothing to enqueue; name files, or give --type; see 'fileq enqueue --help'")
    if options.timeout == 0:
        raise ConfigError("--timeout is 0; it must be longer")


def _remark(text: str) -> None:
    print(f"fileq: {text}", file=sys.stderr)


COMMANDS = (
    Command(
        words=("enqueue",),
        summary="queue jobs for files, commands or anything with a handler",
        description="""\
Queues one job for each file, whether or not its version was processed before, and prints the ids, one a line. The
version is remembered as if a producer had found it, so a running producer does not queue it again. Files must lie below
worker.allowed_roots, or below producer.scan_dir where these are not set.

With --type: one job about no file, for the handler of that type. An argument that begins with a brace is a command, run
by workers that have worker.allow_commands.

Everything is checked before anything is queued. After a lost connection give the same --id again: a job that is
there already is not queued twice, its id is printed, and the exit code is 0.""",
        examples=(
            ("fileq enqueue inbox/a.pdf inbox/b.pdf", "process these files (again)"),
            ("fileq enqueue inbox/big.zip --priority low --delay 10m", "later, and behind the urgent ones"),
            (
                "fileq enqueue --type report --payload '{\"month\": 1}' --id report-2026-01",
                "a job about no file, at most once under this id",
            ),
            ('fileq enqueue \'{"command": "df -h"}\' --timeout 30s', "a command for the shell of a worker"),
        ),
        arguments=_arguments,
        run=_run,
        json_fields=(
            ("jobs", "list: one object for each job, in the order of the arguments"),
            ("jobs[].id", "string: the job's id"),
            ("jobs[].fate", "string: enqueued, or duplicate if a job of this id was there already"),
            ("jobs[].filepath", "string: the file as the producer sees it; empty for a job about no file"),
            ("jobs[].type", "string or null: the type of a job about no file"),
            ("jobs[].priority", "string: the queue it went to"),
            ("jobs[].process_at", "string or null: not before this time (RFC 3339, UTC)"),
            ("batch_id", "string or null: what the jobs of one call have in common; null for a single one"),
        ),
    ),
)
