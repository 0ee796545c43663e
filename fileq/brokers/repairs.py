"""What a broker promises to `fsck --repair`. The rules of protocol.py hold here too."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Protocol

from fileq.brokers.types import UnrecordedJob


class Repairer(Protocol):
    """Finds and repairs damage that no verb leaves: a key deleted by hand, a write that a failover lost.

    Atomicity: every repair checks again and changes in one step. What is no longer damaged stays unchanged.
    Repeat: False, and no change; the same for a second process that repairs at the same time.
    Kill -9: each job is still damaged or repaired."""

    def ids(self, size: int = 500) -> Iterator[list[str]]:
        """The ids of all records, page by page. Only reads.

        While other processes work, some may be missed or returned twice."""
        ...

    def lost(self, ids: Sequence[str]) -> list[bool]:
        """Whether the record says that the job waits, runs or is dead, and the job is not in that place. Only reads.

        Each answer is of one moment. False without a record, and for a queue that is not configured here."""
        ...

    def restore(self, ids: Sequence[str]) -> list[bool]:
        """Puts each lost job back where its record says; one that was running goes to the front of its queue.

        False for a job that is not lost. No counter changes."""
        ...

    def unrecorded(self, jobs: Sequence[UnrecordedJob]) -> list[bool]:
        """Whether the job is in that place and has no record. Only reads; each answer is of one moment."""
        ...

    def create_record(self, jobs: Sequence[UnrecordedJob]) -> list[bool]:
        """Creates the record of a job that has none, as if the job had been counted when it came in.

        False for a job that has a record or is no longer in that place. No counter changes."""
        ...

    def balance(self, drift: int, becomes: int = 0) -> bool:
        """Changes a counter so that a census whose drift is `drift` has the drift `becomes`.

        A positive difference counts as deleted, a negative one as adopted. False, and no change, unless the drift is
        exactly `drift` in this moment."""
        ...
