"""Runs one task and returns its outcome, in a child process or in a thread of the worker.

    open and check the file → call the handler → close the file → Done | Failed | Changed

Never raises, and knows nothing of brokers. The executor enforces the timeout of plain functions. Coroutines and
commands can be stopped from here, so their timeouts are enforced here too.
"""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import msgspec
from msgspec import Struct
from msgspec.json import Decoder
from msgspec.structs import replace

from fileq.core.errors import Permanent, Undecodable
from fileq.core.job import Job, attempt_span_id, decode, parent_of
from fileq.core.outcome import Done, Failed, Ran, Task
from fileq.handlers.command_handler import run_command
from fileq.handlers.context import CancelFlag, Context, JobView, Log, view_of
from fileq.handlers.event_loop import EventLoop, in_calling_thread
from fileq.handlers.extensions import Extension
from fileq.handlers.job_file import NO_FILE, JobFile, open_file
from fileq.handlers.outcomes import LONGEST_ERROR, done, failed
from fileq.handlers.registry import RetryIf
from fileq.handlers.routes import BoundRoute, Routes


def run_task(
    routes: Routes, task: Task, cancelled: CancelFlag, *, on_error: Callable[[BaseException], None] | None = None
) -> Ran:
    """Done, Failed or, if no handler ran because the file changed, Changed. `on_error` gets what the handler raised,
    with its traceback."""
    try:
        job = decode(task.raw)
        route = routes[task.route]
    except (Undecodable, IndexError) as error:
        return failed(Permanent(str(error)))
    file: JobFile | None = None
    if task.path:
        found = open_file(task.path, task.roots, None if task.runs_changed else job.version)
        if not isinstance(found, JobFile):
            return found
        file = found
    try:
        return invoke(routes, route, job, task, file, cancelled)
    except BaseException as error:
        if on_error is not None:
            on_error(error)
        return _naming(file, route, failed(error, route.give_up_on, _asked(route.retry_if, job)))
    finally:
        if file is not None:
            file.close()


def _naming(file: JobFile | None, route: BoundRoute, outcome: Failed) -> Failed:
    """The failure; an error about a descriptor of the file names the file too."""
    note = file.given(is_safe=route.safe_open).note_on(outcome.error) if file is not None else ""
    return replace(outcome, error=outcome.error[: LONGEST_ERROR - len(note)] + note) if note else outcome


def _asked(retry_if: RetryIf | None, job: Job) -> RetryIf | None:
    """`retry_if` of the route, if it has one: what it raises itself is logged and counts as True."""
    if retry_if is None:
        return None

    def ask(error: BaseException) -> object:
        try:
            return retry_if(error)
        except Exception:
            log = Log({"job_id": job.id, "type": job.type, "filepath": job.filepath or None})
            log.exception("handler.retry_if_failed", consequence="the job is retried")
            return True

    return ask


def checked_view(job: Job, path: bytes, file: JobFile | None, decoder: Decoder[Any] | None) -> JobView[Any]:
    """view_of(); a payload that can't be decoded is Permanent."""
    try:
        return view_of(job, path, file, decoder)
    except msgspec.ValidationError as error:
        raise Permanent(f"the payload is not what the task takes: {error}") from error
    except (msgspec.DecodeError, ValueError) as error:
        raise Permanent(f"the payload is not JSON: {error}") from error


def invoke(
    routes: Routes, route: BoundRoute, job: Job, task: Task, file: JobFile | None, cancelled: CancelFlag
) -> Done:
    """What the handler returns and leaves behind; raises what it raises."""
    given, loop = file.given(is_safe=route.safe_open) if file is not None else NO_FILE, routes.loop
    view = checked_view(job, given.path, file, route.payload_decoder)
    context = Context(
        view,
        cancelled=cancelled,
        attempt=task.attempt,
        timeout_s=task.timeout_s,
        span=(parent_of(job)[0], attempt_span_id(job, task.key)) if routes.is_traced else None,
        roots=task.roots,
        queues=routes.queues,
        types=routes.types if routes.has_all_types else None,
    )
    function, middleware = route.function, () if route.is_built_in else routes.middleware
    if function is None:
        handler = Layer(lambda: run_command(route.command, job, given, context, route.hidden_variables), False)
        value = call_through(middleware, handler, view, context, loop)
    elif route.is_async or middleware:
        handler = layer_of(lambda: function(view, context), context, loop, is_async=route.is_async)
        value = call_through(middleware, handler, view, context, loop)
    else:
        value = awaited(function(view, context), context, loop)
    outcome = done(value, is_task=route.is_task)
    made = context.end()
    return outcome if made is None else replace(outcome, made=made)


# The handler is called through its middleware: functions around it, each of which calls the next one.
#
#     def workdir(job, context, call): ... return call()
#     async def span(job, context, call): ... return await call()
#
# Plain and async functions can be mixed. Plain functions, the handler included, run in the thread of the attempt, also
# below async middleware: in a child process that is its main thread, and only that one can be stopped by force. Async
# functions run on the event loop. What any of them raises is what the handler raised.


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
