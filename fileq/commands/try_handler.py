"""Runs the handler that a worker would choose for a file, as a worker would: in a child process of its own, with the
same timeout, memory limit and report of a crash. No queue, no retries, no record. Must never open a broker.

What the handler prints goes to stderr. Ctrl-C sets `context.cancelled`, and ends the handler and the
processes that it started a moment later. A kill -9 of `fileq try` leaves no process running: see the fork server.
"""

from __future__ import annotations

import os
import select
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import closing
from datetime import UTC, datetime

from msgspec import Struct

from fileq.config import Config, Loaded
from fileq.core.errors import ConfigError
from fileq.core.job import ClaimKey, encode, file_job
from fileq.core.outcome import Died, Done, Failed, Made, Ran, Task, TaskOutcome
from fileq.core.text import printable_lines, quoted_path
from fileq.core.units import format_duration, short_duration
from fileq.files.paths import Paths
from fileq.handlers.context import CancelFlag
from fileq.handlers.job_file import check_file
from fileq.handlers.outcomes import CommandFailed, TimedOut, failed
from fileq.handlers.routes import BoundRoute, Routes
from fileq.handlers.run import run_task
from fileq.handlers.tracebacks import is_stack, place_of, waits_for
from fileq.runtime.handlers_program import handlers_program, load_routes
from fileq.runtime.observers import log_to_stderr
from fileq.worker.executors.process.executor import ProcessExecutor
from fileq.worker.executors.protocol import Run

INTERRUPT_GRACE_S = 1.0  # from Ctrl-C to the stop by force
LONGEST_WAIT_S = 60.0
LONGEST_LINE = 500  # characters


class Trial(Struct, frozen=True):
    """How one run ended. `failure` is empty if it succeeded; else the error and what a worker would do next."""

    took: str
    result: bytes = b""  # JSON
    warning: str = ""
    failure: str = ""
    stack: str = ""  # where the handler was at its timeout
    made: tuple[str, ...] = ()  # what a worker would enqueue and record, a line each


def try_path(loaded: Loaded, path: str, app_dir: str, announce: Callable[[str], None]) -> Trial:
    """Announces the route, then runs the handler. ConfigError if no handler matches the file."""
    config = loaded.config
    emit = log_to_stderr(config)
    routes = Routes.load(config, app_dir=app_dir)
    task = _task(routes, config.paths, path, announce)
    route = routes[task.route]
    announce(f"{route} (timeout {format_duration(route.timeout)})")
    # worker.max_memory limits child processes only; the threads of a worker share its memory.
    max_memory = config.worker.max_memory if route.isolation == "process" else None
    program = handlers_program(config, app_dir=app_dir, loader=f"{__name__}:load_trial", prints_directly=True)
    with closing(ProcessExecutor(1, program, max_memory=max_memory, emit=emit, captures_output=True)) as executor:
        started_s = time.perf_counter()
        executor.submit([task])
        try:
            outcome = _wait(executor)
        except KeyboardInterrupt:  # raised when the task has ended
            executor.quit(INTERRUPT_GRACE_S)
            _wait(executor)
            raise
        took = short_duration(max(0.001, time.perf_counter() - started_s))
    if isinstance(outcome, Done):
        return Trial(took, outcome.result, outcome.warning, made=tuple(_made(outcome, route)))
    stack = outcome.traceback if isinstance(outcome, Failed) and is_stack(outcome.traceback) else ""
    return Trial(took, failure=_failure(outcome, route, config), stack=stack)


def _made(outcome: Done, route: BoundRoute) -> Iterator[str]:
    made = outcome.made if outcome.made is not None else Made()
    for request in made.follow_ups:
        payload = f" with {request.payload.decode()}" if request.payload else ""
        yield f"would enqueue {os.fsdecode(request.path) or f'a job of type {request.type}{payload}'}"[:LONGEST_LINE]
    for output in made.outputs:
        yield f"created {os.fsdecode(output.path)} ({output.size} bytes)"
    if route.on_completed is not None:
        yield f"would enqueue a job of type {route.on_completed} (on_completed)"


def _task(routes: Routes, paths: Paths, path: str, announce: Callable[[str], None]) -> Task:
    where = os.path.abspath(os.fsencode(path))
    try:
        size = os.stat(where).st_size
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise ConfigError(f"{quoted_path(path)} can't be read: {reason}{_moved(paths, where)}") from error
    roots, relative = paths.allowed, paths.relative(where)
    is_outside = not any(where.startswith(root.rstrip(b"/") + b"/") for root in roots)
    if is_outside:
        roots, relative = (os.path.dirname(os.path.realpath(where)),), os.fsdecode(os.path.basename(where))
    job = file_job(where, size=size, priority="low", now=datetime.now(UTC))
    number = routes.find(job, relative)
    refused = check_file(where, roots)
    if isinstance(refused, Failed):
        advice = "; add one to worker.allowed_roots" if refused.kind == "OutsideRoots" else f": {path}"
        raise ConfigError(refused.error + advice)
    if number is None:
        raise ConfigError(routes.refusal(job))
    if is_outside:
        shown = ", ".join(map(os.fsdecode, paths.roots))
        announce(f"note: the file is outside {shown}; routes are matched against its name only")
    timeout_s = routes[number].timeout
    return Task(ClaimKey("try", 0), encode(job), number, where, roots, attempt=1, timeout_s=timeout_s)


def _moved(paths: Paths, where: bytes) -> str:
    """Names the file of the same path in a directory that worker.after moves files to, if there is one."""
    relative = os.fsencode(paths.relative(where))
    places = (os.path.join(folder, relative) for folder in paths.folders if not relative.startswith(b"/"))
    found = next((place for place in places if place != where and os.path.isfile(place)), None)
    return f"; a worker may have moved it to {quoted_path(found)}" if found is not None else ""


def _wait(executor: ProcessExecutor) -> TaskOutcome:
    while not (ended := executor.collect()):
        due_s = executor.next_deadline_s()
        left_s = LONGEST_WAIT_S if due_s is None else due_s - time.monotonic()
        select.select([executor], [], [], min(max(0.0, left_s), LONGEST_WAIT_S))
    return ended[0][1]


def _failure(outcome: TaskOutcome, route: BoundRoute, config: Config) -> str:
    """What a worker would do with the job, and the error."""
    match outcome:
        case Failed() if outcome.is_permanent or not route.max_retries:
            return f"a worker would not retry it: {outcome.error}"
        case Failed(after_s=None):
            return f"a worker would retry it: {outcome.error}"
        case Failed(after_s=float(after_s)):
            return f"a worker would retry it after {short_duration(after_s)}: {outcome.error}"
        case Died() if route.isolation == "thread":
            return f"the worker would crash with it (isolation: thread): {outcome.error}"
        case Died():
            times = config.worker.max_recoveries
            return f"a worker would rerun it up to {times} times: {outcome.error}"
    return f"stopped: {type(outcome).__name__}"


# What the child process of `fileq try` runs: the handlers as in a worker, with the traceback of an error on stderr.
#
# The child writes the traceback itself, so that it follows what the handler printed. Must never open a broker.


_FILEQ = os.path.dirname(os.path.dirname(__file__)) + os.sep


def load_trial(argument: bytes) -> Run:
    routes = load_routes(argument)

    def run(task: Task, cancelled: CancelFlag) -> Ran:
        if routes[task.route].isolation == "thread":
            return _run_in_thread(task, routes, cancelled)
        return run_task(routes, task, cancelled, on_error=_print_traceback)

    return run


def _run_in_thread(task: Task, routes: Routes, cancelled: CancelFlag) -> Ran:
    """For a handler with `isolation: thread`: as in a worker, it does not run in the main thread of its process."""
    ran: list[Ran] = []

    def run() -> None:
        ran.append(run_task(routes, task, cancelled, on_error=_print_traceback))

    thread = threading.Thread(target=run, name="handler", daemon=True)
    thread.start()
    waits_for(lambda: place_of(thread.ident))
    thread.join()
    waits_for(None)
    return ran[0] if ran else failed(RuntimeError("the handler's thread ended without an outcome"))


def _print_traceback(error: BaseException) -> None:
    """Prints the traceback without fileq's own frames above the handler and between its middleware."""
    if isinstance(error, CommandFailed | TimedOut):
        if isinstance(error, CommandFailed) and error.hint:
            print(error.hint, file=sys.stderr)
        return  # a traceback would show only fileq's own code; `fileq try` prints where a handler timed out
    whole = traceback.TracebackException.from_exception(error)
    frames = [frame for frame in whole.stack if not frame.filename.startswith(_FILEQ)]
    whole.stack = traceback.StackSummary.from_list(frames)
    sys.stdout.flush()
    print(printable_lines("".join(whole.format())), end="", file=sys.stderr)
