"""What `fileq webhook …` does: defines webhooks in the catalog, tests one, lists its deliveries. Shows no secret but a
new one."""

from __future__ import annotations

import itertools
import re
import time
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Annotated

import msgspec
from msgspec import UNSET, Struct

from fileq.brokers.place_pages import PROCESSING
from fileq.brokers.protocol import FullBroker
from fileq.config import Config
from fileq.core.documented import means
from fileq.core.errors import ConfigError
from fileq.core.job import Job, State, stamp, wall_clock_ms
from fileq.core.paging import pages
from fileq.core.text import printable
from fileq.core.webhook import ANSWERED, DELIVERY_TYPE, Webhook, WebhookFilter, shown_url
from fileq.files.globs import Globs
from fileq.queries.documents import Time
from fileq.queries.job_filter import Conditions, JobFilter, StoredJob
from fileq.queries.job_selection import matching
from fileq.webhooks.store import KnownWebhook, WebhookStore, definition_problems
from fileq.webhooks.subscriptions import DeliveryPayload, event_of, test_body

PAGE = 500
PAGES_MAX = 20  # of each place that `deliveries` looks through
_TYPE_BYTES = DELIVERY_TYPE.encode()
_ANSWERED = re.compile(rf"{ANSWERED} (\d{{3}})\b")


class WebhookSummary(Struct, frozen=True):
    """One webhook. No secret is in it."""

    name: str
    url: Annotated[str, means("its path and query are shown as ***")]
    events: tuple[str, ...]
    filter: Annotated[dict[str, str], means("those of type, match, priority and batch that are set")]
    is_configured: Annotated[bool, means("defined in the configuration; else by 'fileq webhook add'")]
    status: Annotated[str, means("enabled or disabled")]
    disabled_because: str
    disabled_at: Time
    failures: Annotated[int, means("failed attempts in a row")]
    failing_since: Time
    previous_secret_until: Annotated[Time, means("until then, the old secret is valid too")]


class WebhookList(Struct, frozen=True):
    webhooks: tuple[WebhookSummary, ...]
    problems: Annotated[tuple[str, ...], means("invalid definitions")]


class NewSecret(Struct, frozen=True):
    name: Annotated[str, means("the webhook")]
    secret: Annotated[str, means("signs the deliveries; shown only once")]
    previous_secret_until: Annotated[Time, means("until then, the old secret is valid too")]


class WebhookChange(Struct, frozen=True):
    name: Annotated[str, means("the webhook")]
    has_changed: Annotated[bool, means("whether the command changed anything")]


class WebhookTest(Struct, frozen=True):
    name: Annotated[str, means("the webhook")]
    id: Annotated[str, means("the webhook-id of the message")]
    answer_status: Annotated[int | None, means("status of the response; null if there was none")]
    answer: Annotated[str, means("beginning of the response body")]
    error: Annotated[str, means("why it was not accepted; empty if it was")]
    duration_s: float


class DeliverySummary(Struct, frozen=True):
    """One delivery, which is a job of type fileq.webhook."""

    id: Annotated[str, means("of the delivery job")]
    event: Annotated[str, means("such as job.dead")]
    job_id: Annotated[str | None, means("the job that the event is about")]
    status: Annotated[str, means("of the delivery job")]
    answer_status: Annotated[int | None, means("status of the last response; null if there was none")]
    attempt_count: int
    error: Annotated[str, means("of the last attempt, if it is not completed")]
    created_at: Time
    completed_at: Time
    scheduled_at: Annotated[Time, means("when the next attempt is due")]


class DeliveryList(Struct, frozen=True):
    name: Annotated[str, means("the webhook")]
    deliveries: Annotated[tuple[DeliverySummary, ...], means("newest first")]


def store_of(broker: FullBroker, config: Config) -> WebhookStore:
    return WebhookStore(broker, config.webhooks, wall_clock_ms)


def add(
    broker: FullBroker, config: Config, name: str, url: str, events: Sequence[str], wanted: WebhookFilter
) -> NewSecret:
    from fileq.webhooks.sender import literal_problem

    webhook = Webhook(name, url, tuple(dict.fromkeys(events)), wanted)
    problems = [*definition_problems(webhook, config.webhooks, config.worker.priorities)]
    if problem := literal_problem(url, config.webhooks):
        problems.append(f"the url of webhook {name!r} {problem}")
    if problems:
        raise ConfigError(problems)
    if wanted.match:
        Globs([wanted.match])  # ConfigError for one that can't be read
    return NewSecret(name, store_of(broker, config).add(webhook), None)


def list_all(broker: FullBroker, config: Config) -> WebhookList:
    store = store_of(broker, config)
    known = store.load()
    return WebhookList(tuple(map(_summary, known.values())), store.problems)


def remove(broker: FullBroker, config: Config, name: str) -> WebhookChange:
    store_of(broker, config).remove(name)
    return WebhookChange(name, True)


def enable(broker: FullBroker, config: Config, name: str) -> WebhookChange:
    return WebhookChange(name, store_of(broker, config).enable(name))


def rotate(broker: FullBroker, config: Config, name: str) -> NewSecret:
    secret, until_ms = store_of(broker, config).rotate(name)
    return NewSecret(name, secret, stamp(until_ms))


def test(broker: FullBroker, config: Config, name: str) -> WebhookTest:
    """Sends one message now, from here, and waits for the answer. Nothing is retried, and no job is made."""
    import uuid

    from fileq.webhooks.sender import NotSent, Sender, send

    known = store_of(broker, config).get(name)
    id, now_ms, started_s = str(uuid.uuid4()), wall_clock_ms(), time.monotonic()
    status, answer, error = None, "", ""
    try:
        got = send(Sender(config.webhooks), known, id, test_body(name, now_ms), now_ms, lambda: False)
        status, answer = got.status, printable(got.text)
        error = "" if 200 <= got.status < 300 else f"the receiver answered {got.status}"
    except NotSent as not_sent:
        error = str(not_sent)
    return WebhookTest(name, id, status, answer, error, round(time.monotonic() - started_s, 3))


def deliveries(broker: FullBroker, config: Config, name: str, limit: int, *, is_known: bool = False) -> DeliveryList:
    """The newest deliveries first. Those of a webhook that was removed are found as long as their records last.

    Bounded: of each place the 10,000 jobs that are found first are looked at. Unknown if there is none and no
    webhook has this name, unless the caller knows that one has."""
    found = _newest_deliveries(broker, config, PAGES_MAX).get(name, [])
    if not found and not is_known:
        store_of(broker, config).get(name)
    return DeliveryList(name, tuple(found[:limit]))


def latest_deliveries(broker: FullBroker, config: Config, limit: int) -> dict[str, tuple[DeliverySummary, ...]]:
    """The newest deliveries of each webhook, by its name. Cheaper than `deliveries`: of each place only the first
    PAGE jobs are looked at, so those of a webhook that is rarely used may be missing."""
    found = _newest_deliveries(broker, config, pages_max=1)
    return {name: tuple(some[:limit]) for name, some in found.items()}


def _newest_deliveries(broker: FullBroker, config: Config, pages_max: int) -> dict[str, list[DeliverySummary]]:
    """By the name of the webhook."""
    found: dict[str, list[DeliverySummary]] = {}
    for stored in _stored_deliveries(broker, config.worker.priorities[-1], pages_max):
        if (payload := _payload(stored.job)) is not None:
            found.setdefault(payload.webhook, []).append(_delivery(stored, payload))
    for some in found.values():
        some.sort(key=lambda one: one.created_at or "", reverse=True)
    return found


def _stored_deliveries(broker: FullBroker, queue: str, pages_max: int) -> Iterator[StoredJob]:
    """Of each place the first `pages_max` pages: the next jobs of those that wait, the newest of those that ended."""
    conditions = Conditions(JobFilter(type=DELIVERY_TYPE))
    for place in (PROCESSING, queue, "scheduled", "dead_letter", "completed", "cancelled"):
        for page in itertools.islice(pages(partial(broker.page, place, size=PAGE)), pages_max):
            # fileq itself enqueues them, so their type is in their bytes as it is written: few jobs are decoded.
            raws = [raw for raw in page.raws if _TYPE_BYTES in raw]
            yield from matching(broker, raws, place, conditions)


def _delivery(stored: StoredJob, payload: DeliveryPayload) -> DeliverySummary:
    assert stored.job is not None
    record, job = stored.record, stored.job
    return DeliverySummary(
        id=stored.id,
        event=event_of(payload),
        job_id=job.parent_id,
        status=stored.state.value,
        answer_status=_answer_status(record.result, stored.error) if record is not None else None,
        attempt_count=record.attempt_count if record is not None else 0,
        error=stored.error if stored.state is not State.COMPLETED else "",
        created_at=stamp(record.created_ms) if record is not None else job.creation_time,
        completed_at=stamp(record.ended_ms) if record is not None else None,
        scheduled_at=stamp(record.due_ms) if record is not None else None,
    )


def _answer_status(result: bytes, error: str) -> int | None:
    """What the receiver answered last: an attempt that failed has no result, and its error says it."""
    found = msgspec.json.decode(result) if result else None
    status = found.get("status") if isinstance(found, dict) else None
    if isinstance(status, int):
        return status
    return int(answered[1]) if (answered := _ANSWERED.match(error)) is not None else None


def _payload(job: Job | None) -> DeliveryPayload | None:
    if job is None or job.payload is UNSET:
        return None
    try:
        return msgspec.json.decode(job.payload, type=DeliveryPayload)
    except msgspec.DecodeError:
        return None


def _summary(known: KnownWebhook) -> WebhookSummary:
    webhook, state = known.webhook, known.state
    conditions = ((name, getattr(webhook.filter, name)) for name in webhook.filter.__struct_fields__)
    previous = [one.until_ms for one in known.stored.secrets if one.until_ms] if known.stored is not None else []
    until_ms = max(previous, default=0)
    return WebhookSummary(
        name=webhook.name,
        url=shown_url(webhook.url),
        events=webhook.events,
        filter={name: value for name, value in conditions if value},
        is_configured=known.is_configured,
        status="disabled" if state.disabled else "enabled",
        disabled_because=state.disabled,
        disabled_at=stamp(state.disabled_ms),
        failures=state.failures,
        failing_since=stamp(state.since_ms),
        previous_secret_until=stamp(until_ms) if until_ms > wall_clock_ms() else None,
    )
