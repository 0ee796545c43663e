"""The memory broker's schedules: schedules.Schedules over a MemoryStore. Every call is one step under its lock."""

from __future__ import annotations

from msgspec.structs import replace

from fileq.brokers.catalog import check_name
from fileq.brokers.memory.queues import add, batch_to_join, cancel, existing_job, has_record
from fileq.brokers.memory.store import MemoryStore
from fileq.brokers.schedules import Fire, FireResult, Overlap, ScheduleState, check_fire, defined
from fileq.brokers.types import entry_of


class MemorySchedules:
    _store: MemoryStore

    def schedules(self) -> dict[str, ScheduleState]:
        with self._store.lock:
            return dict(self._store.schedule_states)

    def define_schedule(self, name: str, revision: str, next_ms: int) -> ScheduleState:
        check_name("schedule", name)
        with self._store.lock:
            state = self._store.schedule_states.get(name) or ScheduleState("", 0)
            if state.revision != revision or name not in self._store.schedule_states:
                state = self._store.schedule_states[name] = defined(state, revision, next_ms)
            return state

    def remove_schedule(self, name: str) -> bool:
        with self._store.lock:
            return self._store.schedule_states.pop(name, None) is not None

    def pause_schedule(self, name: str) -> bool:
        with self._store.lock:
            state = self._store.schedule_states.get(name)
            if state is None:
                return False
            self._store.schedule_states[name] = replace(state, is_paused=True)
            return True

    def resume_schedule(self, name: str, next_ms: int) -> bool:
        with self._store.lock:
            state = self._store.schedule_states.get(name)
            if state is None or not state.is_paused:
                return False
            self._store.schedule_states[name] = replace(state, is_paused=False, next_ms=next_ms)
            return True

    def fire(self, fire: Fire) -> FireResult:
        store = self._store
        check_fire(fire, store.queue_names)
        with store.lock:
            now_ms = store.begin()
            state = store.schedule_states.get(fire.name)
            if state is None or state.is_paused or (state.revision, state.next_ms) != (fire.revision, fire.slot_ms):
                return FireResult.STALE
            last = store.records.get(state.last_job_id)
            unfinished_id = state.last_job_id if last is not None and last.state.is_unfinished else ""
            result = self._enqueue(fire, unfinished_id, now_ms)
            has_job = fire.entry is not None and result in (FireResult.FIRED, FireResult.DUPLICATE)
            store.schedule_states[fire.name] = replace(
                state,
                next_ms=fire.next_ms,
                last_ms=fire.last_ms or fire.slot_ms,
                last_job_id=fire.entry.job.id if fire.entry is not None and has_job else state.last_job_id,
                runs=state.runs + (result is FireResult.FIRED),
                missed=state.missed + fire.missed + (result is FireResult.SKIPPED),
            )
            return result

    def _enqueue(self, fire: Fire, unfinished_id: str, now_ms: int) -> FireResult:
        """Enqueues the job of a slot. `unfinished_id` is the last job, unless it has ended."""
        store = self._store
        if fire.entry is None:
            return FireResult.PASSED
        entry = entry_of(fire.entry)
        if has_record(store, entry):
            return FireResult.DUPLICATE
        if unfinished_id and fire.overlap is Overlap.SKIP:
            return FireResult.SKIPPED
        if unfinished_id and fire.overlap is Overlap.CANCEL:
            cancel(store, [unfinished_id], {unfinished_id: fire.cancel_follow_ups}, now_ms)
        if existing := existing_job(store, entry):  # now that the last job may have ended
            return FireResult.DUPLICATE if existing == entry.job.id else FireResult.SKIPPED
        waits_for = unfinished_id if fire.overlap in (Overlap.QUEUE, Overlap.CANCEL) else ""
        add(store, entry, now_ms, waits_for=waits_for, batch=batch_to_join(store, entry))
        return FireResult.FIRED
