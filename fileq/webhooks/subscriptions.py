"""Which deliveries follow from the end of an attempt or from a cancellation, which only computes,
and the watch that keeps the webhooks in effect up to date.

The broker enqueues them in the step that applies the change, so a delivery exists exactly if the event happened. The id
of a delivery is made of the job, the webhook, the event and the attempt: a repeated step gives the same id, and a job
that ends again after a revival gives another one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

import msgspec
from msgspec import Raw, Struct
from msgspec.structs import replace

from fileq.brokers.protocol import FullBroker
from fileq.brokers.types import Attempt, Record
from fileq.config import Config
from fileq.core.errors import BrokerError, ConfigError
from fileq.core.events import Emit, WebhooksInvalid, event_type
from fileq.core.job import (
    ENDED_STATES,
    Job,
    State,
    attempt_of,
    decode_or_none,
    encode,
    parsed_ms,
    rfc3339_ms,
    typed_job,
    wall_clock_ms,
)
from fileq.core.outcome import FollowUp, follow_up_id
from fileq.core.own_jobs import is_own_type
from fileq.core.settlement import Settlement, Verb
from fileq.core.webhook import DELIVERY_TYPE, TEST_EVENT, Webhook
from fileq.files.globs import Globs
from fileq.files.paths import Paths
from fileq.queries.documents import job_document
from fileq.webhooks.store import KnownWebhook, WebhookStore

CANCELLED = "job.cancelled"


class _Subscription(Struct, frozen=True):
    webhook: Webhook
    globs: Globs | None

    def wants(self, job: Job, queue: str, relative_path: str) -> bool:
        wanted = self.webhook.filter
        conditions = ((wanted.type, job.type), (wanted.priority, queue), (wanted.batch, job.batch_id))
        if any(condition and condition != value for condition, value in conditions):
            return False
        if self.globs is None:
            return True
        cut = relative_path.rfind("/") + 1
        return bool(relative_path) and self.globs.match(relative_path[:cut], relative_path[cut:])


class Subscriptions:
    """The webhooks in effect. Threads share it: one sets them, others read. `is_any` is False without webhooks."""

    def __init__(self, paths: Paths, queue: str) -> None:
        self._paths = paths
        self._queue = queue
        self._by_event: Mapping[str, Sequence[_Subscription]] = {}
        self.is_any = False

    def set(self, known: Iterable[KnownWebhook]) -> list[str]:
        """Replaces the webhooks by those of `known` that are enabled. Returns what is wrong with the others."""
        by_event: dict[str, list[_Subscription]] = {}
        problems = []
        for one in known:
            webhook = one.webhook
            try:
                globs = Globs([webhook.filter.match]) if webhook.filter.match else None
            except ConfigError as error:
                problems.append(f"webhook {webhook.name!r}: {error}")
                continue
            for event in webhook.events if not one.state.disabled else ():
                by_event.setdefault(event, []).append(_Subscription(webhook, globs))
        self._by_event = by_event
        self.is_any = bool(by_event)
        return problems

    def wants_any(self, event: str) -> bool:
        return event in self._by_event

    def settled(self, settlement: Settlement, now_ms: int) -> list[FollowUp]:
        """The deliveries about this settlement. None about bytes that are not a job."""
        job, event = settlement.claim.job, event_type(settlement).name
        if job is None or event not in self._by_event:
            return []
        # The start of the attempt and its number tell it from every other one of this job, also after a revival.
        attempt = f"{settlement.claim.claimed_ms} {job.retries + job.recoveries}"
        queue = settlement.claim.queue
        return self._deliveries(event, job, queue, attempt, now_ms, lambda: settled_data(settlement, job, now_ms))

    def withdrawn(self, job: Job, queue: str, attempts: int, now_ms: int) -> list[FollowUp]:
        """The deliveries about a job that is cancelled while it waits. `attempts` is how many it has had."""
        place = f"withdrawn {attempts}"
        return self._deliveries(
            CANCELLED, job, queue, place, now_ms, lambda: withdrawn_data(job, queue, attempts, now_ms)
        )

    def _wanted(self, event: str, job: Job, queue: str) -> Iterator[Webhook]:
        if is_own_type(job.type):
            return  # a webhook about a delivery would never end
        path = self._paths.here(job.path) if job.filepath else b""
        relative_path = self._paths.relative(path) if path else ""
        for one in self._by_event.get(event, ()):
            if one.wants(job, queue, relative_path):
                yield one.webhook

    def _deliveries(
        self, event: str, job: Job, queue: str, attempt: str, now_ms: int, data: Callable[[], dict[str, Any]]
    ) -> list[FollowUp]:
        deliveries, body = [], b""
        now = datetime.fromtimestamp(now_ms / 1000, UTC)
        for webhook in self._wanted(event, job, queue):
            body = body or body_of(event, now_ms, data())
            id = follow_up_id(job.id, "webhook", webhook.name, event, attempt)
            payload = DeliveryPayload(webhook.name, Raw(body))
            made = typed_job(DELIVERY_TYPE, payload, priority=self._queue, now=now, id=id)
            made = made.but(parent_id=job.id, trace_id=job.trace_id, span_id=job.span_id)
            deliveries.append(FollowUp(made, self._queue, is_own=True))
        return deliveries


def current_subscriptions(broker: FullBroker, config: Config) -> Subscriptions:
    """Those in effect now, for a process that is not a worker."""
    found = Subscriptions(config.paths, config.worker.priorities[-1])
    found.set(WebhookStore(broker, config.webhooks, wall_clock_ms).load().values())
    return found


class Withdrawals(Struct, frozen=True):
    """The deliveries about waiting jobs that a process cancels, such as a command. Reads the webhooks at each call."""

    broker: FullBroker
    config: Config
    now_ms: Callable[[], int]

    def of_ids(self, ids: Sequence[str]) -> dict[str, list[FollowUp]] | None:
        """What cancel() is to enqueue for each of these jobs; None if that is nothing."""

        def waiting() -> Iterator[tuple[Job, str, int]]:
            for record in self.broker.records(ids):
                if record is not None and (job := decode_or_none(record.raw)) is not None:
                    yield job, record.queue or job.priority, record.attempt_count

        return self._deliveries(waiting())

    def of_raws(self, queue: str, raws: Sequence[bytes]) -> dict[str, list[FollowUp]] | None:
        """The same for clear()."""

        def waiting() -> Iterator[tuple[Job, str, int]]:
            jobs = [job for raw in raws if (job := decode_or_none(raw)) is not None]
            for job, record in zip(jobs, self.broker.records([job.id for job in jobs]), strict=True):
                yield job, queue, record.attempt_count if record is not None else 0

        return self._deliveries(waiting())

    def _deliveries(self, waiting: Iterator[tuple[Job, str, int]]) -> dict[str, list[FollowUp]] | None:
        """Of jobs, each with its queue and its attempts. They are read only if a webhook wants to know of them."""
        subscriptions, now_ms = current_subscriptions(self.broker, self.config), self.now_ms()
        if not subscriptions.wants_any(CANCELLED):
            return None
        found = {job.id: subscriptions.withdrawn(job, queue, count, now_ms) for job, queue, count in waiting}
        return {id: deliveries for id, deliveries in found.items() if deliveries}


# The body of a delivery: `{"type", "timestamp", "data"}`, at most BODY_MAX bytes

BODY_MAX = 20_000
# How many characters are kept of an error and of other texts if a body is too long. JSON may need six bytes for each.
ERROR_KEPT, TEXT_KEPT = 1_500, 150
_encoder = msgspec.json.Encoder()


class DeliveryPayload(Struct, frozen=True):
    """The payload of a job of type fileq.webhook. `body` is sent exactly as it is, in every attempt."""

    webhook: str
    body: Raw


class _Told(Struct, frozen=True):
    type: str


def event_of(payload: DeliveryPayload) -> str:
    return msgspec.json.decode(payload.body, type=_Told).type


_STATES = {
    Verb.COMPLETE: State.COMPLETED,
    Verb.BURY: State.DEAD,
    Verb.CANCEL: State.CANCELLED,
    Verb.RETRY: State.RETRYING,
    Verb.RELEASE: State.PENDING,
    Verb.DEFER: State.DEFERRED,
}


def settled_data(settlement: Settlement, job: Job, now_ms: int) -> dict[str, Any]:
    """The `data` of a message about the end of an attempt: the job as it is then, with that attempt only."""
    claim, state = settlement.claim, _STATES[settlement.verb]
    attempt = Attempt(
        claim.claimed_ms,
        now_ms,
        claim.slot,
        settlement.outcome,
        settlement.error,
        duration_ms=settlement.duration_ms,
        is_fatal=state is State.DEAD,
    )
    return _data(
        Record(
            job.id,
            state,
            settlement.next_raw,
            claim.queue,
            claim.slot,
            created_ms=parsed_ms(job.creation_time),
            started_ms=claim.claimed_ms,
            ended_ms=now_ms if state in ENDED_STATES else 0,
            due_ms=now_ms + settlement.delay_ms if settlement.delay_ms else 0,
            error=settlement.error,
            result=settlement.result,
            attempts=(attempt,),
            attempt_count=attempt_of(job),
            outputs=settlement.outputs,
            fingerprint=settlement.fingerprint,
        )
    )


def withdrawn_data(job: Job, queue: str, attempts: int, now_ms: int) -> dict[str, Any]:
    """The `data` of a message about a job that was cancelled while it waited."""
    created_ms = parsed_ms(job.creation_time)
    record = Record(job.id, State.CANCELLED, encode(job), queue, created_ms=created_ms, ended_ms=now_ms)
    return _data(replace(record, attempt_count=attempts))


def _data(record: Record) -> dict[str, Any]:
    """What a caller gave stays here: the payload, and the fields that fileq does not know."""
    document = replace(job_document(record), payload=None, other_fields={}, left_out=("payload", "other_fields"))
    data: dict[str, Any] = msgspec.to_builtins(document)
    return data


def body_of(event: str, now_ms: int, data: dict[str, Any]) -> bytes:
    """The body, within BODY_MAX. Fields that had to be shortened or left out are named in `data.cut`."""
    for cut in ((), ("result",), ("result", "error", "attempts"), tuple(data)):
        shortened = {name: _shortened(name, value) if name in cut else value for name, value in data.items()}
        changed = [name for name in cut if name in data and shortened[name] != data[name]]
        body = _encoder.encode(
            {"type": event, "timestamp": rfc3339_ms(now_ms), "data": shortened | ({"cut": changed} if changed else {})}
        )
        if len(body) <= BODY_MAX:
            return body
    raise AssertionError(f"a body of {len(body)} bytes can't be shortened")


def test_body(name: str, now_ms: int) -> bytes:
    return body_of(TEST_EVENT, now_ms, {"webhook": name, "message": "this is a test of fileq"})


def _shortened(name: str, value: Any) -> Any:
    if isinstance(value, str):
        return value[: ERROR_KEPT if name == "error" else TEXT_KEPT]
    if isinstance(value, list | tuple):
        return []
    return None if isinstance(value, dict) else value


# The watch asks the catalog for its revision every four seconds, off the hot path.

CHECK_EVERY_S = 4.0  # definitions take effect within 5 s


class WebhookWatch(Struct, eq=False):
    """Owns no thread. `known` are all webhooks by name, disabled ones included."""

    store: WebhookStore
    subscriptions: Subscriptions
    emit: Emit
    known: Mapping[str, KnownWebhook] = {}
    revision: int | None = None
    problems: list[str] = []
    name: str = "webhooks"

    def start(self) -> None:
        """Reads the definitions before the first claim. If the broker is unreachable, a later turn() does it."""
        try:
            self.turn()
        except BrokerError:
            return

    def turn(self) -> float:
        """Reads the definitions if one was changed. Returns the seconds until the next turn."""
        revision = self.store.revision()  # before the documents: a change in between is read again
        if revision != self.revision:
            known = self.store.load()
            problems = [*self.store.problems, *self.subscriptions.set(known.values())]
            self.known, self.revision = known, revision
            if problems and problems != self.problems:
                self.emit(WebhooksInvalid(problems))
            self.problems = problems
        return CHECK_EVERY_S
