"""What can be typed at each position of a command line, read from the parsers."""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence

from msgspec import Struct

from fileq.cli.command import Command
from fileq.cli.filters import StateOption
from fileq.cli.parser import ROLES, parser_of

_PLACES = ("dead_letter", "completed", "scheduled", "cancelled")
_KINDS = {"FILE": "file", "PATH": "file", "DIR": "directory", "KEY": "key", "KEY=VALUE": "assignment"}


class Value(Struct, frozen=True):
    """The value of an option or argument: one of some words, a file, a directory, a key, a key=value, or anything."""

    kind: str
    words: tuple[str, ...] = ()


class Option(Struct, frozen=True):
    flags: tuple[str, ...]
    help: str
    value: Value | None = None  # None: a flag


class CommandSyntax(Struct, frozen=True):
    """One command: its words joined by blanks, its options, and the kind of its arguments."""

    at: str
    options: tuple[Option, ...]
    argument: Value | None = None


class Table:
    """`following` maps the words typed so far to the words that may come next, each with a help text.

    `offered` is the same with the commands that work without `admin`. `queues` and `schedules` are names of the
    configuration."""

    def __init__(self, commands: Sequence[Command], queues: Sequence[str], schedules: Sequence[str] = ()) -> None:
        listed = [command for command in commands if command.is_listed]
        names = {"QUEUE": tuple(queues), "PLACE": (*queues, *_PLACES), "SCHEDULE": tuple(schedules)}
        self.commands = [_syntax(command, names) for command in listed]
        self.following = _following(listed)
        self.short = [word for word, _ in self.following.get("admin", [])]  # work without `admin` too
        self.offered = {**self.following, "": [*self.following.get("", []), *self.following.get("admin", [])]}
        self.everywhere = (
            Option(("--role",), "the role, instead of a command", Value("words", ROLES)),
            Option(("--config",), "configuration file", Value("file")),
            Option(("--set",), "override one setting", Value("assignment")),
            Option(("-v", "--verbose"), "log level debug"),
            Option(("-q", "--quiet"), "log level warn"),
            Option(("--version",), "print the version"),
            Option(("-h", "--help"), "print help"),
        )
        self.keys = _keys()


def _syntax(command: Command, names: Mapping[str, tuple[str, ...]]) -> CommandSyntax:
    actions = parser_of(command).actions
    named = [action for action in actions if action.option_strings]
    options = tuple(Option(tuple(action.option_strings), _help(action), _value(action, names)) for action in named)
    argument = next((_value(action, names) for action in actions if not action.option_strings), None)
    return CommandSyntax(" ".join(command.words), options, argument)


def _help(action: argparse.Action) -> str:
    return (action.help or "").replace("%(default)s", str(action.default))


def _value(action: argparse.Action, names: Mapping[str, tuple[str, ...]]) -> Value | None:
    if action.nargs == 0:
        return None
    if action.choices is not None:
        return Value("words", tuple(map(str, action.choices)))
    if isinstance(action.type, StateOption):
        return Value("words", action.type.words)
    words = names.get(str(action.metavar))
    return Value("words", words) if words is not None else Value(_KINDS.get(str(action.metavar), "any"))


def _following(commands: Sequence[Command]) -> dict[str, list[tuple[str, str]]]:
    found: dict[str, dict[str, str]] = {}
    for command in commands:
        for i, word in enumerate(command.words):
            at = " ".join(command.words[:i])
            if i + 1 == len(command.words):
                found.setdefault(at, {})[word] = command.summary
            else:
                inner = [other.words[i + 1] for other in commands if other.words[: i + 1] == command.words[: i + 1]]
                found.setdefault(at, {}).setdefault(word, ", ".join(dict.fromkeys(inner)))
    return {at: list(words.items()) for at, words in found.items()}


def _keys() -> list[str]:
    from fileq.config.schema import every_key, is_setting

    return [path for path, key in every_key().items() if is_setting(key)]
