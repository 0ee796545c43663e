"""How long a batch of tasks takes, without the time in which other processes had the cores.

On a busy machine a child that was woken waits for a core, often for longer than its tiny tasks take, and so does the
pump when the child is done. Without this, such tasks would not count as tiny, and each would wake a child of its own,
which makes a busy machine busier. Linux counts for each thread how long it ran and how long it waited for a core, in
/proc/PID/schedstat. Where that can't be read, all time counts.

Only measures: the executor decides what follows.
"""

from __future__ import annotations

import os
import threading
import time

HELD_UP_MAX_S = 0.008  # how long the pump may wait for a child that gets no core
_RUNNABLE = b"R"


class ThreadTimes:
    """The times of one thread since it started, in nanoseconds. close() it."""

    def __init__(self, pid: int | None = None) -> None:
        """`pid` chooses the first thread of that process; None the thread that calls read(). All times are 0 after the
        end of the thread."""
        self._pid = pid
        self._fd = -2  # not opened yet

    def read(self) -> tuple[int, int]:
        """How long it ran, and how long it waited for a core."""
        if self._fd == -2:
            self._fd = _opened(f"/proc/{self._pid or threading.get_native_id()}/schedstat")
        try:
            ran, waited, _ = os.pread(self._fd, 100, 0).split()
        except (OSError, ValueError):
            return 0, 0
        return int(ran), int(waited)

    def is_runnable(self) -> bool:
        """Whether it runs or waits for a core now."""
        fd = _opened(f"/proc/{self._pid}/stat")
        try:
            return os.pread(fd, 1000, 0).rpartition(b") ")[2].startswith(_RUNNABLE)
        except OSError:
            return False
        finally:
            if fd >= 0:
                os.close(fd)

    def close(self) -> None:
        """May be called twice."""
        if self._fd >= 0:
            os.close(self._fd)
        self._fd = -1


class BatchTimer:
    """Measures from its construction on."""

    def __init__(self, child: ThreadTimes, pump: ThreadTimes) -> None:
        self._child, self._pump = child, pump
        self._child_ran, self._child_waited = child.read()
        self._pump_waited = pump.read()[1]
        self.began_s = time.monotonic()

    def spent_s(self, enough_s: float) -> float:
        """Seconds since the start. If they are more than `enough_s`, without the time in which the child or the pump
        waited for a core."""
        spent_s = time.monotonic() - self.began_s
        if spent_s <= enough_s:
            return spent_s
        waited = self._child.read()[1] - self._child_waited + self._pump.read()[1] - self._pump_waited
        return max(0.0, spent_s - waited / 1e9)

    def is_held_up(self) -> bool:
        """Whether the child wants to run, and had no core for most of the time; False after HELD_UP_MAX_S.

        Linux updates the time of a running thread only every few milliseconds. So a handler that computes counts as
        held up for a moment."""
        spent_s = time.monotonic() - self.began_s
        if spent_s > HELD_UP_MAX_S or not self._child.is_runnable():
            return False
        return (self._child.read()[0] - self._child_ran) / 1e9 < spent_s / 2


def _opened(path: str) -> int:
    try:
        return os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return -1
