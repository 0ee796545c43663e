"""The tasks of the configured modules, with the options under which a worker runs them. Imports the modules."""

from __future__ import annotations

from msgspec import Struct

from fileq.config import Config
from fileq.handlers.registry import REGISTRY
from fileq.handlers.routes import Routes


class TaskSummary(Struct, frozen=True):
    """`function` is module:function. `payload` is the type of the payload, empty if it can be anything. `is_shadowed`:
    a route of the configuration takes the jobs of this name, so the task never runs."""

    name: str
    function: str
    payload: str
    priority: str
    timeout_s: float
    max_retries: int
    isolation: str
    give_up_on: tuple[int | str, ...]
    has_retry_if: bool
    is_shadowed: bool


def list_tasks(config: Config, app_dir: str) -> tuple[TaskSummary, ...]:
    """By their names. Raises ConfigError if a module can't be imported or a task is wrong."""
    routes = Routes.load(config, app_dir=app_dir)
    first = {route.type: route for route in reversed(list(routes)) if route.type is not None}
    found = []
    for task in REGISTRY.tasks():
        route = first[task.name]
        found.append(
            TaskSummary(
                name=task.name,
                function=task.target,
                payload=task.payload_name,
                priority=task.priority or config.producer.default_priority,
                timeout_s=route.timeout,
                max_retries=route.max_retries,
                isolation=route.isolation,
                give_up_on=route.give_up_on,
                has_retry_if=route.retry_if is not None,
                is_shadowed=route.function is not task.function,
            )
        )
    return tuple(sorted(found, key=lambda task: task.name))
