"""The broker that forgets everything at exit: for tests, trials, and as the specification of the others.

Each verb is written once, plainly, under one lock. Where another broker answers differently, it is wrong.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from fileq.brokers import events
from fileq.brokers.memory.repairer import MemoryMending
from fileq.brokers.memory.state import Row
from fileq.brokers.protocol import PendingReply, ReadyReply
from fileq.brokers.types import (
    Attempt,
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
from fileq.brokers.wake import LocalSubscription, LocalWaiter
from fileq.core.claim import Claim
from fileq.core.errors import Undecodable
from fileq.core.finding import Finding
from fileq.core.job import State, Version, decode, decode_or_none, encode
from fileq.core.settlement import Settlement, SettleResult, Verb

RATE_WINDOW_MS = 1000


class MemoryBroker(MemoryMending):
    kind = "memory"
    where = "this process"

    def examine(self, *, permissions: bool = False) -> list[Finding]:
        """Nothing outside this process can be wrong."""
        return []

    # enqueue

    def enqueue(self, entries: Sequence[Entry], *, limit: int = 0) -> Enqueued:
        check_queues((entry.queue for entry in entries), self.queue_names)
        with self.lock:
            now = self.now()
            permits = 0
            fates: list[EnqueueResult] = []
            for entry in entries:
                fate = self._refusal(entry)
                if fate is None and limit and entry.version is not None and not entry.always:
                    if self._take_permit(now, limit):
                        permits += 1
                    else:
                        fate = EnqueueResult.THROTTLED
                if fate is None:
                    fate = EnqueueResult.ENQUEUED
                    self._enqueue(entry, now)
                fates.append(fate)
            wait_ms = max(1, self.window[0] - now) if EnqueueResult.THROTTLED in fates else 0
            return Enqueued(tuple(fates), permits, wait_ms)

    def _refusal(self, entry: Entry) -> EnqueueResult | None:
        if entry.job.id in self.rows:
            return EnqueueResult.DUPLICATE
        if entry.version is None or entry.always:
            return None
        known = self.versions.get(entry.version.path)
        return EnqueueResult.KNOWN if known is not None and known.knows(entry.version.signature) else None

    def _take_permit(self, now: int, limit: int) -> bool:
        ends, taken = self.window
        if now >= ends:
            ends, taken = now + RATE_WINDOW_MS, 0
        if taken >= limit:
            return False
        self.window = (ends, taken + 1)
        return True

    def _enqueue(self, entry: Entry, now: int) -> None:
        row = self.row_for(entry.job.id, entry.queue, encode(entry.job), now)
        due = max(entry.at_ms, now + entry.delay_ms)
        if due > now:
            self.schedule(row, State.SCHEDULED, due)
        else:
            self.push(row, front=False)
        if entry.version is not None:
            self._learn(entry.version, entry.job.id)
        self.count(now, "produced")
        self.publish(events.created(entry.job))

    def _learn(self, version: Version, job_id: str) -> None:
        known = self.versions.get(version.path, LedgerEntry())
        self.versions[version.path] = known.with_version(version, job_id)

    # turn: settle, then claim

    def send_settle_and_claim(self, settlements: Sequence[Settlement], slots: Sequence[str]) -> PendingReply:
        return ReadyReply(self.settle_and_claim(settlements, slots))

    def settle_and_claim(self, settlements: Sequence[Settlement], slots: Sequence[str]) -> TurnReply:
        with self.lock:
            now = self.now()
            settled = tuple(self._settle(s, now) for s in settlements)
            gone = tuple(slot for slot in slots if slot not in self.registry)
            claims = [self._held(slot) or self._claim(slot, now) for slot in slots if slot in self.registry]
            return TurnReply(settled, tuple(c for c in claims if c is not None), gone, frozenset(self.paused))

    def _held(self, slot: str) -> Claim | None:
        held = self.processing[slot]
        return self._as_claim(slot, held[-1], token=self._next_token(slot)) if held else None

    def _claim(self, slot: str, now: int) -> Claim | None:
        for queue in self.order.next_order():
            if queue not in self.paused and self.queues[queue]:
                raw = self.queues[queue].pop()
                self.order.claimed()
                self.processing[slot].append(raw)
                self.beat(slot, raw, now)
                self.count(now, "consumed")
                self._mark_running(slot, queue, raw, now)
                claim = self._as_claim(slot, raw, queue, token=self._next_token(slot))
                self.publish(events.started(claim) if claim.job is not None else b"")
                return claim
        return None

    def _mark_running(self, slot: str, queue: str, raw: bytes, now: int) -> None:
        job = decode_or_none(raw)
        row = self.row_for(job.id, queue, raw, now) if job is not None else None
        if row is not None and row.queued:
            row.queued -= 1
        else:
            self.count(now, "adopted")
        if row is not None:
            row.state, row.worker, row.queue, row.raw = State.RUNNING, slot, queue, raw
            row.started_ms, row.due_ms = now, 0

    def _as_claim(self, slot: str, raw: bytes, queue: str | None = None, *, token: int = 0) -> Claim:
        try:
            job = decode(raw)
        except Undecodable as defect:
            return Claim(slot, token, queue or self.queue_names[-1], raw, None, defect=str(defect))
        row = self.rows.get(job.id)
        if row is None:
            return Claim(slot, token, queue or self.queue_names[-1], raw, job, job.id)
        return Claim(slot, token, row.queue, raw, job, job.id, row.started_ms)

    def _next_token(self, slot: str) -> int:
        self.tokens[slot] += 1
        return self.tokens[slot]

    def _settle(self, s: Settlement, now: int) -> SettleResult:
        slot = s.claim.slot
        if self.settled.get(slot) == s.claim.token:
            return SettleResult.DONE_ALREADY
        # Also a call that comes late, about bytes which the slot has settled and then claimed again.
        if s.claim.token < self.settled.get(slot, 0) or s.claim.raw not in self.processing[slot]:
            self.count(now, "fenced")
            return SettleResult.FENCED
        self._move(s, now)
        self.settled[slot] = s.claim.token
        self.beat(slot, b"", now)
        return SettleResult.DONE

    def _move(self, s: Settlement, now: int) -> None:
        """The job goes where its settlement says, and with it its record and the counters."""
        if s.claim.record_id is None and s.verb is Verb.RELEASE:
            self.disown(s.claim.queue, s.raw, front=True, now_ms=now)
        else:
            row = self.row_for(s.claim.id, s.claim.queue, s.raw, now)
            row.add_attempt(Attempt(row.started_ms, now, s.claim.slot, s.outcome, s.error))
            row.raw, row.error, row.worker, row.queue = s.raw, s.error, s.claim.slot, s.claim.queue
            self._move_row(s, row, now)
        self.processing[s.claim.slot].remove(s.claim.raw)
        self._count_blame(s, now)
        self.publish(events.settled(s))

    def _move_row(self, s: Settlement, row: Row, now: int) -> None:
        if s.verb is Verb.COMPLETE:
            row.result = s.result
            self.end(row, State.COMPLETED, now)
            self.count(now, "superseded", int(s.superseded))
            if s.leaves is not None:
                self._learn(s.leaves, row.id)
        elif s.verb is Verb.RETRY:
            self.schedule(row, State.RETRYING, now + s.delay_ms)
        elif s.verb is Verb.BURY:
            row.state, row.ended_ms = State.DEAD, now
            self.dead.appendleft(s.raw)
            self.count(now, "dead")
        elif s.verb is Verb.RELEASE:
            self.push(row, front=True)
        else:
            self.end(row, State.CANCELLED, now)

    def _count_blame(self, s: Settlement, now: int) -> None:
        if s.died:
            self.count(now, "recovered")
        elif s.verb is Verb.RELEASE:
            self.count(now, "released")
        elif s.is_failure:
            self.count(now, "failed")
            self.count(now, "retried", int(s.verb is Verb.RETRY))
        if s.kind:
            self.count(now, f"error:{s.kind}")

    # renew, promote, reap

    def renew(self, holdings: Sequence[tuple[str, bytes]]) -> list[Renewal]:
        with self.lock:
            now = self.now()
            return [self._renew(slot, believed, now) for slot, believed in holdings]

    def _renew(self, slot: str, believed: bytes, now: int) -> Renewal:
        if slot not in self.registry:
            return Renewal(slot, LeaseStatus.GONE)
        really = b"".join(self.processing[slot])
        self.beat(slot, really, now)
        if really == believed:
            return Renewal(slot, self._hold_of(really))
        if believed:
            return Renewal(slot, LeaseStatus.LOST)
        return Renewal(slot, LeaseStatus.UNEXPECTED, self._as_claim(slot, really, token=self._next_token(slot)))

    def _hold_of(self, raw: bytes) -> LeaseStatus:
        if not raw:
            return LeaseStatus.IDLE
        job = decode_or_none(raw)
        row = self.rows.get(job.id) if job else None
        return LeaseStatus.CANCEL if row and row.is_cancel_requested else LeaseStatus.HELD

    def promote(self, limit: int = 500) -> Promoted:
        with self.lock:
            now = self.now()
            waiting = sorted(self.scheduled.items(), key=lambda item: (item[1], item[0]))
            due = [raw for raw, due_ms in waiting[:limit] if due_ms <= now]
            for raw in due:
                del self.scheduled[raw]
                job = decode_or_none(raw)
                if job is None:
                    self.disown(self.queue_names[-1], raw, front=False, now_ms=now)
                    continue
                row = self.row_for(job.id, self.queue_names[-1], raw, now)
                row.raw = raw
                self.push(row, front=False)
            left = waiting[len(due) :]
            return Promoted(len(due), left[0][1] if left else None, now)

    def suspects(self, *, sweep: bool = False) -> list[Suspect]:
        with self.lock:
            now = self.now()
            slots = set(self.registry)
            if sweep:
                slots |= {slot for slot, held in self.processing.items() if held}
            return [
                Suspect(slot, tuple(self._as_claim(slot, raw) for raw in self.processing[slot]))
                for slot in sorted(slots)
                if not self.is_alive(slot, now)
            ]

    def reap(self, slot: str, settlements: Sequence[Settlement]) -> tuple[SettleResult, ...]:
        with self.lock:
            now = self.now()
            if self.is_alive(slot, now):
                return tuple(SettleResult.FENCED for _ in settlements)
            answers = [self._reap(slot, s, now) for s in settlements]
            if not self.processing[slot]:
                self._forget(slot)
            return tuple(answers)

    def _reap(self, slot: str, s: Settlement, now: int) -> SettleResult:
        if s.claim.raw not in self.processing[slot]:
            return SettleResult.FENCED
        self._move(s, now)
        return SettleResult.DONE

    # the registry

    def register(self, slots: Mapping[str, WorkerInfo]) -> None:
        with self.lock:
            now = self.now()
            for slot, info in slots.items():
                self.registry[slot] = info
                if not self.is_alive(slot, now):
                    self.beat(slot, b"", now)

    def deregister(self, slots: Sequence[str]) -> None:
        with self.lock:
            now = self.now()
            for slot in slots:
                for raw in self.processing[slot]:
                    self._give_back(self._as_claim(slot, raw), now)
                self._forget(slot)

    def _give_back(self, claim: Claim, now: int) -> None:
        if claim.job is None:
            self.disown(claim.queue, claim.raw, front=True, now_ms=now)
        else:
            row = self.row_for(claim.job.id, claim.queue, claim.raw, now)
            row.raw = claim.raw  # the record may speak of a copy
            self.push(row, front=True)
        self.count(now, "released")

    def _forget(self, slot: str) -> None:
        for place in (self.registry, self.heartbeats, self.settled, self.processing):
            place.pop(slot, None)

    # the ledger

    def lookup(self, paths: Sequence[bytes]) -> list[LedgerEntry | None]:
        with self.lock:
            return [self.versions.get(path) for path in paths]

    def ledger(self, under: bytes) -> Iterator[tuple[bytes, LedgerEntry]]:
        with self.lock:
            return iter([(path, entry) for path, entry in self.versions.items() if path.startswith(under)])

    def update_ledger(self, changes: Sequence[tuple[bytes, LedgerEntry, LedgerEntry | None]]) -> list[bool]:
        with self.lock:
            return [self._revise(*change) for change in changes]

    def _revise(self, path: bytes, was: LedgerEntry, becomes: LedgerEntry | None) -> bool:
        if self.versions.get(path) != was:
            return False
        if becomes is None:
            del self.versions[path]
        else:
            self.versions[path] = becomes
        return True

    # waking and listening

    def waiter(self) -> LocalWaiter:
        waiter = LocalWaiter(self.has_work, self.config.worker.brpoplpush_timeout, self.waiters.discard)
        self.waiters.add(waiter)
        return waiter

    def subscribe(self) -> LocalSubscription:
        subscription = LocalSubscription(self.subscriptions.discard)
        self.subscriptions.add(subscription)
        return subscription

    def close(self) -> None:
        """Nothing outlives the process, and nothing needs closing."""
