"""The events of batches and of deliveries. Built as those in events.py."""

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


class DeliveryEvent(Event, frozen=True):
    directory: str
    batch_id: str


class DeliveryOpened(DeliveryEvent, frozen=True):
    """The first file of a delivery, or its marker or manifest, was found: its files are members of this batch."""

    name = "delivery.opened"


class DeliverySealed(DeliveryEvent, frozen=True):
    """A delivery takes no more files. `problems` are the files that are missing or have another checksum than the
    manifest says; with `is_incomplete` its deadline passed first."""

    name = "delivery.sealed"

    files: int
    problems: int
    is_incomplete: bool


class DeliveryFinished(DeliveryEvent, frozen=True):
    """All jobs of a delivery have ended. `failed`: how many were not completed."""

    name = "delivery.finished"

    total: int
    failed: int


class DeliveryUnreadable(DeliveryEvent, frozen=True):
    """The manifest of a delivery, or its directory, can't be read. Reported once; it is read again until the
    deadline."""

    name = "delivery.unreadable"
    level = "warning"

    error: str


class DeliveryFailed(DeliveryEvent, frozen=True):
    """A producer could not go on with a delivery because of an error that only this delivery causes. Reported once; it
    is tried again, and the other deliveries go on."""

    name = "delivery.failed"
    level = "error"
    hidden = ("exception",)

    error: str
    exception: BaseException
