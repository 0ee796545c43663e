"""One attempt of a delivery: sends it, and decides what the answer means for the job and for the webhook.

2xx is success. Anything else is a failure, and the retry policy tries again after RETRY_DELAYS_S, or later if the
receiver asks for that. 410 disables the webhook. Another 4xx, except 408, 425 and 429, does not change by repeating it:
the delivery is dead after PERMANENT_AFTER attempts. 50 failures in a row over a day disable the webhook.

Runs in a thread of the worker, and ends soon after the job is cancelled or the worker stops; that says nothing about
the receiver. Never raises, and a broker that does not answer changes no outcome.

What a kill -9 leaves: the delivery in its slot. A reaper gives it back, and it is sent again with the same
`webhook-id`, by which receivers recognise it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping

import msgspec
from msgspec import UNSET

from fileq import __version__
from fileq.core.errors import BrokerError, ConfigError, FileqError
from fileq.core.events import Emit, WebhookDelivered, WebhookDisabled, WebhookFailed
from fileq.core.job import Job
from fileq.core.outcome import Done, Failed
from fileq.core.text import printable
from fileq.core.webhook import ANSWERED, RETRY_DELAYS_S, signature_header
from fileq.webhooks.sender import Answer, NotSent, Sender, Stopped
from fileq.webhooks.store import FAILURES_MAX, KnownWebhook, WebhookStore
from fileq.webhooks.subscriptions import DeliveryPayload, event_of

PERMANENT_AFTER = 3
RETRY_AFTER_MAX_S = 86_400.0
GONE = 410
_MAY_CHANGE = (408, 425, 429)  # of 4xx: worth as many attempts as a failure of the server


class DeliveryAttempts:
    """`known` returns the definitions in effect; the store is asked about a webhook that is not among them."""

    def __init__(
        self,
        store: WebhookStore,
        sender: Sender,
        known: Callable[[], Mapping[str, KnownWebhook]],
        *,
        emit: Emit,
        now_ms: Callable[[], int],
    ) -> None:
        self._store = store
        self._sender = sender
        self._known = known
        self._emit = emit
        self._now_ms = now_ms

    def run(self, job: Job, is_stopped: Callable[[], bool] = lambda: False) -> Done | Failed:
        """Sends this delivery once."""
        try:
            payload = _payload_of(job)
            event = event_of(payload)
        except (msgspec.DecodeError, ValueError) as error:
            return Failed(f"the payload is not that of a delivery: {error}", "InvalidDelivery", is_permanent=True)
        try:
            known = self._known().get(payload.webhook) or self._store.load().get(payload.webhook)
        except BrokerError as error:
            return Failed(f"the webhook can't be read: {error}", "BrokerError", is_sample=False)
        if known is None:
            return Done(_result(None, f"not sent: webhook {payload.webhook!r} was removed"))
        if known.state.disabled:
            advice = f"'fileq webhook enable {payload.webhook}' enables it, 'fileq dlq retry' sends this again"
            error_text = f"webhook {payload.webhook!r} is disabled: {known.state.disabled}; {advice}"
            return Failed(error_text, "WebhookDisabled", is_permanent=True, is_sample=False)
        return self._send(job, known, event, bytes(payload.body), is_stopped)

    def _send(
        self, job: Job, known: KnownWebhook, event: str, body: bytes, is_stopped: Callable[[], bool]
    ) -> Done | Failed:
        name, started_s = known.webhook.name, time.monotonic()
        answer: Answer | None = None
        try:
            answer = send(self._sender, known, job.id, body, self._now_ms(), is_stopped)
            error = "" if 200 <= answer.status < 300 else f"{ANSWERED} {answer.status}"
        except Stopped:  # which outcome that has, the executor knows
            return Failed("stopped before there was an answer", "Stopped", is_sample=False)
        except (NotSent, ConfigError) as not_sent:
            error = str(not_sent)
        duration_ms = round((time.monotonic() - started_s) * 1000)
        if answer is not None and not error:
            self._emit(WebhookDelivered(name, job.id, event, answer.status, duration_ms))
            self._note(lambda: self._store.forget_failures(name))
            return Done(_result(answer.status, printable(answer.text)))
        status = answer.status if answer is not None else None
        self._emit(WebhookFailed(name, job.id, event, status, error, duration_ms))
        self._note(lambda: self._count_failure(name, status))
        return _failed(job, answer, error)

    def _count_failure(self, name: str, status: int | None) -> None:
        if status == GONE:
            self._disable(name, "the receiver answered 410 (gone)")
            return
        state = self._store.count_failure(name)
        if not state.disabled and self._store.is_failing_too_long(state):
            self._disable(name, f"{state.failures} deliveries in a row have failed for a day (at most {FAILURES_MAX})")

    def _disable(self, name: str, reason: str) -> None:
        if self._store.disable(name, reason):
            self._emit(WebhookDisabled(name, reason))

    def _note(self, call: Callable[[], None]) -> None:
        """Notes in the catalog are best effort: the outcome of the attempt is known, and the worker reports outages."""
        try:
            call()
        except FileqError:
            return


def send(
    sender: Sender,
    known: KnownWebhook,
    id: str,
    body: bytes,
    now_ms: int,
    is_stopped: Callable[[], bool] = lambda: False,
) -> Answer:
    """Signs and sends one message. Raises NotSent, Stopped, and ConfigError without a secret."""
    timestamp = now_ms // 1000
    headers = {
        "Content-Type": "application/json",
        "User-Agent": f"fileq/{__version__}",
        "webhook-id": id,
        "webhook-timestamp": str(timestamp),
        "webhook-signature": signature_header(known.secrets(now_ms), id, timestamp, body),
    }
    return sender.post(known.webhook.url, headers, body, is_stopped)


def retry_after_s(text: str, now_ms: int) -> float:
    """The seconds that a Retry-After header asks for: a number of seconds or a date. 0 if it can't be read."""
    if text.isascii() and text.strip().isdigit():
        return min(float(text), RETRY_AFTER_MAX_S)
    from email.utils import parsedate_to_datetime

    try:
        left_s = parsedate_to_datetime(text).timestamp() - now_ms / 1000
    except (ValueError, TypeError, OverflowError):
        return 0.0
    return max(0.0, min(left_s, RETRY_AFTER_MAX_S))


def _failed(job: Job, answer: Answer | None, error: str) -> Failed:
    """No failure counts for a circuit breaker: one receiver must not stop the deliveries of others."""
    if answer is None:
        return Failed(error, "NotSent", is_sample=False)
    status, text = answer.status, printable(answer.text)
    error = f"{error}: {text}" if text else error
    refuses = 400 <= status < 500 and status not in _MAY_CHANGE
    is_permanent = status == GONE or (refuses and job.retries + 1 >= PERMANENT_AFTER)
    delay_s = RETRY_DELAYS_S[min(job.retries, len(RETRY_DELAYS_S) - 1)]
    after_s = max(delay_s, retry_after_s(answer.retry_after, time.time_ns() // 1_000_000))
    return Failed(error, f"HTTP{status}", is_permanent=is_permanent, after_s=after_s, is_sample=False)


def _payload_of(job: Job) -> DeliveryPayload:
    if job.payload is UNSET:
        raise ValueError("there is none")
    return msgspec.json.decode(job.payload, type=DeliveryPayload)


def _result(status: int | None, text: str) -> bytes:
    return msgspec.json.encode({"status": status, "answer": text})
