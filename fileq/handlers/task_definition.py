"""A task: a function with a name, by which any process can enqueue a job for it, and the types of what goes in and out.

The types are read from the annotations when they are first needed, because a module may define them after the function.
client/tasks.py has the decorator and what enqueues; this module knows no broker.
"""

from __future__ import annotations

import functools
import inspect
import typing
from collections.abc import Callable
from types import NoneType, SimpleNamespace
from typing import Any, Generic, TypeVar

import msgspec

from fileq.core.errors import ConfigError
from fileq.handlers.context import Context, JobView

P = TypeVar("P")
R = TypeVar("R")
LONGEST_NAME = 100


class TaskDefinition(Generic[P, R]):
    """`function` is what runs, `name` the type of its jobs, `priority` their queue if the caller names none."""

    def __init__(self, function: Callable[[JobView[P], Context], Any], name: str, priority: str = "") -> None:
        functools.update_wrapper(self, function)
        self.function = function
        self.name = name
        self.priority = priority

    def __call__(self, job: JobView[P], context: Context) -> R:
        """Calls the function itself, in this process; of an async function the coroutine."""
        result: R = self.function(job, context)
        return result

    def __repr__(self) -> str:
        return f"<task {self.name!r}: {self.target}>"

    @property
    def target(self) -> str:
        return f"{self.function.__module__}:{self.function.__qualname__}"

    @functools.cached_property
    def payload_type(self) -> Any:
        """The P of the first parameter's JobView[P]; Any if there is none."""
        first = next(iter(inspect.signature(self.function).parameters), "")
        annotation = self._annotation(first)
        arguments = typing.get_args(annotation) if typing.get_origin(annotation) is JobView else ()
        return Any if not arguments or isinstance(arguments[0], TypeVar) else arguments[0]

    @functools.cached_property
    def payload_decoder(self) -> msgspec.json.Decoder[Any]:
        return self._decoder(self.payload_type, "payload")

    @functools.cached_property
    def result_decoder(self) -> msgspec.json.Decoder[Any]:
        return self._decoder(self._annotation("return"), "result")

    @property
    def payload_name(self) -> str:
        """The payload's type for people; "" if it can be anything."""
        type = self.payload_type
        if type is Any or type is NoneType:
            return "" if type is Any else "None"
        return str(type) if typing.get_args(type) else getattr(type, "__name__", str(type))

    def checked_payload(self, raw: bytes) -> bytes:
        """These bytes, if they are JSON of the payload's type. Raises ConfigError otherwise."""
        try:
            self.payload_decoder.decode(raw)
        except (msgspec.DecodeError, ValueError) as error:
            wanted = f"a payload of type {self.payload_name}"
            if raw == b"null":
                raise ConfigError(f"task {self.name!r} needs {wanted}") from None
            raise ConfigError(f"task {self.name!r} takes {wanted}: {error}") from error
        return raw

    def _annotation(self, name: str) -> Any:
        """The type behind one annotation. The others may name what only type checkers import."""
        annotation = getattr(self.function, "__annotations__", {}).get(name, Any)
        holder = SimpleNamespace(__annotations__={name: annotation})
        try:
            found = typing.get_type_hints(holder, getattr(inspect.unwrap(self.function), "__globals__", {}))
        except Exception as error:
            raise ConfigError(
                f"task {self.name!r} ({self.target}) has the annotation {annotation!r}, which can't be resolved "
                f"({error}); define or import its types at the top of the module"
            ) from error
        return found[name]

    def _decoder(self, type: Any, what: str) -> msgspec.json.Decoder[Any]:
        try:
            return msgspec.json.Decoder(type)
        except TypeError as error:
            raise ConfigError(
                f"task {self.name!r} ({self.target}) has a {what} that JSON can't hold: {error}"
            ) from error
