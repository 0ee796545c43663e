"""What a command is, and what it is given to run with. Knows no command and imports nothing heavy by itself."""

from __future__ import annotations

import argparse
import functools
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Self

from msgspec import Struct

if TYPE_CHECKING:
    from rich.console import Console

    from fileq.brokers.protocol import FullBroker
    from fileq.config import Loaded

WIDTH = 80  # of what is not printed to a terminal


class Command(Struct, frozen=True, kw_only=True):
    """One thing fileq does. `--config` and `--set` are added to the arguments of every command that `is_configured`."""

    words: tuple[str, ...]  # ("admin", "stats"), ("enqueue",)
    summary: str  # one line, for lists
    description: str  # paragraphs with an empty line between them, for --help and the reference
    examples: tuple[tuple[str, str], ...]  # (command line, what it does); at least one
    arguments: Callable[[argparse.ArgumentParser], None]
    run: Callable[[Context], int]  # gives the exit code; imports what it needs inside
    json_fields: tuple[tuple[str, str], ...] = ()  # (field, its type and meaning) of what --json prints
    is_listed: bool = True
    is_configured: bool = True

    @property
    def name(self) -> str:
        return f"fileq {' '.join(self.words)}"


class Context:
    """What a command runs with: its options, and the configuration and the broker, each made when first asked for."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.options = options
        self._loaded: Loaded | None = None
        self._broker: FullBroker | None = None

    def loaded(self, *sets: str) -> Loaded:
        """The configuration by --config and --set, and by what flags of the command stand for; loaded once."""
        if self._loaded is None:
            from fileq.config import load

            self._loaded = load(self.options.config, [*self.options.sets, *sets])
        return self._loaded

    def broker(self, *, create: bool = False) -> FullBroker:
        """The broker, within two seconds of the start or not at all. Closed by main when the command ends.

        An SQLite database that is not there is made only with `create`: looking must not leave traces."""
        if self._broker is None:
            from fileq.cli.opening import open_for_operator

            self._broker = open_for_operator(self.loaded().config, create=create)
        return self._broker

    def print_json(self, value: Any) -> None:
        """One JSON document on stdout, for programs on one line, for people on many."""
        import msgspec

        try:
            text = msgspec.json.encode(value)
        except UnicodeEncodeError:  # a name that is no text in UTF-8
            text = msgspec.json.encode(_escaped(msgspec.to_builtins(value)))
        if sys.stdout.isatty():
            text = msgspec.json.format(text, indent=2)
        print(text.decode())

    @functools.cached_property
    def console(self) -> Console:
        """For tables and colours on stdout. Text is shown as it is: a file may be called [red]."""
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
