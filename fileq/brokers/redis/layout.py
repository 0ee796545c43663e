"""The layout of the data on Redis: the names of all keys, and records and ledger entries as bytes.

Owns the key layout of the contract: no other module puts a key together. Owns the formats on the Python side; the
scripts own the other side. Workers of other versions read the same keys, records and ledger entries: they never change.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any

import msgspec

from fileq.brokers.local_processes import NO_PROCESS, ProcessId
from fileq.brokers.types import Attempt, LedgerEntry, Record
from fileq.config import Config
from fileq.core.errors import ConfigError
from fileq.core.job import State
from fileq.core.outcome import Output


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


# records and ledger entries

MISSING, SEEN_ON = "missing", "on"
_MISSING_LINE = f"\n{MISSING} ".encode()
ENDED = "%ended "  # before the id of a job that must have ended; as in lua/prelude/ledger.lua

_attempt_decoder = msgspec.json.Decoder(Attempt)
_outputs_decoder = msgspec.json.Decoder(tuple[Output, ...])


STATES: Mapping[bytes, State] = {state.value.encode(): state for state in State}
# The names that fields of Record have in the hash, by the type of their values.
_NUMBERS = {
    **{f"{name}_ms": name.encode() for name in ("created", "started", "ended", "due", "since")},
    **{"attempt_count": b"attempts", "deferred_count": b"deferred_count", "queued": b"queued"},
}
_WORDS = {"slot": b"worker"} | {
    name: name.encode() for name in ("queue", "error", "deferred", "unique_key", "batch", "fingerprint", "origin")
}
# An outline has only these.
OUTLINE_FIELDS = (
    *("state", "queue", "worker", "created", "started", "ended", "due", "since", "error", "attempts", "cancel"),
    *("deferred", "deferred_count", "moved_to", "fingerprint", "batch"),
)


def as_outline(id: str, values: Sequence[bytes | None]) -> Record | None:
    found = zip(OUTLINE_FIELDS, values, strict=True)
    return as_record(id, {name.encode(): value for name, value in found if value is not None})


def as_record(id: str, fields: Mapping[bytes, bytes]) -> Record | None:
    """None if there is no record."""
    if (state := fields.get(b"state")) is None:
        return None
    flat: dict[str, Any] = {name: int(fields.get(key, b"0")) for name, key in _NUMBERS.items()}
    flat |= {name: fields.get(key, b"").decode(errors="replace") for name, key in _WORDS.items()}
    after, waits_for = _unpack_after(fields.get(b"after", b"").decode(errors="replace"))
    attempts = (fields.get(b"attempt:%d" % n) for n in range(1, flat["attempt_count"] + 1))
    follow_ups = fields.get(b"follow_ups", b"").decode(errors="replace").split("\n")
    return Record(
        id=id,
        state=STATES[state],
        raw=fields.get(b"json", b""),
        result=fields.get(b"result", b""),
        attempts=tuple(_attempt_decoder.decode(a) for a in attempts if a is not None),
        is_cancel_requested=fields.get(b"cancel") == b"1",
        deferrals_ms=(int(fields.get(b"deferred_first", b"0")), int(fields.get(b"deferred_last", b"0"))),
        moved_to=fields.get(b"moved_to", b""),
        after=after,
        waits_for=waits_for,
        follow_ups=tuple(from_one_line(line) for line in follow_ups if line),
        outputs=_outputs_decoder.decode(fields[b"outputs"]) if b"outputs" in fields else (),
        deadline_ms=int(fields[b"deadline"]) if b"deadline" in fields else None,
        **flat,
    )


def _unpack_after(text: str) -> tuple[tuple[str, ...], str]:
    """The ids of earlier jobs of the same file, and the id of the job that must have ended."""
    lines = [line for line in text.split("\n") if line]
    awaited = [from_one_line(line.removeprefix(ENDED)) for line in lines if line.startswith(ENDED)]
    return tuple(from_one_line(line) for line in lines if not line.startswith(ENDED)), "".join(awaited)


def pack_ledger(entry: LedgerEntry) -> bytes:
    """As lua/prelude/ledger.lua describes it."""
    lines = [f"{signature} {in_one_line(job_id)}" for signature, job_id in entry.versions]
    if entry.missing_since_ms:
        lines.append(f"{MISSING} {entry.missing_since_ms} {entry.device}")
    elif entry.device:
        lines.append(f"{SEEN_ON} {entry.device}")
    return "".join(f"{line}\n" for line in lines).encode()


def in_one_line(id: str) -> str:
    """The id without line breaks, which another program's id may contain; lua/prelude/ledger.lua does the same."""
    return id.replace("%", "%25").replace("\n", "%0A")


def from_one_line(id: str) -> str:
    """The id from its form in one line."""
    return id.replace("%0A", "\n").replace("%25", "%")


def is_newest(value: bytes, signature: bytes) -> bool:
    """LedgerEntry.is_newest() of a packed entry. A scan asks this for every file, so nothing is unpacked."""
    return value.startswith((signature + b" ", signature + b"-c")) and _MISSING_LINE not in value


def unpack_ledger(value: bytes) -> LedgerEntry:
    versions = []
    missing_since_ms, device = 0, ""
    for line in value.decode().split("\n")[:-1]:
        first, _, rest = line.partition(" ")
        if first == MISSING:
            since, _, device = rest.partition(" ")
            missing_since_ms = int(since)
        elif first == SEEN_ON:
            device = rest
        else:
            versions.append((first, from_one_line(rest)))
    return LedgerEntry(tuple(versions), missing_since_ms, device)
