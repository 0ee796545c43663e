"""The values that go into a broker and come out of it. Frozen, and without behaviour beyond small derivations.

Every broker takes and returns exactly these, and keeps to the limits and periods here. None of them holds a connection
or reads a clock.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable, Mapping, Sequence

from msgspec import Struct, field

from fileq.brokers.local_processes import ProcessId
from fileq.core.errors import BrokerError
from fileq.core.job import (
    MAX_DECODED_NESTING,
    MAX_NESTING,
    Buried,
    Claim,
    Job,
    State,
    Version,
    check_content,
    check_unique_key,
    is_same_version,
)
from fileq.core.outcome import FollowUp, Output
from fileq.core.own_jobs import check_batch, check_job
from fileq.core.settlement import SettleResult


class ScanInfo(Struct, frozen=True, omit_defaults=True):
    """A scan of the whole scan_dir that has ended."""

    began_ms: int
    ended_ms: int
    found: int  # files that include_globs and exclude_globs select
    is_complete: bool = True  # no error hid a file from it
    skipped: dict[str, int] = {}  # entries that it passed over, by SkipReason


class ProducerInfo(Struct, frozen=True, omit_defaults=True):
    """What a producer reports of itself. All times are the producer's clock. Stored as JSON: new fields go to the end
    and have a default."""

    host: str
    pid: int
    started_ms: int
    version: str
    roots: tuple[str, ...]  # the directories that it scans
    state: str = ""  # scanning, watching, held, lost or stuck
    problem: str = ""  # why a root cannot be scanned
    held_by: str = ""  # the setting that limits enqueueing at the moment
    held_since_ms: int = 0
    last_scan: ScanInfo | None = None
    enqueued: int = 0  # files since the start
    waiting: int = 0  # files that were found and are not enqueued yet
    # With `pid` these identify the process to others on its machine, see local_processes.py.
    boot_id: str = ""
    namespaces: str = ""
    pid_start: int = 0

    @property
    def process(self) -> ProcessId:
        return ProcessId(self.boot_id, self.namespaces, self.pid, self.pid_start)


class ProducerView(Struct, frozen=True):
    """One producer whose lease has not ended."""

    id: str
    info: ProducerInfo


LEDGER_DEPTH = 8  # versions the ledger keeps of one path
EARLIER_JOBS_MAX = 16  # jobs of its path that a record names
ATTEMPTS_KEPT = 20  # attempts a record keeps of one job
FOLLOW_UPS_KEPT = 200  # ids of follow-ups that a record keeps
CLEAR_MAX = 500  # jobs of one call of `clear`
SWEEP_PAGE = 500  # unique keys of one call of `sweep_unique`
CLEAR_REACH = 1000  # how far from the front of its queue `clear` finds a job

# Periods that are the same in all brokers.
HOUR_MS = 3_600_000  # the period of the hourly counters
RATE_WINDOW_MS = 1000  # the window of the producers' shared rate limit
FULL_WAIT_MS = 1000  # when a job of a full route asks again: no broker knows when a running job will end
STEP_TOLERANCE_MS = 1000  # clocks that differ by less count as equal
# When the index of deadlines is looked at again: for a job that runs, for one that overdue() has returned, and for any
# other at the latest, so that a job that has ended does not stay in the index until its deadline.
RUNNING_LOOK_MS = 1000
RETURNED_LOOK_MS = 10_000
LONGEST_LOOK_MS = HOUR_MS


class Entry(Struct, frozen=True):
    """One job to enqueue. With a `version` only if the ledger does not know that version; `always` skips this check.
    The job is due `delay_ms` after the call or at `at_ms`, the later of the two; with neither it is due at once."""

    job: Job
    queue: str
    version: Version | None = None
    always: bool = False
    delay_ms: int = 0
    at_ms: int = 0
    joins: bool = False  # the job becomes a member of the batch that its `batch_id` names
    is_own: bool = False  # fileq made the job, see core/own_jobs.py
    fills_delivery: bool = False  # a producer adds the job to the batch of a delivery, which takes none of others


def check_queues(wanted: Iterable[str], known: Sequence[str]) -> None:
    """Raises BrokerError for a queue that is not configured: no worker would claim from it."""
    for name in wanted:
        if name not in known:
            raise BrokerError(f"no queue is named {name!r}; known: {', '.join(known)}")


def check_entries(entries: Sequence[Entry | FollowUp], known: Sequence[str]) -> None:
    """Raises BrokerError for an unknown queue, and JobError for a job that no worker could read, that is too long or
    nested too deeply, whose unique key is wrong, or that only fileq itself may make."""
    check_queues((entry.queue for entry in entries), known)
    for entry in entries:
        if not entry.is_own:
            check_job(entry.job)
        # A handler may add jobs to the batch of its own job, whichever that is.
        if isinstance(entry, Entry) and entry.joins and not entry.fills_delivery:
            check_batch(entry.job.batch_id)
        # A job that fileq makes may hold a result in its payload, which has checked bounds of its own.
        check_content(entry.job, MAX_DECODED_NESTING - 1 if entry.is_own else MAX_NESTING)
        if entry.job.unique_key is not None:
            check_unique_key(entry.job)


def check_follow_ups(follow_ups: Iterable[Sequence[FollowUp]], known: Sequence[str]) -> None:
    """Raises as check_entries() does for a follow-up that can't be enqueued."""
    for some in follow_ups:
        if some:
            check_entries(some, known)


def check_clear(queue: str, raws: Sequence[bytes], known: Sequence[str]) -> None:
    """Raises BrokerError for arguments of `clear` that are wrong."""
    check_queues([queue], known)
    if len(raws) > CLEAR_MAX:
        raise BrokerError(f"{len(raws)} jobs are too many for one call; clear at most {CLEAR_MAX}")


def entry_of(added: FollowUp) -> Entry:
    """The entry that enqueues this follow-up, also if the ledger knows its version."""
    due = added.delay_ms, added.at_ms
    return Entry(added.job, added.queue, added.version, True, *due, added.joins, added.is_own)


class EnqueueResult(enum.StrEnum):
    """What `enqueue` did with one entry."""

    ENQUEUED = "enqueued"
    KNOWN = "known"  # the ledger knows this version
    DUPLICATE = "duplicate"  # a job with this id still has a record, or an unfinished job has its unique key
    THROTTLED = "throttled"  # no permit is left in this window; try again after `wait_ms`
    REFUSED = "refused"  # it joins a batch that no longer accepts jobs, or that does not exist


class Enqueued(Struct, frozen=True):
    """The reply to `enqueue`."""

    results: tuple[EnqueueResult, ...]  # one for each entry, in their order
    permits: int = 0  # taken from the shared rate limit by this call
    wait_ms: int = 0  # until the rate limit's window ends; 0 if no entry was throttled
    existing: tuple[str, ...] = ()  # for each entry that is DUPLICATE the id of the job that is there; otherwise ""
    now_ms: int = 0  # the broker's time if an entry was enqueued, else 0; its record was created then


class TurnReply(Struct, frozen=True):
    """The reply to `settle_and_claim`."""

    settled: tuple[SettleResult, ...] = ()  # one for each settlement, in their order
    claims: tuple[Claim, ...] = ()
    gone: tuple[str, ...] = ()  # slots of the call that are not registered
    buried: tuple[Buried, ...] = ()  # if there are any, the slots without a claim should claim again at once
    finished_batches: tuple[str, ...] = ()  # ids of the batches that these settlements have finished


class LeaseStatus(enum.StrEnum):
    """What `renew` found for one slot."""

    HELD = "held"  # the slot holds the job it named
    IDLE = "idle"  # the slot holds no job, and named none
    LOST = "lost"  # the slot does not hold the job it named
    CANCEL = "cancel"  # the slot holds the job it named, and its cancellation was requested
    UNEXPECTED = "unexpected"  # the slot named no job and holds one: a reply was lost; run it
    GONE = "gone"  # the slot is not registered


class Renewal(Struct, frozen=True):
    """The reply to `renew` for one slot."""

    slot: str
    status: LeaseStatus
    claim: Claim | None = None  # set if the status is UNEXPECTED


class Promoted(Struct, frozen=True):
    """The reply to `promote`."""

    count: int
    next_due_ms: int | None = None  # due time of the earliest job still scheduled, on the broker's clock
    now_ms: int = 0  # the broker's clock
    next_fire_ms: int | None = None  # the earliest time of all schedules that are not paused
    is_watched: bool = False  # the next change of what this reply says is reported, see notifications.DueReports
    cancel_requests: int = 0  # how often cancellations of running jobs were requested so far
    next_deadline_ms: int | None = None  # when overdue() has something to look at


class Suspect(Struct, frozen=True):
    """A slot without a heartbeat, or whose process is gone, and the jobs it holds."""

    slot: str
    claims: tuple[Claim, ...] = ()
    is_gone: bool = False  # its process has ended; it may still have a heartbeat


class OpenBreaker(Struct, frozen=True, omit_defaults=True):
    """The breaker of a route that is not closed. `next_probe_ms` is the worker's clock; 0 if one job at a time is
    tried now. `deferred` is how many jobs that worker has deferred because of it."""

    route: str
    state: str
    error: str = ""
    failure_share: float = 0.0
    next_probe_ms: int = 0
    deferred: int = 0


class WorkerInfo(Struct, frozen=True, omit_defaults=True):
    """What the registry knows of the worker process behind a slot."""

    host: str
    pid: int
    started_ms: int
    version: str
    queues: tuple[str, ...]
    breaker: str = "closed"  # the worst state of all routes
    breakers: tuple[OpenBreaker, ...] = ()
    is_claiming: bool = True  # False while the breaker of every route is open
    lost_roots: tuple[str, ...] = ()  # why the files of some roots cannot be reached
    lease_ms: int = 0  # how long a heartbeat lasts; 0 from a worker that does not say
    limits: tuple[str, ...] = ()  # limits of routes for which jobs wait
    loaded_ms: int = 0  # when its handlers were loaded, at the start or a reload; 0 from a worker that does not say
    is_extra: bool = False  # a slot for jobs that are claimed in advance, beyond worker.count
    types: tuple[str, ...] | None = None  # of jobs that it runs; only one slot of a worker says it
    globs: tuple[str, ...] | None = None  # of files that it takes, in the same way
    roots: tuple[str, ...] = ()  # below which it opens files, as producers see their paths; in the same way
    # With `pid` these identify the process to others on its machine, see local_processes.py.
    boot_id: str = ""
    namespaces: str = ""
    pid_start: int = 0
    count: int = 0  # worker.count; 0 from a worker that does not say
    is_draining: bool = False  # it stops, or a reload has replaced it: it claims nothing, and its jobs finish

    @property
    def process(self) -> ProcessId:
        return ProcessId(self.boot_id, self.namespaces, self.pid, self.pid_start)


class WorkerView(Struct, frozen=True):
    """One registered slot as operators see it. They know the slot's id as the worker ID."""

    slot: str
    info: WorkerInfo
    is_alive: bool  # it has a heartbeat, and its process is not known to be gone
    raw: bytes = b""  # the job it holds
    since_ms: int = 0  # when it claimed that job; 0 if it holds none or the job has no record
    left_ms: int = 0  # until its heartbeat ends; 0 if that has ended, or from a broker that does not say


class Attempt(Struct, frozen=True, omit_defaults=True):
    """One finished attempt in a job's history. Stored as JSON: new fields go to the end and have a default."""

    started_ms: int
    ended_ms: int
    slot: str = field(name="worker")
    outcome: str
    error: str = ""
    traceback: str = ""
    output: str = ""  # the end of what the handler printed, if the attempt failed
    duration_ms: int | None = None  # as the worker measured it; None if nothing ran, or if a reaper ended the attempt
    deferred: str = ""  # why the job was deferred last before this attempt; "" if it was not
    is_fatal: bool = False  # the job died of it


class Record(Struct, frozen=True):
    """Everything a broker knows of one job besides its bytes' position."""

    id: str
    state: State
    raw: bytes  # empty if they are over MAX_DECODED_BYTES and the broker keeps them only in the dead-letter list
    queue: str
    slot: str = field(default="", name="worker")  # the slot that holds the job, or held it last
    created_ms: int = 0
    started_ms: int = 0
    ended_ms: int = 0
    due_ms: int = 0
    since_ms: int = 0  # when its last delay began; 0 without one, as for a job that was enqueued for a time
    error: str = ""
    result: bytes = b""
    attempts: tuple[Attempt, ...] = ()
    attempt_count: int = 0
    is_cancel_requested: bool = False
    queued: int = 0  # copies of the job in queues that are counted as produced or adopted
    deferred: str = ""  # why it was deferred last; empty once it has been settled in another way
    deferred_count: int = 0
    deferrals_ms: tuple[int, int] = (0, 0)  # when it was deferred first and last; zeros if it never was
    moved_to: bytes = b""  # where a worker moved the file after the job had ended
    after: tuple[str, ...] = ()  # ids of earlier jobs of the same file, newest first; it does not run beside them
    waits_for: str = ""  # id of a job that must have ended before this one runs
    unique_key: str = ""  # as it was enqueued
    follow_ups: tuple[str, ...] = ()  # ids of the jobs that its settlements enqueued, the newest FOLLOW_UPS_KEPT
    outputs: tuple[Output, ...] = ()  # the files it made
    batch: str = ""  # id of the batch that it is a member of
    fingerprint: str = ""  # of a dead job
    origin: str = ""  # of a job that fileq made itself, see core/own_jobs.py; "" if another program may have made it
    deadline_ms: int | None = None  # as it was enqueued


class LedgerEntry(Struct, frozen=True, omit_defaults=True):
    """What the ledger knows of one path.

    `versions` pairs each signature (see core/job.py) with a job's id, newest first. `device` is where the file
    was last seen. `missing_since_ms` is when a producer first missed it on that device; 0 while it is there."""

    versions: tuple[tuple[str, str], ...] = ()
    missing_since_ms: int = 0
    device: str = ""

    def knows(self, signature: str) -> bool:
        return self.job_of(signature) is not None

    def is_newest(self, signature: str) -> bool:
        """Whether this is the newest version, and its file is not marked as missing. A hash that only the entry has is
        not compared."""
        newest = self.versions[0][0] if self.versions else ""
        return not self.missing_since_ms and (newest == signature or newest.startswith(f"{signature}-c"))

    def job_of(self, signature: str) -> str | None:
        """The id of the newest job of this version; None if the version is unknown."""
        return next((id for known, id in self.versions if is_same_version(known, signature)), None)

    def jobs_before(self, id: str, unfinished: Iterable[str] = ()) -> tuple[str, ...]:
        """The ids of the jobs of this path but this one, newest first. The entry has only the newest job of each
        version; `unfinished` are earlier jobs that this newest job names in `after` and that have not ended."""
        ids = dict.fromkeys((*(job_id for _, job_id in self.versions), *unfinished))
        return tuple(other for other in ids if other != id)[:EARLIER_JOBS_MAX]

    def with_version(self, version: Version, job_id: str) -> LedgerEntry:
        """This entry with the version as its newest, and no longer missing."""
        others = (v for v in self.versions if not is_same_version(v[0], version.signature))
        return LedgerEntry(((version.signature, job_id), *others)[:LEDGER_DEPTH], device=version.device or self.device)


class Census(Struct, frozen=True):
    """The number of jobs in each place, and all counters, of one moment."""

    pending: Mapping[str, int]  # by queue
    scheduled: int  # scheduled, retrying and deferred jobs together
    running: int
    dead: int
    completed: int  # jobs still listed; the counter of this name includes those no longer listed
    cancelled: int  # as `completed`
    heartbeats: int
    counters: Mapping[str, int]
    paused: frozenset[str] = frozenset()
    now_ms: int = 0
    unfinished_batches: int = 0

    @property
    def drift(self) -> int:
        """Jobs taken in minus jobs accounted for. Positive: jobs are lost. Negative: queues hold copies that were never
        counted. Those were doubled, or pushed by another program and not claimed yet."""
        count = self.counters.get
        taken_in = count("produced", 0) + count("adopted", 0)
        waiting = sum(self.pending.values()) + self.scheduled + self.running + self.dead
        return taken_in - waiting - count("completed", 0) - count("cancelled", 0) - count("deleted", 0)


class Overview(Struct, frozen=True):
    """What an operator wants to see first."""

    census: Census
    fronts: Mapping[str, bytes]  # the next job of each queue that has one
    workers: tuple[WorkerView, ...]
    hours: Mapping[int, Mapping[str, int]]  # the counters of the last hours, by hours since the epoch
    producers: tuple[ProducerView, ...] = ()
    orders: int = 0  # how many orders are not finished
    first: Mapping[str, tuple[bytes, ...]] = {}  # the first jobs of each place that has one, if they were asked for


class UnrecordedJob(Struct, frozen=True):
    """A job that is in a place and has no record, with the record it should have.

    The place is a queue, `scheduled`, `dead_letter` or `processing`; of `processing` the list of the record's slot."""

    place: str
    record: Record


class Revival(Struct, frozen=True):
    """A dead job, and the bytes that replace it in its queue."""

    raw: bytes
    id: str
    next_raw: bytes
    queue: str  # where it goes if it has no record
    is_next: bool = False  # it goes to the front of its queue instead of the end


class Revived(Struct, frozen=True):
    """What `revive` did with a dead job. `held_by`: the unfinished job with its unique key, if that kept it dead.
    `is_foreign`: another job has its id, and that kept it dead."""

    is_revived: bool
    held_by: str = ""
    is_foreign: bool = False


class CancelResult(enum.StrEnum):
    """What `cancel` did with one id."""

    CANCELLED = "cancelled"
    REQUESTED = "requested"  # the job is running; its slot learns of the request at its next renewal
    REQUESTED_BEFORE = "requested_before"  # the same by an earlier call
    ENDED = "ended"
    UNKNOWN = "unknown"
    KEPT = "kept"  # its batch is not cancelled, or it runs although it is


class WireEvent(Struct, frozen=True):
    """One transition of a job as published, its fields in the order of the JSON. Events of batches have no job."""

    event: str
    job_id: str = ""
    type: str | None = None
    priority: str = ""
    worker_id: str = ""
    duration_ms: int = 0
    error: str = ""
    retry_count: int = 0
    filepath: str = ""
    at: int = 0  # the broker's time of the transition in ms since the epoch


class AdmitRequest(Struct, frozen=True):
    """A claimed job of a limited route, which asks to run. A limit of 0 is none.

    At most `max_running_total` jobs of the route run, and at most `rate` of them start in a window of `window_ms`."""

    route: str
    slot: str
    raw: bytes
    max_running_total: int = 0
    rate: int = 0
    window_ms: int = 1000


class AdmitResult(enum.StrEnum):
    """What `admit` answered to one request."""

    ADMITTED = "admitted"
    FULL = "full"  # as many jobs of the route run as `max_running_total` allows
    THROTTLED = "rate"  # as many jobs of the route have started in this window as `rate` allows
    LOST = "lost"  # the slot does not hold this job (any more): it must not run


class Admission(Struct, frozen=True):
    """The reply to one request of `admit`."""

    result: AdmitResult
    wait_ms: int = 0  # when to ask again: the rest of the window for a rate; 0 if the job was admitted
