"""Whether a file that has vanished is one that fileq itself took away, after another job of the same version.

The same version can have several jobs: `fileq enqueue` always makes one. If the first of them to run completes and
`worker.after` moves or deletes the file, the others have nothing left to do, and that is no error. Only reads.
"""

from __future__ import annotations

from collections.abc import Sequence

from fileq.brokers.protocol import FullBroker
from fileq.brokers.types import LEDGER_DEPTH, LedgerEntry, Record
from fileq.core.claim import Claim
from fileq.core.job import State, decode_or_none


def were_processed(claims: Sequence[Claim], broker: FullBroker, *, takes_completed: bool) -> list[bool]:
    """For each claim: another job of its version was completed after this job had been enqueued, and its file was taken
    away. `takes_completed` is whether `worker.after` of this worker does that: the move itself is recorded a moment
    later than the end of the job."""
    records = broker.records([claim.id for claim in claims])
    entries = broker.lookup([claim.job.path if claim.job is not None else b"" for claim in claims])
    return [
        record is not None and _was_processed(record, entry, broker, takes_completed)
        for record, entry in zip(records, entries, strict=True)
    ]


def _was_processed(record: Record, entry: LedgerEntry | None, broker: FullBroker, takes_completed: bool) -> bool:
    """The ledger names the newest job of the version, and each record the jobs before it. So the jobs of one version
    that wait together are in one chain."""
    signature = _signature(record)
    newest = dict(entry.versions).get(signature or "") if entry is not None else None
    seen = {record.id}
    ids = {*record.after, *([newest] if newest is not None else [])} - seen
    for _ in range(LEDGER_DEPTH):
        if not ids:
            break
        seen |= ids
        others = [
            other for other in broker.records(sorted(ids)) if other is not None and _signature(other) == signature
        ]
        if any(_is_taken(other, record.created_ms, takes_completed) for other in others):
            return True
        ids = {id for other in others for id in other.after} - seen
    return False


def _is_taken(other: Record, since_ms: int, takes_completed: bool) -> bool:
    is_completed_since = other.state is State.COMPLETED and other.ended_ms >= since_ms
    return is_completed_since and (takes_completed or bool(other.moved_to))


def _signature(record: Record) -> str | None:
    job = decode_or_none(record.raw)
    return job.signature if job is not None else None
