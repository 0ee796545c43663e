"""Text from outside, such as a file's name or a handler's error, made fit for a terminal."""

from __future__ import annotations


def printable(text: str) -> str:
    """One line that looks like the text and can't move the cursor: what is not printable is escaped."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else c.encode("unicode_escape", "backslashreplace").decode() for c in text)
