"""Reads a list of files with their sizes and checksums: JSON, CSV, the output of sha256sum, or one path on each line.

Only parses: paths are as the list has them, and nothing is looked up.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import TypeVar

import msgspec
from msgspec import Struct

from fileq.core.errors import ConfigError
from fileq.core.text import repeated_key

MAX_BYTES = 64 << 20
ENTRIES_MAX = 1_000_000  # a list of the same size with shorter entries would fill the memory
ENTRY_MAX = 64 << 10  # bytes; a path has at most 4,096
COLUMNS_MAX = 1_000  # different ones of a list
PROBLEMS_MAX = 100  # that one error names
_BOM = b"\xef\xbb\xbf"
_START = re.compile(rb"\s*(\[?)\s*(.?)", re.DOTALL)
_SUM_LINE = re.compile(r"(\\?)([0-9a-fA-F]{64}) [ *](.+)")
_SHA256 = re.compile(r"[0-9a-f]{64}")
_SIZE = re.compile(r"[0-9]{1,18}")
_ESCAPES = {"\\\\": "\\", "\\n": "\n", "\\r": "\r"}
_PLACE = re.compile(r" - at `\$\[(\d+)\]`$")


T = TypeVar("T")


class ManifestEntry(Struct, frozen=True):
    """One file. `size` is None and `sha256` is empty where the list does not have them."""

    path: str
    size: int | None = None
    sha256: str = ""


class _AnyObject(Struct, gc=False):
    """A JSON object of which nothing is kept."""


_PATHS, _OBJECTS = msgspec.json.Decoder(list[str]), msgspec.json.Decoder(list[_AnyObject])
# Raw is the text of a value: what is under a name that is not known is never made into objects.
_TEXTS, _COLUMNS = msgspec.json.Decoder(list[msgspec.Raw]), msgspec.json.Decoder(dict[str, msgspec.Raw])
_ENTRY = msgspec.json.Decoder(ManifestEntry)


def read_manifest(raw: bytes, name: str, entries_max: int = ENTRIES_MAX) -> list[ManifestEntry]:
    """The files of a list, in its order. ConfigError names the lines that are wrong; `name` is that of the list.

    The first character says what it is: `[` a JSON array, `{` one JSON object on each line. Then come the output of
    sha256sum, and CSV, whose first line names the columns: path, and size and sha256 if it has them. Other columns are
    ignored. The memory that a list takes is bounded by a few times its length, whatever is in it."""
    if len(raw) > MAX_BYTES:
        raise ConfigError(f"{name} has {len(raw)} bytes; a manifest has at most {MAX_BYTES}")
    try:
        return _read(raw.removeprefix(_BOM), name, entries_max)
    except csv.Error as error:  # a column that is too long
        raise ConfigError(f"{name} can't be read: {error}") from error


def _read(raw: bytes, name: str, entries_max: int) -> list[ManifestEntry]:
    match = _START.match(raw)
    assert match is not None
    bracket, start = match.groups()
    # Counted before anything is made of them. An entry in JSON has few commas, also with columns that are not known.
    if raw.count(b",") > 8 * entries_max if bracket else raw.count(b"\n") > entries_max:
        raise _too_many(name, entries_max)
    if bracket:
        return (_from_paths if start == b'"' else _from_objects)(raw, name, entries_max)
    lines = [line.removesuffix(b"\r") for line in raw.split(b"\n") if line.strip()]
    if start == b"{":
        return _from_json(((f"{name}, line {n}", line) for n, line in enumerate(lines, 1)), name)
    if any(len(line) > ENTRY_MAX for line in lines):
        raise ConfigError(f"{name} has a line of more than {ENTRY_MAX:,} bytes")
    texts = [line.decode(errors="surrogateescape") for line in lines]
    if texts and _SUM_LINE.fullmatch(texts[0]):
        return _checked(((f"line {n}", _entry_of_sum(line)) for n, line in enumerate(texts, 1)), name)
    if texts and "path" in _header(texts[0]):
        return _from_csv(texts, name)
    return _checked(((text, ManifestEntry(text)) for text in texts), name)


def _too_many(name: str, entries_max: int) -> ConfigError:
    return ConfigError(f"{name} has too many entries; a manifest has at most {entries_max:,}")


def _decoded(decoder: msgspec.json.Decoder[T], raw: bytes | msgspec.Raw, where: str) -> T:
    """Raises msgspec.ValidationError for JSON of another form."""
    try:
        return decoder.decode(raw)
    except msgspec.ValidationError:
        raise
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ConfigError(f"{where} is not JSON: {error}") from None


def _array(decoder: msgspec.json.Decoder[list[T]], raw: bytes, name: str) -> list[T]:
    """Paths or objects: the first entry says which."""
    try:
        return _decoded(decoder, raw, name)
    except msgspec.ValidationError as error:
        place = _PLACE.search(str(error))
        where = f", entry {int(place[1]) + 1}" if place else ""
        raise ConfigError(f"{name}{where}: {_PLACE.sub('', str(error))}; {_FORMS}") from None


_FORMS = 'an entry is a path or {"path": …, "size": …, "sha256": …}, like the others of its list'


def _from_paths(raw: bytes, name: str, entries_max: int) -> list[ManifestEntry]:
    if raw.count(b'"') > 4 * entries_max:  # each has two, and more if they are in its name
        raise _too_many(name, entries_max)
    paths = _array(_PATHS, raw, name)
    return _checked(((f"entry {n}", ManifestEntry(path)) for n, path in enumerate(paths, 1)), name)


def _from_objects(raw: bytes, name: str, entries_max: int) -> list[ManifestEntry]:
    if len(_array(_OBJECTS, raw, name)) > entries_max:
        raise _too_many(name, entries_max)
    return _from_json(((name, text) for text in _array(_TEXTS, raw, name)), name)


def _from_json(values: Iterable[tuple[str, bytes | msgspec.Raw]], name: str) -> list[ManifestEntry]:
    """`values` are objects, each with its place for an error of its syntax."""
    columns = set(ManifestEntry.__struct_fields__)

    def entries() -> Iterator[tuple[str, ManifestEntry | str]]:
        for n, (where, text) in enumerate(values, 1):
            yield f"entry {n}", _entry_of(text, where, columns)
            if len(columns) > COLUMNS_MAX:
                raise ConfigError(f"{name} has more than {COLUMNS_MAX:,} different columns")

    return _checked(entries(), name)


def _entry_of(text: bytes | msgspec.Raw, where: str, columns: set[str]) -> ManifestEntry | str:
    """The text says what is wrong. `columns` are those that were seen before; new ones are added."""
    if len(memoryview(text)) > ENTRY_MAX:
        return f"it has more than {ENTRY_MAX:,} bytes"
    try:
        new = _decoded(_COLUMNS, text, where).keys() - columns
        columns |= new
        if misspelt := _misspelt(new):
            return misspelt
        if twice := repeated_key(bytes(text)):
            return f"{twice[:50]!r} is given twice"
        entry = _decoded(_ENTRY, text, where)
    except msgspec.ValidationError as error:
        return f"{error}; {_FORMS}"
    except RecursionError as error:
        raise ConfigError(f"{where} is not JSON: {error}") from None
    return ManifestEntry(entry.path, entry.size, entry.sha256.lower())


def _misspelt(names: Iterable[str]) -> str:
    """Says which name looks like one of an entry, or "". A list may have other columns too, but with a checksum under a
    misspelt name no file would be compared."""
    import difflib  # few lists have other columns, and commands should start fast

    known = ManifestEntry.__struct_fields__
    for name in names:
        if name not in known and (near := difflib.get_close_matches(name[:50].lower(), known, n=1, cutoff=0.8)):
            return f"{name[:50]!r} is unknown; did you mean {near[0]!r}?"
    return ""


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


def _rows(lines: Iterable[str]) -> Iterator[list[str]]:
    """A row may go on in the next line, within quotes, but has a bounded length."""
    length = 0

    def counted() -> Iterator[str]:
        nonlocal length
        for line in lines:
            length += len(line)
            if length > ENTRY_MAX:
                raise csv.Error(f"a row has more than {ENTRY_MAX:,} characters")
            yield line

    for row in csv.reader(counted()):
        length = 0
        yield row


def _from_csv(lines: list[str], name: str) -> list[ManifestEntry]:
    columns = _header(lines[0])
    if len(columns) > COLUMNS_MAX:
        raise ConfigError(f"{name} has {len(columns)} columns; a manifest has at most {COLUMNS_MAX:,}")
    if misspelt := _misspelt(columns):
        raise ConfigError(f"{name}, line 1: {misspelt}")
    rows = enumerate(_rows(lines[1:]), 2)
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
