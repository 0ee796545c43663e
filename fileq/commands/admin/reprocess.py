"""Enqueues known versions of files again: the newest of each path in the ledger.

A kill -9 leaves the batches before it enqueued and the others not. Repeated, the command leaves out files whose job
has not ended yet, so that what it enqueued a moment ago is not enqueued twice.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Iterator
from datetime import UTC, datetime

from msgspec import Struct

from fileq.brokers.protocol import FullBroker
from fileq.brokers.types import EnqueueResult, Entry, LedgerEntry
from fileq.commands.admin.dlq import path_matcher
from fileq.commands.admin.looking import read_signature
from fileq.config import Config
from fileq.core.job import State, Version, file_job
from fileq.producer.outbox import priority_chooser

_BATCH = 500
_SHOWN = 1000
_ENDED = (State.COMPLETED, State.DEAD, State.CANCELLED)


class Again(Struct, frozen=True):
    """`enqueued`, `missing` (no such file any more) or `unfinished` (its last job has not ended)."""

    filepath: str
    result: str
    job_id: str | None = None


class Reprocessed(Struct, frozen=True):
    enqueued: int
    missing: int
    unfinished: int
    is_dry_run: bool
    files: tuple[Again, ...]


Known = tuple[bytes, str, str]  # path, signature, job id


def reprocess(
    broker: FullBroker,
    config: Config,
    *,
    match: str | None = None,
    since_ms: int | None = None,
    is_dry_run: bool = False,
    here: Callable[[bytes], bytes] = lambda path: path,
) -> Reprocessed:
    """`since_ms` is about the time of modification; `here` says where a producer's path is on this machine."""
    counts = {"enqueued": 0, "missing": 0, "unfinished": 0}
    shown: list[Again] = []
    for batch in _batches(_wanted(broker, match, since_ms)):
        for again in _do(broker, config, batch, here, is_dry_run):
            counts[again.result] += 1
            if len(shown) < _SHOWN:
                shown.append(again)
    return Reprocessed(**counts, is_dry_run=is_dry_run, files=tuple(shown))


def _wanted(broker: FullBroker, match: str | None, since_ms: int | None) -> Iterator[Known]:
    matches = path_matcher(match) if match is not None else None
    for path, entry in broker.ledger(b""):
        if entry.versions and (matches is None or matches(path)) and _is_since(entry, since_ms):
            signature, id = entry.versions[0]
            yield path, signature, id


def _is_since(entry: LedgerEntry, since_ms: int | None) -> bool:
    _, modified_ns = read_signature(entry.versions[0][0])
    return since_ms is None or (modified_ns is not None and modified_ns // 1_000_000 >= since_ms)


def _batches(wanted: Iterator[Known]) -> Iterator[list[Known]]:
    """A path that a page of the ledger brought twice is taken once; more is not promised of a ledger that changes."""
    batch: dict[bytes, Known] = {}
    for known in wanted:
        batch[known[0]] = known
        if len(batch) == _BATCH:
            yield list(batch.values())
            batch = {}
    if batch:
        yield list(batch.values())


def _do(
    broker: FullBroker, config: Config, batch: list[Known], here: Callable[[bytes], bytes], is_dry_run: bool
) -> Iterator[Again]:
    entries: list[Entry] = []
    records = broker.records([id for _, _, id in batch])
    for (path, signature, _), record in zip(batch, records, strict=True):
        shown = path.decode(errors="backslashreplace")
        size = _size_of(here(path))
        if record is not None and record.state not in _ENDED:
            yield Again(shown, "unfinished", record.id)
        elif size is None:
            yield Again(shown, "missing")
        else:
            entries.append(_entry(config, path, signature, size))
    if not entries:
        return
    fates = [EnqueueResult.ENQUEUED] * len(entries) if is_dry_run else broker.enqueue(entries).results
    for entry, fate in zip(entries, fates, strict=True):
        assert fate is EnqueueResult.ENQUEUED, fate  # new ids, and whatever the ledger says
        yield Again(entry.job.filepath, "enqueued", None if is_dry_run else entry.job.id)


def _size_of(path: bytes) -> int | None:
    """The file's size, or None where there is no regular file."""
    try:
        status = os.stat(path)
    except (OSError, ValueError):
        return None
    return status.st_size if stat.S_ISREG(status.st_mode) else None


def _entry(config: Config, path: bytes, signature: str, size: int) -> Entry:
    queue = priority_chooser(config)(path)
    job = file_job(path, size=size, priority=queue, now=datetime.now(UTC), signature=signature)
    return Entry(job, queue, Version(path, signature), always=True)
