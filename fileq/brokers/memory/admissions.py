"""The limits of routes in the memory broker: which jobs hold a permit, and how many started in the current window."""

from __future__ import annotations

from fileq.brokers.admission_types import Admission, AdmitRequest, AdmitResult
from fileq.brokers.clocks import FULL_WAIT_MS
from fileq.brokers.memory.store import MemoryStore


def admit(store: MemoryStore, request: AdmitRequest, now_ms: int) -> Admission:
    """Answers one request. The caller must hold the lock."""
    if not _is_held(store, request.slot, request.raw):
        return Admission(AdmitResult.LOST, 1)
    holders = store.holders[request.route]
    for slot in [slot for slot, raw in holders.items() if not _is_held(store, slot, raw)]:
        del holders[slot]
    if holders.get(request.slot) == request.raw:
        return Admission(AdmitResult.ADMITTED)
    if request.max_running_total and len(holders) >= request.max_running_total:
        return Admission(AdmitResult.FULL, FULL_WAIT_MS)
    if request.rate and (wait_ms := _start_in_window(store, request, now_ms)):
        return Admission(AdmitResult.THROTTLED, wait_ms)
    holders[request.slot] = request.raw
    return Admission(AdmitResult.ADMITTED)


def _is_held(store: MemoryStore, slot: str, raw: bytes) -> bool:
    return raw in store.processing.get(slot, ())


def _start_in_window(store: MemoryStore, request: AdmitRequest, now_ms: int) -> int:
    """Counts the job in the window of its route and returns 0; if the window is full, returns how long it lasts."""
    ends_ms, started = store.route_windows.get(request.route, (0, 0))
    if not now_ms < ends_ms <= now_ms + request.window_ms:
        ends_ms, started = now_ms + request.window_ms, 0
    if started >= request.rate:
        return ends_ms - now_ms
    store.route_windows[request.route] = ends_ms, started + 1
    return 0
