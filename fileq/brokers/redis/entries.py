"""Enqueueing on Redis: one script call in one round trip for each 1,000 entries, and a smaller script for a single job.

Scripts are atomic, so a kill -9 leaves a call executed or not received.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain

from fileq.brokers import wire_events
from fileq.brokers.redis.entry_encoding import entry_args, is_plain_entry
from fileq.brokers.redis.in_flight import Replies
from fileq.brokers.redis.scripts import ENQUEUE_MEMBERS
from fileq.brokers.redis.store import RedisStore
from fileq.brokers.types import Enqueued, EnqueueResult, Entry, check_entries
from fileq.core.job import encode

BATCH = 1000  # entries of one script call; more would block the server too long
_ENQUEUED = Enqueued((EnqueueResult.ENQUEUED,), existing=("",))


class RedisEntries:
    """`enqueue` of protocol.Broker on Redis."""

    _store: RedisStore

    def enqueue(self, entries: Sequence[Entry], *, limit: int = 0) -> Enqueued:
        check_entries(entries, self._store.queues)
        if len(entries) == 1 and is_plain_entry(entries[0]):
            return self._enqueue_plain(entries[0])
        results: list[EnqueueResult] = []
        existing: list[str] = []
        permits = wait_ms = 0
        for start in range(0, len(entries), BATCH):
            part = self._enqueue_batch(entries[start : start + BATCH], limit)
            results.extend(part.results)
            existing.extend(part.existing)
            permits += part.permits
            wait_ms = part.wait_ms or wait_ms
        return Enqueued(tuple(results), permits, wait_ms, tuple(existing))

    def _enqueue_plain(self, entry: Entry) -> Enqueued:
        job, store = entry.job, self._store
        command = store.scripts.enqueue_plain(job.id, encode(job), entry.queue, wire_events.created(job))

        def decode(replies: Replies) -> Enqueued:
            # As in _as_enqueued(): the first sending may have enqueued the job.
            if store.link.checked(replies[0]) or replies.is_repeated:
                return _ENQUEUED
            return Enqueued((EnqueueResult.DUPLICATE,), existing=(job.id,))

        return store.send([command], decode).take()

    def _enqueue_batch(self, entries: Sequence[Entry], limit: int) -> Enqueued:
        store = self._store
        keys = [store.keys.record(entry.job.id) for entry in entries]
        if any(entry.job.unique_key is not None for entry in entries):
            keys.append(store.keys.unique)
        args = chain.from_iterable(entry_args(entry, store.keys) for entry in entries)

        def decode(replies: Replies) -> Enqueued:
            return self._as_enqueued(replies, [entry.job.id for entry in entries])

        name = ENQUEUE_MEMBERS if any(entry.joins for entry in entries) else "enqueue"
        return store.send([store.scripts.command(name, keys, (limit, *args))], decode).take()

    def _as_enqueued(self, replies: Replies, ids: Sequence[str]) -> Enqueued:
        permits, wait_ms, words, holders = self._store.link.checked(replies[0])
        results = [EnqueueResult(word.decode()) for word in words]
        existing = [id if r is EnqueueResult.DUPLICATE else "" for id, r in zip(ids, results, strict=True)]
        for number, holder in holders:
            existing[number - 1] = holder.decode()
        if replies.is_repeated:
            # The first sending may have enqueued the job, so DUPLICATE after a repeat means ENQUEUED.
            for i, id in enumerate(ids):
                if existing[i] == id:
                    results[i], existing[i] = EnqueueResult.ENQUEUED, ""
        return Enqueued(tuple(results), permits, wait_ms, tuple(existing))
