"""docs/cli.md, generated from the commands: `python -m fileq.cli.reference > docs/cli.md`, or `make docs`."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Sequence

from fileq.cli.command import Command
from fileq.cli.commands import all_commands
from fileq.cli.parser import Parser, parser_of

_HEAD = """\
# Command line

Generated from the program by `make docs`; `fileq COMMAND --help` prints the same.

`fileq COMMAND [options]`. The roles are words (`fileq worker`) or values (`fileq --role=worker`); `--role=admin stats`
is `admin stats`, and every word of `admin` also works without it: `fileq stats`, `fileq dlq list`, `fileq status [ID]`.
`--force` is taken for `--yes`. `fileq --version` prints the version.

These options belong to every command that reads the configuration, and may stand anywhere on the line:

| option | meaning |
|---|---|
| `--config FILE` | the file to read; else `$FILEQ_CONFIG`, else `./config.yaml` if there is one |
| `--set KEY=VALUE` | overrides one key; repeatable, and stronger than the environment and the file |

Data go to stdout, remarks and logs to stderr. Colours and folded lines are for terminals only, and `NO_COLOR` is
respected. With `--json` a command prints one JSON document: on one line, or indented on a terminal. Its fields are
listed below and stay what they are; new ones may be added, so a program should ignore what it does not know.

| exit code | means |
|---|---|
| 0 | done |
| 1 | failed; `fsck` found drift, `doctor` found something wrong |
| 2 | wrong usage or configuration: one line for each thing that is wrong |
| 3 | work left dead: a job died in this run of `all --once` |
| 4 | the broker can't be reached, told within two seconds; on SQLite: there is no database |
| 130 | ended by Ctrl-C |
"""


def reference(commands: Sequence[Command] | None = None) -> str:
    listed = [command for command in commands or all_commands() if command.is_listed]
    rows = [f"| [`{command.name}`](#{_anchor(command)}) | {_cell(command.summary)} |" for command in listed]
    index = "\n".join(["| command | does |", "|---|---|", *rows])
    return "\n".join([_HEAD, index, "", *(line for command in listed for line in _section(command))])


def _anchor(command: Command) -> str:
    return command.name.replace(" ", "-")


def _section(command: Command) -> Iterator[str]:
    parser = parser_of(command)
    yield from (f"## {command.name}", "", "```", usage(command, parser), "```", "", command.description, "")
    rows = [row for action in parser._actions if (row := _row(action))]
    if rows:
        yield from ("| argument | meaning |", "|---|---|", *rows, "")
    if command.json_fields:
        yield from ("With `--json`:", "", "| field | type and meaning |", "|---|---|")
        yield from (f"| `{name}` | {_cell(meaning)} |" for name, meaning in command.json_fields)
        yield ""
    yield "```sh"
    for line, meaning in command.examples:
        yield from (f"# {meaning}", line)
    yield from ("```", "")


def usage(command: Command, parser: Parser) -> str:
    """Our own line: the library's differs from one Python to the next."""
    named = [action for action in parser._actions if not action.option_strings]
    shown = {None: "{}", "?": "[{}]", "*": "[{} …]", "+": "{} […]"}
    arguments = [shown[action.nargs].format(action.metavar or action.dest) for action in named]  # type: ignore[index]
    return " ".join([command.name, *arguments, "[options]"])


def _row(action: argparse.Action) -> str:
    """Of what every command has, nothing is repeated."""
    if {"--config", "--set", "--help"} & set(action.option_strings) or action.help == argparse.SUPPRESS:
        return ""
    takes = f" {action.metavar or action.dest.upper()}" if action.option_strings and action.nargs != 0 else ""
    name = ", ".join(action.option_strings) or str(action.metavar or action.dest)
    help = action.help or ""
    default = f" (default: `{action.default}`)" if action.default and "default" not in help else ""
    return f"| `{name}{takes}` | {_cell(help)}{default} |"


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|").replace("<", "&lt;")


if __name__ == "__main__":
    sys.stdout.write(reference())
