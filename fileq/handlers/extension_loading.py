"""The middleware of a worker, complete and checked: what the configuration names, or what was decorated."""

from __future__ import annotations

from fileq.config import Config
from fileq.handlers import extensions
from fileq.handlers.middleware import BoundMiddleware
from fileq.handlers.targets import Importer, InvalidTarget, is_async, unfitness

MIDDLEWARE = "a middleware function", ("job", "context", "call")


def producer_warnings(config: Config) -> list[str]:
    """A decorated function runs in a producer only if the producer imports its module."""
    return [
        f"@fileq.before_enqueue on {one.target} does not run in a producer of its own; "
        f"name {one.function.__module__} in producer.imports"
        for one in extensions.EXTENSIONS.before_enqueue.values()
        if getattr(one.function, "__module__", "") not in config.producer.imports
    ]


def load_middleware(
    config: Config, importer: Importer, problems: list[str], warnings: list[str]
) -> tuple[BoundMiddleware, ...]:
    """Outermost first. Adds to `problems` what can't be used, and to `warnings` decorated functions that do not run."""
    decorated = extensions.EXTENSIONS.middleware
    if not config.middleware:
        for one in decorated.values():
            if fault := unfitness(one.function, *MIDDLEWARE):
                problems.append(f"@fileq.middleware on {one.target}, which {fault}")
        return tuple(BoundMiddleware(one.target, one.function, is_async(one.function)) for one in decorated.values())
    warnings += [
        f"@fileq.middleware on {target} does not run: middleware in the configuration does not name it"
        for target in decorated
        if target not in config.middleware
    ]
    found = []
    for i, target in enumerate(config.middleware):
        try:
            function = importer.function(target, *MIDDLEWARE)
            found.append(BoundMiddleware(target, function, is_async(function)))
        except InvalidTarget as error:
            problems.append(f"middleware[{i}] {error}")
    return tuple(found)
