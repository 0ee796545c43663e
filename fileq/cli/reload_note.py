"""The note of commands that run jobs again after a fix: running workers may still have the old handlers."""

from __future__ import annotations

import sys

from fileq.cli.command import Invocation
from fileq.cli.screen import wrapped


def print_reload_note(invocation: Invocation) -> None:
    """On stderr, if a file has changed since a running worker loaded it; not with --json and -q."""
    if invocation.options.json or invocation.options.quiet:
        return
    from fileq.commands.admin.stale_workers import note_of_stale_workers

    if note := note_of_stale_workers(invocation.loaded(), invocation.broker().workers()):
        print(wrapped(f"note: {note}", sys.stderr), file=sys.stderr)
