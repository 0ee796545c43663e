"""Cron expressions: what is wrong with one, the times it names in its time zone, and what it says in plain words.

Times are milliseconds since the epoch and always whole seconds. cronsim decides what an expression means, daylight
saving included. `@every 15m` counts from the epoch, so every process computes the same times without a memory.
Does no I/O but reading the rules of a time zone. cronsim and zoneinfo are imported when the first expression is used.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from datetime import UTC, datetime, tzinfo

from fileq.core.units import format_duration, parse_duration

LONGEST = 200  # characters
NEVER_MS = 253_402_300_799_000  # the last second that a calendar has
EXPECTS = "5 fields such as '30 2 * * 1-5', @hourly, @daily, @weekly, @monthly, @yearly, or '@every 15m'"
_EVERY = "@every"
_ALIASES = {
    "@hourly": "0 * * * *",
    "@daily": "0 0 * * *",
    "@midnight": "0 0 * * *",
    "@weekly": "0 0 * * 0",
    "@monthly": "0 0 1 * *",
    "@yearly": "0 0 1 1 *",
    "@annually": "0 0 1 1 *",
}


class InvalidCron(ValueError):
    """The message says what is expected: "5 fields such as …; its minute is wrong"."""


class InvalidZone(ValueError):
    """The message says what is expected, with the name that is nearest."""


class Cron:
    """One expression in one time zone, valid. parsed() makes it."""

    def __init__(self, text: str, zone: tzinfo) -> None:
        self._fields = _ALIASES.get(text.strip().lower(), text.strip())
        self._zone = zone
        self._every_ms = _period_ms(self._fields) if self._fields.lower().startswith("@") else 0
        if not self._every_ms:
            self._check()

    def times_after(self, ms: int) -> Iterator[int]:
        """The times after this one, in order, without an end as far as a calendar reaches."""
        if self._every_ms:
            while True:
                ms = (ms // self._every_ms + 1) * self._every_ms
                yield ms
        from cronsim import CronSim

        # Within an hour that a clock repeats, cronsim continues with times of its first pass, which are in the past.
        for time in CronSim(self._fields, datetime.fromtimestamp(ms // 1000, self._zone)):
            found_ms = round(time.timestamp()) * 1000
            if found_ms > ms:
                ms = found_ms
                yield ms

    def next_after(self, ms: int) -> int:
        """NEVER_MS if there is none."""
        return next(self.times_after(ms), NEVER_MS)

    def explain(self) -> str:
        if self._every_ms:
            return f"Every {format_duration(self._every_ms / 1000)}"
        from cronsim import CronSim

        return CronSim(self._fields, datetime.now(UTC)).explain()

    def _check(self) -> None:
        from cronsim import CronSim, CronSimError

        if len(self._fields.split()) != 5:
            raise InvalidCron(f"{EXPECTS}; it has {len(self._fields.split())} fields")
        try:
            found = next(CronSim(self._fields, datetime.now(UTC)), None)
        except (CronSimError, ValueError, AssertionError, OverflowError) as error:
            raise InvalidCron(f"{EXPECTS}; its {_wrong_field(error)} is wrong") from None
        if found is None:
            raise InvalidCron(f"{EXPECTS}; no day matches it")


def _wrong_field(error: Exception) -> str:
    """cronsim says "Bad minute"."""
    return str(error).removeprefix("Bad ") if str(error).startswith("Bad ") else "text"


def _period_ms(text: str) -> int:
    word, _, duration = text.partition(" ")
    if word.lower() != _EVERY:
        raise InvalidCron(EXPECTS)
    try:
        seconds = parse_duration(duration)
    except ValueError as error:
        raise InvalidCron(f"{EXPECTS}; after @every comes {error}") from None
    if seconds < 1 or seconds != int(seconds):
        raise InvalidCron(f"{EXPECTS}; after @every come whole seconds, at least 1s")
    return int(seconds) * 1000


@functools.lru_cache(512)
def parsed(text: str, zone_name: str = "UTC") -> Cron:
    """Raises InvalidCron or InvalidZone."""
    zone = zone_of(zone_name)
    if len(text) > LONGEST:
        raise InvalidCron(f"at most {LONGEST} characters")
    return Cron(text, zone)


@functools.lru_cache(512)
def zone_of(name: str) -> tzinfo:
    """The time zone with this IANA name."""
    if name == "UTC":
        return UTC
    from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

    try:
        return ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError, OSError):  # a directory, a file that is no time zone, a path with ..
        raise InvalidZone(f"a time zone such as Europe/Berlin{_nearest(name)}") from None


def _nearest(name: str) -> str:
    from difflib import get_close_matches
    from zoneinfo import available_timezones

    known = {zone.lower(): zone for zone in sorted(available_timezones())}
    if not known:
        return "; this machine has no time zones: install the package tzdata"
    by_city = {zone.rpartition("/")[2]: zone for zone in known}
    wanted = name.strip().lower().replace(" ", "_")
    if found := get_close_matches(wanted, known, n=1, cutoff=0.75):
        return f"; did you mean {known[found[0]]}?"
    city = get_close_matches(wanted.rpartition("/")[2], by_city, n=1, cutoff=0.75)
    return f"; did you mean {known[by_city[city[0]]]}?" if city else ""
