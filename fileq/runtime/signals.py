"""The signals that stop a program, as something to wait for that misses none.

Not an Event set by their handler: a signal that comes while the main thread is on its way into wait() is seen only
when another one comes, or its handler meets the Event's lock, held by the very thread it interrupted. Here the
interpreter writes a byte for each, at once, in whichever thread the system has chosen.
"""

from __future__ import annotations

import contextlib
import signal
import socket
from types import FrameType

STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM)
_ENOUGH = b"\0"  # no signal has this number


class StopSignals:
    """Made and closed in the main thread. A signal that comes after the end changes nothing."""

    def __init__(self) -> None:
        self._reader, self._writer = socket.socketpair()
        self._writer.setblocking(False)
        signal.set_wakeup_fd(self._writer.fileno(), warn_on_full_buffer=False)
        for number in STOP_SIGNALS:
            signal.signal(number, _leave_it_to_the_byte)

    def wait(self) -> bool:
        """Until the next one comes (True), or nobody needs it any more (False)."""
        return self._reader.recv(1) != _ENOUGH

    def enough(self) -> None:
        """Ends the wait; from any thread."""
        with contextlib.suppress(OSError):  # closed: whoever waited has stopped waiting
            self._writer.send(_ENOUGH)

    def close(self) -> None:
        """From now on they are ignored. A handler that does nothing would not last: when the interpreter ends it gives
        them back to the system, and one more would end the program as if it had not stopped in order."""
        for number in STOP_SIGNALS:
            signal.signal(number, signal.SIG_IGN)
        signal.set_wakeup_fd(-1)
        self._reader.close()
        self._writer.close()


def _leave_it_to_the_byte(_number: int, _frame: FrameType | None) -> None:
    pass
