"""`config set`: changes one setting in the configuration file and leaves every other character alone.

The new text is validated before it is written, and one rename replaces the old file. After a kill -9 the file has
either the old or the new content; a temporary file `.config.yaml.<random>` may remain beside it.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import stat
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from msgspec import Struct

from fileq.config.load import load, loaded_from_text
from fileq.config.read import Origin, unknown_key
from fileq.config.schema import every_key
from fileq.config.show import ListedSetting, to_listing, to_yaml
from fileq.config.sources import DEFAULT_FILE, find_file, from_text, locate, parse_yaml, parsed_file
from fileq.config.value_types import SecretKind, ValueKind
from fileq.core.errors import ConfigError

if TYPE_CHECKING:
    import yaml

_LINE_NUMBER = re.compile(r":\d+: ")


class FileChange(Struct, frozen=True):
    """What was written, and its effect."""

    path: str
    is_new_file: bool
    written: list[ListedSetting] = []  # the setting as the file holds it now
    overriding: list[ListedSetting] = []  # the effective values, where the environment or --set overrides the file
    problems: list[str] = []  # what was wrong with the configuration before, and still is
    is_exposed: bool = False  # it holds a secret, and every user of the machine can read the file


def set_in_file(key: str, value: str, *, path: str | None = None, sets: Iterable[str] = ()) -> FileChange:
    """Writes this setting into the file that would be loaded, or into a new ./config.yaml if there is none."""
    directory = Path()
    found = find_file(path, os.environ, directory)
    name = found or DEFAULT_FILE
    file = (directory / name).resolve()  # the target of a symbolic link, so that the link stays a link
    with _locked(file.parent, name):
        is_new = not file.exists()
        before = "" if is_new else _read(file, name)
        parsed_file(before.encode(), name)  # its syntax errors name the file
        after = set_in_text(before, key, value)
        known = {_LINE_NUMBER.sub(": ", problem) for problem in _problems(before, name, directory)}
        new = [p for p in _problems(after, name, directory) if _LINE_NUMBER.sub(": ", p) not in known]
        if new:
            raise ConfigError(new)
        is_secret = _holds_secret(key, value)
        _replace_file(file, name, after.encode(), is_secret=is_secret)
    is_exposed = is_secret and bool(file.stat().st_mode & stat.S_IROTH)
    try:
        written = to_listing(loaded_from_text(after, name, directory), key)
        in_effect = to_listing(load(name, sets, None, directory), key)
    except ConfigError as error:
        return FileChange(name, is_new, problems=list(error.problems), is_exposed=is_exposed)
    overriding = [setting for setting in in_effect if setting.origin.layer in ("env", "--set")]
    return FileChange(name, is_new, written, overriding, is_exposed=is_exposed)


def _problems(text: str, name: str, cwd: Path) -> list[str]:
    try:
        loaded_from_text(text, name, cwd)
    except ConfigError as error:
        return list(error.problems)
    return []


def _holds_secret(key: str, value: str) -> bool:
    """Whether the setting is for a secret, alone or among others, or the value has a part that listings hide."""
    shapes = {path: found.shape for path, found in every_key().items() if f"{path}.".startswith(f"{key}.")}
    if any(isinstance(shape, SecretKind) for shape in shapes.values()):
        return True
    kind = shapes.get(key)
    return isinstance(kind, ValueKind) and kind.mask(value) != value


def _read(file: Path, name: str) -> str:
    try:
        return file.read_bytes().decode()
    except OSError as error:
        raise ConfigError(f"{name} cannot be read: {error.strerror}") from error
    except UnicodeDecodeError:
        raise ConfigError(f"{name} is not UTF-8 text") from None


@contextlib.contextmanager
def _locked(directory: Path, name: str) -> Iterator[None]:
    """Holds a lock on the directory, so that two concurrent changes do not overwrite each other."""
    try:
        fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    except OSError as error:
        raise ConfigError(f"{name} cannot be written: {error.strerror}") from error
    try:
        fcntl.flock(fd, fcntl.LOCK_EX)
        yield
    finally:
        os.close(fd)


def _replace_file(file: Path, name: str, content: bytes, *, is_secret: bool) -> None:
    """Keeps owner and permissions of the old file. Only its owner can read a new file that holds a secret."""
    try:
        old = os.stat(file)
    except FileNotFoundError:
        old = None
    try:
        fd, temporary = tempfile.mkstemp(prefix=f".{file.name}.", dir=file.parent)
    except OSError as error:
        advice = "check the permissions of its directory"
        raise ConfigError(f"{name} cannot be written: {error.strerror}; {advice}") from error
    try:
        with open(fd, "wb") as opened:
            if old is not None:
                with contextlib.suppress(PermissionError):  # only root may change the owner
                    os.fchown(fd, old.st_uid, old.st_gid)
                os.fchmod(fd, old.st_mode & 0o7777)
            elif not is_secret:
                os.fchmod(fd, 0o666 & ~_umask())
            opened.write(content)
            opened.flush()
            os.fsync(fd)
        os.rename(temporary, file)
    except OSError as error:
        os.unlink(temporary)
        raise ConfigError(f"{name} cannot be written: {error.strerror}") from error


def _umask() -> int:
    mask = os.umask(0o077)
    os.umask(mask)
    return mask


def set_in_text(text: str, path: str, value: str) -> str:
    """The file's text with the setting at this path changed or added. The value is spelled as for --set. Only the value
    itself is validated. Load the result before keeping it, which also finds contradictions."""
    parts, spelled = _as_yaml(path, value)
    before = _parsed(text)
    if not isinstance(before, dict | None):
        raise ConfigError("the file must hold keys and values at its top level")
    after = _with_value(text, parts, spelled)
    # This module cannot edit every form of a YAML mapping (anchors, comments inside braces). It compares the parsed
    # result with the expected one, and refuses to change the file if they differ.
    try:
        is_intact = _parsed(after) == _expected(before, parts, _parsed(spelled))
    except ConfigError:
        is_intact = False
    if not is_intact:
        raise ConfigError(f"{path} cannot be changed in this file without damage; edit it by hand")
    return after


def _as_yaml(path: str, value: str) -> tuple[tuple[str, ...], str]:
    """The keys that lead to the setting, and the YAML of its new value."""
    located = locate(path)
    if located is None:
        raise ConfigError(unknown_key(path))
    parts, shape = located
    if isinstance(shape, ValueKind):
        try:
            return parts, to_yaml(shape.write(shape.read(value)))
        except ValueError as error:
            raise ConfigError(f"{path} is {shape.mask_invalid(value)!r}; it must be {error}") from None
    problems: list[str] = []
    node = from_text(path, value, Origin("--set"), problems).at(path)
    if node is None or not isinstance(node.value, list | dict):
        keys = [key for key in every_key() if key.rpartition(".")[0] == path]
        if isinstance(shape, type) and keys and not shape.list_field:
            raise ConfigError(problems or f"{path} is a section; set one of its keys: {', '.join(keys)}")
        below = f"; its keys are {', '.join(keys)}" if keys else ""
        raise ConfigError(problems or f"{path} must be a list or a mapping, such as [a, b] or {{a: b}}{below}")
    return parts, to_yaml(node.to_plain())


def _parsed(text: str) -> Any:
    return parse_yaml(text, lambda line: Origin("file", f"line {line}")).to_plain()


def _expected(tree: Any, parts: tuple[str, ...], value: Any) -> Any:
    if not parts:
        return value
    inner = tree if isinstance(tree, dict) else {}
    return {**inner, parts[0]: _expected(inner.get(parts[0]), parts[1:], value)}


def _with_value(text: str, parts: tuple[str, ...], spelled: str) -> str:
    import yaml

    root = yaml.compose(text, Loader=yaml.SafeLoader)
    if not isinstance(root, yaml.MappingNode):
        return _with_newline(text) + _block(parts, spelled, "")
    return _Editor(text).put(root, parts, spelled)


class _Editor:
    """Inserts one value into the text of a YAML mapping."""

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
        """Replaces the value of a key. `rest` leads into a section that was empty or a plain list."""
        import yaml

        colon = self._text.index(":", key.end_mark.index) + 1
        end, comment = max(colon, self._end(value)), ""
        if isinstance(value, yaml.CollectionNode) and value.start_mark.line > key.end_mark.line:
            # The comment of the key stays, and that of the last removed line goes as those before it.
            comment = self._text[colon : self._line_end(colon)].rstrip()
            end = self._line_end(end)
        flow = "".join(f"{{{to_yaml(part)}: " for part in rest) + spelled + "}" * len(rest)
        return f"{self._text[:colon]} {flow}{comment}{self._text[end:]}"

    def _line_end(self, index: int) -> int:
        found = self._text.find("\n", index)
        return found if found >= 0 else len(self._text)

    def _add(self, mapping: yaml.MappingNode, parts: tuple[str, ...], spelled: str) -> str:
        if mapping.flow_style:
            closing = mapping.end_mark.index - 1
            flow = "".join(f"{to_yaml(part)}: {{" for part in parts[:-1])
            entry = f"{flow}{to_yaml(parts[-1])}: {spelled}" + "}" * (len(parts) - 1)
            inside = self._text[:closing].rstrip()
            separator = "" if inside.endswith(("{", ",")) else ","
            return f"{inside}{separator}{'' if inside.endswith('{') else ' '}{entry}{self._text[closing:]}"
        indent = " " * mapping.value[0][0].start_mark.column
        before = self._text[: self._line_end(self._end(mapping)) + 1]
        return _with_newline(before) + _block(parts, spelled, indent) + self._text[len(before) :]

    def _end(self, node: yaml.Node) -> int:
        """The index after the node's last character. The end mark of a block is only after the following comments."""
        import yaml

        if isinstance(node, yaml.CollectionNode) and not node.flow_style and node.value:
            last = node.value[-1]
            return max(map(self._end, last)) if isinstance(last, tuple) else self._end(last)
        start, end = node.start_mark.index, node.end_mark.index
        return start + len(self._text[start:end].rstrip())


def _block(parts: tuple[str, ...], spelled: str, indent: str) -> str:
    lines = [f"{indent}{'  ' * depth}{to_yaml(part)}:" for depth, part in enumerate(parts)]
    return "\n".join(lines) + f" {spelled}\n"


def _with_newline(text: str) -> str:
    return text if not text or text.endswith("\n") else f"{text}\n"
