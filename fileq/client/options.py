"""What a program asks of a client with keywords: the conditions that choose jobs, and the options of a schedule."""

from __future__ import annotations

import math
from collections.abc import Mapping
from datetime import datetime
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypedDict

import msgspec
from msgspec import Meta, Struct

from fileq.core.errors import ConfigError
from fileq.core.text import check_names
from fileq.core.units import Duration, format_duration, seconds

if TYPE_CHECKING:
    from fileq.core.job_options import NamedBatch
    from fileq.handlers.registry import TaskDefinition
    from fileq.queries.job_filter import StatusWord

_ShortText = Annotated[str, Meta(min_length=1, max_length=200)]


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
