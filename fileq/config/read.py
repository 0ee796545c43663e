"""Turns the tree of texts into the configuration, noting every problem instead of stopping at the first."""

from __future__ import annotations

from typing import Any, TypeVar

import msgspec

from fileq.config.kinds import Leaf, Wrong
from fileq.config.section import ListOf, MapOf, Section, Shape, keys_of, list_shape
from fileq.config.suggest import unknown_key
from fileq.config.tree import Node, Origin

_LONGEST_SHOWN = 80

S = TypeVar("S", bound=Section)


class Reader:
    """Reads one tree. `origins` has the path of every value that was given, `faulty` of those that are wrong."""

    def __init__(self) -> None:
        self.problems: list[str] = []
        self.origins: dict[str, Origin] = {}
        self.faulty: set[str] = set()
        self._models: dict[type[Section], Any] = {}

    def is_sound(self, *paths: str) -> bool:
        """Whether nothing at or below these paths is wrong."""
        return not any(f"{fault}.".startswith((f"{path}.", f"{path}[")) for fault in self.faulty for path in paths)

    def section(self, kind: type[S], node: Node, path: str, start: S | None = None) -> S:
        """The section that the node describes; keys that it leaves out are as in `start`.

        Without a start it takes after the main one of its kind: a route's backoff after the worker's.
        """
        model: S = start or self._models.get(kind) or kind()
        form = list_shape(kind)
        if form and isinstance(node.value, list):
            items = self._items(form, node, path, ())
            return kind.from_list(items) if self.is_sound(path) else model
        if not isinstance(node.value, dict):
            self._refuse(node, path, f"a section of keys{' or a list' if form else ''}")
            return model
        section = self._fields(kind, node.value, path, model)
        if start is not None:
            self._models[kind] = section
        if self.is_sound(path):
            for name, sentence in section.faults():
                origin = node.value[name].origin if name in node.value else node.origin
                self._note(path, origin.remark(f"{path}{'.' if name else ''}{name} {sentence}"))
        return section

    def _fields(self, kind: type[S], given: dict[str, Node], path: str, model: S) -> S:
        inside = f"{path}." if path else ""
        keys = keys_of(kind)
        for name, node in given.items():
            if name not in keys:
                siblings = [inside + key for key in keys]
                self._note(inside + name, node.origin.remark(unknown_key(inside + name, siblings)))
        changes = {
            name: self._value(key.shape, given[name], inside + name, getattr(model, name))
            for name, key in keys.items()
            if name in given and given[name].value is not None  # a key with nothing behind it is a key left out
        }
        return msgspec.structs.replace(model, **changes)

    def _value(self, shape: Shape, node: Node, path: str, default: Any) -> Any:
        self.origins[path] = node.origin
        if isinstance(shape, Leaf):
            return self._leaf(shape, node, path, default)
        if isinstance(shape, ListOf):
            return self._items(shape, node, path, default)
        if isinstance(shape, MapOf):
            return self._entries(shape, node, path, default)
        return self.section(shape, node, path, default)

    def _leaf(self, kind: Leaf, node: Node, path: str, default: Any) -> Any:
        if not isinstance(node.value, str):
            self._refuse(node, path, kind.expects)
            return default
        try:
            return kind.read(node.value)
        except Wrong as wrong:
            self._refuse(node, path, str(wrong), kind.mask_wrong(node.value))
            return default

    def _items(self, shape: ListOf, node: Node, path: str, default: Any) -> Any:
        if not isinstance(node.value, list) or len(node.value) < shape.at_least:
            wanted = f"a list{' of at least one item' if shape.at_least else ''}, such as [a, b]"
            self._refuse(node, path, wanted, node.value)
            return default
        return tuple(self._value(shape.item, item, f"{path}[{index}]", None) for index, item in enumerate(node.value))

    def _entries(self, shape: MapOf, node: Node, path: str, default: Any) -> Any:
        if not isinstance(node.value, dict):
            self._refuse(node, path, "a mapping such as {a: b}", node.value)
            return default
        entries = {
            self._leaf(shape.key, Node(name, item.origin), f"{path}.{name}", name): self._value(
                shape.value, item, f"{path}.{name}", ""
            )
            for name, item in node.value.items()
            if item.value is not None
        }
        return {**default, **entries}

    def _refuse(self, node: Node, path: str, expected: str, shown: object = None) -> None:
        self._note(path, node.origin.complaint(path, _shown(node, shown), expected))

    def _note(self, path: str, problem: str) -> None:
        self.faulty.add(path)
        self.problems.append(problem)


def _shown(node: Node, shown: object) -> str:
    """The value for an error message: on one line, not too long; `shown` is what may be seen of a text."""
    if isinstance(node.value, dict):
        return "a mapping"
    if isinstance(node.value, list):
        return "a list" if node.value else "an empty list"
    if node.value is None:
        return "empty"
    if not isinstance(shown, str):
        return "a text"
    return repr(shown if len(shown) <= _LONGEST_SHOWN else shown[:_LONGEST_SHOWN] + "…")
