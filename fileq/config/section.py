"""What a section of the configuration is: a frozen struct whose field types say everything about its keys.

A field is `Annotated[type, kind, "what it means"]`. From that come reading, checking, listing, redaction, the
example file and the table in the README; a new key is one line in schema.py.
"""

from __future__ import annotations

import functools
import types
import typing
from collections.abc import Iterator, Mapping
from typing import Annotated, Any, ClassVar, Literal, TypeAlias, get_args, get_origin

import msgspec
from msgspec import Struct

from fileq.config.kinds import Choice, Flag, Leaf, Text, Whole


class AtLeastOne:
    """Marks a list that must not be empty."""


class ListOf(Struct, frozen=True):
    item: Shape
    at_least: int = 0


class MapOf(Struct, frozen=True):
    """A mapping with keys of the user's choice."""

    key: Leaf
    value: Leaf


class Key(Struct, frozen=True):
    """One key of a section: what it holds and what it means."""

    name: str
    shape: Shape
    doc: str


class Section(Struct, frozen=True, kw_only=True):
    """Keys that belong together.

    `list_field` is what a plain list given for the whole section sets; it is not a key. A sparse section is
    written without the keys that are unset.
    """

    list_field: ClassVar[str] = ""
    is_sparse: ClassVar[bool] = False

    def faults(self) -> Iterator[tuple[str, str]]:
        """What is wrong with these values together, each being right by itself: key (or "") and sentence."""
        yield from ()

    @classmethod
    def from_list(cls, items: tuple[Any, ...]) -> typing.Self:
        """The section that a plain list stands for; only where there is a `list_field`."""
        raise NotImplementedError

    def __repr__(self) -> str:
        shown = ", ".join(f"{name}={value!r}" for name, value in self.__rich_repr__())
        return f"{type(self).__name__}({shown})"

    def __rich_repr__(self) -> list[tuple[str, Any]]:
        """Tracebacks with locals and debug logs print these; they must not hold a secret."""
        keys = keys_of(type(self))
        return [(name, _masked(keys.get(name), getattr(self, name))) for name in self.__struct_fields__]


Shape: TypeAlias = Leaf | ListOf | MapOf | type[Section]


@functools.cache
def keys_of(section: type[Section]) -> Mapping[str, Key]:
    """The keys a user can write in this section, in order."""
    fields = [field for field in msgspec.structs.fields(section) if field.name != section.list_field]
    return {field.name: Key(field.name, shape_of(field.type), _doc_of(field.type)) for field in fields}


@functools.cache
def list_shape(section: type[Section]) -> ListOf | None:
    """The shape of the plain list that may stand for this section."""
    for field in msgspec.structs.fields(section):
        if field.name == section.list_field:
            shape = shape_of(field.type)
            assert isinstance(shape, ListOf)
            return shape
    return None


def shape_of(hint: Any) -> Shape:
    """The shape a type hint stands for; a kind in its annotation goes before what its type implies."""
    base, marks = (get_args(hint)[0], get_args(hint)[1:]) if get_origin(hint) is Annotated else (hint, ())
    for mark in marks:
        if isinstance(mark, Leaf):
            return mark
    arguments = get_args(base)
    if get_origin(base) is types.UnionType or get_origin(base) is typing.Union:
        return shape_of(next(argument for argument in arguments if argument is not type(None)))
    if get_origin(base) is tuple:
        return ListOf(shape_of(arguments[0]), at_least=int(AtLeastOne in marks))
    if get_origin(base) is Mapping:
        key, value = (shape_of(argument) for argument in arguments)
        assert isinstance(key, Leaf)
        assert isinstance(value, Leaf)
        return MapOf(key, value)
    if get_origin(base) is Literal:
        return Choice(arguments)
    if isinstance(base, type) and issubclass(base, Section):
        return base
    return {bool: Flag(), int: Whole(), str: Text()}[base]


def _masked(key: Key | None, value: Any) -> Any:
    return key.shape.mask(value) if key and isinstance(key.shape, Leaf) and isinstance(value, str) else value


def _doc_of(hint: Any) -> str:
    return next((mark for mark in getattr(hint, "__metadata__", ()) if isinstance(mark, str)), "")


def walk(section: type[Section], path: str = "") -> Iterator[tuple[str, Key]]:
    """Every key below a section with its dotted path, sections before what they hold."""
    for key in keys_of(section).values():
        yield f"{path}{key.name}", key
        if isinstance(key.shape, type):
            yield from walk(key.shape, f"{path}{key.name}.")


def written(shape: Shape, value: Any) -> Any:
    """The value as a person would write it in YAML, with whatever is secret starred out."""
    if isinstance(shape, Leaf):
        text = shape.write(value)
        return shape.mask(text) if isinstance(text, str) else text
    if isinstance(shape, ListOf):
        return [written(shape.item, item) for item in value]
    if isinstance(shape, MapOf):
        return {key: written(shape.value, item) for key, item in value.items()}
    if (form := list_shape(shape)) and (items := getattr(value, shape.list_field)):
        return written(form, items)
    absent = shape() if shape.is_sparse else None
    return {
        key.name: written(key.shape, getattr(value, key.name))
        for key in keys_of(shape).values()
        if absent is None or getattr(value, key.name) != getattr(absent, key.name)
    }
