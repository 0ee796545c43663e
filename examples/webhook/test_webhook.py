from __future__ import annotations

import json
import threading
import urllib.error
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from webhook import announce

import fileq
from fileq.testing import run


class Receiver(ThreadingHTTPServer):
    """A server with configurable answers that keeps the requests."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Answering)
        self.status = 200
        self.answer_headers: dict[str, str] = {}
        self.received: list[tuple[str, dict[str, Any], str | None]] = []

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}/hook"


class _Answering(BaseHTTPRequestHandler):
    server: Receiver

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.server.received.append((self.command, body, self.headers["Idempotency-Key"]))
        self.send_response(self.server.status)
        for name, value in self.server.answer_headers.items():
            self.send_header(name, value)
        self.end_headers()

    do_GET = do_POST

    def log_message(self, *_: Any) -> None:
        pass


@pytest.fixture
def receiver(monkeypatch: pytest.MonkeyPatch) -> Iterator[Receiver]:
    with Receiver() as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        monkeypatch.setenv("WEBHOOK_URL", server.url)
        monkeypatch.setenv("no_proxy", "127.0.0.1")
        yield server
        server.shutdown()
        thread.join()


@pytest.fixture
def announced(tmp_path: Path, receiver: Receiver) -> Callable[[], Any]:
    (tmp_path / "a.txt").write_bytes(b"abc")
    return lambda: run(announce, tmp_path / "a.txt", id="j1")


def test_a_file_is_announced_with_the_id_of_its_job(announced: Callable[[], Any], receiver: Receiver) -> None:
    assert announced() == {"status": 200}
    [(method, body, key)] = receiver.received
    assert (method, key, body["id"], body["file"], body["bytes"]) == ("POST", "j1", "j1", "a.txt", 3)


@pytest.mark.parametrize("status", [400, 404, 410, 302])
def test_a_refused_job_dies_at_once(status: int, announced: Callable[[], Any], receiver: Receiver) -> None:
    receiver.status = status
    receiver.answer_headers = {"Location": receiver.url}
    with pytest.raises(fileq.Permanent, match=str(status)):
        announced()
    assert len(receiver.received) == 1, "a redirect is not followed"


@pytest.mark.parametrize("status", [429, 503])
def test_a_busy_server_chooses_the_delay_of_the_retry(
    status: int, announced: Callable[[], Any], receiver: Receiver
) -> None:
    def delay_s(**headers: str) -> float | None:
        receiver.answer_headers = {name.replace("_", "-"): value for name, value in headers.items()}
        with pytest.raises(fileq.Retry) as caught:
            announced()
        return caught.value.after_s

    receiver.status = status
    assert delay_s(Retry_After="120") == 120.0
    in_an_hour_s = delay_s(Retry_After=format_datetime(datetime.now(UTC) + timedelta(hours=1), usegmt=True))
    assert in_an_hour_s is not None
    assert 3500 < in_an_hour_s <= 3600
    assert delay_s(Retry_After="soon") is None
    assert delay_s() is None


def test_a_failing_or_unreachable_server_is_retried_after_the_usual_backoff(
    announced: Callable[[], Any], receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    receiver.status = 500
    with pytest.raises(RuntimeError, match="the server failed"):
        announced()
    monkeypatch.setenv("WEBHOOK_URL", "http://127.0.0.1:1/")
    with pytest.raises(urllib.error.URLError):
        announced()
