"""The event loop of a process's async handlers: one loop in a thread of its own, which keeps running between jobs.

Never started before the first coroutine runs: the fork server must stay without threads, and each child it forks
needs a thread and a loop of its own.

In a child, which runs one job at a time, the tasks that a job left on the loop are cancelled when the job ends.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import contextvars
import threading
import weakref
from collections.abc import Awaitable, Callable, Collection
from queue import Empty, SimpleQueue
from typing import Any, TypeAlias

from fileq.handlers.context import Context
from fileq.handlers.outcomes import TimedOut
from fileq.handlers.tracebacks import place_of_task, waits_for

_POLL_EVERY_S = 0.05  # the longest time until a cancellation reaches a coroutine
_CLOSE_TIMEOUT_S = 1.0  # for the tasks that are still on the loop when it closes, or when the job that left them ends

# What a coroutine wants to have called in the thread that waits for it; None when it has ended.
_Requests: TypeAlias = "SimpleQueue[Callable[[], None] | None]"
_requests: contextvars.ContextVar[_Requests] = contextvars.ContextVar("requests")

_own_threads: weakref.WeakSet[threading.Thread] = weakref.WeakSet()
_own_threads_lock = threading.Lock()


def own_threads() -> Collection[threading.Thread]:
    """The threads of event loops and of asyncio.to_thread(), which keep running between jobs. Without the thread of a
    loop on which a task does not end."""
    with _own_threads_lock:
        return tuple(_own_threads)


def _add_own_thread() -> None:
    with _own_threads_lock:
        _own_threads.add(threading.current_thread())


class EventLoop:
    """Runs coroutines for any number of threads at the same time. `ends_left_tasks` is for a process that runs one
    job at a time: the asyncio tasks that a job left are cancelled when it ends."""

    def __init__(self) -> None:
        self.ends_left_tasks = False
        self._lock = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._is_closing = False
        self._depth = 0  # how deep runs are nested: middleware on the loop may wait for a handler below it

    def run(self, start: Callable[[], Awaitable[Any]], context: Context) -> Any:
        """What the coroutine returns or raises. When it is cancelled or its deadline passes, it gets CancelledError at
        its next await. After the deadline the result is TimedOut."""
        loop = self._started()
        tasks: list[asyncio.Task[Any]] = []
        requests: _Requests = SimpleQueue()

        def find() -> str:
            thread = self._thread
            return place_of_task(tasks[0], loop, thread.ident) if tasks and thread is not None else ""

        waits_for(find)  # before it begins, so that its place is known from then on
        try:
            future = asyncio.run_coroutine_threadsafe(self._run_alone(start, context, tasks, requests), loop)
            future.add_done_callback(lambda _: requests.put(None))
            while True:
                try:
                    request = requests.get(timeout=_POLL_EVERY_S)
                except Empty:
                    if tasks and context.cancelled.is_set():
                        loop.call_soon_threadsafe(tasks.pop().cancel)
                    continue
                if request is None:
                    break
                waits_for(None)
                request()
                waits_for(find)
        finally:
            waits_for(None)
        value, error = future.result()
        if error is not None:
            raise error
        return value

    def close(self, timeout_s: float | None = None) -> None:
        """Cancel the running coroutines and end the thread. May be called twice, and before anything ran. With a
        timeout, a thread whose coroutine never awaits is left behind."""
        with self._lock:
            loop, thread = self._loop, self._thread
            self._loop = self._thread = None
            self._is_closing = True
        if loop is None or thread is None:
            return
        loop.call_soon_threadsafe(loop.stop)
        thread.join(timeout_s)

    def _started(self) -> asyncio.AbstractEventLoop:
        with self._lock:
            if self._loop is None:
                self._is_closing = False
                self._loop = asyncio.new_event_loop()
                self._thread = threading.Thread(target=self._run_loop, args=(self._loop,), name="async", daemon=True)
                self._thread.start()
            return self._loop

    def _run_loop(self, loop: asyncio.AbstractEventLoop) -> None:
        _add_own_thread()
        asyncio.set_event_loop(loop)
        loop.set_default_executor(concurrent.futures.ThreadPoolExecutor(initializer=_add_own_thread))
        while not self._is_closing:
            try:
                loop.run_forever()
            except (SystemExit, KeyboardInterrupt):
                # Raised by a task that a handler left on the loop. asyncio lets these two stop the loop.
                continue
        for task in (left := asyncio.all_tasks(loop)):
            task.cancel()
        if left:  # that handlers left
            loop.run_until_complete(asyncio.wait(left, timeout=_CLOSE_TIMEOUT_S))
        loop.close()

    async def _run_alone(
        self,
        start: Callable[[], Awaitable[Any]],
        context: Context,
        tasks: list[asyncio.Task[Any]],
        requests: _Requests,
    ) -> tuple[Any, BaseException | None]:
        _requests.set(requests)
        self._depth += 1
        ended = await _limited(start, context, tasks)
        self._depth -= 1
        if self.ends_left_tasks and not self._depth:
            left = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
            for task in left:
                task.cancel()
            pending = set(left)
            with contextlib.suppress(asyncio.CancelledError):
                if left:
                    _, pending = await asyncio.wait(left, timeout=_CLOSE_TIMEOUT_S)
            if pending:
                with _own_threads_lock:
                    _own_threads.discard(threading.current_thread())
        return ended


async def in_calling_thread(function: Callable[[], Any]) -> Any:
    """What a plain function returns or raises, called in the thread that waits for this coroutine in run()."""
    loop = asyncio.get_running_loop()
    ended: asyncio.Future[tuple[Any, BaseException | None]] = loop.create_future()
    variables = contextvars.copy_context()

    def request() -> None:
        if ended.cancelled():
            return
        outcome: tuple[Any, BaseException | None]
        try:
            outcome = variables.run(function), None
        except BaseException as error:
            outcome = None, error
        loop.call_soon_threadsafe(_set_result, ended, outcome)

    _requests.get().put(request)
    value, error = await ended
    if error is not None:
        raise error
    return value


def _set_result(future: asyncio.Future[Any], value: Any) -> None:
    if not future.done():  # else its coroutine has run out of time
        future.set_result(value)


async def _limited(
    start: Callable[[], Awaitable[Any]], context: Context, tasks: list[asyncio.Task[Any]]
) -> tuple[Any, BaseException | None]:
    """The value or the exception of the coroutine, ended at the deadline. The exception is returned, not raised: run()
    could not tell a TimeoutError of the handler from its own, and SystemExit would stop the loop."""
    own = asyncio.current_task()
    if own is not None:
        tasks.append(own)
    try:
        async with asyncio.timeout(context.time_left) as limit:
            return await start(), None
    except TimeoutError as error:
        if not limit.expired():
            return None, error
        timed_out = TimedOut(context.timeout_s)
        # The CancelledError: its traceback ends where the handler was. In early releases of Python 3.11 it is only the
        # context.
        timed_out.__cause__ = error.__cause__ or error.__context__
        return None, timed_out
    except BaseException as error:
        return None, error
