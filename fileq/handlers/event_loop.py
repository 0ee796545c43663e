"""One event loop for the async handlers of a process, in a thread of its own, so that it goes on between jobs.

Started by the first coroutine, hence in the child that runs it and not in the process that forked it.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import threading
from collections.abc import Awaitable, Callable
from typing import Any

from fileq.handlers.context import Context
from fileq.handlers.outcomes import TimedOut

_LOOK_EVERY_S = 0.05  # how soon a cancellation reaches a coroutine
_LAST_WORDS_S = 1.0  # for what is still on the loop when it closes


class EventLoop:
    """Runs coroutines for any number of threads at the same time."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._is_closing = False

    def run(self, start: Callable[[], Awaitable[Any]], context: Context) -> Any:
        """What the coroutine returns or raises. Cancelled, it gets CancelledError at its next await; past its
        deadline too, and that ends as TimedOut."""
        loop = self._started()
        tasks: list[asyncio.Task[Any]] = []
        future = asyncio.run_coroutine_threadsafe(_watched(start, context, tasks), loop)
        while True:
            try:
                value, error = future.result(_LOOK_EVERY_S)
                break
            except concurrent.futures.TimeoutError:
                if tasks and context.cancelled.is_set():
                    loop.call_soon_threadsafe(tasks.pop().cancel)
        if error is not None:
            raise error
        return value

    def close(self) -> None:
        """Cancels what still runs and ends the thread. May be called twice, and before anything ran."""
        with self._lock:
            loop, thread = self._loop, self._thread
            self._loop = self._thread = None
            self._is_closing = True
        if loop is None or thread is None:
            return
        loop.call_soon_threadsafe(loop.stop)
        thread.join()

    def _started(self) -> asyncio.AbstractEventLoop:
        with self._lock:
            if self._loop is None:
                self._is_closing = False
                self._loop = asyncio.new_event_loop()
                self._thread = threading.Thread(target=self._turn, args=(self._loop,), name="async", daemon=True)
                self._thread.start()
            return self._loop

    def _turn(self, loop: asyncio.AbstractEventLoop) -> None:
        asyncio.set_event_loop(loop)
        while not self._is_closing:
            try:
                loop.run_forever()
            except (SystemExit, KeyboardInterrupt):
                continue  # a task that a handler started, and asyncio lets these two through; others still run
        _cancel_all(loop)
        loop.close()


async def _watched(
    start: Callable[[], Awaitable[Any]], context: Context, tasks: list[asyncio.Task[Any]]
) -> tuple[Any, BaseException | None]:
    """Value or exception as a value: raised, a TimeoutError of the handler's own would be taken for that of our wait,
    and SystemExit would stop the loop."""
    own = asyncio.current_task()
    if own is not None:
        tasks.append(own)
    try:
        async with asyncio.timeout(context.time_left) as limit:
            return await start(), None
    except TimeoutError as error:
        return None, TimedOut(context.timeout_s) if limit.expired() else error
    except BaseException as error:
        return None, error


def _cancel_all(loop: asyncio.AbstractEventLoop) -> None:
    """What handlers left behind on the loop ends with it, if it heeds its cancellation."""
    for task in (tasks := asyncio.all_tasks(loop)):
        task.cancel()
    if tasks:
        loop.run_until_complete(asyncio.wait(tasks, timeout=_LAST_WORDS_S))
