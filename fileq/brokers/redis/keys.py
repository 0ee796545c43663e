"""The names of all Redis keys. Owns the key layout of the contract; no other module puts a key together."""

from __future__ import annotations

import hashlib
from functools import lru_cache

from fileq.brokers.local_processes import NO_PROCESS, ProcessId
from fileq.config import Config
from fileq.core.errors import ConfigError


class Keys:
    """The keys of one configuration."""

    def __init__(self, config: Config) -> None:
        prefix, worker = config.redis.prefix, config.worker
        self.queue_names = tuple(worker.priorities)
        self.queues = tuple(worker.queues[name] for name in self.queue_names)
        self.queue_of = dict(zip(self.queue_names, self.queues, strict=True))
        self.queue_numbers = {name: i for i, name in enumerate(self.queue_names, start=1)}
        self.workers = f"{prefix}:workers"
        self.settled = f"{prefix}:settled"
        self.stats = f"{prefix}:stats"
        self.scheduled = f"{prefix}:scheduled"
        self.completed = worker.completed_list
        self.dead = worker.dead_letter_list
        self.cancelled = f"{prefix}:cancelled"
        self.list_numbers = {self.dead: 0, **{key: i for i, key in enumerate(self.queues, start=1)}}
        self.ledger = f"{prefix}:ledger"
        self.paused = f"{prefix}:paused"
        self.wake = f"{prefix}:wake:"
        self.tokens = tuple(map(self.tokens_of, self.queue_names))
        # Of all waiters with the same queues: which one has the watch, and whether it has handed it over.
        self.watch, self.handed_over = (f"{prefix}:{word}:{','.join(self.queue_names)}" for word in ("watch", "handed"))
        self.breaker_resets = f"{prefix}:breaker_resets"
        self.cancels = f"{prefix}:cancels"
        self.producers = f"{prefix}:producers"
        self.orders = f"{prefix}:orders"
        self.unique = f"{prefix}:unique"
        self.deadlines = f"{prefix}:deadlines"
        self.schedules = f"{prefix}:schedules"
        self.schedule_states = f"{prefix}:schedule_states"
        self.catalog_revisions = f"{prefix}:catalog"
        self.batches = f"{prefix}:batches"
        self.unfinished_batches = f"{prefix}:batches:unfinished"
        self.rate_limit = config.producer.rate_limit_key
        self.events = f"{prefix}:events"
        self.records = f"{prefix}:job:"
        self._holders = f"{prefix}:holders:"
        self._route_windows = f"{prefix}:route_rate:"
        self._made = f"{prefix}:made:"
        self._machine = f"{prefix}:machine:"
        self._lease = f"{prefix}:lease:"
        self._documents = f"{prefix}:catalog:"
        self._batch = f"{prefix}:batch:"
        self._processing = worker.processing_list_pattern
        self._heartbeat = worker.heartbeat_key_pattern
        # Cached: a worker has few slots, and every call names them again.
        self.of_slot = lru_cache(maxsize=1024)(self._of_slot)
        self.fixed = (
            *(self.workers, self.settled, self.stats, self.scheduled, self.completed, self.dead, self.cancelled),
            *(self.ledger, self.paused, self.rate_limit),
            *self.queues,
        )

        # Keys that only some scripts use: these get them as keys of their own.
        self.single = (
            *(self.breaker_resets, self.producers, self.orders, self.unique, self.schedules, self.schedule_states),
            *(self.cancels, self.catalog_revisions, self.batches, self.unfinished_batches, self.deadlines),
            *(self.watch, self.handed_over, *self.tokens),
        )

    def _of_slot(self, slot: str) -> tuple[str, str]:
        """The processing list and the heartbeat of a slot."""
        return self.processing(slot), self.heartbeat(slot)

    def processing(self, slot: str) -> str:
        return self._processing.replace("%s", slot)

    def heartbeat(self, slot: str) -> str:
        return self._heartbeat.replace("%s", slot)

    def tokens_of(self, queue: str) -> str:
        """The list of the tokens that wake a waiter of this queue."""
        return self.wake + queue

    def machine(self, process: ProcessId) -> str:
        """The worker processes of the machine of this one."""
        return f"{self._machine}{process.boot_id}:{process.namespaces}"

    def lease(self, name: str) -> str:
        return self._lease + name

    def record(self, id: str) -> str:
        return self.records + id

    def of_route(self, route: str) -> tuple[str, str]:
        """The holders and the window counter of a limited route."""
        return self._holders + route, self._route_windows + route

    def made(self, path: bytes) -> str:
        """The id of the job that made this file."""
        return self._made + hashlib.sha1(path, usedforsecurity=False).hexdigest()

    def documents(self, kind: str) -> str:
        """The documents of one kind."""
        return self._documents + kind

    def of_batch(self, id: str) -> tuple[str, str, str, str, str]:
        """The hash of a batch and its sets: members that are not counted yet, dead ones, ended jobs that joined, child
        batches that are not counted yet. The scripts put the same names together (lua/prelude/batches.lua)."""
        key = self._batch + id
        return key, f"{key}:members", f"{key}:dead", f"{key}:known", f"{key}:children"

    def hour(self, hour: int) -> str:
        """The counters of one hour since the epoch."""
        return f"{self.stats}:{hour}"

    def split_patterns(self) -> tuple[str, str, str, str]:
        """The patterns of processing lists and heartbeats, each split at its %s."""
        processing = self._processing.partition("%s")
        heartbeat = self._heartbeat.partition("%s")
        return processing[0], processing[2], heartbeat[0], heartbeat[2]

    def list_of(self, place: str) -> str | None:
        """The list of a queue or of an ended state; None for a place that is no list."""
        ended = {"dead_letter": self.dead, "completed": self.completed, "cancelled": self.cancelled}
        return ended.get(place) or self.queue_of.get(place)

    def check_hash_slot(self) -> None:
        """On Redis Cluster all keys must share one hash slot, because every script touches several of them."""
        from redis.crc import key_slot

        of_names = (*self.of_slot("x"), *self.of_route("x"), self.made(b"x"), self.documents("x"), *self.of_batch("x"))
        of_fleet = (self.machine(NO_PROCESS), self.lease("x"))
        keys = (*self.fixed, *self.single, self.records, *of_names, *of_fleet)
        hash_slots = {key: key_slot(key.encode()) for key in keys}
        # A pattern needs a hash tag of its own: without one, the worker ID would select the hash slot.
        wrong = sorted(key for key in keys if hash_slots[key] != hash_slots[self.workers] or "{" not in key)
        if wrong:
            raise ConfigError(
                f"on Redis Cluster all names must share one hash tag; not so {', '.join(wrong)}; "
                "set redis.prefix to '{jobqueue}' and put the tag into the names you chose"
            )
