"""The limits of routes in the SQLite broker: which jobs hold a permit, and how many started in the current window.

Windows run on the monotonic clock, which no step of the wall clock changes. A window of an earlier boot has ended.
"""

from __future__ import annotations

from collections.abc import Sequence

from fileq.brokers.admission_types import Admission, AdmitRequest, AdmitResult
from fileq.brokers.clocks import FULL_WAIT_MS
from fileq.brokers.sqlite.unit_of_work import UnitOfWork


def admit(work: UnitOfWork, requests: Sequence[AdmitRequest]) -> list[Admission]:
    work.read_slots(request.slot for request in requests)
    for route in dict.fromkeys(request.route for request in requests):
        _remove_stale_holders(work, route)
    return [_admit(work, request) for request in requests]


def _remove_stale_holders(work: UnitOfWork, route: str) -> None:
    work.db.execute(
        "DELETE FROM holders WHERE route = ? AND NOT EXISTS "
        "(SELECT 1 FROM slots WHERE slots.slot = holders.slot AND slots.held = holders.raw)",
        (route,),
    )


def _admit(work: UnitOfWork, request: AdmitRequest) -> Admission:
    slot_row = work.slot(request.slot)
    if slot_row is None or slot_row.raw != request.raw:
        return Admission(AdmitResult.LOST, 1)
    # Every holder that is left holds what its slot holds, so one of this slot is this job.
    sql = "SELECT count(*), coalesce(sum(slot = ?), 0) FROM holders WHERE route = ?"
    count, is_holder = work.db.execute(sql, (request.slot, request.route)).fetchone()
    if is_holder:
        return Admission(AdmitResult.ADMITTED)
    if request.max_running_total and count >= request.max_running_total:
        return Admission(AdmitResult.FULL, FULL_WAIT_MS)
    if request.rate and (wait_ms := _start_in_window(work, request)):
        return Admission(AdmitResult.THROTTLED, wait_ms)
    work.db.execute("INSERT INTO holders VALUES (?, ?, ?)", (request.route, request.slot, request.raw))
    return Admission(AdmitResult.ADMITTED)


def _start_in_window(work: UnitOfWork, request: AdmitRequest) -> int:
    """Counts the job in the window of its route and returns 0; if the window is full, returns how long it lasts."""
    sql = "SELECT ends_ms, started FROM route_windows WHERE route = ? AND boot = ?"
    ends_ms, started = work.db.execute(sql, (request.route, work.boot)).fetchone() or (0, 0)
    now_ms = work.monotonic_ms
    if not now_ms < ends_ms <= now_ms + request.window_ms:
        ends_ms, started = now_ms + request.window_ms, 0
    if started >= request.rate:
        return int(ends_ms - now_ms)
    values = (request.route, work.boot, ends_ms, started + 1)
    work.db.execute("INSERT OR REPLACE INTO route_windows VALUES (?, ?, ?, ?)", values)
    return 0
