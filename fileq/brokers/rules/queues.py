"""The hot path of producers and workers: protocol.Broker over a unit of work. Every call is one step for its batch."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

import msgspec

from fileq.brokers import wire_events
from fileq.brokers.local_processes import ProcessId
from fileq.brokers.local_waiter import LocalWaiter
from fileq.brokers.place_pages import LedgerPage, ledger_entries, wrong_cursor
from fileq.brokers.protocol import PendingReply, ReadyReply, Subscription
from fileq.brokers.rules.batches import is_batch_cancelled
from fileq.brokers.rules.entries import RateWindow, enqueue, is_holder
from fileq.brokers.rules.rows import RecordRow, SlotRow
from fileq.brokers.rules.settlements import bury_overdue, reap, settle
from fileq.brokers.rules.unit_of_work import CANCELS, QueuedJob, Store, UnitOfWork, claim_of
from fileq.brokers.types import (
    FULL_WAIT_MS,
    LONGEST_LOOK_MS,
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
from fileq.core.job import DELAYED_STATES, Buried, Claim, State, decode_or_none, raw_id
from fileq.core.settlement import Settlement, SettleResult

GONE_SLOTS_KEPT = 1000  # deregistered slots whose last token is kept


class QueueVerbs:
    store: Store
    patience = 1.0  # a look costs no other process anything

    # enqueue

    def enqueue(self, entries: Sequence[Entry], *, limit: int = 0) -> Enqueued:
        if not entries:
            return Enqueued(())
        check_entries(entries, self.store.queue_names)
        with self.store.unit_of_work() as work:
            window = RateWindow(work, limit)
            work.records.read(entry.job.id for entry in entries)
            work.ledger.read(entry.version.path for entry in entries if entry.version is not None)
            results, existing = zip(*(enqueue(work, entry, window) for entry in entries), strict=True)
            window.write()
            wait_ms = window.wait_ms if EnqueueResult.THROTTLED in results else 0
            now_ms = work.now_ms if EnqueueResult.ENQUEUED in results else 0
            return Enqueued(results, window.permits, wait_ms, existing, now_ms)

    # settle and claim

    def send_settle_and_claim(self, settlements: Sequence[Settlement], slots: Sequence[str]) -> PendingReply:
        return ReadyReply(self.settle_and_claim(settlements, slots))

    def settle_and_claim(self, settlements: Sequence[Settlement], slots: Sequence[str]) -> TurnReply:
        check_follow_ups((s.follow_ups for s in settlements), self.store.queue_names)
        with self.store.unit_of_work() as work:
            work.slots.read([*(s.claim.slot for s in settlements), *slots])
            work.records.read(s.claim.id for s in settlements)
            settled = tuple(settle(work, s) for s in settlements)
            registered = {slot: row for slot in slots if (row := work.slots.get(slot)) and row.is_registered}
            claims, buried = self._claim(work, [registered[slot] for slot in slots if slot in registered])
            gone = tuple(slot for slot in slots if slot not in registered)
            return TurnReply(settled, tuple(claims), gone, tuple(buried), tuple(work.finished_batches))

    def _claim(self, work: UnitOfWork, slots: list[SlotRow]) -> tuple[list[Claim], list[Buried]]:
        """For each slot the job it already holds, or else the next one. Reads each queue once for all slots.

        Foreign bytes under the id of another job are buried. One call buries one of them: if another follows, the
        other slots get nothing, and the caller claims again."""
        order, paused = self.store.order, work.paused()
        wanted = sum(slot_row.raw is None for slot_row in slots)
        fronts = {queue: _fronts(work, queue, wanted + 1) for queue in self.store.queue_names if queue not in paused}
        claimed: list[tuple[str, int]] = []
        claims: list[Claim] = []
        buried: list[Buried] = []
        is_full = False
        for slot_row in slots:
            if slot_row.raw is not None:
                claims.append(_held(work, slot_row))
                continue
            while not is_full and (found := _next_front(order.next_order(), fronts)) is not None:
                queue, queued = found
                is_foreign = work.is_foreign(queued.raw, queued.job, State.PENDING)
                if is_full := is_foreign and bool(buried):
                    break
                claimed.append((queue, queued.position))
                if not is_foreign:
                    order.claimed()
                    claims.append(_start(work, slot_row, queue, queued))
                    break
                assert queued.job is not None
                work.count("adopted")
                work.count("consumed")
                error = work.bury_foreign(slot_row.slot, queue, queued.raw, queued.job.id)
                buried.append(Buried(raw_id(queued.raw), slot_row.slot, queue, error))
                work.publish(wire_events.buried(buried[-1]) if work.has_subscribers else b"")
        work.queued.remove_first(claimed)
        return claims, buried

    def admit(self, requests: Sequence[AdmitRequest]) -> list[Admission]:
        with self.store.unit_of_work() as work:
            work.slots.read(request.slot for request in requests)
            holders = {route: set(work.holders(route)) for route in {request.route for request in requests}}
            return [_admit(work, request, holders[request.route]) for request in requests]

    # renew, promote, reap

    def renew(self, holdings: Sequence[tuple[str, bytes]]) -> list[Renewal]:
        if not holdings:
            return []
        with self.store.unit_of_work() as work:
            work.slots.read(slot for slot, _ in holdings)
            return [_renew(work, slot, believed) for slot, believed in holdings]

    def promote(self, limit: int = 500) -> Promoted:
        with self.store.reading() as work:  # almost always nothing is due, and a read needs no lock
            next_due_ms = work.next_due_ms()
            if next_due_ms is None or next_due_ms > work.now_ms:
                return _promoted(work, 0)
        with self.store.unit_of_work() as work:
            due = work.take_due(limit)
            for raw in due:
                self._promote(work, raw)
            return _promoted(work, len(due))

    def _promote(self, work: UnitOfWork, raw: bytes) -> None:
        job, last_queue = decode_or_none(raw), self.store.queue_names[-1]
        if job is None:  # another program put it here; the claim counts it as adopted
            work.queued.push(last_queue, raw, front=False)
            return
        known = work.records.get(job.id)
        if known is not None and not known.is_about(raw):  # another job has its id; the claim buries it
            work.push_undecodable(last_queue, raw, front=False)
            return
        record = work.record_for(job.id, last_queue, raw)
        record.raw = raw
        work.push(record, front=False)

    def overdue(self, limit: int = 500) -> list[Claim]:
        with self.store.unit_of_work() as work:
            ids = work.due_looks(limit)
            work.records.read(ids)
            found = (_look(work, id) for id in ids)
            return [claim for claim in found if claim is not None]

    def bury_overdue(self, settlements: Sequence[Settlement]) -> tuple[SettleResult, ...]:
        check_follow_ups((s.follow_ups for s in settlements), self.store.queue_names)
        with self.store.unit_of_work() as work:
            work.records.read(s.claim.id for s in settlements)
            return tuple(bury_overdue(work, s) for s in settlements)

    def realign(self, offset: int = 0, limit: int = 500) -> int | None:
        with self.store.unit_of_work() as work:
            page, changed = work.latest_due(offset, limit), 0
            for raw in page:
                job = decode_or_none(raw)
                record = work.records.get(job.id) if job is not None else None
                if record is None or record.raw != raw or record.state not in DELAYED_STATES:
                    continue
                if (due_ms := _due_after_step(record.due_ms, record.since_ms, work.now_ms)) is not None:
                    work.change_record(record).due_ms, record.since_ms = due_ms, work.now_ms
                    work.put_scheduled(raw, due_ms)
                    changed += 1
            # A changed job is due earlier, so the jobs of the next pages take its place.
            return offset + len(page) - changed if len(page) == limit else None

    def due_now(self, ids: Sequence[str]) -> list[bool]:
        if not ids:
            return []
        moved = [False] * len(ids)
        with self.store.unit_of_work() as work:
            work.records.read(ids)
            for i, id in enumerate(ids):
                record = work.records.get(id)
                if record is None or record.state not in DELAYED_STATES:
                    continue
                if work.unschedule(record.raw):
                    self._promote(work, record.raw)
                    moved[i] = True
        return moved

    def sweep_unique(self, cursor: str = "") -> str | None:
        with self.store.unit_of_work() as work:
            page = work.key_page(cursor, SWEEP_PAGE)
            work.records.read(id for _, id in page)
            work.remove_keys([key for key, id in page if not is_holder(work.records.get(id), key)])
            work.forget_outputs()
            work.forget_batches()
            return page[-1][0] if len(page) == SWEEP_PAGE else None

    def suspects(self, *, sweep: bool = False, gone: Collection[ProcessId] = ()) -> list[Suspect]:
        with self.store.reading() as work:
            slots = [slot_row for slot_row in work.all_slots() if sweep or slot_row.is_registered]
            if gone:
                found = [row for row in slots if row.is_registered and row.process in gone]
            else:
                found = [row for row in slots if not work.is_alive(row)]
            return [Suspect(row.slot, () if row.raw is None else (claim_of(work, row),), bool(gone)) for row in found]

    def processes(self, here: ProcessId) -> list[ProcessId]:
        with self.store.reading() as work:
            found = {slot_row.process for slot_row in work.all_slots() if slot_row.is_registered}
        return [process for process in found | {here} if process.is_beside(here)]

    def forget_process(self, process: ProcessId) -> None:
        """The registry says which processes there are."""

    def lease(self, name: str, holder: str, ttl_ms: int, *, instead_of: str = "") -> str:
        return self.store.lease(name, holder, ttl_ms, instead_of)

    def cancel_requests(self) -> int:
        with self.store.reading() as work:
            return work.catalog_revision(CANCELS)

    def reap(self, slot: str, settlements: Sequence[Settlement], *, is_gone: bool = False) -> tuple[SettleResult, ...]:
        check_follow_ups((s.follow_ups for s in settlements), self.store.queue_names)
        with self.store.unit_of_work() as work:
            slot_row = work.slots.get(slot)
            if slot_row is None or (work.is_alive(slot_row) and not is_gone):
                return tuple(SettleResult.FENCED for _ in settlements)
            if is_gone:
                work.change_slot(slot_row).alive_until_ms = 0
            results = tuple(reap(work, slot_row, s) for s in settlements)
            if slot_row.raw is None:
                work.change_slot(slot_row).forget(work.now_ms)
            return results

    # the registry

    def register(self, slots: Mapping[str, WorkerInfo]) -> None:
        with self.store.unit_of_work() as work:
            for slot, info in slots.items():
                slot_row = work.change_slot(work.slots.get(slot) or SlotRow(slot))
                slot_row.info = msgspec.json.encode(info)
                if not work.is_alive(slot_row):
                    work.renew_heartbeat(slot_row)
            work.forget_slots(GONE_SLOTS_KEPT)

    def deregister(self, slots: Sequence[str]) -> None:
        with self.store.unit_of_work() as work:
            for slot_row in filter(None, map(work.slots.get, slots)):
                if slot_row.raw is not None:
                    _give_back(work, claim_of(work, slot_row))
                work.change_slot(slot_row).forget(work.now_ms)

    def breaker_resets(self) -> Mapping[str, int]:
        with self.store.reading() as work:
            return work.breaker_resets()

    # the ledger

    def lookup(self, paths: Sequence[bytes]) -> list[LedgerEntry | None]:
        with self.store.reading() as work:
            found = work.find_ledger_entries(paths)
        return [found.get(path) for path in paths]

    def knows(self, versions: Sequence[tuple[bytes, str]]) -> list[bool]:
        entries = self.lookup([path for path, _ in versions])
        return [
            entry is not None and entry.is_newest(signature)
            for entry, (_, signature) in zip(entries, versions, strict=True)
        ]

    def ledger(self, under: bytes) -> Iterator[tuple[bytes, LedgerEntry]]:
        return ledger_entries(self.ledger_page, under)

    def ledger_page(self, under: bytes, cursor: str = "", size: int = 500) -> LedgerPage:
        """The cursor is the last path of the page before."""
        try:
            last = bytes.fromhex(cursor)
        except ValueError:
            raise wrong_cursor(cursor) from None
        with self.store.reading() as work:
            found = work.ledger_after(under, last, size)
        return LedgerPage(tuple(found), found[-1][0].hex() if len(found) == size else "", len(found))

    def update_ledger(self, changes: Sequence[tuple[bytes, LedgerEntry, LedgerEntry | None]]) -> list[bool]:
        if not changes:
            return []
        with self.store.unit_of_work() as work:
            work.ledger.read(path for path, _, _ in changes)
            is_replaced = []
            for path, was, becomes in changes:
                is_replaced.append(work.ledger.get(path) == was)
                if is_replaced[-1]:
                    work.ledger.put(path, becomes)
            return is_replaced

    # waking and events

    def waiter(self) -> LocalWaiter:
        return self.store.waiter()

    def subscribe(self) -> Subscription:
        return self.store.subscribe()


def _promoted(work: UnitOfWork, count: int) -> Promoted:
    times = work.next_due_ms(), work.now_ms, work.next_fire_ms()
    return Promoted(count, *times, False, work.catalog_revision(CANCELS), work.next_look_ms())


def _look(work: UnitOfWork, id: str) -> Claim | None:
    """The claim of a job that waits although its deadline has passed. Says when to look at it again."""
    record, now_ms = work.records.get(id), work.now_ms
    deadline_ms = record.facts.deadline_ms if record is not None else None
    if record is None or deadline_ms is None or not State(record.state).is_unfinished:
        work.take_deadline(id)
        return None
    if deadline_ms > now_ms:
        work.look_again(id, now_ms + min(deadline_ms - now_ms, LONGEST_LOOK_MS))
        return None
    is_ours = State(record.state).is_waiting and record.queue in work.queue_names
    if not is_ours or is_batch_cancelled(work, record):
        work.look_again(id, now_ms + RUNNING_LOOK_MS)
        return None
    work.look_again(id, now_ms + RETURNED_LOOK_MS)
    job = decode_or_none(record.raw)
    return Claim("", 0, record.queue, record.raw, job, id, now_ms) if job is not None else None


def _fronts(work: UnitOfWork, queue: str, wanted: int) -> Iterator[QueuedJob]:
    """The next jobs of a queue. The queue and the jobs' records are read when the first is wanted."""
    jobs = [QueuedJob(at, raw, decode_or_none(raw)) for at, raw in work.queued.first(queue, wanted)]
    work.records.read(queued.job.id for queued in jobs if queued.job is not None)
    yield from jobs


def _next_front(order: Iterable[str], fronts: Mapping[str, Iterator[QueuedJob]]) -> tuple[str, QueuedJob] | None:
    """The next job of the first of these queues that has one."""
    for queue in order:
        if queue in fronts and (queued := next(fronts[queue], None)) is not None:
            return queue, queued
    return None


def _held(work: UnitOfWork, slot_row: SlotRow) -> Claim:
    """The claim of the job that the slot holds, with a new token."""
    claim = claim_of(work, slot_row, work.change_slot(slot_row).next_token())
    record = work.records.get(claim.id)
    flags = {"is_blocked": is_blocked(work, record), "is_cancelled": is_batch_cancelled(work, record)}
    return msgspec.structs.replace(claim, **flags)


def _start(work: UnitOfWork, slot_row: SlotRow, queue: str, queued: QueuedJob) -> Claim:
    """Gives the job to the slot. The caller removes it from its queue."""
    _, raw, job = queued
    slot_row.raw = raw
    work.renew_heartbeat(slot_row)
    work.count("consumed")
    token = slot_row.next_token()
    if job is None:
        work.count("adopted")
        return claim_of(work, slot_row, token, queue=queue)
    record = work.record_for(job.id, queue, raw)
    if record.queued:
        record.queued -= 1
    else:
        work.count("adopted")
    record.state, record.slot, record.queue, record.raw = State.RUNNING, slot_row.slot, queue, raw
    record.started_ms, record.due_ms = work.now_ms, 0
    claim = Claim(slot_row.slot, token, queue, raw, job, job.id, work.now_ms, is_blocked=is_blocked(work, record))
    if record.batch and is_batch_cancelled(work, record):
        claim = msgspec.structs.replace(claim, is_cancelled=True)
    work.publish(wire_events.started(claim) if work.has_subscribers else b"")
    return claim


def _renew(work: UnitOfWork, slot: str, believed: bytes) -> Renewal:
    slot_row = work.slots.get(slot)
    if slot_row is None or not slot_row.is_registered:
        return Renewal(slot, LeaseStatus.GONE)
    work.renew_heartbeat(slot_row)
    if (slot_row.raw or b"") != believed:
        if believed or slot_row.raw is None:
            return Renewal(slot, LeaseStatus.LOST)
        return Renewal(slot, LeaseStatus.UNEXPECTED, _held(work, slot_row))
    if not slot_row.raw:
        return Renewal(slot, LeaseStatus.IDLE)
    job = decode_or_none(slot_row.raw)
    record = work.records.get(job.id) if job else None
    is_cancelled = record is not None and (record.is_cancel_requested or is_batch_cancelled(work, record))
    return Renewal(slot, LeaseStatus.CANCEL if is_cancelled else LeaseStatus.HELD)


def _give_back(work: UnitOfWork, claim: Claim) -> None:
    known = work.records.get(claim.id)
    if claim.job is None or (known is not None and not known.is_about(claim.raw)):  # the next claim buries it
        work.push_undecodable(claim.queue, claim.raw, front=True)
    else:
        record = work.record_for(claim.job.id, claim.queue, claim.raw)
        record.raw = claim.raw  # the record may hold the bytes of another copy
        work.push(record, front=True)
    work.count("released")


def is_blocked(work: UnitOfWork, record: RecordRow | None) -> bool:
    """Whether a job that the record names in `after` is running, or the one that it waits for is unfinished."""
    if record is None or not (record.after or record.extra):
        return False
    waits_for = record.facts.waits_for
    awaited = work.records.get(waits_for) if waits_for else None
    if awaited is not None and State(awaited.state).is_unfinished:
        return True
    work.records.read(record.jobs_before)
    earlier = map(work.records.get, record.jobs_before)
    return any(other.state == State.RUNNING for other in earlier if other is not None)


def _admit(work: UnitOfWork, request: AdmitRequest, holders: set[str]) -> Admission:
    """Answers one request. `holders` are the slots with a permit of its route; one that is admitted joins them."""
    slot_row = work.slots.get(request.slot)
    if slot_row is None or slot_row.raw != request.raw:
        return Admission(AdmitResult.LOST, 1)
    # Every holder holds what its slot holds, so one of this slot is this job.
    if request.slot in holders:
        return Admission(AdmitResult.ADMITTED)
    if request.max_running_total and len(holders) >= request.max_running_total:
        return Admission(AdmitResult.FULL, FULL_WAIT_MS)
    if request.rate:
        # On the monotonic clock, which no step of the wall clock changes. A window of an earlier boot has ended.
        ends_ms, started = work.route_window(request.route)
        now_ms = work.monotonic_ms
        if not now_ms < ends_ms <= now_ms + request.window_ms:
            ends_ms, started = now_ms + request.window_ms, 0
        if started >= request.rate:
            return Admission(AdmitResult.THROTTLED, ends_ms - now_ms)
        work.put_route_window(request.route, ends_ms, started + 1)
    work.add_holder(request.route, request.slot, request.raw)
    holders.add(request.slot)
    return Admission(AdmitResult.ADMITTED)


def _due_after_step(due_ms: int, since_ms: int, now_ms: int) -> int | None:
    """The due time of a delay that began in the future, because the clock has stepped back since: the whole delay from
    now on. None if it did not."""
    return now_ms + max(0, due_ms - since_ms) if since_ms > now_ms + STEP_TOLERANCE_MS else None
