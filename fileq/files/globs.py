"""Matches paths against include and exclude globs, compiled into few regular expressions. Does no I/O."""

from __future__ import annotations

import re
from collections.abc import Iterable

from wcmatch import glob

from fileq.core.errors import ConfigError

# Wildcards also match names that start with a dot; `**/` matches zero or more directories.
FLAGS = glob.GLOBSTAR | glob.DOTGLOB | glob.FORCEUNIX | glob.BRACE
EVERYTHING = "**/*"
_MAGIC = re.compile(r"[*?\[\]{}\\]")


def exact_glob(path: str) -> str:
    """The pattern that matches this path only."""
    return _MAGIC.sub(r"\\\g<0>", path)


class Globs:
    """Matches if one of the patterns does. `prefix` is the path's directories with a final slash, relative, or ""."""

    def __init__(self, patterns: Iterable[str]) -> None:
        patterns = tuple(pattern.replace("\n", "\0") for pattern in patterns)
        self.matches_all = EVERYTHING in patterns
        # `**/` before a plain name means "in any directory", so the name alone decides: much faster than matching the
        # whole path. The most common ones, a suffix or a literal name, need no regular expression.
        by_name = {p[3:] for p in patterns if p.startswith("**/") and p[3:] and "/" not in p[3:]}
        self._suffixes = tuple(p[1:] for p in by_name if p.startswith("*") and not _MAGIC.search(p[1:]))
        self._names = frozenset(p for p in by_name if not _MAGIC.search(p))
        self._name = _compiled(by_name - self._names - {f"*{suffix}" for suffix in self._suffixes})
        self._path = _compiled({p for p in patterns if p.removeprefix("**/") not in by_name})

    def match(self, prefix: str, name: str) -> bool:
        if self.matches_all or name in self._names or name.endswith(self._suffixes):
            return True
        if self._name is None and self._path is None:
            return False
        # `$` also matches before a final newline, so newlines are replaced by \0, which no path contains.
        name = name.replace("\n", "\0")
        if self._name is not None and self._name.fullmatch(name) is not None:
            return True
        return self._path is not None and self._path.fullmatch(prefix.replace("\n", "\0") + name) is not None


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

    def enters(self, prefix: str, name: str) -> bool:
        """False only if an exclude glob covers everything below this directory."""
        return not self._unentered.match(prefix, name)


def _compiled(patterns: Iterable[str]) -> re.Pattern[str] | None:
    patterns = tuple(patterns)
    if not patterns:
        return None
    try:
        included, _ = glob.translate(patterns, flags=FLAGS, limit=0)
        return re.compile("|".join(f"(?:{pattern})" for pattern in included))
    except (ValueError, re.error) as error:
        raise ConfigError(f"the globs {', '.join(patterns)} can't be read: {error}") from error
