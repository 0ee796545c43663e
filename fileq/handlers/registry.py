"""What @fileq.handler remembers. The one list that lives in a module: decorators run while modules are imported,
before anybody could hand them anything. Checked and turned into routes when routes are loaded.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Literal, TypeVar

from msgspec import Struct

from fileq.core.errors import ConfigError

F = TypeVar("F", bound=Callable[..., Any])


class Registration(Struct, frozen=True):
    """A function and the options it was decorated with, as they were given; what was left out is not in them."""

    function: Callable[..., Any]
    match: str | None
    type: str | None
    options: Mapping[str, Any]

    @property
    def target(self) -> str:
        name = getattr(self.function, "__qualname__", type(self.function).__name__)
        return f"{getattr(self.function, '__module__', '?')}:{name}"

    @property
    def where(self) -> str:
        return f"@fileq.handler on {self.target}"


class Registry:
    """Decorated functions in the order of their decoration. A module that is loaded again replaces its own."""

    def __init__(self) -> None:
        self._entries: dict[tuple[str, str | None, str | None], Registration] = {}

    def add(self, registration: Registration) -> None:
        self._entries[registration.target, registration.match, registration.type] = registration

    def __iter__(self) -> Iterator[Registration]:
        return iter(tuple(self._entries.values()))


REGISTRY = Registry()


def handler(
    match: str | None = None,
    *,
    type: str | None = None,
    timeout: float | str | None = None,
    max_retries: int | None = None,
    backoff: Mapping[str, Any] | Sequence[float | str] | None = None,
    isolation: Literal["process", "thread"] | None = None,
    in_place: bool = False,
    give_up_on: Sequence[int | str | type[BaseException]] = (),
) -> Callable[[F], F]:
    """Routes files that match a glob, or jobs of a type, to the decorated function, which stays as it is.

    The options are those of a route in the configuration; durations may also be numbers, in seconds, and exceptions
    classes."""
    if callable(match):
        raise ConfigError('@fileq.handler needs a glob or a type, such as @fileq.handler("**/*.pdf")')
    given = {
        "timeout": timeout,
        "max_retries": max_retries,
        "backoff": backoff,
        "isolation": isolation,
        "in_place": in_place or None,
        "give_up_on": list(give_up_on) or None,
    }
    options = {name: value for name, value in given.items() if value is not None}

    def decorate(function: F) -> F:
        REGISTRY.add(Registration(function, match, type, options))
        return function

    return decorate
