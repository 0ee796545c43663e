"""Schedules and webhooks: look at them, define, pause, run, test. The functions are those of `fileq schedule …` and
`fileq webhook …`."""

from __future__ import annotations

from itertools import islice
from typing import Annotated, Any

from msgspec import Meta, Struct, UnsetType

from fileq.actions.bulk import JobAction
from fileq.brokers.schedule_definitions import KIND, broker_now_ms
from fileq.client.options import WantedSchedule
from fileq.client.schedule_changes import add_schedule, pause_schedule, remove_schedule, resume_schedule, run_now
from fileq.commands import webhooks
from fileq.commands.admin.schedules import (
    ScheduledTime,
    ScheduleView,
    list_schedules,
    next_times,
    scheduled_time,
    show_schedule,
)
from fileq.commands.audit_entries import schedule_facts, webhook_facts
from fileq.commands.webhooks import DeliveryList, NewSecret, WebhookChange, WebhookList, WebhookTest
from fileq.core.api_key import Scope
from fileq.core.schedule import Cron, InvalidZone, defining_part, parsed
from fileq.core.webhook import Webhook, WebhookFilter
from fileq.server.problems import checked_name, invalid_at
from fileq.server.route import ApiAnswer, ApiRequest, NoQuery, RouteList, check_etag, etag_of

SCHEDULES, WEBHOOKS = RouteList("schedules"), RouteList("webhooks")

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


@SCHEDULES.add("GET /schedules", Scope.READ, "all schedules")
def list_all_schedules(request: ApiRequest[NoQuery, UnsetType]) -> ScheduleList:
    return ScheduleList(tuple(list_schedules(request.broker)))


@SCHEDULES.add("GET /schedules/{name}", Scope.READ, "one schedule with its next runs")
def show_one_schedule(request: ApiRequest[NoQuery, UnsetType]) -> ApiAnswer[ScheduleDetail]:
    """Its ETag is that of the definition: a time that passes does not change it."""
    return _answer(request)


@SCHEDULES.add(
    "PUT /schedules/{name}",
    Scope.ADMIN,
    "add or change a schedule",
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


@SCHEDULES.add(
    "DELETE /schedules/{name}", Scope.ADMIN, "remove a schedule; existing jobs are kept", problems=("conflict",)
)
def delete_schedule(request: ApiRequest[NoQuery, UnsetType]) -> ScheduleMessage:
    name = _name(request)
    known = request.broker.documents(KIND).get(name)
    remove_schedule(request.broker, request.config, name)
    request.note.changed(schedule_facts(known), {})
    return ScheduleMessage("Schedule removed", name, True)


@SCHEDULES.add("POST /schedules/{name}/pause", Scope.OPERATE, "pause a schedule", problems=("conflict",))
def pause_one_schedule(request: ApiRequest[NoQuery, UnsetType]) -> ScheduleMessage:
    return _paused(request, pause_schedule(request.broker, _name(request)), is_paused=True)


@SCHEDULES.add("POST /schedules/{name}/resume", Scope.OPERATE, "resume a paused schedule", problems=("conflict",))
def resume_one_schedule(request: ApiRequest[NoQuery, UnsetType]) -> ScheduleMessage:
    return _paused(request, resume_schedule(request.broker, _name(request)), is_paused=False)


def _paused(request: ApiRequest[NoQuery, UnsetType], has_changed: bool, *, is_paused: bool) -> ScheduleMessage:
    if has_changed:
        request.note.changed({"paused": not is_paused}, {"paused": is_paused})
    return ScheduleMessage(f"Schedule {'paused' if is_paused else 'resumed'}", request.params["name"], has_changed)


@SCHEDULES.add("POST /schedules/{name}/run", Scope.OPERATE, "run a schedule now", problems=("conflict",))
def run_schedule(request: ApiRequest[NoQuery, UnsetType]) -> ScheduleRun:
    """Enqueues a job beside the times of the schedule. Each call makes a job."""
    name = _name(request)
    id = run_now(request.broker, request.config, name)
    request.services.action_log.add(JobAction.RUN, request.caller.name, [id])
    request.note.about_job(id, None, None)
    request.note.chose({"schedule": name})
    return ScheduleRun("Job enqueued", name, id)


@SCHEDULES.add(
    "POST /schedules/preview", Scope.READ, "an expression in plain words, with its next 5 runs", audited=False
)
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


# Webhooks: define, test, look at deliveries.

Condition = Annotated[str, Meta(max_length=500)]


class WantedWebhook(Struct, frozen=True, forbid_unknown_fields=True):
    """A webhook to add. `type`, `match`, `queue` and `batch` limit the jobs whose events are sent."""

    name: Annotated[str, Meta(min_length=1, max_length=100)]
    url: Annotated[str, Meta(min_length=1, max_length=2000)]
    events: Annotated[tuple[str, ...], Meta(min_length=1, max_length=50)]
    type: Condition = ""
    match: Condition = ""
    queue: Condition = ""
    batch: Condition = ""


class DeliveryQuery(Struct, frozen=True, forbid_unknown_fields=True):
    limit: Annotated[int, Meta(ge=1, le=1000)] = 20


@WEBHOOKS.add("GET /webhooks", Scope.READ, "all webhooks and the state of their receivers")
def list_webhooks(request: ApiRequest[NoQuery, UnsetType]) -> WebhookList:
    """Without secrets, and without the queries of URLs."""
    return webhooks.list_all(request.broker, request.config)


@WEBHOOKS.add(
    "POST /webhooks", Scope.ADMIN, "add a webhook; its secret is shown only here", status=201, problems=("conflict",)
)
def add_webhook(request: ApiRequest[NoQuery, WantedWebhook]) -> NewSecret:
    """The secret that signs the messages is shown only here."""
    wanted = request.body
    only = WebhookFilter(wanted.type, wanted.match, wanted.queue, wanted.batch)
    made = webhooks.add(request.broker, request.config, wanted.name, wanted.url, wanted.events, only)
    request.note.changed({}, {"name": made.name} | webhook_facts(Webhook(made.name, wanted.url, wanted.events, only)))
    return made


@WEBHOOKS.add("DELETE /webhooks/{name}", Scope.ADMIN, "remove a webhook", problems=("conflict",))
def remove_webhook(request: ApiRequest[NoQuery, UnsetType]) -> WebhookChange:
    known = webhooks.store_of(request.broker, request.config).get(request.params["name"]).webhook
    done = webhooks.remove(request.broker, request.config, known.name)
    request.note.changed(webhook_facts(known), {})
    return done


@WEBHOOKS.add("POST /webhooks/{name}/test", Scope.OPERATE, "send a test message and show the answer")
async def send_test_message(request: ApiRequest[NoQuery, UnsetType]) -> WebhookTest:
    """The server sends one message now. `error` is empty if the receiver accepted it."""
    tests = request.services.webhook_tests
    with tests.slots.held(request.caller.id):
        return await tests.call(lambda: webhooks.test(request.broker, request.config, request.params["name"]))


@WEBHOOKS.add(
    "POST /webhooks/{name}/rotate", Scope.ADMIN, "replace the secret; it is shown only here", problems=("conflict",)
)
def rotate_webhook(request: ApiRequest[NoQuery, UnsetType]) -> NewSecret:
    """A new secret, shown only here. The one before signs too, for 24 hours."""
    made = webhooks.rotate(request.broker, request.config, request.params["name"])
    request.note.changed({}, {"secret": "replaced"})
    return made


@WEBHOOKS.add("POST /webhooks/{name}/enable", Scope.OPERATE, "re-enable a disabled webhook", problems=("conflict",))
def enable_webhook(request: ApiRequest[NoQuery, UnsetType]) -> WebhookChange:
    done = webhooks.enable(request.broker, request.config, request.params["name"])
    if done.has_changed:
        request.note.changed({"state": "disabled"}, {"state": "enabled"})
    return done


@WEBHOOKS.add("GET /webhooks/{name}/deliveries", Scope.READ, "the newest deliveries of a webhook", is_scan=True)
def list_deliveries(request: ApiRequest[DeliveryQuery, UnsetType]) -> DeliveryList:
    """The newest first, also of a webhook that was removed; of each list of jobs the first 10,000 are looked at."""
    return webhooks.deliveries(request.broker, request.config, request.params["name"], request.query.limit)
