"""Schedules: schedules.Schedules over a unit of work."""

from __future__ import annotations

from msgspec.structs import replace

from fileq.brokers.catalog import check_name
from fileq.brokers.rules.entries import add, batch_to_join, existing_job, has_record
from fileq.brokers.rules.settlements import cancel
from fileq.brokers.rules.unit_of_work import Store, UnitOfWork
from fileq.brokers.schedules import Fire, FireResult, Overlap, ScheduleState, check_fire, defined
from fileq.brokers.types import entry_of
from fileq.core.job import State


class ScheduleVerbs:
    store: Store

    def schedules(self) -> dict[str, ScheduleState]:
        with self.store.reading() as work:
            return work.schedule_states()

    def define_schedule(self, name: str, revision: str, next_ms: int) -> ScheduleState:
        check_name("schedule", name)
        with self.store.unit_of_work() as work:
            was = work.schedule_state(name)
            if was is not None and was.revision == revision:
                return was
            state = defined(was or ScheduleState("", 0), revision, next_ms)
            work.put_schedule_state(name, state)
            return state

    def remove_schedule(self, name: str) -> bool:
        with self.store.unit_of_work() as work:
            was = work.schedule_state(name)
            work.put_schedule_state(name, None)
            return was is not None

    def pause_schedule(self, name: str) -> bool:
        with self.store.unit_of_work() as work:
            state = work.schedule_state(name)
            if state is None:
                return False
            work.put_schedule_state(name, replace(state, is_paused=True))
            return True

    def resume_schedule(self, name: str, next_ms: int) -> bool:
        with self.store.unit_of_work() as work:
            state = work.schedule_state(name)
            if state is None or not state.is_paused:
                return False
            work.put_schedule_state(name, replace(state, is_paused=False, next_ms=next_ms))
            return True

    def fire(self, fire: Fire) -> FireResult:
        check_fire(fire, self.store.queue_names)
        with self.store.unit_of_work() as work:
            state = work.schedule_state(fire.name)
            if state is None or state.is_paused or (state.revision, state.next_ms) != (fire.revision, fire.slot_ms):
                return FireResult.STALE
            last = work.records.get(state.last_job_id)
            is_unfinished = last is not None and State(last.state).is_unfinished
            result = _enqueue(work, fire, state.last_job_id if is_unfinished else "")
            has_job = fire.entry is not None and result in (FireResult.FIRED, FireResult.DUPLICATE)
            changed = replace(
                state,
                next_ms=fire.next_ms,
                last_ms=fire.last_ms or fire.slot_ms,
                last_job_id=fire.entry.job.id if fire.entry is not None and has_job else state.last_job_id,
                runs=state.runs + (result is FireResult.FIRED),
                missed=state.missed + fire.missed + (result is FireResult.SKIPPED),
            )
            work.put_schedule_state(fire.name, changed)
            return result


def _enqueue(work: UnitOfWork, fire: Fire, unfinished_id: str) -> FireResult:
    """Enqueues the job of a slot. `unfinished_id` is the last job, unless it has ended."""
    if fire.entry is None:
        return FireResult.PASSED
    entry = entry_of(fire.entry)
    if has_record(work, entry):
        return FireResult.DUPLICATE
    if unfinished_id and fire.overlap is Overlap.SKIP:
        return FireResult.SKIPPED
    if unfinished_id and fire.overlap is Overlap.CANCEL:
        cancel(work, [unfinished_id], {unfinished_id: fire.cancel_follow_ups})
    if existing := existing_job(work, entry):  # now that the last job may have ended
        return FireResult.DUPLICATE if existing == entry.job.id else FireResult.SKIPPED
    waits_for = unfinished_id if fire.overlap in (Overlap.QUEUE, Overlap.CANCEL) else ""
    add(work, entry, waits_for=waits_for, batch=batch_to_join(work, entry))
    return FireResult.FIRED
