"""The broker on one machine: a file that several processes share. Each call that changes anything is one transaction.

The verbs follow the memory broker line by line, on the books of a transaction instead of dictionaries.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Mapping, Sequence

import msgspec

from fileq.brokers import events
from fileq.brokers.protocol import PendingReply, ReadyReply
from fileq.brokers.sqlite.books import Books
from fileq.brokers.sqlite.rate import Window
from fileq.brokers.sqlite.repairer import SqliteMending
from fileq.brokers.sqlite.rows import (
    Element,
    Slot,
    all_slots,
    as_claim,
    find_ledger_entries,
    find_row,
    to_ledger_entry,
)
from fileq.brokers.sqlite.settle import reap, settle
from fileq.brokers.sqlite.wake import SqliteSubscription
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
from fileq.brokers.wake import LocalWaiter
from fileq.core.claim import Claim
from fileq.core.finding import Finding, sound
from fileq.core.job import State, decode_or_none, encode
from fileq.core.settlement import Settlement, SettleResult

GONE_SLOTS_KEPT = 1000  # of which the last token is remembered
_LEDGER_PAGE = 500


class SqliteBroker(SqliteMending):
    kind = "sqlite"

    def examine(self, *, permissions: bool = False) -> list[Finding]:
        """Whether the database's place is a good one; rights are part of that."""
        from fileq.brokers.sqlite.examine import examine_place
        from fileq.brokers.sqlite.schema import VERSION

        return [*examine_place(self.where), sound("schema", f"version {VERSION}")]

    # enqueue

    def enqueue(self, entries: Sequence[Entry], *, limit: int = 0) -> Enqueued:
        if not entries:
            return Enqueued(())
        check_queues((entry.queue for entry in entries), self.queue_names)
        with self.writing() as books:
            window = Window(books, limit)
            books.expect(entry.job.id for entry in entries)
            fates = tuple(self._enqueue(books, entry, window) for entry in entries)
            window.write()
            return Enqueued(fates, window.permits, window.wait_ms if EnqueueResult.THROTTLED in fates else 0)

    def _enqueue(self, books: Books, entry: Entry, window: Window) -> EnqueueResult:
        job, version = entry.job, entry.version
        if books.row(job.id) is not None:
            return EnqueueResult.DUPLICATE
        if version is not None and not entry.always:
            known = books.ledger_entry(version.path)
            if known is not None and known.knows(version.signature):
                return EnqueueResult.KNOWN
            if not window.take():
                return EnqueueResult.THROTTLED
        row = books.row_for(job.id, entry.queue, encode(job))
        due = max(entry.at_ms, books.now_ms + entry.delay_ms)
        if due > books.now_ms:
            books.schedule(row, State.SCHEDULED, due)
        else:
            books.push(row, front=False)
        if version is not None:
            books.learn(version, job.id)
        books.count("produced")
        books.publish(events.created(job) if books.is_heard else b"")
        return EnqueueResult.ENQUEUED

    # turn: settle, then claim

    def send_settle_and_claim(self, settlements: Sequence[Settlement], slots: Sequence[str]) -> PendingReply:
        return ReadyReply(self.settle_and_claim(settlements, slots))

    def settle_and_claim(self, settlements: Sequence[Settlement], slots: Sequence[str]) -> TurnReply:
        with self.writing() as books:
            books.expect_slots([*(s.claim.slot for s in settlements), *slots])
            books.expect(s.claim.id for s in settlements)
            settled = tuple(settle(books, s) for s in settlements)
            paused = frozenset(queue for (queue,) in books.db.execute("SELECT queue FROM paused"))
            registered = {name: slot for name in slots if (slot := books.slot(name)) and slot.info is not None}
            claims = self._claim(books, [registered[name] for name in slots if name in registered], paused)
            return TurnReply(settled, tuple(claims), tuple(name for name in slots if name not in registered), paused)

    def _claim(self, books: Books, slots: list[Slot], paused: frozenset[str]) -> list[Claim]:
        """What each slot holds already, or else the next job; one look a queue for all of them."""
        wanted = sum(slot.held is None for slot in slots)
        heads = {queue: books.heads(queue, wanted) for queue in self.queue_names if queue not in paused}
        taken: list[tuple[str, int]] = []
        claims = []
        for slot in slots:
            if slot.held is not None:
                claims.append(self._held(books, slot, slot.held))
                continue
            for queue in self.order.next_order():
                if queue in heads and (element := next(heads[queue], None)) is not None:
                    self.order.claimed()
                    taken.append((queue, element.position))
                    claims.append(_start(books, slot, queue, element))
                    break
        books.take(taken)
        return claims

    def _held(self, books: Books, slot: Slot, raw: bytes) -> Claim:
        token = books.change_slot(slot).next_token()
        return as_claim(slot.slot, raw, books.row, queue=self.queue_names[-1], token=token)

    # renew, promote, reap

    def renew(self, holdings: Sequence[tuple[str, bytes]]) -> list[Renewal]:
        if not holdings:
            return []
        with self.writing() as books:
            books.expect_slots(name for name, _ in holdings)
            return [self._renew(books, name, believed) for name, believed in holdings]

    def _renew(self, books: Books, name: str, believed: bytes) -> Renewal:
        slot = books.slot(name)
        if slot is None or slot.info is None:
            return Renewal(name, LeaseStatus.GONE)
        books.beat(slot)
        if (slot.held or b"") == believed:
            return Renewal(name, self._hold_of(books, slot.held))
        if believed or slot.held is None:
            return Renewal(name, LeaseStatus.LOST)
        return Renewal(name, LeaseStatus.UNEXPECTED, self._held(books, slot, slot.held))

    def _hold_of(self, books: Books, raw: bytes | None) -> LeaseStatus:
        if not raw:
            return LeaseStatus.IDLE
        job = decode_or_none(raw)
        row = books.row(job.id) if job else None
        return LeaseStatus.CANCEL if row and row.is_cancel_requested else LeaseStatus.HELD

    def promote(self, limit: int = 500) -> Promoted:
        with self.writing() as books:
            now = books.now_ms
            sql = "SELECT due_ms, raw FROM scheduled WHERE due_ms <= ? ORDER BY due_ms, raw LIMIT ?"
            due = books.db.execute(sql, (now, limit)).fetchall()
            books.db.executemany("DELETE FROM scheduled WHERE due_ms = ? AND raw = ?", due)
            for _, raw in due:
                self._promote(books, raw)
            next_due = books.db.execute("SELECT min(due_ms) FROM scheduled").fetchone()[0]
            return Promoted(len(due), next_due, now)

    def _promote(self, books: Books, raw: bytes) -> None:
        job, last_queue = decode_or_none(raw), self.queue_names[-1]
        if job is None:  # a caller's mistake, but it must not stop every promotion after it
            books.disown(last_queue, raw, front=False)
            return
        row = books.row_for(job.id, last_queue, raw)
        row.raw = raw
        books.push(row, front=False)

    def suspects(self, *, sweep: bool = False) -> list[Suspect]:
        with self.reading() as (db, now):
            monotonic = self.monotonic()
            return [
                Suspect(slot.slot, self._held_by(db, slot, now))
                for slot in all_slots(db)
                if (sweep or slot.info is not None) and not slot.is_alive(self.store.boot, monotonic)
            ]

    def _held_by(self, db: sqlite3.Connection, slot: Slot, now_ms: int) -> tuple[Claim, ...]:
        if slot.held is None:
            return ()
        return (as_claim(slot.slot, slot.held, lambda id: find_row(db, id, now_ms), queue=self.queue_names[-1]),)

    def reap(self, slot: str, settlements: Sequence[Settlement]) -> tuple[SettleResult, ...]:
        with self.writing() as books:
            dead = books.slot(slot)
            if dead is None or books.is_alive(dead):
                return tuple(SettleResult.FENCED for _ in settlements)
            answers = tuple(reap(books, dead, s) for s in settlements)
            if dead.held is None:
                books.change_slot(dead).forget(books.now_ms)
            return answers

    # the registry

    def register(self, slots: Mapping[str, WorkerInfo]) -> None:
        with self.writing() as books:
            for name, info in slots.items():
                slot = books.change_slot(books.slot(name) or Slot(name))
                slot.info = msgspec.json.encode(info)
                if not books.is_alive(slot):
                    books.beat(slot)
            books.db.execute(
                "DELETE FROM slots WHERE slot IN (SELECT slot FROM slots WHERE info IS NULL AND held IS NULL "
                "ORDER BY gone_ms DESC LIMIT -1 OFFSET ?)",
                (GONE_SLOTS_KEPT,),
            )

    def deregister(self, slots: Sequence[str]) -> None:
        with self.writing() as books:
            for slot in filter(None, map(books.slot, slots)):
                if slot.held is not None:
                    self._give_back(books, as_claim(slot.slot, slot.held, books.row, queue=self.queue_names[-1]))
                books.change_slot(slot).forget(books.now_ms)

    def _give_back(self, books: Books, claim: Claim) -> None:
        if claim.job is None:
            books.disown(claim.queue, claim.raw, front=True)
        else:
            row = books.row_for(claim.job.id, claim.queue, claim.raw)
            row.raw = claim.raw  # the record may speak of a copy
            books.push(row, front=True)
        books.count("released")

    # the ledger

    def lookup(self, paths: Sequence[bytes]) -> list[LedgerEntry | None]:
        with self.reading() as (db, _):
            found = find_ledger_entries(db, paths)
        return [found.get(path) for path in paths]

    def ledger(self, under: bytes) -> Iterator[tuple[bytes, LedgerEntry]]:
        first, comparison = under, ">="
        while True:
            sql = f"SELECT path, entry FROM ledger WHERE path {comparison} ? ORDER BY path LIMIT ?"
            with self.reading() as (db, _):
                page = db.execute(sql, (first, _LEDGER_PAGE)).fetchall()
            for path, entry in page:
                if not path.startswith(under):
                    return
                yield path, to_ledger_entry(entry)
            if not page:
                return
            first, comparison = page[-1][0], ">"

    def update_ledger(self, changes: Sequence[tuple[bytes, LedgerEntry, LedgerEntry | None]]) -> list[bool]:
        if not changes:
            return []
        with self.writing() as books:
            return [self._revise(books, *change) for change in changes]

    def _revise(self, books: Books, path: bytes, was: LedgerEntry, becomes: LedgerEntry | None) -> bool:
        if books.ledger_entry(path) != was:
            return False
        books.update_ledger(path, becomes)
        return True

    # waking and listening

    def waiter(self) -> LocalWaiter:
        return self.watcher.waiter(self.config.worker.brpoplpush_timeout)

    def subscribe(self) -> SqliteSubscription:
        subscription = SqliteSubscription(self.store, self.subscriptions.discard)
        self.subscriptions.add(subscription)
        return subscription


def _start(books: Books, slot: Slot, queue: str, element: Element) -> Claim:
    """The slot holds the element from now on, and the record says so."""
    _, raw, job = element
    slot.held = raw
    books.beat(slot)
    books.count("consumed")
    token = slot.next_token()
    if job is None:
        books.count("adopted")
        return as_claim(slot.slot, raw, books.row, queue=queue, token=token)
    row = books.row_for(job.id, queue, raw)
    if row.queued:
        row.queued -= 1
    else:
        books.count("adopted")
    row.state, row.worker, row.queue, row.raw = State.RUNNING, slot.slot, queue, raw
    row.started_ms, row.due_ms = books.now_ms, 0
    claim = Claim(slot.slot, token, queue, raw, job, job.id, books.now_ms)
    books.publish(events.started(claim) if books.is_heard else b"")
    return claim
