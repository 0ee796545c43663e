"""The embedded broker: one SQLite file, shared by the processes of one machine.

store.py owns the file, its connections and locks (locks.py, schema.py, faults.py); books.py is the bookkeeping of
one transaction (rows.py, listing.py); broker.py, settle.py, rate.py and inspector.py are the verbs on it; wake.py wakes
and tells across processes; state.py is what a broker keeps outside the file.
"""

from __future__ import annotations

from fileq.brokers.sqlite.broker import SqliteBroker
from fileq.config import Config

__all__ = ["SqliteBroker", "open_sqlite"]


def open_sqlite(config: Config, *, create: bool = True) -> SqliteBroker:
    return SqliteBroker(config, create=create)
