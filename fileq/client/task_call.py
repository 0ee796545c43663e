"""One call of a task, or one file, that is still to be enqueued: for enqueue_many."""

from __future__ import annotations

from typing import Any, Generic, TypeVar, Unpack, overload

from msgspec import UNSET, UnsetType

from fileq.client.job_options import EnqueueOptions
from fileq.handlers.task_definition import TaskDefinition

P = TypeVar("P")
R = TypeVar("R")


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


class FileCall:
    """A file to enqueue, with the options of enqueue_file()."""

    __slots__ = ("options", "path")

    def __init__(self, path: str, **options: Unpack[EnqueueOptions]) -> None:
        self.path = path
        self.options = options
