"""The circuit breaker: stops the jobs of a route when most attempts fail, and lets one through as a probe.

pybreaker moves between the states and reports each change; its storage and its listener are ours. The storage holds a
rolling window, whose failure rate decides. pybreaker's own decisions are not used: call() counts consecutive failures
of a call that ends where it began, by the wall clock, and half-open it lets every caller through. A job ends in another
process at another time, a result may say nothing, and one probe is let through.

Each job counts once in a window: its last result replaces the earlier ones, so a few bad jobs that are retried again
and again do not outweigh the good ones. Only failed jobs can have another result, so only their ids are kept, at most
FAILED_KEPT of them. All other results are counted by time, in SLICES parts of the window. So the memory does not depend
on the rate of the jobs.

What a kill -9 leaves: nothing. A new process starts with a closed breaker and an empty window.
"""

from __future__ import annotations

import threading
import time
from collections import OrderedDict, deque
from collections.abc import Callable, Sequence
from datetime import datetime
from typing import Protocol

from msgspec import Struct
from pybreaker import (
    STATE_CLOSED,
    STATE_HALF_OPEN,
    STATE_OPEN,
    CircuitBreaker,
    CircuitBreakerListener,
    CircuitBreakerState,
    CircuitBreakerStorage,
)

OnChange = Callable[[str, str], None]  # from, to
SLICES = 100
FAILED_KEPT = 10_000  # failed jobs of a window whose next result replaces the failure; more of them count each time
UNFAILED_FIRST_S = 1.0  # for so long after a cooldown only a job that has not failed yet can be the probe
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


class _Slice(Struct):
    """The results of a short time that no later result replaces."""

    start_s: float
    successes: int = 0
    failures: int = 0  # of jobs beyond FAILED_KEPT


class _Window(CircuitBreakerStorage):
    """The state of a breaker and the results of the last `window` seconds. `current` is the state."""

    def __init__(self, settings: BreakerLimits, clock: Callable[[], float]) -> None:
        super().__init__("window")
        self._settings = settings
        self._clock = clock
        self.current = STATE_CLOSED
        self.opened_s = 0.0
        self._opened_at: datetime | None = None
        self._slices: deque[_Slice] = deque()
        self._successes = 0  # of all slices, as the next one
        self._unnamed_failures = 0
        self._failed: OrderedDict[object, float] = OrderedDict()  # job → when it failed last, the earliest first

    @property
    def state(self) -> str:
        return self.current

    @state.setter
    def state(self, state: str) -> None:
        self.current = state

    @property
    def opened_at(self) -> datetime | None:
        return self._opened_at

    @opened_at.setter
    def opened_at(self, at: datetime) -> None:
        self._opened_at, self.opened_s = at, self._clock()

    @property
    def counter(self) -> int:
        return len(self._failed) + self._unnamed_failures

    @property
    def success_counter(self) -> int:
        return self._successes

    def reset_counter(self) -> None:
        """Empties the window. pybreaker resets one of its counters with each change of the state."""
        self._slices.clear()
        self._failed.clear()
        self._successes = self._unnamed_failures = 0

    reset_success_counter = reset_counter

    def add(self, job: object, success: bool) -> float | None:
        """Counts a result. The share of failures, if it is one for which the breaker opens."""
        now_s, failed, slices = self._clock(), self._failed, self._slices
        if failed:
            failed.pop(job, None)
        if not success and len(failed) < FAILED_KEPT:
            failed[job] = now_s
        else:
            if not slices or now_s - slices[-1].start_s >= self._settings.window / SLICES:
                slices.append(_Slice(now_s))
            slices[-1].successes += success
            slices[-1].failures += not success
            self._successes += success
            self._unnamed_failures += not success
        self._forget_until(now_s - self._settings.window)
        failures = len(failed) + self._unnamed_failures
        if not failures:
            return None
        total = failures + self._successes
        if total >= self._settings.min_samples and failures / total >= self._settings.failure_threshold:
            return failures / total
        return None

    def _forget_until(self, oldest_s: float) -> None:
        slices, failed = self._slices, self._failed
        while slices and slices[0].start_s <= oldest_s:
            first = slices.popleft()
            self._successes -= first.successes
            self._unnamed_failures -= first.failures
        while failed and next(iter(failed.values())) <= oldest_s:
            failed.popitem(last=False)


class _Listener(CircuitBreakerListener):
    """pybreaker calls it before it writes the new state to the storage, and `on_change` reads the storage: so it is
    written here."""

    def __init__(self, window: _Window, on_change: OnChange) -> None:
        self._window = window
        self._on_change = on_change

    def state_change(
        self, cb: CircuitBreaker, old_state: CircuitBreakerState | None, new_state: CircuitBreakerState
    ) -> None:
        self._window.state = new_state.name
        self._on_change(old_state.name if old_state is not None else "", new_state.name)


class Breaker:
    """One breaker. Threads may share it.

    Before a claim, permits() limits how many jobs to claim. After it, claimed() names those that were claimed. A job
    that is claimed already runs if admits() says so. When an attempt has ended, record() counts how it went. A claim is
    named by any hashable value."""

    def __init__(
        self,
        settings: BreakerLimits,
        *,
        clock: Callable[[], float] = time.monotonic,
        on_change: OnChange = lambda old, new: None,
    ) -> None:
        self._settings = settings
        self._clock = clock
        self._window = _Window(settings, clock)
        self._states = CircuitBreaker(state_storage=self._window, listeners=[_Listener(self._window, on_change)])
        self._lock = threading.Lock()
        self._seen_s = 0.0  # when a job of the route was last heard of, while it is not closed
        self._probe: object = None  # the claim that decides, or _BEING_CLAIMED
        self.error = ""  # of the last failure
        self.failure_share = 0.0  # when it opened last

    @property
    def state(self) -> str:
        """closed, half-open or open. After its cooldown an open one becomes half-open on the next call of permits()."""
        return self._window.current

    @property
    def is_closed(self) -> bool:
        return self._window.current == STATE_CLOSED

    @property
    def is_probe_due(self) -> bool:
        """Whether the next call of permits() lets a probe through."""
        with self._lock:
            if self._window.current == STATE_OPEN:
                return self._clock() - self._window.opened_s >= self._settings.cooldown_period
            return self._window.current == STATE_HALF_OPEN and self._probe is None

    def permits(self, wanted: int) -> int:
        """How many of the wanted claims may be made now. When half-open: one, for one caller."""
        with self._lock:
            if self._window.current == STATE_CLOSED or wanted <= 0:
                return max(0, wanted)
            if not self._is_probe_free():
                return 0
            self._probe = _BEING_CLAIMED
            return 1

    def claimed(self, claims: Sequence[object]) -> None:
        """Names what was claimed after permits(). When half-open it is the probe; if empty, another one is allowed."""
        with self._lock:
            if self._window.current == STATE_HALF_OPEN and self._probe is _BEING_CLAIMED:
                self._probe = claims[0] if claims else None

    def admits(self, claim: object, *, has_failed: bool = False) -> bool:
        """Whether this job may run now. When half-open it becomes the probe, if there is none. A job that has failed
        before says little about the others: just after the cooldown it leaves the probe to a job that has not."""
        with self._lock:
            if self._window.current == STATE_CLOSED:
                return True
            now_s = self._seen_s = self._clock()
            if not self._is_probe_free():
                return False
            if has_failed and now_s - self._window.opened_s - self._settings.cooldown_period < UNFAILED_FIRST_S:
                return False
            self._probe = claim
            return True

    def _is_probe_free(self) -> bool:
        """Whether a job can become the probe. An open breaker whose cooldown is over becomes half-open."""
        if self._window.current == STATE_OPEN:
            if self._clock() - self._window.opened_s < self._settings.cooldown_period:
                return False
            self._probe = None
            self._states.half_open()
        return self._probe is None

    def try_now(self, claim: object) -> None:
        """Lets the job of this claim run, because an operator wants it: also if the breaker is open. It is the probe,
        unless another probe runs already."""
        with self._lock:
            self._seen_s = self._clock()
            if self._window.current == STATE_OPEN:
                self._probe = None
                self._states.half_open()
            if self._window.current == STATE_HALF_OPEN and self._probe is None:
                self._probe = claim

    def record(self, claim: object, success: bool | None, error: str = "", job: object = None) -> None:
        """Counts how an attempt ended; None is not counted. When half-open only the probe counts, when open nothing.
        A result replaces those that the same `job` has in the window; without a name it is a job of its own."""
        with self._lock:
            if self._window.current == STATE_CLOSED:
                if success is not None:
                    self.error = self.error if success else error
                    share = self._window.add(claim if job is None else job, success)
                    if share is not None:
                        self._open(share)
                return
            self._seen_s = self._clock()
            if self._window.current == STATE_HALF_OPEN and claim == self._probe:
                self.error = error if success is False else self.error
                self._decide(success)

    def cooldown_left_s(self) -> float:
        """Seconds until an open breaker lets a probe through; 0 if it is not open."""
        with self._lock:
            if self._window.current != STATE_OPEN:
                return 0.0
            return max(0.0, self._window.opened_s + self._settings.cooldown_period - self._clock())

    def reset(self) -> None:
        """Closes the breaker with a clean window. A closed one stays as it is."""
        with self._lock:
            if self._window.current != STATE_CLOSED:
                self._decide(True)

    def close_if_idle(self) -> None:
        """Closes a breaker with a clean window if it could try a job and none has come for `window`."""
        with self._lock:
            if self._window.current == STATE_CLOSED or self._probe is not None:
                return
            now_s, settings = self._clock(), self._settings
            if now_s - self._window.opened_s >= settings.cooldown_period and now_s - self._seen_s >= settings.window:
                self._decide(True)

    def _decide(self, success: bool | None) -> None:
        self._probe = None
        if success is None:
            return
        if success:
            self._states.close()
        else:
            self._open(failure_share=1.0)

    def _open(self, failure_share: float) -> None:
        self.failure_share = failure_share
        self._seen_s = self._clock()
        self._states.open()


_BEING_CLAIMED = object()
