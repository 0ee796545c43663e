"""The SQLite broker's hot path: protocol.Broker over a SqliteStore.

Every call that changes something is one transaction for its whole batch. The verbs follow the memory broker's line by
line, on a unit of work instead of dictionaries.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

import msgspec

from fileq.brokers import wire_events
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
from fileq.brokers.place_pages import LedgerPage, ledger_page_of, path_of_cursor
from fileq.brokers.protocol import PendingReply, ReadyReply
from fileq.brokers.sqlite.census import paused_queues
from fileq.brokers.sqlite.change_watcher import SqliteSubscription
from fileq.brokers.sqlite.rows import (
    RecordRow,
    SlotRow,
    all_slots,
    claim_of,
    decode_ledger_entry,
    find_ledger_entries,
    find_records,
    process_of,
)
from fileq.brokers.sqlite.schedules import next_fire_ms
from fileq.brokers.sqlite.settlements import (
    add,
    batch_to_join,
    bury_overdue,
    cancel_requests,
    existing_job,
    forget_outputs,
    is_holder,
    reap,
    settle,
)
from fileq.brokers.sqlite.store import SqliteStore
from fileq.brokers.sqlite.unit_of_work import QueuedRow, UnitOfWork, is_batch_cancelled, is_blocked
from fileq.brokers.types import (
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
    newest_versions,
)
from fileq.core.claim import Buried, Claim
from fileq.core.job import State, decode_or_none, raw_id
from fileq.core.settlement import Settlement, SettleResult

# The ledger's part of the SQLite broker's hot path.


_LEDGER_PAGE = 500


class SqliteLedger:
    _store: SqliteStore

    def lookup(self, paths: Sequence[bytes]) -> list[LedgerEntry | None]:
        with self._store.snapshot() as (db, _):
            found = find_ledger_entries(db, paths)
        return [found.get(path) for path in paths]

    def knows(self, versions: Sequence[tuple[bytes, str]]) -> list[bool]:
        return newest_versions(self, versions)

    def ledger(self, under: bytes) -> Iterator[tuple[bytes, LedgerEntry]]:
        first, comparison = under, ">="
        while True:
            sql = f"SELECT path, entry FROM ledger WHERE path {comparison} ? ORDER BY path LIMIT ?"
            with self._store.snapshot() as (db, _):
                page = db.execute(sql, (first, _LEDGER_PAGE)).fetchall()
            for path, entry in page:
                if not path.startswith(under):
                    return
                yield path, decode_ledger_entry(entry)
            if not page:
                return
            first, comparison = page[-1][0], ">"

    def ledger_page(self, under: bytes, cursor: str = "", size: int = 500) -> LedgerPage:
        last = path_of_cursor(cursor)
        comparison, first = (">", last) if last else (">=", under)
        sql = f"SELECT path, entry FROM ledger WHERE path {comparison} ? ORDER BY path LIMIT ?"
        with self._store.snapshot() as (db, _):
            page = db.execute(sql, (first, size)).fetchall()
        found = [(path, decode_ledger_entry(entry)) for path, entry in page if path.startswith(under)]
        return ledger_page_of(found, size)

    def update_ledger(self, changes: Sequence[tuple[bytes, LedgerEntry, LedgerEntry | None]]) -> list[bool]:
        if not changes:
            return []
        with self._store.unit_of_work() as work:
            return [_update_entry(work, *change) for change in changes]


def _update_entry(work: UnitOfWork, path: bytes, was: LedgerEntry, becomes: LedgerEntry | None) -> bool:
    if work.ledger.entry(path) != was:
        return False
    work.ledger.replace(path, becomes)
    return True


GONE_SLOTS_KEPT = 1000  # deregistered slots whose last token is kept


class SqliteQueues(SqliteLedger):
    _store: SqliteStore

    # enqueue

    def enqueue(self, entries: Sequence[Entry], *, limit: int = 0) -> Enqueued:
        if not entries:
            return Enqueued(())
        check_entries(entries, self._store.queue_names)
        with self._store.unit_of_work() as work:
            window = RateWindow(work, limit)
            work.read_records(entry.job.id for entry in entries)
            results, existing = zip(*(_enqueue(work, entry, window) for entry in entries), strict=True)
            window.write()
            wait_ms = window.wait_ms if EnqueueResult.THROTTLED in results else 0
            return Enqueued(results, window.permits, wait_ms, existing)

    # settle and claim

    def send_settle_and_claim(self, settlements: Sequence[Settlement], slots: Sequence[str]) -> PendingReply:
        return ReadyReply(self.settle_and_claim(settlements, slots))

    def settle_and_claim(self, settlements: Sequence[Settlement], slots: Sequence[str]) -> TurnReply:
        check_follow_ups((s.follow_ups for s in settlements), self._store.queue_names)
        with self._store.unit_of_work() as work:
            work.read_slots([*(s.claim.slot for s in settlements), *slots])
            work.read_records(s.claim.id for s in settlements)
            settled = tuple(settle(work, s) for s in settlements)
            paused = paused_queues(work.db)
            registered = {slot: row for slot in slots if (row := work.slot(slot)) and row.info is not None}
            claims, buried = self._claim(work, [registered[slot] for slot in slots if slot in registered], paused)
            gone = tuple(slot for slot in slots if slot not in registered)
            return TurnReply(settled, tuple(claims), gone, paused, tuple(buried), tuple(work.finished_batches))

    def _claim(
        self, work: UnitOfWork, slots: list[SlotRow], paused: frozenset[str]
    ) -> tuple[list[Claim], list[Buried]]:
        """For each slot the job it already holds, or else the next one. Reads each queue once for all slots.

        Foreign bytes under the id of another job are buried. One call buries one of them: if another follows, the
        other slots get nothing, and the caller claims again."""
        order = self._store.order
        wanted = sum(slot_row.raw is None for slot_row in slots)
        fronts = {queue: _fronts(work, queue, wanted + 1) for queue in self._store.queue_names if queue not in paused}
        claimed: list[tuple[str, int]] = []
        claims: list[Claim] = []
        buried: list[Buried] = []
        is_full = False
        for slot_row in slots:
            if slot_row.raw is not None:
                claims.append(self._held(work, slot_row, slot_row.raw))
                continue
            while not is_full and (found := _next_front(order.next_order(), fronts)) is not None:
                queue, queued = found
                is_foreign = work.is_foreign(queued.raw, queued.job, State.PENDING)
                is_full = is_foreign and bool(buried)
                if is_full:
                    break
                claimed.append((queue, queued.position))
                if not is_foreign:
                    order.claimed()
                    claims.append(_start(work, slot_row, queue, queued))
                    break
                buried.append(_bury(work, slot_row.slot, queue, queued))
        work.queued.remove(claimed)
        return claims, buried

    def _held(self, work: UnitOfWork, slot_row: SlotRow, raw: bytes) -> Claim:
        token = work.change_slot(slot_row).next_token()
        claim = claim_of(slot_row.slot, raw, work.record, queue=self._store.queue_names[-1], token=token)
        record = work.record(claim.id)
        flags = {"is_blocked": is_blocked(work, record), "is_cancelled": is_batch_cancelled(work, record)}
        return msgspec.structs.replace(claim, **flags)

    def admit(self, requests: Sequence[AdmitRequest]) -> list[Admission]:
        with self._store.unit_of_work() as work:
            return admit(work, requests)

    # renew, promote, reap

    def renew(self, holdings: Sequence[tuple[str, bytes]]) -> list[Renewal]:
        if not holdings:
            return []
        with self._store.unit_of_work() as work:
            work.read_slots(slot for slot, _ in holdings)
            return [self._renew(work, slot, believed) for slot, believed in holdings]

    def _renew(self, work: UnitOfWork, slot: str, believed: bytes) -> Renewal:
        slot_row = work.slot(slot)
        if slot_row is None or slot_row.info is None:
            return Renewal(slot, LeaseStatus.GONE)
        work.renew_heartbeat(slot_row)
        if (slot_row.raw or b"") == believed:
            return Renewal(slot, _status_of(work, slot_row.raw))
        if believed or slot_row.raw is None:
            return Renewal(slot, LeaseStatus.LOST)
        return Renewal(slot, LeaseStatus.UNEXPECTED, self._held(work, slot_row, slot_row.raw))

    def promote(self, limit: int = 500) -> Promoted:
        with self._store.snapshot() as (db, now_ms):  # almost always nothing is due, and a read needs no lock
            next_due_ms = _next_due_ms(db)
            if next_due_ms is None or next_due_ms > now_ms:
                return Promoted(0, next_due_ms, now_ms, next_fire_ms(db), False, cancel_requests(db), _next_look_ms(db))
        with self._store.unit_of_work() as work:
            sql = "SELECT due_ms, raw FROM scheduled WHERE due_ms <= ? ORDER BY due_ms, raw LIMIT ?"
            due = work.db.execute(sql, (work.now_ms, limit)).fetchall()
            work.db.executemany("DELETE FROM scheduled WHERE due_ms = ? AND raw = ?", due)
            for _, raw in due:
                self._promote(work, raw)
            times = _next_due_ms(work.db), work.now_ms, next_fire_ms(work.db)
            return Promoted(len(due), *times, False, cancel_requests(work.db), _next_look_ms(work.db))

    def _promote(self, work: UnitOfWork, raw: bytes) -> None:
        job, last_queue = decode_or_none(raw), self._store.queue_names[-1]
        if job is None:  # another program put it here; the claim counts it as adopted
            work.queued.push(last_queue, raw, front=False)
            return
        known = work.record(job.id)
        if known is not None and not known.is_about(raw):  # another job has its id; the claim buries it
            work.push_undecodable(last_queue, raw, front=False)
            return
        record = work.record_for(job.id, last_queue, raw)
        record.raw = raw
        work.push(record, front=False)

    def overdue(self, limit: int = 500) -> list[Claim]:
        with self._store.unit_of_work() as work:
            sql = "SELECT id FROM deadlines WHERE look_ms <= ? ORDER BY look_ms, id LIMIT ?"
            ids = [id for (id,) in work.db.execute(sql, (work.now_ms, limit))]
            work.read_records(ids)
            found = (_look(work, id) for id in ids)
            return [claim for claim in found if claim is not None]

    def bury_overdue(self, settlements: Sequence[Settlement]) -> tuple[SettleResult, ...]:
        check_follow_ups((s.follow_ups for s in settlements), self._store.queue_names)
        with self._store.unit_of_work() as work:
            work.read_records(s.claim.id for s in settlements)
            return tuple(bury_overdue(work, s) for s in settlements)

    def realign(self, offset: int = 0, limit: int = 500) -> int | None:
        with self._store.unit_of_work() as work:
            sql = "SELECT raw FROM scheduled ORDER BY due_ms DESC, raw DESC LIMIT ? OFFSET ?"
            page = [raw for (raw,) in work.db.execute(sql, (limit, offset))]
            changed = sum(_realign(work, raw) for raw in page)
            # A changed job is due earlier, so the jobs of the next pages take its place.
            return offset + len(page) - changed if len(page) == limit else None

    def due_now(self, ids: Sequence[str]) -> list[bool]:
        if not ids:
            return []
        with self._store.unit_of_work() as work:
            work.read_records(ids)
            return [self._due_now(work, id) for id in ids]

    def _due_now(self, work: UnitOfWork, id: str) -> bool:
        record = work.record(id)
        if record is None or record.state not in (State.SCHEDULED, State.RETRYING):
            return False
        if not work.unschedule(record.raw):
            return False
        self._promote(work, record.raw)
        return True

    def sweep_unique(self, cursor: str = "") -> str | None:
        with self._store.unit_of_work() as work:
            sql = "SELECT key, id FROM unique_keys WHERE key > ? ORDER BY key LIMIT ?"
            page = work.db.execute(sql, (cursor, SWEEP_PAGE)).fetchall()
            work.read_records(id for _, id in page)
            stale = [(key,) for key, id in page if not is_holder(work.record(id), key)]
            work.db.executemany("DELETE FROM unique_keys WHERE key = ?", stale)
            forget_outputs(work)
            work.batches.forget_expired()
            return page[-1][0] if len(page) == SWEEP_PAGE else None

    def suspects(self, *, sweep: bool = False, is_gone: Callable[[ProcessId], bool] | None = None) -> list[Suspect]:
        store = self._store
        with store.snapshot() as (db, now_ms):
            monotonic_ms = store.monotonic()
            slots = [slot_row for slot_row in all_slots(db) if sweep or slot_row.info is not None]
            gone = {row.slot for row in slots if is_gone is not None and row.info and is_gone(process_of(row.info))}
            return [
                Suspect(slot_row.slot, self._claims_of(db, slot_row, now_ms), slot_row.slot in gone)
                for slot_row in slots
                if slot_row.slot in gone or not slot_row.is_alive(store.database.boot, monotonic_ms)
            ]

    def _claims_of(self, db: sqlite3.Connection, slot_row: SlotRow, now_ms: int) -> tuple[Claim, ...]:
        if slot_row.raw is None:
            return ()
        queue = self._store.queue_names[-1]
        return (claim_of(slot_row.slot, slot_row.raw, lambda id: find_records(db, [id], now_ms)[id], queue=queue),)

    def reap(self, slot: str, settlements: Sequence[Settlement], *, is_gone: bool = False) -> tuple[SettleResult, ...]:
        check_follow_ups((s.follow_ups for s in settlements), self._store.queue_names)
        with self._store.unit_of_work() as work:
            slot_row = work.slot(slot)
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
        with self._store.unit_of_work() as work:
            for slot, info in slots.items():
                slot_row = work.change_slot(work.slot(slot) or SlotRow(slot))
                slot_row.info = msgspec.json.encode(info)
                if not work.is_alive(slot_row):
                    work.renew_heartbeat(slot_row)
            work.db.execute(
                "DELETE FROM slots WHERE slot IN (SELECT slot FROM slots WHERE info IS NULL AND held IS NULL "
                "ORDER BY gone_ms DESC LIMIT -1 OFFSET ?)",
                (GONE_SLOTS_KEPT,),
            )

    def deregister(self, slots: Sequence[str]) -> None:
        last_queue = self._store.queue_names[-1]
        with self._store.unit_of_work() as work:
            for slot_row in filter(None, map(work.slot, slots)):
                if slot_row.raw is not None:
                    _give_back(work, claim_of(slot_row.slot, slot_row.raw, work.record, queue=last_queue))
                work.change_slot(slot_row).forget(work.now_ms)

    def breaker_resets(self) -> Mapping[str, int]:
        with self._store.snapshot() as (db, _):
            return dict(db.execute("SELECT route, number FROM breaker_resets").fetchall())

    # waking and events

    def waiter(self) -> LocalWaiter:
        return self._store.watcher.waiter(self._store.config.worker.brpoplpush_timeout)

    def subscribe(self) -> SqliteSubscription:
        subscription = SqliteSubscription(self._store.database, self._store.subscriptions.discard)
        self._store.subscriptions.add(subscription)
        return subscription


def _enqueue(work: UnitOfWork, entry: Entry, window: RateWindow) -> tuple[EnqueueResult, str]:
    """The result, and the job that is there already if it is DUPLICATE."""
    version = entry.version
    if existing := existing_job(work, entry):
        return EnqueueResult.DUPLICATE, existing
    if version is not None and not entry.always:
        known = work.ledger.entry(version.path)
        if known is not None and known.knows(version.signature):
            return EnqueueResult.KNOWN, ""
    batch = batch_to_join(work, entry) if entry.joins else None
    if entry.joins and batch is None:
        return EnqueueResult.REFUSED, ""
    if version is not None and not entry.always and not window.take():
        return EnqueueResult.THROTTLED, ""
    add(work, entry, batch=batch)
    return EnqueueResult.ENQUEUED, ""


def _next_due_ms(db: sqlite3.Connection) -> int | None:
    found: int | None = db.execute("SELECT min(due_ms) FROM scheduled").fetchone()[0]
    return found


def _next_look_ms(db: sqlite3.Connection) -> int | None:
    found: int | None = db.execute("SELECT min(look_ms) FROM deadlines").fetchone()[0]
    return found


def _look(work: UnitOfWork, id: str) -> Claim | None:
    """The claim of a job that waits although its deadline has passed. Says when to look at it again."""
    record, now_ms = work.record(id), work.now_ms
    deadline_ms = record.facts.deadline_ms if record is not None else None
    if record is None or deadline_ms is None or not State(record.state).is_unfinished:
        work.db.execute("DELETE FROM deadlines WHERE id = ?", (id,))
        return None
    again_ms, claim = RUNNING_LOOK_MS, None
    if deadline_ms > now_ms:
        again_ms = min(deadline_ms - now_ms, LONGEST_LOOK_MS)
    elif _is_overdue(work, record):
        again_ms = RETURNED_LOOK_MS
        claim = Claim("", 0, record.queue, record.raw, decode_or_none(record.raw), id, now_ms)
    work.db.execute("UPDATE deadlines SET look_ms = ? WHERE id = ?", (now_ms + again_ms, id))
    return claim if claim is not None and claim.job is not None else None


def _is_overdue(work: UnitOfWork, record: RecordRow) -> bool:
    is_ours = State(record.state).is_waiting and record.queue in work.config.worker.priorities
    return is_ours and not is_batch_cancelled(work, record)


def _realign(work: UnitOfWork, raw: bytes) -> bool:
    job = decode_or_none(raw)
    record = work.record(job.id) if job is not None else None
    if record is None or record.raw != raw or record.state not in (State.SCHEDULED, State.RETRYING):
        return False
    due_ms = due_after_step(record.due_ms, record.since_ms, work.now_ms)
    if due_ms is None:
        return False
    work.change_record(record).due_ms, record.since_ms = due_ms, work.now_ms
    work.db.execute("UPDATE scheduled SET due_ms = ? WHERE raw = ?", (due_ms, raw))
    return True


def _fronts(work: UnitOfWork, queue: str, wanted: int) -> Iterator[QueuedRow]:
    """The next jobs of a queue. The queue and the jobs' records are read when the first is wanted."""
    rows = work.queued.fronts(queue, wanted)
    work.read_records(row.job.id for row in rows if row.job is not None)
    yield from rows


def _next_front(order: Iterable[str], fronts: Mapping[str, Iterator[QueuedRow]]) -> tuple[str, QueuedRow] | None:
    """The next job of the first of these queues that has one."""
    for queue in order:
        if queue in fronts and (queued := next(fronts[queue], None)) is not None:
            return queue, queued
    return None


def _bury(work: UnitOfWork, slot: str, queue: str, queued: QueuedRow) -> Buried:
    """Buries foreign bytes. The caller removes them from their queue."""
    for name in ("adopted", "consumed"):
        work.count(name)
    assert queued.job is not None
    error = work.bury_foreign(slot, queue, queued.raw, queued.job.id)
    found = Buried(raw_id(queued.raw), slot, queue, error)
    work.publish(wire_events.buried(found) if work.has_subscribers else b"")
    return found


def _start(work: UnitOfWork, slot_row: SlotRow, queue: str, queued: QueuedRow) -> Claim:
    """Gives the job to the slot. The caller removes it from its queue."""
    _, raw, job = queued
    slot_row.raw = raw
    work.renew_heartbeat(slot_row)
    work.count("consumed")
    token = slot_row.next_token()
    if job is None:
        work.count("adopted")
        return claim_of(slot_row.slot, raw, work.record, queue=queue, token=token)
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


def _status_of(work: UnitOfWork, raw: bytes | None) -> LeaseStatus:
    if not raw:
        return LeaseStatus.IDLE
    job = decode_or_none(raw)
    record = work.record(job.id) if job else None
    is_cancelled = record is not None and (record.is_cancel_requested or is_batch_cancelled(work, record))
    return LeaseStatus.CANCEL if is_cancelled else LeaseStatus.HELD


def _give_back(work: UnitOfWork, claim: Claim) -> None:
    known = work.record(claim.id)
    if claim.job is None or (known is not None and not known.is_about(claim.raw)):  # the next claim buries it
        work.push_undecodable(claim.queue, claim.raw, front=True)
    else:
        record = work.record_for(claim.job.id, claim.queue, claim.raw)
        record.raw = claim.raw  # the record may hold the bytes of another copy
        work.push(record, front=True)
    work.count("released")


# The producers' shared rate limit: one window for all of them, stored in the database.
#
# It runs on the monotonic clock, which no step of the wall clock changes. A window begins with its first permit and
# ends by time alone, so a producer killed in between does not block the others.


class RateWindow:
    """The permits of one `enqueue`."""

    def __init__(self, work: UnitOfWork, limit: int) -> None:
        self._work = work
        self._limit = limit  # 0: no permit is needed
        self.permits = 0  # taken by this call
        sql = "SELECT ends_ms, taken FROM rate WHERE boot = ?"
        found: tuple[int, int] | None = work.db.execute(sql, (work.boot,)).fetchone()
        self._ends_ms, self._taken = found or (0, 0)

    def take(self) -> bool:
        if not self._limit:
            return True
        if self._work.monotonic_ms >= self._ends_ms:
            self._ends_ms, self._taken = self._work.monotonic_ms + RATE_WINDOW_MS, 0
        if self._taken >= self._limit:
            return False
        self._taken += 1
        self.permits += 1
        return True

    @property
    def wait_ms(self) -> int:
        return max(1, self._ends_ms - self._work.monotonic_ms)

    def write(self) -> None:
        if self.permits:
            sql = "INSERT OR REPLACE INTO rate VALUES (1, ?, ?, ?)"
            self._work.db.execute(sql, (self._work.boot, self._ends_ms, self._taken))


# The limits of routes in the SQLite broker: which jobs hold a permit, and how many started in the current window.
#
# Windows run on the monotonic clock, which no step of the wall clock changes. A window of an earlier boot has ended.


def admit(work: UnitOfWork, requests: Sequence[AdmitRequest]) -> list[Admission]:
    work.read_slots(request.slot for request in requests)
    for route in dict.fromkeys(request.route for request in requests):
        _remove_stale_holders(work, route)
    return [_admit(work, request) for request in requests]


def _remove_stale_holders(work: UnitOfWork, route: str) -> None:
    work.db.execute(
        "DELETE FROM holders WHERE route = ? AND NOT EXISTS "
        "(SELECT 1 FROM slots WHERE slots.slot = holders.slot AND slots.held = holders.raw)",
        (route,),
    )


def _admit(work: UnitOfWork, request: AdmitRequest) -> Admission:
    slot_row = work.slot(request.slot)
    if slot_row is None or slot_row.raw != request.raw:
        return Admission(AdmitResult.LOST, 1)
    # Every holder that is left holds what its slot holds, so one of this slot is this job.
    sql = "SELECT count(*), coalesce(sum(slot = ?), 0) FROM holders WHERE route = ?"
    count, is_holder = work.db.execute(sql, (request.slot, request.route)).fetchone()
    if is_holder:
        return Admission(AdmitResult.ADMITTED)
    if request.max_running_total and count >= request.max_running_total:
        return Admission(AdmitResult.FULL, FULL_WAIT_MS)
    if request.rate and (wait_ms := _start_in_window(work, request)):
        return Admission(AdmitResult.THROTTLED, wait_ms)
    work.db.execute("INSERT INTO holders VALUES (?, ?, ?)", (request.route, request.slot, request.raw))
    return Admission(AdmitResult.ADMITTED)


def _start_in_window(work: UnitOfWork, request: AdmitRequest) -> int:
    """Counts the job in the window of its route and returns 0; if the window is full, returns how long it lasts."""
    sql = "SELECT ends_ms, started FROM route_windows WHERE route = ? AND boot = ?"
    ends_ms, started = work.db.execute(sql, (request.route, work.boot)).fetchone() or (0, 0)
    now_ms = work.monotonic_ms
    if not now_ms < ends_ms <= now_ms + request.window_ms:
        ends_ms, started = now_ms + request.window_ms, 0
    if started >= request.rate:
        return int(ends_ms - now_ms)
    values = (request.route, work.boot, ends_ms, started + 1)
    work.db.execute("INSERT OR REPLACE INTO route_windows VALUES (?, ?, ?, ?)", values)
    return 0
