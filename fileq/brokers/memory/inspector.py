"""The memory broker for operators: protocol.Inspector over a MemoryStore. Every call is one step under its lock."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterator, Mapping, Sequence
from heapq import nsmallest
from itertools import islice
from operator import itemgetter

from fileq.brokers.clocks import HOUR_MS
from fileq.brokers.local_processes import Neighbours
from fileq.brokers.memory.queues import cancel, delete_member, end_withdrawn, key_holder, revive_member, take_key
from fileq.brokers.memory.store import MemoryStore
from fileq.brokers.place_pages import (
    NEWEST_FIRST,
    PROCESSING,
    LedgerPage,
    Page,
    Standing,
    check_page,
    ledger_page_of,
    offset_of,
    outline_of,
    page_of_slots,
    path_of_cursor,
    start_after,
    within_bytes,
)
from fileq.brokers.types import (
    CLEAR_REACH,
    CancelResult,
    Census,
    LedgerEntry,
    Overview,
    Record,
    Revival,
    Revived,
    WorkerView,
    check_clear,
    check_follow_ups,
)
from fileq.core.errors import BrokerError
from fileq.core.job import Job, State, decode_or_none, raw_id
from fileq.core.outcome import FollowUp


class MemoryInspector:
    _store: MemoryStore

    def census(self, *, sweep: bool = False) -> Census:
        with self._store.lock:
            return self._store.census(self._store.begin())

    def overview(self, hours: int = 2, jobs: int = 0) -> Overview:
        with self._store.lock:
            fronts = {name: raws[-1] for name, raws in self._store.queues.items() if raws}
            producers = tuple(self._store.living_producers(self._store.begin()))
            places = (*self._store.queue_names, "scheduled", *NEWEST_FIRST) if jobs > 0 else ()
            return Overview(
                census=self.census(),
                fronts=fronts,
                workers=tuple(self.workers()),
                hours=self.hourly(hours),
                producers=producers,
                orders=len(self._store.orders),
                first={place: tuple(raws) for place in places if (raws := self.peek(place, jobs))},
            )

    def peek(self, place: str, limit: int) -> list[bytes]:
        with self._store.lock:
            if place in self._store.queues or place == "scheduled":
                return self._oldest_first(place)[:limit]
            return list(islice(self._list_of(place), limit))

    def pages(self, place: str, size: int = 500) -> Iterator[list[bytes]]:
        with self._store.lock:
            raws = self._oldest_first(place)
        for start in range(0, len(raws), size):
            yield raws[start : start + size]

    def page(self, place: str, cursor: str = "", size: int = 100) -> Page:
        store = self._store
        check_page(place, size, store.queue_names)
        with store.lock:
            if place == PROCESSING:
                return page_of_slots(self.workers(), cursor, size)
            raws = list(self._list_of(place)) if place in NEWEST_FIRST else self._oldest_first(place)
        last = offset_of(cursor)
        start = start_after(raws, last)
        found = within_bytes(raws[start : start + size])
        return Page(tuple(found), last.after(start, found, len(raws)), len(raws))

    def ledger_page(self, under: bytes, cursor: str = "", size: int = 500) -> LedgerPage:
        last = path_of_cursor(cursor)
        with self._store.lock:
            found = ((path, entry) for path, entry in self._store.ledger.items() if path.startswith(under))
            return ledger_page_of(nsmallest(size, (one for one in found if one[0] > last), itemgetter(0)), size)

    def _oldest_first(self, place: str) -> list[bytes]:
        scheduled = self._store.scheduled
        if place == "scheduled":
            return sorted(scheduled, key=lambda raw: (scheduled[raw], raw))
        return list(reversed(self._list_of(place)))

    def _list_of(self, place: str) -> deque[bytes]:
        store = self._store
        places = {
            **store.queues,
            "dead_letter": store.dead,
            "completed": store.completed,
            "cancelled": store.cancelled,
        }
        if place not in places:
            raise BrokerError(f"no place is called {place!r}; there are {', '.join((*places, 'scheduled'))}")
        return places[place]

    def records(self, ids: Sequence[str]) -> list[Record | None]:
        with self._store.lock:
            self._store.begin()
            found = [self._store.records.get(id) for id in ids]
            return [record.view() if record is not None else None for record in found]

    def states(self, ids: Sequence[str]) -> list[State | None]:
        return [record.state if record is not None else None for record in self.records(ids)]

    def outlines(self, ids: Sequence[str]) -> list[Record | None]:
        return [outline_of(record) if record is not None else None for record in self.records(ids)]

    def standings(self, ids: Sequence[str]) -> list[Standing | None]:
        return [(record.state, record.created_ms) if record is not None else None for record in self.records(ids)]

    def fingerprints(self, ids: Sequence[str]) -> list[str]:
        return [record.fingerprint if record is not None else "" for record in self.records(ids)]

    def workers(self) -> list[WorkerView]:
        store, neighbours = self._store, Neighbours()
        with store.lock:
            now_ms = store.begin()
            return [
                WorkerView(
                    slot,
                    info,
                    store.is_alive(slot, now_ms) and not neighbours.is_gone(info.process),
                    b"".join(store.processing[slot]),
                    self._since_ms(slot),
                    max(0, store.alive_until_ms.get(slot, 0) - now_ms),
                )
                for slot, info in sorted(store.registry.items())
            ]

    def _since_ms(self, slot: str) -> int:
        jobs = [decode_or_none(raw) for raw in self._store.processing[slot]]
        records = [self._store.records.get(job.id) for job in jobs if job is not None]
        return max((record.started_ms for record in records if record is not None), default=0)

    def cancel(
        self, ids: Sequence[str], follow_ups: Mapping[str, Sequence[FollowUp]] | None = None
    ) -> list[CancelResult]:
        store, wanted = self._store, follow_ups or {}
        check_follow_ups(wanted.values(), store.queue_names)
        with store.lock:
            now_ms = store.begin()
            return cancel(store, ids, wanted, now_ms)

    def clear(
        self, queue: str, raws: Sequence[bytes], follow_ups: Mapping[str, Sequence[FollowUp]] | None = None
    ) -> list[bool]:
        store, wanted = self._store, follow_ups or {}
        check_clear(queue, raws, store.queue_names)
        check_follow_ups(wanted.values(), store.queue_names)
        with store.lock:
            now_ms = store.begin()
            waiting = store.queues[queue]
            near = Counter(islice(reversed(waiting), CLEAR_REACH))
            cleared = []
            for raw in raws:
                job = decode_or_none(raw) if near[raw] else None
                cleared.append(job is not None and self._clear(queue, raw, job, wanted.get(job.id, ()), now_ms))
                near[raw] -= cleared[-1]
            store.trim_ended(State.CANCELLED)
            return cleared

    def _clear(self, queue: str, raw: bytes, job: Job, follow_ups: Sequence[FollowUp], now_ms: int) -> bool:
        store = self._store
        record = store.records.get(job.id)
        if record is not None and record.state.is_unfinished and record.state is not State.PENDING:
            return False  # a copy of a job that is somewhere else
        if store.is_foreign(raw, State.PENDING):
            return False
        record = store.record_for(job.id, queue, raw, now_ms)
        record.raw, record.queue = raw, queue
        if record.queued:
            record.queued -= 1
        else:
            store.count(now_ms, "adopted")
        _remove_oldest(store.queues[queue], raw)
        end_withdrawn(store, record, follow_ups, now_ms)
        return True

    def makers(self, paths: Sequence[bytes]) -> list[str | None]:
        with self._store.lock:
            self._store.begin()
            found = (self._store.made.get(path) for path in paths)
            return [made[0] if made is not None else None for made in found]

    def known_files(self, paths: Sequence[bytes]) -> list[tuple[LedgerEntry | None, str | None]]:
        with self._store.lock:
            return list(zip(map(self._store.ledger.get, paths), self.makers(paths), strict=True))

    def revive(self, revivals: Sequence[Revival]) -> list[Revived]:
        with self._store.lock:
            now_ms = self._store.begin()
            return [self._revive(revival, now_ms) for revival in revivals]

    def _revive(self, revival: Revival, now_ms: int) -> Revived:
        store = self._store
        if revival.raw not in store.dead:
            return Revived(False)
        record = store.records.get(revival.id)
        queue = record.queue if record is not None else revival.queue
        job = decode_or_none(revival.next_raw)
        if job is None:
            store.push_undecodable(queue, revival.next_raw, front=revival.is_next, now_ms=now_ms)
            store.records.pop(revival.id, None)
        else:
            key = job.unique_key or ""
            if (holder := key_holder(store, key)) and holder != revival.id:
                return Revived(False, holder)
            if job.id != revival.id or store.is_foreign(revival.raw, State.DEAD):
                return Revived(False, is_foreign=True)
            if record is None:  # the job that had its id is forgotten
                store.records.pop(raw_id(revival.raw), None)
            record = store.record_for(revival.id, queue, revival.next_raw, now_ms)
            record.raw, record.error, record.ended_ms = revival.next_raw, "", 0
            record.is_cancel_requested, record.fingerprint = False, ""
            take_key(store, record, key)
            store.index_deadline(record, now_ms)
            store.push(record, front=revival.is_next)
            revive_member(store, record.batch, record.id)
        store.orders.pop(revival.id, None)
        _remove_oldest(store.dead, revival.raw)
        return Revived(True)

    def discard(self, dead: Sequence[tuple[str, bytes]]) -> list[bool]:
        store = self._store
        with store.lock:
            now_ms = store.begin()
            discarded = [self._discard(id, raw) for id, raw in dead]
            store.count(now_ms, "deleted", sum(discarded))
            return discarded

    def _discard(self, id: str, raw: bytes) -> bool:
        if raw not in self._store.dead:
            return False
        if id not in self._store.records or self._store.is_foreign(raw, State.DEAD):
            id = raw_id(raw)
        record = self._store.records.get(id)
        if record is not None and record.state is State.DEAD:
            delete_member(self._store, record.batch, id)
        # A copy that still waits in a queue needs the record.
        if record is not None and record.state is State.DEAD and not record.queued:
            del self._store.records[id]
        _remove_oldest(self._store.dead, raw)
        return True

    def pause(self, queue: str) -> None:
        with self._store.lock:
            self._store.paused.add(queue)

    def resume(self, queue: str) -> None:
        with self._store.lock:
            self._store.paused.discard(queue)
            self._store.wake()

    def reset_breaker(self, route: str) -> None:
        with self._store.lock:
            self._store.breaker_resets[route] += 1

    def hourly(self, hours: int) -> dict[int, dict[str, int]]:
        store = self._store
        with store.lock:
            newest = store.begin() // HOUR_MS
            kept = int(store.config.observability.stats_retention / 3600)
            wanted = range(newest - min(hours, kept + 1) + 1, newest + 1)
            return {hour: dict(store.hourly[hour]) for hour in wanted if hour in store.hourly}


def _remove_oldest(raws: deque[bytes], raw: bytes) -> None:
    raws.reverse()
    raws.remove(raw)
    raws.reverse()
