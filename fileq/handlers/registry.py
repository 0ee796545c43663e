"""The functions decorated with @fileq.handler and @fileq.task. routes.py checks them and makes routes of them when it
loads.

REGISTRY is the only global list of the package: decorators run while the user's modules are imported, when there is no
object yet that could be passed to them. Nothing else may be kept here. It is one object for the life of the process,
because other modules import it by name: a reload replaces its entries (`reset`).
"""

from __future__ import annotations

import functools
import inspect
import typing
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from types import NoneType, SimpleNamespace
from typing import Any, Final, Generic, Literal, TypedDict, TypeVar, Unpack

import msgspec
from msgspec import UNSET, Struct
from msgspec.structs import replace

from fileq.core.errors import ConfigError
from fileq.core.job import json_of
from fileq.core.job_options import JobOptions, JobRequest
from fileq.core.text import check_names
from fileq.core.units import Duration
from fileq.handlers.context import Context, JobView

# A task: a function with a name, by which any process can enqueue a job for it, and the types of what goes in and
# out.
#
# The types are read from the annotations when they are first needed, because a module may define them after the
# function. client/tasks.py has the decorator; this module knows no broker.

P = TypeVar("P")
R = TypeVar("R")
LONGEST_NAME = 100
_ADVICE = "define or import its types at the top of the module"


def target_of(function: Callable[..., Any]) -> str:
    """`package.module:function`."""
    name = getattr(function, "__qualname__", type(function).__name__)
    return f"{getattr(function, '__module__', '?')}:{name}"


class TaskDefinition(Generic[P, R]):
    """`function` is what runs, `name` the type of its jobs, `priority` their queue if the caller names none."""

    def __init__(self, function: Callable[[JobView[P], Context], Any], name: str, priority: str = "") -> None:
        functools.update_wrapper(self, function)
        self.function = function
        self.target = target_of(function)
        self.name = name
        self.priority = priority

    def __call__(self, job: JobView[P], context: Context) -> R:
        """Calls the function itself, in this process; of an async function the coroutine."""
        result: R = self.function(job, context)
        return result

    def __repr__(self) -> str:
        return f"<task {self.name!r}: {self.target}>"

    @functools.cached_property
    def payload_type(self) -> Any:
        """The P of the first parameter's JobView[P]; Any if there is none. ConfigError for a class that no job is of,
        such as that of the payload."""
        first = next(iter(inspect.signature(self.function).parameters), "")
        annotation = _bare(self._annotation(first))
        # From Python 3.11 on Any, the annotation of a parameter without one, is a class too.
        is_class = isinstance(annotation, type) and annotation is not Any
        is_class = is_class and not getattr(annotation, "_is_protocol", False)
        if is_class and not issubclass(JobView, annotation) and not issubclass(annotation, JobView):
            name = annotation.__name__
            advice = f"{first!r} is annotated with {name}; write {first}: fileq.JobView[{name}]"
            raise ConfigError(f"task {self.name!r} ({self.target}): {advice}")
        arguments = typing.get_args(annotation) if typing.get_origin(annotation) is JobView else ()
        return Any if not arguments or isinstance(arguments[0], TypeVar) else arguments[0]

    @functools.cached_property
    def payload_decoder(self) -> msgspec.json.Decoder[Any]:
        decoder = self._decoder(self.payload_type, "payload")
        if unread := _type_without_json(self.payload_type):
            raise ConfigError(
                f"task {self.name!r} ({self.target}) has a payload with the type {unread.__name__}, which fileq can't "
                "read from JSON; use a msgspec Struct or a dataclass, or dict and build the object in the task"
            )
        return decoder

    @functools.cached_property
    def result_decoder(self) -> msgspec.json.Decoder[Any]:
        return self._decoder(self._annotation("return"), "result")

    @property
    def result_warning(self) -> str:
        """Why no job of this task can complete; "" if nothing is wrong with the type of its result, or if that can't be
        resolved here: only callers that wait need it."""
        try:
            unkept = _type_without_json(self._annotation("return"))
        except Exception:
            return ""
        name = f"task {self.name!r} ({self.target})"
        return f"{name} returns {unkept.__name__}, which JSON can't hold: its jobs would be dead" if unkept else ""

    @property
    def payload_name(self) -> str:
        """The payload's type for people; "" if it can be anything."""
        type = _bare(self.payload_type)
        if type is Any or type is NoneType:
            return "" if type is Any else "None"
        return str(type) if typing.get_args(type) else getattr(type, "__name__", str(type))

    def checked_payload(self, raw: bytes) -> bytes:
        """These bytes, if they are JSON of the payload's type. Raises ConfigError otherwise."""
        try:
            self.payload_decoder.decode(raw)
        except (msgspec.DecodeError, ValueError) as error:
            wanted = f"a payload of type {self.payload_name}"
            if raw == b"null":
                raise ConfigError(f"task {self.name!r} needs {wanted}") from None
            advice = _ADDED_ADVICE if self.payload_type in (None, type(None)) and _is_added_to(raw) else ""
            raise ConfigError(f"task {self.name!r} takes {wanted}: {error}{advice}") from error
        return raw

    def _annotation(self, name: str) -> Any:
        """The type behind one annotation. The others may name what only type checkers import."""
        annotation = getattr(self.function, "__annotations__", {}).get(name, Any)
        holder = SimpleNamespace(__annotations__={name: annotation})
        try:
            names = getattr(inspect.unwrap(self.function), "__globals__", {})
            found = typing.get_type_hints(holder, names, include_extras=True)  # the limits in Annotated
        except Exception as error:
            fault = f"the annotation {annotation!r}, which can't be resolved ({error}); {_ADVICE}"
            raise ConfigError(f"task {self.name!r} ({self.target}) has {fault}") from error
        return found[name]

    def _decoder(self, type: Any, what: str) -> msgspec.json.Decoder[Any]:
        try:
            return msgspec.json.Decoder(type)
        except Exception as error:  # the annotations of its fields are evaluated only now
            fault = f"whose types can't be resolved ({error}); {_ADVICE}"
            if isinstance(error, TypeError):
                fault = f"that JSON can't hold: {error}"
            raise ConfigError(f"task {self.name!r} ({self.target}) has a {what} {fault}") from error


def _bare(type: Any) -> Any:
    """The type itself, without what Annotated says of it."""
    return typing.get_args(type)[0] if typing.get_origin(type) is typing.Annotated else type


def _type_without_json(of: Any) -> type | None:
    """A class within this type of which no JSON value is an instance, such as a pydantic model or Path; None if there
    is none. msgspec makes a decoder for it that refuses everything, and encodes no instance."""
    from msgspec import inspect as types  # enqueueing by name needs no types

    left: list[Any] = [types.type_info(of)]
    seen: list[Any] = []  # by identity: a type may contain itself
    while left:
        one = left.pop()
        if isinstance(one, (tuple, list)):
            left += one
        elif isinstance(one, types.CustomType):
            try:
                if not any(issubclass(value, one.cls) for value in (dict, list, str, int, float, bool, NoneType)):
                    return one.cls
            except TypeError:  # a protocol with attributes
                continue
        elif isinstance(one, (types.Type, types.Field)) and not any(one is known for known in seen):
            seen.append(one)
            left += [getattr(one, name) for name in one.__struct_fields__]
    return None


F = TypeVar("F", bound=Callable[..., Any])
RetryIf = Callable[[BaseException], object]


class Registration(Struct, frozen=True):
    """A function and the options given to its decorator, not checked yet; options left out are not in `options`.
    `retry_if` gets what the function raised; if it returns False, the job is not retried."""

    function: Callable[..., Any]
    match: str | None
    type: str | None
    options: Mapping[str, Any]
    retry_if: RetryIf | None = None

    @property
    def target(self) -> str:
        return target_of(self.function)

    @property
    def where(self) -> str:
        return f"@fileq.{'handler' if self.task is None else 'task'} on {self.target}"

    @property
    def task(self) -> TaskDefinition[Any, Any] | None:
        return self.function if isinstance(self.function, TaskDefinition) else None


class Registry:
    """Decorated functions in the order of their decoration. A module that is imported again replaces its entries, also
    if it was first imported as the main program."""

    def __init__(self) -> None:
        self._entries: dict[tuple[str, str | None, str | None], Registration] = {}

    def reset(self, registrations: Iterable[Registration] = ()) -> None:
        """Replaces all entries in one step: other threads see the old ones or the new ones."""
        self._entries = {(one.target, one.match, one.type): one for one in registrations}

    def add(self, registration: Registration) -> None:
        """Raises ConfigError for a second task of the same name."""
        task = registration.task
        other = self.task(task.name) if task is not None else None
        if task is not None and other is not None and not _is_same(task, other):
            raise ConfigError(
                f"two tasks are named {task.name!r}: {other.target} and {task.target}; give one of them another name"
            )
        if other is not None:
            del self._entries[other.target, None, other.name]
        self._entries[registration.target, registration.match, registration.type] = registration

    def task(self, name: str) -> TaskDefinition[Any, Any] | None:
        return next((task for task in self.tasks() if task.name == name), None)

    def tasks(self) -> Iterator[TaskDefinition[Any, Any]]:
        return (one.task for one in self if one.task is not None)

    def __iter__(self) -> Iterator[Registration]:
        return iter(tuple(self._entries.values()))


def _is_same(task: TaskDefinition[Any, Any], other: TaskDefinition[Any, Any]) -> bool:
    codes = [getattr(one.function, "__code__", None) for one in (task, other)]
    places = [(code.co_filename, code.co_qualname) if code is not None else None for code in codes]
    return task.target == other.target or (places[0] is not None and places[0] == places[1])


REGISTRY: Final = Registry()


_ADDED_ADVICE = (
    "; fileq itself gives its job a payload: scheduled_for and missed to that of a schedule, id, type, path, error and "
    "result to that of on_completed and on_dead; take JobView[dict] or a Struct with them"
)


def _is_added_to(raw: bytes) -> bool:
    """Whether this is the payload of a job that fileq makes, with what it always has."""
    return b'"scheduled_for":' in raw or (b'"id":' in raw and b'"error":' in raw)


def task_named(task: TaskDefinition[Any, Any] | str) -> TaskDefinition[Any, Any] | None:
    """The task itself; for a name, the task that this process has registered under it, or None."""
    if isinstance(task, TaskDefinition):
        return task
    if not isinstance(task, str) or not 0 < len(task) <= LONGEST_NAME or not task.isprintable():
        named = f"its name in 1 to {LONGEST_NAME} printable characters"
        raise ConfigError(f"task is {task!r:.120}; give a task, or {named}")
    return REGISTRY.task(task)


def encoded_payload(payload: Any, name: str) -> bytes:
    if isinstance(encoded := json_of(payload), str):
        raise ConfigError(f"the payload of task {name!r} {encoded}")
    return encoded


def typed_request(task: TaskDefinition[Any, Any] | str, payload: Any, options: JobOptions) -> JobRequest:
    """For a job of a task. If this process knows the task, the payload is checked, and its priority is the default."""
    definition, name = task_named(task), task if isinstance(task, str) else task.name
    if definition is not None and definition.priority and not options.priority:
        options = replace(options, priority=definition.priority)
    encoded = None if payload is UNSET or payload is None else encoded_payload(payload, name)
    if definition is not None:
        definition.checked_payload(encoded if encoded is not None else b"null")
    return JobRequest(options, name, encoded)


def payload_fault(type: str, payload: bytes) -> str:
    """Why the task of this name does not take this JSON; "" if it does, or if this process does not know the task."""
    task = REGISTRY.task(type)
    try:
        if task is not None:
            task.checked_payload(payload)
    except ConfigError as error:
        return str(error)
    return ""


class TaskOptions(TypedDict, total=False):
    """The options of @fileq.task and @fileq.handler: those of a route in the configuration. Durations may also be
    numbers of seconds or a timedelta, and `give_up_on` may hold exception classes."""

    timeout: Duration | None
    max_retries: int | None
    backoff: Mapping[str, Any] | Sequence[Duration] | None
    give_up_on: Sequence[int | str | type[BaseException]]
    isolation: Literal["process", "thread"] | None
    circuit_breaker: Mapping[str, Any] | None
    max_running: int | None
    max_running_total: int | None
    rate: str | None
    on_completed: TaskDefinition[Any, Any] | str | None
    on_dead: TaskDefinition[Any, Any] | str | None


class HandlerOptions(TaskOptions, total=False):
    """The options of @fileq.handler."""

    name: str | None
    in_place: bool
    safe_open: bool | None


def given_options(options: Mapping[str, Any], declared: type, *also: str) -> dict[str, Any]:
    """Those that are set. TypeError for one that does not exist, as Python raises it for a parameter. `also` are the
    decorator's other keywords."""
    check_names(options, declared, also=also)
    given = {**options, "give_up_on": list(options.get("give_up_on") or ()) or None}
    return {name: value for name, value in given.items() if value is not None}


def handler(
    match: str | None = None,
    *,
    type: str | None = None,
    retry_if: RetryIf | None = None,
    **options: Unpack[HandlerOptions],
) -> Callable[[F], F]:
    """Routes files that match a glob, or jobs of a type, to the decorated function. The function itself is unchanged.

    The glob matches the path below the root, case-sensitive: `*.pdf` is the top level only, `**/*.pdf` any depth.
    `retry_if` is called with the exception of a failed attempt; if it returns False, the job is not retried."""
    if callable(match):
        raise ConfigError('@fileq.handler needs a glob or a type, such as @fileq.handler("**/*.pdf")')
    given = given_options(options, HandlerOptions, "type", "retry_if")

    def decorate(function: F) -> F:
        REGISTRY.add(Registration(function, match, type, given, retry_if))
        return function

    return decorate
