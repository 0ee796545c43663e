"""Stops a function that runs in this process when its time is over, for fileq.testing.run.

A worker kills the child process of a handler that is out of time. A test can't run its handler in a child: it would
lose its monkeypatches, and results and exceptions would be copies. So an exception is raised in the thread that runs
the function, and again every REPEAT_S until the function has ended. It is no Exception, so that `except Exception:` in
a handler does not catch it.

In the main thread the handler of a signal raises it, which also interrupts time.sleep(), locks and system calls.
SIGALRM and the timers of the process stay untouched: pytest-timeout uses them. In any other thread it is raised between
two steps of Python code, so a blocking call delays it.

Not stopped: a call into C code that neither returns nor looks for signals, and code that catches BaseException and goes
on for ever.
"""

from __future__ import annotations

import contextlib
import ctypes
import signal
import threading
from collections.abc import Callable
from types import FrameType
from typing import Any

from fileq.handlers.outcomes import TimedOut

REPEAT_S = 0.1
SIGNAL = signal.SIGRTMIN + 8  # neither Python nor common libraries use it


class TimeIsOver(BaseException):
    """Raised inside the function that is out of time."""


def call_within(function: Callable[[], Any], timeout_s: float, *, grace_s: float = 0.0) -> Any:
    """What the function returns or raises. Once it was stopped, always TimedOut, whatever it made of the stop.

    The stop comes `grace_s` after the timeout, for a function that enforces the timeout itself. The traceback of
    TimedOut shows where the function was."""
    is_main = threading.current_thread() is threading.main_thread()
    alarm = _SignalAlarm() if is_main else _ThreadAlarm()
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
        raise TimedOut(timeout_s).with_traceback(error.__traceback__) from cause
    finally:
        _end(watch, alarm)
    if alarm.has_rung:
        raise TimedOut(timeout_s)
    return result


def _end(watch: _Watch, alarm: _SignalAlarm | _ThreadAlarm) -> None:
    """Afterwards nothing is raised any more. An exception that was requested before may still be raised in here."""
    while True:
        with contextlib.suppress(TimeIsOver):
            watch.end()
            alarm.close()
            return


class _SignalAlarm:
    """Raises TimeIsOver in the main thread, in the handler of a signal."""

    def __init__(self) -> None:
        self.is_armed = self.has_rung = False
        self._main_thread = threading.get_ident()
        self._before = signal.signal(SIGNAL, self._on_signal)

    def ring(self) -> None:
        signal.pthread_kill(self._main_thread, SIGNAL)

    def close(self) -> None:
        signal.signal(SIGNAL, self._before)

    def _on_signal(self, _number: int, _frame: FrameType | None) -> None:
        if self.is_armed:
            self.has_rung = True
            raise TimeIsOver


class _ThreadAlarm:
    """Raises TimeIsOver in the thread that creates it, between two steps of Python code."""

    def __init__(self) -> None:
        self.is_armed = self.has_rung = False
        self._thread = ctypes.c_ulong(threading.get_ident())

    def ring(self) -> None:
        self.has_rung = True
        ctypes.pythonapi.PyThreadState_SetAsyncExc(self._thread, ctypes.py_object(TimeIsOver))

    def close(self) -> None:
        """Takes back an exception that was requested and not raised yet."""
        ctypes.pythonapi.PyThreadState_SetAsyncExc(self._thread, None)


class _Watch:
    """A thread that rings the alarm when the time is over, and again until end()."""

    def __init__(self, alarm: _SignalAlarm | _ThreadAlarm, after_s: float) -> None:
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
