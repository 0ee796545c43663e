"""The traceback of a failed attempt as text, for the job's history: the user's frames, without values of variables.

Causes, contexts and the members of exception groups are included. For a handler that had to be stopped, the text is the
stack of its thread at that time. Bounded: a broker stores it with the attempt.
"""

from __future__ import annotations

import os
import sys
import threading
import traceback
from collections.abc import Callable, Iterator
from types import FrameType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import asyncio

LONGEST_TRACEBACK = 16 * 1024  # bytes of UTF-8
_TITLE = "Stack at the timeout (most recent call last):\n"
_OWN = os.path.dirname(os.path.dirname(__file__)) + os.sep
# Without sysconfig, which takes milliseconds to import.
_STANDARD = os.path.dirname(traceback.__file__) + os.sep
_INSTALLED = tuple(f"{_STANDARD}{name}{os.sep}" for name in ("site-packages", "dist-packages"))


def traceback_text(error: BaseException) -> str:
    """The text; empty if no frame of the user's code is involved, as for an error that fileq raised itself."""
    whole = traceback.TracebackException(type(error), error, error.__traceback__)
    parts = list(_parts(whole))
    for part in parts:
        part.stack = _of_user(list(part.stack))
    if not any(part.stack for part in parts):
        return ""
    return cut_middle("".join(whole.format()).rstrip("\n"), LONGEST_TRACEBACK)


def stack_text(frame: FrameType | None) -> str:
    """Where the thread with this innermost frame is; empty if no frame of the user's code is involved."""
    whole = list(traceback.StackSummary.extract(traceback.walk_stack(frame)))[::-1] if frame is not None else []
    # What comes before fileq's first frame started the program or the thread.
    own = next((number for number, one in enumerate(whole) if one.filename.startswith(_OWN)), 0)
    return stack_text_of_frames(whole[own:])


def stack_text_of(error: BaseException | None) -> str:
    """Where this exception interrupted the user's code, in the same form: for the CancelledError of a timeout."""
    return stack_text_of_frames(list(traceback.extract_tb(error.__traceback__)) if error is not None else [])


def stack_text_of_frames(whole: list[traceback.FrameSummary]) -> str:
    """The same for frames of any origin, the outermost first."""
    frames = _of_user(whole)
    return cut_middle(_TITLE + "".join(frames.format()).rstrip("\n"), LONGEST_TRACEBACK) if frames else ""


def is_stack(text: str) -> bool:
    """Whether the text says where a handler was, and not what it raised."""
    return text.startswith(_TITLE)


def cut_middle(text: str, longest: int) -> str:
    """Valid UTF-8 of at most `longest` bytes; a longer text loses its middle."""
    encoded = text.encode("utf-8", "backslashreplace")
    if len(encoded) <= longest:
        return encoded.decode()
    mark = f"\n… {len(encoded) - longest} bytes or more were cut …\n".encode()
    half = (longest - len(mark)) // 2
    return (encoded[:half].decode(errors="ignore") + mark.decode() + encoded[-half:].decode(errors="ignore")).strip()


def _parts(whole: traceback.TracebackException) -> Iterator[traceback.TracebackException]:
    """The exception, its causes and contexts, and the members of groups. Not recursive: chains can be long."""
    waiting = [whole]
    while waiting:
        part = waiting.pop()
        yield part
        waiting += [near for near in (part.__cause__, part.__context__) if near is not None]
        waiting += part.exceptions or ()


def _of_user(frames: list[traceback.FrameSummary]) -> traceback.StackSummary:
    """Without fileq's frames, and those of the standard library that lead to the user's first frame (asyncio)."""
    frames = [frame for frame in frames if not frame.filename.startswith(_OWN)]
    first = next((number for number, frame in enumerate(frames) if not _is_standard(frame.filename)), len(frames))
    return traceback.StackSummary.from_list(frames[first:])


def _is_standard(filename: str) -> bool:
    if filename.startswith("<frozen "):
        return True
    return filename.startswith(_STANDARD) and not filename.startswith(_INSTALLED)


# Where the code of a handler is now: in the thread that runs its job, or where that thread waits for it.
#
# A thread whose job runs on an event loop, or in another thread, only waits. It leaves here how to find the code that
# it waits for. Asked from another thread, or by a signal handler in the thread itself, so nothing here waits for a
# lock.

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
