"""SIGINT, SIGTERM and SIGHUP as something to wait for, without missing one.

SIGHUP means "reload" for a service. A terminal sends it when its window is closed, so for a process with a terminal it
is a request to stop. A process that was started with SIGHUP ignored (nohup) keeps ignoring it.

A threading.Event set by a signal handler is not enough. A signal that arrives while the main thread enters wait() is
noticed only with the next signal, or its handler deadlocks on the Event's lock, which the interrupted thread holds.
Here the interpreter itself writes one byte per signal into a socket, at once and from any thread.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
from collections.abc import Callable
from types import FrameType

STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM)
_END_WAIT = b"\0"  # no signal has this number


class StopSignals:
    """Created and closed in the main thread. Signals that arrive after close() are ignored.

    Without `reloads` SIGHUP stops too. With it, wait() calls `on_hangup` for each SIGHUP and goes on waiting."""

    def __init__(self, *, reloads: bool = False) -> None:
        self.on_hangup: Callable[[], None] | None = None
        self.last_name: str | None = None  # of the signal that ended the last wait()
        self._numbers: tuple[signal.Signals, ...] = STOP_SIGNALS
        if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:
            self._numbers = (*STOP_SIGNALS, signal.SIGHUP)
        self._hangup = bytes([signal.SIGHUP]) if reloads and not has_terminal() else None
        self._reader, self._writer = socket.socketpair()
        self._writer.setblocking(False)
        signal.set_wakeup_fd(self._writer.fileno(), warn_on_full_buffer=False)
        for number in self._numbers:
            signal.signal(number, _do_nothing)

    def wait(self) -> bool:
        """Waits for the next signal to stop (True) or for end_wait() (False)."""
        while (received := self._reader.recv(1)) == self._hangup:
            if self.on_hangup is not None:
                self.on_hangup()
        self.last_name = signal.Signals(received[0]).name if received != _END_WAIT else None
        return self.last_name is not None

    def end_wait(self) -> None:
        """Makes wait() return False. Any thread may call it."""
        with contextlib.suppress(OSError):  # closed: wait() has returned already
            self._writer.send(_END_WAIT)

    def close(self) -> None:
        """Ignores the signals from now on.

        A Python handler would not be enough: the interpreter restores the default action when it shuts down, and a late
        signal would then end the program with -15 instead of its exit code."""
        for number in self._numbers:
            signal.signal(number, signal.SIG_IGN)
        signal.set_wakeup_fd(-1)
        self._reader.close()
        self._writer.close()


def has_terminal() -> bool:
    """Whether this process has a controlling terminal."""
    try:
        os.close(os.open("/dev/tty", os.O_RDWR | os.O_NOCTTY))
    except OSError:
        return False
    return True


def _do_nothing(_number: int, _frame: FrameType | None) -> None:
    """Without a Python handler the interpreter would not write the byte."""
