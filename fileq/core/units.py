"""Durations, times, sizes and rates as people write them: `1h30m`, `2026-01-31T18:00`, `512MB`, `10/s`.

Owns both directions, from text to numbers and back. Does no I/O.
"""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from typing import NamedTuple, TypeAlias

from msgspec import Struct

Duration: TypeAlias = float | str | timedelta  # seconds, "5m" or a timedelta

_NUMBER = r"(\d+(?:\.\d+)?)"
_DURATION = re.compile(rf"(?:{_NUMBER}d)?(?:{_NUMBER}h)?(?:{_NUMBER}m(?!s))?(?:{_NUMBER}s)?(?:{_NUMBER}ms)?")
_UNITS_MS = {"d": 86_400_000, "h": 3_600_000, "m": 60_000, "s": 1_000, "ms": 1}
_LONGEST_DAYS = 36_500
LONGEST_S = _LONGEST_DAYS * 86_400.0  # far beyond any use, and still small enough for timers and Redis expiries
_FIRST_YEAR, _LAST_YEAR = 1970, 9998  # one year less than Python's last one, which some time zones exceed

_SIZE = re.compile(rf"{_NUMBER}\s*([KMGT]?)(?:i?B)?", re.IGNORECASE)
_RATE = re.compile(r"(\d{1,12})/([smh])")
_WINDOWS_MS = {unit: _UNITS_MS[unit] for unit in "smh"}
_SIZES = {"T": 1 << 40, "G": 1 << 30, "M": 1 << 20, "K": 1 << 10}


def parse_duration(text: str) -> float:
    """Seconds. The message of the ValueError says what is expected, such as "a duration of at most 36500d"."""
    text = text.strip()
    if text == "0":
        return 0.0
    if re.fullmatch(_NUMBER, text):
        raise ValueError(f"a duration with its unit, such as {text}s or {text}ms")
    match = _DURATION.fullmatch(text)
    if match is None or not text:
        raise ValueError("a duration such as 500ms, 30s, 1m, 1h30m or 30d")
    # Milliseconds first and one division last: 4s350ms is then exactly the float 4.35.
    total_ms = sum(float(part) * unit for part, unit in zip(match.groups("0"), _UNITS_MS.values(), strict=True))
    if total_ms > LONGEST_S * 1000:
        raise ValueError(f"a duration of at most {_LONGEST_DAYS}d")
    return total_ms / 1000


def seconds(duration: Duration) -> float:
    """The message of the ValueError says what is expected."""
    if isinstance(duration, str):
        return parse_duration(duration)
    if isinstance(duration, bool) or not isinstance(duration, int | float | timedelta):
        raise ValueError("a number of seconds, a duration such as '5m' or a timedelta")
    value = duration.total_seconds() if isinstance(duration, timedelta) else float(duration)
    if not 0 <= value <= LONGEST_S:
        raise ValueError("between 0 and 36500d")
    return value


def format_duration(seconds: float) -> str:
    """The text that parse_duration reads as these seconds, to the microsecond."""
    left_ms = round(seconds * 1000, 3)
    parts = []
    for unit, size in _UNITS_MS.items():
        if unit == "d" and left_ms < 2 * size:
            continue  # 24h and 36h are written in hours; days begin at two
        count = left_ms if unit == "ms" else left_ms // size
        left_ms = round(left_ms - count * size, 3)
        if count:
            parts.append(f"{count:.3f}".rstrip("0").rstrip(".") + unit)
    return "".join(parts) or "0s"


def short_duration(seconds: float) -> str:
    """For people, rounded: 3ms, 1.2s, 4m10s, 2h05m, 3d04h. The same in log lines and in `fileq show`."""
    if seconds < 0.9995:
        return f"{seconds * 1000:.0f}ms"
    return f"{seconds:.1f}s" if seconds < 59.95 else two_units(seconds)


def two_units(seconds: float) -> str:
    """To the second, with two units at most: 12s, 4m10s, 2h05m, 3d04h."""
    s = max(0, round(seconds))
    if s < 60:
        return f"{s}s"
    if s < 3600:
        return f"{s // 60}m{s % 60:02}s"
    if s < 172_800:
        return f"{s // 3600}h{s % 3600 // 60:02}m"
    return f"{s // 86_400}d{s % 86_400 // 3600:02}h"


class PointInTime(NamedTuple):
    """A time as it was given: milliseconds since the epoch, and the text with the zone that was assumed, or ""."""

    ms: int
    assumed: str = ""


def parse_point_in_time(text: str) -> PointInTime:
    """A time without a zone is local time. The message of the ValueError says what is expected."""
    try:
        given = datetime.fromisoformat(text)
        # Not by given.astimezone(): of a local time that the clock leaves out in spring it makes another moment.
        moment = datetime.fromtimestamp(given.timestamp(), UTC)
        if not _FIRST_YEAR <= moment.year <= _LAST_YEAR:
            raise ValueError
        assumed = "" if given.tzinfo else moment.astimezone().isoformat(timespec="seconds")
        return PointInTime(int(given.timestamp() * 1000), assumed)
    except (ValueError, OverflowError, OSError):
        raise ValueError(
            f"a time such as 2026-01-31T18:00 or 2026-01-31T18:00:00Z, from {_FIRST_YEAR} to {_LAST_YEAR}"
        ) from None


def parse_size(text: str) -> int:
    """Bytes. The units are powers of 1024, as usual for memory. The ValueError says what is expected."""
    match = _SIZE.fullmatch(text.strip())
    if match is None:
        raise ValueError("a size such as 512MB or 2GB")
    if text.strip()[-1].isdigit() and float(match[1]):
        raise ValueError(f"a size with its unit, such as {text.strip()}MB")
    return round(float(match[1]) * _SIZES.get(match[2].upper(), 1))


def format_size(size: int) -> str:
    """The text that parse_size reads as these bytes."""
    for unit, factor in _SIZES.items():
        if size and size % factor == 0:
            return f"{size // factor}{unit}B"
    return f"{size}B"


class Rate(Struct, frozen=True):
    """At most `count` in a window of this length."""

    count: int
    window_ms: int

    def __str__(self) -> str:
        unit = next(unit for unit, size in _WINDOWS_MS.items() if size == self.window_ms)
        return f"{self.count}/{unit}"


def parse_rate(text: str) -> Rate:
    """The rate that str() writes as this text. The ValueError says what is expected."""
    match = _RATE.fullmatch(text.strip())
    if match is None or int(match[1]) < 1:
        raise ValueError("a rate such as 10/s, 100/m or 1000/h, of at least 1")
    return Rate(int(match[1]), _WINDOWS_MS[match[2]])
