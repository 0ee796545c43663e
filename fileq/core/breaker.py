"""The circuit breaker: stops the jobs of a route when most attempts fail, and lets one through as a probe.

pybreaker provides the states and the listeners. Its own counting is not used: it counts consecutive failures, and when
half-open it lets every caller through. Here the failure rate over a rolling window decides, and exactly one probe is
let through. The clock is passed in.

What a kill -9 leaves: nothing. A new process starts with a closed breaker and an empty window.
"""

from __future__ import annotations

import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Protocol

from fileq.core.hidden_import import hidden

# pybreaker imports redis for a storage that fileq does not use: 140 ms.
_has_own_copy = not {"redis", "pybreaker"} & sys.modules.keys()
with hidden("redis"):
    from pybreaker import (
        STATE_CLOSED,
        STATE_HALF_OPEN,
        STATE_OPEN,
        CircuitBreaker,
        CircuitBreakerListener,
        CircuitBreakerState,
        CircuitMemoryStorage,
    )
if _has_own_copy:
    del sys.modules["pybreaker"]  # a handler that imports pybreaker gets one with redis

OnChange = Callable[[str, str], None]  # from, to
STATE_NUMBERS = {STATE_CLOSED: 0, STATE_HALF_OPEN: 1, STATE_OPEN: 2}  # as the metric shows them


class BreakerLimits(Protocol):
    """When the breaker opens and for how long, as `circuit_breaker` sets it. Times are in seconds."""

    @property
    def failure_threshold(self) -> float: ...
    @property
    def window(self) -> float: ...
    @property
    def cooldown_period(self) -> float: ...
    @property
    def min_samples(self) -> int: ...


class _StateListener(CircuitBreakerListener):
    def __init__(self, on_change: OnChange) -> None:
        self._on_change = on_change

    def state_change(
        self, cb: CircuitBreaker, old_state: CircuitBreakerState | None, new_state: CircuitBreakerState
    ) -> None:
        self._on_change(old_state.name if old_state is not None else "", new_state.name)


class Breaker:
    """One breaker. Threads may share it.

    Before a claim, permits() limits how many jobs to claim. After it, claimed() names those that were claimed. When an
    attempt has ended, record() counts how it went. A claim is named by any hashable value."""

    def __init__(
        self,
        settings: BreakerLimits,
        *,
        clock: Callable[[], float] = time.monotonic,
        on_change: OnChange = lambda old, new: None,
    ) -> None:
        self._settings = settings
        self._clock = clock
        self._on_change = on_change
        self._states = CircuitBreaker(
            fail_max=2**31, state_storage=CircuitMemoryStorage(STATE_CLOSED), listeners=[_StateListener(self._changed)]
        )
        self._lock = threading.Lock()
        self._samples: deque[tuple[float, bool]] = deque()  # when, was it a success
        self._failures = 0
        self._opened_s = 0.0
        self._state = STATE_CLOSED  # a copy: reading pybreaker's state for every job would be slow
        self._probe: object = None  # the claim that decides, or _BEING_CLAIMED
        self.error = ""  # of the last failure
        self.failure_share = 0.0  # when it opened last

    @property
    def state(self) -> str:
        """closed, half-open or open. After its cooldown an open one becomes half-open on the next call of permits()."""
        return self._state

    @property
    def is_closed(self) -> bool:
        return self._state == STATE_CLOSED

    @property
    def is_probe_due(self) -> bool:
        """Whether the next call of permits() lets a probe through."""
        with self._lock:
            if self._state == STATE_OPEN:
                return self._clock() - self._opened_s >= self._settings.cooldown_period
            return self._state == STATE_HALF_OPEN and self._probe is None

    def permits(self, wanted: int) -> int:
        """How many of the wanted claims may be made now. When half-open: one, for one caller."""
        with self._lock:
            if self.state == STATE_CLOSED or wanted <= 0:
                return max(0, wanted)
            if self.state == STATE_OPEN:
                if self._clock() - self._opened_s < self._settings.cooldown_period:
                    return 0
                self._probe = None
                self._states.half_open()
            if self._probe is not None:
                return 0
            self._probe = _BEING_CLAIMED
            return 1

    def claimed(self, claims: Sequence[object]) -> None:
        """Names what was claimed after permits(). When half-open it is the probe; if empty, another one is allowed."""
        with self._lock:
            if self.state == STATE_HALF_OPEN and self._probe is _BEING_CLAIMED:
                self._probe = claims[0] if claims else None

    def try_now(self, claim: object) -> None:
        """Lets the job of this claim run, because an operator wants it: also if the breaker is open. It is the probe,
        unless another probe runs already."""
        with self._lock:
            if self._state == STATE_OPEN:
                self._probe = None
                self._states.half_open()
            if self._state == STATE_HALF_OPEN and self._probe is None:
                self._probe = claim

    def record(self, claim: object, success: bool | None, error: str = "") -> None:
        """Counts how an attempt ended; None is not counted. When half-open only the probe counts, when open nothing."""
        with self._lock:
            if self._state == STATE_CLOSED:
                if success is not None:
                    self.error = self.error if success else error
                    self._add(success)
            elif self._state == STATE_HALF_OPEN and claim == self._probe:
                self.error = error if success is False else self.error
                self._decide(success)

    def cooldown_left_s(self) -> float:
        """Seconds until an open breaker lets a probe through; 0 if it is not open."""
        with self._lock:
            if self.state != STATE_OPEN:
                return 0.0
            return max(0.0, self._opened_s + self._settings.cooldown_period - self._clock())

    def reset(self) -> None:
        """Closes the breaker with a clean window. A closed one stays as it is."""
        with self._lock:
            if self._state != STATE_CLOSED:
                self._decide(True)

    def _changed(self, old: str, new: str) -> None:
        self._state = new
        self._on_change(old, new)

    def _decide(self, success: bool | None) -> None:
        self._probe = None
        if success is None:
            return
        self._samples.clear()
        self._failures = 0
        if success:
            self._states.close()
        else:
            self._open(failure_share=1.0)

    def _add(self, success: bool) -> None:
        now_s, samples = self._clock(), self._samples
        samples.append((now_s, success))
        self._failures += not success
        oldest_s = now_s - self._settings.window
        while samples and samples[0][0] <= oldest_s:
            self._failures -= not samples.popleft()[1]
        if not self._failures:
            return
        total = len(samples)
        if total >= self._settings.min_samples and self._failures / total >= self._settings.failure_threshold:
            self._open(self._failures / total)

    def _open(self, failure_share: float) -> None:
        self.failure_share = failure_share
        self._samples.clear()
        self._failures = 0
        self._opened_s = self._clock()
        self._states.open()


_BEING_CLAIMED = object()
