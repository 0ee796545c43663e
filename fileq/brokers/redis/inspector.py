"""The operator's face of the broker on Redis. Looks in pages, never with one call over everything."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from itertools import chain
from typing import Any

import msgspec
from msgspec.structs import replace

from fileq.brokers import wire_events
from fileq.brokers.redis.repairer import RedisMending
from fileq.brokers.redis.scripts import Call
from fileq.brokers.redis.wire import as_claim, as_record
from fileq.brokers.types import CancelResult, Census, Overview, Record, Revival, WorkerInfo, WorkerView
from fileq.core.claim import Claim
from fileq.core.errors import BrokerError, Undecodable
from fileq.core.job import decode

HOUR_MS = 3_600_000
_info_decoder = msgspec.json.Decoder(WorkerInfo)


class RedisInspector(RedisMending):
    def census(self, *, sweep: bool = False) -> Census:
        lists = [self.names.processing(slot) for slot in self.orphans()] if sweep else []
        return self._as_census(self.scripts.one("census", lists, self.names.pattern_halves()))

    def _as_census(self, reply: Any) -> Census:
        now, pending, scheduled, running, dead, completed, cancelled, heartbeats, paused, counters = reply
        return Census(
            pending=dict(zip(self.names.queue_names, pending, strict=True)),
            scheduled=scheduled,
            running=running,
            dead=dead,
            completed=completed,
            cancelled=cancelled,
            heartbeats=heartbeats,
            counters=_counters(counters),
            paused=frozenset(name.decode() for name in paused),
            now_ms=int(now),
        )

    def overview(self, hours: int = 2) -> Overview:
        """Two scripts in one round trip, then the fronts and the hours, which need the server's time, in another."""
        halves = self.names.pattern_halves()
        looked = self.scripts.run(Call("census", (), halves), Call("workers", (), halves))
        census, workers = (self.link.value(reply) for reply in looked)
        newest = int(census[0]) // HOUR_MS
        wanted = range(newest - hours + 1, newest + 1)
        fronts = [("LINDEX", key, -1) for key in self.names.queues]
        replies = self.link.calls([*fronts, *(("HGETALL", f"{self.names.stats}:{hour}") for hour in wanted)])
        found = zip(self.names.queue_names, replies, strict=False)
        return Overview(
            census=self._as_census(census),
            fronts={queue: raw for queue, raw in found if raw is not None},
            workers=_as_views(workers),
            hours=_hours(wanted, replies[len(fronts) :]),
        )

    def peek(self, place: str, limit: int) -> list[bytes]:
        if limit < 1:
            return []
        if place == "scheduled":
            return list(self.link.call("ZRANGE", self.names.scheduled, 0, limit - 1))
        key = self._list(place)
        if place in self.names.queue_names:
            return list(reversed(self.link.call("LRANGE", key, -limit, -1)))
        return list(self.link.call("LRANGE", key, 0, limit - 1))

    def pages(self, place: str, size: int = 500) -> Iterator[list[bytes]]:
        start = 0
        while True:
            if place == "scheduled":
                page = list(self.link.call("ZRANGE", self.names.scheduled, start, start + size - 1))
            else:
                # From the tail, the old end: what is pushed meanwhile does not shift what is still to come.
                page = list(reversed(self.link.call("LRANGE", self._list(place), -(start + size), -(start + 1))))
            if page:
                yield page
            if len(page) < size:
                return
            start += size

    def _list(self, place: str) -> str:
        key = self.names.place(place)
        if key is None:
            known = (*self.names.queue_names, "dead_letter", "completed", "cancelled", "scheduled")
            raise BrokerError(f"no place is called {place!r}; there are {', '.join(known)}")
        return key

    def records(self, ids: Sequence[str]) -> list[Record | None]:
        found = []
        for id, flat in zip(ids, self.link.calls([("HGETALL", self.names.record(id)) for id in ids]), strict=True):
            fields = dict(zip(flat[::2], flat[1::2], strict=True))
            queued = int(fields.get(b"queued", b"0"))
            found.append(replace(as_record(id, fields), queued=queued) if b"state" in fields else None)
        return found

    def workers(self) -> list[WorkerView]:
        return list(_as_views(self.scripts.one("workers", (), self.names.pattern_halves())))

    def cancel(self, ids: Sequence[str]) -> list[CancelResult]:
        if not ids:
            return []
        queues = [record.queue if record else "" for record in self.records(ids)]
        told = [wire_events.cancelled(id, queue) for id, queue in zip(ids, queues, strict=True)]
        reply = self.scripts.one("withdraw", [self.names.record(id) for id in ids], told)
        return [CancelResult(word.decode()) for word in reply]

    def revive(self, revivals: Sequence[Revival]) -> list[bool]:
        args = ((r.raw, r.next_raw, self.names.number[r.queue], "" if _is_job(r.next_raw) else "u") for r in revivals)
        reply = self.scripts.one(
            "revive", [self.names.record(r.id) for r in revivals], tuple(chain.from_iterable(args))
        )
        return [bool(n) for n in reply]

    def discard(self, elements: Sequence[tuple[str, bytes]]) -> int:
        keys = [self.names.record(id) for id, _ in elements]
        return int(self.scripts.one("discard", keys, [raw for _, raw in elements]))

    def pause(self, queue: str) -> None:
        self.link.call("SADD", self.names.paused, queue)

    def resume(self, queue: str) -> None:
        self.link.call("SREM", self.names.paused, queue)

    def hourly(self, hours: int) -> dict[int, dict[str, int]]:
        newest = self._now_ms() // HOUR_MS
        wanted = range(newest - hours + 1, newest + 1)
        return _hours(wanted, self.link.calls([("HGETALL", f"{self.names.stats}:{hour}") for hour in wanted]))

    def _now_ms(self) -> int:
        return self.scripts.given_now() or time.time_ns() // 1_000_000

    def _claims_of(self, slot: str, raws: Sequence[bytes]) -> tuple[Claim, ...]:
        """What a silent slot holds, with the queue and the time its record tells."""
        jobs = [_id_in(raw) for raw in raws]
        records = self.records([id or "" for id in jobs])
        claims = []
        for raw, id, record in zip(raws, jobs, records, strict=True):
            number = self.names.number.get(record.queue, 0) if record else 0
            started = record.started_ms if record else 0
            row = (slot.encode(), b"%d" % number, raw, (id or "").encode(), b"%d" % started)
            claims.append(as_claim(row, 0, self.names))
        return tuple(claims)


def _as_views(rows: Sequence[Sequence[Any]]) -> tuple[WorkerView, ...]:
    views = (
        WorkerView(slot.decode(), _info_decoder.decode(info), bool(alive), raw, int(since))
        for slot, info, alive, raw, since in rows
    )
    return tuple(sorted(views, key=lambda view: view.slot))


def _hours(wanted: range, replies: Sequence[Sequence[bytes]]) -> dict[int, dict[str, int]]:
    found = {hour: _counters(flat) for hour, flat in zip(wanted, replies, strict=True)}
    return {hour: counters for hour, counters in found.items() if counters}


def _counters(flat: Sequence[bytes]) -> dict[str, int]:
    return {name.decode(): int(value) for name, value in zip(flat[::2], flat[1::2], strict=True)}


def _id_in(raw: bytes) -> str | None:
    try:
        return decode(raw).id
    except Undecodable:
        return None


def _is_job(raw: bytes) -> bool:
    return _id_in(raw) is not None
