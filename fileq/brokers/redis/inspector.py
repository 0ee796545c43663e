"""What operators see and change on Redis.

Reads long lists page by page: one call over everything would block the server. Every change is one command or one
script, so a kill -9 leaves it done or not done.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import msgspec

from fileq.brokers.local_processes import Neighbours
from fileq.brokers.place_pages import (
    PAGE_BYTES,
    PROCESSING,
    REACH,
    Page,
    Standing,
    check_page,
    offset_of,
    page_of_slots,
)
from fileq.brokers.redis.layout import OUTLINE_FIELDS, STATES, as_outline, unpack_ledger
from fileq.brokers.redis.list_search import SearchedJob, SearchScript, list_pages, run_on_records, run_searching
from fileq.brokers.redis.scripts import Argument, Command, extras
from fileq.brokers.redis.store import RedisStore
from fileq.brokers.types import (
    CLEAR_REACH,
    HOUR_MS,
    CancelResult,
    Census,
    LedgerEntry,
    Overview,
    ProducerInfo,
    ProducerView,
    Record,
    Revival,
    Revived,
    WorkerInfo,
    WorkerView,
    check_clear,
    check_follow_ups,
)
from fileq.core.errors import BrokerError
from fileq.core.job import State, decode_or_none
from fileq.core.outcome import FollowUp

_PAGE = 500
_info_decoder = msgspec.json.Decoder(WorkerInfo)
_producer_decoder = msgspec.json.Decoder(ProducerInfo)


class RedisInspector:
    """protocol.Inspector on Redis."""

    _store: RedisStore

    def census(self, *, sweep: bool = False) -> Census:
        store = self._store
        lists = [store.keys.processing(slot) for slot in store.unregistered_slots()] if sweep else []
        return self._as_census(store.run("census", lists, store.keys.split_patterns()))

    def _as_census(self, reply: Any) -> Census:
        now, pending, scheduled, running, dead, completed, cancelled, heartbeats, paused, counters, batches = reply
        return Census(
            pending=dict(zip(self._store.queues, pending, strict=True)),
            scheduled=scheduled,
            running=running,
            dead=dead,
            completed=completed,
            cancelled=cancelled,
            heartbeats=heartbeats,
            counters=_counters(counters),
            paused=frozenset(name.decode() for name in paused),
            now_ms=int(now),
            unfinished_batches=batches,
        )

    def overview(self, hours: int = 2, jobs: int = 0) -> Overview:
        """One round trip. The hours that are read follow from our clock, with one more on both sides; if the server's
        clock names others, a second round trip reads them."""
        store, keys = self._store, self._store.keys
        places = (*store.queues, "scheduled", "dead_letter", "completed", "cancelled") if jobs > 0 else ()
        guessed = _last_hours(store.now_ms() + HOUR_MS, hours + 2)
        patterns = keys.split_patterns()
        commands: list[Command] = [store.scripts.command(name, (), patterns) for name in ("census", "workers")]
        commands.append(store.scripts.command("producers", (keys.producers,)))
        commands += [("HLEN", keys.orders), *(("LINDEX", key, -1) for key in keys.queues)]
        commands += [self._peek_command(place, jobs) for place in places]
        commands += [("HGETALL", keys.hour(hour)) for hour in guessed]
        census, workers, producers, orders, *rest = store.calls(commands)
        fronts, rest = rest[: len(store.queues)], rest[len(store.queues) :]
        first = {place: self._in_order(place, raws) for place, raws in zip(places, rest, strict=False) if raws}
        wanted = _last_hours(int(census[0]), hours)
        found = dict(zip(guessed, rest[len(places) :], strict=True))
        if not found.keys() >= set(wanted):
            found = dict(zip(wanted, store.calls([("HGETALL", keys.hour(hour)) for hour in wanted]), strict=True))
        return Overview(
            census=self._as_census(census),
            fronts={queue: raw for queue, raw in zip(store.queues, fronts, strict=True) if raw is not None},
            workers=_as_views(workers),
            hours=_as_hours(wanted, [found[hour] for hour in wanted]),
            producers=_as_producers(producers),
            orders=orders,
            first={place: tuple(raws) for place, raws in first.items()},
        )

    def peek(self, place: str, limit: int) -> list[bytes]:
        if limit < 1:
            return []
        return self._in_order(place, self._store.call(*self._peek_command(place, limit)))

    def _peek_command(self, place: str, limit: int) -> Command:
        if place == "scheduled":
            return ("ZRANGE", self._store.keys.scheduled, 0, limit - 1)
        key = self._list_of(place)
        return ("LRANGE", key, -limit, -1) if place in self._store.queues else ("LRANGE", key, 0, limit - 1)

    def _in_order(self, place: str, raws: Sequence[bytes]) -> list[bytes]:
        """A queue has its front at its end."""
        return list(reversed(raws)) if place in self._store.queues else list(raws)

    def pages(self, place: str, size: int = 500) -> Iterator[list[bytes]]:
        store = self._store
        if place != "scheduled":
            yield from list_pages(store, self._list_of(place), size)
            return
        start = 0
        while page := list(store.call("ZRANGE", store.keys.scheduled, start, start + size - 1)):
            yield page
            start += size

    def page(self, place: str, cursor: str = "", size: int = 100) -> Page:
        store = self._store
        check_page(place, size, store.queues)
        if place == PROCESSING:
            return page_of_slots(self.workers(), cursor, size)
        key = store.keys.scheduled if place == "scheduled" else self._list_of(place)
        beginning = "due" if place == "scheduled" else "tail" if place in store.queues else "head"
        last = offset_of(cursor)
        args = (beginning, last.at, last.digest, size, PAGE_BYTES, REACH)
        total, start, raws = store.run("page", (key,), args)
        return Page(tuple(raws), last.after(start, raws, total), total)

    def _list_of(self, place: str) -> str:
        key = self._store.keys.list_of(place)
        if key is None:
            known = (*self._store.queues, "dead_letter", "completed", "cancelled", "scheduled")
            raise BrokerError(f"no place is named {place!r}; known: {', '.join(known)}")
        return key

    def records(self, ids: Sequence[str]) -> list[Record | None]:
        return self._store.records(ids)

    def states(self, ids: Sequence[str]) -> list[State | None]:
        found = self._store.calls([("HGET", self._store.keys.record(id), "state") for id in ids])
        return [STATES[word] if word is not None else None for word in found]

    def outlines(self, ids: Sequence[str]) -> list[Record | None]:
        """Pipelined, so that the server serves other clients in between."""
        commands = [("HMGET", self._store.keys.record(id), *OUTLINE_FIELDS) for id in ids]
        found = zip(ids, self._store.calls_in_batches(commands), strict=True)
        return [as_outline(id, values) for id, values in found]

    def standings(self, ids: Sequence[str]) -> list[Standing | None]:
        commands = [("HMGET", self._store.keys.record(id), "state", "created") for id in ids]
        found = self._store.calls_in_batches(commands)
        return [(STATES[state], int(created or 0)) if state is not None else None for state, created in found]

    def fingerprints(self, ids: Sequence[str]) -> list[str]:
        commands = [("HGET", self._store.keys.record(id), "fingerprint") for id in ids]
        return [(found or b"").decode() for found in self._store.calls_in_batches(commands)]

    def workers(self) -> list[WorkerView]:
        return list(_as_views(self._store.run("workers", (), self._store.keys.split_patterns())))

    def cancel(
        self,
        ids: Sequence[str],
        follow_ups: Mapping[str, Sequence[FollowUp]] | None = None,
        *,
        in_cancelled_batch: bool = False,
    ) -> list[CancelResult]:
        wanted = follow_ups or {}
        check_follow_ups(wanted.values(), self._store.queues)
        return cancel_by_id(self._store, ids, wanted, in_cancelled_batch=in_cancelled_batch)

    def clear(
        self, queue: str, raws: Sequence[bytes], follow_ups: Mapping[str, Sequence[FollowUp]] | None = None
    ) -> list[bool]:
        wanted = follow_ups or {}
        check_clear(queue, raws, self._store.queues)
        check_follow_ups(wanted.values(), self._store.queues)
        layout = self._store.keys
        keys: list[str] = []
        args: list[Argument] = [layout.queue_numbers[queue], CLEAR_REACH]
        sent: list[int] = []
        for i, raw in enumerate(raws):
            if (job := decode_or_none(raw)) is not None:
                extra_keys, extra_args = extras(wanted.get(job.id, ()), layout)
                keys += (layout.record(job.id), *extra_keys)
                args += (raw, *extra_args)
                sent.append(i)
        answers = dict(zip(sent, self._store.run("clear", keys, args) if keys else (), strict=True))
        return [bool(answers.get(i)) for i in range(len(raws))]

    def makers(self, paths: Sequence[bytes]) -> list[str | None]:
        keys = [self._store.keys.made(path) for path in paths]
        pages = (keys[start : start + _PAGE] for start in range(0, len(keys), _PAGE))
        found = self._store.calls([("MGET", *page) for page in pages])
        return [id.decode() if id is not None else None for page in found for id in page]

    def known_files(self, paths: Sequence[bytes]) -> list[tuple[LedgerEntry | None, str | None]]:
        if not paths:
            return []
        keys = self._store.keys
        values, ids = self._store.calls([("HMGET", keys.ledger, *paths), ("MGET", *map(keys.made, paths))])
        entries = (unpack_ledger(value) if value is not None else None for value in values)
        return list(zip(entries, (id.decode() if id is not None else None for id in ids), strict=True))

    def revive(self, revivals: Sequence[Revival]) -> list[Revived]:
        keys = self._store.keys
        jobs = []
        for r in revivals:
            job = decode_or_none(r.next_raw)
            facts = ("u", "") if job is None else ("" if job.id == r.id else "f", job.unique_key or "")
            side = "RPUSH" if r.is_next else "LPUSH"
            args = (r.id, r.raw, r.next_raw, keys.queue_numbers[r.queue], *facts, side)
            jobs.append(SearchedJob((keys.record(r.id), keys.orders, keys.unique), args, keys.dead, r.raw))
        return [_as_revived(answer) for answer in self._search_dead("revive", jobs)]

    def discard(self, dead: Sequence[tuple[str, bytes]]) -> list[bool]:
        keys = self._store.keys
        jobs = [SearchedJob((keys.record(id),), (raw,), keys.dead, raw) for id, raw in dead]
        return [bool(answer) for answer in self._search_dead("discard", jobs)]

    def _search_dead(self, name: str, jobs: Sequence[SearchedJob]) -> list[Any]:
        script = SearchScript(name, removes=frozenset([1]))
        return run_searching(self._store, script, len(jobs), lambda numbers: [jobs[i] for i in numbers])

    def pause(self, queue: str) -> None:
        self._store.call("SADD", self._store.keys.paused, queue)

    def resume(self, queue: str) -> None:
        self._store.run("resume", (self._store.keys.tokens_of(queue),), (queue,))

    def reset_breaker(self, route: str) -> None:
        self._store.call("HINCRBY", self._store.keys.breaker_resets, route, 1)

    def hourly(self, hours: int) -> dict[int, dict[str, int]]:
        store = self._store
        wanted = _last_hours(store.now_ms(), hours)
        return _as_hours(wanted, store.calls([("HGETALL", store.keys.hour(hour)) for hour in wanted]))

    # Producers: one hash, id → the end of the lease and the information as JSON. A script compares the leases with the
    # server's time. A field whose lease has ended stays until the next report of any producer.

    def report_producer(self, id: str, info: ProducerInfo, ttl_ms: int) -> None:
        store = self._store
        store.run("report_producer", (store.keys.producers,), (id, msgspec.json.encode(info), ttl_ms))

    def remove_producer(self, id: str) -> None:
        self._store.call("HDEL", self._store.keys.producers, id)

    def producers(self) -> list[ProducerView]:
        return list(_as_producers(self._store.run("producers", (self._store.keys.producers,))))


def _as_revived(answer: Any) -> Revived:
    """1, 0, `foreign`, or `held` and the id of the job that has the unique key."""
    if answer == b"foreign":
        return Revived(False, is_foreign=True)
    if isinstance(answer, bytes):
        return Revived(False, answer.removeprefix(b"held ").decode())
    return Revived(bool(answer))


def _as_views(rows: Sequence[Sequence[Any]]) -> tuple[WorkerView, ...]:
    neighbours, views = Neighbours(), []
    for slot, encoded, left_ms, raw, since in rows:
        info = _info_decoder.decode(encoded)
        is_alive = left_ms != -2 and not neighbours.is_gone(info.process)
        views.append(WorkerView(slot.decode(), info, is_alive, raw, int(since), max(0, left_ms)))
    return tuple(sorted(views, key=lambda view: view.slot))


def _last_hours(now_ms: int, hours: int) -> range:
    newest = now_ms // HOUR_MS
    return range(newest - hours + 1, newest + 1)


def _as_hours(wanted: range, replies: Sequence[Sequence[bytes]]) -> dict[int, dict[str, int]]:
    found = {hour: _counters(flat) for hour, flat in zip(wanted, replies, strict=True)}
    return {hour: counters for hour, counters in found.items() if counters}


def _counters(flat: Sequence[bytes]) -> dict[str, int]:
    return {name.decode(): int(value) for name, value in zip(flat[::2], flat[1::2], strict=True)}


def cancel_by_id(
    store: RedisStore,
    ids: Sequence[str],
    follow_ups: Mapping[str, Sequence[FollowUp]],
    *,
    in_cancelled_batch: bool = False,
) -> list[CancelResult]:
    keys, removes, head = store.keys, frozenset([b"cancelled"]), (int(in_cancelled_batch),)
    script = SearchScript("cancel_by_id", head, removes, takes_proofs=True, head_keys=(keys.cancels,))

    def own(i: int) -> tuple[Sequence[str], Sequence[Argument]]:
        extra_keys, extra_args = extras(follow_ups.get(ids[i], ()), keys)
        return (keys.record(ids[i]), *extra_keys), extra_args

    return [CancelResult(word.decode()) for word in run_on_records(store, script, ids, own)]


def _as_producers(rows: Sequence[Sequence[bytes]]) -> tuple[ProducerView, ...]:
    """The producers in a reply of producers.lua, by id."""
    views = (ProducerView(id.decode(), _producer_decoder.decode(info)) for id, info in rows)
    return tuple(sorted(views, key=lambda view: view.id))
