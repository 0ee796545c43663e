"""Reads a list of files with their sizes and checksums: JSON, CSV, the output of sha256sum, or one path on each line.

Only parses: paths are as the list has them, and nothing is looked up.
"""

from __future__ import annotations

import csv
import re

import msgspec
from msgspec import Struct

from fileq.core.errors import ConfigError

MAX_BYTES = 64 << 20
_SUM_LINE = re.compile(r"(\\?)([0-9a-fA-F]{64}) [ *](.+)")
_SHA256 = re.compile(r"[0-9a-f]{64}")
_ESCAPES = {"\\\\": "\\", "\\n": "\n", "\\r": "\r"}


class ManifestEntry(Struct, frozen=True):
    """One file. `size` is None and `sha256` is empty where the list does not have them."""

    path: str
    size: int | None = None
    sha256: str = ""


def read_manifest(raw: bytes, name: str) -> list[ManifestEntry]:
    """The files of a list, in its order. ConfigError names every line that is wrong; `name` is that of the list.

    The first character says what it is: `[` a JSON array, `{` one JSON object on each line. Then come the output of
    sha256sum, and CSV, whose first line names the columns: path, and size and sha256 if it has them."""
    if len(raw) > MAX_BYTES:
        raise ConfigError(f"{name} has {len(raw)} bytes; a manifest has at most {MAX_BYTES}")
    text = raw.decode(errors="surrogateescape").removeprefix("\ufeff")
    start = text.lstrip()[:1]
    lines = [line for line in text.splitlines() if line.strip()]
    if start == "[":
        return _from_json(_decoded(text, name), name)
    if start == "{":
        return _from_json([_decoded(line, f"{name}, line {n}") for n, line in enumerate(lines, 1)], name)
    if lines and _SUM_LINE.fullmatch(lines[0]):
        return _from_sums(lines, name)
    if lines and "path" in _header(lines[0]):
        return _from_csv(lines, name)
    return _checked([(line, ManifestEntry(line)) for line in lines], name)


def _decoded(text: str, where: str) -> object:
    try:
        return msgspec.json.decode(text.encode(errors="surrogateescape"))
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ConfigError(f"{where} is not JSON: {error}") from None


def _from_json(values: object, name: str) -> list[ManifestEntry]:
    assert isinstance(values, list)
    return _checked([(f"entry {n}", _entry_of(value)) for n, value in enumerate(values, 1)], name)


def _entry_of(value: object) -> ManifestEntry | str:
    """The text says what is wrong."""
    if isinstance(value, str):
        return ManifestEntry(value)
    try:
        entry = msgspec.convert(value, ManifestEntry)
    except msgspec.ValidationError as error:
        return f'{error}; an entry is a path or {{"path": …, "size": …, "sha256": …}}'
    return ManifestEntry(entry.path, entry.size, entry.sha256.lower())


def _from_sums(lines: list[str], name: str) -> list[ManifestEntry]:
    found: list[tuple[str, ManifestEntry | str]] = []
    for n, line in enumerate(lines, 1):
        match = _SUM_LINE.fullmatch(line)
        if match is None:
            found.append((f"line {n}", f"{line!r:.120} is not a line of sha256sum"))
            continue
        is_escaped, sha256, path = match.groups()
        if is_escaped:
            path = re.sub(r"\\[\\nr]", lambda one: _ESCAPES[one[0]], path)
        found.append((f"line {n}", ManifestEntry(path, None, sha256.lower())))
    return _checked(found, name)


def _header(line: str) -> list[str]:
    return [column.strip().lower() for column in next(csv.reader([line]), [])]


def _from_csv(lines: list[str], name: str) -> list[ManifestEntry]:
    columns = _header(lines[0])
    found: list[tuple[str, ManifestEntry | str]] = []
    for n, row in enumerate(csv.reader(lines[1:]), 2):
        values = dict(zip(columns, (value.strip() for value in row), strict=False))
        size = values.get("size", "")
        if size and not (size.isascii() and size.isdigit()):
            found.append((f"line {n}", f"size is {size!r}; it must be a number of bytes"))
            continue
        entry = ManifestEntry(values.get("path", ""), int(size) if size else None, values.get("sha256", "").lower())
        found.append((f"line {n}", entry))
    return _checked(found, name)


def _checked(found: list[tuple[str, ManifestEntry | str]], name: str) -> list[ManifestEntry]:
    problems, entries, seen = list[str](), list[ManifestEntry](), set[str]()
    for where, entry in found:
        problem = entry if isinstance(entry, str) else _problem(entry, seen)
        if problem:
            problems.append(f"{name}, {where}: {problem}")
        elif isinstance(entry, ManifestEntry):
            seen.add(entry.path)
            entries.append(entry)
    if problems:
        raise ConfigError(problems)
    return entries


def _problem(entry: ManifestEntry, seen: set[str]) -> str:
    if not entry.path or "\0" in entry.path:
        return f"path is {entry.path!r}; it must name a file"
    if entry.path in seen:
        return f"{entry.path!r} is listed twice"
    if entry.size is not None and entry.size < 0:
        return f"size is {entry.size}; it must be at least 0"
    if entry.sha256 and not _SHA256.fullmatch(entry.sha256):
        return f"sha256 is {entry.sha256!r:.80}; it must have 64 hex digits"
    return ""
