"""The traceback of a failed attempt as text, for the job's history: the user's frames, without values of variables.

Causes, contexts and the members of exception groups are included. Bounded: a broker stores it with the attempt.
"""

from __future__ import annotations

import os
import traceback
from collections.abc import Iterator

LONGEST_TRACEBACK = 16 * 1024  # bytes of UTF-8
_OWN = os.path.dirname(os.path.dirname(__file__)) + os.sep
# Without sysconfig, which takes milliseconds to import.
_STANDARD = os.path.dirname(traceback.__file__) + os.sep
_INSTALLED = tuple(f"{_STANDARD}{name}{os.sep}" for name in ("site-packages", "dist-packages"))


def traceback_text(error: BaseException) -> str:
    """The text; empty if no frame of the user's code is involved, as for an error that fileq raised itself."""
    whole = traceback.TracebackException(type(error), error, error.__traceback__)
    frames_left = [_strip(part) for part in _parts(whole)]
    if not any(frames_left):
        return ""
    return cut_middle("".join(whole.format()).rstrip("\n"), LONGEST_TRACEBACK)


def cut_middle(text: str, longest: int) -> str:
    """Valid UTF-8 of at most so many bytes; a longer text loses its middle."""
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


def _strip(part: traceback.TracebackException) -> bool:
    """Removes fileq's frames, and those of the standard library that lead to the user's first frame (asyncio).

    Returns whether a frame of the user is left."""
    frames = [frame for frame in part.stack if not frame.filename.startswith(_OWN)]
    first = next((number for number, frame in enumerate(frames) if not _is_standard(frame.filename)), len(frames))
    part.stack = traceback.StackSummary.from_list(frames[first:])
    return first < len(frames)


def _is_standard(filename: str) -> bool:
    if filename.startswith("<frozen "):
        return True
    return filename.startswith(_STANDARD) and not filename.startswith(_INSTALLED)
