"""What the child process of `fileq try` runs: the handlers as in a worker, with the traceback of an error on stderr.

The child writes the traceback itself, so that it follows what the handler printed. Must never open a broker.
"""

from __future__ import annotations

import os
import sys
import threading
import traceback

import msgspec
from msgspec import Struct

from fileq.config import Config, secret_variables, without_secrets
from fileq.core.text import printable_lines
from fileq.handlers.context import CancelFlag
from fileq.handlers.outcomes import CommandFailed, TimedOut, failed
from fileq.handlers.routes import Routes
from fileq.handlers.run import run_task
from fileq.handlers.task import Ran, Task
from fileq.handlers.tracebacks import place_of, waits_for
from fileq.runtime.observers import log_to_stderr
from fileq.worker.executors.process.messages import Program
from fileq.worker.executors.protocol import Run

_FILEQ = os.path.dirname(os.path.dirname(__file__)) + os.sep


class _Given(Struct, frozen=True):
    config: Config
    app_dir: str


def trial_program(config: Config, *, app_dir: str) -> Program:
    """The program that loads the handlers of this configuration for one trial."""
    argument = msgspec.msgpack.encode(_Given(without_secrets(config), app_dir))
    hidden = secret_variables(config.worker.pass_environment)
    return Program(f"{__name__}:load_trial", argument, hidden, prints_directly=True)


def load_trial(argument: bytes) -> Run:
    given = msgspec.msgpack.decode(argument, type=_Given)
    log_to_stderr(given.config)
    routes = Routes.load(given.config, app_dir=given.app_dir)
    routes.loop.ends_left_tasks = True

    def run(task: Task, cancelled: CancelFlag) -> Ran:
        if routes[task.route].isolation == "thread":
            return _run_in_thread(task, routes, cancelled)
        return run_task(task, routes, cancelled, on_error=_print_traceback)

    return run


def _run_in_thread(task: Task, routes: Routes, cancelled: CancelFlag) -> Ran:
    """For a handler with `isolation: thread`: as in a worker, it does not run in the main thread of its process."""
    ran: list[Ran] = []

    def run() -> None:
        ran.append(run_task(task, routes, cancelled, on_error=_print_traceback))

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
