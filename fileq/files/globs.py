r"""Matches paths against globs. Does no I/O.

`*`, `?` and sets such as `[a-z]`, `[!a]` or `[[:digit:]]` match within a name, also one that starts with a dot. `**` as
a whole name matches zero or more directories. `{pdf,txt}` and `{1..9}` list alternatives; `\` takes the next character
as it is. One or more slashes are one. No wildcard matches the names `.` and `..`.

Anyone may choose a pattern and the path, so no pair of them may take long. A name or a row of names between two
wildcards has one length, so its first place is as good as any other: what comes before it is never tried again. This is
what the atomic groups `(?>…)` say. So the cost of a match is at most the product of both lengths, and both are bounded.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterable, Iterator

from fileq.core.errors import ConfigError

EVERYTHING = "**/*"
LONGEST_PATH = 4_096  # characters: no system call takes more
# Of one glob, with each alternative of its braces written out.
LONGEST_GLOB = 10_000  # characters
MOST_ALTERNATIVES = MOST_WILDCARDS = 1_000
_WRITTEN_OUT = ", each alternative of its braces counted; shorten it"
_SHOWN = 100  # characters of a glob in a message
_GLOBS_SHOWN = 5  # in a message
_MAGIC = re.compile(r"[*?\[\]{}\\]")
_LITERAL_BRACE = re.compile(r"\\.|\[[^\[\]]*\]|([{}])", re.DOTALL)  # before the group: where a brace stands for itself
_CLASS = re.compile(r"\[:([a-z]+):\]")
_CLASSES = {
    "alnum": "0-9A-Za-z",
    "alpha": "A-Za-z",
    "ascii": "\0-\x7f",
    "blank": "\t ",
    "cntrl": "\0-\x1f\x7f",
    "digit": "0-9",
    "graph": "!-~",
    "lower": "a-z",
    "print": " -~",
    "punct": r"!-/:-@\[-`{-~",
    "space": "\t-\r ",
    "upper": "A-Z",
    "word": "0-9A-Z_a-z",
    "xdigit": "0-9A-Fa-f",
}
_STAR = "*"  # a piece of a name that is not a regular expression yet
_NOT_DOTS = r"(?!\.{0,2}(?:/|\Z))"  # a name comes next, other than `.` and `..`
_DIRECTORIES = r"(?:(?!\.\.?/)[^/]++/++)*?"
_THE_REST = r"(?!(?:.*/)?\.\.?(?:/|\Z)).*"


def exact_glob(path: str) -> str:
    """The pattern that matches this path only."""
    return _MAGIC.sub(r"\\\g<0>", path)


def has_literal_brace(pattern: str) -> bool:
    r"""Whether a brace lists no alternatives and is not written as `\{`: `{pdf` and `{pdf}` match these characters."""
    return any(found[1] for one in alternatives(pattern) for found in _LITERAL_BRACE.finditer(one))


class Globs:
    """Matches if one of the patterns does. `prefix` is the path's directories with a final slash, relative, or ""."""

    def __init__(self, patterns: Iterable[str]) -> None:
        written_out = {one for pattern in patterns for one in alternatives(pattern)}
        self.matches_all = EVERYTHING in written_out
        # `**/` before a plain name means "in any directory", so the name alone decides: much faster than matching the
        # whole path. The most common ones, a suffix or a literal name, need no regular expression.
        by_name = {p[3:] for p in written_out if p.startswith("**/") and p[3:] and "/" not in p[3:]}
        self._suffixes = tuple(p[1:] for p in by_name if p.startswith("*") and not _MAGIC.search(p[1:]))
        self._names = frozenset(p for p in by_name if not _MAGIC.search(p))
        self._name = _compiled(by_name - self._names - {f"*{suffix}" for suffix in self._suffixes})
        self._path = _compiled({p for p in written_out if p.removeprefix("**/") not in by_name})

    def match(self, prefix: str, name: str) -> bool:
        if self.matches_all or name in self._names or name.endswith(self._suffixes):
            return True
        if (self._name is None and self._path is None) or len(prefix) + len(name) > LONGEST_PATH:
            return False
        if self._name is not None and self._name.fullmatch(name) is not None:
            return True
        return self._path is not None and self._path.fullmatch(prefix + name) is not None


class FileFilter:
    """The files of include_globs without those of exclude_globs, and the directories that need not be entered."""

    def __init__(self, include: Iterable[str], exclude: Iterable[str]) -> None:
        self.patterns = include, exclude = tuple(include), tuple(exclude)
        self._include = Globs(include)
        self._exclude = Globs(exclude)
        self._includes_all, self._excludes_any = self._include.matches_all, bool(exclude)
        below = ("/**", "/**/*")
        self._unentered = Globs(p.removesuffix(end) for p in exclude for end in below if p.endswith(end))

    def takes(self, prefix: str, name: str) -> bool:
        is_included = self._includes_all or self._include.match(prefix, name)
        return is_included and not (self._excludes_any and self._exclude.match(prefix, name))

    def why_left_out(self, prefix: str, name: str) -> str:
        """The rule by which `takes` is False; "" if it is True. Slow: for one file that a person asks about."""
        if self.takes(prefix, name):
            return ""
        include, exclude = self.patterns
        if self._include.match(prefix, name):
            glob = next(glob for glob in exclude if Globs([glob]).match(prefix, name))
            return f"producer.exclude_globs excludes it ({glob!r})"
        if glob := self.missed_by_case(prefix, name):
            return f"no glob of producer.include_globs matches it; {glob!r} would match if case did not matter"
        shown = ", ".join(map(repr, include[:_GLOBS_SHOWN])) + (", …" if len(include) > _GLOBS_SHOWN else "")
        return f"no glob of producer.include_globs matches it ({shown})"

    def missed_by_case(self, prefix: str, name: str) -> str:
        """The glob that would include this file if globs ignored case; "" if none would, or one does as it is."""
        if self._include.match(prefix, name) or self._exclude.match(prefix, name):
            return ""
        lower = prefix.lower(), name.lower()
        return next((glob for glob, lowered in self._lowered if lowered.match(*lower)), "")

    @functools.cached_property
    def _lowered(self) -> list[tuple[str, Globs]]:
        return [(glob, Globs([glob.lower()])) for glob in self.patterns[0]]

    def enters(self, prefix: str, name: str) -> bool:
        """False only if an exclude glob covers everything below this directory."""
        return not self._unentered.match(prefix, name)


def alternatives(pattern: str) -> Iterator[str]:
    """The pattern with each alternative of its braces written out. ConfigError if that is too much."""
    shown = pattern if len(pattern) <= _SHOWN else f"{pattern[:_SHOWN]}…"
    length = wildcards = 0
    for one in _braces_written_out(pattern, shown) if "{" in pattern else (pattern,):
        length += len(one)
        wildcards += one.count("*") + one.count("?") + one.count("[")
        if length > LONGEST_GLOB:
            raise ConfigError(f"the glob {shown!r} has more than {LONGEST_GLOB:,} characters{_WRITTEN_OUT}")
        if wildcards > MOST_WILDCARDS:
            raise ConfigError(f"the glob {shown!r} has more than {MOST_WILDCARDS:,} wildcards{_WRITTEN_OUT}")
        yield one


def _braces_written_out(pattern: str, shown: str) -> Iterator[str]:
    import bracex  # few globs have braces, and commands should start fast

    try:
        yield from bracex.iexpand(pattern, keep_escapes=True, limit=MOST_ALTERNATIVES)
    except bracex.ExpansionLimitException:
        raise ConfigError(
            f"the braces of the glob {shown!r} stand for more than {MOST_ALTERNATIVES:,} globs; use wildcards instead"
        ) from None
    except RecursionError:
        raise ConfigError(f"the glob {shown!r} has too many braces within braces; list the words in one pair") from None


def _compiled(patterns: Iterable[str]) -> re.Pattern[str] | None:
    found = "|".join(map(_expression, sorted(patterns)))
    return re.compile(found, re.DOTALL) if found else None


def _expression(pattern: str) -> str:
    """The regular expression of a pattern without braces."""
    names = _names_in(pattern)
    rows: list[list[str]] = [[]]  # of names between `**` and `**`
    for name in names:
        if name == [_STAR, _STAR]:
            rows += [[]] if rows[-1] or len(rows) == 1 else []  # two after each other are one
        elif name:
            rows[-1].append(_name_expression(name))
    *before, last = ["/++".join(row) for row in rows]
    is_rooted, needs_slash = len(names) > 1 and not names[0], not names[-1] and bool(last)
    found = "/++" if is_rooted else "/*+" if before and not before[0] else ""
    if not before:
        return found + last + ("/++" if needs_slash else "/*+")
    found += f"{before[0]}/++" if before[0] else ""
    found += "".join(f"(?>{_DIRECTORIES}{row}/++)" for row in before[1:])
    return found + (_DIRECTORIES + last + ("/++" if needs_slash else "/*+") if last else _THE_REST)


def _names_in(pattern: str) -> list[list[str]]:
    """The pieces of each name: stars, and regular expressions of one character. No pieces before and after a slash at
    the beginning and the end."""
    names: list[list[str]] = [[]]
    place = no_set_before = 0
    while place < len(pattern):
        character, place = pattern[place], place + 1
        if character == "\\":
            following, place = pattern[place : place + 1], place + 1
            if following != "/":
                names[-1] += [re.escape(following)] if following else []
                continue
            character = following
        if character == "/":
            names += [[]] if names[-1] or len(names) == 1 else []
        elif character == "*":
            names[-1].append(_STAR)
        elif character == "?":
            names[-1].append("[^/]")
        elif character == "[" and place > no_set_before:
            found, end = _set_in(pattern, place)
            names[-1].append(found or re.escape("["))
            place, no_set_before = (end, 0) if found else (place, end)
        else:
            names[-1].append(re.escape(character))
    return names


def _name_expression(pieces: list[str]) -> str:
    if all(_is_literal(piece) for piece in pieces):
        return "".join(pieces)
    rows, row = [], ""
    for piece in pieces:
        if piece == _STAR:
            rows.append(row)
            row = ""
        else:
            row += piece
    may_be_dots = not _is_literal(pieces[0]) or pieces[0] == r"\."
    found = (_NOT_DOTS if may_be_dots else "") + "".join(rows[:1])
    found += "".join(f"(?>[^/]*?{one})" for one in rows[1:] if one)
    return found + (f"[^/]*{row}" if rows and row else "[^/]*+" if rows else row)


def _is_literal(piece: str) -> bool:
    return piece != _STAR and len(piece) <= 2  # as re.escape() returns one character


def _set_in(pattern: str, place: int) -> tuple[str, int]:
    """The regular expression of the set whose bracket is before this place, and where it ends; or "", and where it is
    seen that this is no set."""
    is_negated = pattern[place : place + 1] in ("!", "^") and place < len(pattern)
    place += is_negated
    start, found = place, ""
    while place < len(pattern) and (pattern[place] != "]" or place == start):
        one, place = _item_in(pattern, place)
        if not one:
            return "", place
        is_range = pattern[place : place + 1] == "-" and pattern[place + 1 : place + 2] not in ("", "]")
        last, end = _item_in(pattern, place + 1) if is_range and len(one) <= 2 else ("", place)
        if is_range and len(one) <= 2 and not last:
            return "", end
        if 0 < len(last) <= 2:
            place = end
            one = f"{one}-{last}" if one[-1] <= last[-1] else ""
        found += one
    if place == len(pattern):
        return "", place
    if is_negated:
        return f"[^/{found}]", place + 1
    return (f"(?!/)[{found}]" if found else "(?!/)(?!)"), place + 1


def _item_in(pattern: str, place: int) -> tuple[str, int]:
    """A character of a set, or a class, as a regular expression has them within brackets; and the place after it."""
    if (name := _CLASS.match(pattern, place)) is not None and name[1] in _CLASSES:
        return _CLASSES[name[1]], name.end()
    if pattern[place] == "\\":
        place += 1
    character = pattern[place : place + 1]
    return ("", place) if character in ("", "/") else (re.escape(character), place + 1)
