"""Where values come from: the YAML file, the environment, --set. Each becomes a layer of the tree.

Nothing is checked here but what keeps a layer from being read at all; read.py judges the values.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from msgspec import Struct

from fileq.config.kinds import Leaf
from fileq.config.schema import Worker, every_key, is_setting
from fileq.config.section import ListOf, MapOf, Shape, list_shape
from fileq.config.suggest import unknown_key
from fileq.config.tree import DEFAULT, Node, Origin, laid_over, nested
from fileq.config.yamltext import parse_yaml
from fileq.core.errors import ConfigError

PREFIX = "FILEQ_"
DEFAULT_FILE = "config.yaml"
# Ours without being settings: the file's name, and what handlers find in their environment.
_NOT_SETTINGS = re.compile(r"FILEQ_CONFIG|FILEQ_JOB_\w+")
_COMMA = re.compile(r",(?![^{]*\})")  # not those of a glob such as *.{pdf,txt}


class Gathered(Struct, frozen=True):
    """All layers as one tree, and what was noticed on the way."""

    tree: Node
    path: str | None
    problems: list[str]
    unknown_env: tuple[str, ...]


def gather(path: str | None, sets: Iterable[str], environ: Mapping[str, str], cwd: Path) -> Gathered:
    """Every source read, the stronger over the weaker: --set, FILEQ_X, X, the file."""
    found = find_file(path, environ, cwd)
    file = read_file(found, cwd) if found else Node(None, DEFAULT)
    problems: list[str] = []
    chosen = set_layer(sets, problems)
    # Twice, because the names of the queues' variables depend on which priorities there are.
    draft = _stacked([file, *environment_layers(environ, variable_names(), []), chosen])
    names = variable_names(_priorities(draft))
    tree = _stacked([file, *environment_layers(environ, names, problems), chosen])
    return Gathered(tree, found, problems, _unknown_names(environ, names))


def find_file(path: str | None, environ: Mapping[str, str], cwd: Path) -> str | None:
    """The file to read: the one that is named, which must be there, else ./config.yaml if it is."""
    for name, source in ((path, "--config"), (environ.get("FILEQ_CONFIG") or None, "FILEQ_CONFIG")):
        if name is not None:
            if not (cwd / name).exists():
                raise ConfigError(f"{source} names {name!r}, which does not exist; create it with 'fileq config init'")
            return name
    return DEFAULT_FILE if (cwd / DEFAULT_FILE).exists() else None


def read_file(path: str, cwd: Path) -> Node:
    try:
        content = (cwd / path).read_bytes()
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror}") from error
    return parsed_file(content, path)


def parsed_file(content: bytes, path: str) -> Node:
    root = parse_yaml(content, lambda line: Origin("file", f"{path}:{line}"))
    if root.value is not None and not isinstance(root.value, dict):
        raise ConfigError(f"{path} must hold keys and values at its top level, such as 'worker: {{count: 8}}'")
    return root


def variable_names(priorities: Iterable[str] = ()) -> dict[str, str]:
    """Environment variable, without the FILEQ_ prefix, to the dotted path that it sets."""
    paths = [path for path, key in every_key().items() if is_setting(key)]
    paths += [f"worker.queues.{priority}" for priority in priorities]
    return {re.sub(r"[.-]", "_", path).upper(): path for path in paths}


def environment_layers(environ: Mapping[str, str], names: Mapping[str, str], problems: list[str]) -> Iterator[Node]:
    """X, then FILEQ_X. Names at the top level are too common to be taken without the prefix."""
    for prefix in ("", PREFIX):
        layer = Node({}, DEFAULT)
        for name, path in names.items():
            text = environ.get(prefix + name, "")
            if text and (prefix or "." in path):
                layer = laid_over(layer, from_text(path, text, Origin("env", prefix + name), problems))
        yield layer


def _unknown_names(environ: Mapping[str, str], names: Mapping[str, str]) -> tuple[str, ...]:
    ours = (name for name in environ if name.startswith(PREFIX) and not _NOT_SETTINGS.fullmatch(name))
    return tuple(sorted(name for name in ours if name.removeprefix(PREFIX) not in names))


def set_layer(sets: Iterable[str], problems: list[str]) -> Node:
    """--set key=value, each over those before it."""
    layer = Node({}, DEFAULT)
    origin = Origin("--set")
    for item in sets:
        path, separator, text = item.partition("=")
        path = path.strip()
        if not separator:
            # Only what looks like a key: the rest may be a password with a colon in place of the sign.
            shown = re.match(r"[\w.-]*", item)
            problems.append(f"--set needs key=value, such as worker.count=8; after {shown and shown[0]!r} comes no =")
        elif locate(path) is None:
            problems.append(origin.remark(unknown_key(path)))
        else:
            layer = laid_over(layer, from_text(path, text, origin, problems))
    return layer


def from_text(path: str, text: str, origin: Origin, problems: list[str]) -> Node:
    """One known setting given as text, as the tree that the file would have held."""
    located = locate(path)
    assert located is not None
    parts, shape = located
    if isinstance(shape, Leaf):
        return nested(parts, Node(text, origin))
    # A glob may start with a brace: only what can be a mapping is taken for one.
    if text.lstrip().startswith("[" if isinstance(shape, ListOf) else ("[", "{")):
        try:
            return nested(parts, parse_yaml(text, lambda _line: origin))
        except ConfigError as error:
            problems.extend(error.problems)
            return Node({}, origin)
    return nested(parts, _split(shape, text, origin))


def _split(shape: Shape, text: str, origin: Origin) -> Node:
    """A comma-separated list, or a mapping as k=v,k=v; a text that is neither is left for read.py to refuse."""
    items = [item.strip() for item in _COMMA.split(text) if item.strip()]
    if isinstance(shape, MapOf):
        pairs = [item.partition("=") for item in items]
        if all(separator for _, separator, _ in pairs):
            return Node({key.strip(): Node(value.strip(), origin) for key, _, value in pairs}, origin)
        return Node(text, origin)
    form = list_shape(shape) if isinstance(shape, type) else shape
    if isinstance(form, ListOf) and isinstance(form.item, Leaf):
        return Node([Node(item, origin) for item in items], origin)
    return Node(text, origin)


def locate(path: str) -> tuple[tuple[str, ...], Shape] | None:
    """The keys that lead to a setting and what it holds. The rest of a path into a mapping is one key, dots and all."""
    if key := every_key().get(path):
        return tuple(path.split(".")), key.shape
    for name, key in every_key().items():
        entry = path.removeprefix(f"{name}.")
        if isinstance(key.shape, MapOf) and entry not in ("", path):
            return (*name.split("."), entry), key.shape.value
    return None


def _stacked(layers: Iterable[Node]) -> Node:
    tree = Node({}, DEFAULT)
    for layer in layers:
        tree = laid_over(tree, layer)
    return tree


def _priorities(tree: Node) -> tuple[str, ...]:
    """The priorities as somebody wrote them, right or wrong."""
    node = tree.at("worker.priorities")
    if node is None or not isinstance(node.value, list):
        return Worker().priorities
    return tuple(item.value for item in node.value if isinstance(item.value, str) and item.value)
