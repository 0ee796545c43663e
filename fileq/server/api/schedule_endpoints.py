"""Schedules: look at them, define, pause, run. The functions are those of `fileq schedule …`."""

from __future__ import annotations

from itertools import islice
from typing import Annotated, Any

from msgspec import Meta, Struct, UnsetType

from fileq.actions.bulk import JobAction
from fileq.brokers.schedule_definitions import KIND, broker_now_ms
from fileq.client.options import WantedSchedule
from fileq.client.schedule_changes import add_schedule, pause_schedule, remove_schedule, resume_schedule, run_now
from fileq.commands.admin.schedules import (
    ScheduledTime,
    ScheduleView,
    list_schedules,
    next_times,
    scheduled_time,
    show_schedule,
)
from fileq.commands.audit_entries import schedule_facts
from fileq.core.api_key import Scope
from fileq.core.schedule import Cron, InvalidZone, defining_part, parsed
from fileq.server.decoding import checked_name, invalid_at
from fileq.server.route import ApiAnswer, ApiRequest, NoQuery, RouteList, check_etag, etag_of

ROUTES = RouteList("schedules")

TIMES = 5
Text = Annotated[str, Meta(min_length=1, max_length=200)]


class WantedTimes(Struct, frozen=True, forbid_unknown_fields=True):
    """An expression to try."""

    cron: Text
    timezone: Text = "UTC"


class ScheduleList(Struct, frozen=True):
    schedules: tuple[ScheduleView, ...]


class ScheduleDetail(Struct, frozen=True):
    """`times` are its next 5 times; none if it is paused or broken."""

    schedule: ScheduleView
    times: tuple[ScheduledTime, ...]


class SchedulePreview(Struct, frozen=True):
    """The expression in plain words, and its next 5 times."""

    words: str
    times: tuple[ScheduledTime, ...]


class ScheduleMessage(Struct, frozen=True):
    message: str
    name: str
    has_changed: bool


class ScheduleRun(Struct, frozen=True):
    """`id` is that of the new job."""

    message: str
    name: str
    id: str


@ROUTES.add("GET /schedules", Scope.READ, "all schedules")
def list_all_schedules(request: ApiRequest[NoQuery, UnsetType]) -> ScheduleList:
    return ScheduleList(tuple(list_schedules(request.broker)))


@ROUTES.add("GET /schedules/{name}", Scope.READ, "one schedule with its next times")
def show_one_schedule(request: ApiRequest[NoQuery, UnsetType]) -> ApiAnswer[ScheduleDetail]:
    """Its ETag is that of the definition: a time that passes does not change it."""
    return _answer(request)


@ROUTES.add(
    "PUT /schedules/{name}",
    Scope.ADMIN,
    "define a schedule, or change one",
    statuses={201: "the schedule is new"},
    problems=("precondition-failed", "precondition-required", "not-allowed", "conflict"),
    headers=("If-Match", "If-None-Match"),
)
def put_schedule(request: ApiRequest[NoQuery, WantedSchedule]) -> ApiAnswer[ScheduleDetail]:
    """Defines a schedule, or replaces its definition: with the If-Match of the last GET, or If-None-Match: * for a new
    one. The same definition again changes nothing."""
    broker, name, wanted = request.broker, request.params["name"], request.body
    known = broker.documents(KIND).get(name)
    check_etag(request.headers, etag_of(defining_part(known.body)) if known is not None else None)
    _times(wanted.cron, wanted.timezone)
    is_change, expected = known is not None, known.revision if known is not None else 0
    add_schedule(broker, request.config, name, wanted, where=f"PUT /schedules/{name}", expected=expected)
    made = broker.documents(KIND).get(name)
    request.note.changed(schedule_facts(known, is_whole=is_change), schedule_facts(made, is_whole=is_change))
    return _answer(request, 200 if is_change else 201)


@ROUTES.add("DELETE /schedules/{name}", Scope.ADMIN, "remove a schedule; its jobs stay", problems=("conflict",))
def delete_schedule(request: ApiRequest[NoQuery, UnsetType]) -> ScheduleMessage:
    name = _name(request)
    known = request.broker.documents(KIND).get(name)
    remove_schedule(request.broker, request.config, name)
    request.note.changed(schedule_facts(known), {})
    return ScheduleMessage("Schedule removed", name, True)


@ROUTES.add("POST /schedules/{name}/pause", Scope.OPERATE, "pause a schedule", problems=("conflict",))
def pause_one_schedule(request: ApiRequest[NoQuery, UnsetType]) -> ScheduleMessage:
    return _paused(request, pause_schedule(request.broker, _name(request)), is_paused=True)


@ROUTES.add("POST /schedules/{name}/resume", Scope.OPERATE, "resume a paused schedule", problems=("conflict",))
def resume_one_schedule(request: ApiRequest[NoQuery, UnsetType]) -> ScheduleMessage:
    return _paused(request, resume_schedule(request.broker, _name(request)), is_paused=False)


def _paused(request: ApiRequest[NoQuery, UnsetType], has_changed: bool, *, is_paused: bool) -> ScheduleMessage:
    if has_changed:
        request.note.changed({"paused": not is_paused}, {"paused": is_paused})
    return ScheduleMessage(f"Schedule {'paused' if is_paused else 'resumed'}", request.params["name"], has_changed)


@ROUTES.add("POST /schedules/{name}/run", Scope.OPERATE, "run a schedule now", problems=("conflict",))
def run_schedule(request: ApiRequest[NoQuery, UnsetType]) -> ScheduleRun:
    """Enqueues a job beside the times of the schedule. Each call makes a job."""
    name = _name(request)
    id = run_now(request.broker, request.config, name)
    request.services.action_log.add(JobAction.RUN, request.caller.name, [id])
    request.note.about_job(id, None, None)
    request.note.chose({"schedule": name})
    return ScheduleRun("Job enqueued", name, id)


@ROUTES.add("POST /schedules/preview", Scope.READ, "an expression in plain words, with its next 5 times", audited=False)
def preview_schedule(request: ApiRequest[NoQuery, WantedTimes]) -> SchedulePreview:
    wanted = request.body
    times = _times(wanted.cron, wanted.timezone)
    now_ms = broker_now_ms(request.broker)
    found = [scheduled_time(ms, wanted.timezone) for ms in islice(times.times_after(now_ms), TIMES)]
    return SchedulePreview(times.explain(), tuple(found))


def _times(cron: str, timezone: str) -> Cron:
    """Raises ApiProblem, which names the field that is wrong."""
    try:
        return parsed(cron, timezone)
    except InvalidZone as error:
        detail = f"timezone is {timezone!r}; it must be {error}"
        raise invalid_at("/timezone", detail) from error
    except ValueError as error:
        raise invalid_at("/cron", f"cron is {cron!r}; it must be {error}") from error


def _answer(request: ApiRequest[NoQuery, Any], status: int = 200) -> ApiAnswer[ScheduleDetail]:
    broker, name = request.broker, _name(request)
    view = show_schedule(broker, name)
    times: tuple[ScheduledTime, ...] = ()
    if view.status not in ("broken", "paused", "incomplete"):
        times = tuple(next_times(broker, name, TIMES))
    document = broker.documents(KIND).get(name)
    etag = etag_of(defining_part(document.body) if document else b"")
    return ApiAnswer(ScheduleDetail(view, times), status, {"ETag": etag})


def _name(request: ApiRequest[NoQuery, Any]) -> str:
    return checked_name("schedule", request.params["name"])
