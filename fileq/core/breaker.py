"""Stops claiming when most of what runs fails, and lets one job try before going on. The clock is given.

pybreaker gives the states, where they are kept and who is told of a change. Its own counting is not used: it counts
failures in a row and lets every caller through when half-open. Here the failure rate over a rolling window decides,
and a gate lets exactly one probe through.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Protocol

from pybreaker import (
    STATE_CLOSED,
    STATE_HALF_OPEN,
    STATE_OPEN,
    CircuitBreaker,
    CircuitBreakerListener,
    CircuitBreakerState,
    CircuitMemoryStorage,
)

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


class _Tell(CircuitBreakerListener):
    def __init__(self, on_change: OnChange) -> None:
        self._on_change = on_change

    def state_change(
        self, cb: CircuitBreaker, old_state: CircuitBreakerState | None, new_state: CircuitBreakerState
    ) -> None:
        self._on_change(old_state.name if old_state is not None else "", new_state.name)


class Breaker:
    """One worker process's breaker. Claims are named by anything hashable; threads may share it.

    Ask permits() how many to claim, say took() which were claimed, say ended() how each went."""

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
            fail_max=2**31, state_storage=CircuitMemoryStorage(STATE_CLOSED), listeners=[_Tell(self._changed)]
        )
        self._lock = threading.Lock()
        self._samples: deque[tuple[float, bool]] = deque()  # when, was it a success
        self._failures = 0
        self._opened_s = 0.0
        self._state = STATE_CLOSED  # as the states say, without asking them for every job
        self._probe: object = None  # the claim that decides, or _ASKED while it is being claimed

    @property
    def state(self) -> str:
        """closed, half-open or open; an open one whose time is up is half-open from its next question on."""
        return self._state

    @property
    def is_closed(self) -> bool:
        return self._state == STATE_CLOSED

    def permits(self, wanted: int) -> int:
        """How many of the wanted claims may be made now; in half-open one, for one caller."""
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
            self._probe = _ASKED
            return 1

    def took(self, claims: Sequence[object]) -> None:
        """What came of permits(): the probe, if it was one; none, and the probe is available again."""
        with self._lock:
            if self.state == STATE_HALF_OPEN and self._probe is _ASKED:
                self._probe = claims[0] if claims else None

    def ended(self, claim: object, success: bool | None) -> None:
        """How a claim went; None is no sample. Only the probe decides in half-open, nobody in open."""
        with self._lock:
            if self._state == STATE_CLOSED:
                if success is not None:
                    self._add(success)
            elif self._state == STATE_HALF_OPEN and claim == self._probe:
                self._decide(success)

    def opens_in_s(self) -> float:
        """Seconds until an open breaker lets its probe through; 0 when there is nothing to wait for."""
        with self._lock:
            if self.state != STATE_OPEN:
                return 0.0
            return max(0.0, self._opened_s + self._settings.cooldown_period - self._clock())

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
            self._open()

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
            self._open()

    def _open(self) -> None:
        self._samples.clear()
        self._failures = 0
        self._opened_s = self._clock()
        self._states.open()


_ASKED = object()
