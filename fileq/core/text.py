"""Text that is safe to print."""

from __future__ import annotations


def printable(text: str) -> str:
    """The text in one line and without control characters; a file name may contain line breaks and escape sequences."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else c.encode("unicode_escape", "backslashreplace").decode() for c in text)
