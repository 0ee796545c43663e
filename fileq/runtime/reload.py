"""Reads the configuration again on SIGHUP, reports what it changed, and replaces the worker of the role.

The old worker claims nothing any more, finishes its running jobs with its own handlers and ends. Until then up to twice
`worker.count` jobs run. A new worker that can't be made, for example because a handler can't be imported, changes
nothing. What a kill -9 leaves: claims of both workers. A reaper gives their jobs back.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import msgspec

from fileq.config import Loaded
from fileq.config.load import changed_keys, with_reloadable
from fileq.core.errors import ConfigError, FileqError
from fileq.core.events import ConfigRefused, ConfigReloaded, Emit
from fileq.handlers.routes import Routes
from fileq.runtime.service import Service
from fileq.runtime.worker_build import WorkerParts
from fileq.runtime.worker_service import WorkerService


class Reloader:
    """`loaded` is the configuration in use. Without a worker every change needs a restart. `services` are the current
    ones of the role. `rebuild` makes a worker that follows one with these routes, and starts none of its services."""

    def __init__(
        self,
        loaded: Loaded,
        read: Callable[[], Loaded],
        emit: Emit,
        *,
        worker: WorkerParts | None = None,
        services: list[Service] | None = None,
        rebuild: Callable[[Loaded, Routes], WorkerParts] | None = None,
    ) -> None:
        self.loaded = loaded
        self._read = read
        self._emit = emit
        self._worker = worker
        self._services = services if services is not None else []
        self._rebuild = rebuild
        self._retired: list[WorkerService] = []

    @property
    def retired(self) -> Sequence[Service]:
        """Workers of earlier configurations that still finish jobs."""
        self._retired = [service for service in self._retired if service.is_alive]
        return self._retired

    def reload(self) -> None:
        """Takes over the handlers and what else can change, or nothing if the new configuration has an error."""
        old, worker = self.loaded.config, self._worker
        try:
            new = self._read().config
            config = with_reloadable(old, new) if worker is not None else old
            loaded = msgspec.structs.replace(self.loaded, config=config)
            if worker is not None and self._rebuild is not None:
                self._replace(worker, self._rebuild(loaded, worker.routes))
        except (FileqError, OSError) as error:
            problems = list(error.problems) if isinstance(error, ConfigError) else [str(error)]
            self._emit(ConfigRefused(problems, "the old configuration stays in use"))
            return
        self.loaded = loaded
        routes = self._worker.routes if self._worker is not None else None
        self._emit(
            ConfigReloaded(
                changed_keys(old, config),
                changed_keys(config, new),
                routes=len(routes) if routes is not None else None,
                handlers=routes.names if routes is not None else None,
            )
        )

    def _replace(self, old: WorkerParts, new: WorkerParts) -> None:
        for service in new.services:
            service.start()
        others = [service for service in self._services if service not in old.services]
        self._services[:] = [*new.services, *others]
        self._worker = new
        self._retired = [*self._retired, old.service]
        old.service.retire()
        for loop in old.services[1:]:
            loop.quiet()
        old.roots.close()
