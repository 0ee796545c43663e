"""When a worker renews the leases of its slots, and what the registry shows of it. Never calls the broker.

What a kill -9 leaves: registered slots whose heartbeats run out. Then a reaper gives their jobs back.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Callable

from fileq import __version__
from fileq.brokers.local_processes import this_process
from fileq.brokers.types import WorkerInfo
from fileq.config import Config
from fileq.core.job import wall_clock_ms
from fileq.handlers.routes import Routes
from fileq.worker.breakers import Breakers
from fileq.worker.deferrals import Limits, RootsWatch

CANCELS_EVERY_S = 0.5  # the shortest time between two renewals because of cancellations
TYPES_MAX = 1000  # of a worker that the registry shows
# A reload makes new slots in the same process, whose start stays the same.
_PROCESS_STARTED_MS = wall_clock_ms()


class Heartbeats:
    """`due_s` is the time of the next renewal, by the monotonic clock; `shown` what the registry knows of to_show()."""

    def __init__(
        self,
        config: Config,
        routes: Routes,
        breakers: Breakers,
        limits: Limits,
        roots: RootsWatch,
        *,
        is_draining: Callable[[], bool],
        clock: Callable[[], float],
    ) -> None:
        self._worker = config.worker
        self._types = routes.types if len(routes.types) <= TYPES_MAX else None
        self._globs = routes.globs if len(routes.globs) <= TYPES_MAX else None
        self._allowed = config.paths.allowed_there
        self._loaded_ms = wall_clock_ms()
        self._breakers = breakers
        self._limits = limits
        self._roots = roots
        self._is_draining = is_draining
        self._monotonic = clock
        self._every_s = config.worker.heartbeat_ttl / 3
        self._renewed_s = 0.0
        self.due_s = 0.0
        self.shown = (-1, -1, -1, False)

    def start(self) -> None:
        self.due_s = self._monotonic() + self._every_s

    def note_renewed(self) -> None:
        self._renewed_s = self._monotonic()
        self.due_s = self._renewed_s + self._every_s

    def renew_now(self) -> None:
        """Makes a renewal due at once."""
        self.due_s = self._monotonic()

    def renew_soon(self) -> None:
        """Makes a renewal due because a cancellation was requested somewhere. Many requests share one renewal."""
        self.due_s = min(self.due_s, max(self._monotonic(), self._renewed_s + CANCELS_EVERY_S))

    @property
    def is_renewal_due(self) -> bool:
        return self._monotonic() >= self.due_s

    @property
    def is_registration_due(self) -> bool:
        return self.to_show() != self.shown

    def to_show(self) -> tuple[int, int, int, bool]:
        """Numbers that grow with each change of what the registry shows, and whether the worker drains."""
        changes = self._breakers.change_count, self._limits.change_count, self._roots.change_count
        return *changes, self._is_draining()

    def info(self, number: int) -> WorkerInfo:
        """Of the slot with this number. The first one says for all of them what the worker takes."""
        worker, breakers, own = self._worker, self._breakers, this_process()
        return WorkerInfo(
            host=socket.gethostname(),
            pid=os.getpid(),
            started_ms=_PROCESS_STARTED_MS,
            version=__version__,
            queues=tuple(worker.priorities),
            breaker=breakers.state,
            breakers=breakers.open_ones(),
            is_claiming=not breakers.is_limiting,
            lost_roots=tuple(self._roots.problems.values()),
            lease_ms=round(worker.heartbeat_ttl * 1000),
            limits=self._limits.reached,
            loaded_ms=self._loaded_ms,
            is_extra=number >= worker.count,
            types=self._types if number == 0 else None,
            globs=self._globs if number == 0 else None,
            roots=self._allowed if number == 0 else (),
            boot_id=own.boot_id,
            namespaces=own.namespaces,
            pid_start=own.pid_start,
            count=worker.count,
            is_draining=self._is_draining(),
        )
