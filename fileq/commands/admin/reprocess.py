"""Enqueues the newest known version of each path in the ledger again.

A kill -9 leaves the batches before it enqueued and the others not. The command can be repeated: it skips files whose
job has not ended yet, so files that were enqueued a moment ago are not enqueued twice.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Iterator
from datetime import UTC, datetime

from msgspec import Struct

from fileq.brokers.protocol import FullBroker
from fileq.brokers.types import EnqueueResult, Entry, LedgerEntry, Record
from fileq.commands.admin.dlq import path_matcher
from fileq.commands.admin.formatting import plural
from fileq.commands.admin.queries import read_signature
from fileq.config import Config
from fileq.core.job import State, Version, decode_or_none, file_job
from fileq.core.text import printable
from fileq.producer.priority import priority_chooser

_BATCH = 500
_SHOWN = 1000
_ENDED = (State.COMPLETED, State.DEAD, State.CANCELLED)


class ReprocessedFile(Struct, frozen=True):
    """`enqueued`, `missing` (the file no longer exists) or `unfinished` (its last job has not ended)."""

    filepath: str
    result: str
    job_id: str | None = None


class ReprocessReport(Struct, frozen=True):
    enqueued: int
    missing: int
    unfinished: int
    is_dry_run: bool
    files: tuple[ReprocessedFile, ...]


Known = tuple[bytes, str, str]  # path, signature, job id


def reprocess(
    broker: FullBroker,
    config: Config,
    *,
    match: str | None = None,
    since_ms: int | None = None,
    is_dry_run: bool = False,
    here: Callable[[bytes], bytes] = lambda path: path,
) -> ReprocessReport:
    """`since_ms` is the earliest modification time; `here` maps a producer's path to a path on this machine."""
    counts = {"enqueued": 0, "missing": 0, "unfinished": 0}
    shown: list[ReprocessedFile] = []
    for batch in _batches(_wanted(broker, match, since_ms)):
        for file in _enqueue(broker, config, batch, here, is_dry_run):
            counts[file.result] += 1
            if len(shown) < _SHOWN:
                shown.append(file)
    return ReprocessReport(**counts, is_dry_run=is_dry_run, files=tuple(shown))


def render(report: ReprocessReport) -> list[str]:
    lines = [f"missing: {printable(file.filepath)}" for file in report.files if file.result == "missing"]
    would = "would be " if report.is_dry_run else ""
    skipped = f"; {plural(report.missing, 'file')} missing" if report.missing else ""
    skipped += f"; {plural(report.unfinished, 'file')} skipped, not finished yet" if report.unfinished else ""
    return [*lines, f"{plural(report.enqueued, 'file')} {would}enqueued again{skipped}"]


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
    """Each batch holds a path once. Pages of a changing ledger may repeat a path, also in a later batch."""
    batch: dict[bytes, Known] = {}
    for known in wanted:
        batch[known[0]] = known
        if len(batch) == _BATCH:
            yield list(batch.values())
            batch = {}
    if batch:
        yield list(batch.values())


def _enqueue(
    broker: FullBroker, config: Config, batch: list[Known], here: Callable[[bytes], bytes], is_dry_run: bool
) -> Iterator[ReprocessedFile]:
    entries: list[Entry] = []
    records = broker.records([id for _, _, id in batch])
    for (path, signature, _), record in zip(batch, records, strict=True):
        shown = path.decode(errors="backslashreplace")
        size, where = _size_of(here(path)), path
        if size is None and record is not None and (moved_to := _moved_to(record)):
            size, where = _size_of(here(moved_to)), moved_to
        if record is not None and record.state not in _ENDED:
            yield ReprocessedFile(shown, "unfinished", record.id)
        elif size is None:
            yield ReprocessedFile(shown, "missing")
        else:
            entries.append(_entry(config, path, signature, size, where))
    if not entries:
        return
    fates = [EnqueueResult.ENQUEUED] * len(entries) if is_dry_run else broker.enqueue(entries).results
    for entry, fate in zip(entries, fates, strict=True):
        assert fate is EnqueueResult.ENQUEUED, fate  # the ids are new, and `always` ignores the ledger
        yield ReprocessedFile(entry.job.filepath, "enqueued", None if is_dry_run else entry.job.id)


def _moved_to(record: Record) -> bytes:
    """Where the file was moved to: after this job, or before it, if this job was enqueued for the moved file."""
    job = decode_or_none(record.raw)
    return record.moved_to or (job.path if job is not None else b"")


def _size_of(path: bytes) -> int | None:
    """The size of the file; None if it is not a regular file."""
    try:
        status = os.stat(path)
    except (OSError, ValueError):
        return None
    return status.st_size if stat.S_ISREG(status.st_mode) else None


def _entry(config: Config, path: bytes, signature: str, size: int, where: bytes) -> Entry:
    """`path` is the file's path in the ledger, `where` its path now, if a worker has moved it."""
    queue = priority_chooser(config)(path)
    job = file_job(where, size=size, priority=queue, now=datetime.now(UTC), signature=signature)
    return Entry(job, queue, Version(path, signature), always=True)
