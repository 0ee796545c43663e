"""Values as a source gave them, each with its origin, and how layers of them are laid over each other."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Literal, TypeAlias

from msgspec import Struct

Layer: TypeAlias = Literal["default", "file", "env", "--set"]


class Origin(Struct, frozen=True):
    """Which layer a value came from, and where in it: `config.yaml:12`, `WORKER_COUNT`."""

    layer: Layer
    name: str = ""

    def __str__(self) -> str:
        return self.name or self.layer

    def complaint(self, key: str, shown: str, expected: str) -> str:
        """One line: where, what, its value, and what it must be."""
        if self.layer == "env":
            return f"{self.name} is {shown}; {key} must be {expected}"
        return self.remark(f"{key} is {shown}; it must be {expected}")

    def remark(self, text: str) -> str:
        """One line about something other than a single value."""
        return f"{self}: {text}"


DEFAULT = Origin("default")


class Node(Struct, frozen=True):
    """A text, nothing, a list or a mapping; numbers and flags are still text."""

    value: str | list[Node] | dict[str, Node] | None
    origin: Origin

    def at(self, path: str) -> Node | None:
        """The node at a dotted path, if there is one."""
        node: Node | None = self
        for part in path.split("."):
            node = node.value.get(part) if node and isinstance(node.value, dict) else None
        return node


def nested(path: Iterable[str], node: Node) -> Node:
    """A node under the keys that lead to it."""
    for part in reversed(tuple(path)):
        node = Node({part: node}, node.origin)
    return node


def laid_over(base: Node, over: Node) -> Node:
    """`over` wins; mappings are merged key by key, anything else is replaced as a whole."""
    if over.value is None:
        return base
    if not isinstance(base.value, dict) or not isinstance(over.value, dict):
        return over
    merged = dict(base.value)
    for key, node in over.value.items():
        merged[key] = laid_over(merged[key], node) if key in merged else node
    return Node(merged, over.origin)


def from_python(value: Any, origin: Origin) -> Node:
    """Plain Python values, spelled as YAML would."""
    if isinstance(value, Mapping):
        return Node({str(key): from_python(item, origin) for key, item in value.items()}, origin)
    if isinstance(value, list | tuple):
        return Node([from_python(item, origin) for item in value], origin)
    return Node(None if value is None else str(value), origin)
