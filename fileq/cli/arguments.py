"""Argument types that several commands share. An error message names the value and what it must be."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from fileq.core.units import PointInTime

LARGEST_NUMBER = 10**9


def add_json(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--json", action="store_true", help="print one JSON document")


def add_app_dir(parser: argparse.ArgumentParser) -> None:
    # Empty, not ".": a directory that was not named is checked before anything is imported from it.
    parser.add_argument(
        "--app-dir",
        default="",
        metavar="DIR",
        help="directory of the handlers (default: the working directory, if no one else can write to it)",
    )


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


def point_in_time(text: str) -> int:
    """Milliseconds since the epoch. A time without a zone is local time."""
    return zoned_time(text).ms


def zoned_time(text: str) -> PointInTime:
    """A time without a zone is local time."""
    from fileq.core.units import parse_point_in_time

    try:
        return parse_point_in_time(text)
    except ValueError as wrong:
        raise argparse.ArgumentTypeError(f"is {text!r}; it must be {wrong}") from None


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
