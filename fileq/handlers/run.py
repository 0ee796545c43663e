"""Runs one task and says how it ended. Never raises, whatever a handler does; knows nothing of brokers.

    look at the file → call the handler → Done | Failed | Changed

In a child process or in a thread of the worker. Timeouts of functions are for the executor to keep; coroutines and
commands are ended here as well, since here they can be.
"""

from __future__ import annotations

import inspect
from typing import Any

import msgspec

from fileq.core.errors import Permanent, Undecodable
from fileq.core.job import Job, decode
from fileq.core.trace import attempt_span_id, parent_of
from fileq.handlers.command import run_command, run_shell
from fileq.handlers.context import CancelFlag, Context, view_of
from fileq.handlers.event_loop import EventLoop
from fileq.handlers.file_check import objection
from fileq.handlers.outcomes import done, failed
from fileq.handlers.routes import BoundRoute, Routes
from fileq.handlers.task import Ran, Task


def run_task(task: Task, routes: Routes, cancelled: CancelFlag, *, loop: EventLoop | None = None) -> Ran:
    """Done, Failed or, without having run anything, Changed."""
    try:
        job = decode(task.raw)
        route = routes[task.route]
    except (Undecodable, IndexError) as error:
        return failed(Permanent(str(error)))
    if task.path and (found := objection(task, job.signature)) is not None:
        return found
    try:
        span = (parent_of(job)[0], attempt_span_id(job, task.key.slot)) if routes.is_traced else None
        return done(invoke(route, job, task, cancelled, loop or routes.loop, span))
    except BaseException as error:
        return failed(error, route.give_up_on)


def invoke(
    route: BoundRoute,
    job: Job,
    task: Task,
    cancelled: CancelFlag,
    loop: EventLoop,
    span: tuple[str, str] | None = None,
) -> Any:
    """What the handler returns, or raises. `span` has the ids of its trace and of the span it runs in, if there is
    one."""
    try:
        view = view_of(job, task.path)
    except (msgspec.DecodeError, ValueError) as error:
        raise Permanent(f"the payload is not JSON: {error}") from error
    context = Context(view, cancelled=cancelled, attempt=task.attempt, timeout_s=task.timeout_s, span=span)
    if route.function is None:
        run = run_shell if not route.command else lambda *rest: run_command(route.command, *rest)
        return run(job, task.path, context)
    return call(route.function, view, context, loop, is_async=route.is_async)


def call(function: Any, view: Any, context: Context, loop: EventLoop, *, is_async: bool) -> Any:
    """A function called here, a coroutine run on the loop; also one that only a plain function returned."""
    if is_async:
        return loop.run(lambda: function(view, context), context)
    value = function(view, context)
    return loop.run(lambda: value, context) if value is not None and inspect.isawaitable(value) else value
