"""What users add around their handlers: the functions decorated with @fileq.middleware, @fileq.hook and
@fileq.before_enqueue.

EXTENSIONS is global for the same reason as registry.REGISTRY: decorators run while the user's modules are imported.
A module that is imported again replaces its entries. Only what a decorator can know is checked here.
"""

from __future__ import annotations

from collections.abc import Callable, Container
from typing import Any, TypeVar

from msgspec import Struct

from fileq.core.errors import ConfigError

F = TypeVar("F", bound=Callable[..., Any])


class Extension(Struct, frozen=True):
    """A decorated function. `events` are those of a hook."""

    function: Callable[..., Any]
    events: tuple[str, ...] = ()

    @property
    def target(self) -> str:
        """`package.module:function`."""
        return target_of(self.function)


class Extensions:
    """The decorated functions by their targets, hooks also by their events, in the order of their decoration."""

    def __init__(self) -> None:
        self.middleware: dict[str, Extension] = {}
        self.hooks: dict[str, Extension] = {}
        self.before_enqueue: dict[str, Extension] = {}

    def without(self, modules: Container[str]) -> Extensions:
        """A copy without the middleware and the hooks of these modules. A producer keeps what it was started with."""
        kept = Extensions()
        kept.middleware = _without(self.middleware, modules)
        kept.hooks = _without(self.hooks, modules)
        kept.before_enqueue = dict(self.before_enqueue)
        return kept


def _without(entries: dict[str, Extension], modules: Container[str]) -> dict[str, Extension]:
    return {target: one for target, one in entries.items() if getattr(one.function, "__module__", "") not in modules}


EXTENSIONS = Extensions()


def target_of(function: Callable[..., Any]) -> str:
    name = getattr(function, "__qualname__", type(function).__name__)
    return f"{getattr(function, '__module__', '?')}:{name}"


def middleware(function: F) -> F:
    """Runs the decorated function around every handler: `def name(job, context, call): ... return call()`.

    It is part of the attempt, in the process that runs the handler: what it raises fails the attempt, and what it
    returns is the result. It may be async, and then awaits `call()`. The first one that is imported is the outermost,
    unless `middleware` in the configuration names them in another order."""
    _require_function(function, "@fileq.middleware")
    EXTENSIONS.middleware[target_of(function)] = Extension(function)
    return function


def hook(*events: str) -> Callable[[F], F]:
    """Calls the decorated function with each of these events, in the worker process and after the fact:
    `@fileq.hook("job.dead") def name(event): ...`. Best effort: an error is logged and changes nothing."""
    if not events or not all(isinstance(name, str) for name in events):
        raise ConfigError('@fileq.hook needs the names of events, such as @fileq.hook("job.completed", "job.dead")')

    def decorate(function: F) -> F:
        _require_function(function, "@fileq.hook")
        EXTENSIONS.hooks[f"{target_of(function)} {' '.join(events)}"] = Extension(function, events)
        return function

    return decorate


def before_enqueue(function: F) -> F:
    """Calls the decorated function with each job before a producer or a client enqueues it: `def name(job): ...`.

    It returns the job, perhaps with changes (`job.but(priority="high")`), or None: then the job is not enqueued."""
    _require_function(function, "@fileq.before_enqueue")
    EXTENSIONS.before_enqueue[target_of(function)] = Extension(function)
    return function


def _require_function(function: object, decorator: str) -> None:
    if not callable(function):
        raise ConfigError(f"{decorator} is for functions; it was given {function!r:.100}")
