"""The limits of a worker's routes: which claimed job may run now, which must wait, and which runs when one ends.

`max_running` is counted here. `max_running_total` and `rate` are shared by all workers, so the pump asks the broker
about them. A refused job is deferred; its route's breaker does not count it. When a job of the route ends, the first
job that was deferred for it is made due at once, so a limited route does not wait for the end of a deferral.

Never calls the broker. What a kill -9 leaves: nothing. Deferred jobs come back by themselves.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from msgspec import Struct

from fileq.brokers.types import Admission, AdmitRequest, AdmitResult
from fileq.core.claim import Claim
from fileq.core.settlement import Verb
from fileq.core.units import Rate
from fileq.handlers.routes import BoundRoute, Routes
from fileq.handlers.task import Task
from fileq.worker.deferrals import Deferrals
from fileq.worker.slots import Settling, Slot

LIMITS = ("max_running", "max_running_total", "rate")
CHECK_EVERY_S = 1.0  # whether jobs still wait for the limits that the registry shows


class Candidate(Struct, frozen=True):
    """A claimed job of a limited route that waits for the answer whether it may run."""

    slot: Slot
    claim: Claim
    task: Task


class Refusal(Struct, frozen=True):
    """Why a job must wait, and for how long at least."""

    reason: str
    wait_s: float


class RouteLimits(Struct, frozen=True):
    """The limits of one route. A limit that is None does not exist."""

    route: str
    max_running: int | None = None
    max_running_total: int | None = None
    rate: Rate | None = None

    @property
    def is_shared(self) -> bool:
        """Whether the broker has to be asked."""
        return self.max_running_total is not None or self.rate is not None

    def reason(self, name: str) -> str:
        """Why a job of this route is deferred."""
        return f"the limit of {self.route} is reached ({name}: {getattr(self, name)})"

    def request(self, claim: Claim) -> AdmitRequest:
        total, rate = self.max_running_total or 0, self.rate
        if rate is None:
            return AdmitRequest(self.route, claim.slot, claim.raw, total)
        return AdmitRequest(self.route, claim.slot, claim.raw, total, rate.count, rate.window_ms)


class Limits:
    """The limits of all routes, by the number of the route."""

    def __init__(self, routes: Routes, deferrals: Deferrals) -> None:
        self._deferrals = deferrals
        self._of = (*(_limits_of(route) for route in routes), None)  # DELIVERY_ROUTE is the last one
        self.is_any = any(self._of)  # without limits a job costs one look at this
        self.reached: tuple[str, ...] = ()  # what the registry shows
        self.change_count = 0  # grows with each change of `reached`
        self._next_check_s = 0.0

    def __getitem__(self, route: int) -> RouteLimits | None:
        return self._of[route]

    def refused_here(self, candidates: Iterable[Candidate], running: Counter[int]) -> list[Refusal | None]:
        """The answer of `max_running` to each candidate, given how many jobs of each route run in this process."""
        answers: list[Refusal | None] = []
        for candidate in candidates:
            route = candidate.task.route
            limits = self._of[route]
            assert limits is not None
            if limits.max_running is not None and running[route] >= limits.max_running:
                answers.append(self._refuse(limits, "max_running", 0.0))
            else:
                running[route] += 1
                answers.append(None)
        return answers

    def refused_there(self, route: int, answer: Admission) -> Refusal:
        """The refusal that the broker's answer means."""
        limits = self._of[route]
        assert limits is not None
        wait_s = answer.wait_ms / 1000
        if answer.result is AdmitResult.FULL:
            return self._refuse(limits, "max_running_total", wait_s)
        assert limits.rate is not None
        refusal = self._refuse(limits, "rate", wait_s)
        self._deferrals.release_later(refusal.reason, wait_s, limits.rate.count)
        return refusal

    def _refuse(self, limits: RouteLimits, name: str, wait_s: float) -> Refusal:
        reason = limits.reason(name)
        if reason not in self.reached:
            self._show((*self.reached, reason))
        return Refusal(reason, wait_s)

    def ended(self, route: int) -> None:
        """A job of this route no longer runs here: the first job that was deferred for it is due now."""
        limits = self._of[route]
        if limits is None:
            return
        for name in ("max_running", "max_running_total"):
            if getattr(limits, name) is not None and self._deferrals.release(limits.reason(name), 1):
                return
        if limits.max_running_total is not None:  # another worker may have deferred the job that can run now
            self._deferrals.release_elsewhere(limits.reason("max_running_total"), 1, limits.max_running_total)

    def admitted(self, route: int, id: str) -> None:
        """This job runs, so it does not wait for a limit any more."""
        limits = self._of[route]
        if limits is not None and self.reached:
            for name in LIMITS:
                if getattr(limits, name) is not None:
                    self._deferrals.forget(limits.reason(name), (id,))

    def lost(self, settling: Settling) -> None:
        """The slot is gone, so this settlement is never sent."""
        if settling.route is not None:
            self.ended(settling.route)
        if settling.settlement.verb is Verb.DEFER:
            self._deferrals.fenced(settling.settlement)

    def forget_unreached(self, now_s: float) -> None:
        """In each turn, with an effect once a second: a limit for which no job waits is no longer shown."""
        if now_s < self._next_check_s:
            return
        self._next_check_s = now_s + CHECK_EVERY_S
        still = tuple(reason for reason in self.reached if self._deferrals.is_any_waiting(reason))
        if still != self.reached:
            self._show(still)

    def _show(self, reached: tuple[str, ...]) -> None:
        self.reached = reached
        self.change_count += 1


def _limits_of(route: BoundRoute) -> RouteLimits | None:
    if route.max_running is None and route.max_running_total is None and route.rate is None:
        return None
    return RouteLimits(route.route_name, route.max_running, route.max_running_total, route.rate)
