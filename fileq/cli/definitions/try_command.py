"""`fileq try`: run the handler of one file in the foreground."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from fileq.cli.arguments import APP_DIR, argument
from fileq.cli.command import Invocation, command

if TYPE_CHECKING:
    from fileq.config import Loaded


@command(
    "try",
    "run the handler of one file here, without a queue",
    argument("path", metavar="PATH", help="the file"),
    APP_DIR,
    examples=(
        ("fileq try inbox/report.pdf", "which handler is chosen, what it returns, how long it takes"),
        ("fileq try ~/Desktop/sample.pdf", "a sample that is not in scan_dir"),
    ),
)
def _run(invocation: Invocation) -> int:
    """Runs the handler that a worker would choose for this file, as a worker would: in a child process, with the same
    timeout and memory limit. There is no queue, no retry and no record. Prints the handler's result to stdout as JSON,
    and everything else to stderr. For a file outside of the roots, routes are matched against its name only. Ctrl-C
    ends the handler and the processes that it started. Exit code 1 if the handler failed.

    The handler is loaded as it is in its file now. Workers that are running use the one that they have loaded,
    until SIGHUP or a restart."""
    return try_and_print(invocation.loaded(), invocation.options.path, invocation.options.app_dir)


def try_and_print(loaded: Loaded, path: str, app_dir: str = "") -> int:
    """Prints the result to stdout and everything else to stderr; returns 0, or 1 if the handler failed."""
    import msgspec

    from fileq.commands.try_handler import try_path
    from fileq.core.text import printable_json, printable_lines

    trial = try_path(loaded, path, app_dir, announce=_remark)
    if trial.stack:
        print(printable_lines(trial.stack), file=sys.stderr)
    if trial.failure:
        _remark(f"failed after {trial.took}, {trial.failure}")
        return 1
    if trial.result:
        print(printable_json(msgspec.json.format(trial.result, indent=2).decode()))
    if trial.warning:
        _remark(trial.warning)
    for line in trial.made:
        _remark(line)
    _remark(f"done in {trial.took}")
    return 0


def _remark(text: str) -> None:
    from fileq.core.text import printable

    print(printable(text), file=sys.stderr)
