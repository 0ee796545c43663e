"""The program that the child processes of a worker run: its handlers, with logging set up as in the worker.

Everything a child needs travels as msgpack: children and the fork server read no configuration themselves.
"""

from __future__ import annotations

import msgspec
from msgspec import Struct

from fileq.config import Config
from fileq.config.show import secret_variables, without_secrets
from fileq.core.outcome import Ran, Task
from fileq.handlers.context import CancelFlag
from fileq.worker.executors.process.messages import Program
from fileq.worker.executors.protocol import Run


class _Handlers(Struct, frozen=True):
    config: Config
    app_dir: str


def handlers_program(config: Config, *, app_dir: str) -> Program:
    """The program that loads the handlers of this configuration. The secrets of fileq are not in it."""
    argument = msgspec.msgpack.encode(_Handlers(without_secrets(config), app_dir))
    return Program(f"{__name__}:load_handlers", argument, secret_variables(config.worker.pass_environment))


def load_handlers(argument: bytes) -> Run:
    from fileq.handlers.routes import Routes
    from fileq.handlers.run import run_task
    from fileq.observe.logs import set_up_logs

    given = msgspec.msgpack.decode(argument, type=_Handlers)
    observability = given.config.observability
    set_up_logs(observability.log_level, observability.log_format)  # context.log writes to the worker's log
    routes = Routes.load(given.config, app_dir=given.app_dir)
    routes.loop.ends_left_tasks = True

    def run(task: Task, cancelled: CancelFlag) -> Ran:
        return run_task(task, routes, cancelled)

    return run
