"""The broker on Redis: every verb is one script, every turn one round trip."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import chain
from typing import Any

import msgspec

from fileq.brokers import wire_events
from fileq.brokers.order import ClaimOrder
from fileq.brokers.protocol import PendingReply, ReadyReply
from fileq.brokers.redis.inspector import RedisInspector
from fileq.brokers.redis.link import Link
from fileq.brokers.redis.names import Names
from fileq.brokers.redis.scripts import Call, Part, PostedCalls, Scripts, turn_call
from fileq.brokers.redis.wake import RedisSubscription, RedisWaiter
from fileq.brokers.redis.wire import as_claim, pack_ledger, settlement_args, settlement_keys, unpack_ledger
from fileq.brokers.types import (
    Enqueued,
    EnqueueResult,
    Entry,
    LeaseStatus,
    LedgerEntry,
    Promoted,
    Renewal,
    Suspect,
    TurnReply,
    WorkerInfo,
    check_queues,
)
from fileq.config import Config
from fileq.core.claim import Claim
from fileq.core.finding import Finding
from fileq.core.job import Version, encode
from fileq.core.settlement import Settlement, SettleResult, Verb

BATCH = 1000  # entries of one script call; more would hold the server too long
_encoder = msgspec.json.Encoder()


class RedisBroker(RedisInspector):
    kind = "redis"

    def __init__(self, config: Config, *, clock: Callable[[], int] | None = None) -> None:
        self.config = config
        self.names = Names(config)
        self.link = Link(config)
        self.where = self.link.where
        self.scripts = Scripts(self.link, config, self.names, clock)
        self.order = ClaimOrder(self.names.queue_names, config.worker.starvation_share)
        self._tokens: Counter[str] = Counter()

    def examine(self, *, permissions: bool = False) -> list[Finding]:
        """Whether the server is fit to keep jobs; `rights` also tries ours, by calls that change nothing."""
        from fileq.brokers.redis.examine import examine, examine_rights

        return [*examine(self), *([examine_rights(self)] if permissions else [])]

    # enqueue

    def enqueue(self, entries: Sequence[Entry], *, limit: int = 0) -> Enqueued:
        check_queues((entry.queue for entry in entries), self.names.queue_names)
        fates: list[EnqueueResult] = []
        permits = wait_ms = 0
        for start in range(0, len(entries), BATCH):
            part = self._enqueue(entries[start : start + BATCH], limit)
            fates.extend(part.results)
            permits += part.permits
            wait_ms = part.wait_ms or wait_ms
        return Enqueued(tuple(fates), permits, wait_ms)

    def _enqueue(self, entries: Sequence[Entry], limit: int) -> Enqueued:
        keys = [self.names.record(entry.job.id) for entry in entries]
        args = chain.from_iterable(self._entry_args(entry) for entry in entries)
        replies = self.scripts.run(Call("enqueue", keys, (limit, *args)))
        permits, wait_ms, words = self.link.value(replies[0])
        fates = [EnqueueResult(word.decode()) for word in words]
        if replies.repeated:
            # The lost reply may have said so already; told "duplicate", a caller would think it was not his.
            fates = [EnqueueResult.ENQUEUED if fate is EnqueueResult.DUPLICATE else fate for fate in fates]
        return Enqueued(tuple(fates), permits, wait_ms)

    def _entry_args(self, entry: Entry) -> tuple[bytes | str | int, ...]:
        version = entry.version or Version(b"", "")
        return (
            entry.job.id,
            encode(entry.job),
            self.names.number[entry.queue],
            version.path,
            version.signature,
            version.device,
            "a" if entry.always else "",
            entry.delay_ms,
            entry.at_ms,
            wire_events.created(entry.job),
        )

    # turn: settle, then claim

    def settle_and_claim(self, settlements: Sequence[Settlement], slots: Sequence[str]) -> TurnReply:
        return self.send_settle_and_claim(settlements, slots).take()

    def send_settle_and_claim(self, settlements: Sequence[Settlement], slots: Sequence[str]) -> PendingReply:
        """One script, so one write and one read; the parts of it are the verbs."""
        if not settlements and not slots:
            return ReadyReply(TurnReply())
        by_verb: dict[Verb, list[int]] = {}
        for i, s in enumerate(settlements):
            by_verb.setdefault(s.verb, []).append(i)
        asking = frozenset(slots)
        parts = [self._settle_part(verb, [settlements[i] for i in which], asking) for verb, which in by_verb.items()]
        start = self.order.claims
        if slots:
            parts.append(Part("claim", len(slots), self._slot_keys(slots), (start, self.order.every, *slots)))
            self.order.claims += len(slots)  # as if all found a job; the answer tells, and until then others count on
        posted = self.scripts.post(turn_call(parts))
        return RedisTurn(self, posted, list(by_verb.values()), len(settlements), asked=len(slots), start=start)

    def turn_about_nothing(self, verb: Verb) -> None:
        """Refused if such a settlement would be for want of a right; changes nothing."""
        for answer in self.link.value(self.scripts.run(turn_call([Part(verb.value, 0, (), ())]))[0]):
            self.link.value(answer)

    def _settle_part(self, verb: Verb, settlements: Sequence[Settlement], asking: frozenset[str]) -> Part:
        keys: list[str] = []
        args: list[bytes | str | int] = []
        for s in settlements:
            keys += settlement_keys(s, self.names)
            args += settlement_args(s, self.names, asks_next=s.claim.slot in asking)
        return Part(verb.value, len(settlements), keys, args)

    def _slot_keys(self, slots: Sequence[str]) -> tuple[str, ...]:
        return tuple(chain.from_iterable(map(self.names.of_slot, slots)))

    def claimed(
        self, settled: tuple[SettleResult, ...], paused: Sequence[int], gone: Sequence[bytes], rows: Sequence[Any]
    ) -> TurnReply:
        claims = tuple(self._as_claim(row) for row in rows)
        names = frozenset(self.names.queue_names[number - 1] for number in paused)
        return TurnReply(settled, claims, tuple(slot.decode() for slot in gone), names)

    def _as_claim(self, row: Sequence[bytes]) -> Claim:
        slot = row[0].decode()
        self._tokens[slot] += 1
        return as_claim(row, self._tokens[slot], self.names)

    # renew, promote, reap

    def renew(self, holdings: Sequence[tuple[str, bytes]]) -> list[Renewal]:
        if not holdings:
            return []
        keys = self._slot_keys([slot for slot, _ in holdings])
        rows = self.scripts.one("renew", keys, tuple(chain.from_iterable(holdings)))
        return [self._as_renewal(slot, row) for (slot, _), row in zip(holdings, rows, strict=True)]

    def _as_renewal(self, slot: str, row: Sequence[bytes]) -> Renewal:
        hold = LeaseStatus(row[0].decode())
        return Renewal(
            slot, hold, self._as_claim((slot.encode(), *row[1:])) if hold is LeaseStatus.UNEXPECTED else None
        )

    def promote(self, limit: int = 500) -> Promoted:
        count, next_due, now = self.scripts.one("promote", (), (limit,))
        return Promoted(count, round(float(next_due)) if next_due else None, int(now))

    def suspects(self, *, sweep: bool = False) -> list[Suspect]:
        slots = sorted({slot.decode() for slot in self.link.call("HKEYS", self.names.workers)})
        if sweep:
            slots = sorted({*slots, *self.orphans()})
        beats = self.link.calls([("EXISTS", self.names.heartbeat(slot)) for slot in slots])
        silent = [slot for slot, beat in zip(slots, beats, strict=True) if not beat]
        lists = self.link.calls([("LRANGE", self.names.processing(slot), 0, -1) for slot in silent])
        return [Suspect(slot, self._claims_of(slot, raws)) for slot, raws in zip(silent, lists, strict=True)]

    def reap(self, slot: str, settlements: Sequence[Settlement]) -> tuple[SettleResult, ...]:
        keys = chain.from_iterable(settlement_keys(s, self.names) for s in settlements)
        args = chain.from_iterable(settlement_args(s, self.names) for s in settlements)
        verbs = (s.verb.value for s in settlements)
        reply = self.scripts.one("reap", (*self._slot_keys([slot]), *keys), (slot, len(settlements), *verbs, *args))
        return tuple(SettleResult(word.decode()) for word in reply)

    # the registry

    def register(self, slots: Mapping[str, WorkerInfo]) -> None:
        args = ((slot, _encoder.encode(info)) for slot, info in slots.items())
        self.scripts.one("register", [self.names.heartbeat(slot) for slot in slots], tuple(chain.from_iterable(args)))

    def deregister(self, slots: Sequence[str]) -> None:
        self.scripts.one("deregister", self._slot_keys(slots), tuple(slots))

    # the ledger

    def lookup(self, paths: Sequence[bytes]) -> list[LedgerEntry | None]:
        if not paths:
            return []
        values = self.link.call("HMGET", self.names.ledger, *paths)
        return [unpack_ledger(value) if value is not None else None for value in values]

    def ledger(self, under: bytes) -> Iterator[tuple[bytes, LedgerEntry]]:
        escaped = b"".join(b"\\" + bytes([c]) if c in b"*?[]\\^-" else bytes([c]) for c in under)
        cursor: bytes | int = 0
        while True:
            cursor, flat = self.link.call("HSCAN", self.names.ledger, cursor, "MATCH", escaped + b"*", "COUNT", BATCH)
            for path, value in zip(flat[::2], flat[1::2], strict=True):
                yield path, unpack_ledger(value)
            if int(cursor) == 0:
                return

    def update_ledger(self, changes: Sequence[tuple[bytes, LedgerEntry, LedgerEntry | None]]) -> list[bool]:
        args = [
            (path, pack_ledger(was), b"" if becomes is None else pack_ledger(becomes)) for path, was, becomes in changes
        ]
        return [bool(n) for n in self.scripts.one("update_ledger", (), tuple(chain.from_iterable(args)))]

    # waking and listening

    def waiter(self) -> RedisWaiter:
        return RedisWaiter(self.link, self.names, self.config.worker.brpoplpush_timeout)

    def subscribe(self) -> RedisSubscription:
        return RedisSubscription(self.link, self.names.events)

    def close(self) -> None:
        self.link.close()


class RedisTurn:
    """A turn on its way to the server."""

    is_answered = False

    def __init__(
        self, broker: RedisBroker, posted: PostedCalls, which: list[list[int]], total: int, *, asked: int, start: int
    ) -> None:
        self._broker = broker
        self._posted = posted
        self._which = which  # settlements of each verb, by their places
        self._total = total
        self._asked = asked
        self._start = start

    def take(self) -> TurnReply:
        value, order = self._broker.link.value, self._broker.order
        made = 0
        try:
            answers = value(self._posted.take()[0])
            settled = [SettleResult.FENCED] * self._total
            for which, answer in zip(self._which, answers, strict=False):
                for i, word in zip(which, value(answer), strict=True):
                    settled[i] = _SETTLED[word]
            if not self._asked:
                return TurnReply(tuple(settled))
            paused, gone, rows, so_far = value(answers[-1])
            made = so_far - self._start
        finally:
            order.claims -= self._asked - made
        return self._broker.claimed(tuple(settled), paused, gone, rows)

    def drop(self) -> None:
        self._broker.order.claims -= self._asked
        self._posted.drop()


_SETTLED = {word.value.encode(): word for word in SettleResult}
