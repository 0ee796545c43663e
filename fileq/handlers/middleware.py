"""Calls a handler through its middleware: functions around it, each of which calls the next one.

    def workdir(job, context, call): ... return call()
    async def span(job, context, call): ... return await call()

Plain and async functions can be mixed. Plain functions, the handler included, run in the thread of the attempt, also
below async middleware: in a child process that is its main thread, and only that one can be stopped by force. Async
functions run on the event loop. What any of them raises is what the handler raised.
"""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from msgspec import Struct

from fileq.config import Config
from fileq.handlers import extensions
from fileq.handlers.context import Context, JobView
from fileq.handlers.event_loop import EventLoop, in_calling_thread
from fileq.handlers.extensions import Extension
from fileq.handlers.importing import Importer, InvalidTarget, is_async, unfitness


class Layer(Struct, frozen=True):
    """A handler, or middleware with everything below it. `call` returns an awaitable if it `is_async`."""

    call: Callable[[], Any]
    is_async: bool


def call_through(
    middleware: Sequence[Extension], handler: Layer, job: JobView, context: Context, loop: EventLoop
) -> Any:
    """What the outermost middleware returns, which is the first of `middleware`."""
    layer = handler
    for one in reversed(middleware):
        layer = _around(layer, one, job, context, loop)
    return _value(layer, context, loop)


def _around(inner: Layer, one: Extension, job: JobView, context: Context, loop: EventLoop) -> Layer:
    check = _once(one.target)

    def call() -> Any:
        check()
        return _value(inner, context, loop)

    async def call_async() -> Any:
        check()
        return await inner.call() if inner.is_async else await in_calling_thread(inner.call)

    below = call_async if one.is_async else call
    return layer_of(lambda: one.function(job, context, below), context, loop, is_async=one.is_async)


def layer_of(call: Callable[[], Any], context: Context, loop: EventLoop, *, is_async: bool) -> Layer:
    return Layer(call if is_async else lambda: awaited(call(), context, loop), is_async)


def _value(layer: Layer, context: Context, loop: EventLoop) -> Any:
    return loop.run(layer.call, context) if layer.is_async else layer.call()


def _once(target: str) -> Callable[[], None]:
    """Raises when middleware calls `call()` twice: repeating is for `max_retries`, with a record and a backoff."""
    calls = iter((True,))

    def check() -> None:
        if not next(calls, False):
            raise RuntimeError(f"{target} has called call() twice; a handler runs once in each attempt")

    return check


def awaited(value: Any, context: Context, loop: EventLoop) -> Any:
    """The value; for an awaitable, which a plain function may return too, what it gives."""
    if value is None or not inspect.isawaitable(value):
        return value
    awaitable: Awaitable[Any] = value
    return loop.run(lambda: awaitable, context)


# The middleware of a worker, complete and checked: what the configuration names, or what was decorated.


MIDDLEWARE = "a middleware function", ("job", "context", "call")


def load_middleware(
    config: Config, importer: Importer, problems: list[str], warnings: list[str]
) -> tuple[Extension, ...]:
    """Outermost first. Adds to `problems` what can't be used, and to `warnings` decorated functions that do not run."""
    decorated = extensions.EXTENSIONS.middleware
    if not config.middleware:
        for one in decorated.values():
            if fault := unfitness(one.function, *MIDDLEWARE):
                problems.append(f"@fileq.middleware on {one.target}, which {fault}")
        return tuple(decorated.values())
    warnings += [
        f"@fileq.middleware on {target} does not run: middleware in the configuration does not name it"
        for target in decorated
        if target not in config.middleware
    ]
    found = []
    for i, target in enumerate(config.middleware):
        try:
            function = importer.function(target, *MIDDLEWARE)
            found.append(Extension(target, function, is_async(function)))
        except InvalidTarget as error:
            problems.append(f"middleware[{i}] {error}")
    return tuple(found)
