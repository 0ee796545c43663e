"""Every command, by the name of its module here. Each module has COMMANDS and imports nothing heavy."""

from __future__ import annotations

import functools
from importlib import import_module

from fileq.cli.command import Command

# In the order in which --help lists them.
MODULES = (
    "roles",
    "attempt",
    "enqueue",
    "config",
    "doctor",
    "completion",
    "admin_stats",
    "admin_jobs",
    "admin_dlq",
    "admin_care",
)


@functools.cache
def all_commands() -> tuple[Command, ...]:
    modules = [import_module(f"{__name__}.{name}") for name in MODULES]
    return tuple(command for module in modules for command in module.COMMANDS)
