"""What the form of a schedule says about a text that it can't use, and what to use instead. Only computes.

A person may type a time as people say it, such as "06:30 weekdays". Its cron expression is offered; nothing is changed
until the person takes it.
"""

from __future__ import annotations

import re
from functools import cache
from zoneinfo import available_timezones

from msgspec import Struct

from fileq.core.schedule import EXPECTS, InvalidCron, parsed

FIELDS = "A cron line has five fields: minute hour day month weekday."
EXAMPLE = "For 06:30 on weekdays: 30 6 * * 1-5"
_TIME = re.compile(r"(?:at\s+)?([01]?\d|2[0-3])[:.h]([0-5]\d)\b", re.IGNORECASE)
_AREAS = ("Africa", "America", "Antarctica", "Arctic", "Asia", "Atlantic", "Australia", "Europe", "Indian", "Pacific")
_EVERY_DAY = ("", "daily", "everyday", "day", "days")
_GROUPS = {"weekday": "1-5", "weekdays": "1-5", "workdays": "1-5", "weekend": "6,0", "weekends": "6,0"}
_DAYS = ("sunday", "monday", "tuesday", "wednesday", "thursday", "friday", "saturday")
_FILLERS = ("on", "at", "and", "every", "each", "the")
_RANGE = re.compile(r"\b([a-z]+)\s*(?:-|–|\bto\b|\bthrough\b)\s*([a-z]+)\b")


class ScheduleHint(Struct, frozen=True):
    """`field` is cron or timezone; `better` is a text that fits there, "" if none is known. `is_city`: a person typed a
    city as the page asks for it, which is no mistake."""

    problem: str
    field: str
    better: str = ""
    is_city: bool = False


def hint(field: str, given: str, detail: str) -> ScheduleHint:
    """For what the API says about a field."""
    if field != "cron":
        if zone := zone_of_city(given):
            city = zone.rpartition("/")[2].replace("_", " ")
            return ScheduleHint(f"{city} is in the zone {zone}.", field, zone, is_city=True)
        nearest = detail.partition("did you mean ")[2].rstrip("?")
        return ScheduleHint(f"No time zone is called “{given}”.", field, nearest) if nearest else _unknown(field, given)
    if better := cron_of(given):
        return ScheduleHint(f"{FIELDS} “{given}” would be: {better}", field, better)
    if len(given.split()) != 5 and not given.startswith("@"):
        return ScheduleHint(f"{FIELDS} {EXAMPLE}", field)
    reason = detail.partition(EXPECTS)[2].removeprefix("; ") or "it is not known"
    return ScheduleHint(f"This can't be used: {reason}. {EXAMPLE}", field)


def _unknown(field: str, given: str) -> ScheduleHint:
    return ScheduleHint(f"No time zone is called “{given}”. Type a city, such as Berlin.", field)


@cache
def zone_names() -> list[str]:
    """Zones with a city, without old names such as US/Eastern."""
    return ["UTC", *sorted(name for name in available_timezones() if name.partition("/")[0] in _AREAS)]


def zone_of_city(text: str) -> str:
    """`Europe/Berlin` for "berlin"; "" if no zone, or more than one, is called after this city."""
    city = "_".join(text.split()).casefold()
    found = [name for name in zone_names() if name.rpartition("/")[2].casefold() == city]
    return found[0] if len(found) == 1 else ""


def cron_of(text: str) -> str:
    """`30 6 * * 1-5` for "06:30 weekdays"; "" for a text that is not a time with names of days."""
    words = text.strip().lower()
    time = _TIME.search(words)
    if time is None:
        return ""
    days = _days_in(_RANGE.sub(r"\1-\2", f"{words[: time.start()]} {words[time.end() :]}"))
    if not days:
        return ""
    found = f"{int(time[2])} {int(time[1])} * * {days}"
    try:
        parsed(found)  # friday to monday is no range of cron
    except InvalidCron:
        return ""
    return found


def _days_in(words: str) -> str:
    named = [word for word in re.split(r"[\s,]+", words.strip()) if word not in _FILLERS]
    if len(named) <= 1 and "".join(named) in _EVERY_DAY:
        return "*"
    found = [_GROUPS.get(word) or _range(word) for word in named]
    return ",".join(found) if all(found) else ""


def _range(word: str) -> str:
    """`1-5` for mon-fri, `1` for mondays; "" for another word."""
    first, dash, last = word.partition("-")
    numbers = [_number(one) for one in ([first, last] if dash else [first])]
    return dash.join(numbers) if all(numbers) else ""


def _number(word: str) -> str:
    name = word.removesuffix("s") if len(word) > 4 else word
    return next((str(number) for number, day in enumerate(_DAYS) if len(name) >= 3 and day.startswith(name)), "")
