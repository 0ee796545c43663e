"""The definitions of all commands. Each module must import nothing heavy at import time."""

from __future__ import annotations

import functools
from importlib import import_module

from fileq.cli.command import Command

# In the order in which --help lists them.
MODULES = (
    "role_commands",
    "enqueue_command",
    "setup_commands",
    "queue_commands",
    "job_commands",
    "batch_commands",
    "schedule_commands",
    "webhook_commands",
    "key_commands",
    "repair_commands",
)


@functools.cache
def all_commands() -> tuple[Command, ...]:
    modules = [import_module(f"{__name__}.{name}") for name in MODULES]
    return tuple(found for module in modules for found in vars(module).values() if isinstance(found, Command))
