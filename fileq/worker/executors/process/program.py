"""What children run, as data that crosses processes: the name of a function and its argument.

The fork server loads it once, for all children it forks; children that are spawned load it themselves.
"""

from __future__ import annotations

import importlib
import subprocess
import sys
from collections.abc import Callable
from typing import Any, TypeAlias, cast

from msgspec import Struct

from fileq.core.errors import ConfigError
from fileq.handlers.context import CancelFlag
from fileq.handlers.task import Ran, Task

Run: TypeAlias = Callable[[Task, CancelFlag], Ran]


class Program(Struct, frozen=True):
    """`loader`, a "package.module:function", is called with `argument` and returns the function that runs tasks."""

    loader: str
    argument: bytes = b""

    def load(self) -> Run:
        """Raises ConfigError, one line a problem, whatever the imported code does."""
        module, _, function = self.loader.partition(":")
        try:
            return cast(Run, getattr(importlib.import_module(module), function)(self.argument))
        except ConfigError:
            raise
        except BaseException as error:
            raise ConfigError(f"the handlers can't be loaded: {one_line(error)}") from error


def python_command(module: str, *arguments: object) -> list[str]:
    """A fresh interpreter that imports from where this one does, with the same switches, and calls module.main().

    Not `-m`, which would look into the working directory first: a file `queue.py` there is none of our business."""
    code = f"import sys; sys.path[:] = {sys.path!r}; from {module} import main; main()"
    switches: list[str] = cast(Any, subprocess)._args_from_interpreter_flags()
    return [sys.executable, *switches, "-c", code, *map(str, arguments)]


def one_line(error: BaseException) -> str:
    text = " ".join(str(error).split())
    return f"{type(error).__name__}: {text}" if text else type(error).__name__
