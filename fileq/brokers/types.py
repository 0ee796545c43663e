"""What goes into a broker and what comes out: plain frozen values, no behaviour but their making."""

from __future__ import annotations

import enum
from collections.abc import Iterable, Mapping, Sequence

from msgspec import Struct

from fileq.core.claim import Claim
from fileq.core.errors import BrokerError
from fileq.core.job import Job, State, Version
from fileq.core.settlement import SettleResult

LEDGER_DEPTH = 8  # versions remembered of one path
ATTEMPTS_KEPT = 20  # of one job's history
COUNTERS = ("produced", "adopted", "completed", "cancelled", "deleted")  # the sides of the conservation law


class Entry(Struct, frozen=True):
    """One job to enqueue. With a version it is enqueued only if the ledger does not know that version;
    `always` enqueues it whatever the ledger says. Due `delay_ms` from now, or at `at_ms`, whichever is set."""

    job: Job
    queue: str
    version: Version | None = None
    always: bool = False
    delay_ms: int = 0
    at_ms: int = 0


def check_queues(wanted: Iterable[str], known: Sequence[str]) -> None:
    """Nothing is enqueued where nobody would ever look for it."""
    for name in wanted:
        if name not in known:
            raise BrokerError(f"no queue is called {name!r}; there are {', '.join(known)}")


class EnqueueResult(enum.StrEnum):
    """What enqueue did with one entry."""

    ENQUEUED = "enqueued"
    KNOWN = "known"  # the ledger knows this version
    DUPLICATE = "duplicate"  # a job of this id still has a record
    THROTTLED = "throttled"  # no permit left in this window; try again after wait_ms


class Enqueued(Struct, frozen=True):
    fates: tuple[EnqueueResult, ...]
    permits: int = 0  # taken from the shared rate limit by this call
    wait_ms: int = 0  # until the window ends; 0 when nothing was throttled


class TurnReply(Struct, frozen=True):
    """The answer to one turn of the pump."""

    settled: tuple[SettleResult, ...] = ()
    claims: tuple[Claim, ...] = ()
    gone: tuple[str, ...] = ()  # slots that asked and are not registered (any more)
    paused: frozenset[str] = frozenset()


class LeaseStatus(enum.StrEnum):
    """What renew says of one slot."""

    HELD = "held"
    IDLE = "idle"  # holds nothing, and should not
    LOST = "lost"  # the job it believes to hold is no longer its own
    CANCEL = "cancel"  # still its own, and somebody wants it cancelled
    UNEXPECTED = "unexpected"  # holds a job it does not know of: run it when free
    GONE = "gone"  # the slot is not registered (any more)


class Renewal(Struct, frozen=True):
    slot: str
    hold: LeaseStatus
    claim: Claim | None = None  # with UNEXPECTED


class Promoted(Struct, frozen=True):
    count: int
    next_due_ms: int | None = None  # of the earliest job still waiting, by the broker's clock
    now_ms: int = 0


class Suspect(Struct, frozen=True):
    """A slot without a heartbeat, and what its processing list holds."""

    slot: str
    claims: tuple[Claim, ...] = ()


class WorkerInfo(Struct, frozen=True, omit_defaults=True):
    """What the registry says of a slot."""

    host: str
    pid: int
    started_ms: int
    version: str
    queues: tuple[str, ...]
    breaker: str = "closed"


class WorkerView(Struct, frozen=True):
    """A registered slot as an operator sees it."""

    slot: str
    info: WorkerInfo
    is_alive: bool
    raw: bytes = b""  # the job it is on
    since_ms: int = 0  # it is on it; 0 when idle, or when no record tells


class Attempt(Struct, frozen=True, omit_defaults=True):
    started_ms: int
    ended_ms: int
    worker: str
    outcome: str
    error: str = ""


class Record(Struct, frozen=True):
    """All that is known of one job."""

    id: str
    state: State
    raw: bytes
    queue: str
    worker: str = ""
    created_ms: int = 0
    started_ms: int = 0
    ended_ms: int = 0
    due_ms: int = 0
    error: str = ""
    result: bytes = b""
    attempts: tuple[Attempt, ...] = ()
    attempt_count: int = 0
    is_cancel_requested: bool = False
    queued: int = 0  # its elements in queues that were accounted for


class LedgerEntry(Struct, frozen=True):
    """What the ledger holds of one path: versions with their job ids, newest first; the device on which the file
    was last seen; and, once a producer has missed it there, since when."""

    versions: tuple[tuple[str, str], ...] = ()
    missing_since_ms: int = 0
    device: str = ""

    def knows(self, signature: str) -> bool:
        return any(known == signature for known, _ in self.versions)

    def with_version(self, version: Version, job_id: str) -> LedgerEntry:
        """The file is there: its newest version leads, and it is missing no longer."""
        others = tuple(v for v in self.versions if v[0] != version.signature)
        newest_first = ((version.signature, job_id), *others)[:LEDGER_DEPTH]
        return LedgerEntry(newest_first, device=version.device or self.device)


class Census(Struct, frozen=True):
    """Every place a job can be in and every counter, read in one consistent look."""

    pending: Mapping[str, int]
    scheduled: int  # delayed and retrying together
    running: int
    dead: int
    completed: int  # still listed; the counter counts them all
    cancelled: int
    heartbeats: int
    counters: Mapping[str, int]
    paused: frozenset[str] = frozenset()
    now_ms: int = 0

    @property
    def drift(self) -> int:
        """Jobs taken in minus jobs accounted for: positive when some are lost, negative when queues hold
        elements nobody enqueued here: pushed by another program and not claimed yet, or doubled."""
        count = self.counters.get
        taken_in = count("produced", 0) + count("adopted", 0)
        waiting = sum(self.pending.values()) + self.scheduled + self.running + self.dead
        return taken_in - waiting - count("completed", 0) - count("cancelled", 0) - count("deleted", 0)


class Overview(Struct, frozen=True):
    """What an operator wants to see first, however long the queues are."""

    census: Census
    fronts: Mapping[str, bytes]  # the next element out of each queue that has one
    workers: tuple[WorkerView, ...]
    hours: Mapping[int, Mapping[str, int]]  # the counters of the last hours, by hour since the epoch


class UnrecordedJob(Struct, frozen=True):
    """An element without a record: where it lies, and the record it should have. The place is a queue, `scheduled`,
    `dead_letter`, or `processing` for what the record's worker holds; there the record's bytes lie."""

    place: str
    record: Record


class Revival(Struct, frozen=True):
    """A dead element, exactly as it lies in the list, and the job it becomes."""

    raw: bytes
    id: str
    revived: bytes
    queue: str  # used when the record does not tell


class CancelResult(enum.StrEnum):
    """What cancel by id did."""

    CANCELLED = "cancelled"
    REQUESTED = "requested"  # it is running; its worker will be told
    ENDED = "ended"
    UNKNOWN = "unknown"


class Event(Struct, frozen=True):
    """One transition, as published on the events channel; the field order is the wire's."""

    event: str
    job_id: str
    type: str | None
    priority: str
    worker_id: str
    duration_ms: int
    error: str
    retry_count: int
