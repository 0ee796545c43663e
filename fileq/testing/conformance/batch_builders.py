"""The vocabulary of the tests of batches: create one, add members, end them, see what it counts."""

from collections.abc import Callable
from typing import Any

from msgspec import Raw

from fileq.brokers.batches import NewBatch
from fileq.brokers.types import EnqueueResult, Entry, Revival
from fileq.core.batch import FACTS_MARK, Batch, Callback, CallbackKind, callback_id, callback_job
from fileq.core.job import Claim, encode
from fileq.core.settlement import SettleResult
from fileq.testing.conformance.builders import a_job, claim_one, id_of, raws_in, record_of, settle
from fileq.testing.conformance.harness import Harness

JOB_QUEUE = "low"
STATES = ("waiting", "running", "completed", "dead", "cancelled", "deleted")
EVERY_KIND = tuple(CallbackKind)


def member(id: str, batch: str = "b", *, joins: bool = True) -> Entry:
    return Entry(a_job(id, batch_id=batch), JOB_QUEUE, joins=joins)


def callback(batch: str, kind: CallbackKind, parent: str = "", **fields: Any) -> Callback:
    """A callback as the client makes it. Its payload looks like the mark of the facts."""
    fields |= {"batch_id": parent} if parent else {}
    job = a_job("made-by-callback_job", type="report", payload=Raw(FACTS_MARK), **fields)
    return Callback(kind, encode(callback_job(job, batch, kind)), JOB_QUEUE)


def create(harness: Harness, *kinds: CallbackKind, id: str = "b", parent: str = "", **options: Any) -> bool:
    callbacks = tuple(callback(id, kind, parent) for kind in kinds)
    return harness.broker.create_batch(NewBatch(id, parent=parent, callbacks=callbacks, **options))


def add(harness: Harness, *ids: str, batch: str = "b") -> list[EnqueueResult]:
    return list(harness.broker.enqueue([member(id, batch) for id in ids]).results)


def batch_of(harness: Harness, id: str = "b") -> Batch:
    [batch] = harness.broker.batches_by_id([id])
    assert batch is not None, f"batch {id} does not exist"
    assert batch.total == sum(getattr(batch, state) for state in STATES), batch
    return batch


def counts(harness: Harness, id: str = "b") -> dict[str, int]:
    """The counts that are not zero."""
    batch = batch_of(harness, id)
    return {name: count for name in ("total", *STATES) if (count := getattr(batch, name))}


def unfinished_ids(harness: Harness, id: str = "b") -> set[str]:
    return set(harness.broker.unfinished_members(id).ids)


def callback_jobs(harness: Harness, id: str = "b") -> set[str]:
    """The ids of the callbacks of this batch that have a record."""
    ids = [callback_id(id, kind) for kind in EVERY_KIND]
    return {one for one, record in zip(ids, harness.broker.records(ids), strict=True) if record is not None}


def end(harness: Harness, make: Callable[[Claim], Any], id: str = "", slot: str = "w1") -> None:
    """Claims until this job comes, settles it this way, and releases the others in their order."""
    others: list[Claim] = []
    while id and (claim := claim_one(harness, f"{slot}.{len(others)}")).id != id:
        others.append(claim)
    chosen = claim if id else claim_one(harness, slot)
    assert settle(harness, make(chosen)) is SettleResult.DONE
    harness.broker.deregister([f"{slot}.{number}" for number in reversed(range(len(others) + 1))])


def dead_raw(harness: Harness, id: str) -> bytes:
    [raw] = [raw for raw in raws_in(harness, "dead_letter") if id_of(raw) == id]
    return raw


def revive(harness: Harness, id: str) -> bool:
    raw = dead_raw(harness, id)
    batch = record_of(harness, id).batch
    revival = Revival(raw, id, encode(a_job(id, batch_id=batch or None)), JOB_QUEUE)
    [revived] = harness.broker.revive([revival])
    return revived.is_revived


def discard(harness: Harness, id: str) -> list[bool]:
    return harness.broker.discard([(id, dead_raw(harness, id))])
