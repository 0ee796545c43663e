"""The SQLite broker: one database file, shared by the processes of one machine.

database.py owns the file, its connections and its locks (database_schema.py, file_access.py). broker.py adds to the
rulebook (brokers/rules) what a broker keeps outside the file, and the lists by pages. change_watcher.py wakes pumps and
delivers events across processes.
"""

from __future__ import annotations

from fileq.brokers.sqlite.broker import SqliteBroker

__all__ = ["SqliteBroker"]
