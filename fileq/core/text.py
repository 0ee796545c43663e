"""Text that is safe to print."""

from __future__ import annotations

import re
from collections.abc import Collection
from typing import Any

import msgspec

_BROKERS = {"redis": "Redis", "sqlite": "SQLite"}


def broker_name(kind: str) -> str:
    """The value of the setting `broker` as text writes it: Redis, SQLite."""
    return _BROKERS.get(kind, kind)


def printable(text: str) -> str:
    """The text in one line and without control characters; a file name may contain line breaks and escape sequences.
    Its bytes that are not UTF-8 are shown as \\xe9, as in the paths of jobs."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else _escaped(c) for c in text)


def _escaped(character: str) -> str:
    if "\udc80" <= character <= "\udcff":  # a byte of a file name, by surrogateescape
        return f"\\x{ord(character) - 0xDC00:02x}"
    return character.encode("unicode_escape", "backslashreplace").decode()


def quoted_path(path: str | bytes) -> str:
    """A path in quotes for a message, with each character that printable() escapes."""
    text = path if isinstance(path, str) else path.decode(errors="surrogateescape")
    return f"'{printable(text)}'"


def printable_lines(text: str) -> str:
    """The text with its line breaks and tabs, and without other control characters: a traceback, for example."""
    return "\n".join("\t".join(map(printable, line.split("\t"))) for line in text.split("\n"))


def printable_json(text: str) -> str:
    """The same JSON document; characters that control a terminal or reorder its text are escaped as \\uXXXX. Encoders
    escape only the control characters below 0x20. The others can only be within strings."""
    if text.isprintable():
        return text
    import json  # needed here only, and commands should start fast

    return "".join(c if c.isprintable() or c < " " else json.dumps(c)[1:-1].replace("\x7f", "\\u007f") for c in text)


def shown_json(value: Any) -> bytes:
    """The value as JSON for the outside. Bytes of a file name that are not UTF-8 are escaped: \\udce9."""
    try:
        return msgspec.json.encode(value)
    except UnicodeEncodeError:
        return msgspec.json.encode(_in_utf8(msgspec.to_builtins(value)))


def _in_utf8(value: Any) -> Any:
    if isinstance(value, str):
        return value.encode(errors="backslashreplace").decode()
    if isinstance(value, dict):
        return {_in_utf8(key): _in_utf8(item) for key, item in value.items()}
    return [_in_utf8(item) for item in value] if isinstance(value, list | tuple) else value


_KEY_OR_BRACE = re.compile(rb'("(?:[^"\\]|\\.)*"?)(?:\s*(:))?|[{}]')


def repeated_key(document: bytes) -> str:
    """The first key that an object of this JSON document has twice; "" if there is none. A decoder would keep its last
    value without a word. The document must be valid."""
    objects: list[set[str]] = []  # the keys of the objects that are open
    for found in _KEY_OR_BRACE.finditer(document):
        key, colon = found.groups()
        if colon:
            name: str = msgspec.json.decode(key)
            if name in objects[-1]:
                return name
            objects[-1].add(name)
        elif key is None and found[0] == b"{":
            objects.append(set())
        elif key is None:
            objects.pop()
    return ""


def did_you_mean(name: str, known: Collection[str], otherwise: str | None = None) -> str:
    """The advice for a name that is not known: the one that was probably meant, else `otherwise`, else all of them."""
    import difflib  # needed here only, and commands should start fast

    if near := difflib.get_close_matches(name, known, n=1):
        return f"did you mean {near[0]!r}?"
    return f"known: {', '.join(known)}" if otherwise is None else otherwise


def unknown_key(name: str, known: Collection[str]) -> str:
    """Says that a key of a document is not known, and which one was meant or which ones there are."""
    return f"the key {name[:50]!r} is unknown; {did_you_mean(name[:50].lower(), known)}"


def check_names(given: Collection[str], declared: type, what: str = "option", *, also: Collection[str] = ()) -> None:
    """TypeError for a keyword that this TypedDict does not declare. `also` are the function's other keywords."""
    known = sorted({*declared.__annotations__, *also})
    if unknown := sorted(set(given).difference(known)):
        advice = did_you_mean(unknown[0], known, "")
        raise TypeError(f"unexpected {what} {unknown[0]!r}; known: {', '.join(known)}{advice and '; '}{advice}")


SHORTEST_HIDDEN = 3  # a shorter path or name, such as "/", would be found in any text


def without_path(text: str, path: str) -> str:
    """The text with `…` in place of the path, and of the name of its file, which errors often say alone."""
    for part in (path, path.rpartition("/")[2]):
        if len(part) >= SHORTEST_HIDDEN:
            text = text.replace(part, "…")
    return text


def end_of_path(path: str, longest: int) -> str:
    """`…/2026/a.pdf`: the name of the file, and as many directories before it as fit into so many characters."""
    if not path.startswith("/"):
        return path
    directories, _, end = path.rpartition("/")
    while directories and len(end) + len(directory := directories.rpartition("/")[2]) + 3 <= longest:
        end, directories = f"{directory}/{end}", directories.rpartition("/")[0]
    return f"…/{end}" if directories else path
