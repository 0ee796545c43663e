"""Changes one value in the text of a configuration file and leaves every other character alone, comments included."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from fileq.config.kinds import Leaf, Wrong
from fileq.config.show import to_yaml
from fileq.config.sources import from_text, locate
from fileq.config.suggest import unknown_key
from fileq.config.tree import Node, Origin
from fileq.config.yamltext import parse_yaml
from fileq.core.errors import ConfigError

if TYPE_CHECKING:
    import yaml


def edited(text: str, path: str, value: str) -> str:
    """The file's text with the setting at this path changed or added; the value is spelled as for --set.

    Only the value itself is checked. Load the result before keeping it: that also finds contradictions.
    """
    parts, spelled = _spelled(path, value)
    before = _parsed(text)
    if not isinstance(before, dict | None):
        raise ConfigError("the file must hold keys and values at its top level")
    after = _put(text, parts, spelled)
    # YAML has more ways to write a mapping than we know how to edit (anchors, comments inside braces):
    # rather refuse than damage somebody's file.
    try:
        is_intact = _parsed(after) == _with(before, parts, _parsed(spelled))
    except ConfigError:
        is_intact = False
    if not is_intact:
        raise ConfigError(f"{path} cannot be changed in this file without damage; edit it by hand")
    return after


def _parsed(text: str) -> Any:
    return _plain(parse_yaml(text, lambda line: Origin("file", f"line {line}")))


def _with(tree: Any, parts: tuple[str, ...], value: Any) -> Any:
    if not parts:
        return value
    inner = tree if isinstance(tree, dict) else {}
    return {**inner, parts[0]: _with(inner.get(parts[0]), parts[1:], value)}


def _put(text: str, parts: tuple[str, ...], spelled: str) -> str:
    import yaml

    root = yaml.compose(text, Loader=yaml.SafeLoader)
    if not isinstance(root, yaml.MappingNode):
        return _ended(text) + _block(parts, spelled, "")
    return _Editor(text).put(root, parts, spelled)


def _spelled(path: str, value: str) -> tuple[tuple[str, ...], str]:
    """The keys that lead to the setting and the YAML of its new value."""
    located = locate(path)
    if located is None:
        raise ConfigError(unknown_key(path))
    parts, shape = located
    if isinstance(shape, Leaf):
        try:
            return parts, to_yaml(shape.write(shape.read(value)))
        except Wrong as wrong:
            raise ConfigError(f"{path} is {shape.mask_wrong(value)!r}; it must be {wrong}") from None
    problems: list[str] = []
    node = from_text(path, value, Origin("--set"), problems).at(path)
    if node is None or not isinstance(node.value, list | dict):
        raise ConfigError(problems or f"{path} must be a list or a mapping, such as [a, b] or {{a: b}}")
    return parts, to_yaml(_plain(node))


def _plain(node: Node) -> Any:
    if isinstance(node.value, dict):
        return {key: _plain(item) for key, item in node.value.items()}
    return [_plain(item) for item in node.value] if isinstance(node.value, list) else node.value


class _Editor:
    def __init__(self, text: str) -> None:
        self._text = text

    def put(self, mapping: yaml.MappingNode, parts: tuple[str, ...], spelled: str) -> str:
        import yaml

        for key, value in mapping.value:
            if key.value == parts[0]:
                if len(parts) > 1 and isinstance(value, yaml.MappingNode) and (value.value or value.flow_style):
                    return self.put(value, parts[1:], spelled)
                return self._replace(key, value, parts[1:], spelled)
        return self._add(mapping, parts, spelled)

    def _replace(self, key: yaml.Node, value: yaml.Node, rest: tuple[str, ...], spelled: str) -> str:
        """A new value behind a key; `rest` leads into a section that was empty or a plain list."""
        colon = self._text.index(":", key.end_mark.index) + 1
        end = max(colon, self._end(value))
        flow = "".join(f"{{{to_yaml(part)}: " for part in rest) + spelled + "}" * len(rest)
        return f"{self._text[:colon]} {flow}{self._text[end:]}"

    def _add(self, mapping: yaml.MappingNode, parts: tuple[str, ...], spelled: str) -> str:
        if mapping.flow_style:
            closing = mapping.end_mark.index - 1
            flow = "".join(f"{to_yaml(part)}: {{" for part in parts[:-1])
            entry = f"{flow}{to_yaml(parts[-1])}: {spelled}" + "}" * (len(parts) - 1)
            inside = self._text[:closing].rstrip()
            separator = "" if inside.endswith(("{", ",")) else ","
            return f"{inside}{separator}{'' if inside.endswith('{') else ' '}{entry}{self._text[closing:]}"
        indent = " " * mapping.value[0][0].start_mark.column
        line_end = self._text.find("\n", self._end(mapping))
        before = self._text if line_end < 0 else self._text[: line_end + 1]
        return _ended(before) + _block(parts, spelled, indent) + self._text[len(before) :]

    def _end(self, node: yaml.Node) -> int:
        """Where the node's last character is; a block collection's own mark lies behind the comments that follow."""
        import yaml

        if isinstance(node, yaml.CollectionNode) and not node.flow_style and node.value:
            last = node.value[-1]
            return max(map(self._end, last)) if isinstance(last, tuple) else self._end(last)
        start, end = node.start_mark.index, node.end_mark.index
        return start + len(self._text[start:end].rstrip())


def _block(parts: tuple[str, ...], spelled: str, indent: str) -> str:
    lines = [f"{indent}{'  ' * depth}{to_yaml(part)}:" for depth, part in enumerate(parts)]
    return "\n".join(lines) + f" {spelled}\n"


def _ended(text: str) -> str:
    return text if not text or text.endswith("\n") else f"{text}\n"
