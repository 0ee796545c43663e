"""`fileq try`: run the handler of one file in the foreground."""

from __future__ import annotations

import argparse

from fileq.cli.arguments import add_app_dir
from fileq.cli.command import Command, Invocation


def _arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("path", metavar="PATH", help="the file")
    add_app_dir(parser)


def _run(invocation: Invocation) -> int:
    from fileq.commands.try_handler import try_path

    return try_path(invocation.loaded(), invocation.options.path, invocation.options.app_dir)


COMMANDS = (
    Command(
        words=("try",),
        summary="run the handler of one file in the foreground, without a queue",
        description="""\
Runs the handler that a worker would choose for this file, in the foreground: no queue, no retries, no record. Prints
the handler's result to stdout as JSON, and everything else to stderr. Exit code 1 if the handler failed.""",
        examples=(("fileq try inbox/report.pdf", "which handler is chosen, what it returns, how long it takes"),),
        arguments=_arguments,
        run=_run,
    ),
)
