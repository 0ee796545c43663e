"""What people ask and change: protocol.Inspector, the catalog, the orders and the producers over a unit of work.

The lists by pages, and what less than whole records can answer, are in sqlite/broker.py.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from fileq.brokers.catalog import Document, check_document, check_name, conflict
from fileq.brokers.local_processes import Neighbours
from fileq.brokers.place_pages import NEWEST_FIRST
from fileq.brokers.protocol import Order
from fileq.brokers.rules.batches import delete_member, revive_member
from fileq.brokers.rules.entries import key_holder, take_key
from fileq.brokers.rules.settlements import cancel, clear
from fileq.brokers.rules.unit_of_work import Store, UnitOfWork
from fileq.brokers.types import (
    HOUR_MS,
    CancelResult,
    Census,
    LedgerEntry,
    Overview,
    ProducerInfo,
    ProducerView,
    Record,
    Revival,
    Revived,
    WorkerView,
    check_clear,
    check_follow_ups,
)
from fileq.core.job import State, decode_or_none, raw_id
from fileq.core.outcome import FollowUp

_ORDERS_PAGE = 500


class OperatorVerbs:
    store: Store

    # questions

    def census(self, *, sweep: bool = False) -> Census:
        with self.store.reading() as work:
            return work.census(is_exact=sweep)

    def overview(self, hours: int = 2, jobs: int = 0) -> Overview:
        queues = self.store.queue_names
        with self.store.reading() as work:
            fronts = {queue: found[0][1] for queue in queues if (found := work.queued.first(queue, 1))}
            places = (*queues, "scheduled", *NEWEST_FIRST) if jobs > 0 else ()
            return Overview(
                census=work.census(),
                fronts=fronts,
                workers=tuple(_workers(work)),
                hours=_hours(work, hours),
                producers=tuple(work.producers()),
                orders=work.order_count(),
                first={place: tuple(raws) for place in places if (raws := work.peek(place, jobs))},
            )

    def peek(self, place: str, limit: int) -> list[bytes]:
        with self.store.reading() as work:
            return work.peek(place, limit)

    def records(self, ids: Sequence[str]) -> list[Record | None]:
        with self.store.reading() as work:
            found = work.find_records(ids)
            return [record.view() if (record := found.get(id)) is not None else None for id in ids]

    def workers(self) -> list[WorkerView]:
        with self.store.reading() as work:
            return _workers(work)

    def makers(self, paths: Sequence[bytes]) -> list[str | None]:
        with self.store.reading() as work:
            found = work.find_makers(paths)
            return [found.get(path) for path in paths]

    def known_files(self, paths: Sequence[bytes]) -> list[tuple[LedgerEntry | None, str | None]]:
        with self.store.reading() as work:
            entries, makers = work.find_ledger_entries(paths), work.find_makers(paths)
            return [(entries.get(path), makers.get(path)) for path in paths]

    def hourly(self, hours: int) -> dict[int, dict[str, int]]:
        with self.store.reading() as work:
            return _hours(work, hours)

    # changes

    def cancel(
        self,
        ids: Sequence[str],
        follow_ups: Mapping[str, Sequence[FollowUp]] | None = None,
        *,
        in_cancelled_batch: bool = False,
    ) -> list[CancelResult]:
        wanted = follow_ups or {}
        check_follow_ups(wanted.values(), self.store.queue_names)
        with self.store.unit_of_work() as work:
            records = [record for id in ids if (record := work.records.get(id)) is not None]
            work.queued.locate({(r.queue, r.raw) for r in records if r.state == State.PENDING})
            return cancel(work, ids, wanted, in_cancelled_batch=in_cancelled_batch)

    def clear(
        self, queue: str, raws: Sequence[bytes], follow_ups: Mapping[str, Sequence[FollowUp]] | None = None
    ) -> list[bool]:
        wanted = follow_ups or {}
        check_clear(queue, raws, self.store.queue_names)
        check_follow_ups(wanted.values(), self.store.queue_names)
        with self.store.unit_of_work() as work:
            return clear(work, queue, raws, wanted)

    def revive(self, revivals: Sequence[Revival]) -> list[Revived]:
        with self.store.unit_of_work() as work:
            return [_revive(work, revival) for revival in revivals]

    def discard(self, dead: Sequence[tuple[str, bytes]]) -> list[bool]:
        with self.store.unit_of_work() as work:
            discarded = [work.remove_dead(raw) for _, raw in dead]
            for (id, raw), is_discarded in zip(dead, discarded, strict=True):
                if not is_discarded:
                    continue
                record = work.records.get(id)
                if record is None or work.is_foreign(raw, decode_or_none(raw), State.DEAD):
                    id = raw_id(raw)
                    record = work.records.get(id)
                if (
                    record is None or record.state != State.DEAD or work.is_dead(raw)
                ):  # another dead copy needs the record
                    continue
                delete_member(work, record.batch, id)
                if not record.queued:  # nor does one wait in a queue
                    work.delete_record(id)
            work.count("deleted", sum(discarded))
            return discarded

    def pause(self, queue: str) -> None:
        with self.store.unit_of_work() as work:
            work.put_paused(queue, is_paused=True)

    def resume(self, queue: str) -> None:
        with self.store.unit_of_work() as work:
            work.put_paused(queue, is_paused=False)
        self.store.wake()

    def reset_breaker(self, route: str) -> None:
        with self.store.unit_of_work() as work:
            work.count_breaker_reset(route)

    # the catalog

    def documents(self, kind: str) -> dict[str, Document]:
        check_name("kind", kind)
        with self.store.reading() as work:
            return work.documents(kind)

    def documents_of(self, kinds: Sequence[str]) -> list[dict[str, Document]]:
        return [self.documents(kind) for kind in kinds]

    def put_document(
        self, kind: str, name: str, body: bytes, expected: int | None = None, *, frees_memory: bool = False
    ) -> int:
        check_document(kind, name, body)
        with self.store.unit_of_work() as work:
            was = work.document(kind, name)
            if was is not None and was.body == body:
                return was.revision
            _check_expected(kind, name, was, expected)
            document = Document(body, work.next_revision(kind))
            work.put_document(kind, name, document)
            return document.revision

    def remove_document(self, kind: str, name: str, expected: int | None = None) -> bool:
        check_document(kind, name, b"")
        with self.store.unit_of_work() as work:
            was = work.document(kind, name)
            if was is None:
                return False
            _check_expected(kind, name, was, expected)
            work.next_revision(kind)
            work.put_document(kind, name, None)
            return True

    def catalog_revision(self, *kinds: str) -> int:
        for kind in kinds:
            check_name("kind", kind)
        with self.store.reading() as work:
            return sum(work.catalog_revision(kind) for kind in kinds)

    # orders for files

    def orders(self, older_than_ms: int) -> Iterator[Order]:
        after = ""
        while True:
            # One view a page: one kept open while the caller works would let the -wal file of SQLite grow.
            with self.store.reading() as work:
                page = work.due_orders(after, work.now_ms - older_than_ms, _ORDERS_PAGE)
            yield from page
            if len(page) < _ORDERS_PAGE:
                return
            after = page[-1].id

    def finish_orders(self, done: Sequence[tuple[str, bytes]]) -> list[bool]:
        if not done:
            return []
        with self.store.unit_of_work() as work:
            work.remove_orders([id for id, _ in done])
            work.records.read([id for id, _ in done])
            return [_write_path(work, id, path) for id, path in done]

    # producers

    def report_producer(self, id: str, info: ProducerInfo, ttl_ms: int) -> None:
        with self.store.unit_of_work() as work:
            work.put_producer(id, info, ttl_ms)

    def remove_producer(self, id: str) -> None:
        with self.store.unit_of_work() as work:
            work.put_producer(id, None)

    def producers(self) -> list[ProducerView]:
        with self.store.reading() as work:
            return work.producers()


def _workers(work: UnitOfWork) -> list[WorkerView]:
    neighbours = Neighbours()
    slots = [slot_row for slot_row in work.all_slots() if slot_row.is_registered]
    jobs = {slot_row.slot: decode_or_none(slot_row.raw) for slot_row in slots if slot_row.raw is not None}
    ids = {slot: job.id for slot, job in jobs.items() if job is not None}
    work.records.read(ids.values())
    since_ms = {slot: record.started_ms for slot, id in ids.items() if (record := work.records.get(id)) is not None}
    views = []
    for row in slots:
        info = row.worker
        is_alive = work.is_alive(row) and not neighbours.is_gone(info.process)
        views.append(WorkerView(row.slot, info, is_alive, row.raw or b"", since_ms.get(row.slot, 0), work.left_ms(row)))
    return views


def _hours(work: UnitOfWork, hours: int) -> dict[int, dict[str, int]]:
    newest = work.now_ms // HOUR_MS
    return work.hours(max(newest - hours + 1, work.oldest_hour_kept), newest)


def _revive(work: UnitOfWork, revival: Revival) -> Revived:
    if not work.is_dead(revival.raw):
        return Revived(False)
    job = decode_or_none(revival.next_raw)
    holder = key_holder(work, job.unique_key) if job is not None else ""
    if holder and holder != revival.id:
        return Revived(False, holder)
    if job is not None and (job.id != revival.id or work.is_foreign(revival.raw, job, State.DEAD)):
        return Revived(False, is_foreign=True)
    work.remove_dead(revival.raw)
    record = work.records.get(revival.id)
    queue = record.queue if record is not None else revival.queue
    if job is None:
        work.push_undecodable(queue, revival.next_raw, front=revival.is_next)
        work.delete_record(revival.id)
    else:
        if record is None and work.records.get(raw_id(revival.raw)) is not None:  # the job that had its id is forgotten
            work.delete_record(raw_id(revival.raw))
        record = work.record_for(revival.id, queue, revival.next_raw)
        record.raw, record.error, record.ended_ms = revival.next_raw, "", 0
        record.is_cancel_requested = False
        record.change_facts(fingerprint="")
        take_key(work, record, job.unique_key)
        work.index_deadline(record)
        work.push(record, front=revival.is_next)
        revive_member(work, record.batch, record.id)
    work.remove_orders([revival.id])
    return Revived(True)


def _check_expected(kind: str, name: str, was: Document | None, expected: int | None) -> None:
    found = was.revision if was is not None else 0
    if expected is not None and expected != found:
        raise conflict(kind, name, expected, found)


def _write_path(work: UnitOfWork, id: str, path: bytes) -> bool:
    record = work.records.get(id)
    if record is None or record.state not in (State.COMPLETED, State.DEAD):
        return False
    if path:
        work.change_record(record).moved_to = path
    return True
