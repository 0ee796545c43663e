"""The limits of a worker's routes: which claimed job may run now, which must wait, and which runs when one ends.

`max_running` is counted here. `max_running_total` and `rate` are shared by all workers, so the pump asks the broker
about them. A refused job is deferred; its route's breaker does not count it. When a job of the route ends, the first
job that was deferred for it is made due at once, so a limited route does not wait for the end of a deferral.

Never calls the broker. What a kill -9 leaves: nothing. Deferred jobs come back by themselves.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from fileq.brokers.types import Admission, AdmitRequest, AdmitResult
from fileq.core.job import Claim
from fileq.handlers.routes import BoundRoute, Routes
from fileq.worker.deferrals import Deferrals

LIMITS = ("max_running", "max_running_total", "rate")
CHECK_EVERY_S = 1.0  # whether jobs still wait for the limits that the registry shows


class Limits:
    """The limits of all routes, by the number of the route. A route without limits has no entry."""

    def __init__(self, routes: Routes, deferrals: Deferrals) -> None:
        self._deferrals = deferrals
        self._of = {n: route for n, route in enumerate(routes) if any(getattr(route, name) for name in LIMITS)}
        self.is_any = bool(self._of)  # without limits a job costs one look at this
        self.reached: tuple[str, ...] = ()  # what the registry shows
        self.change_count = 0  # grows with each change of `reached`
        self._next_check_s = 0.0

    def __contains__(self, route: int) -> bool:
        return route in self._of

    def refused_here(self, candidates: Iterable[int], running: Counter[int]) -> list[str | None]:
        """For each candidate, which is named by its route, why `max_running` refuses it, given how many jobs of each
        route run in this process."""
        answers: list[str | None] = []
        for number in candidates:
            route = self._of[number]
            if route.max_running is not None and running[number] >= route.max_running:
                answers.append(self._refuse(route, "max_running"))
            else:
                running[number] += 1
                answers.append(None)
        return answers

    def request(self, claim: Claim, number: int) -> AdmitRequest | None:
        """What the broker must be asked; None if the route shares no limit with other workers."""
        route = self._of[number]
        total, rate = route.max_running_total or 0, route.rate
        if not total and rate is None:
            return None
        rates = (rate.count, rate.window_ms) if rate is not None else ()
        return AdmitRequest(route.route_name, claim.slot, claim.raw, total, *rates)

    def refused_there(self, number: int, answer: Admission) -> tuple[str, float]:
        """Why the broker refuses a job of this route, and for how many seconds at least."""
        route, wait_s = self._of[number], answer.wait_ms / 1000
        if answer.result is AdmitResult.FULL:
            return self._refuse(route, "max_running_total"), wait_s
        assert route.rate is not None
        reason = self._refuse(route, "rate")
        self._deferrals.release_later(reason, wait_s, route.rate.count)
        return reason, wait_s

    def _refuse(self, route: BoundRoute, name: str) -> str:
        reason = _reason(route, name)
        if reason not in self.reached:
            self._show((*self.reached, reason))
        return reason

    def ended(self, number: int) -> None:
        """A job of this route no longer runs here: the first job that was deferred for it is due now."""
        route = self._of.get(number)
        if route is None:
            return
        for name in ("max_running", "max_running_total"):
            if getattr(route, name) is not None and self._deferrals.release(_reason(route, name), 1):
                return
        if route.max_running_total is not None:  # another worker may have deferred the job that can run now
            self._deferrals.release_elsewhere(_reason(route, "max_running_total"), 1, route.max_running_total)

    def admitted(self, number: int, id: str) -> None:
        """This job runs, so it does not wait for a limit any more."""
        route = self._of.get(number)
        if route is not None and self.reached:
            for name in LIMITS:
                if getattr(route, name) is not None:
                    self._deferrals.forget(_reason(route, name), (id,))

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


def _reason(route: BoundRoute, name: str) -> str:
    """Why a job of this route is deferred."""
    return f"the limit of {route.route_name} is reached ({name}: {getattr(route, name)})"
