"""Gives a class the name under which users import it, in tracebacks, repr() and pickles: `fileq.JobFailed`.

Imports nothing heavy, not even typing: core/errors.py imports it, so `fileq --version` does."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any, TypeVar

    C = TypeVar("C", bound=type[Any])


def public(name: str = "") -> Callable[[C], C]:
    """Decorates a class of `fileq.__init__`. `name` is for one whose own name differs from its public one."""

    def rename(cls: C) -> C:
        if hasattr(cls, "__struct_fields__"):
            from typing import get_type_hints

            # msgspec reads annotations that are text in the module that the class names, so they are resolved before.
            hints = get_type_hints(cls, include_extras=True)
            cls.__annotations__ = {field: hints[field] for field in cls.__annotations__}
        cls.__module__ = "fileq"
        cls.__name__ = cls.__qualname__ = name or cls.__name__
        return cls

    return rename
