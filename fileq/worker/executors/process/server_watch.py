"""Decides when the fork server must be asked whether it still works, and when it counts as frozen.

A server can be alive and do nothing: a signal or a debugger stopped it, or a call of the kernel does not return. Then
no child is started and no end of a child is reported. Only time in which the worker itself ran counts: a server is not
replaced because the worker was stopped as well.
"""

from __future__ import annotations

PING_EVERY_S = 1.0  # while a report is missing
ANSWER_TIMEOUT_S = 10.0
CHECK_EVERY_S = 1.0  # while an answer is missing


class ServerWatch:
    """For one fork server, whose first answer is that it has started. Times are by time.monotonic()."""

    def __init__(self, now_s: float) -> None:
        self._is_waiting = True
        self._waited_s = 0.0
        self._checked_s = self._pinged_s = now_s
        self.due_s = now_s + CHECK_EVERY_S  # when the next call of turn() is due

    def answered(self) -> None:
        """The server sent a message. Any message will do."""
        self._is_waiting = False
        self._waited_s = 0.0
        self.due_s = self._pinged_s + PING_EVERY_S

    def turn(self, now_s: float) -> bool:
        """Whether a ping must be sent now."""
        if self._is_waiting:
            self._waited_s += min(now_s - self._checked_s, CHECK_EVERY_S)
        self._checked_s = now_s
        if now_s < self.due_s:
            return False
        self.due_s = now_s + CHECK_EVERY_S
        if self._is_waiting:
            return False
        self._is_waiting = True
        self._pinged_s = now_s
        return True

    def is_frozen(self, timeout_s: float) -> bool:
        """Whether it has owed an answer for this long."""
        return self._waited_s >= timeout_s
