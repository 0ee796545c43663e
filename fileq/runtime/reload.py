"""Reads the configuration again on SIGHUP, and reports what it changed."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import msgspec

from fileq.config import Loaded, changed_keys, with_reloadable
from fileq.core.errors import ConfigError, FileqError
from fileq.core.events import ConfigRefused, ConfigReloaded, Emit
from fileq.runtime.live_worker import LiveWorker
from fileq.runtime.service import Service


class Reloader:
    """`loaded` is the configuration in use. Without a worker every change needs a restart."""

    def __init__(self, loaded: Loaded, read: Callable[[], Loaded], worker: LiveWorker | None, emit: Emit) -> None:
        self.loaded = loaded
        self._read = read
        self._worker = worker
        self._emit = emit

    @property
    def retired(self) -> Sequence[Service]:
        """Workers of earlier configurations that still finish jobs."""
        return self._worker.retired if self._worker is not None else ()

    def reload(self) -> None:
        """Takes over the handlers and what else can change, or nothing if the new configuration has an error."""
        old = self.loaded.config
        try:
            new = self._read().config
            config = with_reloadable(old, new) if self._worker is not None else old
            loaded = msgspec.structs.replace(self.loaded, config=config)
            if self._worker is not None:
                self._worker.replace(loaded)
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
