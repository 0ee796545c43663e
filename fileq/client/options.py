"""The options of new jobs and schedules: as a program gives them, checked, and as they are applied to a job."""

from __future__ import annotations

import math
from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Annotated, Any, Literal, Protocol, TypeAlias, TypedDict

import msgspec
from msgspec import Meta, Struct

from fileq.core.errors import ConfigError, JobError
from fileq.core.job import COUNT_MAX, FIRST_MS, LAST_MS, UNIQUE_KEY_LENGTH, Job, checked_id, encoded_tags, rfc3339_ms
from fileq.core.units import format_duration, seconds

if TYPE_CHECKING:
    from fileq.handlers.registry import TaskDefinition
    from fileq.queries.job_filter import StatusWord

Duration: TypeAlias = float | str | timedelta  # seconds, "5m" or a timedelta


class NamedBatch(Protocol):
    """A batch as code passes it around: that of a client, or `context.batch` in a handler."""

    @property
    def id(self) -> str: ...


class JobOptions(Struct, frozen=True):
    """The options of new jobs, checked. Empty and None mean that the configuration decides."""

    priority: str = ""  # "": chosen by the task or by the extension of the file
    delay_ms: int = 0
    at_ms: int = 0
    max_retries: int | None = None
    timeout_s: float | None = None
    id: str = ""
    unique_key: str | None = None
    deadline_ms: int = 0  # 0: none
    deadline_after_ms: int = 0  # as `deadline_ms`, counted from when the job is made
    tags: Mapping[str, str] = {}
    batch: str = ""  # the job becomes a member of it
    is_traced: bool = False  # begins a trace, unless it has one:
    trace_id: str = ""
    span_id: str = ""

    def applied(self, job: Job, now_ms: int, batch_id: str | None = None) -> Job:
        due_ms = self.at_ms or (now_ms + self.delay_ms if self.delay_ms else 0)
        deadline_ms = self.deadline_ms or (now_ms + self.deadline_after_ms if self.deadline_after_ms else 0)
        trace_id, span_id = self.trace_id, self.span_id
        if self.is_traced and not trace_id:
            from fileq.core.trace import new_ids  # slow to import: secrets, hashlib

            trace_id, span_id = new_ids()
        return job.but(
            trace_id=trace_id,
            span_id=span_id,
            max_retries=self.max_retries,
            timeout=self.timeout_s,
            process_at=rfc3339_ms(due_ms) if due_ms else None,
            deadline=rfc3339_ms(deadline_ms) if deadline_ms else None,
            batch_id=self.batch or batch_id,
            unique_key=self.unique_key,
            tags=encoded_tags(self.tags),
        )


class JobRequest(Struct, frozen=True):
    """A job to enqueue: for a file, or of a type with a payload. `payload` is JSON; None if there is none."""

    options: JobOptions
    type: str = ""
    payload: bytes | None = None
    path: str = ""


class EnqueueOptions(TypedDict, total=False):
    """What every method that enqueues takes as keywords. None: as if it was not given.

    `delay` and `at` say when the job is due; not both. `deadline`: the job is not started after it, a time or a
    duration from now. `timeout` is the limit of one attempt. `id`: chosen by the caller; if a job has it already,
    nothing is enqueued. `unique_key`: while an unfinished job has it, nothing is enqueued. `batch`: the job becomes a
    member of this batch, which is one of a client or an id."""

    priority: str | None
    delay: Duration | None
    at: datetime | None
    id: str | None
    unique_key: str | None
    max_retries: int | None
    timeout: Duration | None
    deadline: datetime | Duration | None
    tags: Mapping[str, str] | None
    batch: NamedBatch | str | None


def options_of(given: EnqueueOptions) -> JobOptions:
    """The options, checked. ConfigError names each that is wrong; TypeError for one that does not exist."""
    if unknown := sorted(given.keys() - EnqueueOptions.__annotations__.keys()):
        known = ", ".join(sorted(EnqueueOptions.__annotations__))
        raise TypeError(f"unexpected option {unknown[0]!r}; there are {known}")
    problems: list[str] = []
    read = _Reading(given, problems)
    delay_ms, at_ms = read.duration_ms("delay"), read.time_ms("at")
    if delay_ms and at_ms:
        problems.append("delay and at are both set; give one of them")
    options = JobOptions(
        priority=given.get("priority") or getattr(given.get("batch"), "priority", None) or "",
        delay_ms=delay_ms,
        at_ms=at_ms,
        max_retries=read.count("max_retries"),
        timeout_s=read.timeout_s(),
        id=given.get("id") or "",
        unique_key=given.get("unique_key") or None,
        deadline_ms=read.time_ms("deadline") if isinstance(given.get("deadline"), datetime) else 0,
        deadline_after_ms=0 if isinstance(given.get("deadline"), datetime) else read.duration_ms("deadline"),
        tags=given.get("tags") or {},
        batch=batch_id_of(given.get("batch")),
    )
    read.checked(options)
    if problems:
        raise ConfigError(problems)
    return options


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


def batch_id_of(batch: NamedBatch | str | None) -> str:
    """ "" without a batch."""
    if batch is None or isinstance(batch, str):
        return batch or ""
    return batch.id


class _Reading:
    """Reads options one by one, and collects what is wrong with them."""

    def __init__(self, given: EnqueueOptions, problems: list[str]) -> None:
        self._given: Mapping[str, Any] = {**given}
        self._problems = problems

    def duration_ms(self, name: str) -> int:
        try:
            return round(seconds(self._given.get(name) or 0) * 1000)
        except ValueError as error:
            self._problems.append(f"{name} is {self._given[name]!r}; it must be {error}")
            return 0

    def timeout_s(self) -> float | None:
        given = self._given.get("timeout")
        if given is None:
            return None
        before = len(self._problems)
        timeout_ms = self.duration_ms("timeout")
        if not timeout_ms and len(self._problems) == before:
            self._problems.append(f"timeout is {given!r}; it must be longer than 0")
        return timeout_ms / 1000

    def time_ms(self, name: str) -> int:
        moment = self._given.get(name)
        if moment is None:
            return 0
        if not isinstance(moment, datetime) or moment.tzinfo is None:
            self._problems.append(
                f"{name} is {moment!r}; it must be a datetime with its zone, such as datetime.now(UTC)"
            )
            return 0
        ms = round(moment.timestamp() * 1000)
        if not FIRST_MS <= ms <= LAST_MS:
            self._problems.append(f"{name} is {moment.isoformat()}; it must be in the years 1 to 9999 of UTC")
            return 0
        return ms

    def count(self, name: str) -> int | None:
        value: Any = self._given.get(name)
        if value is not None and not (type(value) is int and 0 <= value <= COUNT_MAX):
            self._problems.append(f"{name} is {value!r}; it must be a whole number of at least 0")
            return None
        return value

    def checked(self, options: JobOptions) -> None:
        key = options.unique_key
        if key is not None and not (len(key) <= UNIQUE_KEY_LENGTH and key.isprintable()):
            self._problems.append(f"unique_key is {key!r:.220}; use up to {UNIQUE_KEY_LENGTH} printable characters")
        for check in (
            lambda: options.id and checked_id(options.id),
            lambda: encoded_tags(options.tags),
        ):
            try:
                check()
            except JobError as error:
                self._problems.append(str(error))


def checked_timeout(timeout: float | None) -> float | None:
    """How long to wait. None, which is for ever, also for an infinite number."""
    if timeout is None or timeout == math.inf:
        return None
    if isinstance(timeout, bool) or not isinstance(timeout, int | float) or not timeout >= 0:
        raise ConfigError(f"timeout is {timeout!r}; it must be a number of seconds from 0 on, or None")
    return timeout


class ScheduleKeywords(TypedDict, total=False):
    """What schedule() takes as keywords, as the keys of `schedules` in the configuration."""

    priority: str
    missed: str
    overlap: Literal["allow", "skip", "queue", "cancel"]
    within: Duration
    max_retries: int | None
    timeout: Duration | None


_Text = Annotated[str, Meta(min_length=1, max_length=200)]


class WantedReprocess(Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """Known files to process again: those that match, and with `since` were modified in this time before."""

    match: Annotated[str, Meta(min_length=1, max_length=4096)]
    since: _Text | None = None


class WantedSchedule(Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """A schedule to define, with the keys of `schedules` in the configuration: a `type` with a `payload`, or `scan`, or
    `reprocess`. Durations are texts such as "10m". `paused` is for a new schedule."""

    cron: _Text
    type: Annotated[str, Meta(min_length=1, max_length=100)] | None = None
    payload: dict[str, Any] = {}
    timezone: _Text = "UTC"
    priority: Annotated[str, Meta(max_length=100)] = ""
    missed: _Text | None = None
    overlap: Literal["allow", "skip", "queue", "cancel"] | None = None
    within: _Text | None = None
    max_retries: Annotated[int, Meta(ge=0, le=1_000_000)] | None = None
    timeout: _Text | None = None
    scan: Annotated[str, Meta(min_length=1, max_length=4096)] | None = None
    reprocess: WantedReprocess | None = None
    paused: bool | None = None


def schedule_options(cron: str, type: str, payload: Any, timezone: str, given: ScheduleKeywords) -> WantedSchedule:
    """TypeError for an option that does not exist; ConfigError for a payload or a duration that can't be used."""
    if unknown := sorted(given.keys() - ScheduleKeywords.__annotations__.keys()):
        known = ", ".join(sorted(ScheduleKeywords.__annotations__))
        raise TypeError(f"unexpected option {unknown[0]!r}; there are {known}")
    try:
        plain = {} if payload is None else msgspec.to_builtins(payload, str_keys=True)
    except (msgspec.MsgspecError, TypeError, ValueError, RecursionError) as error:
        raise ConfigError(f"the payload of the schedule can't be written as JSON: {error}") from error
    if not isinstance(plain, dict):
        raise ConfigError(f"payload is {plain!r:.80}; it must be a mapping or a Struct: jobs get it with more keys")
    return WantedSchedule(
        cron=cron,
        type=type,
        payload=plain,
        timezone=timezone,
        priority=given.get("priority", ""),
        missed=given.get("missed"),
        overlap=given.get("overlap"),
        within=_text("within", given.get("within")),
        max_retries=given.get("max_retries"),
        timeout=_text("timeout", given.get("timeout")),
    )


def _text(name: str, duration: Duration | None) -> str | None:
    if duration is None:
        return None
    try:
        return format_duration(seconds(duration))
    except ValueError as error:
        raise ConfigError(f"{name} is {duration!r}; it must be {error}") from error
