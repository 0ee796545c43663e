"""The SQLite broker, put together: one store, and the groups of the protocol over it.

Every call that changes something is one transaction; database.py says what a kill -9 leaves of one.
"""

from __future__ import annotations

from collections.abc import Callable

from fileq.brokers.clocks import monotonic_clock_ms, wall_clock_ms
from fileq.brokers.sqlite.batches import SqliteBatches
from fileq.brokers.sqlite.catalog import SqliteCatalog
from fileq.brokers.sqlite.database_schema import VERSION
from fileq.brokers.sqlite.file_orders import SqliteFileOrders
from fileq.brokers.sqlite.inspector import SqliteInspector
from fileq.brokers.sqlite.producers import SqliteProducers
from fileq.brokers.sqlite.queues import SqliteQueues
from fileq.brokers.sqlite.repairer import SqliteRepairer
from fileq.brokers.sqlite.schedules import SqliteSchedules
from fileq.brokers.sqlite.store import SqliteStore
from fileq.config import Config
from fileq.core.finding import Finding, sound


class SqliteBroker(
    SqliteQueues,
    SqliteInspector,
    SqliteRepairer,
    SqliteProducers,
    SqliteFileOrders,
    SqliteCatalog,
    SqliteSchedules,
    SqliteBatches,
):
    kind = "sqlite"

    def __init__(
        self,
        config: Config,
        *,
        clock: Callable[[], int] = wall_clock_ms,
        monotonic: Callable[[], int] = monotonic_clock_ms,
        create: bool = True,
    ) -> None:
        self._store = SqliteStore(config, clock=clock, monotonic=monotonic, create=create)
        self.where = self._store.database.path

    @property
    def store(self) -> SqliteStore:
        """The back door of tests: what another program can do to the database."""
        return self._store

    def examine(self, *, permissions: bool = False) -> list[Finding]:
        """Checks the database's directory and file system. Their permissions are always checked."""
        from fileq.brokers.sqlite.examine import examine_location

        return [*examine_location(self.where), sound("schema", f"version {VERSION}")]

    def check_present(self) -> None:
        """Raises BrokerRemoved if the database file was deleted or replaced."""
        self._store.database.check_present()

    def close(self) -> None:
        self._store.close()
