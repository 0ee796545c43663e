"""The hot path on Redis: enqueue, settle and claim, renew, promote, reap, the registry and the ledger.

Every verb that changes something is one script call in one round trip. Scripts are atomic, so a kill -9 leaves a call
executed or not received. Nothing here decides what happens to a job: the settlement says it.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from itertools import chain
from typing import Any

import msgspec
from msgspec.structs import replace

from fileq.brokers import wire_events
from fileq.brokers.local_processes import ProcessId
from fileq.brokers.place_pages import LedgerPage, ledger_entries, wrong_cursor
from fileq.brokers.protocol import PendingReply, ReadyReply
from fileq.brokers.redis.due_watch import DueWatch, as_promoted
from fileq.brokers.redis.layout import Keys, is_newest, pack_ledger, unpack_ledger
from fileq.brokers.redis.list_search import BYTES_PER_CALL, SearchScript, run_on_records
from fileq.brokers.redis.scripts import ENQUEUE_MEMBERS, Argument, Part, entry_args, is_plain_entry, laid_out
from fileq.brokers.redis.store import InFlightCall, RedisStore, Replies, ReplyError
from fileq.brokers.redis.waiting import RedisSubscription, RedisWaiter
from fileq.brokers.types import (
    FULL_WAIT_MS,
    RETURNED_LOOK_MS,
    RUNNING_LOOK_MS,
    STEP_TOLERANCE_MS,
    SWEEP_PAGE,
    Admission,
    AdmitRequest,
    AdmitResult,
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
    check_entries,
    check_follow_ups,
)
from fileq.core.errors import Undecodable
from fileq.core.job import Buried, Claim, decode, decode_or_none, encode, first_id
from fileq.core.settlement import Settlement, SettleResult, Verb

PAGE = 1000  # records or entries of one call; more would block the server too long
FEW_WORKERS = 100  # so many repeat each look at their usual pace
PATIENCE_MAX = 10.0
MACHINE_LASTS_MS = 86_400_000  # what is known of a machine that says nothing any more
_SETTLE_RESULTS = {result.value.encode(): result for result in SettleResult}
_encoder = msgspec.json.Encoder()


class _Lease(ProcessId, frozen=True):
    """What a reaper reads of a registry entry: an entry that lacks the rest must not stop it."""

    lease_ms: int = 0  # how long its heartbeat lasts; 0 if the worker does not say

    @property
    def process(self) -> ProcessId:
        return ProcessId(self.boot_id, self.namespaces, self.pid, self.pid_start)


_lease_decoder = msgspec.json.Decoder(_Lease)


def _field_of(process: ProcessId) -> str:
    return f"{process.pid} {process.pid_start}"


class RedisQueues:
    """protocol.Broker on Redis."""

    _store: RedisStore
    _due_watch: DueWatch

    # enqueue

    def enqueue(self, entries: Sequence[Entry], *, limit: int = 0) -> Enqueued:
        check_entries(entries, self._store.queues)
        if len(entries) == 1 and is_plain_entry(entries[0]):
            return self._enqueue_plain(entries[0])
        results: list[EnqueueResult] = []
        existing: list[str] = []
        permits = wait_ms = now_ms = 0
        for start in range(0, len(entries), PAGE):
            part = self._enqueue_batch(entries[start : start + PAGE], limit)
            results.extend(part.results)
            existing.extend(part.existing)
            permits += part.permits
            wait_ms, now_ms = part.wait_ms or wait_ms, part.now_ms or now_ms
        return Enqueued(tuple(results), permits, wait_ms, tuple(existing), now_ms)

    def _enqueue_plain(self, entry: Entry) -> Enqueued:
        job, store = entry.job, self._store
        command = store.scripts.enqueue_plain(job.id, encode(job), entry.queue, wire_events.created(job))
        now_ms, is_repeated = store.link.reply_of(command)
        if now_ms or is_repeated:  # as in _enqueue_batch(): the first sending may have enqueued the job
            return Enqueued((EnqueueResult.ENQUEUED,), existing=("",), now_ms=now_ms)
        return Enqueued((EnqueueResult.DUPLICATE,), existing=(job.id,))

    def _enqueue_batch(self, entries: Sequence[Entry], limit: int) -> Enqueued:
        store = self._store
        keys = [store.keys.record(entry.job.id) for entry in entries]
        if any(entry.job.unique_key is not None for entry in entries):
            keys.append(store.keys.unique)
        args = chain.from_iterable(entry_args(entry, store.keys) for entry in entries)
        name = ENQUEUE_MEMBERS if any(entry.joins for entry in entries) else "enqueue"
        reply, is_repeated = store.link.reply_of(store.scripts.command(name, keys, (limit, *args)))
        permits, wait_ms, words, holders, now_ms = reply
        ids = [entry.job.id for entry in entries]
        results = [EnqueueResult(word.decode()) for word in words]
        existing = [id if r is EnqueueResult.DUPLICATE else "" for id, r in zip(ids, results, strict=True)]
        for number, holder in holders:
            existing[number - 1] = holder.decode()
        if is_repeated:
            # The first sending may have enqueued the job, so DUPLICATE after a repeat means ENQUEUED.
            for i, id in enumerate(ids):
                if existing[i] == id:
                    results[i], existing[i] = EnqueueResult.ENQUEUED, ""
        now_ms = now_ms if EnqueueResult.ENQUEUED in results else 0
        return Enqueued(tuple(results), permits, wait_ms, tuple(existing), now_ms)

    # settle and claim

    def settle_and_claim(self, settlements: Sequence[Settlement], slots: Sequence[str]) -> TurnReply:
        return self.send_settle_and_claim(settlements, slots).take()

    def send_settle_and_claim(self, settlements: Sequence[Settlement], slots: Sequence[str]) -> PendingReply:
        """One script made of the verbs, so one write and one read."""
        if not settlements and not slots:
            return ReadyReply(TurnReply())
        carrying = [s for s in settlements if s.follow_ups or s.outputs]
        check_follow_ups((s.follow_ups for s in carrying), self._store.queues)
        store, order, wanted = self._store, self._store.order, len(slots)
        by_verb: dict[Verb, list[int]] = {}
        for i, s in enumerate(settlements):
            by_verb.setdefault(s.verb, []).append(i)
        claiming = frozenset(slots)
        parts = [
            Part(verb.value, len(at), *laid_out([settlements[i] for i in at], store.keys, claiming))
            for verb, at in by_verb.items()
        ]
        start = order.claims
        if slots:
            parts.append(self._claim_part(slots, [settlements[i].claim.slot for at in by_verb.values() for i in at]))
            # Assumes that every slot gets a job, so that a second call in flight continues the count; the reply
            # corrects it.
            order.claims += wanted

        def decode(replies: Replies) -> TurnReply:
            answers, finished = with_members(store, store.link.checked(replies[0]), parts)
            reply = self._as_turn_reply(answers, by_verb.values(), len(settlements), slots, start)
            return replace(reply, finished_batches=finished) if finished else reply

        def undo() -> None:
            order.claims -= wanted

        has_members = any(map(may_be_member, settlements))
        command = store.scripts.settle_and_claim(parts, has_extras=bool(carrying), has_members=has_members)
        return InFlightCall(store.link, [command], decode, undo)

    def _claim_part(self, slots: Sequence[str], settling: Sequence[str]) -> Part:
        """Slots that also settle are not named again if they come first, as a pump sends them. `settling` are those of
        the settlements, in the order of the parts."""
        wanted, order = frozenset(slots), self._store.order
        first = [slot for slot in dict.fromkeys(settling) if slot in wanted]
        is_first = first == list(slots[: len(first)])
        named = slots[len(first) :] if is_first else slots
        return Part("claim", len(named), self._slot_keys(named), (order.claims, order.every, int(is_first), *named))

    def _as_turn_reply(
        self, answers: Sequence[Any], positions: Collection[list[int]], total: int, slots: Sequence[str], start: int
    ) -> TurnReply:
        """`positions` are those of each verb's settlements among all of them, `slots` those that claim."""
        store, checked = self._store, self._store.link.checked
        settled = [SettleResult.FENCED] * total
        for at, answer in zip(positions, answers, strict=False):
            for i, word in zip(at, checked(answer), strict=True):
                settled[i] = _SETTLE_RESULTS[word]
        if not slots:
            return TurnReply(tuple(settled))
        gone, flat, claims_after, buried_rows, now_ms = checked(answers[-1])
        claims = self._as_claims(slots, flat, int(now_ms))
        buried = tuple(
            Buried(id.decode(), slot.decode(), store.queues[number - 1], error.decode())
            for slot, number, id, error in buried_rows
        )
        reply = TurnReply(tuple(settled), claims, tuple(slot.decode() for slot in gone), buried)
        store.order.claims -= len(slots) - (claims_after - start)
        return reply

    def _slot_keys(self, slots: Sequence[str]) -> tuple[str, ...]:
        return tuple(chain.from_iterable(map(self._store.keys.of_slot, slots)))

    def _as_claims(self, slots: Sequence[str], flat: Sequence[Any], now_ms: int) -> tuple[Claim, ...]:
        """Four values of claim.lua for each: number of the slot, queue number, raw, and what is unusual about it."""
        claims, keys = [], self._store.keys
        values = iter(flat)
        for at, number, raw, facts in zip(values, values, values, values, strict=True):
            slot = slots[at - 1]
            token = self._next_token(slot)
            if facts:
                claims.append(as_claim((number, raw, *facts), slot, token, keys))
            else:
                claims.append(as_plain_claim(number, raw, now_ms, slot, token, keys))
        return tuple(claims)

    def _next_token(self, slot: str) -> int:
        tokens = self._store.tokens
        tokens[slot] += 1
        return tokens[slot]

    def admit(self, requests: Sequence[AdmitRequest]) -> list[Admission]:
        if not requests:
            return []
        layout = self._store.keys
        keys = chain.from_iterable((*layout.of_route(r.route), layout.processing(r.slot)) for r in requests)
        args: list[Argument] = []
        for r in requests:
            args += (r.slot, r.raw, r.max_running_total, r.rate, r.window_ms)
        before, after, _, _ = layout.split_patterns()
        rows = self._store.run("admit", tuple(keys), (before, after, FULL_WAIT_MS, *args))
        return [Admission(AdmitResult(word.decode()), wait_ms) for word, wait_ms in rows]

    # renew, promote, reap

    @property
    def patience(self) -> float:
        return self._store.patience

    def renew(self, holdings: Sequence[tuple[str, bytes]]) -> list[Renewal]:
        if not holdings:
            return []
        keys = self._slot_keys([slot for slot, _ in holdings])
        slot_count, *rows = self._store.run("renew", keys, tuple(chain.from_iterable(holdings)))
        self._store.patience = min(PATIENCE_MAX, max(1.0, slot_count / len(holdings) / FEW_WORKERS))
        return [self._as_renewal(slot, row) for (slot, _), row in zip(holdings, rows, strict=True)]

    def _as_renewal(self, slot: str, row: Sequence[Any]) -> Renewal:
        status = LeaseStatus(row[0].decode())
        if status is not LeaseStatus.UNEXPECTED:
            return Renewal(slot, status, None)
        return Renewal(slot, status, as_claim(row[1:], slot, self._next_token(slot), self._store.keys))

    def promote(self, limit: int = 500) -> Promoted:
        known = self._due_watch.promoted()
        if known is not None and (known.next_due_ms is None or known.next_due_ms > known.now_ms):
            return known
        keys = self._store.keys.schedules, self._store.keys.cancels, self._store.keys.deadlines
        count, *times = self._store.run("promote", keys, (limit,))
        return as_promoted(count, times)

    def report_due_changes(self, changed: Callable[[], None]) -> None:
        self._due_watch.report_changes(changed)

    def overdue(self, limit: int = 500) -> list[Claim]:
        args = limit, BYTES_PER_CALL, RUNNING_LOOK_MS, RETURNED_LOOK_MS
        rows, now_ms = self._store.run("overdue", (), args)
        keys = self._store.keys
        claims = (as_claim((number, raw, id, now_ms, 0, 0), "", 0, keys) for id, number, raw in rows)
        return [claim for claim in claims if claim.job is not None]

    def bury_overdue(self, settlements: Sequence[Settlement]) -> tuple[SettleResult, ...]:
        check_follow_ups((s.follow_ups for s in settlements), self._store.queues)
        store, ids = self._store, [s.claim.id for s in settlements]
        script = SearchScript("bury_overdue", removes=frozenset([b"done"]), takes_proofs=True)

        def own(i: int) -> tuple[Sequence[str], Sequence[Argument]]:
            return laid_out([settlements[i]], store.keys)

        return tuple(SettleResult(word.decode()) for word in run_on_records(store, script, ids, own))

    def realign(self, offset: int = 0, limit: int = 500) -> int | None:
        next_offset: int = self._store.run("realign", (), (offset, limit, STEP_TOLERANCE_MS))
        return next_offset if next_offset >= 0 else None

    def due_now(self, ids: Sequence[str]) -> list[bool]:
        records = [self._store.keys.record(id) for id in ids]
        pages = (records[start : start + PAGE] for start in range(0, len(records), PAGE))
        return [bool(n) for page in pages for n in self._store.run("due_now", page)]

    def sweep_unique(self, cursor: str = "") -> str | None:
        store, key = self._store, self._store.keys.unique
        next_cursor, flat = store.call("HSCAN", key, cursor or "0", "COUNT", SWEEP_PAGE)
        for start in range(0, len(flat), 2 * SWEEP_PAGE):  # a page of a small hash is the whole hash
            store.run("sweep_unique", (key,), flat[start : start + 2 * SWEEP_PAGE])
        return next_cursor.decode() if int(next_cursor) else None

    def suspects(self, *, sweep: bool = False, gone: Collection[ProcessId] = ()) -> list[Suspect]:
        found = (suspect for page in self._lease_pages(sweep) for suspect in self._suspects_of(page, gone))
        return sorted({suspect.slot: suspect for suspect in found}.values(), key=lambda suspect: suspect.slot)

    def _lease_pages(self, sweep: bool) -> Iterator[Mapping[str, _Lease]]:
        """Registered slots; with `sweep` also those that only have a processing list. Some may be named twice."""
        store, cursor = self._store, b"0"
        while True:
            cursor, flat = store.call("HSCAN", store.keys.workers, cursor, "COUNT", PAGE)
            pairs = zip(flat[::2], flat[1::2], strict=True)
            yield {slot.decode(): _lease_decoder.decode(info) for slot, info in pairs}
            if cursor == b"0":
                break
        if sweep:
            slots = store.unregistered_slots()
            for start in range(0, len(slots), PAGE):
                yield dict.fromkeys(slots[start : start + PAGE], _Lease())

    def _suspects_of(self, leases: Mapping[str, _Lease], gone: Collection[ProcessId]) -> list[Suspect]:
        store, keys = self._store, self._store.keys
        if gone:
            slots = [slot for slot, lease in leases.items() if lease.process in gone]
        else:
            left_ms = dict(zip(leases, store.calls([("PTTL", keys.heartbeat(slot)) for slot in leases]), strict=True))
            # No heartbeat lasts longer than its lease: the server's clock has stepped back. A slot that is alive renews
            # it long before the end of this one.
            stale = [slot for slot, lease in leases.items() if 0 < lease.lease_ms < left_ms[slot]]
            store.calls([("PEXPIRE", keys.heartbeat(slot), leases[slot].lease_ms) for slot in stale])
            slots = [slot for slot in leases if left_ms[slot] == -2]
        lists = store.calls([("LRANGE", keys.processing(slot), 0, -1) for slot in slots])
        found = zip(slots, lists, strict=True)
        return [Suspect(slot, self._claims_of(slot, raws), bool(gone)) for slot, raws in found]

    def processes(self, here: ProcessId) -> list[ProcessId]:
        key = self._store.keys.machine(here)
        says = (("HSET", key, _field_of(here), 1), ("PEXPIRE", key, MACHINE_LASTS_MS))
        *_, fields = self._store.calls([*says, ("HKEYS", key)])
        found = (field.decode().partition(" ") for field in fields)
        return [replace(here, pid=int(pid), pid_start=int(start)) for pid, _, start in found]

    def forget_process(self, process: ProcessId) -> None:
        self._store.call("HDEL", self._store.keys.machine(process), _field_of(process))

    def lease(self, name: str, holder: str, ttl_ms: int, *, instead_of: str = "") -> str:
        command = self._store.scripts.lease(name, holder, ttl_ms, instead_of)
        reply: bytes = self._store.link.reply(command)
        return reply.decode(errors="replace")

    def cancel_requests(self) -> int:
        return int(self._store.call("GET", self._store.keys.cancels) or 0)

    def _claims_of(self, slot: str, raws: Sequence[bytes]) -> tuple[Claim, ...]:
        """What a silent slot holds, with the queue and the start time from each job's record."""
        keys = self._store.keys
        jobs = [decode_or_none(raw) for raw in raws]
        ids = ["" if job is None else job.id for job in jobs]
        records = self._store.records(ids)
        claims = []
        for raw, id, record in zip(raws, ids, records, strict=True):
            number = keys.queue_numbers.get(record.queue, 0) if record else 0
            started_ms = record.started_ms if record else 0
            row = (number, raw, id.encode(), started_ms, 0, 0)
            claims.append(as_claim(row, slot, 0, keys))
        return tuple(claims)

    def reap(self, slot: str, settlements: Sequence[Settlement], *, is_gone: bool = False) -> tuple[SettleResult, ...]:
        layout = self._store.keys
        check_follow_ups((s.follow_ups for s in settlements), self._store.queues)
        keys, args = laid_out(settlements, layout)
        verbs = (s.verb.value for s in settlements)
        own_args = slot, int(is_gone), len(settlements), *verbs, *args
        reply = self._store.run("reap", (*layout.of_slot(slot), *keys), own_args)
        return tuple(SettleResult(word.decode()) for word in reply)

    # the registry

    def register(self, slots: Mapping[str, WorkerInfo]) -> None:
        heartbeats = [self._store.keys.heartbeat(slot) for slot in slots]
        args = ((slot, _encoder.encode(info)) for slot, info in slots.items())
        self._store.run("register", heartbeats, tuple(chain.from_iterable(args)))

    def deregister(self, slots: Sequence[str]) -> None:
        self._store.run("deregister", self._slot_keys(slots), tuple(slots))
        for slot in slots:
            self._store.tokens.pop(slot, None)  # no id is used again

    def breaker_resets(self) -> Mapping[str, int]:
        flat = self._store.call("HGETALL", self._store.keys.breaker_resets)
        return {route.decode(): int(number) for route, number in zip(flat[::2], flat[1::2], strict=True)}

    # the ledger

    def lookup(self, paths: Sequence[bytes]) -> list[LedgerEntry | None]:
        if not paths:
            return []
        values = self._store.call("HMGET", self._store.keys.ledger, *paths)
        return [unpack_ledger(value) if value is not None else None for value in values]

    def knows(self, versions: Sequence[tuple[bytes, str]]) -> list[bool]:
        if not versions:
            return []
        values = self._store.call("HMGET", self._store.keys.ledger, *[path for path, _ in versions])
        return [
            value is not None and is_newest(value, signature.encode())
            for value, (_, signature) in zip(values, versions, strict=True)
        ]

    def ledger(self, under: bytes) -> Iterator[tuple[bytes, LedgerEntry]]:
        return ledger_entries(self.ledger_page, under)

    def ledger_page(self, under: bytes, cursor: str = "", size: int = PAGE) -> LedgerPage:
        if cursor and not cursor.isdecimal():
            raise wrong_cursor(cursor)
        pattern = b"".join(b"\\" + bytes([c]) if c in b"*?[]\\^-" else bytes([c]) for c in under) + b"*"
        key, store = self._store.keys.ledger, self._store
        following, flat = store.call("HSCAN", key, cursor or 0, "MATCH", pattern, "COUNT", size)
        entries = tuple((path, unpack_ledger(value)) for path, value in zip(flat[::2], flat[1::2], strict=True))
        return LedgerPage(entries, "" if int(following) == 0 else str(int(following)), max(size, len(entries)))

    def update_ledger(self, changes: Sequence[tuple[bytes, LedgerEntry, LedgerEntry | None]]) -> list[bool]:
        args = [(path, pack_ledger(was), b"" if new is None else pack_ledger(new)) for path, was, new in changes]
        return [bool(n) for n in self._store.run("update_ledger", (), tuple(chain.from_iterable(args)))]

    # waiting for jobs and for events

    def waiter(self) -> RedisWaiter:
        return RedisWaiter(self._store, self._store.config.worker.brpoplpush_timeout)

    def subscribe(self) -> RedisSubscription:
        return RedisSubscription(self._store.link, self._store.keys.events)


def as_plain_claim(number: int, raw: bytes, started_ms: int, slot: str, token: int, keys: Keys) -> Claim:
    """A claim of which claim.lua says nothing more than this. The id that it read is the first field."""
    try:
        job = decode(raw)  # claim.lua took the first id in these bytes; decode() refuses bytes with two ids
    except Undecodable:
        return as_claim((number, raw, first_id(raw), started_ms, 0, 0), slot, token, keys)
    return Claim(slot, token, keys.queue_names[number - 1], raw, job, job.id, started_ms)


def as_claim(row: Sequence[Any], slot: str, token: int, keys: Keys) -> Claim:
    """The claim in a row of claim.lua or renew.lua: queue number, raw, id, start time, whether it is blocked, whether
    its batch is cancelled."""
    number, raw, id, started_ms, is_blocked, is_cancelled = row
    queue = keys.queue_names[int(number) - 1]  # 0 is unknown, and selects the last queue
    id_read = id.decode(errors="replace") or None
    try:
        job = decode(raw)
        if job.id != id_read:
            raise Undecodable(f"not a job: its id can be read as {id_read!r} and as {job.id!r}")
    except Undecodable as defect:
        return Claim(slot, token, queue, raw, None, id_read, int(started_ms), str(defect))
    facts = bool(is_blocked), bool(is_cancelled)
    return Claim(slot, token, queue, raw, job, job.id, int(started_ms), "", *facts)


# A turn of the pump with members of batches: which script it needs, and what that script answers in addition.
#
# A job that is labelled with a batch may be its member. A job can also join a batch while it runs, and then no label
# says so. The usual script refuses to settle such a job before it changes anything.


def may_be_member(s: Settlement) -> bool:
    """Whether its job, or a job that follows it, may be a member of a batch."""
    job = s.claim.job
    return (job is not None and job.batch_id is not None) or any(follow_up.joins for follow_up in s.follow_ups)


def with_members(store: RedisStore, answers: list[Any], parts: Sequence[Part]) -> tuple[list[Any], tuple[str, ...]]:
    """The answers of the parts, and the ids of the batches that they have finished.

    If the script has refused a member, all parts are sent again, to the script that counts members."""
    if any(isinstance(answer, ReplyError) and str(answer).startswith("BATCH ") for answer in answers):
        again = store.link.reply(store.scripts.settle_and_claim(parts, has_members=True))
        # The first script may have settled some jobs: the second calls them "done already". The first claimed nothing.
        is_new = [part.verb == "claim" or isinstance(a, ReplyError) for part, a in zip(parts, answers, strict=True)]
        answers = [b if new else a for a, b, new in zip(answers, again, is_new, strict=False)] + again[len(parts) :]
    finished = answers[len(parts)] if len(answers) > len(parts) else ()
    return answers[: len(parts)], tuple(id.decode() for id in finished)
