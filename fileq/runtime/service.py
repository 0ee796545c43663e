"""What a role runs in a thread of its own: the interface of services, the loop that most of them are, and outages.

While its broker is unreachable, a loop reports the outage once and retries with growing pauses.
"""

from __future__ import annotations

import math
import random
import threading
import time
from collections.abc import Callable
from typing import Protocol

from fileq.core.errors import BrokerError, BrokerRemoved
from fileq.core.events import BrokerLost, BrokerRestored, Emit, Event, LoopFailed


class Service(Protocol):
    """One loop in one thread. Every method may be called more than once."""

    name: str

    def start(self) -> None: ...

    def quiet(self) -> None:
        """Takes on no new work; work in progress continues."""

    def stop(self, timeout_s: float) -> None:
        """Ends within this many seconds."""

    def hurry(self) -> None:
        """Ends at once; work in progress is given back."""

    def problem(self) -> str:
        """Why it cannot do its work now; "" when it can."""

    def is_turning(self) -> bool:
        """Whether its loop has made progress recently."""


class Turning(Protocol):
    """What a loop calls. If it has a `wake`, a threading.Event, that cuts the pause after a turn short. If it has an
    `at_end`, that is called once after the last turn, in the same thread. It must not raise."""

    name: str

    def turn(self) -> float:
        """Does the work that is due. Returns the seconds until the next turn."""


STUCK_S = 60.0
FAILED_PAUSE_S = 1.0


class Loop:
    """A service that turns something again and again in a thread of its own, through outages, until it is stopped.
    `problem` says why the thing can't do its work. stop() waits for `longest_stop_s` at most."""

    def __init__(
        self,
        turning: Turning,
        *,
        emit: Emit,
        longest_pause_s: float,
        problem: Callable[[], str] = lambda: "",
        longest_stop_s: float = math.inf,
    ) -> None:
        self.name = turning.name
        self._turn = turning.turn
        self._at_end: Callable[[], None] = getattr(turning, "at_end", lambda: None)
        self._emit = emit
        self._problem = problem
        self._longest_stop_s = longest_stop_s
        self._outage = Outage(emit, longest_pause_s)
        self._wake: threading.Event = getattr(turning, "wake", None) or threading.Event()
        self._stopping = threading.Event()
        self._failure = ""
        self._moved_s = time.monotonic()  # when the current turn began; in a pause, when the pause ends
        # A daemon: a hanging file system or server must not keep the process from ending.
        self._thread = threading.Thread(target=self._run, name=self.name, daemon=True)

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
            self._thread.join(min(timeout_s, self._longest_stop_s))

    def hurry(self) -> None:
        self.quiet()

    @property
    def has_stopped(self) -> bool:
        return self._stopping.is_set() and not self._thread.is_alive()

    def problem(self) -> str:
        return "stopping" if self._stopping.is_set() else self._outage.reason or self._failure or self._problem()

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
            self._stopping.set()  # the role ends, see BrokerWatch
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


FIRST_PAUSE_S = 0.1
LONGEST_PAUSE_S = 2.0  # operators expect workers to be back within three seconds of the broker


def longest_pause_s(heartbeat_ttl_s: float) -> float:
    """The longest pause between two tries, short enough that heartbeats survive a short outage."""
    return min(LONGEST_PAUSE_S, heartbeat_ttl_s / 6)


class Outage:
    """The state of the broker as one loop sees it."""

    def __init__(self, emit: Emit, longest_pause_s: float, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._emit = emit
        self._longest_pause_s = longest_pause_s
        self._monotonic = monotonic
        self._since_s: float | None = None
        self._tries = 0
        self.reason = ""

    def failed(self, error: BrokerError) -> float:
        """Notes a failed call. Returns the seconds to wait before the next try: growing, with jitter."""
        if self._since_s is None:
            self._since_s = self._monotonic()
            self._emit(BrokerLost(str(error)))
        self.reason = str(error)
        pause_s = min(self._longest_pause_s, FIRST_PAUSE_S * float(2**self._tries))
        self._tries = min(self._tries + 1, 16)
        return pause_s * random.uniform(0.5, 1.0)

    def ended(self) -> None:
        if self._since_s is not None:
            self._emit(BrokerRestored(round(self._monotonic() - self._since_s, 3)))
            self._since_s, self._tries, self.reason = None, 0, ""


def without_outages(emit: Emit) -> Emit:
    """For all loops of a process but one: they meet the same outage of the broker, and one report is enough."""

    def emit_others(event: Event) -> None:
        if not isinstance(event, BrokerLost | BrokerRestored):
            emit(event)

    return emit_others
