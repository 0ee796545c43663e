"""YAML as a tree of texts with line numbers. Only composed, never constructed: no tag can do anything.

Scalars stay as they are written, so that `password: 0123`, `watch: off` and `name: 1:30` mean what they say.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from fileq.config.tree import Node, Origin
from fileq.core.errors import ConfigError

if TYPE_CHECKING:
    import yaml

_STANDARD = "tag:yaml.org,2002:"
_SCALARS = {_STANDARD + name for name in ("str", "int", "float", "bool", "null", "timestamp", "value")}


def parse_yaml(text: str | bytes, origin_at: Callable[[int], Origin]) -> Node:
    """The tree of one document; a ConfigError holds its syntax errors, or every key that is given twice."""
    import yaml

    builder = _Builder(origin_at)
    try:
        # Not the C loader, which saves milliseconds and crashes the process on deep nesting.
        root = yaml.compose(text, Loader=yaml.SafeLoader)
        tree = Node(None, origin_at(1)) if root is None else builder.build(root, "")
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        raise ConfigError(origin_at(mark.line + 1 if mark else 1).remark(_explain(error))) from None
    except (yaml.YAMLError, UnicodeDecodeError):
        raise ConfigError(origin_at(1).remark("not a text in UTF-8, or with characters that YAML forbids")) from None
    except RecursionError:
        raise ConfigError(origin_at(1).remark("nested too deeply")) from None
    if builder.problems:
        raise ConfigError(builder.problems)
    return tree


def _explain(error: yaml.MarkedYAMLError) -> str:
    """What is wrong, without the text around it: that may be a password."""
    problem = error.problem or "not valid YAML"
    if "alias" in f"{error.context} {problem}":
        return "not valid YAML: a value that starts with * must be in quotes"
    if any(word in problem for word in ("tag", "anchor")):
        return "not valid YAML: a value that starts with ! or & must be in quotes"
    return f"not valid YAML: {problem}"


class _Builder:
    """Turns composed nodes into ours, noting what we do not take."""

    def __init__(self, origin_at: Callable[[int], Origin]) -> None:
        self.problems: list[str] = []
        self._origin_at = origin_at
        self._built: dict[int, Node | None] = {}  # by identity: an alias is the very node of its anchor

    def build(self, node: yaml.Node, path: str) -> Node:
        if id(node) in self._built:
            # None while it is being built: the anchor holds its own alias.
            return self._built[id(node)] or self._refuse(node, path, "refers to itself")
        self._built[id(node)] = None
        built = self._built[id(node)] = self._build_new(node, path)
        return built

    def _build_new(self, node: yaml.Node, path: str) -> Node:
        import yaml

        origin = self._origin_at(node.start_mark.line + 1)
        if isinstance(node, yaml.MappingNode) and node.tag == _STANDARD + "map":
            return Node(self._mapping(node, path), origin)
        if isinstance(node, yaml.SequenceNode) and node.tag == _STANDARD + "seq":
            return Node([self.build(item, f"{path}[{index}]") for index, item in enumerate(node.value)], origin)
        if isinstance(node, yaml.ScalarNode) and node.tag in _SCALARS:
            return Node(None if node.tag == _STANDARD + "null" else node.value, origin)
        return self._refuse(node, path, "has a YAML tag, which is not supported; quote a value that starts with !")

    def _mapping(self, node: yaml.MappingNode, path: str) -> dict[str, Node]:
        own: dict[str, Node] = {}
        inherited: dict[str, Node] = {}
        lines: dict[str, int] = {}
        for key_node, value_node in node.value:
            if key_node.tag == _STANDARD + "merge":
                inherited = {**self._merged(value_node, path), **inherited}
                continue
            if not isinstance(key_node.value, str):
                self._refuse(key_node, path, "has a key that is not a text")
                continue
            key, line = key_node.value, key_node.start_mark.line + 1
            inner = f"{path}.{key}" if path else key
            if key in own:
                self._refuse(key_node, inner, f"is given twice, first on line {lines[key]}")
            lines.setdefault(key, line)
            own[key] = Node(self.build(value_node, inner).value, self._origin_at(line))
        return {**inherited, **own}

    def _merged(self, node: yaml.Node, path: str) -> dict[str, Node]:
        """What `<<` brings in; of several mappings the first goes before the others."""
        value = self.build(node, path).value
        merged: dict[str, Node] = {}
        for item in reversed(value if isinstance(value, list) else [Node(value, self._origin_at(1))]):
            if isinstance(item.value, dict):
                merged |= item.value
            else:
                self._refuse(node, path, "merges (<<) something that is not a mapping")
        return merged

    def _refuse(self, node: yaml.Node, path: str, why: str) -> Node:
        origin = self._origin_at(node.start_mark.line + 1)
        self.problems.append(origin.remark(f"{path or 'the file'} {why}"))
        return Node(None, origin)
