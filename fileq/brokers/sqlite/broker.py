"""The SQLite broker: the rulebook over the tables of one database file.

Every call that changes something is one transaction; database.py says what a kill -9 leaves of one.
"""

from __future__ import annotations

from collections.abc import Callable

from fileq.brokers.clocks import monotonic_clock_ms, wall_clock_ms
from fileq.brokers.sqlite.database_schema import VERSION
from fileq.brokers.sqlite.lists import SqliteLists
from fileq.brokers.sqlite.store import SqliteStore
from fileq.config import Config
from fileq.core.finding import Finding, sound


class SqliteBroker(SqliteLists):
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
