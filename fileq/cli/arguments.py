"""Argument types that several commands share. An error message names the value and what it must be."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import NamedTuple

LARGEST_NUMBER = 10**9
_FIRST_YEAR, _LAST_YEAR = 1970, 9998  # one year less than Python's last one, which some time zones exceed


def add_json(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--json", action="store_true", help="print one JSON document")


def add_app_dir(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--app-dir", default=".", metavar="DIR", help="directory from which handlers are imported")


def whole_number(at_least: int = 0) -> Callable[[str], int]:
    def read(text: str) -> int:
        digits = len(str(LARGEST_NUMBER))
        if not text.isascii() or not text.isdigit() or (len(text) <= digits and int(text) < at_least):
            raise argparse.ArgumentTypeError(f"is {text!r}; it must be a whole number, {at_least} or more")
        if len(text) > digits or int(text) > LARGEST_NUMBER:
            raise argparse.ArgumentTypeError(f"is {text[:50]!r}; it must be a whole number, at most {LARGEST_NUMBER}")
        return int(text)

    return read


def utf8_text(text: str) -> str:
    """Text that a broker can hold; an argument of the command line may be any bytes."""
    try:
        text.encode()
    except UnicodeEncodeError:
        raise argparse.ArgumentTypeError(f"is {text!r}; it must be valid UTF-8") from None
    return text


def duration(text: str) -> float:
    """Seconds."""
    from fileq.core.units import parse_duration

    try:
        return parse_duration(text)
    except ValueError as wrong:
        raise argparse.ArgumentTypeError(f"is {text!r}; it must be {wrong}") from None


class PointInTime(NamedTuple):
    """A time as it was given: milliseconds since the epoch, and the text with the zone that was assumed, or ""."""

    ms: int
    assumed: str = ""


def point_in_time(text: str) -> int:
    """Milliseconds since the epoch. A time without a zone is local time."""
    return zoned_time(text).ms


def zoned_time(text: str) -> PointInTime:
    """A time without a zone is local time."""
    from datetime import UTC, datetime

    try:
        given = datetime.fromisoformat(text)
        local = given.astimezone()
        if not _FIRST_YEAR <= given.astimezone(UTC).year <= _LAST_YEAR:
            raise ValueError
        return PointInTime(int(given.timestamp() * 1000), "" if given.tzinfo else local.isoformat(timespec="seconds"))
    except (ValueError, OverflowError, OSError):
        raise argparse.ArgumentTypeError(
            f"is {text!r}; it must be a time such as 2026-01-31T18:00 or 2026-01-31T18:00:00Z, "
            f"from {_FIRST_YEAR} to {_LAST_YEAR}"
        ) from None


def point_in_time_or_ago(text: str) -> int:
    """Milliseconds since the epoch. A duration such as 2h means two hours ago."""
    import time

    from fileq.core.units import parse_duration

    try:
        return int((time.time() - parse_duration(text)) * 1000)
    except ValueError:
        pass
    try:
        return point_in_time(text)
    except argparse.ArgumentTypeError as wrong:
        raise argparse.ArgumentTypeError(f"{wrong}, or a duration such as 2h, which means two hours ago") from None
