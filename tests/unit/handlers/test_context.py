"""What a handler is given: every field of its job, a path for open(), its context, a log that never raises."""

from __future__ import annotations

import io
import json
import sys
import threading
import time
from datetime import UTC, datetime, timedelta

import msgspec
import pytest

from fileq.core.job import Job, decode, encode, file_job, typed_job
from fileq.handlers.context import Context, JobView, LazyEvent, view_of

NOW = datetime(2026, 11, 16, 3, 25, tzinfo=UTC)


def file_view(path: bytes = b"/data/a.pdf") -> JobView:
    return view_of(decode(encode(file_job(path, size=5, priority="high", now=NOW, id="j1"))), path)


def context_of(view: JobView, timeout_s: float = 60.0) -> Context:
    return Context(view, cancelled=threading.Event(), attempt=2, timeout_s=timeout_s)


def test_the_view_has_every_field_of_the_job_but_those_that_only_workers_use() -> None:
    only_workers = {"\x7f", "file_inode", "breaker_probe", "attempts_before"}
    wire = {field.encode_name for field in msgspec.structs.fields(Job)} - only_workers
    assert wire | {"path"} == set(JobView.__struct_fields__)


def test_the_view_shows_the_jobs_own_values() -> None:
    job = file_job(b"/data/a.pdf", size=5, priority="high", now=NOW, signature="5-1", id="j1").but(retries=2, error="x")
    view = view_of(job, b"/mnt/a.pdf")
    assert (view.path, view.filepath, view.id, view.filesize) == ("/mnt/a.pdf", "/data/a.pdf", "j1", 5)
    assert (view.retries, view.error, view.signature, view.payload, view.type) == (2, "x", "5-1", None, None)


def test_the_path_of_a_name_that_is_not_utf8_can_be_encoded_to_its_bytes_again() -> None:
    view = file_view(b"/data/\xff\n.pdf")
    assert view.path == "/data/\udcff\n.pdf"
    assert view.filepath == "/data/\\xff\n.pdf"


def test_the_payload_is_decoded_and_a_job_without_a_file_has_no_path() -> None:
    view = view_of(typed_job("mail", {"to": ["a"]}, priority="low", now=NOW), b"")
    assert (view.type, view.payload, view.path) == ("mail", {"to": ["a"]}, "")


def test_a_handler_cannot_change_its_job() -> None:
    with pytest.raises(AttributeError):
        file_view().path = "/etc/passwd"  # type: ignore[misc]


def test_the_deadline_is_an_aware_datetime_and_the_time_left_runs_out() -> None:
    context = context_of(file_view(), timeout_s=60.0)
    assert timedelta(seconds=59) < context.deadline - datetime.now(UTC) <= timedelta(seconds=60)
    assert context.deadline == context.deadline
    assert 59 < context.time_left <= 60
    assert context_of(file_view(), timeout_s=0.0).time_left == 0.0


@pytest.mark.parametrize(("timeout_s", "at_most"), [(-5.0, 0.0), (1e300, 36_500 * 86_400.0)])
def test_a_timeout_out_of_bounds_is_limited(timeout_s: float, at_most: float) -> None:
    assert context_of(file_view(), timeout_s).timeout_s == at_most


def test_the_log_without_set_up_is_one_line_of_json_on_stderr(monkeypatch: pytest.MonkeyPatch) -> None:
    stderr = io.StringIO()
    monkeypatch.setattr(sys, "stderr", stderr)
    monkeypatch.delitem(sys.modules, "structlog", raising=False)
    log = context_of(file_view()).log
    log.info("page.read", page=3, path="/data/\udcff\n", shown=object())
    log.bind(page=4).warning("page.odd")
    log.debug("page.seen")
    try:
        raise ValueError("x")
    except ValueError:
        log.exception("page.failed")
    first, second, third = map(json.loads, stderr.getvalue().splitlines())
    assert first.pop("timestamp").endswith("Z")
    assert first.pop("shown").startswith("<object")
    assert first == {
        "job_id": "j1",
        "filepath": "/data/a.pdf",
        "attempt": 2,
        "page": 3,
        "path": "/data/\udcff\n",
        "event": "page.read",
        "level": "info",
    }
    assert (second["event"], second["page"], second["level"]) == ("page.odd", 4, "warning")
    assert third["level"] == "error"
    assert third["exception"].endswith("ValueError: x")


def test_the_log_carries_the_trace_of_its_job(monkeypatch: pytest.MonkeyPatch) -> None:
    stderr = io.StringIO()
    monkeypatch.setattr(sys, "stderr", stderr)
    monkeypatch.delitem(sys.modules, "structlog", raising=False)
    job = file_job(b"/a", size=0, priority="low", now=NOW).but(trace_id="a" * 32, span_id="b" * 16)
    context_of(view_of(job, b"/a")).log.error("x")
    line = json.loads(stderr.getvalue())
    assert (line["trace_id"], line["span_id"]) == ("a" * 32, "b" * 16)


@pytest.mark.parametrize("stderr", [None, "closed"])
def test_a_log_that_cannot_be_written_is_no_error(stderr: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    closed = io.StringIO()
    closed.close()
    monkeypatch.setattr(sys, "stderr", closed if stderr else None)
    monkeypatch.delitem(sys.modules, "structlog", raising=False)
    context_of(file_view()).log.info("x")


def test_time_left_is_computed_at_each_access(monkeypatch: pytest.MonkeyPatch) -> None:
    now_s = 100.0
    monkeypatch.setattr(time, "monotonic", lambda: now_s)
    context = context_of(file_view(), timeout_s=10.0)
    now_s = 104.0
    assert context.time_left == 6.0


def test_a_lazy_event_behaves_as_an_event() -> None:
    event = LazyEvent()
    assert not event.is_set()
    assert not event.wait(0)
    event.set()
    assert event.is_set()
    assert event.wait()


def test_a_lazy_event_that_was_set_before_the_first_wait_does_not_block_it() -> None:
    event = LazyEvent()
    event.set()
    assert event.wait()


def test_a_lazy_event_wakes_all_waiting_threads() -> None:
    event = LazyEvent()
    woken: list[bool] = []
    waiting = [threading.Thread(target=lambda: woken.append(event.wait(30))) for _ in range(3)]
    for thread in waiting:
        thread.start()
    event.set()
    for thread in waiting:
        thread.join()
    assert woken == [True] * 3
