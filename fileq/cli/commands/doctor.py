"""`fileq doctor`: is everything around fileq as it should be."""

from __future__ import annotations

import argparse
import sys
import textwrap
from collections.abc import Iterator
from typing import TYPE_CHECKING

from fileq.cli.arguments import add_app_dir, add_json
from fileq.cli.command import Command, Context
from fileq.core.errors import ConfigError
from fileq.core.text import printable

if TYPE_CHECKING:
    from fileq.core.finding import Finding

_SIGNS = {True: "✓", False: "✗", None: "–"}
_STATES = {True: "ok", False: "wrong", None: "unknown"}
_COLOURS = {True: "green", False: "red", None: "yellow"}
_NAME_WIDTH = 18


def _arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "role",
        nargs="?",
        choices=("producer", "worker", "all"),
        default="all",
        metavar="ROLE",
        help="what runs on this machine: producer, worker or all",
    )
    add_app_dir(parser)
    add_json(parser)


def _run(context: Context) -> int:
    findings = []
    for finding in _findings(context):
        findings.append(finding)
        if not context.options.json:
            _print(context, finding)
    wrong = sum(finding.is_sound is False for finding in findings)
    if context.options.json:
        context.print_json({"is_ok": not wrong, "checks": list(map(_as_json, findings))})
    else:
        print("\nall is well" if not wrong else f"\n{wrong} of {len(findings)} checks found something wrong")
    return 1 if wrong else 0


def _findings(context: Context) -> Iterator[Finding]:
    from fileq.commands.doctor import examine_surroundings
    from fileq.core.finding import wrong

    try:
        loaded = context.loaded()
    except ConfigError as error:
        for problem in error.problems:
            yield wrong("configuration", problem, "correct it; 'fileq config check' looks again")
        return
    yield from examine_surroundings(loaded, context.options.role, context.options.app_dir, context.broker)


def _as_json(finding: Finding) -> dict[str, str]:
    return {
        "name": finding.name,
        "status": _STATES[finding.is_sound],
        "detail": finding.detail,
        "advice": finding.advice,
    }


def _print(context: Context, finding: Finding) -> None:
    advice = f" → {finding.advice}" if finding.advice else ""
    text = printable(f"{finding.detail}{advice}")
    start = f"{finding.name:<{_NAME_WIDTH}} "
    if sys.stdout.isatty():
        # One check is one line for programs; people see it folded.
        indent = " " * (_NAME_WIDTH + 3)
        # A path is never broken: somebody may want to copy it.
        fold = textwrap.TextWrapper(max(40, context.console.width - 1), indent, indent, break_long_words=False)
        fold.break_on_hyphens = False
        text = fold.fill(text)[len(indent) :]
    context.console.print(_SIGNS[finding.is_sound], style=_COLOURS[finding.is_sound], end=" ")
    print(start + text, flush=True)


COMMANDS = (
    Command(
        words=("doctor",),
        summary="check everything around fileq, and say what to do",
        description="""\
Checks what fileq needs around it and prints a line for each: ✓ as it should be, ✗ wrong, and what to do about it, –
can't be told or worth knowing. The exit code is 1 if anything is wrong.

Looked at: the configuration; whether the broker is reachable, and on Redis its version, eviction, persistence, clock
and our rights, on SQLite the directory, file system, disk space and schema; scan_dir and how it will be watched, with
the limits of inotify; the roots of workers, what worker.after needs; that handlers import and commands are on the PATH;
the port of /metrics.

Nothing is made or changed, but handlers are imported, as a worker would.""",
        examples=(
            ("fileq doctor", "before the first start, or when something is odd"),
            ("fileq doctor worker --app-dir /opt/handlers", "only what a worker needs"),
            ("fileq doctor --json", "for a health check in CI"),
        ),
        arguments=_arguments,
        run=_run,
        json_fields=(
            ("is_ok", "boolean: nothing is wrong; else the exit code is 1"),
            ("checks", "list: one object for each check, in their order"),
            ("checks[].name", "string: what was checked; several checks may share a name"),
            ("checks[].status", "string: ok, wrong or unknown"),
            ("checks[].detail", "string: what was found"),
            ("checks[].advice", "string: what to do; empty where there is nothing to do"),
        ),
    ),
)
