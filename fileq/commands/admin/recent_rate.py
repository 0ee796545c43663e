"""How fast jobs ended in the last minute, from the records of the newest ended jobs. Changes nothing.

The broker counts by the hour, which says little about now. The lists of ended jobs are newest first, so a few records
tell how many of their jobs ended within the minute. The cost is bounded: two calls for each of two lists.
"""

from __future__ import annotations

from collections.abc import Sequence

from fileq.brokers.protocol import FullBroker
from fileq.brokers.types import Overview
from fileq.queries.job_summary import id_in

WINDOW_MS = 60_000
MOST = 1000  # ended jobs of one list that are looked at


def ended_per_second(broker: FullBroker, overview: Overview) -> float:
    """Jobs that were completed or died in the last minute, per second. The time before the first worker started does
    not count. If more than `MOST` jobs ended, it is the rate over the newest `MOST`."""
    now_ms = overview.census.now_ms
    started_ms = min((view.info.started_ms for view in overview.workers if view.is_alive), default=0)
    window_ms = max(1000, min(WINDOW_MS, now_ms - started_ms))
    completed = _rate(broker, "completed", overview.census.counters.get("completed", 0), now_ms, window_ms)
    return completed + _rate(broker, "dead_letter", overview.census.dead, now_ms, window_ms)


def _rate(broker: FullBroker, place: str, total: int, now_ms: int, window_ms: int) -> float:
    """`total` jobs were ever put into this place, as far as is known; the place may keep fewer."""
    ids = [id_in(raw) for raw in broker.peek(place, MOST)]
    count, oldest_ms = _newest_since(broker, ids, now_ms - window_ms)
    if count and count == len(ids) < total:
        # All that the place has are of this minute, and there were more: only their own time says how fast they were.
        return count / max(0.001, (now_ms - oldest_ms) / 1000)
    return count / (window_ms / 1000)


def _newest_since(broker: FullBroker, ids: Sequence[str], since_ms: int) -> tuple[int, int]:
    """How many jobs of a list, newest first, ended since then, and when the last of them ended."""
    probes = [i for i in (2**k - 1 for k in range(len(ids).bit_length())) if i < len(ids)]
    if ids and probes[-1] != len(ids) - 1:
        probes.append(len(ids) - 1)
    ended = dict(zip(probes, _ended_ms(broker, [ids[i] for i in probes]), strict=True))
    first_late = next((i for i in probes if ended[i] < since_ms), len(ids))
    known = max((i for i in probes if i < first_late), default=-1)
    if known < 0:
        return 0, 0
    between = range(known + 1, first_late)
    ended.update(zip(between, _ended_ms(broker, [ids[i] for i in between]), strict=True))
    last = known
    while last + 1 < first_late and ended[last + 1] >= since_ms:
        last += 1
    return last + 1, ended[last]


def _ended_ms(broker: FullBroker, ids: Sequence[str]) -> list[int]:
    """When each job ended; 0 without a record."""
    return [record.ended_ms if record is not None else 0 for record in broker.records(ids)] if ids else []
