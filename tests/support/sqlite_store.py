"""The back door into an SQLite broker's database: what another program or an operator with a shell can do to it."""

from typing import Any


def push_raw(broker: Any, queue: str, raw: bytes) -> None:
    """Puts bytes at the end of a queue, without a record, a counter or a wake-up."""
    with broker.store.database.transaction() as db:
        sql = "SELECT coalesce(max(position), 0) + 1 FROM queued WHERE queue = ?"
        (position,) = db.execute(sql, (queue,)).fetchone()
        db.execute("DELETE FROM holes WHERE queue = ? AND position = ?", (queue, position))
        db.execute("INSERT INTO queued VALUES (?, ?, ?)", (queue, position, raw))


def change_one_row(broker: Any, sql: str, *values: object) -> None:
    """Runs a statement that must change exactly one row."""
    with broker.store.database.transaction() as db:
        assert db.execute(sql, values).rowcount == 1


def one_value(broker: Any, sql: str, *values: object) -> Any:
    """The only column of the only row that a query returns."""
    with broker.store.database.transaction() as db:
        [(value,)] = db.execute(sql, values).fetchall()
        return value
