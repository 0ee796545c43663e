"""Generates completion scripts for bash, zsh and fish from the definitions of the commands.

table.py collects what can be typed at each position; each shell has a module that writes it in its own language. The
scripts must never call fileq: pressing Tab must not start Python.
"""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module

from fileq.cli.command import Command

SHELLS = ("bash", "zsh", "fish")


def completion_script(
    shell: str, commands: Sequence[Command], queues: Sequence[str] = ("high", "low"), schedules: Sequence[str] = ()
) -> str:
    from fileq.cli.completion.table import Table

    script: str = import_module(f"{__name__}.{shell}").script(Table(commands, queues, schedules))
    return script
