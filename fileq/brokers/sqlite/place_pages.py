"""Pages of a place in SQLite. The cursor is the position of the last job, so a page is found by an index.

`scheduled` has no positions: its cursor is the due time of the last job, and how many jobs of that time were returned.
Reads only, in the caller's snapshot.
"""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Iterable

from fileq.brokers.place_pages import NEWEST_FIRST, PAGE_BYTES, Page, wrong_cursor
from fileq.brokers.sqlite.census import place_length

_NUMBER = re.compile("-?[0-9]{1,18}")


def read_page(db: sqlite3.Connection, place: str, cursor: str, size: int) -> Page:
    total = place_length(db, place)
    if place == "scheduled":
        due_ms, skipped = _numbers(cursor, 2) if cursor else (-(2**63), 0)
        sql = "SELECT due_ms, raw FROM scheduled WHERE due_ms >= ? ORDER BY due_ms, raw LIMIT ? OFFSET ?"
        rows, is_last = _cut(db.execute(sql, (due_ms, size + 1, skipped)), size)
        if is_last:
            return Page(_raws(rows), "", total)
        last_ms = rows[-1][0]
        same = sum(due == last_ms for due, _ in rows) + (skipped if last_ms == due_ms else 0)
        return Page(_raws(rows), f"{last_ms}.{same}", total)
    source, values = _source_of(place)
    after, order = ("<", "DESC") if place in NEWEST_FIRST else (">", "ASC")
    condition = f"AND position {after} ?" if cursor else ""
    at = _numbers(cursor, 1) if cursor else ()
    sql = f"SELECT position, raw FROM {source} {condition} ORDER BY position {order} LIMIT ?"
    rows, is_last = _cut(db.execute(sql, (*values, *at, size + 1)), size)
    return Page(_raws(rows), "" if is_last else str(rows[-1][0]), total)


def _source_of(place: str) -> tuple[str, tuple[str, ...]]:
    if place == "dead_letter":
        return "dead WHERE true", ()
    return ("ended WHERE state = ?", (place,)) if place in NEWEST_FIRST else ("queued WHERE queue = ?", (place,))


def _cut(rows: Iterable[tuple[int, bytes]], size: int) -> tuple[list[tuple[int, bytes]], bool]:
    """The rows of a page, and whether they are the last ones."""
    page: list[tuple[int, bytes]] = []
    page_bytes = 0
    for row in rows:
        page_bytes += len(row[1])
        if len(page) == size or (page and page_bytes > PAGE_BYTES):
            return page, False
        page.append(row)
    return page, True


def _raws(rows: Iterable[tuple[int, bytes]]) -> tuple[bytes, ...]:
    return tuple(raw for _, raw in rows)


def _numbers(cursor: str, count: int) -> tuple[int, ...]:
    parts = cursor.split(".")
    if len(parts) != count or not all(_NUMBER.fullmatch(part) for part in parts):
        raise wrong_cursor(cursor)
    return tuple(map(int, parts))
