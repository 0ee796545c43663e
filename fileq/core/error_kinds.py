"""The kind of an error, found again from its text.

The hourly counters, and `fileq stats`, count failures by kind. Records keep the text only. For most errors the text
begins with the kind (`ValueError: …`); this module knows the texts of the others. Values only.
"""

from __future__ import annotations

import re

# Tried in this order; the first that matches from the start of the text decides.
_KINDS: tuple[tuple[re.Pattern[str], str], ...] = (
    (re.compile(r"timed out after "), "Timeout"),
    (re.compile(r"file vanished"), "FileVanished"),
    (re.compile(r"not a regular file"), "NotAFile"),
    (re.compile(r"deadline passed"), "DeadlinePassed"),
    (re.compile(r"not a job"), "Undecodable"),
    (re.compile(r"no handler for |commands in jobs are disabled|the job names neither "), "NoHandler"),
    (re.compile(r"['\"].* leads outside the allowed roots", re.DOTALL), "OutsideRoots"),
    (re.compile(r"used \d+MB of memory, more than worker\.max_memory"), "MemoryLimit"),
    (re.compile(r"\S+ exited with (\d+)"), r"exit \1"),
    (re.compile(r"\S+ was killed by (signal \d+|\w+)"), r"\1"),
    (re.compile(r"([A-Za-z_]\w*)(?:: |$| \(at )"), r"\1"),
)


def kind_of(error: str) -> str:
    """The kind that `fileq stats` shows for this error; "" if its text has none."""
    for pattern, kind in _KINDS:
        if found := pattern.match(error):
            return found.expand(kind)
    return ""
