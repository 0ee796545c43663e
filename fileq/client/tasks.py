"""@fileq.task: gives a function a name, by which any process can enqueue a job for it. Must import little: every module
with tasks imports this one, in workers too.

    @fileq.task("thumbnail", timeout="30s")
    def thumbnail(job: fileq.JobView[Thumb], context: fileq.Context) -> str: ...

    handle = thumbnail.enqueue(Thumb("/in/a.png"))
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeAlias, TypeVar, Unpack, overload

import msgspec
from msgspec import UNSET, UnsetType
from msgspec.structs import replace

from fileq.core.errors import ConfigError, JobError
from fileq.core.job import MAX_NESTING, TOO_NESTED, is_nested_deeper
from fileq.core.job_options import EnqueueOptions, JobOptions, JobRequest
from fileq.core.own_jobs import check_type
from fileq.core.public_name import public
from fileq.core.text import check_names
from fileq.handlers.context import Context, JobView
from fileq.handlers.outcomes import number_outside_json
from fileq.handlers.registry import LONGEST_NAME, REGISTRY, Registration, TaskDefinition, TaskOptions, given_options

if TYPE_CHECKING:
    from fileq.client.handle import Handle
    from fileq.handlers.registry import RetryIf

P = TypeVar("P")
R = TypeVar("R")


@public("Task")
class TaskFunction(TaskDefinition[P, R]):
    """A decorated function. Calling it calls the function, here and now; enqueue() makes a job for a worker."""

    def enqueue(self, payload: P | UnsetType = UNSET, **options: Unpack[EnqueueOptions]) -> Handle[R]:
        """Enqueues a job by the default client, whose configuration is that of the program `fileq`."""
        from fileq.client.client import default_client  # imports more than a task needs

        return default_client().enqueue(self, payload, **options)

    def call(self, payload: P | UnsetType = UNSET, **options: Unpack[EnqueueOptions]) -> TaskCall[P, R]:
        """A job that is not enqueued yet, for Client.enqueue_many()."""
        return TaskCall(self, payload, **options)


Task: TypeAlias = TaskFunction[P, R]  # the name by which users know it


class TaskDecorator(Protocol):
    """Makes a task of a function, plain or async."""

    @overload
    def __call__(self, function: Callable[[JobView[P], Context], Awaitable[R]]) -> TaskFunction[P, R]: ...

    @overload
    def __call__(self, function: Callable[[JobView[P], Context], R]) -> TaskFunction[P, R]: ...


def task(
    name: str | None = None, *, priority: str = "", retry_if: RetryIf | None = None, **options: Unpack[TaskOptions]
) -> TaskDecorator:
    """Makes a task of the decorated function, which takes (job: JobView[P], context) and returns a JSON value.

    The name is explicit or `module.function`; it is the type of the jobs. Two tasks of one name are a ConfigError.
    `priority` is the queue of its jobs if the caller names none. `retry_if` is called with the exception of a failed
    attempt; if it returns False, the job is not retried. The other options are those of @fileq.handler."""
    if callable(name):
        raise ConfigError("@fileq.task needs parentheses: @fileq.task()")
    given = given_options(options, TaskOptions, "priority", "retry_if")

    def decorate(function: Callable[[JobView[Any], Context], Any]) -> TaskFunction[Any, Any]:
        made: TaskFunction[Any, Any] = TaskFunction(function, _name_for(function, name), priority)
        REGISTRY.add(Registration(made, None, made.name, given, retry_if))
        return made

    return decorate


def _name_for(function: Callable[..., Any], name: str | None) -> str:
    if not callable(function) or not hasattr(function, "__qualname__"):
        raise ConfigError(f"@fileq.task is on {function!r:.100}; it decorates functions")
    if name is None and function.__module__ == "__main__":
        raise ConfigError(
            f"the task {function.__qualname__} is in the main program, which workers know under another name; "
            f'name it: @fileq.task("{function.__name__}")'
        )
    found = name if name is not None else f"{function.__module__}.{function.__qualname__}".replace("<locals>.", "")
    if not 0 < len(found) <= LONGEST_NAME or not found.isprintable():
        raise ConfigError(f"a task is named {found!r:.120}; use 1 to {LONGEST_NAME} printable characters")
    try:
        check_type(found)
    except JobError as error:
        raise ConfigError(f"a task can't have this name: {error}") from error
    return found


@public("Call")
class TaskCall(Generic[P, R]):
    """One call that is still to be enqueued: a task or its name, a payload, and the options of enqueue(). Users know it
    as fileq.Call."""

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
        check_names(options, EnqueueOptions)
        self.task = task
        self.payload = payload
        self.options = options


def task_named(task: TaskDefinition[Any, Any] | str) -> TaskDefinition[Any, Any] | None:
    """The task itself; for a name, the task that this process has registered under it, or None."""
    if isinstance(task, TaskDefinition):
        return task
    if not isinstance(task, str) or not 0 < len(task) <= LONGEST_NAME or not task.isprintable():
        named = f"its name in 1 to {LONGEST_NAME} printable characters"
        raise ConfigError(f"task is {task!r:.120}; give a task, or {named}")
    return REGISTRY.task(task)


def encoded_payload(payload: Any, name: str) -> bytes:
    try:
        encoded = msgspec.json.encode(payload)
    except (msgspec.MsgspecError, TypeError, ValueError, RecursionError) as error:
        raise ConfigError(f"the payload of task {name!r} can't be written as JSON: {error}") from error
    if b"null" in encoded and (number := number_outside_json(msgspec.to_builtins(payload))) is not None:
        raise ConfigError(f"the payload of task {name!r} contains {number}, which JSON does not have")
    if is_nested_deeper(encoded, MAX_NESTING):
        raise ConfigError(f"the payload of task {name!r} {TOO_NESTED}")
    return encoded


def typed_request(task: TaskDefinition[Any, Any] | str, payload: Any, options: JobOptions) -> JobRequest:
    """For a job of a task. If this process knows the task, the payload is checked, and its priority is the default."""
    definition, name = task_named(task), task if isinstance(task, str) else task.name
    if definition is not None and definition.priority and not options.priority:
        options = replace(options, priority=definition.priority)
    encoded = None if payload is UNSET or payload is None else encoded_payload(payload, name)
    if definition is not None:
        definition.checked_payload(encoded if encoded is not None else b"null")
    return JobRequest(options, name, encoded)
