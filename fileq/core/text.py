"""Text that is safe to show."""

from __future__ import annotations


def printable(text: str) -> str:
    """In one line, and without words that a terminal obeys: a file name may hold both."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else c.encode("unicode_escape", "backslashreplace").decode() for c in text)
