"""Shell completion: scripts made from the commands themselves, for bash, zsh and fish.

table.py says what can stand where; each shell has a module that writes it in its language. The scripts never call
fileq: a key press must not start Python.
"""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module

from fileq.cli.command import Command

SHELLS = ("bash", "zsh", "fish")


def completion_script(shell: str, commands: Sequence[Command]) -> str:
    from fileq.cli.completion.table import Table

    script: str = import_module(f"{__name__}.{shell}").script(Table(commands))
    return script
