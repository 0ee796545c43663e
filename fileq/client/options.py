"""The options of new jobs and schedules: as a program gives them, checked, and as they are applied to a job."""

from __future__ import annotations

import math
from collections.abc import Mapping
from datetime import datetime
from typing import TYPE_CHECKING, Annotated, Any, Literal, Protocol, TypedDict

import msgspec
from msgspec import Meta, Struct

from fileq.core.errors import ConfigError
from fileq.core.job import Job, encoded_tags, new_ids, rfc3339_ms
from fileq.core.job_options import JobKeywords, Moment, Option, declared_options, read_options
from fileq.core.text import check_names
from fileq.core.units import Duration, format_duration, seconds

if TYPE_CHECKING:
    from fileq.handlers.registry import TaskDefinition
    from fileq.queries.job_filter import StatusWord

_ShortText = Annotated[str, Meta(min_length=1, max_length=200)]


class NamedBatch(Protocol):
    """A batch as code passes it around: that of a client, or `context.batch` in a handler."""

    @property
    def id(self) -> str: ...


def batch_id_of(batch: NamedBatch | str | None, name: str = "batch") -> str:
    """ "" without a batch. ConfigError for what is none; `name` is that of the option."""
    id = batch or "" if batch is None or isinstance(batch, str) else getattr(batch, "id", None)
    if not isinstance(id, str):
        raise ConfigError(f"{name} is {batch!r:.220}; it must be a batch, or its id")
    return id


class EnqueueOptions(JobKeywords, total=False):
    """What every method that enqueues takes as keywords: also `batch`, the batch that the job joins, or its id."""

    batch: Annotated[NamedBatch | str | None, Option(batch_id_of, sent_as="batch_id")]


class JobOptions(Struct, frozen=True):
    """The options of a new job, checked. Empty and None mean that the configuration decides."""

    priority: str = ""  # "": chosen by the task or by the extension of the file
    delay_ms: int = 0
    at_ms: int = 0
    max_retries: int | None = None
    timeout_s: float | None = None
    deadline: Moment | None = None
    unique_key: str | None = None
    id: str = ""
    tags: Mapping[str, str] = {}
    batch: str = ""
    is_traced: bool = False  # begins a trace, unless it has one:
    trace_id: str = ""
    span_id: str = ""

    def applied(self, job: Job, now_ms: int, batch_id: str | None = None) -> Job:
        due_ms = self.at_ms or (now_ms + self.delay_ms if self.delay_ms else 0)
        trace_id, span_id = self.trace_id, self.span_id
        if self.is_traced and not trace_id:
            trace_id, span_id = new_ids()
        return job.but(
            trace_id=trace_id,
            span_id=span_id,
            max_retries=self.max_retries,
            timeout=self.timeout_s,
            process_at=rfc3339_ms(due_ms) if due_ms else None,
            deadline=self.deadline.text(now_ms) if self.deadline is not None else None,
            batch_id=self.batch or batch_id,
            unique_key=self.unique_key,
            tags=encoded_tags(self.tags),
        )

    def sent(self) -> dict[str, Any]:
        """The fields of a request for a job that set these options."""
        values = ((option, getattr(self, option.field)) for option in declared_options(EnqueueOptions).values())
        return {one.sent_as: one.sent(value) for one, value in values if value != getattr(_DEFAULTS, one.field)}


_DEFAULTS = JobOptions()


class JobRequest(Struct, frozen=True):
    """A job to enqueue: for a file, or of a type with a payload. `payload` is JSON; None if there is none."""

    options: JobOptions
    type: str = ""
    payload: bytes | None = None
    path: str = ""


def options_of(given: EnqueueOptions) -> JobOptions:
    """The options, checked. ConfigError names each that is wrong; TypeError for one that does not exist."""
    fields = read_options(given, EnqueueOptions)
    if fields.get("delay_ms") and fields.get("at_ms"):
        raise ConfigError("delay and at are both set; give one of them")
    fields["priority"] = fields.get("priority") or getattr(given.get("batch"), "priority", None) or ""
    return JobOptions(**fields)


class JobFilters(TypedDict, total=False):
    """The conditions that choose jobs as keywords, and how many jobs are wanted. Times are a datetime, or a duration
    such as "2h", which means two hours ago."""

    status: StatusWord | None
    type: TaskDefinition[Any, Any] | str | None
    priority: str | None
    queue: str | None
    worker: str | None
    batch: NamedBatch | str | None
    schedule: str | None
    match: str | None
    error: str | None
    fingerprint: str | None
    since: datetime | Duration | None
    until: datetime | Duration | None
    tag: Mapping[str, str]
    q: str | None
    limit: int | None


def checked_timeout(timeout: float | None) -> float | None:
    """How long to wait. None, which is for ever, also for an infinite number."""
    if timeout is None or timeout == math.inf:
        return None
    if isinstance(timeout, bool) or not isinstance(timeout, int | float) or not timeout >= 0:
        raise ConfigError(f"timeout is {timeout!r}; it must be a number of seconds, at least 0, or None")
    return timeout


class ScheduleKeywords(TypedDict, total=False):
    """What schedule() takes as keywords, as the keys of `schedules` in the configuration."""

    priority: str
    missed: str
    overlap: Literal["allow", "skip", "queue", "cancel"]
    within: Duration
    max_retries: int | None
    timeout: Duration | None


class WantedReprocess(Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """Known files to process again: those that match, and with `since` were modified in this time before."""

    match: Annotated[str, Meta(min_length=1, max_length=4096)]
    since: _ShortText | None = None


class WantedSchedule(Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """A schedule to define, with the keys of `schedules` in the configuration: a `type` with a `payload`, or `scan`, or
    `reprocess`. Durations are texts such as "10m". `paused` is for a new schedule."""

    cron: _ShortText
    type: Annotated[str, Meta(min_length=1, max_length=100)] | None = None
    payload: dict[str, Any] = {}
    timezone: _ShortText = "UTC"
    priority: Annotated[str, Meta(max_length=100)] = ""
    missed: _ShortText | None = None
    overlap: Literal["allow", "skip", "queue", "cancel"] | None = None
    within: _ShortText | None = None
    max_retries: Annotated[int, Meta(ge=0, le=1_000_000)] | None = None
    timeout: _ShortText | None = None
    scan: Annotated[str, Meta(min_length=1, max_length=4096)] | None = None
    reprocess: WantedReprocess | None = None
    paused: bool | None = None


def schedule_options(cron: str, type: str, payload: Any, timezone: str, given: ScheduleKeywords) -> WantedSchedule:
    """TypeError for an option that does not exist; ConfigError for a payload or a duration that can't be used."""
    check_names(given, ScheduleKeywords, also=("timezone",))
    try:
        plain = {} if payload is None else msgspec.to_builtins(payload, str_keys=True)
    except (msgspec.MsgspecError, TypeError, ValueError, RecursionError) as error:
        raise ConfigError(f"the payload of the schedule can't be written as JSON: {error}") from error
    if not isinstance(plain, dict):
        raise ConfigError(f"payload is {plain!r:.80}; it must be a mapping or a Struct: jobs get it with more keys")
    options: dict[str, Any] = {name: value for name, value in given.items() if value is not None}
    for name in options.keys() & {"within", "timeout"}:
        try:
            options[name] = format_duration(seconds(options[name]))
        except ValueError as error:
            raise ConfigError(f"{name} is {options[name]!r}; it must be {error}") from error
    return WantedSchedule(cron=cron, type=type, payload=plain, timezone=timezone, **options)
