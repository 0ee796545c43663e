"""Measures stdout: its width, its height and whether it shows colours."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable
from typing import TextIO

from fileq.commands.admin.formatting import ENDLESS, Screen


def screen_of_stdout(*, is_endless: bool = False) -> Screen:
    """Without a terminal nothing is cut. `is_endless`: any number of lines, because the user can scroll."""
    if not sys.stdout.isatty():
        return Screen()
    import shutil  # it imports every compression there is

    size = shutil.get_terminal_size()
    is_coloured = not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"
    return Screen(size.columns, ENDLESS if is_endless else size.lines, is_coloured)


def wrapped(text: str, stream: TextIO) -> str:
    """The text in lines that end between words, if the stream is a terminal."""
    try:
        width = os.get_terminal_size(stream.fileno()).columns
    except (OSError, ValueError, AttributeError):  # not a terminal, or no file at all
        return text
    import textwrap

    if width <= 0:
        return text
    return textwrap.fill(text, width, subsequent_indent="  ", break_long_words=False, break_on_hyphens=False)


def print_lines(lines: Iterable[str]) -> None:
    """Prints nothing, not even an empty line, if there are no lines."""
    if text := list(lines):
        print("\n".join(text))
