"""The content of an output pipe is parted from its marks, and lines become events within their limits."""

from __future__ import annotations

import os
import select
import sys
import tracemalloc
from contextlib import closing
from pathlib import Path

import pytest
from msgspec.structs import replace

from fileq.core.events import Event, HandlerOutputSkipped, HandlerPrinted
from fileq.core.job import ClaimKey
from fileq.core.outcome import Failed, Task
from fileq.handlers.output import Tail
from fileq.worker.executors.process.output_pipe import (
    HandlerStack,
    LoggedRecord,
    Mark,
    OutputPipe,
    OutputReader,
    OutputSplitter,
    TaskEnd,
    encode_end,
    encode_record,
    encode_stack,
    new_secret,
)
from fileq.worker.executors.task_output import LINES_A_SECOND, LONGEST_LINE, TaskOutput

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


def test_what_is_longer_than_any_mark_is_not_kept_for_its_end() -> None:
    content = SECRET + b"x" * 10_000
    assert b"".join(part for part in OutputSplitter(SECRET).feed(content) if isinstance(part, bytes)) == content


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


def test_a_long_line_and_a_long_record_are_reported_with_their_beginning() -> None:
    events: list[Event] = []
    output = TaskOutput(None, events.append)
    output.write(b"x" * 10_000 + b"\n")
    output.log("info", "a", "x" * 10_000)
    texts = [event.text for event in events if isinstance(event, HandlerPrinted)]
    assert texts == ["x" * LONGEST_LINE + "…"] * 2


def test_of_a_line_without_end_only_the_beginning_is_in_memory() -> None:
    output, block = TaskOutput(None, lambda event: None), b"x" * 100_000
    tracemalloc.start()
    try:
        for _ in range(100):
            output.write(block)
        assert tracemalloc.get_traced_memory()[0] < 5 * len(block)
    finally:
        tracemalloc.stop()


def test_a_tail_is_the_last_bytes_and_not_more() -> None:
    tail = Tail(10)
    for _ in range(4):
        tail.add(b"0123456")
    assert tail.text() == "…4560123456"


def test_after_the_end_of_a_child_a_process_that_goes_on_writing_is_not_read_for_ever(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    reads: list[int] = []
    with closing(OutputReader(lambda event: None)) as reader, closing(reader.open()) as output:

        def read_on(fd: int, size: int) -> bytes:
            reads.append(fd)
            assert len(reads) < 1000
            return b"x" * size

        monkeypatch.setattr(os, "read", read_on)
        output.end(1, reads=True)
    assert set(reads) == {output.fd}


def test_the_thread_does_not_read_the_output_of_a_child_with_several_tasks() -> None:
    task = Task(ClaimKey("slot", 1), b"", 0, b"", (), 1, 1.0)
    with closing(OutputReader(lambda event: None)) as reader, closing(reader.open()) as output:
        output.begin(task, is_alone=False)
        os.write(output.child_end, b"one\n" + encode_end(output.secret, 1) + b"two\n")
        assert output.read() == -1
        assert output.end(1, reads=True) == "one"
        output.begin(task, is_alone=True)
        assert output.end(2, reads=True) == "two"


def test_output_that_was_read_with_that_of_the_task_before_is_its_tasks_own() -> None:
    """The child found its pipe empty at the end of the second task, so the output of that task has no mark."""
    task = Task(ClaimKey("slot", 1), b"", 0, b"", (), 1, 1.0)
    failure, outputs = Failed("wrong", "ValueError"), []
    with closing(OutputReader(lambda event: None)) as reader, closing(reader.open()) as output:
        for number in (1, 2, 3, 4):
            output.begin(replace(task, key=ClaimKey("slot", number)), is_alone=number == 4)
            if number == 1:
                os.write(output.child_end, b"one\n" + encode_end(output.secret, 1) + b"two\n")
            ended = output.finish(failure, number, reads=number == 1, with_stack=True)
            assert isinstance(ended, Failed)
            outputs.append(ended.output)
    assert outputs == ["one", "two", "", ""]


def test_no_mark_is_written_into_a_file_that_took_the_place_of_the_pipe(tmp_path: Path) -> None:
    reader, fd = os.pipe()
    file = os.open(tmp_path / "file", os.O_WRONLY | os.O_CREAT)
    try:
        pipe = OutputPipe(fd, SECRET)
        pipe.log("info", "a", "to the pipe")
        assert b"to the pipe" in os.read(reader, 1000)
        os.dup2(file, fd)
        pipe.log("info", "a", "to no file")
    finally:
        for opened in (reader, fd, file):
            os.close(opened)
    assert (tmp_path / "file").read_bytes() == b""


def test_the_stack_of_a_handler_fits_into_one_write_and_is_no_output() -> None:
    long = "first\n" + "\x01 a frame\n" * 3000 + "last"
    mark = encode_stack(SECRET, long)
    assert len(mark) <= select.PIPE_BUF
    before, stack, after = parts_of(b"printed " + mark + b"more", 100)
    assert (before, after) == (b"printed ", b"more")
    assert isinstance(stack, HandlerStack)
    assert stack.text.startswith("first\n")
    assert stack.text.endswith("\nlast")


def test_a_child_that_runs_no_handler_reports_no_stack(tmp_path: Path) -> None:
    """The signal came when the task had just ended."""
    path = tmp_path / "pipe"
    with path.open("wb") as file:
        pipe = OutputPipe(file.fileno(), SECRET)
        pipe.report_stack(0, None)
        assert path.read_bytes() == b""
        pipe.report_stack(0, sys._getframe())
    [stack] = parts_of(path.read_bytes(), 4096)
    assert isinstance(stack, HandlerStack)
    assert "in test_a_child_that_runs_no_handler_reports_no_stack" in stack.text
