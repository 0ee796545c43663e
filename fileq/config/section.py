"""Sections of the configuration: frozen structs whose field types describe their keys completely.

A field is `Annotated[type, kind, "help text"]`. Reading, validation, listing, masking, the example file and the table
of docs/settings.md are all derived from it, so a new key is one line in schema.py. This module knows no key by name.
"""

from __future__ import annotations

import functools
import types
import typing
from collections.abc import Iterator, Mapping
from typing import Annotated, Any, ClassVar, Literal, TypeAlias, get_args, get_origin

import msgspec
from msgspec import Struct

from fileq.config.value_types import BooleanKind, ChoiceKind, IntegerKind, TextKind, ValueKind


class AtLeastOne:
    """Marks a list that must not be empty."""


class NotAKey:
    """Marks a field of a section that no source can set by name. Listings and the example file omit it."""


class ListOf(Struct, frozen=True):
    item: Shape
    min_items: int = 0


class MapOf(Struct, frozen=True):
    """A mapping whose keys the user chooses."""

    key: ValueKind
    value: ValueKind | type[Section]


class FreeMapping(Struct, frozen=True):
    """A mapping with any content, such as the payload of a job."""


AnyMapping: TypeAlias = dict[str, Any]


class Key(Struct, frozen=True):
    """One key of a section: its name, the shape of its value and its help text."""

    name: str
    shape: Shape
    help: str


class Section(Struct, frozen=True, kw_only=True):
    """Keys that belong together. `list_field` names the field that a plain list sets when it is given in place of the
    whole section. A sparse section is written without the keys that have their default."""

    list_field: ClassVar[str] = ""
    is_sparse: ClassVar[bool] = False

    def contradictions(self) -> Iterator[tuple[str, str]]:
        """Conflicts between keys that are individually valid: the key (or "" for the section) and what is wrong."""
        yield from ()

    def exactly_one(self, *names: str) -> Iterator[tuple[str, str]]:
        """A contradiction unless one of these keys is set."""
        given = [name for name in names if getattr(self, name) not in (None, "")]
        if not given:
            yield "", f"has neither {' nor '.join(names)}; give one of them"
        elif len(given) > 1:
            yield "", f"has both {given[0]} and {given[1]}; keep one of them"

    @classmethod
    def from_list(cls, items: tuple[Any, ...]) -> typing.Self:
        """The section that a plain list stands for. Only sections with a `list_field` implement it."""
        raise NotImplementedError

    def __repr__(self) -> str:
        shown = ", ".join(f"{name}={value!r}" for name, value in self.__rich_repr__())
        return f"{type(self).__name__}({shown})"

    def __rich_repr__(self) -> list[tuple[str, Any]]:
        """Name and masked value of each field. Tracebacks and debug logs print these, so no secret may be in them."""
        keys = keys_of(type(self))
        return [(name, _masked(keys.get(name), getattr(self, name))) for name in self.__struct_fields__]


Shape: TypeAlias = ValueKind | ListOf | MapOf | FreeMapping | type[Section]


@functools.cache
def keys_of(section: type[Section]) -> Mapping[str, Key]:
    """The keys that a user can write in this section, in order."""
    return {
        field.name: Key(
            field.name, shape_of(field.type), next(mark for mark in _marks_of(field.type) if isinstance(mark, str))
        )
        for field in msgspec.structs.fields(section)
        if NotAKey not in _marks_of(field.type)
    }


@functools.cache
def list_shape(section: type[Section]) -> ListOf | None:
    """The shape of the plain list that may replace this section, or None if no list may."""
    for field in msgspec.structs.fields(section):
        if field.name == section.list_field:
            shape = shape_of(field.type)
            assert isinstance(shape, ListOf)
            return shape
    return None


def shape_of(hint: Any) -> Shape:
    """The shape that a type hint describes. A kind in its annotation takes precedence over its type."""
    base = get_args(hint)[0] if get_origin(hint) is Annotated else hint
    marks = _marks_of(hint)
    for mark in marks:
        if isinstance(mark, ValueKind):
            return mark
    arguments = get_args(base)
    if get_origin(base) in (types.UnionType, typing.Union):
        return shape_of(next(argument for argument in arguments if argument is not type(None)))
    if get_origin(base) is tuple:
        return ListOf(shape_of(arguments[0]), min_items=int(AtLeastOne in marks))
    if get_origin(base) is Mapping:
        key, value = (shape_of(argument) for argument in arguments)
        assert isinstance(key, ValueKind)
        assert isinstance(value, ValueKind) or (isinstance(value, type) and issubclass(value, Section))
        return MapOf(key, value)
    if get_origin(base) is dict:
        return FreeMapping()
    if get_origin(base) is Literal:
        return ChoiceKind(arguments)
    if isinstance(base, type) and issubclass(base, Section):
        return base
    return {bool: BooleanKind(), int: IntegerKind(), str: TextKind()}[base]


def _marks_of(hint: Any) -> tuple[Any, ...]:
    return get_args(hint)[1:] if get_origin(hint) is Annotated else ()


def _masked(key: Key | None, value: Any) -> Any:
    return key.shape.mask(value) if key and isinstance(key.shape, ValueKind) and isinstance(value, str) else value


def walk(section: type[Section], path: str = "") -> Iterator[tuple[str, Key]]:
    """Every key below a section with its dotted path. A section comes before its own keys."""
    for key in keys_of(section).values():
        yield f"{path}{key.name}", key
        if isinstance(key.shape, type):
            yield from walk(key.shape, f"{path}{key.name}.")


def to_plain(shape: Shape, value: Any) -> Any:
    """The value as a person would write it in YAML, with secrets masked."""
    if isinstance(shape, ValueKind):
        text = shape.write(value)
        return shape.mask(text) if isinstance(text, str) else text
    if isinstance(shape, ListOf):
        return [to_plain(shape.item, item) for item in value]
    if isinstance(shape, MapOf):
        return {key: to_plain(shape.value, item) for key, item in value.items()}
    if isinstance(shape, FreeMapping):
        return value
    if (form := list_shape(shape)) and (items := getattr(value, shape.list_field)):
        return to_plain(form, items)
    defaults = shape() if shape.is_sparse else None
    return {
        key.name: to_plain(key.shape, getattr(value, key.name))
        for key in keys_of(shape).values()
        if defaults is None or getattr(value, key.name) != getattr(defaults, key.name)
    }
