"""The attempts that can't be decided before the broker was read: those of files that have changed or vanished.

Holds slots and reads their claims; the pump reads the broker, and Attempts decides.
"""

from __future__ import annotations

from fileq.core.claim import Claim
from fileq.core.outcome import Changed
from fileq.worker.slot import Running, Slot


class Undecided:
    """`changed`: the ledger is still to be read. `vanished`: the records of earlier jobs are still to be read."""

    def __init__(self) -> None:
        self.changed: list[Slot] = []
        self.vanished: list[Slot] = []

    def __bool__(self) -> bool:
        return bool(self.changed or self.vanished)

    def changed_paths(self) -> list[bytes]:
        """The files that changed since they were enqueued; Attempts.decide_changed() needs their ledger entries."""
        jobs = [slot.state.claim.job for slot in self.changed if isinstance(slot.state, Running)]
        return [job.path if job is not None else b"" for job in jobs]

    def vanished_claims(self) -> list[Claim]:
        """The jobs whose files have vanished; Attempts.decide_vanished() needs to know which of them were processed."""
        return [slot.state.claim for slot in self.vanished if isinstance(slot.state, Running)]

    def remove(self, slot: Slot, outcome: object) -> None:
        (self.changed if isinstance(outcome, Changed) else self.vanished).remove(slot)
