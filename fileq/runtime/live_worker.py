"""The worker of a role across reloads. Each reload makes a new worker beside the old one.

The old worker claims nothing any more, finishes its running jobs with its own handlers and ends. Until then up to twice
`worker.count` jobs run. A new worker that can't be made, for example because a handler can't be imported, changes
nothing. What a kill -9 leaves: claims of both workers. A reaper gives their jobs back.
"""

from __future__ import annotations

from collections.abc import Callable

from fileq.config import Loaded
from fileq.handlers.routes import Routes
from fileq.runtime.service import Service
from fileq.runtime.worker_build import WorkerParts
from fileq.runtime.worker_service import WorkerService


class LiveWorker:
    """`rebuild` makes a worker that follows one with these routes, and starts none of its services. `services` are the
    current ones of the role."""

    def __init__(
        self, parts: WorkerParts, services: list[Service], rebuild: Callable[[Loaded, Routes], WorkerParts]
    ) -> None:
        self._parts = parts
        self._services = services
        self._rebuild = rebuild
        self._retired: list[WorkerService] = []

    @property
    def retired(self) -> list[WorkerService]:
        """Old workers that still finish jobs."""
        self._retired = [service for service in self._retired if service.is_alive]
        return self._retired

    @property
    def routes(self) -> Routes:
        """The routes of the current worker."""
        return self._parts.routes

    def replace(self, loaded: Loaded) -> None:
        """Raises ConfigError, and changes nothing, if the handlers can't be loaded or would lose a type."""
        old, new = self._parts, self._rebuild(loaded, self.routes)
        for service in new.services:
            service.start()
        others = [service for service in self._services if service not in old.services]
        self._services[:] = [*new.services, *others]
        self._parts = new
        self._retired = [*self.retired, old.service]
        old.service.retire()
        for loop in old.services[1:]:
            loop.quiet()
        old.roots.close()
