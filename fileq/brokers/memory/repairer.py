"""The memory broker under repair: what lies where no record says so, and what a record says and nothing is there."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence

from fileq.brokers.memory.inspector import MemoryInspector
from fileq.brokers.memory.state import Row
from fileq.brokers.types import UnrecordedJob
from fileq.core.job import State


class MemoryMending(MemoryInspector):
    def ids(self, size: int = 500) -> Iterator[list[str]]:
        with self.lock:
            self.now()
            found = list(self.rows)
        for start in range(0, len(found), size):
            yield found[start : start + size]

    def lost(self, ids: Sequence[str]) -> list[bool]:
        with self.lock:
            self.now()
            rows = [self.rows.get(id) for id in ids]
            return [row is not None and self._is_astray(row) for row in rows]

    def _is_astray(self, row: Row) -> bool:
        """Never one of a queue that only another configuration knows: it may well lie there."""
        place = self._place_of(row)
        return place is not None and row.queue in self.queues and row.raw not in place

    def _place_of(self, row: Row) -> Collection[bytes] | None:
        """Where the element lies that the record speaks of; None when it has ended, and lies nowhere for ever."""
        return {
            State.PENDING: self.queues.get(row.queue, ()),
            State.SCHEDULED: self.scheduled,
            State.RETRYING: self.scheduled,
            State.RUNNING: self.processing.get(row.worker, ()),
            State.DEAD: self.dead,
        }.get(row.state)

    def restore(self, ids: Sequence[str]) -> list[bool]:
        with self.lock:
            self.now()
            return [self._reinstate(self.rows.get(id)) for id in ids]

    def _reinstate(self, row: Row | None) -> bool:
        if row is None or not self._is_astray(row):
            return False
        row.expires_ms = None
        if row.state is State.DEAD:
            self.dead.appendleft(row.raw)
        elif row.state in (State.SCHEDULED, State.RETRYING):
            self.scheduled[row.raw] = row.due_ms
        else:
            row.queued = max(row.queued, 1) if row.state is State.PENDING else row.queued + 1
            row.state = State.PENDING
            self.push_raw(row.queue, row.raw, front=True)
        return True

    def unrecorded(self, strays: Sequence[UnrecordedJob]) -> list[bool]:
        with self.lock:
            self.now()
            return [self._is_unrecorded(stray) for stray in strays]

    def _is_unrecorded(self, stray: UnrecordedJob) -> bool:
        places = {
            **self.queues,
            "scheduled": self.scheduled,
            "dead_letter": self.dead,
            "processing": self.processing.get(stray.record.worker, ()),
        }
        return stray.record.id not in self.rows and stray.record.raw in places[stray.place]

    def create_record(self, strays: Sequence[UnrecordedJob]) -> list[bool]:
        with self.lock:
            self.now()
            return [self._rerecord(stray) for stray in strays]

    def _rerecord(self, stray: UnrecordedJob) -> bool:
        if not self._is_unrecorded(stray):
            return False
        fields = {name: getattr(stray.record, name) for name in Row.__struct_fields__ if name != "expires_ms"}
        row = self.rows[stray.record.id] = Row(**{**fields, "attempts": list(stray.record.attempts)})
        row.queued = int(stray.place in self.queues)
        row.due_ms = self.scheduled[row.raw] if stray.place == "scheduled" else 0
        return True

    def balance(self, drift: int, becomes: int = 0) -> bool:
        with self.lock:
            if self.census(sweep=True).drift != drift:
                return False
            # The hour's counters stay: nothing happened in this hour.
            self.stats["deleted"] += max(0, drift - becomes)
            self.stats["adopted"] += max(0, becomes - drift)
            return True
