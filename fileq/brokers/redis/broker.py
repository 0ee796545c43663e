"""The broker on Redis: one store, and the groups of the protocol over it.

Owns the store's life, from the first connection to close(). After a kill -9 the server closes the connections; leases
run out and the reaper of another worker gives the jobs back.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from itertools import chain

from fileq.brokers.catalog import Document, check_document, check_name, conflict
from fileq.brokers.protocol import Order
from fileq.brokers.redis.batches import RedisBatches
from fileq.brokers.redis.due_watch import DueWatch
from fileq.brokers.redis.inspector import RedisInspector
from fileq.brokers.redis.queues import RedisQueues
from fileq.brokers.redis.repairer import RedisRepairer
from fileq.brokers.redis.schedules import RedisSchedules
from fileq.brokers.redis.scripts import PUT_WHEN_FULL
from fileq.brokers.redis.store import RedisStore
from fileq.config import Config
from fileq.core.finding import Finding

BATCH = 1000
CHECK_EVERY_S = 5.0
_PAGE = 500


class RedisBroker(RedisQueues, RedisInspector, RedisRepairer, RedisSchedules, RedisBatches):
    """All broker protocols on Redis 7.0 and later, or Valkey 7.2 and later. Thread-safe."""

    kind = "redis"

    def __init__(self, config: Config, *, role: str = "", clock: Callable[[], int] | None = None) -> None:
        self._store = RedisStore(config, role=role, clock=clock)
        self._due_watch = DueWatch(self._store.link, self._store.scripts.next_due)
        self.where = self._store.link.where
        self._taken_in, self._checked_s = 0, float("-inf")  # at the last check_present() that asked, and when

    def connect(self, answered: Callable[[], None]) -> None:
        """Reach the server; `answered` is called at its first reply, before more connections are opened."""
        # A short command first: to a call with many or long arguments, a server that wants a password answers
        # "Protocol error" in place of NOAUTH.
        self._store.call("EXISTS", self._store.keys.workers)
        answered()
        self._store.link.warm(self._store.config.redis.min_idle_conns)

    def examine(self, *, permissions: bool = False) -> list[Finding]:
        """Whether the server is fit to keep jobs; `permissions` also tries those of this user. Changes nothing."""
        from fileq.brokers.redis.examine import examine, examine_permissions

        return [*examine(self._store), *([examine_permissions(self._store)] if permissions else [])]

    def check_present(self) -> str:
        """Compares the count of all jobs ever taken in, which never falls, with that of the last call. It is smaller
        after a crash without persistence, a failover to a replica that was behind, or a FLUSHALL. Asks the server every
        CHECK_EVERY_S at most, but always after a connection broke: new jobs would soon make up for the lost ones."""
        asked_s, link = time.monotonic(), self._store.link
        if link.cooled_s < self._checked_s and asked_s < self._checked_s + CHECK_EVERY_S:
            return ""
        counts = self._store.call("HMGET", self._store.keys.stats, "produced", "adopted")
        self._checked_s = asked_s
        before, self._taken_in = self._taken_in, sum(int(count or 0) for count in counts)
        if self._taken_in >= before:
            return ""
        return (
            f"Redis at {self.where} lost data: its count of jobs went back from {before:,} to {self._taken_in:,}; "
            "the next scan enqueues lost files again, other jobs are gone; 'fileq doctor' checks its persistence"
        )

    def close(self) -> None:
        self._due_watch.close()
        self._store.link.close()

    # The catalog. A document is its revision, a line break, and its body.

    def documents(self, kind: str) -> dict[str, Document]:
        return self.documents_of([kind])[0]

    def documents_of(self, kinds: Sequence[str]) -> list[dict[str, Document]]:
        for kind in kinds:
            check_name("kind", kind)
        replies = self._store.calls([("HGETALL", self._store.keys.documents(kind)) for kind in kinds])
        return [
            {name.decode(): _as_document(value) for name, value in zip(flat[::2], flat[1::2], strict=True)}
            for flat in replies
        ]

    def put_document(
        self, kind: str, name: str, body: bytes, expected: int | None = None, *, frees_memory: bool = False
    ) -> int:
        check_document(kind, name, body)
        wanted = "" if expected is None else expected
        script = PUT_WHEN_FULL if frees_memory else "put_document"
        is_done, revision = self._store.run(script, self._keys(kind), (kind, name, body, wanted))
        if not is_done:
            raise conflict(kind, name, expected or 0, revision)
        return int(revision)

    def remove_document(self, kind: str, name: str, expected: int | None = None) -> bool:
        check_document(kind, name, b"")
        wanted = "" if expected is None else expected
        answer, revision = self._store.run("remove_document", self._keys(kind), (kind, name, wanted))
        if answer == 0:
            raise conflict(kind, name, expected or 0, revision)
        return bool(answer == 1)

    def catalog_revision(self, *kinds: str) -> int:
        for kind in kinds:
            check_name("kind", kind)
        return sum(int(number or 0) for number in self._store.call("HMGET", self._store.keys.catalog_revisions, *kinds))

    def _keys(self, kind: str) -> tuple[str, str]:
        return self._store.keys.documents(kind), self._store.keys.catalog_revisions

    # Orders: one hash, id of the job → time, slot and body. A script compares the times with the server's clock and the
    # slots with the registry.

    def orders(self, older_than_ms: int) -> Iterator[Order]:
        store = self._store
        cursor = b"0"
        while True:
            cursor, rows = store.run("orders", (store.keys.orders,), (cursor, older_than_ms, _PAGE))
            for id, slot, at_ms, body in rows:
                yield Order(id.decode(errors="replace"), slot.decode(errors="replace"), int(at_ms), body)
            if cursor == b"0":
                return

    def finish_orders(self, done: Sequence[tuple[str, bytes]]) -> list[bool]:
        keys, answers = self._store.keys, list[int]()
        for start in range(0, len(done), BATCH):
            page = done[start : start + BATCH]
            records = (keys.record(id) for id, _ in page)
            answers += self._store.run("finish_orders", (keys.orders, *records), tuple(chain(*page)))
        return [bool(answer) for answer in answers]


def _as_document(value: bytes) -> Document:
    revision, _, body = value.partition(b"\n")
    return Document(body, int(revision))
