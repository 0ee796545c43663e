"""What every key is called. The only place where a name is put together."""

from __future__ import annotations

from functools import lru_cache

from fileq.config import Config
from fileq.core.errors import ConfigError


class Names:
    """The key layout of one configuration."""

    def __init__(self, config: Config) -> None:
        prefix, worker = config.redis.prefix, config.worker
        self.queue_names = tuple(worker.priorities)
        self.queues = tuple(worker.queues[name] for name in self.queue_names)
        self.number = {name: i for i, name in enumerate(self.queue_names, start=1)}
        self.workers = f"{prefix}:workers"
        self.settled = f"{prefix}:settled"
        self.stats = f"{prefix}:stats"
        self.scheduled = f"{prefix}:scheduled"
        self.completed = worker.completed_list
        self.dead = worker.dead_letter_list
        self.cancelled = f"{prefix}:cancelled"
        self.ledger = f"{prefix}:ledger"
        self.paused = f"{prefix}:paused"
        self.rate_limit = config.producer.rate_limit_key
        self.events = f"{prefix}:events"
        self.records = f"{prefix}:job:"
        self._processing = worker.processing_list_pattern
        self._heartbeat = worker.heartbeat_key_pattern
        self.of_slot = lru_cache(maxsize=1024)(self._of_slot)  # a few slots, named again in every turn
        self.fixed = (
            *(self.workers, self.settled, self.stats, self.scheduled, self.completed, self.dead, self.cancelled),
            *(self.ledger, self.paused, self.rate_limit),
            *self.queues,
        )

    def _of_slot(self, slot: str) -> tuple[str, str]:
        """The processing list and the heartbeat of a slot."""
        return self.processing(slot), self.heartbeat(slot)

    def processing(self, slot: str) -> str:
        return self._processing.replace("%s", slot)

    def heartbeat(self, slot: str) -> str:
        return self._heartbeat.replace("%s", slot)

    def record(self, id: str) -> str:
        return self.records + id

    def pattern_halves(self) -> tuple[str, str, str, str]:
        """Both patterns cut at their %s."""
        processing = self._processing.partition("%s")
        heartbeat = self._heartbeat.partition("%s")
        return processing[0], processing[2], heartbeat[0], heartbeat[2]

    def place(self, name: str) -> str | None:
        """The list behind a word of the command line."""
        ended = {"dead_letter": self.dead, "completed": self.completed, "cancelled": self.cancelled}
        return ended.get(name) or dict(zip(self.queue_names, self.queues, strict=True)).get(name)

    def check_one_slot(self) -> None:
        """On Cluster every key must lie in one hash slot, or no script can touch two of them."""
        from redis.crc import key_slot

        keys = (*self.fixed, self.records, self.processing("x"), self.heartbeat("x"))
        slots = {key: key_slot(key.encode()) for key in keys}
        # The patterns need a tag of their own: without one each worker's id would choose another slot.
        astray = sorted(key for key in keys if slots[key] != slots[self.workers] or "{" not in key)
        if astray:
            raise ConfigError(
                f"on Redis Cluster all names must share one hash tag; not so {', '.join(astray)}; "
                "set redis.prefix to '{jobqueue}' and put the tag into the names you chose"
            )
