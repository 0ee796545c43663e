"""Text for people: ages, numbers, and tables that fit a terminal. Whatever came from outside is one harmless line."""

from __future__ import annotations

import unicodedata
from collections.abc import Sequence
from typing import NamedTuple

from fileq.core.job import rfc3339_ms

ENDLESS = 100_000  # columns of what is not a terminal: nothing is cut there but errors
ERROR_SHOWN = 300  # characters of an error in a list; `show` has it all
_STYLES = {"bold": "1", "dim": "2", "red": "31", "yellow": "33", "green": "32"}


class Cell(NamedTuple):
    text: str
    style: str = ""


class Page(NamedTuple):
    """What is known of the place a text is printed to."""

    width: int = ENDLESS
    height: int = ENDLESS
    is_coloured: bool = False

    def paint(self, text: str, style: str) -> str:
        return f"\x1b[{_STYLES[style]}m{text}\x1b[0m" if style and self.is_coloured and text else text


def columns(text: str) -> int:
    """The columns a text takes on a terminal."""
    if text.isascii():
        return len(text)
    return sum(0 if unicodedata.combining(c) else 2 if unicodedata.east_asian_width(c) in "WF" else 1 for c in text)


def cut(text: str, width: int, *, from_left: bool = False) -> str:
    """The text, or as much of it as fits, with an ellipsis where something is missing."""
    if columns(text) <= width:
        return text
    kept: list[str] = []
    room = max(0, width - 1)
    for c in reversed(text) if from_left else text:
        room -= columns(c)
        if room < 0:
            break
        kept.append(c)
    return "…" + "".join(reversed(kept)) if from_left else "".join(kept) + "…"


def table(
    rows: Sequence[Sequence[str | Cell]],
    page: Page,
    *,
    right: Sequence[int] = (),
    flexible: int = -1,
    has_header: bool = True,
    indent: int = 0,
    from_left: bool = True,
) -> list[str]:
    """Lines of aligned columns, two blanks apart; the flexible one gives way where the page is narrow."""
    if not rows:
        return []
    cells = [[cell if isinstance(cell, Cell) else Cell(cell) for cell in row] for row in rows]
    if has_header:
        cells[0] = [Cell(cell.text, "dim") for cell in cells[0]]
    widths = [max(columns(row[i].text) for row in cells) for i in range(len(cells[0]))]
    flexible %= len(widths)
    others = sum(widths) - widths[flexible] + 2 * (len(widths) - 1) + indent
    widths[flexible] = max(8, min(widths[flexible], page.width - others))
    return [_line(row, widths, page, right, flexible, indent, from_left) for row in cells]


def _line(
    row: Sequence[Cell],
    widths: Sequence[int],
    page: Page,
    right: Sequence[int],
    flexible: int,
    indent: int,
    from_left: bool,
) -> str:
    parts = []
    for i, (cell, width) in enumerate(zip(row, widths, strict=True)):
        text = cut(cell.text, width, from_left=from_left) if i == flexible else cell.text
        blanks = " " * (width - columns(text))
        painted = page.paint(text, cell.style)
        parts.append(blanks + painted if i in right else painted + blanks)
    return (" " * indent + "  ".join(parts)).rstrip()


def age(seconds: float | None) -> str:
    """Two units at most: 12s, 4m10s, 2h05m, 3d04h."""
    if seconds is None:
        return "?"
    s = max(0, round(seconds))
    if s < 60:
        return f"{s}s"
    if s < 3600:
        return f"{s // 60}m{s % 60:02}s"
    if s < 172_800:
        return f"{s // 3600}h{s % 3600 // 60:02}m"
    return f"{s // 86_400}d{s % 86_400 // 3600:02}h"


def number(count: float) -> str:
    return f"{count:,.0f}"


def rate(a_second: float) -> str:
    """By the second, or by the minute or hour where that is too small a number to read."""
    if a_second == 0:
        return "0"
    if a_second >= 0.95:
        return f"{a_second:,.0f}/s" if a_second >= 10 else f"{a_second:.1f}/s"
    if a_second * 60 >= 0.95:
        return f"{a_second * 60:.1f}/min"
    return f"{a_second * 3600:.1f}/h"


def plural(count: int, word: str, words: str = "") -> str:
    return f"{number(count)} {word if count == 1 else words or word + 's'}"


def moment(ms: int) -> str:
    """A time for people, to the second; "" for none."""
    return rfc3339_ms(ms)[:19].replace("T", " ") + "Z" if ms else ""


def stamp(ms: int) -> str | None:
    """A time for programs: RFC 3339, or null."""
    return rfc3339_ms(ms) if ms else None
