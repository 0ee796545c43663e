"""The definition of a command, and the invocation it runs with. Must not know any command or import anything heavy."""

from __future__ import annotations

import argparse
import functools
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, Self, TypeAlias

from msgspec import Struct

if TYPE_CHECKING:
    from rich.console import Console

    from fileq.brokers.protocol import FullBroker
    from fileq.config import Loaded

_P = ParamSpec("_P")
Fields: TypeAlias = tuple[tuple[str, str], ...]
WIDTH = 80  # columns of help pages, and of tables where stdout is not a terminal


class Command(Struct, frozen=True, kw_only=True):
    """One command of fileq. The parser adds the common options to every command that `is_configured`."""

    words: tuple[str, ...]  # ("admin", "stats"), ("enqueue",)
    summary: str  # one line, for lists of commands
    description: str  # paragraphs separated by an empty line, for --help and docs/cli.md
    examples: tuple[tuple[str, str], ...]  # (command line, what it does); at least one
    arguments: Callable[[argparse.ArgumentParser], None]
    run: Callable[[Invocation], int]  # returns the exit code; imports what it needs inside
    json_fields: Fields | Callable[[], Fields] = ()  # (field, type and meaning) of the --json document; see fields
    is_listed: bool = True
    is_configured: bool = True
    only_confirms: bool = False  # its text only confirms what was done; --quiet leaves it out

    @property
    def name(self) -> str:
        return f"fileq {' '.join(self.words)}"

    @property
    def fields(self) -> Fields:
        """`json_fields`, some of which are read from the declaration of a document when they are asked for."""
        return self.json_fields() if callable(self.json_fields) else self.json_fields


class Invocation:
    """One run of a command: its options, the configuration and the broker. The last two are opened on first use."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.options = options
        self._loaded: Loaded | None = None
        self._broker: FullBroker | None = None

    def loaded(self, *sets: str) -> Loaded:
        """The configuration from --config, --set and `sets`, the flags that stand for a setting. Loaded once."""
        if self._loaded is None:
            self._loaded = self.load_again(*sets)
        return self._loaded

    def load_again(self, *sets: str) -> Loaded:
        """The configuration as it is in its sources now."""
        from fileq.config import load

        return load(self.options.config, [*self._level(), *self.options.sets, *sets])

    def _level(self) -> list[str]:
        """The log level that -v and -q stand for; --set has precedence."""
        level = "debug" if self.options.verbose else "warn" if self.options.quiet else ""
        return [f"observability.log_level={level}"] if level else []

    def broker(self, *, create: bool = False) -> FullBroker:
        """Opens the broker within two seconds or raises BrokerUnavailable. Closed when the command ends.

        A missing SQLite database is created only with `create`: a command that only reads must not leave a file."""
        if self._broker is None:
            from fileq.cli.broker_opening import open_for_operator

            self._broker = open_for_operator(self.loaded().config, create=create)
        return self._broker

    def note(self, write: Callable[Concatenate[FullBroker, _P], None], *args: _P.args, **kwargs: _P.kwargs) -> None:
        """Writes what others read about this command, by a function of commands/action_log.py.

        A broker that does not take it, such as a full one, is no error: the work of the command is done."""
        from fileq.core.errors import BrokerError

        try:
            write(self.broker(), *args, **kwargs)
        except BrokerError as error:
            print(f"fileq: warning: done, but not noted in the audit: {error}", file=sys.stderr)

    def print_json(self, value: Any) -> None:
        """Prints one JSON document: on one line, or indented if stdout is a terminal."""
        import msgspec

        from fileq.core.text import printable_json

        try:
            text = msgspec.json.encode(value)
        except UnicodeEncodeError:  # a file name that is not valid UTF-8
            text = msgspec.json.encode(_escaped(msgspec.to_builtins(value)))
        if sys.stdout.isatty():
            text = msgspec.json.format(text, indent=2)
        print(printable_json(text.decode()))

    @functools.cached_property
    def console(self) -> Console:
        """Writes colours to stdout. Markup is off: a file may be named [red]."""
        from rich.console import Console

        width = None if sys.stdout.isatty() else WIDTH
        return Console(file=sys.stdout, width=width, markup=False, emoji=False, highlight=False)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        if self._broker is not None:
            self._broker.close()


def _escaped(value: Any) -> Any:
    if isinstance(value, str):
        return value.encode(errors="backslashreplace").decode()
    if isinstance(value, dict):
        return {_escaped(key): _escaped(item) for key, item in value.items()}
    return [_escaped(item) for item in value] if isinstance(value, list | tuple) else value
