"""How a job comes in: record, ledger, unique key, batch, queue and counters, in the caller's unit of work."""

from __future__ import annotations

from collections.abc import Sequence

from fileq.brokers import wire_events
from fileq.brokers.rules.rows import MemberState, RecordRow
from fileq.brokers.rules.unit_of_work import UnitOfWork
from fileq.brokers.types import FOLLOW_UPS_KEPT, RATE_WINDOW_MS, EnqueueResult, Entry, entry_of
from fileq.core.batch import Batch, add_member
from fileq.core.job import ENDED_STATES, State, encode
from fileq.core.outcome import FollowUp
from fileq.core.own_jobs import is_own_batch, origin_of


def enqueue(work: UnitOfWork, entry: Entry, window: RateWindow) -> tuple[EnqueueResult, str]:
    """The result, and the job that is there already if it is DUPLICATE."""
    version = None if entry.always else entry.version
    if existing := existing_job(work, entry):
        return EnqueueResult.DUPLICATE, existing
    if version is not None:
        known = work.ledger.get(version.path)
        if known is not None and known.knows(version.signature):
            return EnqueueResult.KNOWN, ""
    batch = batch_to_join(work, entry) if entry.joins else None
    if entry.joins and batch is None:
        return EnqueueResult.REFUSED, ""
    if version is not None and not window.take():
        return EnqueueResult.THROTTLED, ""
    add(work, entry, batch=batch)
    return EnqueueResult.ENQUEUED, ""


def existing_job(work: UnitOfWork, entry: Entry) -> str:
    """The id of the job because of which this one is a duplicate; empty if it is none."""
    job = entry.job
    return job.id if has_record(work, entry) else key_holder(work, job.unique_key)


def has_record(work: UnitOfWork, entry: Entry) -> bool:
    """Whether a record keeps this job out. One without an origin is not that of a job of fileq's own: another program
    has used its id, and add() replaces it."""
    record = work.records.get(entry.job.id)
    return record is not None and (not entry.is_own or bool(record.facts.origin))


def key_holder(work: UnitOfWork, key: str | None) -> str:
    """The id of the unfinished job that has this unique key; empty if there is none."""
    if key is None:
        return ""
    id = work.find_key(key)
    return id if id and is_holder(work.records.get(id), key) else ""


def is_holder(record: RecordRow | None, key: str) -> bool:
    return record is not None and record.facts.unique_key == key and State(record.state).is_unfinished


def take_key(work: UnitOfWork, record: RecordRow, key: str | None) -> None:
    if key is not None:
        record.change_facts(unique_key=key)
        work.put_key(key, record.id)


def batch_to_join(work: UnitOfWork, entry: Entry, follows: RecordRow | None = None) -> Batch | None:
    """The batch that the job of this entry becomes a member of; None if it takes no jobs. `follows` is the record of
    the job that this one follows: an unfinished member also adds jobs to a sealed batch, and no other job adds any to
    the batch of a delivery."""
    batch = work.batches.get(entry.job.batch_id or "") if entry.joins else None
    is_open_to_it = entry.fills_delivery or not is_own_batch(entry.job.batch_id)
    if batch is None or (batch.is_takeable and is_open_to_it):
        return batch
    is_member = follows is not None and work.members.has(batch, follows.id, MemberState.UNFINISHED)
    return batch if is_member else None


def add(work: UnitOfWork, entry: Entry, *, waits_for: str = "", batch: Batch | None = None) -> None:
    """Enqueues a job that is no duplicate, as a member of this batch."""
    job, version = entry.job, entry.version
    foreign = work.replace_record(job.id) if entry.is_own else None
    record = work.record_for(job.id, entry.queue, encode(job))
    if foreign is not None:
        # Foreign from now on: the claim that meets a copy in a queue buries it, and counts it as adopted again.
        work.count("adopted", -foreign.queued)
    if entry.is_own:
        record.change_facts(origin=origin_of(job))
    if waits_for:
        record.change_facts(waits_for=waits_for)
    if batch is not None:
        record.batch = batch.id
        join_batch(work, batch, job.id)
    take_key(work, record, job.unique_key)
    if job.deadline is not None:
        record.change_facts(deadline_ms=job.deadline_ms)
        work.index_deadline(record)
    due_ms = max(entry.at_ms, work.now_ms + entry.delay_ms)
    if due_ms > work.now_ms:
        work.schedule(record, State.SCHEDULED, due_ms, work.now_ms if due_ms > entry.at_ms else 0)
    else:
        work.push(record, front=False)
    if version is not None:
        if (earlier := work.ledger.get(version.path)) is not None:
            same = earlier.job_of(version.signature)
            record.jobs_before = earlier.jobs_before(job.id, unfinished_before(work, same))
        work.learn(version, job.id)
    work.count("produced")
    work.publish(wire_events.created(job) if work.has_subscribers else b"")


def add_follow_ups(work: UnitOfWork, parent: RecordRow | None, follow_ups: Sequence[FollowUp]) -> None:
    """Enqueues the follow-ups that are no duplicates, and keeps their ids in the record of the job they follow."""
    if not follow_ups:
        return
    work.records.read(follow_up.job.id for follow_up in follow_ups)
    added = []
    for entry in map(entry_of, follow_ups):
        if not existing_job(work, entry):
            add(work, entry, batch=batch_to_join(work, entry, parent))
            added.append(entry.job.id)
    if parent is not None and added:
        parent.change_facts(follow_ups=(*parent.facts.follow_ups, *added)[-FOLLOW_UPS_KEPT:])


def join_batch(work: UnitOfWork, batch: Batch, id: str) -> None:
    """Makes a job an unfinished member, unless it still is one because its record was lost."""
    if work.members.put(batch, id, MemberState.UNFINISHED):
        add_member(work.change_batch(batch), work.now_ms)


def unfinished_before(work: UnitOfWork, id: str | None) -> list[str]:
    """The jobs that the record of this job names in `after` and that have not ended."""
    record = work.records.get(id) if id is not None else None
    if record is None or not record.after:
        return []
    work.records.read(record.jobs_before)
    found = [(id, work.records.get(id)) for id in record.jobs_before]
    return [id for id, other in found if other is not None and other.state not in ENDED_STATES]


class RateWindow:
    """The permits that one `enqueue` takes of the producers' shared rate limit: one window for all of them.

    It runs on the monotonic clock, which no step of the wall clock changes. A window begins with its first permit and
    ends by time alone, so a producer killed in between does not block the others."""

    def __init__(self, work: UnitOfWork, limit: int) -> None:
        self._work = work
        self._limit = limit  # 0: no permit is needed
        self.permits = 0  # taken by this call
        self._ends_ms, self._taken = work.rate_window()

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
            self._work.put_rate_window(self._ends_ms, self._taken)
