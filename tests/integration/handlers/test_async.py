"""Coroutines as handlers: one event loop runs all of them, keeps running between jobs, and survives their errors."""

from __future__ import annotations

import asyncio
import contextlib
import sys
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest

from fileq.core.errors import Permanent
from fileq.core.outcome import Done, Failed, Ran
from fileq.handlers import event_loop
from fileq.handlers.event_loop import own_threads
from fileq.handlers.routes import Routes
from fileq.handlers.run import run_task
from tests.support.handler_runs import failure, routes_of, run, typed_task
from tests.support.waiting import wait_until


async def answering(job: Any, context: Any) -> str:
    await asyncio.sleep(0)
    return f"{job.type} {context.attempt}"


@pytest.fixture
def opened() -> Iterator[list[Routes]]:
    routes: list[Routes] = []
    yield routes
    for one in routes:
        one.loop.close()


def test_a_coroutine_is_awaited() -> None:
    assert run(typed_task("t"), answering) == Done(b'"t 1"')


def test_a_coroutine_that_a_plain_function_returns_is_awaited_too() -> None:
    assert run(typed_task("t"), lambda job, context: answering(job, context)) == Done(b'"t 1"')


def test_an_exception_of_a_coroutine_names_the_handlers_lines() -> None:
    async def handler(job: Any, context: Any) -> None:
        await asyncio.sleep(0)
        raise ValueError("x")

    ended = failure(run(typed_task("t"), handler))
    assert ended.error.startswith("ValueError: x (at test_async.py:")
    assert ended.error.endswith(" in handler)")


def test_permanent_inside_a_task_group_is_a_permanent_failure() -> None:
    async def fails() -> None:
        raise Permanent("bad input")

    async def handler(job: Any, context: Any) -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(fails())

    assert failure(run(typed_task("t"), handler)).is_permanent


def test_one_loop_serves_all_jobs_and_keeps_running_between_them(opened: list[Routes]) -> None:
    seen: list[asyncio.AbstractEventLoop] = []
    ticked = threading.Event()

    async def handler(job: Any, context: Any) -> None:
        seen.append(asyncio.get_running_loop())
        if len(seen) == 1:
            asyncio.get_running_loop().call_later(0.05, ticked.set)

    routes = routes_of(handler)
    opened.append(routes)
    assert run_task(routes, typed_task("t"), threading.Event()) == Done()
    assert ticked.wait(10), "the loop does not run between jobs"
    assert run_task(routes, typed_task("t"), threading.Event()) == Done()
    assert seen[0] is seen[1]


def test_coroutines_of_many_threads_run_at_the_same_time(opened: list[Routes]) -> None:
    present: list[int] = []

    async def handler(job: Any, context: Any) -> int:
        present.append(1)
        while len(present) < 16:
            await asyncio.sleep(0.001)
        return len(present)

    routes = routes_of(handler)
    opened.append(routes)
    outcomes: list[Ran] = []
    threads = [
        threading.Thread(target=lambda: outcomes.append(run_task(routes, typed_task("t"), threading.Event())))
        for _ in range(16)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert outcomes == [Done(b"16")] * 16


def test_a_coroutine_is_stopped_at_its_timeout() -> None:
    cleaned = threading.Event()

    async def handler(job: Any, context: Any) -> None:
        try:
            await asyncio.sleep(600)
        finally:
            cleaned.set()

    ended = run(typed_task("t", timeout_s=0.1), handler)
    assert isinstance(ended, Failed)
    assert (ended.error, ended.kind) == ("timed out after 100ms", "Timeout")
    assert "await asyncio.sleep(600)" in ended.traceback
    assert cleaned.is_set()


def test_a_timeout_error_of_the_handler_is_not_the_timeout_of_the_attempt() -> None:
    async def handler(job: Any, context: Any) -> None:
        async with asyncio.timeout(0.01):
            await asyncio.sleep(600)

    assert failure(run(typed_task("t"), handler)).kind == "TimeoutError"


def test_a_cancelled_coroutine_gets_cancelled_error_and_may_clean_up() -> None:
    cancelled, cleaned = threading.Event(), threading.Event()

    async def handler(job: Any, context: Any) -> None:
        context.cancelled.set()
        try:
            await asyncio.sleep(600)
        except asyncio.CancelledError:
            await asyncio.sleep(0.01)
            cleaned.set()
            raise

    started_s = time.monotonic()
    assert failure(run(typed_task("t"), handler, cancelled=cancelled)).kind == "CancelledError"
    assert cleaned.is_set()
    assert time.monotonic() - started_s < 5


@pytest.mark.parametrize("error", [SystemExit(1), KeyboardInterrupt(), GeneratorExit(), RecursionError()])
def test_the_loop_keeps_running_whatever_a_coroutine_raises(error: BaseException, opened: list[Routes]) -> None:
    async def handler(job: Any, context: Any) -> int:
        if context.attempt == 1:
            raise error
        return 2

    routes = routes_of(handler)
    opened.append(routes)
    ended = failure(run_task(routes, typed_task("t"), threading.Event()))
    assert ended.kind == type(error).__name__
    assert run_task(routes, typed_task("t", attempt=2), threading.Event()) == Done(b"2")


def test_a_task_left_on_the_loop_that_exits_does_not_stop_the_loop(opened: list[Routes]) -> None:
    left: list[asyncio.Task[None]] = []

    async def exits() -> None:
        sys.exit(1)

    async def handler(job: Any, context: Any) -> int:
        if context.attempt == 1:
            left.append(asyncio.get_running_loop().create_task(exits()))
        return context.attempt  # type: ignore[no-any-return]

    routes = routes_of(handler)
    opened.append(routes)
    assert run_task(routes, typed_task("t"), threading.Event()) == Done(b"1")
    wait_until(lambda: left[0].done())
    assert run_task(routes, typed_task("t", attempt=2), threading.Event()) == Done(b"2")
    with pytest.raises(SystemExit):
        left[0].result()


def test_a_task_that_a_job_of_a_child_left_is_cancelled_before_the_next_job(opened: list[Routes]) -> None:
    left: list[asyncio.Task[None]] = []

    async def handler(job: Any, context: Any) -> bool:
        if context.attempt == 1:
            left.append(asyncio.get_running_loop().create_task(asyncio.sleep(600)))
            await asyncio.sleep(0)
        return left[0].cancelled()

    routes = routes_of(handler)
    routes.loop.ends_left_tasks = True
    opened.append(routes)
    assert run_task(routes, typed_task("t"), threading.Event()) == Done(b"false")
    assert run_task(routes, typed_task("t", attempt=2), threading.Event()) == Done(b"true")
    assert [thread.name for thread in own_threads() if thread.is_alive()] == ["async"]


def test_a_loop_with_a_task_that_does_not_end_is_reported(
    opened: list[Routes], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(event_loop, "_CLOSE_TIMEOUT_S", 0.05)
    may_end = asyncio.Event()

    async def lingering() -> None:
        while not may_end.is_set():
            with contextlib.suppress(asyncio.CancelledError):
                await may_end.wait()

    async def handler(job: Any, context: Any) -> None:
        kept.append(asyncio.get_running_loop().create_task(lingering()))
        await asyncio.sleep(0)

    kept: list[asyncio.Task[None]] = []
    routes = routes_of(handler)
    routes.loop.ends_left_tasks = True
    opened.append(routes)
    assert run_task(routes, typed_task("t"), threading.Event()) == Done()
    assert [thread for thread in own_threads() if thread.is_alive()] == []
    kept[0].get_loop().call_soon_threadsafe(may_end.set)


def test_closing_cancels_the_tasks_left_on_the_loop_and_can_be_done_twice() -> None:
    ended = threading.Event()

    async def lingering() -> None:
        try:
            await asyncio.sleep(600)
        finally:
            ended.set()

    kept: list[asyncio.Task[None]] = []

    async def handler(job: Any, context: Any) -> None:
        kept.append(asyncio.get_running_loop().create_task(lingering()))
        await asyncio.sleep(0)

    routes = routes_of(handler)
    routes.loop.close()
    assert run_task(routes, typed_task("t"), threading.Event()) == Done()
    routes.loop.close()
    assert ended.is_set()
    routes.loop.close()
    assert not [thread for thread in threading.enumerate() if thread.name == "async"]
