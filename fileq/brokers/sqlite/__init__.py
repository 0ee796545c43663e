"""The SQLite broker: one database file, shared by the processes of one machine.

database.py owns the file, its connections and its locks (locks.py, database_schema.py, faults.py). store.py adds what
a broker keeps outside the file, and opens units of work. unit_of_work.py is the work of one transaction (rows.py,
queue_table.py, ledger_table.py, ended_list.py). queues.py, inspector.py and repairer.py are the verbs over the store
(settlements.py, rate_window.py, census.py); broker.py puts them together. change_watcher.py and subscription.py wake
pumps and deliver events across processes.
"""

from __future__ import annotations

from fileq.brokers.sqlite.broker import SqliteBroker
from fileq.config import Config

__all__ = ["SqliteBroker", "open_sqlite"]


def open_sqlite(config: Config, *, create: bool = True) -> SqliteBroker:
    return SqliteBroker(config, create=create)
