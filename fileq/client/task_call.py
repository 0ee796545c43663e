"""One call of a task, or one file, that is still to be enqueued: for enqueue_many, and for the callbacks of a batch."""

from __future__ import annotations

from typing import Any, Generic, TypeVar, Unpack, overload

import msgspec
from msgspec import UNSET, UnsetType

from fileq.client.job_options import EnqueueOptions
from fileq.core.errors import ConfigError
from fileq.core.job import MAX_NESTING, TOO_NESTED, is_nested_deeper
from fileq.core.public_name import public
from fileq.handlers.registry import LONGEST_NAME, REGISTRY, TaskDefinition

P = TypeVar("P")
R = TypeVar("R")


@public("Call")
class TaskCall(Generic[P, R]):
    """A task or its name, a payload, and the options of enqueue(). Users know it as fileq.Call."""

    __slots__ = ("options", "payload", "task")

    @overload
    def __init__(
        self, task: TaskDefinition[P, R], payload: P | UnsetType = UNSET, **options: Unpack[EnqueueOptions]
    ) -> None: ...

    @overload
    def __init__(
        self: TaskCall[Any, Any], task: str, payload: Any = UNSET, **options: Unpack[EnqueueOptions]
    ) -> None: ...

    def __init__(
        self, task: TaskDefinition[P, R] | str, payload: Any = UNSET, **options: Unpack[EnqueueOptions]
    ) -> None:
        self.task = task
        self.payload = payload
        self.options = options

    @property
    def name(self) -> str:
        return self.task if isinstance(self.task, str) else self.task.name


def task_named(task: TaskDefinition[Any, Any] | str) -> TaskDefinition[Any, Any] | None:
    """The task itself; for a name, the task that this process has registered under it, or None."""
    if isinstance(task, TaskDefinition):
        return task
    if not isinstance(task, str) or not 0 < len(task) <= LONGEST_NAME or not task.isprintable():
        raise ConfigError(
            f"task is {task!r:.120}; give a task, or its name in 1 to {LONGEST_NAME} printable characters"
        )
    return REGISTRY.task(task)


def encoded_payload(payload: Any, name: str) -> bytes:
    try:
        encoded = msgspec.json.encode(payload)
    except (msgspec.MsgspecError, TypeError, ValueError, RecursionError) as error:
        raise ConfigError(f"the payload of task {name!r} can't be written as JSON: {error}") from error
    if is_nested_deeper(encoded, MAX_NESTING):
        raise ConfigError(f"the payload of task {name!r} {TOO_NESTED}")
    return encoded


class FileCall:
    """A file to enqueue, with the options of enqueue_file()."""

    __slots__ = ("options", "path")

    def __init__(self, path: str, **options: Unpack[EnqueueOptions]) -> None:
        self.path = path
        self.options = options
