"""Batches: creates one with its callbacks and the files of a manifest, and reports what became of one.

Everything is checked before the batch is created. What a kill -9 leaves: an open batch with the jobs that were enqueued
until then; it is cancelled after 24 hours.
"""

from __future__ import annotations

import hashlib
import os
import stat
from collections.abc import Sequence
from contextlib import suppress
from itertools import islice

from fileq.brokers.protocol import FullBroker
from fileq.brokers.types import EnqueueResult, Entry
from fileq.client.broker_transport import BrokerTransport, check_client_batch, find_batch
from fileq.client.transport import BatchRequest
from fileq.commands.enqueue import Enqueuing
from fileq.config import Config
from fileq.core.batch import BatchState
from fileq.core.errors import BatchError, BrokerError, ConfigError, FileqError
from fileq.core.paging import pages
from fileq.files.manifest import ManifestEntry, read_manifest
from fileq.queries.documents import BatchDocument, batch_document, unknown_batch


def open_batch(broker: FullBroker, id: str) -> BatchDocument | None:
    """The batch with this id, to add to it; None if there is none. BatchError if it no longer accepts jobs."""
    try:
        [view] = broker.batches_by_id([id])
    except BrokerError as error:
        raise ConfigError(str(error)) from error
    if view is None:
        return None
    check_client_batch(id)
    batch = batch_document(view)
    if batch.is_cancelled or batch.status != BatchState.OPEN:
        status = "cancelled" if batch.is_cancelled else batch.status
        raise BatchError(f"batch {id} is {status}; it no longer accepts jobs")
    return batch


def fill(
    broker: FullBroker,
    config: Config,
    batch: BatchRequest | BatchDocument,
    entries: Sequence[Entry],
    enqueuing: Enqueuing,
    *,
    seals: bool,
) -> None:
    """Creates the batch that is requested, or takes one that exists; enqueues its jobs, then `seals` it. A new batch
    that can't be filled is cancelled. BatchError if it was sealed or cancelled before all jobs were added."""
    if isinstance(batch, BatchRequest):
        BrokerTransport(broker, config).create_batch(batch)
    try:
        enqueuing.enqueue(entries)
        if refused := sum(job.fate is EnqueueResult.REFUSED for job in enqueuing.jobs):
            raise BatchError(f"batch {batch.id} no longer accepts jobs; {refused} of {len(entries)} were not enqueued")
    except BaseException:
        if isinstance(batch, BatchRequest):
            with suppress(FileqError):  # then it is cancelled after 24 hours
                broker.cancel_batch(batch.id)
        raise
    if seals:
        broker.seal_batch(batch.id)


def manifest_paths(file: str) -> list[str]:
    """The files of a manifest, each compared with the size and the checksum that it has there. ConfigError names every
    file that is missing or different. Relative paths are relative to the directory of the manifest."""
    try:
        with open(file, "rb") as stream:
            raw = stream.read()
    except OSError as error:
        raise ConfigError(f"--manifest is {file!r}; it can't be read: {error.strerror}") from error
    entries = read_manifest(raw, file)
    where = os.path.dirname(os.path.abspath(file))
    paths = [os.path.join(where, entry.path) for entry in entries]
    if problems := [text for entry, path in zip(entries, paths, strict=True) if (text := _difference(entry, path))]:
        raise ConfigError(problems)
    return paths


def _difference(entry: ManifestEntry, path: str) -> str:
    try:
        status = os.stat(path)
        size = status.st_size
        if not stat.S_ISREG(status.st_mode):
            return f"{entry.path!r} of the manifest is not a regular file"
        if entry.size is not None and size != entry.size:
            return f"{entry.path!r} has {size} bytes; the manifest says {entry.size}"
        if entry.sha256:
            # without waiting: it may be a pipe by now
            with open(path, "rb", opener=lambda path, flags: os.open(path, flags | os.O_NONBLOCK)) as stream:
                digest = hashlib.file_digest(stream, "sha256").hexdigest()
            if digest != entry.sha256:
                return f"{entry.path!r} has the sha256 {digest}; the manifest says {entry.sha256}"
    except OSError as error:
        return f"{entry.path!r} of the manifest can't be read: {error.strerror}"
    return ""


def list_batches(broker: FullBroker, limit: int, *, unfinished: bool) -> list[BatchDocument]:
    """The newest first."""
    found = pages(lambda cursor: broker.batch_page(cursor, min(100, limit), unfinished=unfinished))
    return list(islice((batch_document(view) for page in found for view in page.batches), limit))


def show_batch(broker: FullBroker, id: str) -> BatchDocument:
    """BatchError for an unknown id."""
    found = find_batch(broker, id)
    if found is None:
        raise unknown_batch(id)
    return found
