"""Counts the jobs of each place and reads the counters, in the caller's transaction or snapshot. Changes nothing."""

from __future__ import annotations

import sqlite3

from fileq.brokers.sqlite.store import SqliteStore
from fileq.brokers.sqlite.unit_of_work import first_and_last, queue_length, queues_with_jobs
from fileq.brokers.types import Census
from fileq.core.job import State


def take_census(db: sqlite3.Connection, store: SqliteStore, now_ms: int, *, is_exact: bool = False) -> Census:
    """`is_exact` counts every job of a queue instead of deriving the length; that takes longer."""
    if is_exact:
        lengths = dict(db.execute("SELECT queue, count(*) FROM queued GROUP BY queue"))
    else:
        lengths = {queue: queue_length(db, queue) for queue in queues_with_jobs(db)}
    return Census(
        pending={**dict.fromkeys(store.queue_names, 0), **lengths},
        scheduled=_number(db, "SELECT count(*) FROM scheduled"),
        running=_number(db, "SELECT count(held) FROM slots"),
        dead=_number(db, "SELECT count(*) FROM dead"),
        completed=_ended_length(db, State.COMPLETED),
        cancelled=_ended_length(db, State.CANCELLED),
        heartbeats=_number(
            db,
            "SELECT count(*) FROM slots WHERE boot = ? AND alive_until_ms > ?",
            (store.database.boot, store.monotonic()),
        ),
        counters=dict(db.execute("SELECT name, value FROM stats")),
        paused=paused_queues(db),
        now_ms=now_ms,
        unfinished_batches=_number(db, "SELECT count(*) FROM batches WHERE finished_ms = 0"),
    )


def paused_queues(db: sqlite3.Connection) -> frozenset[str]:
    return frozenset(queue for (queue,) in db.execute("SELECT queue FROM paused"))


def place_length(db: sqlite3.Connection, place: str) -> int:
    """How many jobs a queue, `scheduled`, `dead_letter`, `completed` or `cancelled` holds."""
    if place == "scheduled":
        return _number(db, "SELECT count(*) FROM scheduled")
    if place == "dead_letter":
        return _number(db, "SELECT count(*) FROM dead")
    if place in (State.COMPLETED, State.CANCELLED):
        return _ended_length(db, State(place))
    return queue_length(db, place)


def _ended_length(db: sqlite3.Connection, state: State) -> int:
    first, last = first_and_last(db, state)
    return last - first + 1


def _number(db: sqlite3.Connection, sql: str, values: tuple[object, ...] = ()) -> int:
    number: int = db.execute(sql, values).fetchone()[0]
    return number
