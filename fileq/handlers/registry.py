"""The functions decorated with @fileq.handler and @fileq.task. routes.py checks them and makes routes of them when it
loads.

REGISTRY is the only global list of the package: decorators run while the user's modules are imported, when there is no
object yet that could be passed to them. Nothing else may be kept here. It is one object for the life of the process,
because other modules import it by name: a reload replaces its entries (`reset`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, Literal, TypeVar

from msgspec import Struct

from fileq.core.errors import ConfigError
from fileq.handlers.task_definition import TaskDefinition

if TYPE_CHECKING:
    from fileq.handlers.making import NamedTask

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
        name = getattr(self.function, "__qualname__", type(self.function).__name__)
        return f"{getattr(self.function, '__module__', '?')}:{name}"

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


def handler(
    match: str | None = None,
    *,
    type: str | None = None,
    timeout: float | str | None = None,
    max_retries: int | None = None,
    backoff: Mapping[str, Any] | Sequence[float | str] | None = None,
    isolation: Literal["process", "thread"] | None = None,
    in_place: bool = False,
    safe_open: bool | None = None,
    give_up_on: Sequence[int | str | type[BaseException]] = (),
    retry_if: RetryIf | None = None,
    name: str | None = None,
    circuit_breaker: Mapping[str, Any] | None = None,
    max_running: int | None = None,
    max_running_total: int | None = None,
    rate: str | None = None,
    on_completed: NamedTask | str | None = None,
    on_dead: NamedTask | str | None = None,
) -> Callable[[F], F]:
    """Routes files that match a glob, or jobs of a type, to the decorated function. The function itself is unchanged.

    The glob matches the path below the root, case-sensitive: `*.pdf` is the top level only, `**/*.pdf` any depth.
    The options are those of a route in the configuration. Durations may also be numbers of seconds, and `give_up_on`
    may hold exception classes. `retry_if` is called with the exception; if it returns False, the job is not retried."""
    if callable(match):
        raise ConfigError('@fileq.handler needs a glob or a type, such as @fileq.handler("**/*.pdf")')
    given = {
        "timeout": timeout,
        "max_retries": max_retries,
        "backoff": backoff,
        "isolation": isolation,
        "in_place": in_place or None,
        "safe_open": safe_open,
        "give_up_on": list(give_up_on) or None,
        "name": name,
        "circuit_breaker": circuit_breaker,
        "max_running": max_running,
        "max_running_total": max_running_total,
        "rate": rate,
        "on_completed": on_completed,
        "on_dead": on_dead,
    }
    options = {name: value for name, value in given.items() if value is not None}

    def decorate(function: F) -> F:
        REGISTRY.add(Registration(function, match, type, options, retry_if))
        return function

    return decorate
