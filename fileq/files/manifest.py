"""Reads a list of files with their sizes and checksums: JSON, CSV, the output of sha256sum, or one path on each line.

Only parses: paths are as the list has them, and nothing is looked up.
"""

from __future__ import annotations

import csv
import functools
import re
from collections.abc import Iterable, Mapping

import msgspec
from msgspec import Struct

from fileq.core.errors import ConfigError

MAX_BYTES = 64 << 20
ENTRIES_MAX = 1_000_000  # a list of the same size with shorter entries would fill the memory
PROBLEMS_MAX = 100  # that one error names
_SUM_LINE = re.compile(r"(\\?)([0-9a-fA-F]{64}) [ *](.+)")
_SHA256 = re.compile(r"[0-9a-f]{64}")
_SIZE = re.compile(r"[0-9]{1,18}")
_ESCAPES = {"\\\\": "\\", "\\n": "\n", "\\r": "\r"}


class ManifestEntry(Struct, frozen=True):
    """One file. `size` is None and `sha256` is empty where the list does not have them."""

    path: str
    size: int | None = None
    sha256: str = ""


def read_manifest(raw: bytes, name: str) -> list[ManifestEntry]:
    """The files of a list, in its order. ConfigError names the lines that are wrong; `name` is that of the list.

    The first character says what it is: `[` a JSON array, `{` one JSON object on each line. Then come the output of
    sha256sum, and CSV, whose first line names the columns: path, and size and sha256 if it has them. Other columns are
    ignored."""
    if len(raw) > MAX_BYTES:
        raise ConfigError(f"{name} has {len(raw)} bytes; a manifest has at most {MAX_BYTES}")
    try:
        return _read(raw, name)
    except csv.Error as error:  # a column that is too long
        raise ConfigError(f"{name} can't be read: {error}") from error


def _read(raw: bytes, name: str) -> list[ManifestEntry]:
    text = raw.decode(errors="surrogateescape").removeprefix("\ufeff")
    start = text.lstrip()[:1]
    # Counted before anything is made of them. An entry in JSON has few commas, also with columns that are not known.
    if text.count(",") > 8 * ENTRIES_MAX if start == "[" else text.count("\n") > ENTRIES_MAX:
        raise ConfigError(f"{name} has too many entries; a manifest has at most {ENTRIES_MAX:,}")
    if start == "[":
        return _from_json(_decoded(text, name), name)
    lines = [line.removesuffix("\r") for line in text.split("\n") if line.strip()]
    if start == "{":
        return _from_json([_decoded(line, f"{name}, line {n}") for n, line in enumerate(lines, 1)], name)
    if lines and _SUM_LINE.fullmatch(lines[0]):
        return _from_sums(lines, name)
    if lines and "path" in _header(lines[0]):
        return _from_csv(lines, name)
    return _checked(((line, ManifestEntry(line)) for line in lines), name)


def _decoded(text: str, where: str) -> object:
    try:
        return msgspec.json.decode(text.encode(errors="surrogateescape"))
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ConfigError(f"{where} is not JSON: {error}") from None


def _from_json(values: object, name: str) -> list[ManifestEntry]:
    assert isinstance(values, list)
    return _checked(((f"entry {n}", _entry_of(value)) for n, value in enumerate(values, 1)), name)


def _entry_of(value: object) -> ManifestEntry | str:
    """The text says what is wrong."""
    if isinstance(value, str):
        return ManifestEntry(value)
    if isinstance(value, dict) and (misspelt := _misspelt(value)):
        return misspelt
    try:
        entry = msgspec.convert(value, ManifestEntry)
    except msgspec.ValidationError as error:
        return f'{error}; an entry is a path or {{"path": …, "size": …, "sha256": …}}'
    return ManifestEntry(entry.path, entry.size, entry.sha256.lower())


def _misspelt(names: Iterable[str]) -> str:
    """Says which name looks like one of an entry, or "". A list may have other columns too, but with a checksum under a
    misspelt name no file would be compared."""
    return next(filter(None, map(_misspelt_name, names)), "")


@functools.lru_cache(1000)
def _misspelt_name(name: str) -> str:
    import difflib  # few lists have other columns, and commands should start fast

    known = ManifestEntry.__struct_fields__
    if name in known or not (near := difflib.get_close_matches(name[:50].lower(), known, n=1, cutoff=0.8)):
        return ""
    return f"{name[:50]!r} is unknown; did you mean {near[0]!r}?"


def _from_sums(lines: list[str], name: str) -> list[ManifestEntry]:
    return _checked(((f"line {n}", _entry_of_sum(line)) for n, line in enumerate(lines, 1)), name)


def _entry_of_sum(line: str) -> ManifestEntry | str:
    match = _SUM_LINE.fullmatch(line)
    if match is None:
        return f"{line!r:.120} is not a line of sha256sum"
    is_escaped, sha256, path = match.groups()
    if is_escaped:
        path = re.sub(r"\\[\\nr]", lambda one: _ESCAPES[one[0]], path)
    return ManifestEntry(path, None, sha256.lower())


def _header(line: str) -> list[str]:
    return [column.strip().lower() for column in next(csv.reader([line]), [])]


def _from_csv(lines: list[str], name: str) -> list[ManifestEntry]:
    columns = _header(lines[0])
    if misspelt := _misspelt(columns):
        raise ConfigError(f"{name}, line 1: {misspelt}")
    rows = enumerate(csv.reader(lines[1:]), 2)
    return _checked(((f"line {n}", _entry_of_row(dict(zip(columns, row, strict=False)))) for n, row in rows), name)


def _entry_of_row(row: Mapping[str, str]) -> ManifestEntry | str:
    path, size, sha256 = (row.get(column, "").strip() for column in ("path", "size", "sha256"))
    if size and not _SIZE.fullmatch(size):
        return f"size is {size!r:.80}; it must be a number of bytes"
    return ManifestEntry(path, int(size) if size else None, sha256.lower())


def _checked(found: Iterable[tuple[str, ManifestEntry | str]], name: str) -> list[ManifestEntry]:
    problems, entries, seen = list[str](), list[ManifestEntry](), set[str]()
    for where, entry in found:
        problem = entry if isinstance(entry, str) else _problem(entry, seen)
        if problem:
            problems.append(f"{name}, {where[:120]}: {problem}")
            if len(problems) > PROBLEMS_MAX:
                problems[-1] = f"{name}: there may be more problems; these are the first {PROBLEMS_MAX}"
                break
        elif isinstance(entry, ManifestEntry):
            seen.add(entry.path)
            entries.append(entry)
    if problems:
        raise ConfigError(problems)
    return entries


def _problem(entry: ManifestEntry, seen: set[str]) -> str:
    if not entry.path or "\0" in entry.path:
        return f"path is {entry.path!r:.80}; it must name a file"
    if entry.path in seen:
        return f"{entry.path!r:.120} is listed twice"
    if entry.size is not None and entry.size < 0:
        return f"size is {entry.size}; it must be at least 0"
    if entry.sha256 and not _SHA256.fullmatch(entry.sha256):
        return f"sha256 is {entry.sha256!r:.80}; it must have 64 hex digits"
    return ""
