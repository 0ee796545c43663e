"""Where text for people goes: how wide and high stdout is, and whether it takes colours."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Iterable

from fileq.commands.admin.text import ENDLESS, Page


def page_of_stdout(*, is_endless: bool = False) -> Page:
    """Nothing is cut to a width where stdout is no terminal; `is_endless`: as high as it gets, for scrolling."""
    if not sys.stdout.isatty():
        return Page()
    size = shutil.get_terminal_size()
    is_coloured = not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"
    return Page(size.columns, ENDLESS if is_endless else size.lines, is_coloured)


def print_lines(lines: Iterable[str]) -> None:
    print("\n".join(lines))
