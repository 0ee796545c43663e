"""A service that is one turn, again and again, in a thread of its own: through outages, until told to stop."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from fileq.core.errors import BrokerError
from fileq.core.events import Emit
from fileq.runtime.outage import Outage

STUCK_S = 60.0
FAILED_PAUSE_S = 1.0


class Loop:
    """`turn` does what can be done and says after how many seconds there may be more; `wake` ends that pause."""

    def __init__(
        self,
        name: str,
        turn: Callable[[], float],
        *,
        emit: Emit,
        longest_pause_s: float,
        wake: threading.Event | None = None,
    ) -> None:
        self.name = name
        self._turn = turn
        self._emit = emit
        self._outage = Outage(emit, longest_pause_s)
        self._wake = wake if wake is not None else threading.Event()
        self._stopping = threading.Event()
        self._failure = ""
        self._turned_s = time.monotonic()
        # A daemon: a file system or a server that hangs must not keep the process from ending.
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def start(self) -> None:
        if self._thread.ident is None:
            self._turned_s = time.monotonic()
            self._thread.start()

    def quiet(self) -> None:
        """Nothing is under way that could go on without it: quiet is the beginning of the end."""
        self._stopping.set()
        self._wake.set()

    def stop(self, deadline_s: float) -> None:
        self.quiet()
        if self._thread.ident is not None:
            self._thread.join(deadline_s)

    def hurry(self) -> None:
        self.quiet()

    @property
    def has_stopped(self) -> bool:
        return self._stopping.is_set() and not self._thread.is_alive()

    def problem(self) -> str:
        return "stopping" if self._stopping.is_set() else self._outage.reason or self._failure

    def is_turning(self) -> bool:
        """One that was told to stop is not stuck, though others may go on for a while."""
        is_moving = self._thread.is_alive() and time.monotonic() - self._turned_s < STUCK_S
        return is_moving or self._stopping.is_set()

    def _run(self) -> None:
        while not self._stopping.is_set():
            self._turned_s = time.monotonic()
            self._turn_once()

    def _turn_once(self) -> None:
        try:
            pause_s = self._turn()
        except BrokerError as error:
            # `wake` does not cut this short: it would have us hammer at a broker that is away.
            self._stopping.wait(self._outage.met(error))
        except Exception as error:
            # A loop that dies takes its role down without a word; one that goes on is seen, once for each failure.
            if self._failure != repr(error):
                self._failure = repr(error)
                self._emit(f"{self.name}.failed", level="error", error=self._failure, exc_info=True)
            self._stopping.wait(FAILED_PAUSE_S)
        else:
            self._outage.over()
            self._failure = ""
            if not self._stopping.is_set():  # it may have been set before the turn cleared `wake`
                self._wake.wait(pause_s)
