"""Formats ages, numbers and tables for a terminal, measures stdout and prints to it. Tables escape the text of their
cells. Callers escape other untrusted text with `printable` first."""

from __future__ import annotations

import os
import sys
import unicodedata
from collections.abc import Iterable, Sequence
from typing import NamedTuple, TextIO

from fileq.core.job import MADE_ID, parse_time, rfc3339_ms
from fileq.core.text import printable
from fileq.core.units import two_units

ENDLESS = 100_000  # columns and lines where stdout is not a terminal: only errors are cut there
CELL_SHOWN = 250  # columns of a cell of a table; ids of fileq are shorter, and other programs choose theirs
ID_SHOWN = 8  # hex digits of an id in a table
ERROR_SHOWN = 300  # characters of an error in a list; `fileq show` prints all of it
_STYLES = {"bold": "1", "dim": "2", "red": "31", "yellow": "33", "green": "32"}


class Cell(NamedTuple):
    text: str
    style: str = ""


class Screen(NamedTuple):
    """The size of the terminal, and whether it shows colours."""

    width: int = ENDLESS
    height: int = ENDLESS
    is_coloured: bool = False

    def paint(self, text: str, style: str) -> str:
        return f"\x1b[{_STYLES[style]}m{text}\x1b[0m" if style and self.is_coloured and text else text

    def line(self, text: str, style: str = "") -> str:
        """As much of the text as fits on one line."""
        return self.paint(cut(text, self.width), style)


def columns(text: str) -> int:
    if text.isascii():
        return len(text)
    return sum(0 if unicodedata.combining(c) else 2 if unicodedata.east_asian_width(c) in "WF" else 1 for c in text)


def cut(text: str, width: int, *, from_left: bool = False) -> str:
    """The text shortened to `width` columns, with an ellipsis where characters were removed."""
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


def cut_inside(text: str, width: int) -> str:
    """The text shortened to `width` columns: its beginning, and half as much of its end."""
    if columns(text) <= width:
        return text
    end = max(0, (width - 1) // 3)
    return cut(text, width - end) + cut(text, end + 1, from_left=True)[1:]


def table(
    rows: Sequence[Sequence[str | Cell]],
    screen: Screen,
    *,
    right: Sequence[int] = (),
    flexible: int = -1,
    has_header: bool = True,
    indent: int = 0,
    from_left: bool = True,
) -> list[str]:
    """Lines of aligned columns, two blanks apart. On a narrow screen only the flexible column is shortened."""
    if not rows:
        return []
    plain = [[cell if isinstance(cell, Cell) else Cell(cell) for cell in row] for row in rows]
    cells = [[Cell(printable(cell.text), cell.style) for cell in row] for row in plain]
    if has_header:
        cells[0] = [Cell(cell.text, "dim") for cell in cells[0]]
    widths = [max(columns(row[i].text) for row in cells) for i in range(len(cells[0]))]
    flexible %= len(widths)
    widths = [width if i == flexible else min(width, CELL_SHOWN) for i, width in enumerate(widths)]
    others = sum(widths) - widths[flexible] + 2 * (len(widths) - 1) + indent
    widths[flexible] = max(8, min(widths[flexible], screen.width - others))
    lines = []
    for row in cells:
        parts = []
        for i, (cell, width) in enumerate(zip(row, widths, strict=True)):
            text = cut(cell.text, width, from_left=from_left and i == flexible)
            blanks, painted = " " * (width - columns(text)), screen.paint(text, cell.style)
            parts.append(blanks + painted if i in right else painted + blanks)
        lines.append((" " * indent + "  ".join(parts)).rstrip())
    return lines


def record(facts: Iterable[tuple[str, str | Cell]], screen: Screen) -> list[str]:
    """A line for each fact that is known. Nothing is cut, so that values can be copied."""
    rows = [(Cell(name, "dim"), value) for name, value in facts if value not in ("", Cell(""))]
    return table(rows, screen._replace(width=ENDLESS), has_header=False)


def age(seconds: float | None) -> str:
    """Two units at most: 12s, 4m10s, 2h05m, 3d04h."""
    return "?" if seconds is None else two_units(seconds)


def seconds_between(then: str | None, at: str) -> float | None:
    """The seconds from one time to the other, as --json has them; None if one is missing."""
    start, end = parse_time(then or ""), parse_time(at)
    return (end - start).total_seconds() if start is not None and end is not None else None


def number(count: float) -> str:
    return f"{count:,.0f}"


def rate(per_second: float) -> str:
    """A rate per second; per minute or per hour if the number would be too small to read."""
    if per_second == 0:
        return "0"
    if per_second >= 0.95:
        return f"{per_second:,.0f}/s" if per_second >= 10 else f"{per_second:.1f}/s"
    if per_second * 60 >= 0.95:
        return f"{per_second * 60:.1f}/min"
    return f"{per_second * 3600:.1f}/h"


def plural(count: int, word: str, words: str = "") -> str:
    return f"{number(count)} {word if count == 1 else words or word + 's'}"


def moment(ms: int) -> str:
    """A time for text output, to the second; "" for 0."""
    return rfc3339_ms(ms)[:19].replace("T", " ") + "Z" if ms else ""


def name_of(filepath: str, type: str | None, id: str) -> str:
    """The name of a job in text output: its file, or its type and id."""
    if filepath:
        return printable(filepath)
    return f"{printable(type)} {printable(id)}".rstrip() if type else printable(id) or "bytes that are not a job"


def short_ids(ids: Iterable[str]) -> dict[str, str]:
    """Each id as a table shows it: shortened to 8 digits, or as many as distinguish it from the others."""
    made = sorted({id for id in ids if MADE_ID.fullmatch(id)})
    short = {id: id for id in ids}
    for i, id in enumerate(made):
        neighbours = [*made[max(0, i - 1) : i], *made[i + 1 : i + 2]]
        shared = max((_shared(id, other) for other in neighbours), default=0)
        short[id] = id[: max(shared + 1, ID_SHOWN + 4 * id.startswith("raw-"))].rstrip("-")
    return short


def _shared(one: str, other: str) -> int:
    """How many characters two ids have in common from the start."""
    return next((i for i, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), min(len(one), len(other)))


def screen_of_stdout(*, is_endless: bool = False) -> Screen:
    """Its width, its height and whether it shows colours. Without a terminal nothing is cut.

    `is_endless`: any number of lines, because the user can scroll."""
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


def remark(text: str) -> None:
    print(f"fileq: {text}", file=sys.stderr, flush=True)


def print_lines(lines: Iterable[str], stream: TextIO | None = None) -> None:
    """Prints nothing, not even an empty line, if there are no lines."""
    if text := list(lines):
        print("\n".join(text), file=stream)
