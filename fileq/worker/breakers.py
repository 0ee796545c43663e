"""The circuit breakers of a worker: one for each route, so that one broken handler does not stop the others.

A breaker stops the jobs of its route when most attempts fail, and lets one through as a probe. Says whether a job may
run now, and how many jobs the pump may claim. Never defers or releases a job itself.

pybreaker moves between the states and reports each change; its storage and its listener are ours. The storage holds a
rolling window, whose failure rate decides. pybreaker's own decisions are not used: call() counts consecutive failures
of a call that ends where it began, by the wall clock, and half-open it lets every caller through. A job ends in another
process at another time, a result may say nothing, and one probe is let through.

Each job counts once in a window: its last result replaces the earlier ones, so a few bad jobs that are retried again
and again do not outweigh the good ones. Only failed jobs can have another result, so only their ids are kept, at most
FAILED_KEPT of them. All other results are counted by time, in SLICES parts of the window. So the memory does not depend
on the rate of the jobs.

What a kill -9 leaves: nothing. A new process starts with closed breakers and empty windows.
"""

from __future__ import annotations

import threading
import time
from collections import OrderedDict, deque
from collections.abc import Callable, Iterable, Mapping
from datetime import datetime
from typing import TypeAlias

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

from fileq.brokers.types import OpenBreaker
from fileq.config.schema import CircuitBreakerSettings
from fileq.core.events import BreakerClosed, BreakerHalfOpened, BreakerOpened, Emit, ignore
from fileq.core.job import wall_clock_ms
from fileq.core.outcome import Died, Done, Failed, FinalOutcome
from fileq.worker.deferrals import Deferrals

ALL_ROUTES = ""  # the name that stands for all routes in the numbers of resets
ERROR_SHOWN = 300  # characters of the last failure's error
REFRESH_S = 1.0  # how often the numbers of deferred jobs are read while a breaker is not closed
SLICES = 100
FAILED_KEPT = 10_000  # failed jobs of a window whose next result replaces the failure; more of them count each time
UNFAILED_FIRST_S = 1.0  # for so long after a cooldown only a job that has not failed yet can be the probe
STATE_NUMBERS = {STATE_CLOSED: 0, STATE_HALF_OPEN: 1, STATE_OPEN: 2}  # as the metric shows them
OnChange: TypeAlias = Callable[[str, str], None]  # from, to
_EVENTS = {"open": BreakerOpened, "half-open": BreakerHalfOpened, "closed": BreakerClosed}


def sample_of(outcome: FinalOutcome) -> bool | None:
    """Whether the attempt succeeded; None if the outcome says nothing about the handler."""
    if isinstance(outcome, Done):
        return True
    if isinstance(outcome, Failed):
        return False if outcome.is_sample else None
    return False if isinstance(outcome, Died) else None


def reason_of(route: str) -> str:
    """Why jobs of the route with this name are deferred."""
    return f"the circuit breaker of {route} is open"


class Breakers:
    """The breakers of all routes, by the number of the route. A route whose breaker is disabled has none.
    The routes of fileq's own jobs, whose numbers follow, have none either and do not count.

    `deferrals` has the jobs that wait for a breaker. It releases them when the breaker closes, and looks for them after
    an operator has reset a breaker, also one that is closed here: the process that deferred its jobs may have ended."""

    def __init__(
        self,
        routes: Iterable[tuple[str, CircuitBreakerSettings]],
        deferrals: Deferrals,
        *,
        clock: Callable[[], float] = time.monotonic,
        emit: Emit = ignore,
    ) -> None:
        self.has_deliveries: Callable[[], bool] = lambda: False  # whether there are webhooks, which no breaker stops
        self._deferrals = deferrals
        self._clock = clock
        self._next_refresh_s = 0.0
        self._shown: list[int] = []  # how many jobs of each route were deferred at the last refresh
        self._emit = emit
        self._settings = tuple(routes)
        self.names = tuple(name for name, _ in self._settings)
        self._breakers = tuple(self._breaker(i, clock) for i in range(len(self._settings)))
        self._resets: dict[str, int] | None = None
        self.is_closed = True  # all breakers are, the usual case: then nothing else is checked
        self.change_count = 0  # grows with each change of a state, or of a number of deferred jobs

    def _breaker(self, route: int, clock: Callable[[], float]) -> Breaker | None:
        _, settings = self._settings[route]
        if not settings.enabled:
            return None
        return Breaker(settings, clock=clock, on_change=lambda old, new: self._changed(route, old, new))

    def _of(self, route: int) -> Breaker | None:
        """The numbers of deliveries and of fileq's own jobs are outside."""
        return self._breakers[route] if 0 <= route < len(self._breakers) else None

    def _changed(self, route: int, old: str, new: str) -> None:
        breaker = self._breakers[route]
        assert breaker is not None
        self.change_count += 1
        self.is_closed = all(other is None or other.is_closed for other in self._breakers)
        name, settings = self._settings[route]
        is_open, is_closed = new == "open", new == "closed"
        self._emit(
            _EVENTS[new](
                was=old,
                route=name,
                error=None if is_closed else breaker.error or None,
                failure_share=None if is_closed else round(breaker.failure_share, 3),
                next_probe_s=settings.cooldown_period if is_open else None,
            )
        )
        if is_closed:
            self._deferrals.end(self.reason(route))

    # one job

    def admits(self, route: int, claim: object, *, is_probe: bool = False, has_failed: bool = False) -> bool:
        """Whether this job may run now. If its breaker is half-open, the first job that asks is the probe, rather one
        that has not failed yet. A job that an operator has chosen as a probe does not wait for that."""
        breaker = self._of(route)
        if breaker is None or breaker.is_closed:
            return True
        if is_probe:
            breaker.try_now(claim)
            return True
        return breaker.admits(claim, has_failed=has_failed)

    def reason(self, route: int) -> str:
        return reason_of(self.names[route])

    def wait_s(self, route: int, *, has_failed: bool = False) -> float:
        """For how many seconds the breaker will not admit this job; 0 if that depends on a probe."""
        breaker = self._of(route)
        left_s = breaker.cooldown_left_s() if breaker is not None else 0.0
        return left_s + UNFAILED_FIRST_S if left_s and has_failed else left_s

    def record(self, route: int, claim: object, success: bool | None, error: str = "", job: str | None = None) -> None:
        """Counts how an attempt of this route ended; None is not counted. Each `job` counts once in a window."""
        breaker = self._of(route)
        if breaker is not None:
            breaker.record(claim, success, error[:ERROR_SHOWN], job)

    # claiming

    @property
    def is_limiting(self) -> bool:
        """The breaker of every route is open or half-open, and there are no webhooks: few claimed jobs could run."""
        if self.is_closed or self.has_deliveries():
            return False
        return all(breaker is not None and not breaker.is_closed for breaker in self._breakers)

    def permits(self, wanted: int) -> int:
        """How many jobs may be claimed now. While every breaker is open: none, then one at a time to find a probe."""
        if not self.is_limiting:
            return wanted
        due = [breaker for breaker in self._breakers if breaker is not None and breaker.is_probe_due]
        for breaker in due:  # none names its probe yet: the job that is claimed may be another route's
            breaker.await_probe()
        return min(wanted, 1) if due else 0

    def next_probe_s(self) -> float:
        """Seconds until claims are allowed again; 0 if they are allowed or a running probe decides it."""
        if not self.is_limiting:
            return 0.0
        waits = (breaker.cooldown_left_s() for breaker in self._breakers if breaker is not None)
        return min((wait for wait in waits if wait), default=0.0)

    def refresh(self) -> None:
        """Closes the breakers of routes without jobs, and notes changes of how many jobs are deferred. Does nothing
        while all are closed, nor within REFRESH_S of the last time."""
        if self.is_closed or (now_s := self._clock()) < self._next_refresh_s:
            return
        self._next_refresh_s = now_s + REFRESH_S
        counts = self._deferred_counts()
        for breaker, count in zip(self._breakers, counts, strict=True):
            if breaker is not None and not count:
                breaker.close_if_idle()
        if counts != self._shown:
            self._shown = counts
            self.change_count += 1

    # what operators see and do

    @property
    def state(self) -> str:
        """The worst state of all routes."""
        states = (breaker.state for breaker in self._breakers if breaker is not None)
        return max(states, key=STATE_NUMBERS.__getitem__, default="closed")

    def numbers(self) -> list[tuple[str, int]]:
        """Each route with the number of its breaker's state, for metrics; 0 without a breaker."""
        pairs = zip(self.names, self._breakers, strict=True)
        return [(name, STATE_NUMBERS[breaker.state] if breaker is not None else 0) for name, breaker in pairs]

    def deferred_numbers(self) -> list[tuple[str, int]]:
        """Each route with the number of jobs that this process has deferred because of its breaker, for metrics."""
        return list(zip(self.names, self._deferred_counts(), strict=True))

    def _deferred_counts(self) -> list[int]:
        return [
            self._deferrals.count(reason_of(name)) if breaker is not None and not breaker.is_closed else 0
            for name, breaker in zip(self.names, self._breakers, strict=True)
        ]

    def open_ones(self) -> tuple[OpenBreaker, ...]:
        """Those that are not closed, as the registry shows them."""
        if self.is_closed:
            return ()
        now_ms = wall_clock_ms()
        return tuple(
            OpenBreaker(
                route=name,
                state=breaker.state,
                error=breaker.error,
                failure_share=round(breaker.failure_share, 3),
                next_probe_ms=now_ms + round(left_s * 1000) if (left_s := breaker.cooldown_left_s()) else 0,
                deferred=self._deferrals.count(reason_of(name)),
            )
            for name, breaker in zip(self.names, self._breakers, strict=True)
            if breaker is not None and not breaker.is_closed
        )

    def apply_resets(self, numbers: Mapping[str, int]) -> None:
        """Closes the breakers whose number of resets an operator has raised since the last call. The first call, at the
        start of the worker, only notes the numbers: those resets were requested before it ran."""
        before, self._resets = self._resets, dict(numbers)
        if before is None:
            return
        raised = {route for route, number in numbers.items() if number != before.get(route, 0)}
        for name, breaker in zip(self.names, self._breakers, strict=True):
            if breaker is not None and raised & {ALL_ROUTES, name}:
                breaker.reset()
        if raised:
            self._deferrals.request_search()


# one breaker


class _Slice(Struct):
    """The results of a short time that no later result replaces."""

    start_s: float
    successes: int = 0
    failures: int = 0  # of jobs beyond FAILED_KEPT


class _Window(CircuitBreakerStorage):
    """The state of a breaker and the results of the last `window` seconds. `current` is the state."""

    def __init__(self, settings: CircuitBreakerSettings, clock: Callable[[], float]) -> None:
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

    A job that is claimed runs if admits() says so. When an attempt has ended, record() counts how it went. A claim is
    named by any hashable value."""

    def __init__(
        self,
        settings: CircuitBreakerSettings,
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
        self._probe: object = None  # the claim that decides
        self.error = ""  # of the last failure
        self.failure_share = 0.0  # when it opened last

    @property
    def state(self) -> str:
        """closed, half-open or open. After its cooldown an open one becomes half-open when the next job asks."""
        return self._window.current

    @property
    def is_closed(self) -> bool:
        return self._window.current == STATE_CLOSED

    @property
    def is_probe_due(self) -> bool:
        """Whether the next job that asks may be the probe."""
        with self._lock:
            if self._window.current == STATE_OPEN:
                return self._clock() - self._window.opened_s >= self._settings.cooldown_period
            return self._window.current == STATE_HALF_OPEN and self._probe is None

    def await_probe(self) -> None:
        """Half-open from now on, if the cooldown is over: the next job that asks is the probe."""
        with self._lock:
            self._is_probe_free()

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
