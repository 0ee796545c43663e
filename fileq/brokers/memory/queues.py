"""The memory broker's hot path: protocol.Broker over a MemoryStore. Every call is one step under the store's lock."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

from fileq.brokers import wire_events
from fileq.brokers.admission_types import Admission, AdmitRequest
from fileq.brokers.clocks import (
    LONGEST_LOOK_MS,
    RATE_WINDOW_MS,
    RETURNED_LOOK_MS,
    RUNNING_LOOK_MS,
    due_after_step,
)
from fileq.brokers.known_versions import newest_versions
from fileq.brokers.local_processes import ProcessId
from fileq.brokers.local_waiter import LocalWaiter
from fileq.brokers.memory.admissions import admit
from fileq.brokers.memory.entries import add, batch_to_join, existing_job, key_holder
from fileq.brokers.memory.settlements import bury_overdue, reap, settle
from fileq.brokers.memory.store import MemoryStore
from fileq.brokers.memory.subscription import MemorySubscription
from fileq.brokers.replies import PendingReply, ReadyReply
from fileq.brokers.types import (
    SWEEP_PAGE,
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
from fileq.core.claim import Buried, Claim
from fileq.core.job import State, decode_or_none, raw_id
from fileq.core.settlement import Settlement, SettleResult


class MemoryQueues:
    _store: MemoryStore

    # enqueue

    def enqueue(self, entries: Sequence[Entry], *, limit: int = 0) -> Enqueued:
        store = self._store
        check_entries(entries, store.queue_names)
        with store.lock:
            now_ms = store.begin()
            permits = 0
            results: list[EnqueueResult] = []
            existing: list[str] = []
            for entry in entries:
                existing.append(existing_job(store, entry))
                result = EnqueueResult.DUPLICATE if existing[-1] else self._known_result(entry)
                batch = batch_to_join(store, entry)
                if result is None and entry.joins and batch is None:
                    result = EnqueueResult.REFUSED
                if result is None and limit and entry.version is not None and not entry.always:
                    if self._take_permit(now_ms, limit):
                        permits += 1
                    else:
                        result = EnqueueResult.THROTTLED
                if result is None:
                    result = EnqueueResult.ENQUEUED
                    add(store, entry, now_ms, batch=batch)
                results.append(result)
            wait_ms = max(1, store.rate_window[0] - now_ms) if EnqueueResult.THROTTLED in results else 0
            return Enqueued(tuple(results), permits, wait_ms, tuple(existing))

    def _known_result(self, entry: Entry) -> EnqueueResult | None:
        """KNOWN, or None for an entry whose version the ledger does not know."""
        if entry.version is None or entry.always:
            return None
        known = self._store.ledger.get(entry.version.path)
        return EnqueueResult.KNOWN if known is not None and known.knows(entry.version.signature) else None

    def _take_permit(self, now_ms: int, limit: int) -> bool:
        ends_ms, taken = self._store.rate_window
        if now_ms >= ends_ms:
            ends_ms, taken = now_ms + RATE_WINDOW_MS, 0
        if taken >= limit:
            return False
        self._store.rate_window = (ends_ms, taken + 1)
        return True

    # settle and claim

    def send_settle_and_claim(self, settlements: Sequence[Settlement], slots: Sequence[str]) -> PendingReply:
        return ReadyReply(self.settle_and_claim(settlements, slots))

    def settle_and_claim(self, settlements: Sequence[Settlement], slots: Sequence[str]) -> TurnReply:
        store = self._store
        check_follow_ups((s.follow_ups for s in settlements), store.queue_names)
        with store.lock:
            now_ms = store.begin()
            settled = tuple(settle(store, s, now_ms) for s in settlements)
            gone = tuple(slot for slot in slots if slot not in store.registry)
            buried: list[Buried] = []
            claims = [self._held(slot) or self._claim(slot, buried, now_ms) for slot in slots if slot in store.registry]
            found = tuple(claim for claim in claims if claim is not None)
            finished = tuple(store.finished_batches)
            return TurnReply(settled, found, gone, frozenset(store.paused), tuple(buried), finished)

    def _held(self, slot: str) -> Claim | None:
        """The job the slot already holds: the reply that carried it was lost."""
        held = self._store.processing[slot]
        return self._store.claim_to_run(slot, held[-1]) if held else None

    def _claim(self, slot: str, buried: list[Buried], now_ms: int) -> Claim | None:
        """The next job. Foreign bytes under the id of another job are buried first; one call buries one of them."""
        store = self._store
        for queue in store.order.next_order():
            if queue not in store.paused and store.queues[queue]:
                if store.is_foreign(store.queues[queue][-1], State.PENDING):
                    if buried:
                        return None
                    buried.append(self._bury(slot, queue, store.queues[queue].pop(), now_ms))
                    return self._claim(slot, buried, now_ms)
                raw = store.queues[queue].pop()
                store.order.claimed()
                store.processing[slot].append(raw)
                store.renew_heartbeat(slot, now_ms)
                store.count(now_ms, "consumed")
                self._mark_running(slot, queue, raw, now_ms)
                claim = store.claim_to_run(slot, raw, queue)
                store.publish(now_ms, wire_events.started(claim) if claim.job is not None else b"")
                return claim
        return None

    def _bury(self, slot: str, queue: str, raw: bytes, now_ms: int) -> Buried:
        store = self._store
        for name in ("adopted", "consumed"):
            store.count(now_ms, name)
        error = store.bury_foreign(slot, queue, raw, now_ms)
        found = Buried(raw_id(raw), slot, queue, error)
        store.publish(now_ms, wire_events.buried(found))
        return found

    def _mark_running(self, slot: str, queue: str, raw: bytes, now_ms: int) -> None:
        job = decode_or_none(raw)
        record = self._store.record_for(job.id, queue, raw, now_ms) if job is not None else None
        if record is not None and record.queued:
            record.queued -= 1
        else:
            self._store.count(now_ms, "adopted")
        if record is not None:
            record.state, record.slot, record.queue, record.raw = State.RUNNING, slot, queue, raw
            record.started_ms, record.due_ms = now_ms, 0

    def admit(self, requests: Sequence[AdmitRequest]) -> list[Admission]:
        with self._store.lock:
            now_ms = self._store.begin()
            return [admit(self._store, request, now_ms) for request in requests]

    # renew, promote, reap

    def renew(self, holdings: Sequence[tuple[str, bytes]]) -> list[Renewal]:
        with self._store.lock:
            now_ms = self._store.begin()
            return [self._renew(slot, believed, now_ms) for slot, believed in holdings]

    def _renew(self, slot: str, believed: bytes, now_ms: int) -> Renewal:
        store = self._store
        if slot not in store.registry:
            return Renewal(slot, LeaseStatus.GONE)
        held = b"".join(store.processing[slot])
        store.renew_heartbeat(slot, now_ms)
        if held == believed:
            return Renewal(slot, self._status_of(held))
        if believed:
            return Renewal(slot, LeaseStatus.LOST)
        return Renewal(slot, LeaseStatus.UNEXPECTED, store.claim_to_run(slot, held))

    def _status_of(self, raw: bytes) -> LeaseStatus:
        if not raw:
            return LeaseStatus.IDLE
        job = decode_or_none(raw)
        record = self._store.records.get(job.id) if job else None
        if record is None:
            return LeaseStatus.HELD
        is_cancelled = record.is_cancel_requested or self._store.is_batch_cancelled(record)
        return LeaseStatus.CANCEL if is_cancelled else LeaseStatus.HELD

    def promote(self, limit: int = 500) -> Promoted:
        store = self._store
        with store.lock:
            now_ms = store.begin()
            waiting = sorted(store.scheduled.items(), key=lambda item: (item[1], item[0]))
            due = [raw for raw, due_ms in waiting[:limit] if due_ms <= now_ms]
            for raw in due:
                self._promote(raw, now_ms)
            left = waiting[len(due) :]
            firing = [state.next_ms for state in store.schedule_states.values() if not state.is_paused]
            next_due_ms, next_fire_ms = left[0][1] if left else None, min(firing, default=None)
            return Promoted(
                len(due),
                next_due_ms,
                now_ms,
                next_fire_ms,
                cancel_requests=store.cancel_requests,
                next_deadline_ms=min(store.deadlines.values(), default=None),
            )

    def _promote(self, raw: bytes, now_ms: int) -> None:
        store = self._store
        del store.scheduled[raw]
        job = decode_or_none(raw)
        if job is None:  # another program put it here; the claim counts it as adopted
            store.push_raw(store.queue_names[-1], raw, front=False)
            return
        known = store.records.get(job.id)
        if known is not None and not known.is_about(raw):  # another job has its id; the claim buries it
            store.push_undecodable(store.queue_names[-1], raw, front=False, now_ms=now_ms)
            return
        record = store.record_for(job.id, store.queue_names[-1], raw, now_ms)
        record.raw = raw
        store.push(record, front=False)

    def overdue(self, limit: int = 500) -> list[Claim]:
        store = self._store
        with store.lock:
            now_ms = store.begin()
            looks = sorted((look_ms, id.encode(), id) for id, look_ms in store.deadlines.items())
            found = (self._look(id, now_ms) for look_ms, _, id in looks[:limit] if look_ms <= now_ms)
            return [claim for claim in found if claim is not None]

    def _look(self, id: str, now_ms: int) -> Claim | None:
        """The claim of a job that waits although its deadline has passed. Says when to look at it again."""
        store, record = self._store, self._store.records.get(id)
        deadline_ms = record.deadline_ms if record is not None else None
        if record is None or deadline_ms is None or not record.state.is_unfinished:
            del store.deadlines[id]
            return None
        again_ms, claim = RUNNING_LOOK_MS, None
        if deadline_ms > now_ms:
            again_ms = min(deadline_ms - now_ms, LONGEST_LOOK_MS)
        elif record.state.is_waiting and not store.is_batch_cancelled(record):
            again_ms = RETURNED_LOOK_MS
            claim = Claim("", 0, record.queue, record.raw, decode_or_none(record.raw), id, now_ms)
        store.deadlines[id] = now_ms + again_ms
        return claim if claim is not None and claim.job is not None else None

    def bury_overdue(self, settlements: Sequence[Settlement]) -> tuple[SettleResult, ...]:
        store = self._store
        check_follow_ups((s.follow_ups for s in settlements), store.queue_names)
        with store.lock:
            now_ms = store.begin()
            return tuple(bury_overdue(store, s, now_ms) for s in settlements)

    def realign(self, offset: int = 0, limit: int = 500) -> int | None:
        store = self._store
        with store.lock:
            now_ms = store.begin()
            waiting = sorted(store.scheduled, key=lambda raw: (store.scheduled[raw], raw), reverse=True)
            page = waiting[offset : offset + limit]
            changed = sum(self._realign(raw, now_ms) for raw in page)
            # A changed job is due earlier, so the jobs of the next pages take its place.
            return offset + len(page) - changed if len(page) == limit else None

    def _realign(self, raw: bytes, now_ms: int) -> bool:
        job = decode_or_none(raw)
        record = self._store.records.get(job.id) if job is not None else None
        if record is None or record.raw != raw or record.state not in (State.SCHEDULED, State.RETRYING):
            return False
        due_ms = due_after_step(record.due_ms, record.since_ms, now_ms)
        if due_ms is None:
            return False
        self._store.scheduled[raw] = record.due_ms = due_ms
        record.since_ms = now_ms
        return True

    def due_now(self, ids: Sequence[str]) -> list[bool]:
        with self._store.lock:
            now_ms = self._store.begin()
            return [self._due_now(id, now_ms) for id in ids]

    def _due_now(self, id: str, now_ms: int) -> bool:
        record = self._store.records.get(id)
        if record is None or record.state not in (State.SCHEDULED, State.RETRYING):
            return False
        if record.raw not in self._store.scheduled:
            return False
        self._promote(record.raw, now_ms)
        return True

    def sweep_unique(self, cursor: str = "") -> str | None:
        store = self._store
        with store.lock:
            store.begin()
            page = sorted(key for key in store.unique if key > cursor)[:SWEEP_PAGE]
            for key in page:
                if not key_holder(store, key):
                    del store.unique[key]
            return page[-1] if len(page) == SWEEP_PAGE else None

    def suspects(self, *, sweep: bool = False, is_gone: Callable[[ProcessId], bool] | None = None) -> list[Suspect]:
        store = self._store
        with store.lock:
            now_ms = store.begin()
            slots = set(store.registry)
            gone = {slot for slot, info in store.registry.items() if is_gone is not None and is_gone(info.process)}
            if sweep:
                slots |= {slot for slot, held in store.processing.items() if held}
            return [
                Suspect(slot, tuple(store.claim_of(slot, raw) for raw in store.processing[slot]), slot in gone)
                for slot in sorted(slots)
                if slot in gone or not store.is_alive(slot, now_ms)
            ]

    def reap(self, slot: str, settlements: Sequence[Settlement], *, is_gone: bool = False) -> tuple[SettleResult, ...]:
        store = self._store
        check_follow_ups((s.follow_ups for s in settlements), store.queue_names)
        with store.lock:
            now_ms = store.begin()
            if store.is_alive(slot, now_ms) and not is_gone:
                return tuple(SettleResult.FENCED for _ in settlements)
            if is_gone:
                store.alive_until_ms.pop(slot, None)
            results = [reap(store, slot, s, now_ms) for s in settlements]
            if not store.processing[slot]:
                store.forget_slot(slot)
            return tuple(results)

    # the registry

    def register(self, slots: Mapping[str, WorkerInfo]) -> None:
        with self._store.lock:
            now_ms = self._store.begin()
            for slot, info in slots.items():
                self._store.registry[slot] = info
                if not self._store.is_alive(slot, now_ms):
                    self._store.renew_heartbeat(slot, now_ms)

    def deregister(self, slots: Sequence[str]) -> None:
        with self._store.lock:
            now_ms = self._store.begin()
            for slot in slots:
                for raw in self._store.processing[slot]:
                    self._give_back(self._store.claim_of(slot, raw), now_ms)
                self._store.forget_slot(slot)

    def _give_back(self, claim: Claim, now_ms: int) -> None:
        record = self._store.records.get(claim.id)
        if claim.job is None or (record is not None and not record.is_about(claim.raw)):  # the next claim buries it
            self._store.push_undecodable(claim.queue, claim.raw, front=True, now_ms=now_ms)
        else:
            record = self._store.record_for(claim.job.id, claim.queue, claim.raw, now_ms)
            record.raw = claim.raw  # the record may hold the bytes of another copy
            self._store.push(record, front=True)
        self._store.count(now_ms, "released")

    def breaker_resets(self) -> Mapping[str, int]:
        with self._store.lock:
            return dict(self._store.breaker_resets)

    # the ledger

    def lookup(self, paths: Sequence[bytes]) -> list[LedgerEntry | None]:
        with self._store.lock:
            return [self._store.ledger.get(path) for path in paths]

    def knows(self, versions: Sequence[tuple[bytes, str]]) -> list[bool]:
        return newest_versions(self, versions)

    def ledger(self, under: bytes) -> Iterator[tuple[bytes, LedgerEntry]]:
        with self._store.lock:
            return iter([(path, entry) for path, entry in self._store.ledger.items() if path.startswith(under)])

    def update_ledger(self, changes: Sequence[tuple[bytes, LedgerEntry, LedgerEntry | None]]) -> list[bool]:
        with self._store.lock:
            return [self._update_entry(*change) for change in changes]

    def _update_entry(self, path: bytes, was: LedgerEntry, becomes: LedgerEntry | None) -> bool:
        entries = self._store.ledger
        if entries.get(path) != was:
            return False
        if becomes is None:
            del entries[path]
        else:
            entries[path] = becomes
        return True

    # waking and events

    def waiter(self) -> LocalWaiter:
        store = self._store
        waiter = LocalWaiter(store.has_work, store.config.worker.brpoplpush_timeout, store.waiters.discard)
        store.waiters.add(waiter)
        return waiter

    def subscribe(self) -> MemorySubscription:
        subscription = MemorySubscription(self._store.subscriptions.discard)
        self._store.subscriptions.add(subscription)
        return subscription
