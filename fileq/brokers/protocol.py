"""What a broker promises: Broker moves jobs, Inspector serves operators, Repairer serves `fsck --repair`.

Every method takes and returns batches; one job is a batch of one. Every method can be repeated after a
lost reply without a second effect. Each promise below is about what others see and what a kill -9 leaves.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Protocol

from fileq.brokers.types import (
    CancelResult,
    Census,
    Enqueued,
    Entry,
    LedgerEntry,
    Overview,
    Promoted,
    Record,
    Renewal,
    Revival,
    Suspect,
    TurnReply,
    UnrecordedJob,
    WorkerInfo,
    WorkerView,
)
from fileq.core.finding import Finding
from fileq.core.settlement import Settlement, SettleResult


class Waiter(Protocol):
    """Wakes one pump when there may be work, without polling. One thread uses it."""

    def fileno(self) -> int:
        """Readable when an armed waiter has something to say; fit for select and epoll."""
        ...

    def arm(self, paused: frozenset[str] = frozenset()) -> float:
        """Watch every queue but the paused ones; the longest to wait, in seconds, before turning anyway.

        Moves nothing. May be called again at any time."""
        ...

    def wait(self, timeout_s: float) -> bool:
        """Block until there may be work (True) or the time is up (False)."""
        ...

    def close(self) -> None: ...


class Subscription(Protocol):
    """Events from the moment of subscribing, in the order of their transitions."""

    def get(self, timeout_s: float) -> bytes | None:
        """The next event's JSON, or None when the time is up."""
        ...

    def close(self) -> None: ...


class PendingReply(Protocol):
    """A turn that was begun. One thread uses it."""

    is_answered: bool  # there is nothing to wait for

    def take(self) -> TurnReply:
        """The answer, once; waits for it, and raises what turn() raises."""
        ...

    def drop(self) -> None:
        """Nobody will take the answer; what the broker made of the turn stands."""
        ...


class ReadyReply:
    """The turn of a broker that answers at once."""

    is_answered = True

    def __init__(self, answer: TurnReply) -> None:
        self._answer = answer

    def take(self) -> TurnReply:
        return self._answer

    def drop(self) -> None:
        pass


class Broker(Protocol):
    """The hot path. Safe to share between threads, but for the waiters it gives out."""

    kind: str
    where: str

    def enqueue(self, entries: Sequence[Entry], *, limit: int = 0) -> Enqueued:
        """Record, ledger, permit and queue of each entry in one atomic step.

        `limit` is the permits of one window (0: none needed); only versions the ledger does not know take
        one. A crash leaves an entry wholly enqueued or not at all; repeated, it is KNOWN or DUPLICATE."""
        ...

    def settle_and_claim(self, settlements: Sequence[Settlement], slots: Sequence[str]) -> TurnReply:
        """One turn of the pump in one round trip: settle what ended, then claim for these free slots.

        A settlement moves its job, its record, the counters and the processing list in one atomic step,
        and only if the slot still holds it. A claim moves a job, its heartbeat and its record in one; a
        slot that already holds a job is given that one again, a slot that is not registered nothing.
        A crash leaves each job in a queue, in a processing list, or settled."""
        ...

    def send_settle_and_claim(self, settlements: Sequence[Settlement], slots: Sequence[str]) -> PendingReply:
        """turn() in two steps, so that its caller can work while the broker does. What turn() promises holds from
        here on, whether or not the answer is ever taken."""
        ...

    def renew(self, holdings: Sequence[tuple[str, bytes]]) -> list[Renewal]:
        """Prolong each (slot, raw it believes to hold or b"") heartbeat, and say what it really holds."""
        ...

    def promote(self, limit: int = 500) -> Promoted:
        """Move due jobs to their queues, earliest first, each in one atomic step and by one caller only."""
        ...

    def suspects(self, *, sweep: bool = False) -> list[Suspect]:
        """Slots without a heartbeat; `sweep` also finds processing lists that have no registry entry."""
        ...

    def reap(self, slot: str, settlements: Sequence[Settlement]) -> tuple[SettleResult, ...]:
        """Settle for a slot that died, only while it has no heartbeat; its registry entry goes with its last job.

        However many reapers call it, each job moves once; FENCED tells the others. Both happen in one step."""
        ...

    def register(self, slots: Mapping[str, WorkerInfo]) -> None:
        """Make slots known, with a first heartbeat; again, to change what is said of them."""
        ...

    def deregister(self, slots: Sequence[str]) -> None:
        """Forget slots; what their lists still hold goes back to the front of its queue in the same step."""
        ...

    def waiter(self) -> Waiter: ...

    def subscribe(self) -> Subscription: ...

    def lookup(self, paths: Sequence[bytes]) -> list[LedgerEntry | None]:
        """What the ledger holds of these paths."""
        ...

    def ledger(self, under: bytes) -> Iterator[tuple[bytes, LedgerEntry]]:
        """Every entry whose path starts with `under`, in pages; entries that come or go meanwhile may be missed."""
        ...

    def update_ledger(self, changes: Sequence[tuple[bytes, LedgerEntry, LedgerEntry | None]]) -> list[bool]:
        """Replace entries (None: forget), each only if it still is what was read."""
        ...

    def close(self) -> None: ...


class Inspector(Protocol):
    """What operators need. Never on the hot path."""

    def census(self, *, sweep: bool = False) -> Census:
        """Every place and every counter in one consistent look, however long the queues are.

        `sweep` also finds processing lists that have no registry entry, which takes longer."""
        ...

    def overview(self, hours: int = 2) -> Overview:
        """The census, the front of each queue, the workers and the counters of the last hours, in two round trips at
        most. The census is one consistent look; the rest follows it closely."""
        ...

    def peek(self, place: str, limit: int) -> list[bytes]:
        """The next out of a queue or of `scheduled`; the newest of `dead_letter`, `completed` and `cancelled`."""
        ...

    def pages(self, place: str, size: int = 500) -> Iterator[list[bytes]]:
        """All elements of a place, oldest first, page by page; on a live system some may be missed or seen twice."""
        ...

    def records(self, ids: Sequence[str]) -> list[Record | None]: ...

    def workers(self) -> list[WorkerView]: ...

    def cancel(self, ids: Sequence[str]) -> list[CancelResult]:
        """A waiting job leaves its place in one atomic step; a running one's worker is told at its next renewal."""
        ...

    def revive(self, revivals: Sequence[Revival]) -> list[bool]:
        """Put dead elements back into their queues, each in one atomic step; False: it is not there any more."""
        ...

    def discard(self, elements: Sequence[tuple[str, bytes]]) -> int:
        """Delete dead (id, element) pairs with their records; how many were there."""
        ...

    def pause(self, queue: str) -> None: ...

    def resume(self, queue: str) -> None: ...

    def hourly(self, hours: int) -> dict[int, dict[str, int]]:
        """The counters of the last hours, by hour since the epoch."""
        ...


class Repairer(Protocol):
    """Finds and repairs what no verb leaves behind: a key deleted by hand, a write that a failover rewound.

    Every repair looks again and changes in one atomic step, so that what has come right meanwhile is left alone, a
    second mender finds nothing to do, and a kill -9 leaves the damage or the repair and nothing between."""

    def ids(self, size: int = 500) -> Iterator[list[str]]:
        """The ids of all records, page by page; on a live system some may be missed or seen twice."""
        ...

    def lost(self, ids: Sequence[str]) -> list[bool]:
        """Whether a job's record says that it waits, runs or is dead, and what it speaks of is not there; each in one
        consistent look. False where there is no record, or its queue is not one of this configuration."""
        ...

    def restore(self, ids: Sequence[str]) -> list[bool]:
        """Put a job that is astray back where its record says; one that nobody runs any more to the front of its queue.
        False: it is not astray (any more). No counter changes."""
        ...

    def unrecorded(self, strays: Sequence[UnrecordedJob]) -> list[bool]:
        """Whether an element lies there and has no record; each in one consistent look."""
        ...

    def create_record(self, strays: Sequence[UnrecordedJob]) -> list[bool]:
        """Make the record of an element that has none, as one that was accounted for; False: it has one, or it is gone.
        No counter changes."""
        ...

    def balance(self, drift: int, becomes: int = 0) -> bool:
        """Change a counter so that this drift becomes that: what can't be found counts as deleted, what is too much as
        adopted. False, and nothing changes, unless the drift is exactly what is said."""
        ...


class FullBroker(Broker, Inspector, Repairer, Protocol):
    """What open_broker returns."""

    def examine(self, *, permissions: bool = False) -> list[Finding]:
        """Checks the broker's surroundings (server settings, file system) for `fileq doctor` and for start-up warnings.

        `permissions` also tries whether every command the broker needs is allowed, which takes longer."""
        ...
