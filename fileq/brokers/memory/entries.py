"""How the memory broker takes in one job: record, ledger, unique key, queue and counters. The caller holds the lock."""

from __future__ import annotations

from collections.abc import Iterable

from fileq.brokers import wire_events
from fileq.brokers.memory.store import KeptBatch, MemoryRecord, MemoryStore
from fileq.brokers.types import FOLLOW_UPS_KEPT, Entry, entry_of, origin_of_entry
from fileq.core.batch import add_member
from fileq.core.job import State, encode
from fileq.core.outcome import FollowUp
from fileq.core.own_jobs import is_own_batch


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
