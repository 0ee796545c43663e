"""What a schedule is, and what is to be done about it at a moment. Only computes; the broker acts.

A slot is one time at which a schedule is due. `steps` decides about every slot up to now: it fires, or it is missed.
It gets the time from its caller, who has it from the broker, so the clock of this machine does not matter.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime, tzinfo
from typing import Any

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from fileq.core.job import MAX_NESTING, TOO_NESTED, Job, is_nested_deeper, rfc3339, typed_job
from fileq.core.own_jobs import SCHEDULE_IDS
from fileq.core.units import parse_duration

REPROCESS_TYPE = "fileq.reprocess"
SCAN_TYPE = "fileq.scan"
ADDED_KEYS = ("scheduled_for", "missed")  # to the payload of each job
SLOTS_AT_ONCE = 1_000  # how many slots one look counts; a look at a year of minutes would take half a minute
STEPS_AT_ONCE = 100
MOST_MADE_UP = 1_000
FROM_CONFIGURATION = "configuration"
FROM_PROGRAM = "program"
_JOB_ID = re.compile(r"sched\.(?P<name>.+)\.(?:(?P<hand>manual\.[0-9a-f-]{36})|\d{8}T\d{6}Z)")  # as below


class ScheduleDefinition(Struct, frozen=True, omit_defaults=True, kw_only=True):
    """When jobs are made, and which. `within_s`: a slot that is later than this is missed. `missed`: how many of the
    missed slots are made up, skip, last or all:N. `overlap`: what happens while the last job is unfinished."""

    cron: str
    type: str
    timezone: str = "UTC"
    payload: dict[str, Any] = {}
    priority: str = ""  # "": the task's or the worker's default
    missed: str = "last"
    overlap: str = "skip"
    within_s: float = 600.0
    max_retries: int | None = None
    timeout_s: float | None = None

    @property
    def times(self) -> Cron:
        """Raises InvalidCron or InvalidZone."""
        return parsed(self.cron, self.timezone)

    @property
    def made_up(self) -> int:
        """How many missed slots fire after all: the last ones."""
        if self.missed.startswith("all:"):
            return int(self.missed.removeprefix("all:"))
        return int(self.missed == "last")

    @property
    def revision(self) -> str:
        """Equal for equal definitions only."""
        import hashlib  # it loads OpenSSL, and commands should start fast

        return hashlib.sha256(_encoder.encode(self)).hexdigest()[:16]


class ScheduleDocument(Struct, frozen=True, omit_defaults=True, kw_only=True):
    """A schedule as the catalog keeps it. `is_paused` is what the configuration says, not the present state.

    `unclaimed_ms`: since when a worker runs whose configuration does not have it any more; 0 = none does.
    `by_hand_ms` and `by_hand_id` are a note for people, about the job that was made beside its times last. It is
    written after that job, so a kill -9 may leave the job without the note. Nothing depends on it."""

    definition: ScheduleDefinition
    source: str = FROM_PROGRAM
    is_paused: bool = False
    unclaimed_ms: int = 0
    by_hand_ms: int = 0
    by_hand_id: str = ""

    @property
    def without_note(self) -> ScheduleDocument:
        """What defines it: the same before and after it was run by hand."""
        return replace(self, by_hand_ms=0, by_hand_id="")

    @property
    def is_configured(self) -> bool:
        return self.source == FROM_CONFIGURATION


_encoder = msgspec.json.Encoder(order="deterministic")
_decoder = msgspec.json.Decoder(ScheduleDocument)


def encode_document(document: ScheduleDocument) -> bytes:
    return _encoder.encode(document)


def decode_document(body: bytes) -> ScheduleDocument:
    """Raises ValueError for a document that another version or program wrote."""
    try:
        return _decoder.decode(body)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise ValueError(f"its definition can't be read: {error}") from error


def defining_part(body: bytes) -> bytes:
    """The document without its note; as it is if it can't be read. ETags are of this part: running a schedule by hand
    does not change it."""
    try:
        return encode_document(decode_document(body).without_note)
    except ValueError:
        return body


class ScheduleStep(Struct, frozen=True):
    """Ends the slots from `slot_ms` to `last_ms`: the last one fires if `is_fired`; `missed` of them do not."""

    slot_ms: int
    last_ms: int
    next_ms: int
    is_fired: bool
    missed: int


def steps(definition: ScheduleDefinition, next_ms: int, now_ms: int) -> list[ScheduleStep]:
    """What to do about the slots that are due, in order; `next_ms` is the first of them. [] if none is due. Not all at
    once: after a long outage a later look continues. Raises InvalidCron or InvalidZone."""
    if next_ms > now_ms:
        return []
    made_up, cutoff_ms = definition.made_up, now_ms - round(definition.within_s * 1000)
    slots = _slots(definition.times, next_ms, now_ms, SLOTS_AT_ONCE + made_up + 1)
    late = sum(slot < cutoff_ms for slot in slots)
    if late == len(slots):  # more of them may follow, so the first ones of these are not made up
        return [ScheduleStep(next_ms, slots[SLOTS_AT_ONCE - 1], slots[SLOTS_AT_ONCE], False, SLOTS_AT_ONCE)]
    missed = max(0, late - made_up)
    fired = slots[missed:-1][:STEPS_AT_ONCE]
    if not fired:
        return [ScheduleStep(next_ms, slots[missed - 1], slots[missed], False, missed)]
    first = ScheduleStep(next_ms, fired[0], slots[missed + 1], True, missed)
    others = zip(fired[1:], slots[missed + 2 :], strict=False)
    return [first, *(ScheduleStep(slot, slot, following, True, 0) for slot, following in others)]


def _slots(times: Cron, next_ms: int, now_ms: int, most: int) -> list[int]:
    """The slots from `next_ms` on, `most` of them or up to the first that is not due."""
    slots = [next_ms]
    for slot in times.times_after(next_ms):
        slots.append(slot)
        if slot > now_ms or len(slots) == most:
            return slots
    return [*slots, NEVER_MS]


def next_slot(definition: ScheduleDefinition, *, now_ms: int, last_ms: int = 0, was_next_ms: int | None = None) -> int:
    """The next slot of a definition that is new or has changed. A slot of the former definition that is due already
    (`was_next_ms`) is judged by the new one: it is not forgotten."""
    after_ms = now_ms if was_next_ms is None else min(now_ms, was_next_ms - 1)
    return definition.times.next_after(max(after_ms, last_ms))


def is_same_times(one: ScheduleDefinition, other: ScheduleDefinition) -> bool:
    return (one.cron, one.timezone) == (other.cron, other.timezone)


def job_id_of(name: str, slot_ms: int) -> str:
    return f"{SCHEDULE_IDS}{name}.{datetime.fromtimestamp(slot_ms / 1000, UTC):%Y%m%dT%H%M%SZ}"


def manual_id_of(name: str) -> str:
    import uuid

    return f"{SCHEDULE_IDS}{name}.manual.{uuid.uuid4()}"


def schedule_of(job_id: str) -> tuple[str, bool] | None:
    """The name of the schedule that enqueued the job with this id, and whether a person ran it by hand; None if no
    schedule did."""
    found = _JOB_ID.fullmatch(job_id)
    return (found["name"], found["hand"] is not None) if found is not None else None


def is_of_schedule(job_id: str, name: str) -> bool:
    """Whether the schedule of this name enqueued the job: `report` has no part in the jobs of `report.eu`."""
    return job_id.startswith(f"sched.{name}.") and (schedule_of(job_id) or ("", False))[0] == name


def job_payload(definition: ScheduleDefinition, slot_ms: int, missed: int) -> Mapping[str, Any]:
    """The payload of the job of a slot; `missed` are the slots before it that have no job."""
    time = rfc3339(datetime.fromtimestamp(slot_ms / 1000, UTC))
    return {**definition.payload, "scheduled_for": time, "missed": missed}


def job_of(definition: ScheduleDefinition, *, id: str, slot_ms: int, missed: int, queue: str, now_ms: int) -> Job:
    now = datetime.fromtimestamp(now_ms / 1000, UTC)
    payload = job_payload(definition, slot_ms, missed)
    job = typed_job(definition.type, payload, priority=queue, now=now, id=id)
    return job.but(max_retries=definition.max_retries, timeout=definition.timeout_s)


def payload_problem(payload: object) -> str:
    """Why this can't be the payload of a schedule; "" if it can."""
    if not isinstance(payload, Mapping):
        return "it must be a mapping: each job gets it with scheduled_for and missed added"
    if taken := [key for key in ADDED_KEYS if key in payload]:
        return f"it has the key {taken[0]!r}, which fileq sets itself; choose another name"
    try:
        is_flat = not is_nested_deeper(msgspec.json.encode(payload), MAX_NESTING)
    except RecursionError:
        is_flat = False
    except (TypeError, ValueError):
        return ""  # what is no JSON is refused where it is encoded
    return "" if is_flat else f"it {TOO_NESTED}"


# cron expressions

LONGEST = 200  # characters
NEVER_MS = 253_402_300_799_000  # the last second that a calendar has
EXPECTS = "5 fields such as '30 2 * * 1-5', @hourly, @daily, @weekly, @monthly, @yearly, or '@every 15m'"
_EVERY = "@every"
_NAMED_DAYS = ("sun", "mon", "tue", "wed", "thu", "fri", "sat")
_FULL_DAYS = ("Sundays", "Mondays", "Tuesdays", "Wednesdays", "Thursdays", "Fridays", "Saturdays")
# Those that divide an hour: the others start over at each hour.
_MINUTES = {f"*/{n}": f"Every {n} minutes" for n in (2, 3, 4, 5, 6, 10, 12, 15, 20, 30)}
_DAYS = {
    "*": "Every day",
    **dict.fromkeys(("1-5", "mon-fri"), "Weekdays"),
    **dict.fromkeys(("0,6", "6,0", "6,7", "6-7", "sat,sun", "sun,sat", "sat-sun"), "Weekends"),
    **{name: full for names in (map(str, range(7)), _NAMED_DAYS) for name, full in zip(names, _FULL_DAYS, strict=True)},
    "7": "Sundays",
}
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
    """One expression in one time zone, valid. parsed() makes it.

    Times are milliseconds since the epoch and always whole seconds. cronsim decides what an expression means, daylight
    saving included. `@every 15m` counts from the epoch, so every process computes the same times without a memory.
    cronsim and zoneinfo are imported when the first expression is used."""

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
        """In plain English: "Every 15 minutes", "Weekdays at 06:30". cronsim's words for what has none here."""
        if self._every_ms:
            every_s = self._every_ms // 1000
            for unit, unit_s in (("day", 86_400), ("hour", 3600), ("minute", 60), ("second", 1)):
                if every_s % unit_s == 0:
                    return f"Every {unit}" if every_s == unit_s else f"Every {every_s // unit_s} {unit}s"
        minute, hour, *date, days = self._fields.lower().split()
        if minute in _MINUTES and [hour, *date, days] == ["*"] * 4:
            return _MINUTES[minute]
        if date == ["*", "*"] and days in _DAYS and minute.isdecimal() and hour.isdecimal():
            return f"{_DAYS[days]} at {int(hour):02}:{int(minute):02}"
        from cronsim import CronSim

        words = CronSim(self._fields, datetime.now(UTC)).explain()
        # With both, cron takes each day that one of them names.
        return words.replace(" and on ", " or on ") if "*" not in (date[0], days) else words

    def _check(self) -> None:
        from cronsim import CronSim, CronSimError

        if (count := len(self._fields.split())) != 5:
            raise InvalidCron(f"{EXPECTS}; it has {count} field{'' if count == 1 else 's'}")
        try:
            found = next(CronSim(self._fields, datetime.now(UTC)), None)
        except (CronSimError, ValueError, AssertionError, OverflowError) as error:
            field = str(error).removeprefix("Bad ") if str(error).startswith("Bad ") else "text"  # "Bad minute"
            raise InvalidCron(f"{EXPECTS}; its {field} is invalid") from None
        if found is None:
            raise InvalidCron(f"{EXPECTS}; no day matches it")


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
