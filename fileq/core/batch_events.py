"""The events of batches. Built as those in events.py."""

from __future__ import annotations

from typing import ClassVar

from fileq.core.events import Event


class BatchEvent(Event, frozen=True):
    """`batch` is the name of a batch that has one."""

    batch_id: str
    batch: str | None


class BatchFinished(BatchEvent, frozen=True):
    """A batch is finished: it is sealed, and no member is unfinished. The counts are missing if the broker could not be
    asked. Logged by the worker that settled the last job; if a command or a reaper ended it, only published."""

    name = "batch.finished"
    published_as: ClassVar[str] = "batch:finished"

    total: int | None = None
    completed: int | None = None
    dead: int | None = None
    cancelled: int | None = None
    deleted: int | None = None


class BatchCancelled(BatchEvent, frozen=True):
    """A worker cancelled a batch, for this `reason`: nothing was added to it for 24 hours, or its parent is
    cancelled."""

    name = "batch.cancelled"
    level = "warning"

    reason: str


class BatchReconciled(BatchEvent, frozen=True):
    """So many members (`counted`) had ended without being counted, and are counted now: a worker of an older version
    ended them, or data of the broker was lost."""

    name = "batch.reconciled"
    level = "warning"

    counted: int
