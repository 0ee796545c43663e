"""Writes the file that says how a delivery ended into its directory, for the programs that sent it.

The sender may write into this directory too. So the file is written under a private name that can't be foreseen and
did not exist before, below a descriptor of the directory, and renamed: no link, pipe or file that is there already is
opened. Producers never take a private name.

What a kill -9 leaves: the old marker, or the new one, and perhaps the private file. The delivery still counts as not
finished, so the next look writes the marker again.
"""

from __future__ import annotations

import os
import secrets
from contextlib import suppress
from typing import Any, Protocol

import msgspec

from fileq.brokers.batches import Batches, BatchView
from fileq.brokers.protocol import Inspector
from fileq.config.delivery_settings import FAILED_MARKER
from fileq.core.delivery import CHECK_TYPE, DeliveryCheck
from fileq.core.job import Job, decode_or_none, stamp
from fileq.files.exclusive_move import NEW_FILE, private_name

FAILED_MAX = 10_000  # files that a marker lists


class EndedBroker(Batches, Inspector, Protocol):
    """What is asked for the end of a delivery."""


def write_marker(directory: int, done_marker: str, view: BatchView, broker: EndedBroker) -> None:
    """Writes into the open directory. Raises OSError if it can't be written to."""
    is_success = not (view.dead or view.cancelled or view.deleted)
    name = os.fsencode(done_marker if is_success else FAILED_MARKER)
    content = msgspec.json.format(msgspec.json.encode(_content(view, broker)), indent=2) + b"\n"
    private = private_name(f"marker{secrets.token_hex(12)}")
    try:
        with open(os.open(private, NEW_FILE, 0o666, dir_fd=directory), "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.rename(private, name, src_dir_fd=directory, dst_dir_fd=directory)
    except BaseException:
        with suppress(OSError):
            os.unlink(private, dir_fd=directory)
        raise
    remove_marker(directory, FAILED_MARKER if is_success else done_marker)


def remove_marker(directory: int, name: str) -> None:
    with suppress(OSError):  # it is not there, or it can't be removed; the new marker has another name
        os.unlink(os.fsencode(name), dir_fd=directory)


def remove_markers(directory: int, done_marker: str) -> None:
    """A new delivery begins: the markers of the one before would be read as its own."""
    remove_marker(directory, done_marker)
    remove_marker(directory, FAILED_MARKER)


def _content(view: BatchView, broker: EndedBroker) -> dict[str, Any]:
    counts = {name: getattr(view, name) for name in ("total", "completed", "dead", "cancelled", "deleted")}
    return {
        "batch_id": view.id,
        "directory": view.name,
        "finished_at": stamp(view.finished_ms),
        **counts,
        "failed": _failed(view.id, broker),
    }


def _failed(batch_id: str, broker: EndedBroker) -> list[dict[str, str]]:
    found: list[dict[str, str]] = []
    cursor = ""
    while len(found) < FAILED_MAX:
        page = broker.dead_members(batch_id, cursor)
        for record in broker.records(page.ids) if page.ids else []:
            job = decode_or_none(record.raw) if record is not None else None
            if record is not None and job is not None:
                found.append({"path": _path_of(job), "job_id": record.id, "error": record.error})
        cursor = page.next_cursor
        if not cursor:
            break
    return sorted(found, key=lambda one: one["path"])[:FAILED_MAX]


def _path_of(job: Job) -> str:
    """The file that the job is about; "" if it is about none. Clients may add any job to a batch."""
    if job.type != CHECK_TYPE:
        return job.filepath
    try:
        return msgspec.json.decode(job.payload or b"", type=DeliveryCheck).path
    except (msgspec.DecodeError, ValueError, RecursionError):
        return ""
