"""The slots of one worker process: each a state machine, their ids, and how to find those in a state or with a claim.
Never calls the broker. A transition that is not listed here is a defect and raises.

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

import os
import secrets
import socket
import time
from collections import Counter
from collections.abc import KeysView, Mapping
from typing import TypeAlias

from msgspec import Struct

from fileq import __version__
from fileq.brokers.local_processes import this_process
from fileq.brokers.types import OpenBreaker, WorkerInfo
from fileq.core.claim import Claim, ClaimKey
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


TYPES_MAX = 1000  # of a worker that the registry shows
# A reload makes new slots in the same process, whose start stays the same.
_PROCESS_STARTED_MS = time.time_ns() // 1_000_000


class Slots:
    """`by_id` finds a slot by its id, running() by the key of the claim that it runs. Both are O(1).
    Changes no state but by the transitions of Slot.

    There are `count` slots, and extra ones while jobs are claimed in advance. All are alike, except that operators are
    not shown the extra ones as slots."""

    def __init__(
        self,
        count: int,
        queues: tuple[str, ...],
        *,
        lease_ms: int = 0,
        types: tuple[str, ...] = (),
        globs: tuple[str, ...] = (),
    ) -> None:
        self.count = count
        self._queues = queues
        self._lease_ms = lease_ms
        self._types = types if len(types) <= TYPES_MAX else None
        self._globs = globs if len(globs) <= TYPES_MAX else None
        self._loaded_ms = time.time_ns() // 1_000_000
        self._host = socket.gethostname()
        self._settling: dict[Slot, None] = {}
        slots = (Slot(self._new_id(number), number, self._settling) for number in range(count))
        self._by_id = {slot.id: slot for slot in slots}
        self.by_id: Mapping[str, Slot] = self._by_id

    def _new_id(self, number: int) -> str:
        """host-pid-number-nonce. The nonce, because a restarted container may have the same host and pid, and must not
        inherit old claims."""
        return f"{self._host}-{os.getpid()}-{number}-{secrets.token_hex(4)}"

    def running(self, key: ClaimKey) -> tuple[Slot, Running] | None:
        """The slot that runs this claim; None if it was lost meanwhile."""
        slot = self._by_id.get(key.slot)
        if slot is not None:
            state = slot.state
            if type(state) is Running and state.claim.token == key.token:
                return slot, state
        return None

    @property
    def settling(self) -> KeysView[Slot]:
        """In the order in which their attempts ended."""
        return self._settling.keys()

    def free(self) -> list[Slot]:
        return [slot for slot in self._by_id.values() if type(slot.state) is Free]

    # extra slots

    @property
    def has_extra(self) -> bool:
        return len(self._by_id) > self.count

    def is_extra(self, slot: Slot) -> bool:
        return slot.number >= self.count

    def add_extra(self, count: int) -> list[Slot]:
        numbers = range(self.count, self.count + count)
        new = [Slot(self._new_id(number), number, self._settling) for number in numbers]
        self._by_id = self.by_id = self._by_id | {slot.id: slot for slot in new}
        return new

    def remove_extra(self) -> list[str]:
        """Removes the extra slots, if all of them are free. Returns their ids, which are never used again."""
        extra = [slot for slot in self._by_id.values() if self.is_extra(slot)]
        if not all(type(slot.state) is Free for slot in extra):
            return []
        for slot in extra:
            slot.leave()
        self._by_id = self.by_id = {id: slot for id, slot in self._by_id.items() if not self.is_extra(slot)}
        return [slot.id for slot in extra]

    # states

    @property
    def running_count(self) -> int:
        return sum(type(slot.state) is Running for slot in list(self._by_id.values()))

    def running_by_route(self) -> Counter[int]:
        return Counter(slot.state.route for slot in self._by_id.values() if isinstance(slot.state, Running))

    @property
    def is_idle(self) -> bool:
        return all(type(slot.state) is Free for slot in list(self._by_id.values()))

    def holdings(self) -> list[tuple[str, bytes]]:
        """Each slot's id with the raw job that it holds as far as this worker knows, or b""; for renewing."""
        return [
            (slot.id, slot.state.claim.raw if isinstance(slot.state, Waiting | Running | Settling) else b"")
            for slot in self._by_id.values()
        ]

    def replace(self, slot: Slot) -> Slot:
        """The slot is gone; a new one, with a new id, takes its position."""
        slot.leave()
        new = Slot(self._new_id(slot.number), slot.number, self._settling)
        # A new dictionary, because other threads read the old one.
        slots = [new if other is slot else other for other in self._by_id.values()]
        self._by_id = self.by_id = {other.id: other for other in slots}
        return new

    def info(
        self,
        breaker: str = "closed",
        breakers: tuple[OpenBreaker, ...] = (),
        *,
        is_claiming: bool = True,
        lost_roots: tuple[str, ...] = (),
        limits: tuple[str, ...] = (),
        is_extra: bool = False,
        is_first: bool = False,
        is_draining: bool = False,
    ) -> WorkerInfo:
        """`is_first` adds what the worker takes: one slot says them for all."""
        own = this_process()
        return WorkerInfo(
            host=self._host,
            pid=os.getpid(),
            started_ms=_PROCESS_STARTED_MS,
            version=__version__,
            queues=self._queues,
            breaker=breaker,
            breakers=breakers,
            is_claiming=is_claiming,
            lost_roots=lost_roots,
            lease_ms=self._lease_ms,
            limits=limits,
            loaded_ms=self._loaded_ms,
            is_extra=is_extra,
            types=self._types if is_first else None,
            globs=self._globs if is_first else None,
            boot_id=own.boot_id,
            namespaces=own.namespaces,
            pid_start=own.pid_start,
            count=self.count,
            is_draining=is_draining,
        )
