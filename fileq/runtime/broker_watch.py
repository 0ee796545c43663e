"""Ends a role when the data of its broker is deleted or replaced, such as the file of an SQLite database.

Without it a process would go on with the deleted file, and a producer without work would not notice at all. Checks
nothing for a broker that can't lose its data that way.
"""

from __future__ import annotations

from collections.abc import Callable

from fileq.brokers.protocol import Broker
from fileq.brokers.removable_data import RemovableData
from fileq.core.errors import BrokerRemoved
from fileq.core.events import BrokerDataRemoved, Emit
from fileq.runtime.loop import Loop

CHECK_EVERY_S = 1.0


class BrokerWatch:
    """Checks once a second. Calls `on_removed` once, with the reason."""

    def __init__(self, broker: Broker, on_removed: Callable[[BrokerRemoved], None], emit: Emit) -> None:
        self._on_removed = on_removed
        self._emit = emit
        self._data = broker if isinstance(broker, RemovableData) else None
        self._loop = Loop("broker watch", self._turn, emit=emit, longest_pause_s=CHECK_EVERY_S)

    def start(self) -> None:
        if self._data is not None:
            self._loop.start()

    def close(self) -> None:
        self._loop.stop(CHECK_EVERY_S)

    def _turn(self) -> float:
        assert self._data is not None
        try:
            self._data.check_present()
        except BrokerRemoved as error:
            self._emit(BrokerDataRemoved(str(error)))
            self._loop.quiet()
            self._on_removed(error)
        return CHECK_EVERY_S
