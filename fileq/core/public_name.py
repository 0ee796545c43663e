"""Gives a class the name under which users import it, in tracebacks, repr() and pickles: `fileq.JobFailed`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar, get_type_hints

from msgspec import Struct

C = TypeVar("C", bound=type[Any])


def public(name: str = "") -> Callable[[C], C]:
    """Decorates a class of `fileq.__init__`. `name` is for one whose own name differs from its public one."""

    def rename(cls: C) -> C:
        if issubclass(cls, Struct):
            # msgspec reads annotations that are text in the module that the class names, so they are resolved before.
            hints = get_type_hints(cls, include_extras=True)
            cls.__annotations__ = {field: hints[field] for field in cls.__annotations__}
        cls.__module__ = "fileq"
        cls.__name__ = cls.__qualname__ = name or cls.__name__
        return cls

    return rename
