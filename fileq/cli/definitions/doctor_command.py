"""`fileq doctor`: check the environment of fileq, one line for each check."""

from __future__ import annotations

import argparse
import sys
import textwrap
from collections.abc import Iterator
from typing import TYPE_CHECKING

from fileq.cli.arguments import add_app_dir, add_json
from fileq.cli.command import Command, Invocation
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
        choices=("producer", "worker", "all", "serve", "start"),
        default="all",
        metavar="ROLE",
        help="the role that runs on this machine: producer, worker, all, serve or start",
    )
    add_app_dir(parser)
    add_json(parser)


def _run(invocation: Invocation) -> int:
    findings = []
    for finding in _findings(invocation):
        findings.append(finding)
        if not invocation.options.json:
            _print(invocation, finding)
    failed = sum(finding.is_sound is False for finding in findings)
    if invocation.options.json:
        invocation.print_json({"is_ok": not failed, "checks": list(map(_as_json, findings))})
    else:
        print("\nno problem found" if not failed else f"\n{failed} of {len(findings)} checks found a problem")
    return 1 if failed else 0


def _findings(invocation: Invocation) -> Iterator[Finding]:
    from fileq.commands.doctor import check_environment
    from fileq.core.finding import wrong

    try:
        loaded = invocation.loaded()
    except ConfigError as error:
        for problem in error.problems:
            yield wrong("configuration", problem, "correct it, then run 'fileq config check'")
        return
    yield from check_environment(loaded, invocation.options.role, invocation.options.app_dir, invocation.broker)


def _as_json(finding: Finding) -> dict[str, str]:
    return {
        "name": finding.name,
        "status": _STATES[finding.is_sound],
        "detail": finding.detail,
        "advice": finding.advice,
    }


def _print(invocation: Invocation, finding: Finding) -> None:
    advice = f" → {finding.advice}" if finding.advice else ""
    text = printable(f"{finding.detail}{advice}")
    start = f"{finding.name:<{_NAME_WIDTH}} "
    if sys.stdout.isatty():
        # Wrapped on a terminal only: programs read one line for each check.
        indent = " " * (_NAME_WIDTH + 3)
        # Paths are never broken, so that they can be copied.
        wrapper = textwrap.TextWrapper(max(40, invocation.console.width - 1), indent, indent, break_long_words=False)
        wrapper.break_on_hyphens = False
        text = wrapper.fill(text)[len(indent) :]
    invocation.console.print(_SIGNS[finding.is_sound], style=_COLOURS[finding.is_sound], end=" ")
    print(start + text, flush=True)


COMMANDS = (
    Command(
        words=("doctor",),
        summary="check the environment and say how to fix it",
        description="""\
Checks everything that fileq needs and prints one line for each check: ✓ ok; ✗ a problem, with advice; – unknown, or a
note. Exit code 1 if there is a problem.

Checks the configuration; the broker: on Redis its version, eviction, persistence, clock and the permissions of our
user, on SQLite the directory, file system, disk space and schema; producer.scan_dir and how it is watched, with the
limits of inotify; the roots from which workers read files, and what worker.after needs; that handlers can be imported
and programs are on the PATH; the port of /metrics. With serve or start, or with all if a setting of the server is set:
the address of the server, its keys, whether they are sent unencrypted, and server.upload_dir.

Creates and changes nothing. Handlers are imported, as a worker would do.""",
        examples=(
            ("fileq doctor", "before the first start, or when something does not work"),
            ("fileq doctor worker --app-dir /opt/handlers", "only what a worker needs"),
            ("fileq doctor serve", "what the REST server needs: address, keys, proxy, uploads"),
            ("fileq doctor --json", "for a health check in CI"),
        ),
        arguments=_arguments,
        run=_run,
        json_fields=(
            ("is_ok", "boolean: no check found a problem; else the exit code is 1"),
            ("checks", "list: one object for each check, in the order in which they ran"),
            ("checks[].name", "string: what was checked; several checks may share a name"),
            ("checks[].status", "string: ok, wrong or unknown"),
            ("checks[].detail", "string: what was found"),
            ("checks[].advice", "string: what to do; empty if nothing needs to be done"),
        ),
    ),
)
