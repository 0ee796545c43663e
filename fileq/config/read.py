"""Reads a tree of texts into sections of the configuration, and remembers the origin of every value.

Owns the tree (`Node`, `Origin`) that sources.py builds, and every message about a single key or value. The reader
collects all problems instead of stopping at the first one. Rules between keys of different sections are in resolve.py.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Literal, TypeAlias, TypeVar

import msgspec
from msgspec import Struct

from fileq.config.schema import every_key
from fileq.config.section import FreeMapping, ListOf, MapOf, Section, Shape, keys_of, list_shape
from fileq.config.value_types import TextKind, ValueKind

_SHOWN_MAX = 80  # characters of a value that an error message shows

Layer: TypeAlias = Literal["default", "file", "env", "--set"]
S = TypeVar("S", bound=Section)


class Origin(Struct, frozen=True):
    """The layer that a value came from, and the position in it: `config.yaml:12`, `WORKER_COUNT`."""

    layer: Layer
    name: str = ""

    def __str__(self) -> str:
        return self.name or self.layer

    def invalid(self, key: str, shown: str, expected: str) -> str:
        """One line that names the origin, the key, its value and what is expected."""
        if self.layer == "env":
            return f"{self.name} is {shown}; {key} must be {expected}"
        return self.message(f"{key} is {shown}; it must be {expected}")

    def message(self, text: str) -> str:
        """One line about something other than a single value."""
        return f"{self}: {text}"


DEFAULT = Origin("default")


class Node(Struct, frozen=True):
    """A text, nothing, a list or a mapping. Numbers and booleans are still text; `is_plain` if it has no quotes."""

    value: str | list[Node] | dict[str, Node] | None
    origin: Origin
    is_plain: bool = False

    def at(self, path: str) -> Node | None:
        """The node at a dotted path, or None."""
        node: Node | None = self
        for part in path.split("."):
            node = node.value.get(part) if node and isinstance(node.value, dict) else None
        return node

    def to_plain(self) -> Any:
        if isinstance(self.value, dict):
            return {key: node.to_plain() for key, node in self.value.items()}
        return [node.to_plain() for node in self.value] if isinstance(self.value, list) else self.value


def nested(path: Iterable[str], node: Node) -> Node:
    """The node below the keys of `path`."""
    for part in reversed(tuple(path)):
        node = Node({part: node}, node.origin)
    return node


def overlay(base: Node, over: Node) -> Node:
    """Both trees as one. `over` wins; mappings are merged key by key, any other value is replaced as a whole."""
    if over.value is None:
        return base
    if not isinstance(base.value, dict) or not isinstance(over.value, dict):
        return over
    merged = dict(base.value)
    for key, node in over.value.items():
        merged[key] = overlay(merged[key], node) if key in merged else node
    return Node(merged, over.origin)


def from_python(value: Any, origin: Origin) -> Node:
    """The tree of plain Python values."""
    if isinstance(value, Mapping):
        return Node({str(key): from_python(item, origin) for key, item in value.items()}, origin)
    if isinstance(value, list | tuple):
        return Node([from_python(item, origin) for item in value], origin)
    return Node(None if value is None else str(value), origin, is_plain=isinstance(value, bool | int | float))


def free_value(node: Node) -> Any:
    """The node as JSON values: a text without quotes that JSON would read as a number, true or false is one."""
    if isinstance(node.value, dict):
        return {key: free_value(item) for key, item in node.value.items()}
    if isinstance(node.value, list):
        return [free_value(item) for item in node.value]
    if node.value is None or not node.is_plain:
        return node.value
    try:
        value = msgspec.json.decode(node.value.lower() if node.value in ("True", "False") else node.value)
    except (msgspec.DecodeError, UnicodeEncodeError):
        return node.value
    return value if isinstance(value, bool | int | float) else node.value


class Reader(Struct):
    """Reads one tree."""

    problems: list[str] = []
    origins: dict[str, Origin] = {}  # of every value that was given, by path
    invalid: set[str] = set()  # the paths that have a problem

    def is_valid(self, *paths: str) -> bool:
        """Whether there is no problem at or below these paths."""
        return not any(f"{wrong}.".startswith((f"{path}.", f"{path}[")) for wrong in self.invalid for path in paths)

    def section(self, kind: type[S], node: Node, path: str, default: S | None = None) -> S:
        """The section that the node describes. Keys that it leaves out are as in `default`."""
        default = default or kind()
        form = list_shape(kind)
        if form and isinstance(node.value, list):
            items = self._items(form, node, path, ())
            return kind.from_list(items) if self.is_valid(path) else default
        if not isinstance(node.value, dict):
            self._reject(node, path, f"a section of keys{' or a list' if form else ''}")
            return default
        section = self._fields(kind, node.value, path, default)
        if self.is_valid(path):
            for name, sentence in section.contradictions():
                origin = node.value[name].origin if name in node.value else node.origin
                self._add(path, origin.message(f"{path}{'.' if path and name else ''}{name} {sentence}"))
        return section

    def _fields(self, kind: type[S], given: dict[str, Node], path: str, default: S) -> S:
        prefix = f"{path}." if path else ""
        keys = keys_of(kind)
        for name, node in given.items():
            if name not in keys:
                siblings = [prefix + key for key in keys]
                self._add(prefix + name, node.origin.message(unknown_key(prefix + name, siblings)))
        changes = {
            name: self._value(key.shape, given[name], prefix + name, getattr(default, name))
            for name, key in keys.items()
            if name in given and given[name].value is not None  # a key without a value counts as left out
        }
        return msgspec.structs.replace(default, **changes)

    def _value(self, shape: Shape, node: Node, path: str, default: Any) -> Any:
        self.origins[path] = node.origin
        if isinstance(shape, ValueKind):
            return self._single(shape, node, path, default)
        if isinstance(shape, ListOf):
            return self._items(shape, node, path, default)
        if isinstance(shape, MapOf):
            return self.entries(shape, node, path, default)
        if isinstance(shape, FreeMapping):
            if not isinstance(node.value, dict):
                self._reject(node, path, "a mapping such as {a: b}", node.value)
                return default
            return free_value(node)
        return self.section(shape, node, path, default)

    def _single(self, kind: ValueKind, node: Node, path: str, default: Any) -> Any:
        if not isinstance(node.value, str):
            self._reject(node, path, kind.expects)
            return default
        try:
            return kind.read(node.value)
        except ValueError as error:
            self._reject(node, path, str(error), kind.mask_invalid(node.value))
            return default

    def _items(self, shape: ListOf, node: Node, path: str, default: Any) -> Any:
        if not isinstance(node.value, list) or len(node.value) < shape.min_items:
            example = _as_words(node.value) if shape.item == TextKind() and isinstance(node.value, str) else ""
            such_as = f"such as {example or '[a, b]'}"
            expected = f"a list{' of at least one item' if shape.min_items else ''}, {such_as}"
            self._reject(node, path, expected, node.value)
            return default
        return tuple(self._value(shape.item, item, f"{path}[{index}]", None) for index, item in enumerate(node.value))

    def entries(self, shape: MapOf, node: Node, path: str, default: Any) -> Any:
        """The mapping that the node describes, added to `default`."""
        if not isinstance(node.value, dict):
            self._reject(node, path, "a mapping such as {a: b}", node.value)
            return default
        entries = {
            self._single(shape.key, Node(name, item.origin), f"{path}.{name}", name): self._value(
                shape.value, item, f"{path}.{name}", "" if isinstance(shape.value, ValueKind) else None
            )
            for name, item in node.value.items()
            if item.value is not None
        }
        return {**default, **entries}

    def _reject(self, node: Node, path: str, expected: str, shown: object = None) -> None:
        self._add(path, node.origin.invalid(path, _shown(node, shown), expected))

    def _add(self, path: str, problem: str) -> None:
        self.invalid.add(path)
        self.problems.append(problem)


def _shown(node: Node, masked: object) -> str:
    """The value for an error message: one line of limited length. A text is shown only in its masked form."""
    if isinstance(node.value, dict):
        return "a mapping"
    if isinstance(node.value, list):
        return "a list" if node.value else "an empty list"
    if node.value is None:
        return "empty"
    if not isinstance(masked, str):
        return "a text"
    return repr(masked if len(masked) <= _SHOWN_MAX else masked[:_SHOWN_MAX] + "…")


def _as_words(line: str) -> str:
    """A line as the list of its words, quoted as in a shell. "" if it has none or is too long to show."""
    import json
    import shlex

    try:
        words = shlex.split(line)
    except ValueError:  # a quotation mark is missing
        words = line.split()
    return json.dumps(words, ensure_ascii=False) if words and len(line) <= _SHOWN_MAX else ""


def unknown_key(path: str, siblings: Iterable[str] | None = None) -> str:
    """One line that names the unknown key and the most similar known one. `siblings` are the full paths of the known
    keys in the same section."""
    known = list(every_key())
    if path in known:
        *sections, last = path.split(".")
        return f"unknown key {path!r}; write it nested: {''.join(f'{section}: {{' for section in sections)}{last}: …"
    if siblings is None:
        parent = path.rpartition(".")[0]
        siblings = [name for name in known if name.rpartition(".")[0] == parent]
    siblings = list(siblings)
    if similar := _most_similar(path, siblings, known):
        return f"unknown key {path!r}; did you mean {' or '.join(map(repr, similar))}?"
    choices = ", ".join(name.rpartition(".")[2] for name in siblings) or ", ".join(n for n in known if "." not in n)
    return f"unknown key {path!r}; known here: {choices}"


def _most_similar(path: str, siblings: list[str], known: list[str]) -> list[str]:
    """The keys of this name without their section, or written like an option or a variable (max-retries, WORKER_COUNT);
    else the same key in another section, a similar key in this section, or the most similar path of all."""
    import difflib

    words = _in_words(path)
    ends = {name: {_in_words(name.split(".", n)[n]) for n in range(name.count(".") + 1)} for name in known}
    if ending := [name for name in known if words in ends[name]]:
        return ending[:3]
    by_name = {name.rpartition(".")[2].lower(): name for name in siblings}
    wanted = path.rpartition(".")[2].lower()
    if elsewhere := [name for name in known if name.rpartition(".")[2] == wanted]:
        return [max(elsewhere, key=lambda name: difflib.SequenceMatcher(None, path, name).ratio())]
    if close := difflib.get_close_matches(wanted, by_name, n=1, cutoff=0.6):
        return [by_name[close[0]]]
    # In a known section a path can only look similar because of the section's own name.
    return difflib.get_close_matches(path, () if siblings else known, n=1, cutoff=0.7)


def _in_words(path: str) -> str:
    return path.lower().replace("-", "_").replace(".", "_")
