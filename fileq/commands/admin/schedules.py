"""What `fileq schedule list|show|next` show: each schedule with its definition, its state and its next times."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from itertools import islice
from typing import Annotated, Any

from msgspec import Struct
from msgspec.structs import asdict

from fileq.brokers.protocol import FullBroker
from fileq.brokers.schedule_definitions import KnownSchedule, broker_now_ms, known_schedules
from fileq.brokers.schedules import ScheduleState
from fileq.client.schedule_changes import the_schedule
from fileq.commands.admin.stats import LATE_MS
from fileq.core.documented import means
from fileq.core.errors import BrokerError
from fileq.core.job import stamp
from fileq.core.schedule import NEVER_MS, ScheduleDefinition, ScheduleDocument, zone_of

_NO_STATE = ScheduleState("", NEVER_MS)
_NO_DOCUMENT = ScheduleDocument(definition=ScheduleDefinition(cron="", type=""), source="")


class ScheduledTime(Struct, frozen=True):
    """One time (RFC 3339)."""

    utc: str
    local: Annotated[str, means("in the schedule's time zone")]


class ScheduleView(Struct, frozen=True):
    """One schedule with its state."""

    name: Annotated[str, means("its name")]
    status: Annotated[str, means("active, paused, late (no worker fires it), broken or incomplete")]
    problem: Annotated[str, means("why it is late, broken or incomplete; else empty")]
    source: Annotated[str, means("configuration or program")]
    cron: Annotated[str, means("the expression as given")]
    words: Annotated[str, means("the expression in words")]
    timezone: Annotated[str, means("IANA name of its time zone")]
    type: Annotated[str, means("of its jobs")]
    payload: Annotated[dict[str, Any], means("of its jobs")]
    priority: Annotated[str, means("queue of its jobs; empty: the default")]
    missed: Annotated[str, means("what happens to missed runs: skip, last or all:N")]
    overlap: Annotated[str, means("what happens if the previous job is unfinished: allow, skip, queue or cancel")]
    within_s: Annotated[float, means("grace period: a run later than this counts as missed")]
    max_retries: Annotated[int | None, means("null: the route decides")]
    timeout_s: Annotated[float | None, means("null: the route decides")]
    next: Annotated[ScheduledTime | None, means("null, or the next run")]
    last: Annotated[ScheduledTime | None, means("null, or the last run that was due")]
    last_job_id: Annotated[str, means("of the last job enqueued; empty if there is none")]
    last_status: Annotated[str | None, means("status of that job; null if its record has expired")]
    runs: Annotated[int, means("runs that enqueued a job")]
    missed_count: Annotated[int, means("runs skipped")]
    by_hand: Annotated[ScheduledTime | None, means("null, or when it was last run manually")] = None
    by_hand_job_id: Annotated[str, means("the job of that run")] = ""
    by_hand_status: Annotated[str | None, means("status of that job")] = None


def list_schedules(broker: FullBroker, now_ms: int | None = None) -> list[ScheduleView]:
    """`now_ms` is about the broker's time; without it the broker is asked."""
    return _views(broker, list(known_schedules(broker).values()), now_ms)


def show_schedule(broker: FullBroker, name: str) -> ScheduleView:
    return _views(broker, [the_schedule(broker, name)])[0]


def next_times(broker: FullBroker, name: str, count: int) -> list[ScheduledTime]:
    """The next times, beginning with the one that is due next. A pause is ignored."""
    found = the_schedule(broker, name)
    if found.document is None:
        raise BrokerError(f"schedule {name} has no runs: {found.problem or 'its definition is missing'}")
    definition, now_ms = found.document.definition, broker_now_ms(broker)
    try:
        first_ms = found.state.next_ms if found.state is not None else NEVER_MS
        after_ms = first_ms - 1 if now_ms < first_ms < NEVER_MS else now_ms
        return [scheduled_time(ms, definition.timezone) for ms in islice(definition.times.times_after(after_ms), count)]
    except ValueError as error:
        raise BrokerError(f"schedule {name} has no runs: {error}") from error


def _views(broker: FullBroker, known: Sequence[KnownSchedule], now_ms: int | None = None) -> list[ScheduleView]:
    now_ms = broker_now_ms(broker) if now_ms is None else now_ms
    fired = [(one.state or _NO_STATE).last_job_id for one in known]
    by_hand = [(one.document or _NO_DOCUMENT).by_hand_id for one in known]
    records = broker.records(fired + by_hand)
    outcomes = [record.state.value if record is not None else None for record in records]
    return [_view(one, outcomes[index], outcomes[len(known) + index], now_ms) for index, one in enumerate(known)]


def _view(known: KnownSchedule, outcome: str | None, by_hand_status: str | None, now_ms: int) -> ScheduleView:
    state, document = known.state or _NO_STATE, known.document or _NO_DOCUMENT
    words, problem, zone = "", known.problem, document.definition.timezone
    try:
        words = document.definition.times.explain() if known.document is not None else ""
    except ValueError as error:
        problem, zone = str(error), _NO_DOCUMENT.definition.timezone  # its times are shown in UTC
    status, problem = _status(known, problem, now_ms)
    has_next = not state.is_paused and state.next_ms < NEVER_MS
    return ScheduleView(
        name=known.name,
        status=status,
        problem=problem,
        source=document.source,
        **asdict(document.definition),
        words=words,
        next=scheduled_time(state.next_ms, zone) if has_next else None,
        last=scheduled_time(state.last_ms, zone) if state.last_ms else None,
        last_job_id=state.last_job_id,
        last_status=outcome,
        runs=state.runs,
        missed_count=state.missed,
        by_hand=scheduled_time(document.by_hand_ms, zone) if document.by_hand_ms else None,
        by_hand_job_id=document.by_hand_id,
        by_hand_status=by_hand_status,
    )


def _status(known: KnownSchedule, problem: str, now_ms: int) -> tuple[str, str]:
    state = known.state
    if problem:
        return "broken", problem
    if not known.is_complete or state is None:
        return "incomplete", "a process was killed while changing it; a worker completes the change within a minute"
    if state.is_paused:
        return "paused", ""
    if state.next_ms < now_ms - LATE_MS:
        return "late", "it is overdue and no worker has fired it; check that a worker is running, and its log"
    return "active", ""


def scheduled_time(ms: int, zone: str) -> ScheduledTime:
    local = datetime.fromtimestamp(ms / 1000, UTC).astimezone(zone_of(zone))
    return ScheduledTime(stamp(ms) or "", local.isoformat(timespec="seconds"))
