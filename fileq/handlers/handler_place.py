"""Where the code of a handler is now: in the thread that runs its job, or where that thread waits for it.

A thread whose job runs on an event loop, or in another thread, only waits. It leaves here how to find the code that it
waits for. Asked from another thread, or by a signal handler in the thread itself, so nothing here waits for a lock.
"""

from __future__ import annotations

import sys
import threading
import traceback
from collections.abc import Callable, Iterator
from types import FrameType
from typing import TYPE_CHECKING, Any

from fileq.handlers.tracebacks import stack_text, stack_text_of_frames

if TYPE_CHECKING:
    import asyncio

_elsewhere: dict[int, Callable[[], str]] = {}  # by the thread that waits


def waits_for(find: Callable[[], str] | None) -> None:
    """From now on the calling thread waits for code that `find` finds; with None it runs its job itself."""
    if find is None:
        _elsewhere.pop(threading.get_ident(), None)
    else:
        _elsewhere[threading.get_ident()] = find


def place_of(thread_id: int | None, frame: FrameType | None = None) -> str:
    """The user's frames of the job that this thread runs, as text; empty if there are none. `frame` is the innermost
    frame of the thread, if the caller has it."""
    if thread_id is None:
        return ""
    find = _elsewhere.get(thread_id)
    return (find() if find is not None else "") or stack_text(frame or sys._current_frames().get(thread_id))


def place_of_task(task: asyncio.Task[Any], loop: asyncio.AbstractEventLoop, thread_id: int | None) -> str:
    """The same for a task of the event loop that this thread runs."""
    import asyncio  # not above: programs without async handlers start faster without it

    if asyncio.current_task(loop) is task:  # it does not await: its frames are those of the thread
        return place_of(thread_id)
    return stack_text_of_frames(traceback.StackSummary.extract(list(_awaiting(task.get_coro()))))


def _awaiting(awaitable: Any) -> Iterator[tuple[FrameType, int]]:
    """The frames of a coroutine and of what it awaits; Task.get_stack() has only the first of them."""
    while (frame := getattr(awaitable, "cr_frame", None) or getattr(awaitable, "gi_frame", None)) is not None:
        yield frame, frame.f_lineno
        awaitable = getattr(awaitable, "cr_await", None) or getattr(awaitable, "gi_yieldfrom", None)
