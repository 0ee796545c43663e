"""The circuit breakers of a worker: one for each route, so that one broken handler does not stop the others.

Says whether a job of a route may run now, and how many jobs the pump may claim. Never defers or releases a job itself.

What a kill -9 leaves: nothing. A new process starts with closed breakers.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from typing import TypeAlias

from fileq.brokers.types import OpenBreaker
from fileq.config.schema import CircuitBreakerSettings
from fileq.core.breaker import STATE_NUMBERS, UNFAILED_FIRST_S, Breaker
from fileq.core.events import BreakerClosed, BreakerHalfOpened, BreakerOpened, Emit, ignore
from fileq.core.outcome import Died, Done, Failed, FinalOutcome
from fileq.core.webhook import DELIVERY_ROUTE

ALL_ROUTES = ""  # the name that stands for all routes in the numbers of resets
ERROR_SHOWN = 300  # characters of the last failure's error
REFRESH_S = 1.0  # how often the numbers of deferred jobs are read while a breaker is not closed
OnEnd: TypeAlias = Callable[[str], None]
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
    The last routes, `built_in` of them, are fileq's own: they have none and do not count.

    `on_end` gets the reason for which jobs were deferred when their breaker closes; `deferred` says how many jobs are
    deferred for such a reason. `on_reset` is called after an
    operator has reset a breaker, also one that is closed here: the process that deferred its jobs may have ended."""

    def __init__(
        self,
        routes: Iterable[tuple[str, CircuitBreakerSettings]],
        *,
        built_in: int = 0,
        on_end: OnEnd = lambda reason: None,
        deferred: Callable[[str], int] = lambda reason: 0,
        on_reset: Callable[[], None] = lambda: None,
        clock: Callable[[], float] = time.monotonic,
        emit: Emit = ignore,
    ) -> None:
        self.has_deliveries: Callable[[], bool] = lambda: False  # whether there are webhooks, which no breaker stops
        self._on_end = on_end
        self._deferred = deferred
        self._clock = clock
        self._next_refresh_s = 0.0
        self._shown: list[int] = []  # how many jobs of each route were deferred at the last refresh
        self._on_reset = on_reset
        self._emit = emit
        self._settings = tuple(routes)
        self.names = tuple(name for name, _ in self._settings)
        own = tuple(self._breaker(i, clock) for i in range(len(self._settings)))
        self._of_names = own
        self._breakers = (*own, *[None] * built_in)
        self._resets: dict[str, int] | None = None
        self.is_closed = True  # all breakers are, the usual case: then nothing else is checked
        self.change_count = 0  # grows with each change of a state, or of a number of deferred jobs

    def _breaker(self, route: int, clock: Callable[[], float]) -> Breaker | None:
        _, settings = self._settings[route]
        if not settings.enabled:
            return None
        return Breaker(settings, clock=clock, on_change=lambda old, new: self._changed(route, old, new))

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
            self._on_end(self.reason(route))

    # one job

    def admits(self, route: int, claim: object, *, is_probe: bool = False, has_failed: bool = False) -> bool:
        """Whether this job may run now. If its breaker is half-open, the first job that asks is the probe, rather one
        that has not failed yet. A job that an operator has chosen as a probe does not wait for that."""
        breaker = self._breakers[route]
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
        breaker = self._breakers[route]
        left_s = breaker.cooldown_left_s() if breaker is not None else 0.0
        return left_s + UNFAILED_FIRST_S if left_s and has_failed else left_s

    def record(self, route: int, claim: object, success: bool | None, error: str = "", job: str | None = None) -> None:
        """Counts how an attempt of this route ended; None is not counted. Each `job` counts once in a window.
        Deliveries of webhooks have no breaker."""
        breaker = self._breakers[route] if route != DELIVERY_ROUTE else None
        if breaker is not None:
            breaker.record(claim, success, error[:ERROR_SHOWN], job)

    # claiming

    @property
    def is_limiting(self) -> bool:
        """The breaker of every route is open or half-open, and there are no webhooks: few claimed jobs could run."""
        if self.is_closed or self.has_deliveries():
            return False
        return all(breaker is not None and not breaker.is_closed for breaker in self._of_names)

    def permits(self, wanted: int) -> int:
        """How many jobs may be claimed now. While every breaker is open: none, then one at a time to find a probe."""
        if not self.is_limiting:
            return wanted
        due = [breaker for breaker in self._breakers if breaker is not None and breaker.is_probe_due]
        for breaker in due if wanted > 0 else ():
            breaker.permits(1)  # half-open from now on; the job that is claimed may be another route's
            breaker.claimed([])
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
        for breaker, count in zip(self._of_names, counts, strict=True):
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
        pairs = zip(self.names, self._of_names, strict=True)
        return [(name, STATE_NUMBERS[breaker.state] if breaker is not None else 0) for name, breaker in pairs]

    def deferred_numbers(self) -> list[tuple[str, int]]:
        """Each route with the number of jobs that this process has deferred because of its breaker, for metrics."""
        return list(zip(self.names, self._deferred_counts(), strict=True))

    def _deferred_counts(self) -> list[int]:
        return [
            self._deferred(reason_of(name)) if breaker is not None and not breaker.is_closed else 0
            for name, breaker in zip(self.names, self._of_names, strict=True)
        ]

    def open_ones(self) -> tuple[OpenBreaker, ...]:
        """Those that are not closed, as the registry shows them."""
        if self.is_closed:
            return ()
        now_ms = time.time_ns() // 1_000_000
        return tuple(
            OpenBreaker(
                route=name,
                state=breaker.state,
                error=breaker.error,
                failure_share=round(breaker.failure_share, 3),
                next_probe_ms=now_ms + round(left_s * 1000) if (left_s := breaker.cooldown_left_s()) else 0,
                deferred=self._deferred(reason_of(name)),
            )
            for name, breaker in zip(self.names, self._of_names, strict=True)
            if breaker is not None and not breaker.is_closed
        )

    def apply_resets(self, numbers: Mapping[str, int]) -> None:
        """Closes the breakers whose number of resets an operator has raised since the last call. The first call, at the
        start of the worker, only notes the numbers: those resets were requested before it ran."""
        before, self._resets = self._resets, dict(numbers)
        if before is None:
            return
        raised = {route for route, number in numbers.items() if number != before.get(route, 0)}
        for name, breaker in zip(self.names, self._of_names, strict=True):
            if breaker is not None and raised & {ALL_ROUTES, name}:
                breaker.reset()
        if raised:
            self._on_reset()
