"""The queues of an overview: how many jobs wait, for how long the next one, and who paused a queue. Does no I/O."""

from __future__ import annotations

from collections.abc import Mapping

from msgspec import Struct

from fileq.brokers.types import Overview
from fileq.commands.admin.pause_notes import PauseNote
from fileq.queries.job_summary import waiting_since_ms


class QueueStats(Struct, frozen=True):
    """`pause` is None if it is not paused, or if it is not known who paused it."""

    name: str
    length: int
    oldest_age_s: float | None
    is_paused: bool
    pause: PauseNote | None = None


def queues_of(overview: Overview, notes: Mapping[str, PauseNote] = {}) -> tuple[QueueStats, ...]:
    """`notes` are needed only while a queue is paused."""
    census = overview.census
    return tuple(
        QueueStats(
            name,
            length,
            _age_s(overview.fronts.get(name), census.now_ms),
            name in census.paused,
            notes.get(name) if name in census.paused else None,
        )
        for name, length in census.pending.items()
    )


def _age_s(raw: bytes | None, now_ms: int) -> float | None:
    since_ms = waiting_since_ms(raw) if raw is not None else None
    return None if since_ms is None else max(0, now_ms - since_ms) / 1000
