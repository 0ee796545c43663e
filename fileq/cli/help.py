"""The --help texts: a page for each command, and the lists of commands. Generated from the definitions."""

from __future__ import annotations

import argparse
import textwrap
from collections.abc import Sequence

from fileq.cli.command import WIDTH, Command

_SECTIONS = (
    ("Roles", lambda words: words[0] in ("producer", "worker", "all")),
    ("Commands", lambda words: words[0] not in ("producer", "worker", "all", "admin")),
    ("Operations (the word 'admin' may be left out: 'fileq stats')", lambda words: words[0] == "admin"),
)
_INDENT = " " * 6
_MEANING_COLUMN = 24
_FOOTER = """\
'fileq COMMAND --help' shows options and examples. 'fileq --role=worker' is the
same as 'fileq worker'. --version prints the version; -v logs more, -q less.

Exit codes: 0 done, 1 failed, 2 wrong usage or configuration, 3 jobs died in
this run, 4 broker unreachable.
"""


class HelpFormatter(argparse.RawDescriptionHelpFormatter):
    """Eighty columns, paragraphs preserved, and the default of every option that has one."""

    def __init__(self, prog: str) -> None:
        super().__init__(prog, max_help_position=26, width=WIDTH)

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        paragraphs = text.split("\n\n")
        return "\n\n".join(
            paragraph if _is_laid_out(paragraph) else textwrap.fill(" ".join(paragraph.split()), width)
            for paragraph in paragraphs
        )

    def _get_help_string(self, action: argparse.Action) -> str | None:
        text = action.help or ""
        if not action.default or action.default == argparse.SUPPRESS or "default" in text:
            return text
        return f"{text} (default: %(default)s)"


def _is_laid_out(paragraph: str) -> bool:
    """Whether this is a table or a list of examples, whose lines must not be wrapped."""
    return any(line.startswith("  ") for line in paragraph.splitlines())


def epilog(command: Command) -> str:
    parts = []
    if command.json_fields:
        lines = ["fields of --json:"]
        for name, meaning in command.json_fields:
            head, below = f"  {name}", " " * _MEANING_COLUMN
            if len(head) > _MEANING_COLUMN - 2:
                lines.append(head)
                head = ""
            text = textwrap.fill(meaning, WIDTH, initial_indent=below, subsequent_indent=below)
            lines.append(head + text[len(head) :])
        parts.append("\n".join(lines))
    lines = ["examples:"]
    for line, meaning in command.examples:
        lines += [f"  {line}", textwrap.fill(meaning, WIDTH, initial_indent=_INDENT, subsequent_indent=_INDENT)]
    parts.append("\n".join(lines))
    return "\n\n".join(parts)


def overview(words: tuple[str, ...], known: Sequence[Command]) -> str:
    """All commands that begin with these words, one line each."""
    listed = [command for command in known if command.is_listed and command.words[: len(words)] == words]
    name = " ".join(("fileq", *words))
    head = f"usage: {name} COMMAND [options]\n\n"
    if words:
        return head + _rows(listed) + f"\n'{name} COMMAND --help' shows options and examples.\n"
    head += "Process every file dropped into a directory: queued once, retried, never lost.\n\n"
    parts = [
        f"{title}:\n{_rows(chosen)}\n"
        for title, belongs in _SECTIONS
        if (chosen := [command for command in listed if belongs(command.words)])
    ]
    return head + "".join(parts) + _FOOTER


def _rows(commands: Sequence[Command]) -> str:
    wide = max((len(" ".join(command.words)) for command in commands), default=0)
    return "".join(f"  {' '.join(command.words):<{wide}}  {command.summary}\n" for command in commands)
