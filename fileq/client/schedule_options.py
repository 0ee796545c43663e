"""The options of a schedule as a program gives them. The process that knows the configuration checks them later."""

from __future__ import annotations

from typing import Any, Literal, TypedDict

import msgspec
from msgspec import Struct

from fileq.client.job_options import Duration, seconds
from fileq.core.errors import ConfigError
from fileq.core.units import format_duration


class ScheduleKeywords(TypedDict, total=False):
    """What schedule() takes as keywords, as the keys of `schedules` in the configuration."""

    priority: str
    missed: str
    overlap: Literal["allow", "skip", "queue", "cancel"]
    within: Duration
    max_retries: int | None
    timeout: Duration | None


class ScheduleOptions(Struct, frozen=True):
    """Durations are texts, as in a configuration file; None and "" mean that the default applies."""

    cron: str
    type: str | None = None
    payload: dict[str, Any] = {}
    timezone: str = "UTC"
    priority: str = ""
    missed: str | None = None
    overlap: str | None = None
    within: str | None = None
    max_retries: int | None = None
    timeout: str | None = None
    scan: str | None = None
    reprocess: dict[str, Any] | None = None
    paused: bool | None = None

    def values(self) -> dict[str, Any]:
        """As a configuration file would have them."""
        given = {name: getattr(self, name) for name in self.__struct_fields__}
        return {name: value for name, value in given.items() if value not in (None, "", {})}


def schedule_options(cron: str, type: str, payload: Any, timezone: str, given: ScheduleKeywords) -> ScheduleOptions:
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
    return ScheduleOptions(
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
