"""The lines of `fileq events`: they fit the terminal, and nothing is cut elsewhere."""

from __future__ import annotations

import msgspec
import pytest

from fileq.brokers.types import WireEvent
from fileq.cli.follow_events import event_line
from fileq.cli.terminal import columns

PATH = "/srv/inbox/2026/november/customers/4711/invoices/scan-0001.pdf"
ERROR = f"ValueError: {'word ' * 60}(at invoices.py:12 in read)"


def line(width: int | None = None, *, path: str = PATH, type: str | None = None, error: str = ERROR) -> str:
    event = WireEvent("job:failed", "2f6c1d0e-aaaa-4bbb-8ccc-0123456789ab", type, "low", "w1", 12, error, 1, path, 1000)
    encoded = msgspec.json.encode(event)
    return event_line(encoded) if width is None else event_line(encoded, width)


def test_without_a_width_nothing_is_cut() -> None:
    assert line() == f"00:00:01Z job:failed    {PATH} queue=low duration=12ms failures=1 id=2f6c1d0e error={ERROR}"


@pytest.mark.parametrize("width", [80, 100, 132])
@pytest.mark.parametrize("path", [PATH, "", "/data/" + "a" * 300, "/数据/" + "発票" * 80, "/a.pdf"])
@pytest.mark.parametrize("error", ["", "short", ERROR, "エラー" * 90])
@pytest.mark.parametrize("type", [None, "invoice" * 20])
def test_a_line_fits_the_terminal(width: int, path: str, error: str, type: str | None) -> None:
    assert columns(line(width, path=path, type=type, error=error)) <= width


def test_the_queue_goes_first_then_directories_then_the_middle_of_the_error() -> None:
    head, facts = "00:00:01Z job:failed   ", "duration=12ms failures=1 id=2f6c1d0e"
    assert line(140, error="") == f"{head} {PATH} queue=low {facts}"
    assert line(125, error="") == f"{head} {PATH} {facts}"
    assert line(100, error="") == f"{head} …/customers/4711/invoices/scan-0001.pdf {facts}"
    assert line(80, error="") == f"{head} …/scan-0001.pdf {facts}"
    assert line(80, error="short") == f"{head} …/scan-0001.pdf failures=1 id=2f6c1d0e error=short"
    error = "error=ValueError: word word word….py:12 in read)"
    assert line(100) == f"{head} …/scan-0001.pdf id=2f6c1d0e {error}"


def test_a_deferred_job_has_a_reason_and_no_error() -> None:
    event = WireEvent("job:deferred", "a", None, "low", "w1", 0, "the breaker is open", 0, "/a.pdf", 1000)
    assert event_line(msgspec.json.encode(event)).endswith("id=a reason=the breaker is open")
    assert event_line(msgspec.json.encode(event), 54).endswith("id=a reason=the b… open")
