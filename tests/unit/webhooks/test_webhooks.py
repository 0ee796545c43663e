"""Webhooks on the memory broker: definitions, what follows from an event, what an answer means. Clocks move by hand."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from msgspec import Raw
from msgspec.structs import replace

from fileq.brokers.memory import MemoryBroker
from fileq.config import Config, config_from
from fileq.core.errors import BrokerUnavailable, ConfigError, Unknown
from fileq.core.job import Job, typed_job
from fileq.core.outcome import Done, Failed
from fileq.core.webhook import DELIVERY_TYPE, WEBHOOKS_MAX, Webhook, WebhookFilter, secret_key
from fileq.webhooks.sender import Answer, DeliveryAttempts, NotSent, Stopped, retry_after_s
from fileq.webhooks.store import FAILURES_MAX, ROTATION_MS, STATES, ReceiverState, WebhookStore
from fileq.webhooks.subscriptions import DeliveryPayload, Subscriptions, WebhookWatch
from tests.support.clocks import RecordedEvents
from tests.support.pump_setup import NOW

URL = "https://example.org/hook"
DAY_MS = 24 * 3600 * 1000
SECRET = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"


class Kept:
    """A store on a memory broker, with a sender that answers as the test says."""

    def __init__(self, **webhooks: Any) -> None:
        self.config: Config = config_from({"broker": "memory", "webhooks": webhooks})
        self.broker = MemoryBroker(self.config)
        self.now_ms = 1_000_000_000_000
        self.store = WebhookStore(self.broker, self.config.webhooks, lambda: self.now_ms)
        self.events = RecordedEvents()
        self.answers: list[Answer | Exception] = []
        self.sent: list[tuple[str, dict[str, str], bytes]] = []
        self.attempts = DeliveryAttempts(
            self.store,
            self,  # type: ignore[arg-type]
            self.store.load,
            emit=self.events,
            now_ms=lambda: self.now_ms,
        )

    def post(self, url: str, headers: dict[str, str], body: bytes, is_stopped: Callable[[], bool]) -> Answer:
        self.sent.append((url, headers, body))
        answer = self.answers.pop(0) if self.answers else Answer(200, "")
        if isinstance(answer, Exception):
            raise answer
        return answer

    def add(self, name: str = "alerts", *events: str, **conditions: str) -> str:
        return self.store.add(Webhook(name, URL, events or ("job.dead",), WebhookFilter(**conditions)))

    def deliver(self, answer: Answer | Exception, *, retries: int = 0, name: str = "alerts") -> Done | Failed:
        self.answers.append(answer)
        return self.attempts.run(delivery(name).but(retries=retries))

    def is_disabled(self, name: str = "alerts") -> bool:
        return bool(self.store.get(name).state.disabled)


def delivery(name: str = "alerts", body: bytes = b'{"type":"job.dead", "data":{}}') -> Job:
    return typed_job(DELIVERY_TYPE, DeliveryPayload(name, Raw(body)), priority="low", now=NOW, id="d1")


# definitions


def test_a_webhook_is_added_listed_and_removed() -> None:
    kept = Kept()
    secret = kept.add("a", type="report")
    known = kept.store.get("a")
    assert (known.webhook.url, known.webhook.filter.type, known.is_configured) == (URL, "report", False)
    assert known.secrets(kept.now_ms) == [secret_key(secret)]
    assert secret not in repr(known)
    kept.store.remove("a")
    for call in (kept.store.get, kept.store.remove, kept.store.rotate, kept.store.enable):
        with pytest.raises(Unknown, match="no webhook is named 'a'; there are none"):
            call("a")


def test_what_is_wrong_with_a_new_webhook_is_refused() -> None:
    kept = Kept()
    kept.add("a")
    with pytest.raises(ConfigError, match="exists already"):
        kept.add("a")
    for name, url, events, problem in (
        ("a b", URL, ("job.dead",), "must match"),
        ("b", "http://example.org", ("job.dead",), "is not https"),
        ("b", URL, (), "has no events"),
        ("b", URL, ("job.started",), "has the unknown event 'job.started'"),
    ):
        with pytest.raises(ConfigError, match=problem):
            kept.store.add(Webhook(name, url, events))
    for n in range(WEBHOOKS_MAX - 1):
        kept.add(f"w{n}")
    with pytest.raises(ConfigError, match=f"at most {WEBHOOKS_MAX}"):
        kept.add("b")


def test_two_secrets_sign_for_a_day_after_a_rotation() -> None:
    kept = Kept()
    first = kept.add()
    second, until_ms = kept.store.rotate("alerts")
    assert until_ms == kept.now_ms + ROTATION_MS == kept.now_ms + DAY_MS
    known = kept.store.get("alerts")
    assert known.secrets(until_ms - 1) == [secret_key(second), secret_key(first)]
    assert known.secrets(until_ms) == [secret_key(second)]
    third, _ = kept.store.rotate("alerts")
    assert kept.store.get("alerts").secrets(kept.now_ms) == [secret_key(third), secret_key(second)], "never three"


def test_a_configured_webhook_keeps_its_secret_in_its_file(tmp_path: Path) -> None:
    file = tmp_path / "secret"
    endpoint = {"name": "c", "url": URL, "events": ["job.dead"], "secret_file": str(file)}
    kept = Kept(endpoints=[endpoint])
    known = kept.store.get("c")
    assert known.is_configured
    with pytest.raises(ConfigError, match="can't be read: No such file"):
        known.secrets(0)
    file.write_text(f"{SECRET}\n")
    assert known.secrets(0) == [secret_key(SECRET)]
    other = kept.add("other")
    file.write_text(f"{other}\n{SECRET}\n")
    assert known.secrets(0) == [secret_key(other), secret_key(SECRET)], "without a restart"
    file.write_text("nonsense")
    with pytest.raises(ConfigError, match="no valid secret"):
        known.secrets(0)
    for call in (kept.store.remove, kept.store.rotate):
        with pytest.raises(ConfigError, match="configuration"):
            call("c")
    kept.store.disable("c", "a reason")
    assert kept.is_disabled("c"), "its state is in the catalog"


def test_a_definition_that_cannot_be_read_affects_only_itself() -> None:
    kept = Kept()
    kept.add("good")
    kept.broker.put_document("webhooks", "bad", b"{")
    assert list(kept.store.load()) == ["good"]
    assert "'bad' can't be read" in kept.store.problems[0]
    subscriptions = Subscriptions(kept.config.paths, "low")
    watch = WebhookWatch(kept.store, subscriptions, kept.events)
    watch.turn()
    kept.add("other")
    watch.turn()
    assert kept.events.count("webhook.invalid") == 1, "logged once"
    assert list(watch.known) == ["good", "other"]
    assert subscriptions.is_any
    kept.store.remove("bad")
    assert kept.store.problems  # of the last load
    watch.turn()
    kept.broker.put_document("webhooks", "bad", b"{")
    watch.turn()
    assert kept.events.count("webhook.invalid") == 2, "it had ended"


# answers


@pytest.mark.parametrize("status", [200, 201, 204, 299])
def test_2xx_is_success(status: int) -> None:
    kept = Kept()
    secret = kept.add()
    ran = kept.deliver(Answer(status, "fine\x07"))
    assert isinstance(ran, Done)
    assert json.loads(ran.result) == {"status": status, "answer": r"fine\x07"}
    url, headers, body = kept.sent[0]
    assert (url, body) == (URL, b'{"type":"job.dead", "data":{}}'), "exactly as it was made"
    assert (headers["webhook-id"], headers["webhook-timestamp"]) == ("d1", "1000000000")
    assert headers["webhook-signature"].startswith("v1,")
    assert kept.events.fields("webhook.delivered")["status"] == status
    assert secret not in repr(kept.events.events)


@pytest.mark.parametrize("status", [301, 302, 307, 308, 400, 401, 404, 408, 422, 425, 429, 500, 503, 599, 100])
def test_anything_else_is_a_failure_and_other_4xx_are_final_after_three(status: int) -> None:
    kept = Kept()
    kept.add()
    is_final = 400 <= status < 500 and status not in (408, 425, 429)
    for retries in range(4):
        ran = kept.deliver(Answer(status, ""), retries=retries)
        assert isinstance(ran, Failed)
        assert ran.is_permanent == (is_final and retries >= 2)
        assert not ran.is_sample, "no circuit breaker counts it"
    assert kept.store.get("alerts").state.failures == 4
    assert not kept.is_disabled()


def test_410_disables_at_once() -> None:
    kept = Kept()
    kept.add()
    ran = kept.deliver(Answer(410, ""))
    assert isinstance(ran, Failed)
    assert ran.is_permanent
    assert kept.is_disabled()
    assert kept.events.fields("webhook.disabled")["webhook"] == "alerts"
    waiting = kept.deliver(Answer(200, ""))
    assert isinstance(waiting, Failed)
    assert waiting.is_permanent
    assert "fileq webhook enable alerts" in waiting.error
    assert len(kept.sent) == 1, "nothing more is sent"
    assert kept.store.enable("alerts")
    assert isinstance(kept.deliver(Answer(200, "")), Done)
    assert not kept.store.enable("alerts")


@pytest.mark.parametrize(
    ("failures", "over_ms", "is_disabled"),
    [(50, DAY_MS, True), (49, DAY_MS, False), (50, DAY_MS - 1, False)],
)
def test_50_failures_in_a_row_over_a_day_disable(failures: int, over_ms: int, is_disabled: bool) -> None:
    kept = Kept()
    kept.add()
    start_ms = kept.now_ms
    for n in range(failures):
        kept.now_ms = start_ms + over_ms * n // (failures - 1)
        kept.deliver(NotSent("away"))
    assert kept.is_disabled() == is_disabled
    assert kept.events.count("webhook.disabled") == is_disabled


def test_a_delivery_that_is_stopped_says_nothing_about_its_receiver() -> None:
    kept = Kept()
    kept.add()
    assert isinstance(kept.deliver(Stopped()), Failed)
    assert kept.store.get("alerts").state.failures == 0
    assert kept.events.count("webhook.failed") == 0


def test_a_success_ends_the_row_of_failures() -> None:
    kept = Kept()
    kept.add()
    for _ in range(2):
        for _ in range(FAILURES_MAX - 1):
            kept.deliver(NotSent("away"))
        kept.deliver(Answer(200, ""))
        kept.now_ms += 2 * DAY_MS
    assert kept.store.get("alerts").state.failures == 0
    assert STATES.all(kept.broker) == {"alerts": ReceiverState()}


@pytest.mark.parametrize(
    ("header", "retries", "after_s"),
    [
        ("", 0, 5),
        ("", 1, 300),
        ("", 8, 86_400),
        ("", 50, 86_400),
        ("120", 0, 120),
        ("1", 1, 300),
        ("999999999", 0, 86_400),
        ("-5", 0, 5),
        ("soon", 0, 5),
    ],
)
def test_the_next_attempt_waits_for_both_the_schedule_and_the_receiver(
    header: str, retries: int, after_s: float
) -> None:
    kept = Kept()
    kept.add()
    ran = kept.deliver(Answer(503, "", header), retries=retries)
    assert isinstance(ran, Failed)
    assert ran.after_s == after_s


def test_retry_after_may_be_a_date() -> None:
    assert retry_after_s("Thu, 01 Jan 1970 00:02:00 GMT", 60_000) == 60
    assert retry_after_s("Thu, 01 Jan 1970 00:00:00 GMT", 60_000) == 0
    assert retry_after_s("Thu, 01 Jan 9999 00:00:00 GMT", 0) == 86_400


def test_a_delivery_of_a_removed_webhook_ends_without_being_sent() -> None:
    ran = Kept().deliver(Answer(200, ""), name="gone")
    assert isinstance(ran, Done)
    assert "was removed" in ran.result.decode()


@pytest.mark.parametrize("payload", [None, {"webhook": 1}, {"webhook": "a"}, {"webhook": "a", "body": []}, "x"])
def test_a_job_that_is_no_delivery_is_dead(payload: Any) -> None:
    ran = Kept().attempts.run(typed_job(DELIVERY_TYPE, payload, priority="low", now=NOW))
    assert isinstance(ran, Failed)
    assert ran.is_permanent


def test_a_broker_that_is_away_changes_no_outcome(monkeypatch: pytest.MonkeyPatch) -> None:
    kept = Kept()
    kept.add()
    known = kept.store.load()
    kept.attempts = replace(kept.attempts, known=lambda: known)

    def away(*arguments: object) -> None:
        raise BrokerUnavailable("away")

    monkeypatch.setattr(kept.broker, "documents", away)
    assert isinstance(kept.deliver(Answer(200, "")), Done)
    failed = kept.deliver(Answer(500, ""))
    assert isinstance(failed, Failed)
    assert not failed.is_permanent
