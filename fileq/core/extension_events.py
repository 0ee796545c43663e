"""The events of what users add to jobs: follow-ups, hooks and webhooks. Built as those in events.py."""

from __future__ import annotations

from fileq.core.events import Event, JobEvent, ids_of
from fileq.core.settlement import Settlement


class JobFollowed(JobEvent, frozen=True):
    """A job ended and left something behind: so many `follow_ups` were enqueued in the same step, those left out as
    duplicates included, and so many `outputs` are in its record."""

    name = "job.followed"
    level = "debug"

    queue: str
    follow_ups: int
    outputs: int


class HookFailed(Event, frozen=True):
    """A hook raised. Its job is not affected. Logged at most once a minute for each hook; `failures` counts those since
    the last line."""

    name = "hook.failed"
    level = "warning"

    hook: str
    event_name: str
    error: str
    failures: int


class HookEventsDropped(Event, frozen=True):
    """Hooks are slower than jobs, or one hangs: so many events (`count`) reached no hook. Logged at most once a
    minute."""

    name = "hook.events_dropped"
    level = "warning"

    count: int
    hook: str | None  # the one that was running


class BeforeEnqueueFailed(Event, frozen=True):
    """A function with `@fileq.before_enqueue` raised. The file is not enqueued; the next scan finds it again. Logged at
    most once a minute; the metric of skipped files (`veto_failed`) counts all."""

    name = "producer.before_enqueue_failed"
    level = "error"

    path: str
    error: str


class WebhookDelivered(Event, frozen=True):
    """A receiver accepted a delivery (`job_id`) with this `status`."""

    name = "webhook.delivered"
    level = "debug"

    webhook: str
    job_id: str
    event_name: str
    status: int
    duration_ms: int


class WebhookFailed(Event, frozen=True):
    """An attempt of a delivery (`job_id`) failed; `status` is missing if there was no answer. `job.failed` or
    `job.dead` of the delivery says what happens next."""

    name = "webhook.failed"
    level = "debug"

    webhook: str
    job_id: str
    event_name: str
    status: int | None
    error: str
    duration_ms: int


class WebhookDisabled(Event, frozen=True):
    """A webhook gets no more deliveries: its receiver answered 410, or failed for too long. `fileq webhook enable`
    enables it again."""

    name = "webhook.disabled"
    level = "error"

    webhook: str
    reason: str


class WebhooksInvalid(Event, frozen=True):
    """Definitions of webhooks can't be used; the others are in effect. Logged once for each change of `problems`."""

    name = "webhook.invalid"
    level = "error"

    problems: list[str]


def followed(settlement: Settlement) -> JobFollowed:
    claim = settlement.claim
    return JobFollowed(*ids_of(claim), claim.queue, len(settlement.follow_ups), len(settlement.outputs))
