"""Enqueues the newest known version of each path in the ledger again.

The rule of repetition (bulk.py) for files:
- A file is taken if its last job has ended and was created before the action began, so at most once by one action,
  even if its new job ends meanwhile.
- Two actions at the same time share the files: the id of the new job follows from the id of the last one, so the broker
  enqueues it once and each file is counted by exactly one of them.
- A kill -9 leaves the batches before it enqueued and the others not. A repeat is a new action: it skips files whose job
  has not ended.
"""

from __future__ import annotations

import os
import stat
import sys
import uuid
from collections.abc import Callable, Iterable, Iterator
from datetime import UTC, datetime
from typing import Annotated

from msgspec import Struct
from msgspec.structs import replace

from fileq.brokers.protocol import FullBroker
from fileq.brokers.types import EnqueueResult, Entry, LedgerEntry, Record
from fileq.config import Config
from fileq.config.schema import priority_chooser
from fileq.core.documented import means
from fileq.core.job import Version, file_job, split_signature
from fileq.queries.job_filter import Conditions, JobFilter, file_place, stored_as
from fileq.queries.job_queries import read_signature

_BATCH = 500
_SHOWN = 1000
WOULD_ENQUEUE = "would_enqueue"
_NEXT = uuid.UUID("5b0f4d3e-7c1a-4e52-9a54-3c0c6f6b7d21")  # namespace of next_id()
Known = tuple[bytes, str, str]  # path, signature, job id
Entries = Iterable[tuple[bytes, LedgerEntry | None]]  # of the ledger


class ReprocessedFile(Struct, frozen=True):
    path: str
    result: Annotated[
        str,
        means(
            "enqueued (in a dry run would_enqueue), missing (the file no longer exists) or unfinished"
            " (its last job is unfinished)"
        ),
    ]
    job_id: str | None = None


class ReprocessReport(Struct, frozen=True):
    enqueued: Annotated[int, means("files that were enqueued again, or would be in a dry run")]
    missing: Annotated[int, means("files that no longer exist, skipped")]
    unfinished: Annotated[int, means("files whose last job is unfinished, skipped")]
    is_dry_run: bool
    files: Annotated[tuple[ReprocessedFile, ...], means("at most 1000")]


def reprocess(
    broker: FullBroker,
    config: Config,
    *,
    wanted: JobFilter,
    prefix: bytes = b"",
    path: bytes | None = None,
    is_dry_run: bool = False,
    on_entry: Callable[[], None] = lambda: None,
) -> ReprocessReport:
    """Path and times of the filter are about the file, its other conditions about the file's last job.

    Only files whose path in the ledger begins with `prefix`, or only the file `path`. `on_entry` is called for each
    entry of the ledger; what it raises ends the call."""
    cutoff_ms = broker.census().now_ms
    counts = {"enqueued": 0, "missing": 0, "unfinished": 0}
    shown: list[ReprocessedFile] = []
    left = sys.maxsize if wanted.limit is None else wanted.limit
    entries = broker.ledger(prefix) if path is None else zip([path], broker.lookup([path]), strict=True)
    for batch in _batches(_wanted(broker, entries, wanted, on_entry), min(_BATCH, left)):
        room = left - counts["enqueued"]
        if not room:
            break
        chosen = _with_records(broker, batch, wanted, cutoff_ms)
        for file in _enqueue(broker, config, chosen, is_dry_run, room):
            counts["enqueued" if file.result == WOULD_ENQUEUE else file.result] += 1
            if len(shown) < _SHOWN:
                shown.append(file)
    return ReprocessReport(**counts, is_dry_run=is_dry_run, files=tuple(shown))


def _wanted(broker: FullBroker, entries: Entries, wanted: JobFilter, on_entry: Callable[[], None]) -> Iterator[Known]:
    """The files whose path meets the conditions: the path in the ledger, or the one that a worker moved the file to."""
    conditions = Conditions(wanted)
    has_times = wanted.since_ms is not None or wanted.until_ms is not None
    # Only a pattern for whole paths is also compared with the new paths of moved files: that takes their records. With
    # a pattern for names, a moved file is found by its former name.
    is_whole_path = "/" in (wanted.match or "")
    others: list[Known] = []
    for path, entry in entries:
        on_entry()
        if entry is None or not entry.versions:
            continue
        signature, id = entry.versions[0]
        _, modified_ns = read_signature(signature)
        if has_times and (modified_ns is None or not conditions.meets_time(modified_ns // 1_000_000)):
            continue
        if conditions.meets_path(path):
            yield path, signature, id
        elif is_whole_path:
            others.append((path, signature, id))
            if len(others) == _BATCH:
                yield from _moved(broker, others, conditions)
                others = []
    yield from _moved(broker, others, conditions)


def _moved(broker: FullBroker, files: list[Known], conditions: Conditions) -> Iterator[Known]:
    """Those of the files that were moved to a path that meets the condition."""
    records = broker.records([id for _, _, id in files]) if files else []
    for known, record in zip(files, records, strict=True):
        if record is not None and conditions.meets_path(file_place(record)):
            yield known


def _with_records(
    broker: FullBroker, batch: list[Known], wanted: JobFilter, cutoff_ms: int
) -> list[tuple[Known, Record | None]]:
    """The files whose last job is not newer than the action and meets the conditions, with its record. A job whose
    record has expired meets no condition."""
    about_jobs = replace(wanted, match=None, since_ms=None, until_ms=None)
    conditions, has_conditions = Conditions(about_jobs), about_jobs.has_conditions or wanted.state is not None

    def meets(record: Record | None) -> bool:
        if record is None or not has_conditions:
            return not has_conditions and (record is None or record.created_ms <= cutoff_ms)
        is_wanted = record.created_ms <= cutoff_ms and wanted.state in (None, record.state)
        return is_wanted and conditions.meets(stored_as(record))

    records = broker.records([id for _, _, id in batch])
    return [(known, record) for known, record in zip(batch, records, strict=True) if meets(record)]


def _batches(wanted: Iterator[Known], size: int) -> Iterator[list[Known]]:
    """Each batch holds a path once. Pages of a changing ledger may repeat a path, also in a later batch."""
    batch: dict[bytes, Known] = {}
    for known in wanted:
        batch[known[0]] = known
        if len(batch) == size:
            yield list(batch.values())
            batch = {}
    if batch:
        yield list(batch.values())


def _enqueue(
    broker: FullBroker, config: Config, batch: list[tuple[Known, Record | None]], is_dry_run: bool, room: int
) -> Iterator[ReprocessedFile]:
    """Enqueues these files, at most `room` of them."""
    here = config.paths.here  # the paths are the producer's
    entries: list[Entry] = []
    for (path, signature, last_id), record in batch:
        if len(entries) == room:
            break
        shown = path.decode(errors="backslashreplace")
        size, where = _size_of(here(path)), path
        if size is None and record is not None and (place := file_place(record)):
            size, where = _size_of(here(place)), place
        if record is not None and record.state.is_unfinished:
            yield ReprocessedFile(shown, "unfinished", record.id)
        elif size is None:
            yield ReprocessedFile(shown, "missing")
        else:
            entries.append(_entry(config, path, signature, size, where, next_id(last_id)))
    if not entries:
        return
    fates = [EnqueueResult.ENQUEUED] * len(entries) if is_dry_run else broker.enqueue(entries).results
    for entry, fate in zip(entries, fates, strict=True):
        if is_dry_run:
            yield ReprocessedFile(entry.job.filepath, WOULD_ENQUEUE)
        else:  # DUPLICATE: another action was faster
            result = "enqueued" if fate is EnqueueResult.ENQUEUED else "unfinished"
            yield ReprocessedFile(entry.job.filepath, result, entry.job.id)


def _size_of(path: bytes) -> int | None:
    """The size of the file; None if it is not a regular file."""
    try:
        status = os.stat(path)
    except (OSError, ValueError):
        return None
    return status.st_size if stat.S_ISREG(status.st_mode) else None


def next_id(last_id: str) -> str:
    """The id of the job that processes a file again after this one: the same for every caller."""
    return str(uuid.uuid5(_NEXT, last_id))


def _entry(config: Config, path: bytes, signature: str, size: int, where: bytes, id: str) -> Entry:
    """`path` is the file's path in the ledger, `where` its path now, if a worker has moved it. The job has no inode:
    the file may have been restored or moved since it was recorded."""
    queue = priority_chooser(config)(path)
    short = split_signature(signature).short
    job = file_job(path, size=size, priority=queue, now=datetime.now(UTC), signature=short, id=id)
    return Entry(job.at(where), queue, Version(path, signature), always=True)
