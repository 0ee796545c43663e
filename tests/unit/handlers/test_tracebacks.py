"""The traceback of a failed attempt: the user's frames, causes and groups, bounded."""

from __future__ import annotations

import asyncio
import json
import re
import threading
from collections.abc import Awaitable, Callable
from contextlib import closing
from datetime import UTC, datetime
from typing import Any

import pytest

from fileq.core.errors import Permanent
from fileq.core.job import typed_job
from fileq.handlers.context import Context, view_of
from fileq.handlers.event_loop import EventLoop
from fileq.handlers.outcomes import CommandFailed, TimedOut, failed
from fileq.handlers.tracebacks import LONGEST_TRACEBACK, cut_middle, place_of


def failure_of(function: object) -> str:
    try:
        function()  # type: ignore[operator]
    except BaseException as error:
        return failed(error).traceback
    raise AssertionError("it raised nothing")


def read_number(secret: str = "hunter2") -> object:
    return json.loads("{")


def wrap() -> None:
    try:
        read_number()
    except ValueError as error:
        raise Permanent("not a number") from error


def test_the_frames_of_the_handler_and_its_libraries_are_shown_without_values() -> None:
    text = failure_of(read_number)
    assert "in read_number" in text
    assert 'return json.loads("{")' in text
    assert "json/decoder.py" in text
    assert text.splitlines()[-1].startswith("json.decoder.JSONDecodeError: ")
    assert "hunter2" not in re.sub(r"def .*", "", text)


def test_causes_and_contexts_are_shown() -> None:
    text = failure_of(wrap)
    assert "in read_number" in text
    assert "direct cause" in text
    assert text.splitlines()[-1] == "fileq.Permanent: not a number"


def test_members_of_an_exception_group_are_shown_and_asyncio_is_not() -> None:
    async def fail(word: str) -> None:
        raise KeyError(word)

    async def both() -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(fail("first"))
            group.create_task(fail("second"))

    text = failure_of(lambda: asyncio.run(both()))
    assert "KeyError: 'first'" in text
    assert "KeyError: 'second'" in text
    assert "in both" in text


def test_an_error_without_a_frame_of_the_user_has_no_traceback() -> None:
    assert failed(ValueError("never raised")).traceback == ""
    assert failed(TimedOut(3.0)).traceback == ""
    assert failed(CommandFailed("exit 3", 3)).traceback == ""


def test_an_exception_that_cannot_be_shown_is_still_a_failure() -> None:
    class Odd(Exception):
        def __str__(self) -> str:
            raise RuntimeError("no")

    def fail() -> None:
        raise Odd

    assert "in fail" in failure_of(fail)


def test_a_long_traceback_loses_its_middle() -> None:
    def fail() -> None:
        raise ValueError("begin " + "ü\udcff" * 50_000 + " end")

    text = failure_of(fail)
    assert len(text.encode()) <= LONGEST_TRACEBACK
    assert text.startswith("Traceback (most recent call last)")
    assert text.endswith(" end")
    assert "bytes or more were cut" in text


def test_a_text_of_the_longest_size_is_not_cut() -> None:
    assert cut_middle("x" * 100, 100) == "x" * 100
    assert len(cut_middle("x" * 101, 100)) <= 100


def test_a_timeout_says_where_the_coroutine_was_also_if_the_cancellation_is_only_its_context(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class EarlyTimeout(asyncio.Timeout):
        """As in Python 3.11.2."""

        async def __aexit__(self, *raised: Any) -> bool | None:
            try:
                return await super().__aexit__(*raised)
            except TimeoutError as error:
                error.__cause__ = None
                raise

    async def asleep() -> None:
        await asyncio.sleep(60)

    def timeout(delay_s: float) -> asyncio.Timeout:
        return EarlyTimeout(asyncio.get_running_loop().time() + delay_s)

    monkeypatch.setattr(asyncio, "timeout", timeout)
    view = view_of(typed_job("t", None, priority="low", now=datetime.now(UTC)), b"", None)
    context = Context(view, cancelled=threading.Event(), attempt=1, timeout_s=0.01)
    with closing(EventLoop()) as loop:
        text = failure_of(lambda: loop.run(asleep, context))
    assert text.splitlines()[0] == "Stack at the timeout (most recent call last):"
    assert "in asleep" in text


def places_of(inner: Callable[[threading.Event, threading.Event], Awaitable[None]]) -> tuple[str, str]:
    """Where a coroutine is that a thread waits for, and where the thread is when it has ended."""
    view = view_of(typed_job("t", None, priority="low", now=datetime.now(UTC)), b"", None)
    context = Context(view, cancelled=threading.Event(), attempt=1, timeout_s=60.0)
    begun, may_end, ended, may_leave = (threading.Event() for _ in range(4))

    async def outer() -> None:
        await inner(begun, may_end)

    def run() -> None:
        loop.run(outer, context)
        ended.set()
        may_leave.wait()

    with closing(EventLoop()) as loop:
        thread = threading.Thread(target=run)
        thread.start()
        assert begun.wait(20)
        during = place_of(thread.ident)
        may_end.set()
        assert ended.wait(20)
        after = place_of(thread.ident)
        may_leave.set()
        thread.join()
    return during, after


def test_the_place_of_a_coroutine_is_that_of_what_it_awaits() -> None:
    async def awaiting(begun: threading.Event, may_end: threading.Event) -> None:
        waiter = asyncio.get_running_loop().run_in_executor(None, may_end.wait)
        asyncio.get_running_loop().call_soon(begun.set)
        await waiter

    during, after = places_of(awaiting)
    assert re.findall(r" in (\w+)", during) == ["outer", "awaiting"]
    assert during.endswith("await waiter")
    assert "awaiting" not in after


def test_the_place_of_a_coroutine_that_does_not_await_is_in_the_thread_of_its_loop() -> None:
    async def blocking(begun: threading.Event, may_end: threading.Event) -> None:
        begun.set()
        may_end.wait()

    during, after = places_of(blocking)
    assert re.findall(r" in (\w+)\n", during)[:2] == ["outer", "blocking"]
    assert "blocking" not in after
