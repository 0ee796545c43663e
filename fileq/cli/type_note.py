"""The note of commands that make jobs of a type which no worker takes: another machine may have the task, or it may be
misspelt."""

from __future__ import annotations

import sys
from collections.abc import Iterable

from fileq.cli.command import Invocation
from fileq.cli.screen import wrapped
from fileq.core.errors import FileqError


def print_type_note(invocation: Invocation, types: Iterable[str | None]) -> None:
    """On stderr; not with -q. Says nothing if the workers can't be asked: what the command did stays done."""
    named = [type for type in types if type]
    if not named or invocation.options.quiet:
        return
    from fileq.commands.admin.route_check import note_of_unknown_types

    try:
        note = note_of_unknown_types(named, invocation.loaded().config, invocation.broker().workers())
    except FileqError:
        return
    if note:
        print(wrapped(f"fileq: {note}", sys.stderr), file=sys.stderr)
