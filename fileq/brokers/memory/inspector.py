"""The operator's face of the memory broker."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from itertools import islice

from fileq.brokers import events
from fileq.brokers.memory.state import Memory, Row
from fileq.brokers.types import CancelResult, Census, Overview, Record, Revival, WorkerView
from fileq.core.errors import BrokerError
from fileq.core.job import State, decode_or_none


class MemoryInspector(Memory):
    def census(self, *, sweep: bool = False) -> Census:
        with self.lock:
            now = self.now()
            return Census(
                pending={name: len(elements) for name, elements in self.queues.items()},
                scheduled=len(self.scheduled),
                running=sum(map(len, self.processing.values())),
                dead=len(self.dead),
                completed=len(self.completed),
                cancelled=len(self.cancelled),
                heartbeats=sum(self.is_alive(slot, now) for slot in self.heartbeats),
                counters=dict(self.stats),
                paused=frozenset(self.paused),
                now_ms=now,
            )

    def overview(self, hours: int = 2) -> Overview:
        with self.lock:
            fronts = {name: elements[-1] for name, elements in self.queues.items() if elements}
            return Overview(self.census(), fronts, tuple(self.workers()), self.hourly(hours))

    def peek(self, place: str, limit: int) -> list[bytes]:
        with self.lock:
            if place in self.queues or place == "scheduled":
                return self._oldest_first(place)[:limit]
            return list(islice(self._ended(place), limit))

    def pages(self, place: str, size: int = 500) -> Iterator[list[bytes]]:
        with self.lock:
            elements = self._oldest_first(place)
        for start in range(0, len(elements), size):
            yield elements[start : start + size]

    def _oldest_first(self, place: str) -> list[bytes]:
        if place == "scheduled":
            return sorted(self.scheduled, key=lambda raw: (self.scheduled[raw], raw))
        return list(reversed(self.queues.get(place) or self._ended(place)))

    def _ended(self, place: str) -> deque[bytes]:
        places = {
            **self.queues,
            "dead_letter": self.dead,
            "completed": self.completed,
            "cancelled": self.cancelled,
        }
        if place not in places:
            raise BrokerError(f"no place is called {place!r}; there are {', '.join((*places, 'scheduled'))}")
        return places[place]

    def records(self, ids: Sequence[str]) -> list[Record | None]:
        with self.lock:
            self.now()
            rows = [self.rows.get(id) for id in ids]
            return [row.view() if row is not None else None for row in rows]

    def workers(self) -> list[WorkerView]:
        with self.lock:
            now = self.now()
            return [
                WorkerView(slot, info, self.is_alive(slot, now), b"".join(self.processing[slot]), self._since(slot))
                for slot, info in sorted(self.registry.items())
            ]

    def _since(self, slot: str) -> int:
        jobs = [decode_or_none(raw) for raw in self.processing[slot]]
        rows = [self.rows.get(job.id) for job in jobs if job is not None]
        return max((row.started_ms for row in rows if row is not None), default=0)

    def cancel(self, ids: Sequence[str]) -> list[CancelResult]:
        with self.lock:
            now = self.now()
            return [self._cancel(self.rows.get(id), now) for id in ids]

    def _cancel(self, row: Row | None, now: int) -> CancelResult:
        if row is None:
            return CancelResult.UNKNOWN
        if row.state is State.RUNNING:
            row.is_cancel_requested = True
            return CancelResult.REQUESTED
        if row.state is State.PENDING and row.raw in self.queues[row.queue]:
            self.queues[row.queue].remove(row.raw)
            row.queued -= 1
        elif row.state in (State.SCHEDULED, State.RETRYING) and row.raw in self.scheduled:
            del self.scheduled[row.raw]
        else:
            return CancelResult.ENDED
        row.error = "cancelled"
        self.end(row, State.CANCELLED, now)
        self.publish(events.cancelled(row.id, row.queue))
        return CancelResult.CANCELLED

    def revive(self, revivals: Sequence[Revival]) -> list[bool]:
        with self.lock:
            now = self.now()
            return [self._revive(revival, now) for revival in revivals]

    def _revive(self, revival: Revival, now: int) -> bool:
        if revival.raw not in self.dead:
            return False
        row = self.rows.get(revival.id)
        queue = row.queue if row is not None else revival.queue
        if decode_or_none(revival.revived) is None:
            self.disown(queue, revival.revived, front=False, now_ms=now)
            self.rows.pop(revival.id, None)
        else:
            row = self.row_for(revival.id, queue, revival.revived, now)
            row.raw, row.error, row.ended_ms, row.is_cancel_requested = revival.revived, "", 0, False
            self.push(row, front=False)
        _remove_oldest(self.dead, revival.raw)
        return True

    def discard(self, elements: Sequence[tuple[str, bytes]]) -> int:
        with self.lock:
            now = self.now()
            there = [(id, raw) for id, raw in elements if raw in self.dead and self._discard(id, raw)]
            self.count(now, "deleted", len(there))
            return len(there)

    def _discard(self, id: str, raw: bytes) -> bool:
        row = self.rows.get(id)
        if row is not None and row.state is State.DEAD and not row.queued:  # else a copy still waits, and needs it
            del self.rows[id]
        _remove_oldest(self.dead, raw)
        return True

    def pause(self, queue: str) -> None:
        with self.lock:
            self.paused.add(queue)

    def resume(self, queue: str) -> None:
        with self.lock:
            self.paused.discard(queue)
            self.wake()

    def hourly(self, hours: int) -> dict[int, dict[str, int]]:
        with self.lock:
            newest = self.now() // 3_600_000
            kept = int(self.config.observability.stats_retention / 3600)
            wanted = range(newest - min(hours, kept + 1) + 1, newest + 1)
            return {hour: dict(self.hours[hour]) for hour in wanted if hour in self.hours}


def _remove_oldest(elements: deque[bytes], raw: bytes) -> None:
    elements.reverse()
    elements.remove(raw)
    elements.reverse()
