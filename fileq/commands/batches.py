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
from datetime import UTC, datetime
from itertools import islice

from msgspec import Struct

from fileq.brokers.protocol import FullBroker
from fileq.brokers.types import EnqueueResult, Entry
from fileq.client.broker_transport import check_client_batch, find_batch, new_batch
from fileq.client.transport import BatchRequest
from fileq.commands.enqueue import Enqueuing
from fileq.config import Config
from fileq.core.batch import Batch, BatchState
from fileq.core.errors import BatchError, BrokerError, ConfigError, FileqError
from fileq.core.paging import pages
from fileq.files.manifest import ManifestEntry, read_manifest
from fileq.queries.documents import BatchDocument, batch_document, info_of, known_batch, unknown_batch


class BatchPlan(Struct, frozen=True):
    """A batch to create, or one to add to, whose options are those that it has."""

    request: BatchRequest
    is_new: bool

    @property
    def id(self) -> str:
        return self.request.id


def existing_batch(broker: FullBroker, id: str) -> BatchPlan | None:
    """The batch with this id, to add to it; None if there is none. BatchError if it no longer takes jobs."""
    try:
        [view] = broker.batches_by_id([id])
    except BrokerError as error:
        raise ConfigError(str(error)) from error
    if view is None:
        return None
    check_client_batch(id)
    _check_open(id, view)
    return BatchPlan(BatchRequest(id, view.name, priority=info_of(view.info).priority), is_new=False)


def _check_open(id: str, view: Batch | None) -> None:
    batch = known_batch(id, view)
    if batch.is_cancelled or batch.status != BatchState.OPEN:
        status = "cancelled" if batch.is_cancelled else batch.status
        raise BatchError(f"batch {id} is {status}; it no longer takes jobs")


def fill(broker: FullBroker, config: Config, plan: BatchPlan, entries: Sequence[Entry], enqueuing: Enqueuing) -> None:
    """Creates the batch, unless it exists, and enqueues its jobs. A new batch that can't be filled is cancelled."""
    if plan.is_new:
        broker.create_batch(new_batch(config, plan.request, datetime.now(UTC)))
    try:
        enqueuing.enqueue(entries)
        _check_taken(broker, plan.id, enqueuing)
    except BaseException:
        if plan.is_new:
            with suppress(FileqError):  # then it is cancelled after 24 hours
                broker.cancel_batch(plan.id)
        raise


def _check_taken(broker: FullBroker, id: str, enqueuing: Enqueuing) -> None:
    """BatchError if the batch was sealed or cancelled before all jobs were added."""
    if refused := sum(job.fate is EnqueueResult.REFUSED for job in enqueuing.jobs):
        _check_open(id, *broker.batches_by_id([id]))
        raise BatchError(f"batch {id} did not take {refused} of {len(enqueuing.jobs)} jobs; they are not enqueued")


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
