"""Stops a function that runs in this process when its time is over, for fileq.testing.run.

A worker kills the child process of a handler that is out of time. A test can't run its handler in a child: it would
lose its monkeypatches, and results and exceptions would be copies. So a signal handler raises an exception in the
function, and again every REPEAT_S until the function has ended. This also interrupts time.sleep(), locks and system
calls. It is no Exception, so that `except Exception:` in a handler does not catch it. SIGALRM and the timers of the
process stay untouched: pytest-timeout uses them.

Not stopped: a function outside the main thread, where Python runs no handlers of signals; a call into C code that
neither returns nor looks for signals; and code that catches BaseException and goes on for ever.
"""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Callable
from types import FrameType
from typing import Any

from fileq.handlers.outcomes import TimedOut
from fileq.handlers.tracebacks import place_of

REPEAT_S = 0.1
SIGNAL = signal.SIGRTMIN + 8  # neither Python nor common libraries use it


class TimeIsOver(BaseException):
    """Raised inside the function that is out of time."""


def call_within(function: Callable[[], Any], timeout_s: float, *, grace_s: float = 0.0) -> Any:
    """What the function returns or raises. Once it was stopped, always raises TimedOut, also if it caught the stop.

    The stop comes `grace_s` after the timeout, for a function that enforces the timeout itself. A note of TimedOut
    says where the function was."""
    if threading.current_thread() is not threading.main_thread():
        return function()
    alarm = _Alarm()
    watch = _Watch(alarm, timeout_s + grace_s)
    try:
        watch.start()
        alarm.is_armed = True
        result = function()
        alarm.is_armed = False
    except BaseException as error:
        alarm.is_armed = False
        if not alarm.has_rung:
            raise
        cause = None if isinstance(error, TimeIsOver) else error
        raise alarm.timed_out(timeout_s).with_traceback(error.__traceback__) from cause
    finally:
        _end(watch, alarm)
    if alarm.has_rung:
        raise alarm.timed_out(timeout_s)
    return result


def _end(watch: _Watch, alarm: _Alarm) -> None:
    """Afterwards nothing is raised any more. An exception that was requested before may still be raised in here."""
    while True:
        with contextlib.suppress(TimeIsOver):
            watch.end()
            alarm.close()
            return


class _Alarm:
    """Raises TimeIsOver in the main thread, in the handler of a signal."""

    def __init__(self) -> None:
        self.is_armed = self.has_rung = False
        self._place = ""
        self._main_thread = threading.get_ident()
        self._before = signal.signal(SIGNAL, self._on_signal)

    def ring(self) -> None:
        signal.pthread_kill(self._main_thread, SIGNAL)

    def close(self) -> None:
        signal.signal(SIGNAL, self._before)

    def timed_out(self, timeout_s: float) -> TimedOut:
        error = TimedOut(timeout_s)
        if self._place:
            error.add_note(self._place)
        return error

    def _on_signal(self, _number: int, frame: FrameType | None) -> None:
        if self.is_armed:
            if not self.has_rung:
                self._place = place_of(self._main_thread, frame)
            self.has_rung = True
            raise TimeIsOver


class _Watch:
    """A thread that rings the alarm when the time is over, and again until end()."""

    def __init__(self, alarm: _Alarm, after_s: float) -> None:
        self._alarm = alarm
        self._after_s = min(max(0.0, after_s), threading.TIMEOUT_MAX)
        # A lock instead of an Event: release() is one step, which no exception can interrupt half-way.
        self._end_lock = threading.Lock()
        self._end_lock.acquire()
        self._thread = threading.Thread(target=self._run, name="time limit", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def end(self) -> None:
        """May be called again if an exception interrupted it."""
        with contextlib.suppress(RuntimeError):  # released already
            self._end_lock.release()
        if self._thread.ident is not None:
            self._thread.join()

    def _run(self) -> None:
        pause_s = self._after_s
        while not self._end_lock.acquire(timeout=pause_s):
            if self._alarm.is_armed:
                self._alarm.ring()
            pause_s = REPEAT_S
