"""The registry of producers on Redis: one hash, id → the end of the lease and the information as JSON.

A script compares the leases with the server's time. A field whose lease has ended stays until the next report of any
producer.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from fileq.brokers.producer_types import ProducerInfo, ProducerView
from fileq.brokers.redis.store import RedisStore

_info_decoder = msgspec.json.Decoder(ProducerInfo)


class RedisProducers:
    """producer_registry.ProducerRegistry on Redis."""

    _store: RedisStore

    def report_producer(self, id: str, info: ProducerInfo, ttl_ms: int) -> None:
        store = self._store
        store.run("report_producer", (store.keys.producers,), (id, msgspec.json.encode(info), ttl_ms))

    def remove_producer(self, id: str) -> None:
        self._store.call("HDEL", self._store.keys.producers, id)

    def producers(self) -> list[ProducerView]:
        return list(as_producers(self._store.run("producers", (self._store.keys.producers,))))


def as_producers(rows: Sequence[Sequence[bytes]]) -> tuple[ProducerView, ...]:
    """The producers in a reply of producers.lua, by id."""
    views = (ProducerView(id.decode(), _info_decoder.decode(info)) for id, info in rows)
    return tuple(sorted(views, key=lambda view: view.id))
