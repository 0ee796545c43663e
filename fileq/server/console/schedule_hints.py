"""What the form of a schedule says about a text that it can't use, and what to use instead. Only computes.

A person may type a time as people say it, such as "06:30 weekdays". Its cron expression is offered; nothing is changed
until the person takes it.
"""

from __future__ import annotations

import re

from msgspec import Struct

from fileq.core.cron import EXPECTS, InvalidCron, parsed

FIELDS = "A cron line has five fields: minute hour day month weekday."
EXAMPLE = "For 06:30 on weekdays: 30 6 * * 1-5"
_TIME = re.compile(r"(?:at\s+)?([01]?\d|2[0-3])[:.h]([0-5]\d)\b", re.IGNORECASE)
_EVERY_DAY = ("", "daily", "everyday", "day", "days")
_GROUPS = {"weekday": "1-5", "weekdays": "1-5", "workdays": "1-5", "weekend": "6,0", "weekends": "6,0"}
_DAYS = ("sunday", "monday", "tuesday", "wednesday", "thursday", "friday", "saturday")
_FILLERS = ("on", "at", "and", "every", "each", "the")
_RANGE = re.compile(r"\b([a-z]+)\s*(?:-|–|\bto\b|\bthrough\b)\s*([a-z]+)\b")


class ScheduleHint(Struct, frozen=True):
    """`field` is cron or timezone; `better` is a text that fits there, "" if none is known."""

    problem: str
    field: str
    better: str = ""


def hint(field: str, given: str, detail: str) -> ScheduleHint:
    """For what the API says about a field."""
    if field != "cron":
        nearest = detail.partition("did you mean ")[2].rstrip("?")
        return ScheduleHint(f"No time zone is called “{given}”.", field, nearest) if nearest else _unknown(field, given)
    if better := cron_of(given):
        return ScheduleHint(f"{FIELDS} “{given}” would be: {better}", field, better)
    if len(given.split()) != 5 and not given.startswith("@"):
        return ScheduleHint(f"{FIELDS} {EXAMPLE}", field)
    reason = detail.partition(EXPECTS)[2].removeprefix("; ") or "it is not known"
    return ScheduleHint(f"This can't be used: {reason}. {EXAMPLE}", field)


def _unknown(field: str, given: str) -> ScheduleHint:
    return ScheduleHint(f"No time zone is called “{given}”. Type a city, for example: Europe/Berlin", field)


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
