"""@fileq.task: gives a function a name, by which any process can enqueue a job for it. Must import little: every module
with tasks imports this one, in workers too.

    @fileq.task("thumbnail", timeout="30s")
    def thumbnail(job: fileq.JobView[Thumb], context: fileq.Context) -> str: ...

    handle = thumbnail.enqueue(Thumb("/in/a.png"))
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeAlias, TypeVar, Unpack, overload

from msgspec import UNSET, UnsetType

from fileq.core.errors import ConfigError, JobError
from fileq.core.job_options import EnqueueOptions
from fileq.core.own_jobs import check_type
from fileq.core.public_name import public
from fileq.core.text import check_names
from fileq.handlers.context import Context, JobView
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
