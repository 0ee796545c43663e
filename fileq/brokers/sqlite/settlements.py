"""How the SQLite broker settles a claim: job, record, slot, ledger and counters in one transaction.

Never decides: the settlement says where the job goes. A slot that no longer holds the job changes nothing.
"""

from __future__ import annotations

import sqlite3
from collections import defaultdict, deque
from collections.abc import Iterable, Mapping, Sequence

from fileq.brokers import wire_events
from fileq.brokers.batches import follow_up_of
from fileq.brokers.sqlite.rows import RecordRow, SlotRow, find_makers
from fileq.brokers.sqlite.unit_of_work import MemberState, UnitOfWork, join_batch, unfinished_before
from fileq.brokers.types import CLEAR_REACH, FOLLOW_UPS_KEPT, Attempt, CancelResult, Entry, entry_of, origin_of_entry
from fileq.core import batch as rules
from fileq.core.batch import Batch, BatchState, Callback, Ending
from fileq.core.job import Job, State, decode_or_none, encode
from fileq.core.outcome import FollowUp, Output
from fileq.core.own_jobs import is_own_batch
from fileq.core.settlement import Settlement, SettleResult, Verb, deferred_again

ENDINGS = {Verb.COMPLETE: Ending.COMPLETED, Verb.BURY: Ending.DEAD, Verb.CANCEL: Ending.CANCELLED}


def settle(work: UnitOfWork, s: Settlement) -> SettleResult:
    """Settles for a live slot. The fence is the job that the slot holds; its last token identifies a repeat."""
    slot_row = work.slot(s.claim.slot)
    if slot_row is not None and slot_row.settled_token == s.claim.token:
        return SettleResult.DONE_ALREADY
    # The older token rejects a late call about bytes that the slot settled and then claimed again.
    if slot_row is None or s.claim.token < (slot_row.settled_token or 0) or slot_row.raw != s.claim.raw:
        work.count("fenced")
        return SettleResult.FENCED
    _apply(work, s, slot_row)
    slot_row.settled_token = s.claim.token
    work.renew_heartbeat(slot_row)
    return SettleResult.DONE


def reap(work: UnitOfWork, slot_row: SlotRow, s: Settlement) -> SettleResult:
    """Settles for a dead slot: the first reaper moves the job, the others are FENCED."""
    if slot_row.raw != s.claim.raw:
        return SettleResult.FENCED
    _apply(work, s, slot_row)
    return SettleResult.DONE


def bury_overdue(work: UnitOfWork, s: Settlement) -> SettleResult:
    """Settles for a job that waits, as if a slot had claimed it now."""
    record = work.record(s.claim.id)
    if record is None or (record.raw, record.queue) != (s.claim.raw, s.claim.queue):
        return SettleResult.FENCED
    if not State(record.state).is_waiting:
        return SettleResult.FENCED
    found = work.db.execute("DELETE FROM deadlines WHERE id = ? RETURNING position", (record.id,)).fetchone()
    if found is not None and found[0] is not None:
        work.queued.locate_at(record.queue, record.raw, found[0])
    if not take_waiting(work, record):
        return SettleResult.FENCED
    record.started_ms, record.due_ms = work.now_ms, 0
    _end(work, s)
    return SettleResult.DONE


def _apply(work: UnitOfWork, s: Settlement, slot_row: SlotRow) -> None:
    work.change_slot(slot_row).raw = None
    _end(work, s)


def _end(work: UnitOfWork, s: Settlement) -> None:
    """Settles for a job that has left its place."""
    record = work.record(s.claim.id)
    if record is not None and not record.is_about(s.claim.raw):
        _bury_foreign(work, s)
        return
    record = None
    if s.claim.record_id is None and s.verb is Verb.RELEASE:
        work.push_undecodable(s.claim.queue, s.next_raw, front=True)
    else:
        record = work.record_for(s.claim.id, s.claim.queue, s.next_raw)
        if s.verb is not Verb.DEFER:
            facts = (s.outcome, s.error, s.traceback, s.output, s.duration_ms, record.deferred, s.verb is Verb.BURY)
            record.add_attempt(Attempt(record.started_ms, work.now_ms, s.claim.slot, *facts))
            record.error = s.error
        record.raw, record.slot, record.queue, record.deferred = s.next_raw, s.claim.slot, s.claim.queue, s.reason
        _move(work, s, record)
        _keep_order(work, s)
    _count(work, s)
    work.publish(wire_events.settled(s) if work.has_subscribers else b"")
    add_follow_ups(work, record, s.follow_ups)
    if record is not None and record.batch and (ending := ENDINGS.get(s.verb)) is not None:
        count_member(work, record.batch, record.id, ending, s.error)
    if s.verb in (Verb.COMPLETE, Verb.CANCEL):
        work.trim_ended(State.COMPLETED if s.verb is Verb.COMPLETE else State.CANCELLED)


def _bury_foreign(work: UnitOfWork, s: Settlement) -> None:
    """A job of fileq's own has come in under the id of this one while it ran, and has the record now."""
    work.bury_foreign(s.claim.slot, s.claim.queue, s.claim.raw, s.claim.id)
    _keep_order(work, s)
    work.publish(wire_events.settled(s) if work.has_subscribers else b"")
    add_follow_ups(work, None, s.follow_ups)


def _keep_order(work: UnitOfWork, s: Settlement) -> None:
    if s.order:
        order = (s.claim.id, s.claim.slot, work.now_ms, s.order)
        work.db.execute("INSERT OR REPLACE INTO orders VALUES (?, ?, ?, ?)", order)


def _move(work: UnitOfWork, s: Settlement, record: RecordRow) -> None:
    if s.verb is Verb.COMPLETE:
        record.result = s.result
        keep_outputs(work, record, s.outputs)
        work.end(record, State.COMPLETED)
        work.count("superseded", int(s.superseded))
        if s.leaves is not None:
            work.ledger.learn(s.leaves, record.id)
    elif s.verb is Verb.RETRY:
        work.schedule(record, State.RETRYING, work.now_ms + s.delay_ms, work.now_ms)
    elif s.verb is Verb.DEFER:
        record.deferred_count += 1
        deferrals_ms = deferred_again(record.facts.deferrals_ms, record.deferred_count, work.now_ms)
        record.change_facts(deferrals_ms=deferrals_ms)
        work.schedule(record, State.RETRYING, work.now_ms + s.delay_ms, work.now_ms)
    elif s.verb is Verb.BURY:
        record.change_facts(fingerprint=s.fingerprint)
        work.bury(record)
    elif s.verb is Verb.RELEASE:
        work.push(record, front=True)
    else:
        work.end(record, State.CANCELLED)


def _count(work: UnitOfWork, s: Settlement) -> None:
    if s.died:
        work.count("recovered")
    elif s.verb is Verb.RELEASE:
        work.count("released")
    elif s.is_failure:
        work.count("failed")
        work.count("retried", int(s.verb is Verb.RETRY))
    if s.kind:
        work.count(f"error:{s.kind}")


# How the SQLite broker takes in one job, in the caller's transaction: record, ledger, unique key, queue, counters.


def existing_job(work: UnitOfWork, entry: Entry) -> str:
    """The id of the job because of which this one is a duplicate; empty if it is none."""
    job = entry.job
    return job.id if has_record(work, entry) else key_holder(work, job.unique_key)


def has_record(work: UnitOfWork, entry: Entry) -> bool:
    """Whether a record keeps this job out. One without an origin is not that of a job of fileq's own: another program
    has used its id, and add() replaces it."""
    record = work.record(entry.job.id)
    return record is not None and (not entry.is_own or bool(record.facts.origin))


def key_holder(work: UnitOfWork, key: str | None) -> str:
    """The id of the unfinished job that has this unique key; empty if there is none."""
    if key is None:
        return ""
    found = work.db.execute("SELECT id FROM unique_keys WHERE key = ?", (key,)).fetchone()
    return found[0] if found is not None and is_holder(work.record(found[0]), key) else ""


def is_holder(record: RecordRow | None, key: str) -> bool:
    return record is not None and record.facts.unique_key == key and State(record.state).is_unfinished


def take_key(work: UnitOfWork, record: RecordRow, key: str | None) -> None:
    if key is not None:
        record.change_facts(unique_key=key)
        work.db.execute("INSERT OR REPLACE INTO unique_keys VALUES (?, ?)", (key, record.id))


def batch_to_join(work: UnitOfWork, entry: Entry, follows: RecordRow | None = None) -> Batch | None:
    """The batch that the job of this entry becomes a member of; None if it takes no jobs. `follows` is the record of
    the job that this one follows: an unfinished member also adds jobs to a sealed batch, and no other job adds any to
    the batch of a delivery."""
    batch = work.batches.find(entry.job.batch_id or "") if entry.joins else None
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
        record.change_facts(origin=origin_of_entry(entry))
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
        if (earlier := work.ledger.entry(version.path)) is not None:
            same = earlier.job_of(version.signature)
            record.jobs_before = earlier.jobs_before(job.id, unfinished_before(work, same))
        work.ledger.learn(version, job.id)
    work.count("produced")
    work.publish(wire_events.created(job) if work.has_subscribers else b"")


def add_follow_ups(work: UnitOfWork, parent: RecordRow | None, follow_ups: Sequence[FollowUp]) -> None:
    """Enqueues the follow-ups that are no duplicates, and keeps their ids in the record of the job they follow."""
    if not follow_ups:
        return
    work.read_records(follow_up.job.id for follow_up in follow_ups)
    added = []
    for entry in map(entry_of, follow_ups):
        if not existing_job(work, entry):
            add(work, entry, batch=batch_to_join(work, entry, parent))
            added.append(entry.job.id)
    if parent is not None and added:
        parent.change_facts(follow_ups=(*parent.facts.follow_ups, *added)[-FOLLOW_UPS_KEPT:])


# How the SQLite broker counts the members of a batch, in the caller's transaction: callbacks and parents included.
#
# The rules are in core/batch.py. A member is counted if it is marked as unfinished, so a job that ends a second time
# changes nothing. Follows the memory broker's module line by line.


def count_member(work: UnitOfWork, batch_id: str, id: str, ending: Ending, error: str) -> bool:
    """Counts a member that has ended, and finishes the batch if it was the last. False if it is counted already."""
    batch = work.batches.find(batch_id)
    if batch is None or not work.members.take(batch, id, MemberState.UNFINISHED):
        return False
    if ending is Ending.DEAD and not work.members.put(batch, id, MemberState.DEAD):
        ending = Ending.DELETED  # it was enqueued again after its record was lost, and is counted as dead already
    _fire(work, batch, rules.count_ending(work.batches.change(batch), ending, id, error))
    finish_if_done(work, batch)
    return True


def finish_if_done(work: UnitOfWork, batch: Batch) -> None:
    """Finishes a batch that is done: its callbacks first, then the same for its parent, of which it is a member."""
    was = batch.state
    due = rules.finish(batch, work.now_ms)
    if batch.state is was:
        return
    _fire(work, work.batches.change(batch), due)
    work.finished_batches.append(batch.id)
    work.publish(wire_events.batch_finished(batch) if work.has_subscribers else b"")
    parent = work.batches.find(batch.parent)
    if parent is not None and not batch.is_counted:
        _fire(work, parent, rules.count_child(work.batches.change(parent), batch))
        finish_if_done(work, parent)


def revive_member(work: UnitOfWork, batch_id: str, id: str) -> None:
    """A dead member waits again."""
    batch = work.batches.find(batch_id)
    if batch is None or not work.members.take(batch, id, MemberState.DEAD):
        return
    if not work.members.put(batch, id, MemberState.UNFINISHED):
        # It was enqueued again after its record was lost, and is counted as that job.
        rules.delete_dead(work.batches.change(batch))
        return
    parent = work.batches.find(batch.parent)
    rules.revive(work.batches.change(batch), work.batches.change(parent) if parent is not None else None)


def delete_member(work: UnitOfWork, batch_id: str, id: str) -> None:
    """A dead member is deleted."""
    batch = work.batches.find(batch_id)
    if batch is not None and work.members.take(batch, id, MemberState.DEAD):
        rules.delete_dead(work.batches.change(batch))


def _fire(work: UnitOfWork, batch: Batch, callbacks: Iterable[Callback]) -> None:
    """Enqueues callbacks of this batch as members of its parent, unless that has finished."""
    parent = work.batches.find(batch.parent)
    if parent is not None and parent.state is BatchState.FINISHED:
        parent = None
    for callback in callbacks:
        entry = entry_of(follow_up_of(callback))
        if not existing_job(work, entry):
            add(work, entry, batch=parent)


# The files that jobs made, by path. A row whose time is over counts as absent, even if it is not deleted yet.


_EXPIRED_AT_ONCE = 500


def keep_outputs(work: UnitOfWork, record: RecordRow, outputs: Sequence[Output]) -> None:
    """Keeps the outputs of a job that is completed."""
    if outputs:
        record.change_facts(outputs=tuple(outputs))
        expires_ms = work.now_ms + int(work.config.worker.history_ttl * 1000)
        rows = [(output.path, record.id, expires_ms) for output in outputs]
        work.db.executemany("INSERT OR REPLACE INTO made VALUES (?, ?, ?)", rows)
        forget_outputs(work)


def forget_outputs(work: UnitOfWork) -> None:
    """Deletes some of the rows whose time is over."""
    sql = "DELETE FROM made WHERE path IN (SELECT path FROM made WHERE expires_ms <= ? LIMIT ?)"
    work.db.execute(sql, (work.now_ms, _EXPIRED_AT_ONCE))


def makers(db: sqlite3.Connection, paths: Sequence[bytes], now_ms: int) -> list[str | None]:
    found = find_makers(db, paths, now_ms)
    return [found.get(path) for path in paths]


# How the SQLite broker takes jobs that wait from their places, and cancels them, in the caller's transaction.


_CANCELS = "cancels"  # a row beside the revisions of the kinds of documents


def count_cancel_request(work: UnitOfWork) -> None:
    sql = "INSERT INTO catalog_revisions VALUES (?, 1) ON CONFLICT DO UPDATE SET revision = revision + 1"
    work.db.execute(sql, (_CANCELS,))


def cancel_requests(db: sqlite3.Connection) -> int:
    found = db.execute("SELECT revision FROM catalog_revisions WHERE kind = ?", (_CANCELS,)).fetchone()
    return found[0] if found is not None else 0


def cancel(work: UnitOfWork, ids: Sequence[str], follow_ups: Mapping[str, Sequence[FollowUp]]) -> list[CancelResult]:
    """Cancels jobs that wait, and requests it of those that run. The list of cancelled jobs is trimmed at the end."""
    results = [_cancel(work, work.record(id), follow_ups.get(id, ())) for id in ids]
    if CancelResult.CANCELLED in results:
        work.trim_ended(State.CANCELLED)
    return results


def _cancel(work: UnitOfWork, record: RecordRow | None, follow_ups: Sequence[FollowUp]) -> CancelResult:
    if record is None:
        return CancelResult.UNKNOWN
    if record.state == State.RUNNING:
        if not record.is_cancel_requested:
            work.change_record(record).is_cancel_requested = True
            count_cancel_request(work)
        return CancelResult.REQUESTED
    if not take_waiting(work, record):
        return CancelResult.ENDED
    _end_withdrawn(work, work.change_record(record), follow_ups)
    return CancelResult.CANCELLED


def take_waiting(work: UnitOfWork, record: RecordRow) -> bool:
    """Removes a job that waits from its place; False if it is not there."""
    if record.state == State.PENDING and work.queued.remove_newest(record.queue, record.raw):
        record.queued -= 1
        return True
    return record.state in (State.SCHEDULED, State.RETRYING) and work.unschedule(record.raw)


def clear(
    work: UnitOfWork, queue: str, raws: Sequence[bytes], follow_ups: Mapping[str, Sequence[FollowUp]]
) -> list[bool]:
    """Cancels those of these jobs that are near the front of the queue, and says which."""
    positions: dict[bytes, deque[int]] = defaultdict(deque)
    for position, raw in work.queued.raws(queue, CLEAR_REACH):
        positions[raw].append(position)
    jobs = [decode_or_none(raw) if raw in positions else None for raw in raws]
    work.read_records(job.id for job in jobs if job is not None)
    taken: list[int] = []
    cleared = [False] * len(raws)
    for i, (raw, job) in enumerate(zip(raws, jobs, strict=True)):
        if job is None or not positions[raw] or (record := _withdrawn(work, queue, raw, job)) is None:
            continue
        taken.append(positions[raw].popleft())
        cleared[i] = True
        _end_withdrawn(work, record, follow_ups.get(job.id, ()))
    work.queued.remove_anywhere(queue, taken)
    if taken:
        work.trim_ended(State.CANCELLED)
    return cleared


def _withdrawn(work: UnitOfWork, queue: str, raw: bytes, job: Job) -> RecordRow | None:
    """The record of a job that leaves its queue; None for a copy of a job that is somewhere else."""
    found = work.record(job.id)
    if found is not None and State(found.state).is_unfinished and found.state != State.PENDING:
        return None
    if work.is_foreign(raw, job, State.PENDING):
        return None
    record = work.record_for(job.id, queue, raw)
    record.raw, record.queue = raw, queue
    if record.queued:
        record.queued -= 1
    else:
        work.count("adopted")
    return record


def _end_withdrawn(work: UnitOfWork, record: RecordRow, follow_ups: Sequence[FollowUp]) -> None:
    """Ends a job that has left its place as cancelled. The caller trims the list of cancelled jobs."""
    record.error, record.deferred = "cancelled", ""
    work.end(record, State.CANCELLED)
    work.publish(wire_events.cancelled(record.id, record.queue, record.raw) if work.has_subscribers else b"")
    add_follow_ups(work, record, follow_ups)
    if record.batch:
        count_member(work, record.batch, record.id, Ending.CANCELLED, record.error)
