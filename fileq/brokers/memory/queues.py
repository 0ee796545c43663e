"""The memory broker's hot path: protocol.Broker over a MemoryStore. Every call is one step under the store's lock."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

from fileq.brokers import wire_events
from fileq.brokers.batches import follow_up_of
from fileq.brokers.clocks import (
    FULL_WAIT_MS,
    LONGEST_LOOK_MS,
    RATE_WINDOW_MS,
    RETURNED_LOOK_MS,
    RUNNING_LOOK_MS,
    due_after_step,
)
from fileq.brokers.local_processes import ProcessId
from fileq.brokers.local_waiter import LocalWaiter
from fileq.brokers.memory.store import KeptBatch, MemoryRecord, MemoryStore, MemorySubscription
from fileq.brokers.protocol import Order, PendingReply, ReadyReply
from fileq.brokers.types import (
    FOLLOW_UPS_KEPT,
    SWEEP_PAGE,
    Admission,
    AdmitRequest,
    AdmitResult,
    Attempt,
    CancelResult,
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
    entry_of,
    newest_versions,
    origin_of_entry,
)
from fileq.core import batch as rules
from fileq.core.batch import BatchState, Callback, Ending, add_member
from fileq.core.claim import Buried, Claim
from fileq.core.job import State, decode_or_none, encode, raw_id
from fileq.core.outcome import FollowUp
from fileq.core.own_jobs import is_own_batch
from fileq.core.settlement import Settlement, SettleResult, Verb, deferred_again


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


# The limits of routes in the memory broker: which jobs hold a permit, and how many started in the current window.


def admit(store: MemoryStore, request: AdmitRequest, now_ms: int) -> Admission:
    """Answers one request. The caller must hold the lock."""
    if not _is_held(store, request.slot, request.raw):
        return Admission(AdmitResult.LOST, 1)
    holders = store.holders[request.route]
    for slot in [slot for slot, raw in holders.items() if not _is_held(store, slot, raw)]:
        del holders[slot]
    if holders.get(request.slot) == request.raw:
        return Admission(AdmitResult.ADMITTED)
    if request.max_running_total and len(holders) >= request.max_running_total:
        return Admission(AdmitResult.FULL, FULL_WAIT_MS)
    if request.rate and (wait_ms := _start_in_window(store, request, now_ms)):
        return Admission(AdmitResult.THROTTLED, wait_ms)
    holders[request.slot] = request.raw
    return Admission(AdmitResult.ADMITTED)


def _is_held(store: MemoryStore, slot: str, raw: bytes) -> bool:
    return raw in store.processing.get(slot, ())


def _start_in_window(store: MemoryStore, request: AdmitRequest, now_ms: int) -> int:
    """Counts the job in the window of its route and returns 0; if the window is full, returns how long it lasts."""
    ends_ms, started = store.route_windows.get(request.route, (0, 0))
    if not now_ms < ends_ms <= now_ms + request.window_ms:
        ends_ms, started = now_ms + request.window_ms, 0
    if started >= request.rate:
        return ends_ms - now_ms
    store.route_windows[request.route] = ends_ms, started + 1
    return 0


# How the memory broker settles a claim: job, record, ledger and counters in one step under the store's lock.
#
# Never decides: the settlement says where the job goes. A slot that no longer holds the job changes nothing.


ENDINGS = {Verb.COMPLETE: Ending.COMPLETED, Verb.BURY: Ending.DEAD, Verb.CANCEL: Ending.CANCELLED}


def settle(store: MemoryStore, s: Settlement, now_ms: int) -> SettleResult:
    """Settles for a live slot. The fence is the slot's processing list; its last token identifies a repeat."""
    slot = s.claim.slot
    if store.settled_tokens.get(slot) == s.claim.token:
        return SettleResult.DONE_ALREADY
    # The older token rejects a late call about bytes that the slot settled and then claimed again.
    if s.claim.token < store.settled_tokens.get(slot, 0) or s.claim.raw not in store.processing[slot]:
        store.count(now_ms, "fenced")
        return SettleResult.FENCED
    _apply(store, s, now_ms)
    store.settled_tokens[slot] = s.claim.token
    store.renew_heartbeat(slot, now_ms)
    return SettleResult.DONE


def reap(store: MemoryStore, slot: str, s: Settlement, now_ms: int) -> SettleResult:
    """Settles for a dead slot: the first reaper moves the job, the others are FENCED."""
    if s.claim.raw not in store.processing[slot]:
        return SettleResult.FENCED
    _apply(store, s, now_ms)
    return SettleResult.DONE


def bury_overdue(store: MemoryStore, s: Settlement, now_ms: int) -> SettleResult:
    """Settles for a job that waits, as if a slot had claimed it now."""
    record = store.records.get(s.claim.id)
    if record is None or (record.raw, record.queue) != (s.claim.raw, s.claim.queue) or not record.state.is_waiting:
        return SettleResult.FENCED
    store.deadlines.pop(record.id, None)
    if not take_waiting(store, record):
        return SettleResult.FENCED
    record.started_ms, record.due_ms = now_ms, 0
    _end(store, s, now_ms)
    return SettleResult.DONE


def _apply(store: MemoryStore, s: Settlement, now_ms: int) -> None:
    store.processing[s.claim.slot].remove(s.claim.raw)
    _end(store, s, now_ms)


def _end(store: MemoryStore, s: Settlement, now_ms: int) -> None:
    """Settles for a job that has left its place."""
    record = store.records.get(s.claim.id)
    if record is not None and not record.is_about(s.claim.raw):
        _bury_foreign(store, s, now_ms)
        return
    record = None
    if s.claim.record_id is None and s.verb is Verb.RELEASE:
        store.push_undecodable(s.claim.queue, s.next_raw, front=True, now_ms=now_ms)
    else:
        record = store.record_for(s.claim.id, s.claim.queue, s.next_raw, now_ms)
        if s.verb is not Verb.DEFER:
            facts = (s.outcome, s.error, s.traceback, s.output, s.duration_ms, record.deferred, s.verb is Verb.BURY)
            record.add_attempt(Attempt(record.started_ms, now_ms, s.claim.slot, *facts))
            record.error = s.error
        record.raw, record.slot, record.queue, record.deferred = s.next_raw, s.claim.slot, s.claim.queue, s.reason
        _move(store, s, record, now_ms)
        if s.order:
            store.orders[s.claim.id] = Order(s.claim.id, s.claim.slot, now_ms, s.order)
    _count(store, s, now_ms)
    store.publish(now_ms, wire_events.settled(s))
    add_follow_ups(store, record, s.follow_ups, now_ms)
    if record is not None and record.batch and (ending := ENDINGS.get(s.verb)) is not None:
        count_member(store, record.batch, record.id, ending, s.error, now_ms)
    if s.verb in (Verb.COMPLETE, Verb.CANCEL):
        store.trim_ended(State.COMPLETED if s.verb is Verb.COMPLETE else State.CANCELLED)


def _bury_foreign(store: MemoryStore, s: Settlement, now_ms: int) -> None:
    """A job of fileq's own has come in under the id of this one while it ran, and has the record now."""
    store.bury_foreign(s.claim.slot, s.claim.queue, s.claim.raw, now_ms)
    if s.order:
        store.orders[s.claim.id] = Order(s.claim.id, s.claim.slot, now_ms, s.order)
    store.publish(now_ms, wire_events.settled(s))
    add_follow_ups(store, None, s.follow_ups, now_ms)


def _move(store: MemoryStore, s: Settlement, record: MemoryRecord, now_ms: int) -> None:
    if s.verb is Verb.COMPLETE:
        record.result, record.outputs = s.result, s.outputs or record.outputs
        for output in s.outputs:
            store.made[output.path] = (record.id, now_ms + int(store.config.worker.history_ttl * 1000))
        store.end(record, State.COMPLETED, now_ms)
        store.count(now_ms, "superseded", int(s.superseded))
        if s.leaves is not None:
            store.learn(s.leaves, record.id)
    elif s.verb is Verb.RETRY:
        store.schedule(record, State.RETRYING, now_ms + s.delay_ms, now_ms)
    elif s.verb is Verb.DEFER:
        record.deferred_count += 1
        record.deferrals_ms = deferred_again(record.deferrals_ms, record.deferred_count, now_ms)
        store.schedule(record, State.RETRYING, now_ms + s.delay_ms, now_ms)
    elif s.verb is Verb.BURY:
        record.state, record.ended_ms, record.fingerprint = State.DEAD, now_ms, s.fingerprint
        store.dead.appendleft(s.next_raw)
        store.count(now_ms, "dead")
    elif s.verb is Verb.RELEASE:
        store.push(record, front=True)
    else:
        store.end(record, State.CANCELLED, now_ms)


def _count(store: MemoryStore, s: Settlement, now_ms: int) -> None:
    if s.died:
        store.count(now_ms, "recovered")
    elif s.verb is Verb.RELEASE:
        store.count(now_ms, "released")
    elif s.is_failure:
        store.count(now_ms, "failed")
        store.count(now_ms, "retried", int(s.verb is Verb.RETRY))
    if s.kind:
        store.count(now_ms, f"error:{s.kind}")


# How the memory broker takes in one job: record, ledger, unique key, queue and counters. The caller holds the lock.


def existing_job(store: MemoryStore, entry: Entry) -> str:
    """The id of the job because of which this one is a duplicate; empty if it is none."""
    job = entry.job
    return job.id if has_record(store, entry) else key_holder(store, job.unique_key or "")


def has_record(store: MemoryStore, entry: Entry) -> bool:
    """Whether a record keeps this job out. One without an origin is not that of a job of fileq's own: another program
    has used its id, and add() replaces it."""
    record = store.records.get(entry.job.id)
    return record is not None and (not entry.is_own or bool(record.origin))


def key_holder(store: MemoryStore, key: str) -> str:
    """The id of the unfinished job that has this unique key; empty if there is none."""
    id = store.unique.get(key, "")
    record = store.records.get(id)
    return id if record is not None and record.unique_key == key and record.state.is_unfinished else ""


def take_key(store: MemoryStore, record: MemoryRecord, key: str) -> None:
    if key:
        record.unique_key = key
        store.unique[key] = record.id


def batch_to_join(store: MemoryStore, entry: Entry, follows: MemoryRecord | None = None) -> KeptBatch | None:
    """The batch that the job of this entry becomes a member of; None if it takes no jobs. `follows` is the record of
    the job that this one follows: an unfinished member also adds jobs to a sealed batch, and no other job adds any to
    the batch of a delivery."""
    batch = store.batches.get(entry.job.batch_id or "") if entry.joins else None
    is_open_to_it = entry.fills_delivery or not is_own_batch(entry.job.batch_id)
    if batch is None or (batch.facts.is_takeable and is_open_to_it):
        return batch
    return batch if follows is not None and follows.id in batch.members else None


def add(store: MemoryStore, entry: Entry, now_ms: int, *, waits_for: str = "", batch: KeptBatch | None = None) -> None:
    """Enqueues a job that is no duplicate, as a member of this batch."""
    job = entry.job
    foreign = store.records.pop(job.id, None)
    record = store.record_for(job.id, entry.queue, encode(job), now_ms)
    record.origin = origin_of_entry(entry)
    if foreign is not None:
        # Foreign from now on: the claim that meets a copy in a queue buries it, and counts it as adopted again.
        store.count(now_ms, "adopted", -foreign.queued)
    record.waits_for = waits_for
    if batch is not None:
        record.batch = batch.facts.id
        if job.id not in batch.members:  # it is still there if its record was lost
            batch.members.add(job.id)
            add_member(batch.facts, now_ms)
    take_key(store, record, job.unique_key or "")
    record.deadline_ms = job.deadline_ms
    store.index_deadline(record, now_ms)
    due_ms = max(entry.at_ms, now_ms + entry.delay_ms)
    if due_ms > now_ms:
        store.schedule(record, State.SCHEDULED, due_ms, now_ms if due_ms > entry.at_ms else 0)
    else:
        store.push(record, front=False)
    if entry.version is not None:
        if (known := store.ledger.get(entry.version.path)) is not None:
            same = known.job_of(entry.version.signature)
            record.after = known.jobs_before(job.id, store.unfinished_before(same))
        store.learn(entry.version, job.id)
    store.count(now_ms, "produced")
    store.publish(now_ms, wire_events.created(job))


def add_follow_ups(
    store: MemoryStore, parent: MemoryRecord | None, follow_ups: Iterable[FollowUp], now_ms: int
) -> None:
    """Enqueues the follow-ups that are no duplicates, and keeps their ids in the record of the job they follow."""
    for entry in map(entry_of, follow_ups):
        if not existing_job(store, entry):
            add(store, entry, now_ms, batch=batch_to_join(store, entry, parent))
            if parent is not None:
                parent.follow_ups = (*parent.follow_ups, entry.job.id)[-FOLLOW_UPS_KEPT:]


# How the memory broker counts the members of a batch: each step also enqueues callbacks and counts in the parents.
#
# The rules are in core/batch.py. A member is counted if its id is among the members that are not counted yet, so a
# job that ends a second time changes nothing. The caller holds the lock.


def count_member(store: MemoryStore, batch_id: str, id: str, ending: Ending, error: str, now_ms: int) -> bool:
    """Counts a member that has ended, and finishes the batch if it was the last. False if it is counted already."""
    batch = store.batches.get(batch_id)
    if batch is None or id not in batch.members:
        return False
    batch.members.remove(id)
    if ending is Ending.DEAD and id in batch.dead:
        ending = Ending.DELETED  # it was enqueued again after its record was lost, and is counted as dead already
    if ending is Ending.DEAD:
        batch.dead.add(id)
    _fire(store, batch, rules.count_ending(batch.facts, ending, id, error), now_ms)
    finish_if_done(store, batch, now_ms)
    return True


def finish_if_done(store: MemoryStore, batch: KeptBatch, now_ms: int) -> None:
    """Finishes a batch that is done: its callbacks first, then the same for its parent, of which it is a member."""
    was, facts = batch.facts.state, batch.facts
    due = rules.finish(facts, now_ms)
    if facts.state is was:
        return
    _fire(store, batch, due, now_ms)
    store.finished_batches.append(facts.id)
    store.publish(now_ms, wire_events.batch_finished(facts))
    parent = store.batches.get(facts.parent)
    if parent is not None and not facts.is_counted:
        _fire(store, parent, rules.count_child(parent.facts, facts), now_ms)
        finish_if_done(store, parent, now_ms)


def revive_member(store: MemoryStore, batch_id: str, id: str) -> None:
    """A dead member waits again."""
    batch = store.batches.get(batch_id)
    if batch is None or id not in batch.dead:
        return
    batch.dead.remove(id)
    if id in batch.members:
        rules.delete_dead(batch.facts)  # it was enqueued again after its record was lost, and is counted as that job
        return
    batch.members.add(id)
    parent = store.batches.get(batch.facts.parent)
    rules.revive(batch.facts, parent.facts if parent is not None else None)


def delete_member(store: MemoryStore, batch_id: str, id: str) -> None:
    """A dead member is deleted."""
    batch = store.batches.get(batch_id)
    if batch is not None and id in batch.dead:
        batch.dead.remove(id)
        rules.delete_dead(batch.facts)


def _fire(store: MemoryStore, batch: KeptBatch, callbacks: Iterable[Callback], now_ms: int) -> None:
    """Enqueues callbacks of this batch as members of its parent, unless that has finished."""
    parent = store.batches.get(batch.facts.parent)
    if parent is not None and parent.facts.state is BatchState.FINISHED:
        parent = None
    for callback in callbacks:
        entry = entry_of(follow_up_of(callback))
        if not existing_job(store, entry):
            add(store, entry, now_ms, batch=parent)


# How the memory broker takes jobs that wait from their places, and cancels them. The caller holds the lock.


def cancel(
    store: MemoryStore, ids: Sequence[str], follow_ups: Mapping[str, Sequence[FollowUp]], now_ms: int
) -> list[CancelResult]:
    """Cancels jobs that wait, and requests it of those that run. The list of cancelled jobs is trimmed at the end."""
    results = [_cancel(store, store.records.get(id), follow_ups.get(id, ()), now_ms) for id in ids]
    store.trim_ended(State.CANCELLED)
    return results


def _cancel(
    store: MemoryStore, record: MemoryRecord | None, follow_ups: Iterable[FollowUp], now_ms: int
) -> CancelResult:
    if record is None:
        return CancelResult.UNKNOWN
    if record.state is State.RUNNING:
        store.cancel_requests += not record.is_cancel_requested
        record.is_cancel_requested = True
        return CancelResult.REQUESTED
    if not take_waiting(store, record):
        return CancelResult.ENDED
    end_withdrawn(store, record, follow_ups, now_ms)
    return CancelResult.CANCELLED


def take_waiting(store: MemoryStore, record: MemoryRecord) -> bool:
    """Removes a job that waits from its place; False if it is not there."""
    if record.state is State.PENDING and record.raw in store.queues[record.queue]:
        store.queues[record.queue].remove(record.raw)
        record.queued -= 1
    elif record.state in (State.SCHEDULED, State.RETRYING) and record.raw in store.scheduled:
        del store.scheduled[record.raw]
    else:
        return False
    return True


def end_withdrawn(store: MemoryStore, record: MemoryRecord, follow_ups: Iterable[FollowUp], now_ms: int) -> None:
    """Ends a job that has left its place as cancelled. The caller trims the list of cancelled jobs."""
    record.error, record.deferred = "cancelled", ""
    store.end(record, State.CANCELLED, now_ms)
    store.publish(now_ms, wire_events.cancelled(record.id, record.queue, record.raw))
    add_follow_ups(store, record, follow_ups, now_ms)
    count_member(store, record.batch, record.id, Ending.CANCELLED, record.error, now_ms)
