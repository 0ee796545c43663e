"""`fileq try`: one file, its handler, here and now."""

from __future__ import annotations

import argparse

from fileq.cli.arguments import add_app_dir
from fileq.cli.command import Command, Context


def _arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("path", metavar="PATH", help="the file")
    add_app_dir(parser)


def _run(context: Context) -> int:
    from fileq.commands.trial import try_path

    return try_path(context.loaded(), context.options.path, context.options.app_dir)


COMMANDS = (
    Command(
        words=("try",),
        summary="run the handler of one file here and now, without a queue",
        description="""\
Runs the handler that would get this file, in the foreground: no queue, no retries, no record. What the handler returns
goes to stdout as JSON, everything about it to stderr. Exit code 1 if it failed.""",
        examples=(("fileq try inbox/report.pdf", "which handler gets it, what it returns, how long it takes"),),
        arguments=_arguments,
        run=_run,
    ),
)
