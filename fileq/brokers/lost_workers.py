"""Worker processes that died: a note of each, so that operators find them after a reaper has removed their slots.

For operators only; nothing is decided by it. Notes are documents of the catalog, one for each process, kept for an hour
and at most 100 of them. Several reapers may note the same process: the later note adds what it has found.

What a kill -9 leaves: a process without a note, or a note that lasts until the next one is written; readers leave out
notes that are too old.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated

from msgspec import Meta, Struct

from fileq.brokers.catalog import Catalog, Document, Table, is_name
from fileq.core.job import stamp

KEPT_MS = 3_600_000
NOTES_MAX = 100


class LostSlot(Struct, frozen=True):
    """A slot that a reaper has removed: for how long it had no heartbeat, at least, and how many jobs it had.
    `is_gone`: its process was found gone, and its heartbeat was not asked for."""

    slot: str
    silent_s: float
    jobs: int
    is_gone: bool = False


class LostWorker(Struct, frozen=True):
    """A worker process that died and that a reaper has removed."""

    host: str
    pid: int
    since: Annotated[str, Meta(description="no heartbeat since then, or earlier")]
    found: Annotated[str, Meta(description="when a reaper removed it")]
    slots: int
    jobs: Annotated[int, Meta(description="requeued, or dead")]
    is_gone: Annotated[bool, Meta(description="its process had ended by `since`")] = False


LOST_WORKERS = Table[LostWorker]("lost-workers", LostWorker)


def note_lost(catalog: Catalog, slots: Sequence[LostSlot], now_ms: int) -> None:
    """Notes the processes of these slots, and removes notes that are too old or too many."""
    processes: dict[tuple[str, int], list[LostSlot]] = {}
    for one in slots:
        name, _, digits = one.slot.rsplit("-", 2)[0].rpartition("-")
        if digits.isdecimal() and len(digits) < 12 and is_name(f"{name}-{digits}"):
            processes.setdefault((name, int(digits)), []).append(one)
    if not processes:
        return
    known = LOST_WORKERS.all(catalog)
    found, oldest = stamp(now_ms) or "", stamp(now_ms - KEPT_MS) or ""
    for (host, pid), some in processes.items():
        since = stamp(now_ms - round(max(one.silent_s for one in some) * 1000)) or ""
        is_gone = any(one.is_gone for one in some)
        made = LostWorker(host, pid, since, found, len(some), sum(one.jobs for one in some), is_gone)
        before = known.get(f"{host}-{pid}")
        if before is not None and before.found > oldest:
            counts = max(before.slots, made.slots), max(before.jobs, made.jobs)
            made = LostWorker(host, pid, min(before.since, since), found, *counts, is_gone or before.is_gone)
        known[f"{host}-{pid}"] = made
        LOST_WORKERS.put(catalog, f"{host}-{pid}", made)
    newest = sorted(known, key=lambda name: known[name].found, reverse=True)
    for place, name in enumerate(newest):
        if place >= NOTES_MAX or known[name].found <= oldest:
            LOST_WORKERS.remove(catalog, name)


def lost_workers_in(documents: Mapping[str, Document], now_ms: int) -> list[LostWorker]:
    """Those of the last hour, the newest first."""
    oldest = stamp(now_ms - KEPT_MS) or ""
    known = LOST_WORKERS.read(documents).values()
    return sorted((one for one in known if one.found > oldest), key=lambda one: one.found, reverse=True)
