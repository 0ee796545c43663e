"""What children run, as data that can be sent to another process: the name of a function and its argument.

The fork server loads it once for all children that it forks. A child started in a fresh interpreter loads it itself.
"""

from __future__ import annotations

import importlib
import subprocess
import sys
from typing import Any, cast

from msgspec import Struct

from fileq.core.errors import ConfigError
from fileq.worker.executors.protocol import Run


class Program(Struct, frozen=True):
    """`loader`, a "package.module:function", is called with `argument` and returns the function that runs tasks.

    `hidden_variables` of the environment are removed before the first process below the worker starts. With
    `prints_directly` the output pipe has no output: only where a handler is when its time is up."""

    loader: str
    argument: bytes = b""
    hidden_variables: tuple[str, ...] = ()
    prints_directly: bool = False

    def load(self) -> Run:
        """Import and call the loader. Raises only ConfigError, with one line for each problem."""
        module, _, function = self.loader.partition(":")
        try:
            return cast(Run, getattr(importlib.import_module(module), function)(self.argument))
        except ConfigError:
            raise
        except BaseException as error:
            raise ConfigError(f"the handlers can't be loaded: {error_line(error)}") from error


def python_command(module: str, *arguments: object) -> list[str]:
    """The command of a fresh interpreter that calls module.main(), with this one's sys.path and switches.

    Not `-m`, which puts the working directory first on the path: a `queue.py` there would hide the standard one."""
    code = f"import sys; sys.path[:] = {sys.path!r}; from {module} import main; main()"
    switches: list[str] = cast(Any, subprocess)._args_from_interpreter_flags()
    return [sys.executable, *switches, "-c", code, *map(str, arguments)]


def error_line(error: BaseException) -> str:
    text = " ".join(str(error).split())
    return f"{type(error).__name__}: {text}" if text else type(error).__name__
