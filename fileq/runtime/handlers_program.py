"""The program that the child processes of a worker run: its handlers, with logging set up as in the worker.

Everything a child needs travels as msgpack: children and the fork server read no configuration themselves.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import msgspec

from fileq.config import Config
from fileq.config.show import secret_variables, without_secrets
from fileq.worker.executors.process.messages import Program
from fileq.worker.executors.protocol import Run

if TYPE_CHECKING:
    from fileq.handlers.routes import Routes


def handlers_program(
    config: Config, *, app_dir: str, loader: str = f"{__name__}:load_handlers", prints_directly: bool = False
) -> Program:
    """The program that loads the handlers of this configuration. The secrets of fileq are not in it."""
    argument = msgspec.msgpack.encode((without_secrets(config), app_dir))
    return Program(loader, argument, secret_variables(config.worker.pass_environment), prints_directly)


def load_handlers(argument: bytes) -> Run:
    from fileq.handlers.run import run_task

    return partial(run_task, load_routes(argument))


def load_routes(argument: bytes) -> Routes:
    """In the child process, which writes logs from then on as the worker does: `context.log` of a handler too."""
    from fileq.handlers.routes import Routes
    from fileq.observe.logs import set_up_logs

    config, app_dir = msgspec.msgpack.decode(argument, type=tuple[Config, str])
    set_up_logs(config.observability.log_level, config.observability.log_format)
    routes = Routes.load(config, app_dir=app_dir)
    routes.loop.ends_left_tasks = True
    return routes
