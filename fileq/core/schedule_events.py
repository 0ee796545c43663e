"""The events of schedules. Built as those in events.py."""

from __future__ import annotations

from fileq.core.events import Event


class ScheduleFired(Event, frozen=True):
    """A time of a schedule has come and its job is enqueued. `late_ms`: how long after that time."""

    name = "schedule.fired"

    schedule: str
    job_id: str
    scheduled_for: str
    late_ms: int


class ScheduleMissed(Event, frozen=True):
    """Times of a schedule, so many (`count`), have no job and get none: no worker ran then, or the last job had not
    ended (`reason`). `last` is the latest of them."""

    name = "schedule.missed"
    level = "warning"

    schedule: str
    count: int
    last: str
    reason: str


class ScheduleBroken(Event, frozen=True):
    """This worker can't fire a schedule, for example because it has no queue with that name. Others may. Logged once.
    The other schedules fire."""

    name = "schedule.broken"
    level = "error"

    schedule: str
    error: str


class ScheduleRestored(Event, frozen=True):
    """This worker can fire the schedule again, or it was removed."""

    name = "schedule.restored"

    schedule: str


class ScheduleDefined(Event, frozen=True):
    """At start or after SIGHUP: the configuration has a schedule that is new or has changed."""

    name = "schedule.defined"

    schedule: str
    cron: str
    timezone: str


class ScheduleUnclaimed(Event, frozen=True):
    """A schedule comes from a configuration, and that of this worker does not have it. It is removed after `seconds`,
    unless a worker whose configuration has it is running."""

    name = "schedule.unclaimed"
    level = "warning"

    schedule: str
    seconds: float


class ScheduleRemoved(Event, frozen=True):
    """A schedule was removed: no configuration of a running worker has it any more."""

    name = "schedule.removed"

    schedule: str
