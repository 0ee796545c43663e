"""Writes the tables of docs/cli.md from the definitions of the commands: `make docs`."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from pathlib import Path

from fileq.cli.command import Command
from fileq.cli.definitions import all_commands
from fileq.cli.parser import Parser, help_of, parser_of

_COMMON = {"--config", "--set", "--help", "--verbose", "--quiet"}
_INDEX = "| command | purpose |"


def reference(page: str) -> str:
    """docs/cli.md with its tables brought up to date; what stands before the first of them is kept."""
    anchors = ((command, command.name.replace(" ", "-")) for command in all_commands())
    rows = [f"| [`{command.name}`](#{anchor}) | {_cell(command.summary)} |" for command, anchor in anchors]
    sections = [line for command in all_commands() for line in _section(command)]
    return "\n".join([page.partition(_INDEX)[0] + _INDEX, "|---|---|", *rows, "", *sections])


def _section(command: Command) -> Iterator[str]:
    parser = parser_of(command)
    yield from (f"## {command.name}", "", "```", usage(command, parser), "```", "", command.description, "")
    rows = [row for action in parser.actions if (row := _row(action))]
    if rows:
        yield from ("| argument | meaning |", "|---|---|", *rows, "")
    if command.fields:
        yield from ("With `--json`:", "", "| field | type and meaning |", "|---|---|")
        yield from (f"| `{name}` | {_cell(meaning)} |" for name, meaning in command.fields)
        yield ""
    yield "```sh"
    for line, meaning in command.examples:
        yield from (f"# {meaning}", line)
    yield from ("```", "")


def usage(command: Command, parser: Parser) -> str:
    """The usage line. Not argparse's own, which differs between versions of Python."""
    named = [action for action in parser.actions if not action.option_strings]
    shown = {None: "{}", "?": "[{}]", "*": "[{} …]", "+": "{} […]"}
    arguments = [shown[action.nargs].format(action.metavar or action.dest) for action in named]  # type: ignore[index]
    return " ".join([command.name, *arguments, "[options]"])


def _row(action: argparse.Action) -> str:
    """The table row of one argument; "" for the options that every command has."""
    if _COMMON & set(action.option_strings) or action.help == argparse.SUPPRESS:
        return ""
    takes = f" {action.metavar or action.dest.upper()}" if action.option_strings and action.nargs != 0 else ""
    name = ", ".join(action.option_strings) or str(action.metavar or action.dest)
    return f"| `{name}{takes}` | {_cell(help_of(action))} |"


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|").replace("<", "&lt;")


if __name__ == "__main__":
    path = Path(sys.argv[1])
    path.write_text(reference(path.read_text()))
