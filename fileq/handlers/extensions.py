"""What users add around their handlers: the functions decorated with @fileq.middleware, @fileq.hook and
@fileq.before_enqueue.

EXTENSIONS is global for the same reason as registry.REGISTRY: decorators run while the user's modules are imported.
A module that is imported again replaces its entries. A decorator checks only what it can know; the rest is checked when
a process loads them. run.py calls middleware, runtime/observers.py calls hooks.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Mapping
from datetime import UTC, datetime
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, TypeVar

from msgspec import UNSET, Raw, Struct

from fileq.core.errors import ConfigError, JobError
from fileq.core.events import EVENTS, Event, JobClaimed
from fileq.core.job import Job, check_content, check_unique_key, parse_time
from fileq.core.own_jobs import check_type
from fileq.core.public_name import public
from fileq.core.text import did_you_mean
from fileq.handlers.importing import Importer, InvalidTarget, is_async, unfitness
from fileq.handlers.registry import target_of

if TYPE_CHECKING:
    from fileq.config import Config

F = TypeVar("F", bound=Callable[..., Any])


class Extension(Struct, frozen=True):
    """A function that users add. `target` is its name, `package.module:function`; `events` are those of a hook."""

    target: str
    function: Callable[..., Any]
    is_async: bool
    events: tuple[str, ...] = ()


class Extensions(Struct):
    """The decorated functions by their targets, hooks also by their events, in the order of their decoration."""

    middleware: dict[str, Extension] = {}
    hooks: dict[str, Extension] = {}
    before_enqueue: dict[str, Extension] = {}

    def without(self, modules: Container[str]) -> Extensions:
        """A copy without the middleware and the hooks of these modules. A producer keeps what it was started with."""

        def kept(entries: dict[str, Extension]) -> dict[str, Extension]:
            return {key: one for key, one in entries.items() if getattr(one.function, "__module__", "") not in modules}

        return Extensions(kept(self.middleware), kept(self.hooks), dict(self.before_enqueue))


EXTENSIONS = Extensions()


def extension_of(function: Callable[..., Any], events: tuple[str, ...] = ()) -> Extension:
    return Extension(target_of(function), function, is_async(function), events)


def middleware(function: F) -> F:
    """Runs the decorated function around every handler: `def name(job, context, call): ... return call()`.

    It is part of the attempt, in the process that runs the handler: what it raises fails the attempt, and what it
    returns is the result. It may be async, and then awaits `call()`. The first one that is imported is the outermost,
    unless `middleware` in the configuration names them in another order."""
    _require_function(function, "@fileq.middleware")
    EXTENSIONS.middleware[target_of(function)] = extension_of(function)
    return function


def hook(*events: str) -> Callable[[F], F]:
    """Calls the decorated function with each of these events, in the worker process and after the fact:
    `@fileq.hook("job.dead") def name(event): ...`. Best effort: an error is logged and changes nothing."""
    if not events or not all(isinstance(name, str) for name in events):
        raise ConfigError('@fileq.hook needs the names of events, such as @fileq.hook("job.completed", "job.dead")')

    def decorate(function: F) -> F:
        _require_function(function, "@fileq.hook")
        EXTENSIONS.hooks[f"{target_of(function)} {' '.join(events)}"] = extension_of(function, events)
        return function

    return decorate


def before_enqueue(function: F) -> F:
    """Calls the decorated function with each job before a producer or a client enqueues it: `def name(job): ...`. It
    returns the job, perhaps with changes (`job.but(priority="high")`), or None: then the job is not enqueued."""
    _require_function(function, "@fileq.before_enqueue")
    EXTENSIONS.before_enqueue[target_of(function)] = extension_of(function)
    return function


def _require_function(function: object, decorator: str) -> None:
    if not callable(function):
        raise ConfigError(f"{decorator} is for functions; it was given {function!r:.100}")


# The middleware of a worker, complete and checked: what the configuration names, or what was decorated.

MIDDLEWARE = "a middleware function", ("job", "context", "call")


def load_middleware(
    config: Config, importer: Importer, problems: list[str], warnings: list[str]
) -> tuple[Extension, ...]:
    """Outermost first. Adds to `problems` what can't be used, and to `warnings` decorated functions that do not run."""
    decorated = EXTENSIONS.middleware
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


# Hooks: which events they can have, and what they are given. runtime/observers.py calls them.

# A job that is given back because the worker stops has no hook: nothing happened to it.
HOOK_EVENTS: Mapping[str, type[Event]] = {
    "job.started": JobClaimed,
    **{
        name: EVENTS[name]
        for name in (
            *("job.completed", "job.failed", "job.dead", "job.cancelled", "job.recovered", "job.deferred"),
            *("job.fenced", "breaker.opened", "breaker.closed", "broker.lost", "broker.restored", "batch.finished"),
            *("schedule.fired", "schedule.missed", "schedule.broken"),
        )
    },
}
_NAMES = {kind: name for name, kind in HOOK_EVENTS.items()}


@public()
class EventView(Struct, frozen=True):
    """One event for a hook. `data` has the fields that docs/events.md lists for it; those that do not apply are left
    out."""

    name: str
    at: datetime
    data: Mapping[str, Any]

    @property
    def job_id(self) -> str:
        """ "" for an event that is not about a job."""
        return str(self.data.get("job_id", ""))

    @property
    def filepath(self) -> str:
        """The file of the job, as its producer knows it; "" without one."""
        return str(self.data.get("filepath", ""))

    @property
    def type(self) -> str:
        return str(self.data.get("type", ""))

    @property
    def error(self) -> str:
        return str(self.data.get("error", ""))


def view_of_event(event: Event) -> EventView:
    fields = (name for name in event.__struct_fields__ if name not in event.hidden)
    data = {name: value for name in fields if (value := getattr(event, name)) is not None}
    return EventView(_NAMES[type(event)], datetime.now(UTC), MappingProxyType(data))


def load_hooks(problems: list[str]) -> tuple[Extension, ...]:
    """The decorated hooks. Adds what is wrong with them to `problems`."""
    hooks = tuple(EXTENSIONS.hooks.values())
    for one in hooks:
        where = f"@fileq.hook on {one.target}"
        if fault := unfitness(one.function, "a hook", ("event",)):
            problems.append(f"{where}, which {fault}")
            continue
        problems += [
            f"{where} names the event {name!r}; {did_you_mean(name, HOOK_EVENTS)}"
            for name in one.events
            if name not in HOOK_EVENTS
        ]
    return hooks


# Lets the functions decorated with @fileq.before_enqueue change or veto a job before it is enqueued.
#
# Producers and clients call it in their own process. The broker knows nothing of it.

_FIXED = ("id", "filepath", "filepath_b64", "filesize", "signature", "file_inode", "retries", "recoveries")

_FORMS: Mapping[str, tuple[Callable[[Any], bool], str]] = {
    "max_retries": (lambda value: type(value) is int, "a whole number"),
    "timeout": (lambda value: type(value) in (int, float), "a number of seconds"),
    "deadline": (
        lambda value: isinstance(value, str) and parse_time(value) is not None,
        "a time as text, such as '2026-01-31T18:00:00Z'",
    ),
    "payload": (lambda value: isinstance(value, Raw), "encoded JSON: msgspec.Raw(msgspec.json.encode(…))"),
}


def load_before_enqueue(config: Config, *, app_dir: str) -> Callable[[Job], Job | None] | None:
    """What a producer calls for each job; None if there is nothing to call. Imports the modules of `producer.imports`,
    and raises ConfigError for what is wrong with them or their functions."""
    problems: list[str] = []
    if config.producer.imports:
        importer = Importer(app_dir)
        for i, name in enumerate(config.producer.imports):
            try:
                importer.module(name)
            except InvalidTarget as error:
                problems.append(f"producer.imports[{i}] {error}")
    for one in EXTENSIONS.before_enqueue.values():
        fault = unfitness(one.function, "a function for before_enqueue", ("job",))
        if fault or one.is_async:
            reason = fault or "is async; a producer does not await it"
            problems.append(f"@fileq.before_enqueue on {one.target}, which {reason}")
    if problems:
        raise ConfigError(problems)
    return apply_before_enqueue if EXTENSIONS.before_enqueue else None


def apply_before_enqueue(job: Job) -> Job | None:
    """The job to enqueue; None if a function vetoed it. The functions are called in the order of their import.

    Raises what they raise. Raises JobError if one returns something else than a job, has changed what is fixed, or
    gives the job a type that only fileq's own jobs have."""
    for target, one in tuple(EXTENSIONS.before_enqueue.items()):
        result = one.function(job)
        if result is None:
            return None
        if not isinstance(result, Job):
            raise JobError(f"{target} returned {result!r:.100}; it must return the job, a changed copy, or None")
        changed = [name for name in _FIXED if getattr(result, name) != getattr(job, name)]
        if changed:
            raise JobError(f"{target} changed {', '.join(changed)} of job {job.id}, which can't be changed")
        for name, (is_right, form) in _FORMS.items():
            value = getattr(result, name)
            if value is not getattr(job, name) and value is not None and value is not UNSET and not is_right(value):
                raise JobError(f"{target} changed {name} of job {job.id} to {value!r:.100}; it must be {form}")
        job = result
        check_content(job)
        check_unique_key(job)
        check_type(job.type)
    return job


def producer_warnings(config: Config) -> list[str]:
    """A decorated function runs in a producer only if the producer imports its module."""
    return [
        f"@fileq.before_enqueue on {one.target} does not run in a producer of its own; "
        f"name {one.function.__module__} in producer.imports"
        for one in EXTENSIONS.before_enqueue.values()
        if getattr(one.function, "__module__", "") not in config.producer.imports
    ]
