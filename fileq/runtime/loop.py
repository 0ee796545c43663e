"""A service that calls `turn()` again and again in a thread of its own, through outages, until it is stopped."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from fileq.core.errors import BrokerError, BrokerRemoved
from fileq.core.events import Emit, LoopFailed
from fileq.runtime.outage import Outage

STUCK_S = 60.0
FAILED_PAUSE_S = 1.0


class Loop:
    """`turn` does the work that is due and returns the seconds until the next turn; `wake` cuts that pause short.

    `at_end` is called in the same thread after the last turn. It must not raise."""

    def __init__(
        self,
        name: str,
        turn: Callable[[], float],
        *,
        emit: Emit,
        longest_pause_s: float,
        wake: threading.Event | None = None,
        at_end: Callable[[], None] = lambda: None,
    ) -> None:
        self.name = name
        self._turn = turn
        self._at_end = at_end
        self._emit = emit
        self._outage = Outage(emit, longest_pause_s)
        self._wake = wake if wake is not None else threading.Event()
        self._stopping = threading.Event()
        self._failure = ""
        self._moved_s = time.monotonic()  # when the current turn began; in a pause, when the pause ends
        # A daemon: a hanging file system or server must not keep the process from ending.
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def start(self) -> None:
        if self._thread.ident is None:
            self._moved_s = time.monotonic()
            self._thread.start()

    def quiet(self) -> None:
        """Ends the loop after the current turn: a turn leaves nothing in progress that needs another one."""
        self._stopping.set()
        self._wake.set()

    def stop(self, timeout_s: float) -> None:
        self.quiet()
        if self._thread.ident is not None:
            self._thread.join(timeout_s)

    def hurry(self) -> None:
        self.quiet()

    @property
    def has_stopped(self) -> bool:
        return self._stopping.is_set() and not self._thread.is_alive()

    def problem(self) -> str:
        return "stopping" if self._stopping.is_set() else self._outage.reason or self._failure

    def is_turning(self) -> bool:
        """Whether the current turn is not longer than STUCK_S. A loop that was stopped is not stuck, even if other
        services still run."""
        is_moving = self._thread.is_alive() and time.monotonic() - self._moved_s < STUCK_S
        return is_moving or self._stopping.is_set()

    def _run(self) -> None:
        while not self._stopping.is_set():
            self._moved_s = time.monotonic()
            self._turn_once()
        self._at_end()

    def _turn_once(self) -> None:
        try:
            pause_s = self._turn()
        except BrokerRemoved:
            self._stopping.set()  # the role ends, see broker_watch.py
        except BrokerError as error:
            # `wake` does not cut this pause short: it would make the loop hammer a broker that is down.
            self._stopping.wait(self._outage.failed(error))
        except Exception as error:
            # A thread that ends here would stop its role silently. The loop continues and reports each failure once.
            if self._failure != repr(error):
                self._failure = repr(error)
                self._emit(LoopFailed(self.name, self._failure, error))
            self._stopping.wait(FAILED_PAUSE_S)
        else:
            self._outage.ended()
            self._failure = ""
            if not self._stopping.is_set():  # quiet() may have set `wake` before the turn cleared it
                self._moved_s = time.monotonic() + pause_s
                self._wake.wait(pause_s)
