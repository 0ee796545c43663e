"""The keys of one schedule below `schedules`, and what it means: a definition for the broker.

A schedule makes jobs of a type, or reprocesses known files, or scans a directory. The last two are jobs of fileq's own.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Annotated, Any, ClassVar, Literal

from fileq.config.kinds import InvalidValue, ValueKind
from fileq.config.section import AnyMapping, Section
from fileq.config.value_types import CountOrZero, Filled, Glob, JobType, Priority, Seconds
from fileq.core.schedule import MOST_MADE_UP, REPROCESS_TYPE, SCAN_TYPE, ScheduleDefinition, payload_problem

NAME_RULE = "[A-Za-z0-9._-]{1,100}"  # as brokers.catalog has it


class ScheduleNameKind(ValueKind, frozen=True):
    expects = f"a name that matches {NAME_RULE}"

    def read(self, text: str) -> str:
        if not re.fullmatch(NAME_RULE, text):
            raise InvalidValue(self.expects)
        return text


class CronKind(ValueKind, frozen=True):
    @property
    def expects(self) -> str:
        from fileq.core.cron import EXPECTS

        return EXPECTS

    def read(self, text: str) -> str:
        from fileq.core.cron import InvalidCron, parsed

        try:
            parsed(text)
        except InvalidCron as error:
            raise InvalidValue(str(error)) from None
        return text


class ZoneKind(ValueKind, frozen=True):
    expects = "a time zone such as Europe/Berlin"

    def read(self, text: str) -> str:
        from fileq.core.cron import InvalidZone, zone_of

        try:
            zone_of(text)
        except InvalidZone as error:
            raise InvalidValue(str(error)) from None
        return text


class MissedKind(ValueKind, frozen=True):
    expects = f"skip, last or all:N, with N from 1 to {MOST_MADE_UP}"

    def read(self, text: str) -> str:
        word = text.strip().lower()
        number = re.fullmatch(r"all:(\d{1,4})", word)
        if word in ("skip", "last") or (number and 1 <= int(number[1]) <= MOST_MADE_UP):
            return word
        raise InvalidValue(self.expects)


class ReprocessSettings(Section, frozen=True):
    is_sparse: ClassVar[bool] = True

    match: Annotated[Glob | None, "only files whose path matches this glob, as for `fileq reprocess --match`"] = None
    since: Annotated[Seconds | None, "only files that were modified in this time before the run, e.g. 1d"] = None

    def contradictions(self) -> Iterator[tuple[str, str]]:
        if self.match is None and self.since is None:
            yield "", "has neither match nor since; give at least one, match: '**/*' for all files"


class ScheduleSettings(Section, frozen=True):
    is_sparse: ClassVar[bool] = True

    cron: Annotated[str, CronKind(), "when: 5 fields, @hourly, @daily, @weekly, @monthly, @yearly or '@every 15m'"] = ""
    timezone: Annotated[str, ZoneKind(), "IANA name of the zone in which cron is meant"] = "UTC"
    type: Annotated[JobType | None, "the type of the jobs, which a route or a task takes"] = None
    payload: Annotated[AnyMapping | None, "the payload of the jobs, with scheduled_for and missed added"] = None
    reprocess: Annotated[ReprocessSettings | None, "instead of a type: process known files again"] = None
    scan: Annotated[Filled | None, "instead of a type: enqueue the new files of this directory once"] = None
    priority: Annotated[Priority | None, "queue of the jobs; default: the task's, or producer.default_priority"] = None
    missed: Annotated[str, MissedKind(), "which times that were missed are made up: skip, last or all:N"] = "last"
    overlap: Annotated[
        Literal["allow", "skip", "queue", "cancel"], "what happens while the last job of the schedule is unfinished"
    ] = "skip"
    within: Annotated[Seconds, "a time that is later than this is missed"] = 600.0
    paused: Annotated[bool, "define it, but do not fire it"] = False
    max_retries: Annotated[CountOrZero | None, "of its jobs, instead of the route's"] = None
    timeout: Annotated[Seconds | None, "of its jobs, instead of the route's"] = None

    def contradictions(self) -> Iterator[tuple[str, str]]:
        if not self.cron:
            yield "", "has no cron; say when it is due"
        given = [name for name in ("type", "reprocess", "scan") if getattr(self, name) is not None]
        if not given:
            yield "", "has neither type nor reprocess nor scan; give one of them"
        elif len(given) > 1:
            yield "", f"has both {given[0]} and {given[1]}; keep one of them"
        if self.payload is not None and self.type is None:
            yield "payload", "goes with a type only"
        elif self.payload is not None and (problem := payload_problem(self.payload)):
            yield "payload", f"can't be used: {problem}"

    @property
    def definition(self) -> ScheduleDefinition:
        type, payload = self._job()
        return ScheduleDefinition(
            cron=self.cron,
            timezone=self.timezone,
            type=type,
            payload=payload,
            priority=self.priority or "",
            missed=self.missed,
            overlap=self.overlap,
            within_s=self.within,
            max_retries=self.max_retries,
            timeout_s=self.timeout,
        )

    def _job(self) -> tuple[str, dict[str, Any]]:
        if self.scan is not None:
            return SCAN_TYPE, {"dir": self.scan}
        if self.reprocess is not None:
            given = {"match": self.reprocess.match, "since_s": self.reprocess.since}
            return REPROCESS_TYPE, {key: value for key, value in given.items() if value is not None}
        return self.type or "", dict(self.payload or {})
