"""Reads the configuration again on SIGHUP, reports what it changed, and replaces the worker of the role.

The old worker claims nothing any more, finishes its running jobs with its own handlers and ends. Until then up to twice
`worker.count` jobs run. A new worker that can't be made, for example because a handler can't be imported, changes
nothing. What a kill -9 leaves: claims of both workers. A reaper gives their jobs back.
"""

from __future__ import annotations

from collections.abc import Callable

import msgspec
from msgspec import Struct

from fileq.config import Loaded
from fileq.config.load import changed_keys, with_reloadable
from fileq.core.errors import ConfigError, FileqError
from fileq.core.events import ConfigRefused, ConfigReloaded, Emit
from fileq.handlers.routes import Routes
from fileq.runtime.service import Service
from fileq.runtime.worker_build import WorkerParts
from fileq.runtime.worker_service import WorkerService


class Reloader(Struct):
    """`loaded` is the configuration in use. Without a worker every change needs a restart. `services` are the current
    ones of the role. `rebuild` makes a worker that follows one with these routes, and starts none of its services."""

    loaded: Loaded
    read: Callable[[], Loaded]
    emit: Emit
    worker: WorkerParts | None = None
    services: list[Service] = []
    rebuild: Callable[[Loaded, Routes], WorkerParts] | None = None
    earlier: list[WorkerService] = []

    @property
    def retired(self) -> list[WorkerService]:
        """Workers of earlier configurations that still finish jobs."""
        return [service for service in self.earlier if service.is_alive]

    def reload(self) -> None:
        """Takes over the handlers and what else can change, or nothing if the new configuration has an error."""
        old, worker = self.loaded.config, self.worker
        try:
            new = self.read().config
            config = with_reloadable(old, new) if worker is not None else old
            loaded = msgspec.structs.replace(self.loaded, config=config)
            if worker is not None and self.rebuild is not None:
                self._replace(worker, self.rebuild(loaded, worker.routes))
        except (FileqError, OSError) as error:
            problems = list(error.problems) if isinstance(error, ConfigError) else [str(error)]
            self.emit(ConfigRefused(problems, "the old configuration stays in use"))
            return
        self.loaded = loaded
        routes = self.worker.routes if self.worker is not None else None
        count, handlers = (len(routes), routes.names) if routes is not None else (None, None)
        self.emit(ConfigReloaded(changed_keys(old, config), changed_keys(config, new), count, handlers))

    def _replace(self, old: WorkerParts, new: WorkerParts) -> None:
        for service in new.services:
            service.start()
        others = [service for service in self.services if service not in old.services]
        self.services[:] = [*new.services, *others]
        self.worker = new
        self.earlier = [*self.retired, old.service]
        old.service.retire()
        for loop in old.services[1:]:
            loop.quiet()
        old.roots.close()
