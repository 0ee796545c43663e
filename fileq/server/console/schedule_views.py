"""Jobs due later, and schedules with their next times; the view and the forms of one. Only reads.

The list asks the broker for the schedules, their definitions and the last job of each: three round trips, beside the
bounded list of delayed jobs. The view of one schedule asks for its definition, and looks through the jobs for its own.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from datetime import datetime
from functools import cache
from itertools import islice
from typing import Annotated, Any
from zoneinfo import available_timezones

from msgspec import Meta, Struct, to_builtins
from msgspec.structs import replace

from fileq.brokers.schedule_definitions import KIND
from fileq.client.options import WantedReprocess, WantedSchedule
from fileq.commands.admin.schedules import ScheduledTime, ScheduleView, list_schedules, scheduled_time
from fileq.core.api_key import Scope
from fileq.core.job import DELAYED_STATES
from fileq.core.schedule import (
    EXPECTS,
    FROM_CONFIGURATION,
    REPROCESS_TYPE,
    SCAN_TYPE,
    InvalidCron,
    ScheduleDefinition,
    ScheduleDocument,
    decode_document,
    defining_part,
    parsed,
)
from fileq.core.units import format_duration
from fileq.queries.job_filter import JobFilter
from fileq.queries.job_selection import job_page
from fileq.server.api.definition_endpoints import WantedTimes, preview_schedule
from fileq.server.api.job_endpoints import JobListQuery, list_jobs
from fileq.server.console.view import ViewList, ViewRequest, lines, shown
from fileq.server.problems import ApiProblem
from fileq.server.route import NoQuery, etag_of

VIEWS = ViewList()

LIST = "console:scheduled"
JOBS, SCHEDULES, TIMES, RUNS = 25, 200, 3, 10
OVERLAPS = {
    "skip": "skip this run",
    "allow": "run in parallel",
    "queue": "run after the previous job",
    "cancel": "cancel the previous job",
}
MISSED = {
    "skip": "skip all",
    "last": "run once, for the latest",
    "all:10": "run each of the last 10",
    "all:100": "run each of the last 100",
}
NEW = WantedSchedule("", type="", missed="last", overlap="skip", within="10m")  # what the form begins with
_WITHOUT_TIMES = ("paused", "broken", "incomplete")


class ScheduledQuery(Struct, frozen=True, forbid_unknown_fields=True):
    """`cursor` is for the list of jobs."""

    cursor: Annotated[str, Meta(min_length=1, max_length=2000)] | None = None


class NewScheduleQuery(Struct, frozen=True, forbid_unknown_fields=True):
    """`copy` is the schedule whose values the form begins with."""

    copy: Annotated[str, Meta(min_length=1, max_length=200)] | None = None


class PreviewQuery(Struct, frozen=True, forbid_unknown_fields=True):
    cron: Annotated[str, Meta(max_length=200)] = ""
    timezone: Annotated[str, Meta(max_length=200)] = "UTC"


@VIEWS.add("/scheduled", "Scheduled", "scheduled.html", is_scan=True, letter="s")
def scheduled(request: ViewRequest[ScheduledQuery]) -> Mapping[str, Any]:
    now_ms = request.services.now_ms()
    schedules = list_schedules(request.broker, now_ms)
    first = schedules[:SCHEDULES]
    return {
        "delayed": _delayed(request),
        "rows": [(view, upcoming(view, now_ms)) for view in first],
        "unshown": len(schedules) - len(first),
        "from_configuration": FROM_CONFIGURATION,
    }


def _delayed(request: ViewRequest[Any]) -> Mapping[str, Any]:
    """The earliest jobs first. `total` is that of the whole list."""
    signer, queues = request.services.signer, request.config.worker.priorities
    position = signer.read_cursor(LIST, request.query.cursor, str) or ""
    page = job_page(request.broker, queues, JobFilter(), states=DELAYED_STATES, cursor=position, limit=JOBS)
    jobs = [request.shown(stored.document()) for stored in page.jobs]
    return {"jobs": jobs, "total": page.total, "next_cursor": signer.cursor(LIST, page.next_cursor)}


def upcoming(view: ScheduleView, now_ms: int) -> Sequence[ScheduledTime]:
    """The next times, beginning with the one that the broker has. None if it is paused or can't fire."""
    if view.status in _WITHOUT_TIMES or view.next is None:
        return ()
    next_ms = round(datetime.fromisoformat(view.next.utc).timestamp() * 1000)
    following = parsed(view.cron, view.timezone).times_after(max(next_ms, now_ms))
    return [view.next, *(scheduled_time(ms, view.timezone) for ms in islice(following, TIMES - 1))]


@VIEWS.add("/scheduled/preview", "Next runs", "schedule_preview.html", changes_with="")
def preview(request: ViewRequest[PreviewQuery]) -> Mapping[str, Any]:
    """A part of a view: what the form shows while the user types."""
    query = request.query
    cron, timezone = query.cron.strip(), query.timezone.strip() or "UTC"
    values = {"found": None, "timezone": timezone, "hint": None}
    if not cron:
        return values
    try:
        return {**values, "found": request.ask(preview_schedule, body=WantedTimes(cron, timezone))}
    except ApiProblem as problem:
        if problem.slug != "invalid":
            raise
        field = problem.errors[0].pointer.strip("/") if problem.errors else "cron"
        detail = problem.errors[0].detail if problem.errors else problem.detail
        return {**values, "hint": hint(field, cron if field == "cron" else timezone, detail)}


@VIEWS.add("/scheduled/new", "New schedule", "schedule_form.html", changes_with="")
def new_schedule(request: ViewRequest[NewScheduleQuery]) -> Mapping[str, Any]:
    """At most one round trip, for the schedule to copy."""
    copied: str | None = request.query.copy
    form = form_of(_known(request, copied)[0].definition) if copied else NEW
    return {**_form(request, "", form), "copied": copied or ""}


@VIEWS.add("/scheduled/edit/{name:path}", "Schedule", "schedule_form.html", is_scan=True)
def edit_schedule(request: ViewRequest[NoQuery]) -> Mapping[str, Any]:
    """One round trip, and a scan for the latest jobs, also those that were run by hand. The ETag is that of the
    definition in the form, so a change after it is noticed when saving."""
    name = request.params["name"]
    found, etag = _known(request, name)
    shared = _form(request, name, form_of(found.definition))
    return {
        **shared,
        "etag": etag,
        "is_configured": found.is_configured,
        "may_edit": shared["may_edit"] and not found.is_configured,
        "words": _words(found.definition),
        "runs": request.ask(list_jobs, JobListQuery(schedule=name, limit=RUNS)).jobs,
    }


def _known(request: ViewRequest[Any], name: str) -> tuple[ScheduleDocument, str]:
    """The definition of this name, and its ETag."""
    document = request.broker.documents(KIND).get(name)
    if document is None:
        raise ApiProblem("not-found", f"no schedule is named {name[:100]!r}")
    try:
        return decode_document(document.body), etag_of(defining_part(document.body))
    except ValueError as error:
        raise ApiProblem("conflict", f"the definition of {name[:100]!r} can't be read: {error}") from error


def _words(definition: ScheduleDefinition) -> str:
    try:
        return definition.times.explain()
    except ValueError as error:
        return str(error)


def _form(request: ViewRequest[Any], name: str, form: WantedSchedule) -> dict[str, Any]:
    """What the templates of a new and of a known schedule share. A form is exact if it shows its names as they are.
    Without paths (`is_hidden`) if this server hides them: such a form can't be saved, the paths would be lost."""
    is_hidden = request.services.hides_paths and form.type is None
    if is_hidden:
        again = replace(form.reprocess, match="…") if form.reprocess is not None else None
        form = replace(form, scan=form.scan and "…", reprocess=again)
    is_exact = all(shown(text) == text for text in (form.type, form.scan) if text is not None)
    missed = form.missed or "last"
    return {
        "name": name,
        "form": form,
        "etag": "",
        "copied": "",
        "words": "",
        "runs": (),
        "is_configured": False,
        "is_exact": is_exact,
        "is_hidden": is_hidden,
        "may_edit": request.has(Scope.ADMIN) and is_exact and not is_hidden,
        "payload": json_text(form.payload) if form.payload else "",
        "reprocess": json_text(to_builtins(form.reprocess)),
        "overlaps": OVERLAPS,
        "missed": MISSED | {missed: MISSED.get(missed, f"run each of the last {missed[4:]}")},  # all:N
        "zones": zone_names(),
        "wrong_cron": f"{FIELDS} {EXAMPLE}",
    }


def json_text(value: Mapping[str, Any]) -> str:
    """JSON that reads as the same value. Characters that a view shows as an escape are escapes of JSON."""
    text = json.dumps(value, indent=2, ensure_ascii=False)
    return text if lines(text) == text else json.dumps(value, indent=2)


def form_of(definition: ScheduleDefinition) -> WantedSchedule:
    """The definition as the API takes it: durations are texts, and fileq's own jobs have keys of their own."""
    same = ("cron", "timezone", "priority", "missed", "overlap", "max_retries")
    form = WantedSchedule(
        within=format_duration(definition.within_s),
        timeout=format_duration(definition.timeout_s) if definition.timeout_s else None,
        **{one: getattr(definition, one) for one in same},
    )
    payload = definition.payload
    if definition.type == SCAN_TYPE:
        return replace(form, scan=str(payload.get("dir", "")))
    if definition.type == REPROCESS_TYPE:
        since = format_duration(payload["since_s"]) if payload.get("since_s") else None
        return replace(form, reprocess=WantedReprocess(str(payload.get("match", "")), since))
    return replace(form, type=definition.type, payload=payload)


# What the form of a schedule says about a text that it can't use, and what to use instead. Only computes.
#
# A person may type a time as people say it, such as "06:30 weekdays". Its cron expression is offered; nothing is
# changed until the person takes it.

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
    city as the view asks for it, which is no mistake."""

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
        advice = "" if nearest else " Type a city, such as Berlin."
        return ScheduleHint(f"Unknown time zone “{given}”.{advice}", field, nearest)
    if better := cron_of(given):
        return ScheduleHint(f"{FIELDS} Did you mean {better}?", field, better)
    if len(given.split()) != 5 and not given.startswith("@"):
        return ScheduleHint(f"{FIELDS} {EXAMPLE}", field)
    reason = detail.partition(EXPECTS)[2].removeprefix("; ") or "unknown name"
    return ScheduleHint(f"Invalid: {reason}. {EXAMPLE}", field)


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
