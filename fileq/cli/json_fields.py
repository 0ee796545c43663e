"""The fields that the commands print with --json: (field, type and meaning), for --help and docs/cli.md.

They are a contract: fields are added, never renamed or removed. They are read from the declarations of the documents
when they are asked for: every run of the command line loads this module, so it imports nothing heavy.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any

    from msgspec import Struct

    from fileq.cli.command import Pairs

# Documents whose fields are described at one command only.
_AT_COMMANDS = {"JobDocument": "admin list", "WorkerDocument": "admin workers", "BatchDocument": "batch show"}


def declared(document: str, inside: str = "", meaning: str = "", *, more: Pairs = ()) -> Callable[[], Pairs]:
    """The fields of a document, which is named as package.module:Class, with the descriptions that it declares.

    `inside` is the field that holds such documents, such as `jobs[]`. `more` are fields that no document declares."""

    def read() -> Pairs:
        module, _, name = document.partition(":")
        kind: type[Struct] = getattr(import_module(module), name)
        head = ((inside, meaning),) if inside else ()
        return (*more, *head, *_declared(kind, f"{inside}." if inside else ""))

    return read


def _declared(document: type[Struct], prefix: str) -> Iterator[tuple[str, str]]:
    """The fields, and below them those of the objects in it that say more than their name."""
    from typing import get_args, get_type_hints

    from msgspec import Meta, Struct
    from msgspec.structs import fields

    hints = get_type_hints(document, include_extras=True)
    for field in fields(document):
        name = prefix + field.encode_name
        notes = getattr(hints[field.name], "__metadata__", ())
        kind = getattr(hints[field.name], "__origin__", hints[field.name]) if notes else hints[field.name]
        meaning = next((note.description for note in notes if isinstance(note, Meta) and note.description), "")
        objects = [one for one in get_args(kind) or (kind,) if isinstance(one, type) and issubclass(one, Struct)]
        if not objects:
            words = _type_words(kind)
            if any(isinstance(note, Meta) and note.extra_json_schema for note in notes):
                words = words.replace("string", "string (RFC 3339)")
            yield name, f"{words}{f': {meaning}' if meaning else ''}"
            continue
        is_list = getattr(kind, "__origin__", None) is tuple
        name = f"{name}[]" if is_list else name
        if at := _AT_COMMANDS.get(objects[0].__name__):
            yield name, f"{f'{meaning}; ' if meaning else ''}as in `fileq {at} --json`"
            continue
        names = ", ".join(inner.encode_name for inner in fields(objects[0]))
        yield name, f"{f'{meaning}: ' if meaning else ''}{names}"
        yield from (row for row in _declared(objects[0], f"{name}.") if ": " in row[1])


def _type_words(kind: Any) -> str:
    from collections.abc import Mapping
    from typing import Any, get_args, get_origin

    parts = [part for part in get_args(kind) if part not in (type(None), ...)]
    if len(parts) < len(get_args(kind)) and get_origin(kind) is not tuple:
        return " or ".join([*map(_type_words, parts), "null"])
    if get_origin(kind) is tuple:
        words = _type_words(parts[0])
        return f"list of {words.replace('string', 'strings').replace('number', 'numbers')}"
    if kind is Any:
        return "any value"
    base = get_origin(kind) or kind
    if base in (bool, int, float):
        return "boolean" if base is bool else "number"
    if issubclass(base, Mapping):
        return "object"
    return "string"
