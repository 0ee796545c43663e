from __future__ import annotations

import io
import json
from collections.abc import Iterator
from typing import Any

import pytest
import web

import fileq
import fileq.testing
from fileq.testing import TrialQueue


@pytest.fixture
def q(monkeypatch: pytest.MonkeyPatch) -> Iterator[TrialQueue]:
    with fileq.testing.queue(imports=["tasks"]) as q:
        monkeypatch.setattr(web, "client", q.client)
        yield q


def request(method: str, path: str, body: str = "", query: str = "", key: str = "") -> tuple[str, dict[str, Any]]:
    statuses: list[str] = []
    environ = {
        "REQUEST_METHOD": method,
        "PATH_INFO": path,
        "QUERY_STRING": query,
        "CONTENT_LENGTH": str(len(body)),
        "HTTP_IDEMPOTENCY_KEY": key,
        "wsgi.input": io.BytesIO(body.encode()),
    }
    content = b"".join(web.application(environ, lambda status, headers: statuses.append(status)))  # type: ignore[arg-type]
    return statuses[0], json.loads(content)


def test_a_text_is_accepted_at_once_and_counted_later(q: TrialQueue) -> None:
    status, accepted = request("POST", "/texts", "a b a")
    assert status == "202 Accepted"
    assert request("GET", accepted["url"])[1]["status"] == "pending"
    q.drain()
    assert request("GET", accepted["url"])[1]["result"] == {"a": 2, "b": 1}


def test_a_caller_can_wait_for_the_result(q: TrialQueue) -> None:
    status, shown = request("POST", "/texts", "x y x", query="wait=5")
    assert (status, shown["status"], shown["result"]) == ("200 OK", "completed", {"x": 2, "y": 1})


def test_an_error_is_shown(q: TrialQueue) -> None:
    _, shown = request("POST", "/texts", " ", query="wait=5")
    assert (shown["status"], shown["error"]) == ("dead", "Permanent: the text is empty")


def test_a_form_that_is_sent_twice_is_one_job(q: TrialQueue) -> None:
    first, second = (request("POST", "/texts", "a", key="k1")[1]["id"] for _ in range(2))
    assert first == second
    assert q.drain() == 1


def test_a_queue_that_cannot_be_reached_is_told_to_the_caller(q: TrialQueue, monkeypatch: pytest.MonkeyPatch) -> None:
    def away(*_: Any, **__: Any) -> None:
        raise fileq.BrokerUnavailable("away")

    monkeypatch.setattr(q.client, "enqueue", away)
    assert request("POST", "/texts", "a")[0] == "503 Service Unavailable"
    assert request("GET", "/texts/unknown")[0] == "404 Not Found"
    assert request("POST", "/texts", "a", query="wait=soon")[0] == "400 Bad Request"
