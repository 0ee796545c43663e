"""A job in a list of a client: what its handler sees, and where it stands."""

from __future__ import annotations

from typing import Any

import msgspec
from msgspec.structs import astuple

from fileq.client.job_filter import StoredJob
from fileq.client.transport import Transport
from fileq.core.job import State
from fileq.handlers.context import JobView, view_of
from fileq.handlers.registry import REGISTRY


class ListedJob(JobView[Any], frozen=True, dict=True):
    """`payload` has the type of its task if this process knows the task. `error` is that of its last attempt."""

    state: State
    queue: str
    attempts: int
    result: Any


def listed(stored: StoredJob, transport: Transport) -> ListedJob | None:
    """None for bytes that are not a job."""
    job, record = stored.job, stored.record
    if job is None:
        return None
    path = transport.local_path(job.path) if job.filepath else b""
    task = REGISTRY.task(job.type) if job.type is not None else None
    try:
        view = view_of(job, path, None, task.payload_decoder if task is not None else None)
    except (msgspec.DecodeError, ValueError):  # a job of another program
        view = view_of(job.but(payload=msgspec.UNSET), path)
    view = msgspec.structs.replace(view, error=stored.error or None)
    result = msgspec.json.decode(record.result) if record is not None and record.result else None
    count = record.attempt_count if record is not None else 0
    values = (*astuple(view), stored.state, stored.home, count, result)
    return ListedJob(*values)
