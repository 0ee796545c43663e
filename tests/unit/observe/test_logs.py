"""Log lines: one per event; no value breaks the line or controls the terminal."""

from __future__ import annotations

import contextlib
import io
import json
import re
import select
import sys
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from typing import Any

import pytest
import structlog

from fileq.core.events import (
    BreakerOpened,
    BrokerRestored,
    Emit,
    Event,
    HandlerPrinted,
    JobClaimed,
    JobCompleted,
    JobDead,
    JobFailed,
    LoopFailed,
    RoleStarted,
    produced,
)
from fileq.core.job import file_job, typed_job
from fileq.observe.logs import Logs, set_up_logs
from tests.support.event_samples import end_event

SetUp = Callable[..., tuple[Emit, io.StringIO]]


class Happened(Event):
    name = "thing.happened"

    value: Any = None
    names: list[str] | None = None


class DebugHappened(Happened):
    level = "debug"


class WarningHappened(Happened):
    level = "warning"


class ErrorHappened(Happened):
    level = "error"


class NeverLogged(Happened):
    level = "none"


@pytest.fixture
def set_up(monkeypatch: pytest.MonkeyPatch) -> Iterator[SetUp]:
    def make(level: str = "info", form: str = "json") -> tuple[Emit, io.StringIO]:
        written = io.StringIO()
        monkeypatch.setattr(sys, "stderr", written)
        return set_up_logs(level, form), written

    yield make
    structlog.reset_defaults()


def only_line(written: io.StringIO) -> dict[str, Any]:
    [line] = written.getvalue().splitlines()  # also at U+2028 and the like
    found: dict[str, Any] = json.loads(line)
    return found


def test_a_line_has_event_level_time_and_fields(set_up: SetUp) -> None:
    emit, written = set_up()
    emit(WarningHappened(3, ["a", "b"]))
    line = only_line(written)
    assert datetime.fromisoformat(line.pop("timestamp")).tzinfo == UTC
    assert line == {"event": "thing.happened", "level": "warning", "value": 3, "names": ["a", "b"]}


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        ("two\nlines", "two\nlines"),
        ("\u2028\x85\x1b[31m", "\u2028\x85\x1b[31m"),
        ("bytes \udcff", "bytes \\udcff"),
        (b"\xff", "b'\\xff'"),
        ({1: {2, 3}}, {"1": [2, 3]}),
        (float("nan"), None),
        (ValueError("x"), "x"),
        (2**70, 2**70),
    ],
)
def test_any_value_of_a_field_gives_one_line_of_ascii(set_up: SetUp, value: Any, shown: Any) -> None:
    emit, written = set_up()
    emit(Happened(value))
    assert written.getvalue().isascii()
    found = only_line(written)["value"]
    assert found == shown or str(found) in (str(value), "/w==")  # a set, bytes: readable is enough


@pytest.mark.parametrize(
    ("least", "written_levels"),
    [
        ("debug", ["debug", "info", "warning", "error"]),
        ("info", ["info", "warning", "error"]),
        ("warn", ["warning", "error"]),
        ("error", ["error"]),
    ],
)
def test_lines_below_the_level_are_not_written_and_none_never(
    set_up: SetUp, least: str, written_levels: list[str]
) -> None:
    emit, written = set_up(least)
    for kind in (NeverLogged, DebugHappened, Happened, WarningHappened, ErrorHappened):
        emit(kind())
    assert [json.loads(line)["level"] for line in written.getvalue().splitlines()] == written_levels


@pytest.mark.parametrize("form", ["json", "console"])
def test_an_event_is_the_line_that_structlog_would_write(set_up: SetUp, form: str) -> None:
    job = typed_job("t", None, priority="low", now=datetime.now(UTC), id="x").but(trace_id="t", span_id="s")
    error = ValueError("of no use")
    events = [produced(job, "low"), WarningHappened("\u2028\udcff", ["é"]), LoopFailed("tests", "it failed", error)]
    emit, written = set_up(form=form)
    for event in events:
        emit(event)
    ours, log = written.getvalue(), structlog.get_logger()
    written.truncate(written.seek(0))
    log.info("job.produced", job_id="x", type="t", trace_id="t", span_id="s", queue="low")
    log.warning("thing.happened", value="\u2028\udcff", names=["é"])
    log.error("loop.failed", loop="tests", error="it failed", exc_info=error)
    times = re.compile(r"\d\d:\d\d:\d\d(\.\d+)?Z")
    assert times.sub("", ours) == times.sub("", written.getvalue())


class Writes(io.StringIO):
    """Keeps what was written before each flush."""

    def __init__(self) -> None:
        super().__init__()
        self.flushed: list[str] = []

    def flush(self) -> None:
        self.flushed.append(self.getvalue())
        self.truncate(self.seek(0))


def test_events_that_come_together_are_written_together_in_pieces_that_a_pipe_takes_whole(
    set_up: SetUp, monkeypatch: pytest.MonkeyPatch
) -> None:
    logs, _ = set_up()
    writes = Writes()
    monkeypatch.setattr(sys, "stderr", writes)
    assert isinstance(logs, Logs)
    logs.write([Happened(number) for number in range(100)])
    assert 1 < len(writes.flushed) < 10
    assert all(len(text) <= select.PIPE_BUF and text.endswith("}\n") for text in writes.flushed)
    assert [json.loads(line)["value"] for line in "".join(writes.flushed).splitlines()] == list(range(100))
    writes.flushed.clear()
    logs.write([Happened(1), Happened("x" * select.PIPE_BUF), Happened(2)])
    assert [len(text.splitlines()) for text in writes.flushed] == [1, 1, 1]
    logs.write([])
    assert len(writes.flushed) == 3


def test_a_line_that_is_not_ascii_counts_by_its_bytes(set_up: SetUp, monkeypatch: pytest.MonkeyPatch) -> None:
    logs, _ = set_up(form="console")
    writes = Writes()
    monkeypatch.setattr(sys, "stderr", writes)
    assert isinstance(logs, Logs)
    logs.write([Happened("é" * (select.PIPE_BUF // 4)), Happened("é" * (select.PIPE_BUF // 4))])
    assert len(writes.flushed) == 2


def test_a_job_is_written_as_its_ids(set_up: SetUp) -> None:
    emit, written = set_up()
    job = typed_job("t", None, priority="low", now=datetime.now(UTC), id="x").but(trace_id="t", span_id="s")
    emit(produced(job, "low"))
    line = only_line(written)
    assert (line["job_id"], line["trace_id"], line["span_id"]) == ("x", "t", "s")
    assert "job" not in line
    emit, written = set_up("debug")
    emit(JobClaimed("raw-1", None, None, "", "", "low", "slot", None, None))
    assert "job" not in only_line(written)


def test_a_console_line_leaves_out_empty_trace_ids(set_up: SetUp) -> None:
    job = typed_job("t", None, priority="low", now=datetime.now(UTC), id="x")
    emit, written = set_up(form="console")
    emit(produced(job, "low"))
    assert "trace_id" not in written.getvalue()
    assert "span_id" not in written.getvalue()
    emit(produced(job.but(trace_id="ab", span_id="cd"), "low"))
    assert "trace_id=ab" in written.getvalue()
    emit, written = set_up()
    emit(produced(job, "low"))
    assert (only_line(written)["trace_id"], only_line(written)["span_id"]) == ("", "")


def fail_with_a_secret(emit: Emit, password: str) -> None:
    try:
        raise ValueError("of no use")
    except ValueError as error:
        emit(LoopFailed("tests", repr(error), error))


@pytest.mark.parametrize("form", ["json", "console"])
def test_a_traceback_shows_no_variables(set_up: SetUp, form: str) -> None:
    emit, written = set_up(form=form)
    fail_with_a_secret(emit, "hunter2")
    assert "ValueError: of no use" in written.getvalue()
    assert "hunter2" not in written.getvalue()


def test_on_a_console_nothing_breaks_a_line_or_moves_the_cursor(set_up: SetUp) -> None:
    emit, written = set_up(form="console")
    emit(Happened("two\nlines\x1b[2J\udcff\u2028\x9b2J"))
    [line] = written.getvalue().splitlines()
    assert line.isprintable()
    assert "two\\nlines\\x1b[2J\\xff\\u2028\\x9b2J" in line


def test_auto_writes_json_when_stderr_is_not_a_terminal(set_up: SetUp) -> None:
    emit, written = set_up(form="auto")
    emit(Happened())
    assert only_line(written)["event"] == "thing.happened"


@pytest.mark.parametrize("form", ["json", "console", "auto"])
def test_a_line_that_cannot_be_written_raises_nothing(
    set_up: SetUp, monkeypatch: pytest.MonkeyPatch, form: str
) -> None:
    emit, written = set_up(form=form)
    written.close()
    emit(Happened())
    with contextlib.suppress(OSError), open("/dev/full", "w") as full:
        monkeypatch.setattr(sys, "stderr", full)
        emit(Happened())
    monkeypatch.setattr(sys, "stderr", None)
    set_up_logs("info", form)(Happened())


def test_a_console_line_names_the_file_first_and_shortens_long_values(set_up: SetUp) -> None:
    emit, written = set_up(form="console")
    path = f"/data/{'d' * 100}/2026/scan-12.pdf".encode()
    job = file_job(path, size=1, priority="low", now=datetime.now(UTC), id="1a2b3c4d-0000-4000-8000-000000000000")
    emit(produced(job, "low"))
    emit(RoleStarted("/data", "sqlite", 3, ["app:first", "app:second", "app:third"], ["worker"]))
    file_line, start_line = written.getvalue().splitlines()
    assert re.fullmatch(r"\d\d:\d\d:\d\dZ info    job\.produced  …/2026/scan-12\.pdf id=1a2b3c4d", file_line)
    assert start_line.endswith(" role.started  /data broker=sqlite handlers=app:first,app:second,+1")


@pytest.mark.parametrize("length", range(10, 46, 7))
def test_what_a_handler_printed_fits_the_line_as_long_as_something_else_can_be_left_out(
    set_up: SetUp, length: int
) -> None:
    emit, written = set_up(form="console")
    path = f"/data/{'d' * 30}/2026/scan-12.pdf"
    text = "page " + "7" * (length - 5)
    emit(HandlerPrinted("1a2b3c4d-0000-4000-8000-000000000000", path, None, "", "", "slot-1", text, logger="pdf"))
    [line] = written.getvalue().splitlines()
    assert len(line) <= 100, line
    assert line.endswith(f'text="{text}"')
    assert "scan-12.pdf" in line


def test_a_long_line_of_a_handler_is_complete_and_keeps_its_id(set_up: SetUp) -> None:
    emit, written = set_up(form="console")
    emit(HandlerPrinted("1a2b3c4d-0000-4000-8000-000000000000", "/in/a", None, "", "", "slot-1", "x" * 200))
    [line] = written.getvalue().splitlines()
    assert line.endswith(f" /in/a id=1a2b3c4d text={'x' * 200}")


def test_an_error_fits_the_line_as_long_as_details_can_be_left_out(set_up: SetUp) -> None:
    emit, written = set_up(form="console")
    ids = ("1a2b3c4d-0000-4000-8000-000000000000", "/in/2026/scan-12.pdf", None, "", "")
    for error in ("not a PDF", "x" * 200):
        emit(JobFailed(*ids, "low", "slot-1", 1234, f"Permanent: {error}", 5000))
    short, long = written.getvalue().splitlines()
    assert len(short) <= 100
    assert short.endswith(' job.failed    …/scan-12.pdf delay=5.0s id=1a2b3c4d error="Permanent: not a PDF"')
    assert " /in/2026/scan-12.pdf queue=low duration=1.2s delay=5.0s id=1a2b3c4d error=" in long


@pytest.mark.parametrize("length", range(10, 200, 19))
def test_the_line_of_a_dead_job_keeps_its_id(set_up: SetUp, length: int) -> None:
    emit, written = set_up(form="console")
    path = f"/data/{'d' * length}/{'n' * length}.pdf"
    ids = ("1a2b3c4d-0000-4000-8000-000000000000", path, None, "", "")
    emit(JobDead(*ids, "low", "slot-1", 1234, f"Permanent: {'x' * length}", is_failure=True))
    assert " id=1a2b3c4d " in written.getvalue()


def test_held_output_is_written_only_with_an_attempt_that_failed(set_up: SetUp) -> None:
    emit, written = set_up(form="console")
    assert isinstance(emit, Logs)
    emit.hold_output()
    ended = {"good": JobCompleted, "bad": JobFailed}
    for id, kind in ended.items():
        emit(HandlerPrinted(id, f"/in/{id}", None, "", "", "slot-1", f"text of {id}"))
        emit(HandlerPrinted(id, f"/in/{id}", None, "", "", "slot-1", f"care with {id}", "warning", "parser"))
        emit(end_event(kind, id))
    events = [line.split()[2:] for line in written.getvalue().splitlines()]
    assert [(event[0], "text of" in " ".join(event)) for event in events] == [
        ("handler.printed", False),
        ("job.completed", False),
        ("handler.printed", False),
        ("handler.printed", True),
        ("job.failed", False),
    ]
    emit(HandlerPrinted(None, None, None, None, None, None, "between two jobs"))
    assert "between two jobs" in written.getvalue()


def test_seconds_are_written_as_every_duration(set_up: SetUp) -> None:
    emit, written = set_up(form="console")
    emit(BrokerRestored(8.049))
    assert written.getvalue().endswith(" broker.restored duration=8.0s\n")
    emit(BreakerOpened("closed", "**/*.pdf", "OSError", 1.0, 30.0))
    assert " next_probe=30.0s error=OSError" in written.getvalue()
