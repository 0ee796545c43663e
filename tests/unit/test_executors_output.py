"""The content of an output pipe is parted from its marks, and lines become events within their limits."""

from __future__ import annotations

import pytest

from fileq.core.events import Event, HandlerOutputSkipped, HandlerPrinted
from fileq.worker.executors.process.output_marks import (
    LoggedRecord,
    Mark,
    OutputSplitter,
    TaskEnd,
    encode_end,
    encode_record,
    new_secret,
)
from fileq.worker.executors.task_output import LINES_A_SECOND, TaskOutput

SECRET = new_secret()
OTHER_SECRET = new_secret()


def parts_of(content: bytes, size: int) -> list[bytes | Mark]:
    """What comes out of the splitter, adjacent text joined, if each read brings `size` bytes."""
    splitter = OutputSplitter(SECRET)
    joined: list[bytes | Mark] = []
    for start in range(0, len(content), size):
        for part in splitter.feed(content[start : start + size]):
            if isinstance(part, bytes) and joined and isinstance(joined[-1], bytes):
                joined[-1] += part
            else:
                joined.append(part)
    return joined


@pytest.mark.parametrize("size", [1, 2, 7, 30, 10_000])
def test_marks_are_found_however_reads_cut_them(size: int) -> None:
    record = encode_record(SECRET, "error", "a.b", "line 1\nline 2 ü")
    content = b"a\nhalf" + record + b"\xff\x1e\x1e" + encode_end(SECRET, 7) + b"next\n"
    wanted = [b"a\nhalf", LoggedRecord("error", "a.b", "line 1\nline 2 ü"), b"\xff\x1e\x1e", TaskEnd(7), b"next\n"]
    assert parts_of(content, size) == wanted


@pytest.mark.parametrize("size", [1, 10_000])
def test_a_mark_without_the_secret_of_the_child_is_text(size: int) -> None:
    forged = encode_end(OTHER_SECRET, 7) + b"\x1e" + encode_end(b"", 7)
    assert parts_of(forged, size) == [forged]


def test_a_long_record_is_cut_so_that_the_kernel_writes_it_at_once() -> None:
    mark = encode_record(SECRET, "info", "x" * 1000, "\x00ü\udc80" * 5000)
    assert len(mark) <= 4096
    (record,) = parts_of(mark, 4096)
    assert isinstance(record, LoggedRecord)
    assert record.text.endswith("…")


class Clock:
    now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


def test_lines_are_reported_once_complete_and_the_rest_at_the_end() -> None:
    events: list[Event] = []
    output = TaskOutput(None, events.append, monotonic=Clock())
    for block in (b"on", b"e\n\ntwo\r\n 10%\r 20%\n", b"\xff\xfe", b" end"):
        output.write(block)
    texts = [event.text for event in events if isinstance(event, HandlerPrinted)]
    assert texts == ["one", "two", " 20%"]
    assert output.end() == "one\n\ntwo\r\n 10%\r 20%\n\ufffd\ufffd end"
    assert isinstance(events[-1], HandlerPrinted)
    assert events[-1].text == "\ufffd\ufffd end"


def test_more_lines_than_allowed_in_a_second_are_counted() -> None:
    events: list[Event] = []
    clock = Clock()
    output = TaskOutput(None, events.append, monotonic=clock)
    output.write(b"x\n" * (LINES_A_SECOND + 5))
    output.log("error", "a", "skipped too")
    clock.now_s = 1.0
    output.write(b"later\n")
    assert len(events) == LINES_A_SECOND + 2
    skipped, later = events[-2:]
    assert isinstance(skipped, HandlerOutputSkipped)
    assert skipped.lines == 6
    assert isinstance(later, HandlerPrinted)
    assert output.end().endswith("skipped too\nlater")


def test_the_tail_and_a_line_are_bounded_also_for_bytes_that_are_not_text() -> None:
    events: list[Event] = []
    output = TaskOutput(None, events.append)
    for _ in range(100):
        output.write(b"\xff" * 1000)
    tail = output.end()
    assert len(tail.encode()) <= 8192
    assert tail.startswith("…")
    (line,) = events
    assert isinstance(line, HandlerPrinted)
    assert len(line.text) <= 4097
