"""The SQLite broker's schedules: schedules.Schedules over a SqliteStore. Every change is one transaction."""

from __future__ import annotations

import sqlite3

from msgspec.structs import astuple, replace

from fileq.brokers.catalog import check_name
from fileq.brokers.schedules import Fire, FireResult, Overlap, ScheduleState, check_fire, defined
from fileq.brokers.sqlite.settlements import add, batch_to_join, cancel, existing_job, has_record
from fileq.brokers.sqlite.store import SqliteStore
from fileq.brokers.sqlite.unit_of_work import UnitOfWork
from fileq.brokers.types import entry_of
from fileq.core.job import State

_SELECT = f"SELECT {', '.join(ScheduleState.__struct_fields__)} FROM schedules WHERE name = ?"
_SELECT_ALL = f"SELECT name, {', '.join(ScheduleState.__struct_fields__)} FROM schedules ORDER BY name"


class SqliteSchedules:
    _store: SqliteStore

    def schedules(self) -> dict[str, ScheduleState]:
        with self._store.snapshot() as (db, _):
            return {name: _as_state(values) for name, *values in db.execute(_SELECT_ALL)}

    def define_schedule(self, name: str, revision: str, next_ms: int) -> ScheduleState:
        check_name("schedule", name)
        with self._store.unit_of_work() as work:
            was = _find(work.db, name)
            if was is not None and was.revision == revision:
                return was
            return _save(work, name, defined(was or ScheduleState("", 0), revision, next_ms))

    def remove_schedule(self, name: str) -> bool:
        with self._store.unit_of_work() as work:
            return work.db.execute("DELETE FROM schedules WHERE name = ?", (name,)).rowcount > 0

    def pause_schedule(self, name: str) -> bool:
        with self._store.unit_of_work() as work:
            return work.db.execute("UPDATE schedules SET is_paused = 1 WHERE name = ?", (name,)).rowcount > 0

    def resume_schedule(self, name: str, next_ms: int) -> bool:
        sql = "UPDATE schedules SET is_paused = 0, next_ms = ? WHERE name = ? AND is_paused"
        with self._store.unit_of_work() as work:
            return work.db.execute(sql, (next_ms, name)).rowcount > 0

    def fire(self, fire: Fire) -> FireResult:
        check_fire(fire, self._store.queue_names)
        with self._store.unit_of_work() as work:
            state = _find(work.db, fire.name)
            if state is None or state.is_paused or (state.revision, state.next_ms) != (fire.revision, fire.slot_ms):
                return FireResult.STALE
            last = work.record(state.last_job_id)
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
            _save(work, fire.name, changed)
            return result


def next_fire_ms(db: sqlite3.Connection) -> int | None:
    """The earliest slot of all schedules that are not paused."""
    found: int | None = db.execute("SELECT min(next_ms) FROM schedules WHERE NOT is_paused").fetchone()[0]
    return found


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


def _find(db: sqlite3.Connection, name: str) -> ScheduleState | None:
    found = db.execute(_SELECT, (name,)).fetchone()
    return _as_state(found) if found is not None else None


def _as_state(values: list[object] | tuple[object, ...]) -> ScheduleState:
    revision, next_ms, last_ms, last_job_id, is_paused, runs, missed = values
    return ScheduleState(revision, next_ms, last_ms, last_job_id, bool(is_paused), runs, missed)  # type: ignore[arg-type]


def _save(work: UnitOfWork, name: str, state: ScheduleState) -> ScheduleState:
    values = (name, *astuple(state))
    work.db.execute(f"INSERT OR REPLACE INTO schedules VALUES ({', '.join('?' * len(values))})", values)
    return state
