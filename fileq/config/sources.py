"""Where values come from: the YAML file, the environment and --set. Each becomes one layer of the tree. Passwords can
be in files of their own.

Owns finding and parsing the file, the names of the environment variables and the spelling of values given as text.
Only syntax is checked here; read.py validates keys and values. YAML is composed, never constructed, so that no YAML tag
can execute anything, and scalars stay as they are written: `password: 0123`, `watch: off` and `name: 1:30` are texts.
"""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import reduce
from pathlib import Path
from typing import TYPE_CHECKING

from fileq.config.read import DEFAULT, Node, Origin, nested, overlay, unknown_key
from fileq.config.schema import WorkerSettings, every_key, is_setting
from fileq.config.section import ListOf, MapOf, Section, Shape, list_shape, walk
from fileq.config.trusted_place import untrusted_file
from fileq.config.value_types import SecretKind, ValueKind, split_address
from fileq.core.errors import ConfigError

if TYPE_CHECKING:
    import yaml

PREFIX = "FILEQ_"
DEFAULT_FILE = "config.yaml"
# Variables of fileq that are not settings: the name of the file, and the variables that commands receive.
_NOT_SETTINGS = re.compile(r"FILEQ_CONFIG|FILEQ_JOB_\w+")
_COMMA = re.compile(r",(?![^{]*\})")  # not the commas of a glob such as *.{pdf,txt}
_YAML_TAG = "tag:yaml.org,2002:"
_SCALAR_TAGS = {_YAML_TAG + name for name in ("str", "int", "float", "bool", "null", "timestamp", "value")}


def merged(
    file: Node, sets: Iterable[str], environ: Mapping[str, str], problems: list[str]
) -> tuple[Node, Mapping[str, str]]:
    """All sources as one tree, highest precedence first: --set, FILEQ_X, X, the file. And the names of variables."""
    chosen = set_layer(sets, problems)
    # Two passes: each priority has a variable of its own, and the first pass finds the priorities.
    nothing = Node({}, DEFAULT)
    draft = reduce(overlay, (file, *environment_layers(environ, variable_names(), []), chosen), nothing)
    names = variable_names(_priorities(draft))
    return reduce(overlay, (file, *environment_layers(environ, names, problems), chosen), nothing), names


def find_file(path: str | None, environ: Mapping[str, str], cwd: Path) -> str | None:
    """The file to read: the named one, which must exist, else ./config.yaml if that exists and no one else can have
    written it."""
    for name, source in ((path, "--config"), (environ.get("FILEQ_CONFIG") or None, "FILEQ_CONFIG")):
        if name is not None:
            try:
                os.stat(cwd / name)
            except (FileNotFoundError, NotADirectoryError):
                advice = "create it with 'fileq config init'"
                raise ConfigError(f"{source} names {name!r}, which does not exist; {advice}") from None
            except OSError as error:
                raise ConfigError(f"{source} names {name!r}, which can't be read: {error.strerror}") from None
            return name
    if not os.path.lexists(cwd / DEFAULT_FILE):
        return None
    if fault := untrusted_file(os.fspath(cwd / DEFAULT_FILE)):
        raise ConfigError(f"./{DEFAULT_FILE} is not read, because {fault}; --config FILE names one that you trust")
    return DEFAULT_FILE


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
    """Maps each environment variable, without the FILEQ_ prefix, to the dotted path that it sets."""
    paths = [path for path, key in every_key().items() if is_setting(key)]
    paths += [f"worker.queues.{priority}" for priority in priorities]
    return {re.sub(r"[.-]", "_", path).upper(): path for path in paths}


def environment_layers(environ: Mapping[str, str], names: Mapping[str, str], problems: list[str]) -> Iterator[Node]:
    """The layer of X, then that of FILEQ_X. Top-level keys need the prefix, because their names are too common."""
    for prefix in ("", PREFIX):
        layer = Node({}, DEFAULT)
        for name, path in (*(() if prefix else FOREIGN_VARIABLES.items()), *names.items()):
            text = in_our_spelling(name, environ.get(prefix + name, ""))
            if name.endswith("PORT") and describes_a_service(name, text):
                continue  # Kubernetes sets FILEQ_SERVER_PORT for a service named fileq-server
            if text and (prefix or "." in path):
                layer = overlay(layer, from_text(path, text, Origin("env", prefix + name), problems))
        yield layer


def unknown_variables(environ: Mapping[str, str], names: Mapping[str, str]) -> tuple[str, ...]:
    ours = (name for name in environ if name.startswith(PREFIX) and not _NOT_SETTINGS.fullmatch(name))
    return tuple(sorted(name for name in ours if name.removeprefix(PREFIX) not in names))


def misspelt_variables(environ: Mapping[str, str], unknown: Iterable[str], names: Iterable[str]) -> dict[str, str]:
    """The unknown variables that are similar to a known one, with that one. An empty variable is unset."""
    known = [*names, "CONFIG"]
    given = [name for name in unknown if environ[name] and not describes_a_service(name, environ[name])]
    similar = {name: most_similar(name.removeprefix(PREFIX), known) for name in given}
    return {name: PREFIX + one for name, one in similar.items() if one is not None}


def set_layer(sets: Iterable[str], problems: list[str]) -> Node:
    """The layer of --set key=value. A later one overrides an earlier one."""
    layer = Node({}, DEFAULT)
    origin = Origin("--set")
    for item in sets:
        path, separator, text = item.partition("=")
        path = path.strip()
        if not separator:
            # Shows only what looks like a key: in `redis.password:secret` the rest is a password.
            shown = re.match(r"[\w.-]*", item)
            problems.append(f"--set needs key=value, such as worker.count=8; {shown and shown[0]!r} has no =")
        elif locate(path) is None:
            problems.append(origin.message(unknown_key(path)))
        else:
            layer = overlay(layer, from_text(path, text, origin, problems))
    return layer


def from_text(path: str, text: str, origin: Origin, problems: list[str]) -> Node:
    """The tree of one known setting given as text, as the file would hold it."""
    located = locate(path)
    assert located is not None
    parts, shape = located
    if isinstance(shape, ValueKind):
        if _is_list(text) and not isinstance(shape, SecretKind):
            return nested(parts, Node([Node(item, origin) for item in text.strip()[1:-1].split(",")], origin))
        return nested(parts, Node(text, origin))
    # A glob may start with a brace, so a brace begins a mapping only where the key can hold one.
    if text.lstrip().startswith("[" if isinstance(shape, ListOf) else ("[", "{")):
        try:
            return nested(parts, parse_yaml(text, lambda _line: origin))
        except ConfigError as error:
            problems.extend(error.problems)
            return Node({}, origin)
    return nested(parts, _split(shape, text, origin))


def _split(shape: Shape, text: str, origin: Origin) -> Node:
    """A comma-separated list, or a mapping as k=v,k=v. Any other text stays text, and read.py rejects it."""
    items = [item.strip() for item in _COMMA.split(text) if item.strip()]
    if isinstance(shape, MapOf):
        pairs = [item.partition("=") for item in items]
        if all(separator for _, separator, _ in pairs):
            return Node({key.strip(): Node(value.strip(), origin) for key, _, value in pairs}, origin)
        return Node(text, origin)
    form = list_shape(shape) if isinstance(shape, type) else shape
    if isinstance(form, ListOf) and isinstance(form.item, ValueKind):
        return Node([Node(item, origin) for item in items], origin)
    return Node(text, origin)


def locate(path: str) -> tuple[tuple[str, ...], Shape] | None:
    """The keys that lead to a setting, and its shape. In a mapping the rest of the path is one key, dots included."""
    if key := every_key().get(path):
        return tuple(path.split(".")), key.shape
    for name, key in every_key().items():
        entry = path.removeprefix(f"{name}.")
        if isinstance(key.shape, MapOf) and entry not in ("", path):
            if isinstance(key.shape.value, ValueKind):
                return (*name.split("."), entry), key.shape.value
            return _in_entry(name, entry, key.shape.value)
    return None


def _in_entry(path: str, entry: str, section: type[Section]) -> tuple[tuple[str, ...], Shape]:
    """As locate(), in a mapping of sections: the name of the section may have dots too."""
    for inner, key in walk(section):
        name = entry.removesuffix(f".{inner}")
        if name not in ("", entry):
            return (*path.split("."), name, *inner.split(".")), key.shape
    return (*path.split("."), entry), section


def _priorities(tree: Node) -> tuple[str, ...]:
    """The priorities as they were given, not validated yet."""
    node = tree.at("worker.priorities")
    if node is None or not isinstance(node.value, list):
        return WorkerSettings().priorities
    return tuple(item.value for item in node.value if isinstance(item.value, str) and item.value)


def parse_yaml(text: str | bytes, origin_at: Callable[[int], Origin]) -> Node:
    """The tree of one document. The ConfigError holds its syntax error, or every key that is given twice."""
    import yaml

    builder = _TreeBuilder(origin_at)
    try:
        # Not the C loader: it saves milliseconds, but deep nesting crashes the process.
        root = yaml.compose(text, Loader=yaml.SafeLoader)
        tree = Node(None, origin_at(1)) if root is None else builder.build(root, "")
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        raise ConfigError(origin_at(mark.line + 1 if mark else 1).message(_syntax_problem(error))) from None
    except (yaml.YAMLError, UnicodeDecodeError):
        raise ConfigError(origin_at(1).message("not UTF-8 text, or it contains characters that YAML forbids")) from None
    except RecursionError:
        raise ConfigError(origin_at(1).message("nested too deeply")) from None
    if builder.problems:
        raise ConfigError(builder.problems)
    return tree


def _syntax_problem(error: yaml.MarkedYAMLError) -> str:
    """What is wrong, without the text around it, which may be a password."""
    problem = error.problem or "not valid YAML"
    if "alias" in f"{error.context} {problem}":
        return "not valid YAML: a value that starts with * must be in quotes"
    if any(word in problem for word in ("tag", "anchor")):
        return "not valid YAML: a value that starts with ! or & must be in quotes"
    return f"not valid YAML: {problem}"


class _TreeBuilder:
    """Converts composed YAML nodes into a tree and collects the problems."""

    def __init__(self, origin_at: Callable[[int], Origin]) -> None:
        self.problems: list[str] = []
        self._origin_at = origin_at
        self._built: dict[int, Node | None] = {}  # by id(): an alias is the same object as its anchor

    def build(self, node: yaml.Node, path: str) -> Node:
        if id(node) in self._built:
            # None while the node is being built: the anchor contains its own alias.
            return self._built[id(node)] or self._reject(node, path, "refers to itself")
        self._built[id(node)] = None
        built = self._built[id(node)] = self._build_new(node, path)
        return built

    def _build_new(self, node: yaml.Node, path: str) -> Node:
        import yaml

        origin = self._origin_at(node.start_mark.line + 1)
        if isinstance(node, yaml.MappingNode) and node.tag == _YAML_TAG + "map":
            return Node(self._mapping(node, path), origin)
        if isinstance(node, yaml.SequenceNode) and node.tag == _YAML_TAG + "seq":
            return Node([self.build(item, f"{path}[{index}]") for index, item in enumerate(node.value)], origin)
        if isinstance(node, yaml.ScalarNode) and node.tag in _SCALAR_TAGS:
            is_plain = node.style is None
            return Node(None if node.tag == _YAML_TAG + "null" else node.value, origin, is_plain)
        return self._reject(node, path, "has a YAML tag, which is not supported; quote a value that starts with !")

    def _mapping(self, node: yaml.MappingNode, path: str) -> dict[str, Node]:
        own: dict[str, Node] = {}
        inherited: dict[str, Node] = {}
        lines: dict[str, int] = {}
        for key_node, value_node in node.value:
            if key_node.tag == _YAML_TAG + "merge":
                inherited = {**self._merged(value_node, path), **inherited}
                continue
            if not isinstance(key_node.value, str):
                self._reject(key_node, path, "has a key that is not a text")
                continue
            key, line = key_node.value, key_node.start_mark.line + 1
            inner = f"{path}.{key}" if path else key
            if key in own:
                self._reject(key_node, inner, f"is given twice, first on line {lines[key]}")
            lines.setdefault(key, line)
            value = self.build(value_node, inner)
            own[key] = Node(value.value, self._origin_at(line), value.is_plain)
        return {**inherited, **own}

    def _merged(self, node: yaml.Node, path: str) -> dict[str, Node]:
        """The keys that `<<` adds. Of several mappings the first takes precedence."""
        value = self.build(node, path).value
        merged: dict[str, Node] = {}
        for item in reversed(value if isinstance(value, list) else [Node(value, self._origin_at(1))]):
            if isinstance(item.value, dict):
                merged |= item.value
            else:
                self._reject(node, path, "merges (<<) something that is not a mapping")
        return merged

    def _reject(self, node: yaml.Node, path: str, why: str) -> Node:
        origin = self._origin_at(node.start_mark.line + 1)
        self.problems.append(origin.message(f"{path or 'the file'} {why}"))
        return Node(None, origin)


def _is_list(text: str) -> bool:
    """Whether a text is a list where one value is expected. [x] may be the name of a directory, [x, y] is a list."""
    text = text.strip()
    return text.startswith("[") and text.endswith("]") and "," in text


def read_password(path: str | os.PathLike[str]) -> str:
    """The content without the newline at its end. Raises OSError or UnicodeDecodeError."""
    return Path(path).read_text(encoding="utf-8").rstrip("\r\n")


class PasswordFile:
    """The password that the file holds now, such as `redis.password_file`: read for each new connection, so that a
    rotated password needs no restart. While the file is missing, empty or not text: the last one read."""

    def __init__(self, path: str, password: str) -> None:
        self._path = os.path.abspath(path)
        self._password = password

    def current(self) -> str:
        with contextlib.suppress(OSError, UnicodeDecodeError):  # the file is being replaced
            self._password = read_password(self._path) or self._password
        return self._password


# Environment variables that are not named after a setting: those that other job servers use, those that Kubernetes
# sets, and names of settings that are probably misspelt. Misspelt ones are warned of, and never an error.


# Those of other job servers, and the settings that they set here; docs/settings.md lists them. They have no prefix. The
# setting's own variable has precedence, also without FILEQ_.
FOREIGN_VARIABLES: Mapping[str, str] = {
    "PORT": "server.port",
    "API_KEY": "server.api_key",
    "DASHBOARD_ENABLED": "server.console",
    "DASHBOARD_USERNAME": "server.username",
    "DASHBOARD_PASSWORD": "server.password",
    "WORKER_CONCURRENCY": "worker.count",
    "JOB_DEFAULT_TIMEOUT": "worker.timeout",
    "JOB_DEFAULT_MAX_RETRIES": "worker.max_retries",
    "JOB_DEFAULT_RETRY_DELAY": "worker.backoff.base",
}
_SECONDS = ("JOB_DEFAULT_TIMEOUT", "JOB_DEFAULT_RETRY_DELAY")


def in_our_spelling(name: str, text: str) -> str:
    """The value of a variable as the setting spells it: a number of seconds gets its unit, host:port its scheme."""
    if name in _SECONDS and text.isascii() and text.isdecimal():
        return f"{text}s"
    if name.endswith("REDIS_URL") and "/" not in text and split_address(text) is not None:
        return f"redis://{text}"
    return text


# Kubernetes describes each service of a namespace in the environment of a pod: for a service named `fileq-worker`
# FILEQ_WORKER_SERVICE_HOST, FILEQ_WORKER_SERVICE_PORT, FILEQ_WORKER_PORT (a URL) and FILEQ_WORKER_PORT_9090_TCP_ADDR.
_OF_A_SERVICE = re.compile(r"\w+_SERVICE_(HOST|PORT\w*)|\w+_PORT_\d+_(TCP|UDP|SCTP)\w*")
_URL_OF_A_SERVICE = re.compile(r"(tcp|udp|sctp)://")
_SIMILAR = 0.8


def describes_a_service(variable: str, value: str) -> bool:
    """Whether Kubernetes may have set this variable."""
    return bool(_OF_A_SERVICE.fullmatch(variable) or _URL_OF_A_SERVICE.match(value))


def most_similar(name: str, known: Iterable[str]) -> str | None:
    """The one name that ends with this one, such as PRODUCER_SCAN_DIR for SCAN_DIR; else one that is spelled similarly.
    None for a name that is not similar to a known one. Names are without FILEQ_."""
    import difflib

    known = list(known)
    in_a_section = [one for one in known if "_" in name and one.endswith(f"_{name}")]
    if len(in_a_section) == 1:
        return in_a_section[0]
    return next(iter(difflib.get_close_matches(name, known, n=1, cutoff=_SIMILAR)), None)
