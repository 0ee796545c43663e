"""Writes the file that says how a delivery ended into its directory, for the programs that sent it.

It is written under a private name, which no producer takes, and renamed. A kill -9 leaves the private file, or the old
marker, or the new one. The next look writes it again.
"""

from __future__ import annotations

import os
from typing import Any, Protocol

import msgspec

from fileq.brokers.batches import Batches, BatchView
from fileq.brokers.protocol import Inspector
from fileq.config.delivery_settings import FAILED_MARKER
from fileq.core.delivery import CHECK_TYPE
from fileq.core.job import decode_or_none, stamp
from fileq.files.exclusive_move import private_name

FAILED_MAX = 10_000  # files that a marker lists


class EndedBroker(Batches, Inspector, Protocol):
    """What is asked for the end of a delivery."""


def write_marker(directory: bytes, done_marker: str, view: BatchView, broker: EndedBroker) -> None:
    """Raises OSError if the directory can't be written to."""
    is_success = not (view.dead or view.cancelled or view.deleted)
    name = os.fsencode(done_marker if is_success else FAILED_MARKER)
    private = os.path.join(directory, private_name("marker"))
    with open(private, "wb") as file:
        file.write(msgspec.json.format(msgspec.json.encode(_content(view, broker)), indent=2) + b"\n")
        file.flush()
        os.fsync(file.fileno())
    os.replace(private, os.path.join(directory, name))
    remove_marker(directory, FAILED_MARKER if is_success else done_marker)


def remove_marker(directory: bytes, name: str) -> None:
    try:
        os.unlink(os.path.join(directory, os.fsencode(name)))
    except OSError:
        return  # it is not there, or it can't be removed; the new marker has another name


def remove_markers(directory: bytes, done_marker: str) -> None:
    """A new delivery begins: the markers of the one before would be read as its own."""
    if done_marker:
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
                path = job.payload_value["path"] if job.type == CHECK_TYPE else job.filepath
                found.append({"path": path, "job_id": record.id, "error": record.error})
        cursor = page.next_cursor
        if not cursor:
            break
    return sorted(found, key=lambda one: one["path"])[:FAILED_MAX]
