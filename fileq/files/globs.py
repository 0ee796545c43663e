"""Which paths count: globs compiled into one question. No I/O."""

from __future__ import annotations

import re
from collections.abc import Iterable

from wcmatch import glob

from fileq.core.errors import ConfigError

# Names that start with a dot match like others; `**/` is zero or more directories.
FLAGS = glob.GLOBSTAR | glob.DOTGLOB | glob.FORCEUNIX | glob.BRACE
EVERYTHING = "**/*"
_MAGIC = re.compile(r"[*?\[\]{}\\]")


class Globs:
    """Some patterns as one question. A path is relative, with slashes; `prefix` is its directories, `name` the rest."""

    def __init__(self, patterns: Iterable[str]) -> None:
        patterns = tuple(pattern.replace("\n", "\0") for pattern in patterns)
        self.takes_all = EVERYTHING in patterns
        # `**/` before a plain name says "in any directory", so the name alone decides: much faster than the whole
        # path. The commonest of these, a suffix or a literal name, need no regular expression at all.
        by_name = {p[3:] for p in patterns if p.startswith("**/") and p[3:] and "/" not in p[3:]}
        self._suffixes = tuple(p[1:] for p in by_name if p.startswith("*") and not _MAGIC.search(p[1:]))
        self._names = frozenset(p for p in by_name if not _MAGIC.search(p))
        self._name = _compiled(by_name - self._names - {f"*{suffix}" for suffix in self._suffixes})
        self._path = _compiled({p for p in patterns if p.removeprefix("**/") not in by_name})

    def match(self, prefix: str, name: str) -> bool:
        if self.takes_all or name in self._names or name.endswith(self._suffixes):
            return True
        if self._name is None and self._path is None:
            return False
        # `$` of a regular expression also matches before a last newline; \0 is in no path.
        name = name.replace("\n", "\0")
        if self._name is not None and self._name.fullmatch(name) is not None:
            return True
        return self._path is not None and self._path.fullmatch(prefix.replace("\n", "\0") + name) is not None


class FileFilter:
    """include_globs minus exclude_globs, and whole directories that need not be entered."""

    def __init__(self, include: Iterable[str], exclude: Iterable[str]) -> None:
        exclude = tuple(exclude)
        self._include = Globs(include)
        self._exclude = Globs(exclude)
        below = ("/**", "/**/*")
        self._closed = Globs(p.removesuffix(end) for p in exclude for end in below if p.endswith(end))

    def takes(self, prefix: str, name: str) -> bool:
        return (self._include.takes_all or self._include.match(prefix, name)) and not self._exclude.match(prefix, name)

    def enters(self, prefix: str, name: str) -> bool:
        """False only where an exclude glob covers everything below this directory."""
        return not self._closed.match(prefix, name)


def _compiled(patterns: Iterable[str]) -> re.Pattern[str] | None:
    patterns = tuple(patterns)
    if not patterns:
        return None
    try:
        included, _ = glob.translate(patterns, flags=FLAGS, limit=0)
        return re.compile("|".join(f"(?:{pattern})" for pattern in included))
    except (ValueError, re.error) as error:
        raise ConfigError(f"the globs {', '.join(patterns)} can't be read: {error}") from error
