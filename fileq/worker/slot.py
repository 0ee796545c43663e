"""One slot of a worker process, as a state machine. A transition that is not listed here is a defect and raises.

    Free     → Running     the executor runs the job of a claim
    Free     → Waiting     the claim was made in advance
    Waiting  → Running     the executor has room for it
    Waiting  → Settling    the job was refused, deferred, released or cancelled before it began
    Running  → Running     the file has changed, and the job runs again for the file's current version
    Running  → Settling    the attempt has ended
    Free     → Settling    a claim was refused, or released without running
    Settling → Free        the broker has answered, whether it accepted the settlement or not
    Running, Waiting → Free   the broker says that the slot no longer holds the job
    any      → Gone        the broker no longer knows the slot; a new Slot takes its position

A settlement is kept until the broker has answered, so after a lost reply it is sent again.

What a kill -9 leaves: nothing of this. In the broker the slot still holds its claim until a reaper gives the job back.
"""

from __future__ import annotations

from typing import TypeAlias

from msgspec import Struct

from fileq.core.claim import Claim
from fileq.core.outcome import Changed, Failed
from fileq.core.settlement import Settlement


class Free(Struct, frozen=True):
    """Holds no claim."""


class Running(Struct):
    """The executor has the task of this claim, or has returned it as `undecided`: its file has changed or vanished, and
    what the broker knows of the file is still to be read."""

    claim: Claim
    route: int
    started_s: float
    signature: str | None  # of the version that the handler was given, if it is known
    is_cancelling: bool = False
    undecided: Changed | Failed | None = None


class Waiting(Struct, frozen=True):
    """The claim was made in advance: nothing of the job has begun."""

    claim: Claim
    since_s: float


class Settling(Struct, frozen=True):
    """The outcome is decided; the broker has not answered yet. `processed` is the signature of the version that the
    settlement is about, if it is known. `route` is that of the attempt that has ended, if there was one."""

    settlement: Settlement
    processed: str | None
    route: int | None = None

    @property
    def claim(self) -> Claim:
        return self.settlement.claim


class Gone(Struct, frozen=True):
    """The broker no longer knows the slot. Its id is never used again."""


SlotState: TypeAlias = Free | Waiting | Running | Settling | Gone
FREE, GONE = Free(), Gone()
_MAY_RUN = (Free, Running, Waiting)


class SlotDefect(Exception):
    """A transition from a state that does not allow it."""


class Slot:
    """`settling` is shared by all slots of a worker: those that are Settling, in the order in which they became so.
    Only the transitions change it, together with the state."""

    __slots__ = ("_settling", "id", "number", "state")

    def __init__(self, id: str, number: int, settling: dict[Slot, None]) -> None:
        self.id = id
        self.number = number
        self.state: SlotState = FREE
        self._settling = settling

    def wait(self, claim: Claim, now_s: float) -> None:
        if type(self.state) is not Free:
            raise self._defect("wait")
        self.state = Waiting(claim, now_s)

    def run(self, running: Running) -> None:
        if type(self.state) not in _MAY_RUN:
            raise self._defect("run")
        self.state = running

    def settle(self, settlement: Settlement, processed: str | None, route: int | None = None) -> None:
        if type(self.state) not in _MAY_RUN:
            raise self._defect("settle")
        self.state = Settling(settlement, processed, route)
        self._settling[self] = None

    def finish(self) -> Settling:
        """Free again; returns what was settled."""
        settling = self.state
        if type(settling) is not Settling:
            raise self._defect("finish")
        self.state = FREE
        del self._settling[self]
        return settling

    def lose(self) -> None:
        if type(self.state) is not Running and type(self.state) is not Waiting:
            raise self._defect("lose")
        self.state = FREE

    def leave(self) -> None:
        if type(self.state) is Gone:
            raise self._defect("leave")
        self.state = GONE
        self._settling.pop(self, None)

    def _defect(self, transition: str) -> SlotDefect:
        return SlotDefect(f"slot {self.id} cannot {transition}: it is {type(self.state).__name__}")
