"""Says in words what a value of a type must be, for messages about requests: "a whole number from 1 to 1,000".

Knows the types that the fields of bodies and queries have. Reads no values.
"""

from __future__ import annotations

from functools import cache
from typing import Any

from msgspec import inspect


@cache
def in_words(type: Any) -> str:
    """What a value must be. `null` is not named: a field that may be null may be left out, too."""
    return _words(inspect.type_info(type))


def _words(type: inspect.Type) -> str:
    match type:
        case inspect.Metadata():
            return _words(type.type)
        case inspect.UnionType():
            return ", or ".join(_words(one) for one in type.types if not isinstance(one, inspect.NoneType))
        case inspect.BoolType():
            return "true or false"
        case inspect.IntType():
            return f"a whole number{_range(type.ge, type.le)}"
        case inspect.FloatType():
            return f"a number{_range(type.ge, type.le)}"
        case inspect.StrType():
            rule = f" that matches {type.pattern}" if type.pattern is not None else ""
            return f"a text{_length(type.min_length, type.max_length, 'characters')}{rule}"
        case inspect.DateTimeType():
            return "a time with its zone, such as 2026-01-31T18:00:00Z"
        case inspect.LiteralType():
            return f"one of {', '.join(map(str, type.values))}"
        case inspect.EnumType():
            return f"one of {', '.join(str(one.value) for one in type.cls)}"
        case inspect.ListType() | inspect.VarTupleType():
            return f"a list{_length(type.min_length, type.max_length, 'items')}, each {_words(type.item_type)}"
        case inspect.DictType():
            of_each = "" if isinstance(type.value_type, inspect.AnyType) else f", each {_words(type.value_type)}"
            return f"an object{_length(type.min_length, type.max_length, 'members')}{of_each}"
        case inspect.StructType():
            return "an object"
    return "a JSON value"


def _range(least: float | None, most: float | None) -> str:
    if least is not None and most is not None:
        return f" from {_number(least)} to {_number(most)}"
    if least is not None:
        return f" of at least {_number(least)}"
    return f" of at most {_number(most)}" if most is not None else ""


def _length(least: int | None, most: int | None, what: str) -> str:
    if most is not None:
        return f" of {least:,} to {most:,} {what}" if least else f" of at most {most:,} {what}"
    return f" of at least {least:,} {what if least > 1 else what.removesuffix('s')}" if least else ""


def _number(value: float) -> str:
    return f"{value:,.0f}" if float(value).is_integer() else f"{value:,}"
