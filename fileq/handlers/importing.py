"""Imports the user's modules, checks the functions in them, and knows which of them are loaded.

Importing runs the user's code. Every Exception and SystemExit of that code becomes InvalidTarget, with one line that
says why the module or function can't be used.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import inspect
import io
import linecache
import os
import sys
import traceback
from collections.abc import Callable, Iterable, Sequence
from types import ModuleType
from typing import TYPE_CHECKING, Any

from fileq.config.trusted_place import untrusted_directory
from fileq.core.errors import ConfigError
from fileq.core.text import did_you_mean
from fileq.handlers.outcomes import one_line
from fileq.handlers.registry import REGISTRY, TaskDefinition

if TYPE_CHECKING:
    from fileq.config import Config

HANDLER, JOB_AND_CONTEXT = "a handler", ("job", "context")
_MAX_SHOWN = 300  # characters of an error message


class InvalidTarget(Exception):
    """The target can't be used. The message continues a sentence that begins with the name of the setting."""


class Importer:
    """Imports modules from the application's directory, then from installed packages. A module that failed is not tried
    again. Without `app_dir` it is the working directory, if no one else can write to that."""

    def __init__(self, app_dir: str) -> None:
        self._is_default = not app_dir
        self._app_dir = os.path.abspath(app_dir or os.curdir)
        self._failures: dict[str, str] = {}
        importlib.invalidate_caches()

    def module(self, name: str) -> ModuleType:
        if name.partition(".")[0] != __name__.partition(".")[0]:
            self._extend_path()
        if name not in self._failures:
            try:
                return importlib.import_module(name)
            except (Exception, SystemExit) as error:
                self._failures[name] = self._explain(name, error)
        raise InvalidTarget(self._failures[name])

    def function(
        self, target: str, kind: str = HANDLER, parameters: Sequence[str] = JOB_AND_CONTEXT
    ) -> Callable[..., Any]:
        """The callable that `package.module:function` names, checked to accept these parameters."""
        module_name, _, path = target.partition(":")
        found: Any = self.module(module_name)
        for part in path.split("."):
            try:
                found = getattr(found, part)
            except AttributeError:
                if module_name.partition(".")[0] in sys.stdlib_module_names:
                    file = getattr(sys.modules.get(module_name), "__file__", None)
                    advice = f"it was imported from {file}; a module of the standard library hides one of the same name"
                else:
                    names = [name for name in dir(found) if not name.startswith("__")]
                    advice = did_you_mean(part, names, "is it spelled like this there?")
                raise InvalidTarget(f"uses {target}, but {module_name} has no {part!r}; {advice}") from None
        if fault := unfitness(found, kind, parameters):
            raise InvalidTarget(f"uses {target}, which {fault}")
        function: Callable[..., Any] = found
        return function

    def _extend_path(self) -> None:
        """Puts the directory behind the standard library, which it must not replace: fileq itself imports modules of it
        later, here and in children."""
        if self._is_default and (fault := untrusted_directory(self._app_dir)):
            raise ConfigError(f"no handlers are imported, because {fault}; --app-dir DIR names their directory")
        library = os.path.dirname(os.__file__)
        ours = [i for i, path in enumerate(sys.path) if path in (library, os.path.join(library, "lib-dynload"))]
        place = ours[-1] + 1 if ours else len(sys.path)
        if self._app_dir not in sys.path[: place + 1]:
            sys.path.insert(place, self._app_dir)

    def _explain(self, name: str, error: BaseException) -> str:
        if isinstance(error, ModuleNotFoundError) and error.name and f"{name}.".startswith(f"{error.name}."):
            return f"names the module {name}, but there is no {error.name} in {self._app_dir} or on Python's path"
        if isinstance(error, ConfigError):
            return f"names the module {name}, in which {one_line(str(error))}"
        return f"names the module {name}, which can't be imported: {described(error)}"


def import_if_possible(modules: Iterable[str]) -> None:
    """For commands that know more with these modules and work without them. Their output is for what they did: what a
    module prints while it is imported is left out."""
    importer = Importer("")
    for name in modules:
        with contextlib.suppress(InvalidTarget, ConfigError), contextlib.redirect_stdout(io.StringIO()):
            importer.module(name)


def unfitness(found: Any, kind: str = HANDLER, parameters: Sequence[str] = JOB_AND_CONTEXT) -> str:
    """Why this object can't be a handler, or another kind of function, as the rest of a sentence; "" if it can."""
    found = found.function if isinstance(found, TaskDefinition) else found
    if inspect.isclass(found):
        return f"is a class; {kind} is a function"
    if not callable(found):
        name = type(found).__name__
        return f"is {'an' if name[0] in 'aeiou' else 'a'} {name}; {kind} is a function"
    if _is(found, inspect.isgeneratorfunction) or _is(found, inspect.isasyncgenfunction):
        return f"is a generator, so calling it would do nothing; {kind} must not yield"
    try:
        signature = inspect.signature(found)
    except (ValueError, TypeError):
        return ""  # written in C, without a signature
    try:
        signature.bind(*parameters)
    except TypeError:
        return f"takes {signature}; {kind} is called with ({', '.join(parameters)})"
    return ""


def is_async(function: Callable[..., Any]) -> bool:
    return _is(function, inspect.iscoroutinefunction)


def _is(found: Any, predicate: Callable[[Any], bool]) -> bool:
    """Whether it holds for this function, or for the `__call__` of this object."""
    while isinstance(found, functools.partial | TaskDefinition):
        found = found.func if isinstance(found, functools.partial) else found.function
    return predicate(found) or predicate(getattr(found, "__call__", None))  # noqa: B004


def described(error: BaseException) -> str:
    """What the user's code raised, in one line, with its file and line."""
    return one_line(f"{type(error).__name__}: {error}")[:_MAX_SHOWN] + _location(error)


def _location(error: BaseException) -> str:
    """The file and line of the user's code that raised the error."""
    if isinstance(error, SyntaxError):
        return ""  # its message names them
    frames = traceback.extract_tb(error.__traceback__)
    user_frames = [frame for frame in frames if "importlib" not in frame.filename and frame.filename != __file__]
    return f" ({user_frames[-1].filename}:{user_frames[-1].lineno})" if user_frames else ""


# The modules of the user's handlers that this process has imported, and the text that they were imported from.


def named_modules(config: Config) -> frozenset[str]:
    """The modules that the configuration names: those of `imports`, of middleware and of handlers."""
    named = [*config.imports, *config.middleware, *(route.use for route in config.handlers if route.use is not None)]
    return frozenset(name.partition(":")[0] for name in named)


def handler_modules(config: Config, app_dir: str) -> dict[str, ModuleType]:
    """The imported modules below the application's directory, in a package that the configuration names, or with
    decorated handlers or tasks."""
    directory = os.path.abspath(app_dir or os.curdir)
    packages = {name.partition(".")[0] for name in named_modules(config)}
    decorated = {one.function.__module__ for one in REGISTRY}
    return {
        name: module
        for name, module in list(sys.modules.items())
        if name.partition(".")[0] not in ("fileq", "__main__")
        and (name.partition(".")[0] in packages or name in decorated or _is_below(module, directory))
    }


def _is_below(module: ModuleType, directory: str) -> bool:
    file = getattr(module, "__file__", None) or ""
    return file.startswith(directory + os.sep) and not file.startswith((sys.prefix + os.sep, sys.base_prefix + os.sep))


def keep_text(modules: Iterable[ModuleType]) -> None:
    """Keeps the source of these modules for tracebacks, which would otherwise show lines of files that have changed
    since: it would look as if the fixed code failed."""
    for file in [file for module in modules if (file := getattr(module, "__file__", None) or "").endswith(".py")]:
        linecache.cache.pop(file, None)
        lines = linecache.getlines(file)
        if lines:
            # Without a modification time: linecache never reads the file again.
            linecache.cache[file] = (sum(map(len, lines)), None, lines, file)
