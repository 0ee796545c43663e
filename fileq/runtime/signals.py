"""SIGINT and SIGTERM as something to wait for, without missing one.

A threading.Event set by a signal handler is not enough. A signal that arrives while the main thread enters wait() is
noticed only with the next signal, or its handler deadlocks on the Event's lock, which the interrupted thread holds.
Here the interpreter itself writes one byte per signal into a socket, at once and from any thread.
"""

from __future__ import annotations

import contextlib
import signal
import socket
from types import FrameType

STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM)
_END_WAIT = b"\0"  # no signal has this number


class StopSignals:
    """Created and closed in the main thread. Signals that arrive after close() are ignored."""

    def __init__(self) -> None:
        self._reader, self._writer = socket.socketpair()
        self._writer.setblocking(False)
        signal.set_wakeup_fd(self._writer.fileno(), warn_on_full_buffer=False)
        for number in STOP_SIGNALS:
            signal.signal(number, _do_nothing)

    def wait(self) -> bool:
        """Waits for the next signal (True) or for end_wait() (False)."""
        return self._reader.recv(1) != _END_WAIT

    def end_wait(self) -> None:
        """Makes wait() return False. Any thread may call it."""
        with contextlib.suppress(OSError):  # closed: wait() has returned already
            self._writer.send(_END_WAIT)

    def close(self) -> None:
        """Ignores the signals from now on.

        A Python handler would not be enough: the interpreter restores the default action when it shuts down, and a late
        signal would then end the program with -15 instead of its exit code."""
        for number in STOP_SIGNALS:
            signal.signal(number, signal.SIG_IGN)
        signal.set_wakeup_fd(-1)
        self._reader.close()
        self._writer.close()


def _do_nothing(_number: int, _frame: FrameType | None) -> None:
    """Without a Python handler the interpreter would not write the byte."""
