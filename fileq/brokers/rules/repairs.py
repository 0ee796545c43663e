"""What fsck puts right: protocol.Repairer over a unit of work. Changes only what is still wrong in that step."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from fileq.brokers.rules.rows import RecordRow
from fileq.brokers.rules.unit_of_work import Store, UnitOfWork
from fileq.brokers.types import UnrecordedJob
from fileq.core.job import DELAYED_STATES, State


class RepairVerbs:
    store: Store

    def lost(self, ids: Sequence[str]) -> list[bool]:
        with self.store.reading() as work:
            work.records.read(ids)
            records = [work.records.get(id) for id in ids]
            waiting = _waiting(work, records)
            return [record is not None and _is_lost(work, record, waiting) for record in records]

    def restore(self, ids: Sequence[str]) -> list[bool]:
        with self.store.unit_of_work() as work:
            work.records.read(ids)
            records = [work.records.get(id) for id in ids]
            waiting = _waiting(work, records)
            results = [_restore(work, record, waiting) for record in records]
            if any(results):
                work.queued.repair()
            return results

    def unrecorded(self, jobs: Sequence[UnrecordedJob]) -> list[bool]:
        with self.store.reading() as work:
            work.records.read(job.record.id for job in jobs)
            waiting = _in_queues(work, jobs)
            return [_is_unrecorded(work, job, waiting) for job in jobs]

    def create_record(self, jobs: Sequence[UnrecordedJob]) -> list[bool]:
        with self.store.unit_of_work() as work:
            work.records.read(job.record.id for job in jobs)
            waiting = _in_queues(work, jobs)
            return [_create_record(work, job, waiting) for job in jobs]

    def balance(self, drift: int, becomes: int = 0) -> bool:
        with self.store.unit_of_work() as work:
            if work.census(is_exact=True).drift != drift:
                return False
            work.queued.repair()
            # The hourly counters stay: the jobs were not deleted or adopted in this hour.
            work.add_to_counter("deleted" if drift > becomes else "adopted", abs(drift - becomes))
            return True


def _waiting(work: UnitOfWork, records: Iterable[RecordRow | None]) -> set[tuple[str, bytes]]:
    """The (queue, raw) of these records that are in their queues."""
    return work.queued.found({(r.queue, r.raw) for r in records if r is not None and r.state == State.PENDING})


def _is_lost(work: UnitOfWork, record: RecordRow, waiting: set[tuple[str, bytes]]) -> bool:
    """False for a job that has ended, and for a queue that is not configured here: another configuration may hold the
    job there."""
    place = {
        State.PENDING: record.queue,
        **dict.fromkeys(DELAYED_STATES, "scheduled"),
        State.RUNNING: "processing",
        State.DEAD: "dead_letter",
    }.get(State(record.state))
    if place is None or record.queue not in work.queue_names:
        return False
    if place == record.queue:
        return (record.queue, record.raw) not in waiting
    return not _is_in(work, place, record.raw, record.slot)


def _is_in(work: UnitOfWork, place: str, raw: bytes, slot: str) -> bool:
    """Whether these bytes are in that place, which is not a queue."""
    if place == "scheduled":
        return work.due_ms_of(raw) is not None
    if place == "processing":
        slot_row = work.slots.get(slot)
        return slot_row is not None and slot_row.raw == raw
    return place == "dead_letter" and work.is_dead(raw)


def _restore(work: UnitOfWork, record: RecordRow | None, waiting: set[tuple[str, bytes]]) -> bool:
    if record is None or not _is_lost(work, record, waiting):
        return False
    work.change_record(record).expires_ms = None
    if record.state == State.DEAD:
        work.add_dead(record.raw)
    elif record.state in DELAYED_STATES:
        work.put_scheduled(record.raw, record.due_ms)
    else:
        record.queued = max(record.queued, 1) if record.state == State.PENDING else record.queued + 1
        record.state = State.PENDING
        work.queued.push(record.queue, record.raw, front=True)
        waiting.add((record.queue, record.raw))
    return True


def _in_queues(work: UnitOfWork, jobs: Sequence[UnrecordedJob]) -> set[tuple[str, bytes]]:
    return work.queued.found({(job.place, job.record.raw) for job in jobs if job.place in work.queue_names})


def _is_unrecorded(work: UnitOfWork, job: UnrecordedJob, waiting: set[tuple[str, bytes]]) -> bool:
    if work.records.get(job.record.id) is not None:
        return False
    return (job.place, job.record.raw) in waiting or _is_in(work, job.place, job.record.raw, job.record.slot)


def _create_record(work: UnitOfWork, job: UnrecordedJob, waiting: set[tuple[str, bytes]]) -> bool:
    if not _is_unrecorded(work, job, waiting):
        return False
    wanted = job.record
    record = work.record_for(wanted.id, wanted.queue, wanted.raw)
    record.replace_by(wanted)
    record.queued = int(job.place in work.queue_names)
    if job.place == "scheduled":
        record.due_ms = work.due_ms_of(wanted.raw) or 0
    return True
