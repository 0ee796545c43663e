"""What the Tab key offers. The script of a shell asks `fileq __complete SHELL WORD…`; the last word is the one that is
being typed. The answer follows from the parsers of the commands; names of queues and schedules are those of the
configuration.

The first line of an answer is its kind: `words`, `keys` (words after which no blank follows), `files` or `directories`.
The others are the candidates with a tab and a help text, or for files the part of the word that is no path
(`--config=`): the shell completes paths itself.

Must never open a broker or import what a directory holds. A name that a shell would have to quote is not offered.
"""

from __future__ import annotations

import argparse
import os
import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from msgspec import Struct

from fileq.cli.arguments import StatusOption
from fileq.cli.command import Command
from fileq.cli.parser import ROLES, Parser, add_common, all_commands, find_words, help_of, parser_of
from fileq.core.errors import ConfigError

if TYPE_CHECKING:
    from fileq.config import Config

SHELLS = ("bash", "zsh", "fish")
_PLACES = ("dead_letter", "completed", "scheduled", "cancelled")
_PATHS = {"FILE": "files", "PATH": "files", "DIR": "directories"}
_SAFE = re.compile(r"[\w.@%+,/-][\w.@%+:,/=-]*")  # no shell gives a meaning to these


class Offer(Struct, frozen=True):
    """`words` have help texts. `prefix` is the part of the typed word that stands before them."""

    kind: str = "words"
    words: Mapping[str, str] = {}
    prefix: str = ""

    def printed(self, shell: str, typed: str) -> str:
        if self.kind not in ("words", "keys"):
            return f"{self.kind}\n{self.prefix}\n"
        prefix = "" if shell == "bash" else self.prefix  # bash completes what follows the =
        texts = {word: "" if shell == "bash" else f"\t{' '.join(help.split())}" for word, help in self.words.items()}
        fitting = [word for word in texts if word.startswith(typed) and _SAFE.fullmatch(word)]
        return "".join((f"{self.kind}\n", *(f"{prefix}{word}{texts[word]}\n" for word in fitting)))


def script(shell: str) -> str:
    """What makes this shell ask `fileq __complete`."""
    from importlib import resources  # slow to import

    return (resources.files(__package__) / "completion_scripts" / f"fileq.{shell}").read_text()


def answer(shell: str, words: Sequence[str]) -> str:
    """The lines for this command line. Raises ConfigError for one that can't be completed."""
    *before, current = _rejoined(words) if shell == "bash" else words
    flag, sign, value = current.partition("=")
    if sign and flag.startswith("--"):
        return _after(before, flag, f"{flag}=").printed(shell, value)
    return _after(before, current).printed(shell, current)


def _rejoined(words: Sequence[str]) -> list[str]:
    """bash splits words at `=`."""
    found: list[str] = []
    for i, word in enumerate(words):
        if i and "=" in (word, words[i - 1]):
            found[-1] += word
        else:
            found.append(word)
    return found


def _after(before: list[str], current: str, prefix: str = "") -> Offer:
    """What may follow these words. With a `prefix`, `current` is the option that it ends."""
    if before[-1:] == ["--role"]:
        return Offer(words=dict.fromkeys(ROLES, ""))
    found = find_words(before, all_commands())
    command = next((command for command in all_commands() if command.words == found.words), None)
    parser = parser_of(command) if command is not None else _without_command()
    options = {flag: action for action in parser.actions for flag in action.option_strings}
    line = _Line(parser, [*found.options, *found.tail])
    if prefix:
        return _value(options.get(current), line, prefix)
    if current.startswith("-") and not line.has_dashes:
        return Offer(words={flag: help_of(action) for flag, action in options.items()})
    if line.open_option:
        return _value(options.get(line.open_option), line)
    if command is None:
        return Offer(words={} if found.tail else _following(found.words))
    named = [action for action in parser.actions if not action.option_strings]
    at = min(len(line.arguments), len(named) - 1)
    is_full = not named or (at < len(line.arguments) and named[at].nargs not in ("*", "+"))
    return Offer() if is_full else _value(named[at], line)


class _Line:
    """What the words before the one that is typed are: options with their values, and arguments."""

    def __init__(self, parser: Parser, tokens: list[str]) -> None:
        self.configs: list[str] = []
        self.sets: list[str] = []
        self.arguments: list[str] = []
        self.open_option = ""  # the last word, if it is an option that takes a value
        self.has_dashes = "--" in tokens
        while tokens:
            token = tokens.pop(0)
            if token == "--":
                self.arguments += tokens
                break
            if not token.startswith("-") or token == "-":
                self.arguments.append(token)
                continue
            flag, sign, value = token.partition("=")
            if not sign and parser.most_values(flag):
                if not tokens:
                    self.open_option = flag
                    break
                value = tokens.pop(0)
            {"--config": self.configs, "--set": self.sets}.get(flag, []).append(value)

    def config(self) -> Config:
        """The configuration that the line names; the defaults if it is invalid, or a pipe, which is read once."""
        from fileq.config import Config, load

        named = self.configs[-1] if self.configs else None
        if named is not None and not os.path.isfile(named):
            return Config()
        try:
            return load(named, self.sets).config
        except ConfigError:
            return Config()


def _without_command() -> Parser:
    parser = Parser(prog="fileq", allow_abbrev=False, add_help=False)
    parser.add_argument("--role", choices=ROLES, help="the role, instead of a command")
    add_common(parser)
    parser.add_argument("--version", action="store_true", help="print the version")
    parser.add_argument("-h", "--help", action="store_true", help="show help")
    return parser


def _following(words: tuple[str, ...]) -> dict[str, str]:
    """The words that may come next in the name of a command; those after `admin` work without it."""
    found: dict[str, str] = {}
    for command in all_commands():
        for start in (words, ("admin",)) if not words else (words,):
            if command.words[: len(start)] == start and len(command.words) > len(start):
                found.setdefault(command.words[len(start)], _summary(command, len(start) + 1))
    return found


def _summary(command: Command, length: int) -> str:
    if len(command.words) == length:
        return command.summary
    start = command.words[:length]
    return ", ".join(dict.fromkeys(other.words[length] for other in all_commands() if other.words[:length] == start))


def _value(action: argparse.Action | None, line: _Line, prefix: str = "") -> Offer:
    if action is None or action.nargs == 0:
        return Offer()
    metavar = str(action.metavar)
    names: Sequence[str] = ()
    if metavar in _PATHS:
        return Offer(_PATHS[metavar], prefix=prefix)
    if metavar in ("KEY", "KEY=VALUE"):
        from fileq.config.schema import every_key, is_setting

        sign = "=" if metavar == "KEY=VALUE" else ""
        keys = {f"{path}{sign}": "" for path, key in every_key().items() if is_setting(key)}
        return Offer("keys" if sign else "words", keys, prefix)
    if action.choices is not None:
        names = [str(choice) for choice in action.choices]
    elif isinstance(action.type, StatusOption):
        names = action.type.words
    elif metavar in ("QUEUE", "PLACE"):
        names = (*line.config().worker.priorities, *(_PLACES if metavar == "PLACE" else ()))
    elif metavar == "SCHEDULE":
        names = tuple(line.config().schedules)
    return Offer(words=dict.fromkeys(names, ""), prefix=prefix)
