"""What a broker promises. Broker moves jobs, Inspector serves operators; the other groups have modules of their own.

Each method of these protocols states three things, unless they follow from the rules below:
- atomicity: what other processes can see while the call runs;
- repeat: what a second call with the same arguments does, because callers repeat a call whose reply was lost;
- kill -9: what is left if the calling process dies during the call.

Rules for all methods:
- They take and return batches; one job is a batch of one. Results have the order of the arguments.
- They raise BrokerUnavailable if the same call may succeed later, and BrokerError if the broker refused. The call may
  have taken effect before BrokerUnavailable was raised; repeating it is safe.
- A method that only reads may be repeated and killed at any time.
- Jobs are kept as the exact bytes they came in (`raw`). Bytes that are not a job are moved like any other.
- Time is the broker's clock, in milliseconds since the epoch.
- A job is `adopted` if another program pushed it into a queue: its first claim creates its record and counts it.

The places of a job are its queue, `scheduled`, `processing` (one list for each slot), `dead_letter`, `completed` and
`cancelled`. Its record says in which of them it is. fileq.testing.conformance tests all of this for any broker.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Protocol, runtime_checkable

from msgspec import Struct

from fileq.brokers.batches import Batches
from fileq.brokers.catalog import Catalog
from fileq.brokers.local_processes import ProcessId
from fileq.brokers.place_pages import PlacePages
from fileq.brokers.schedules import Schedules
from fileq.brokers.types import (
    Admission,
    AdmitRequest,
    CancelResult,
    Census,
    Enqueued,
    Entry,
    LedgerEntry,
    Overview,
    ProducerInfo,
    ProducerView,
    Promoted,
    Record,
    Renewal,
    Revival,
    Revived,
    Suspect,
    TurnReply,
    UnrecordedJob,
    WorkerInfo,
    WorkerView,
)
from fileq.core.finding import Finding
from fileq.core.job import Claim, State
from fileq.core.outcome import FollowUp
from fileq.core.settlement import Settlement, SettleResult


class Repairer(Protocol):
    """For `fsck --repair`: damage that no verb leaves, such as a key deleted by hand, a write that a failover lost.

    Atomicity: every repair checks again and changes in one step. What is no longer damaged stays unchanged.
    Repeat: False, and no change; the same for a second process that repairs at the same time.
    Kill -9: each job is still damaged or repaired."""

    def ids(self, size: int = 500) -> Iterator[list[str]]:
        """The ids of all records, page by page. Only reads.

        While other processes work, some may be missed or returned twice."""

    def lost(self, ids: Sequence[str]) -> list[bool]:
        """Whether the record says that the job waits, runs or is dead, and the job is not in that place. Only reads.

        Each answer is of one moment. False without a record, and for a queue that is not configured here."""

    def restore(self, ids: Sequence[str]) -> list[bool]:
        """Puts each lost job back where its record says; one that was running goes to the front of its queue.

        False for a job that is not lost. No counter changes."""

    def unrecorded(self, jobs: Sequence[UnrecordedJob]) -> list[bool]:
        """Whether the job is in that place and has no record. Only reads; each answer is of one moment."""

    def create_record(self, jobs: Sequence[UnrecordedJob]) -> list[bool]:
        """Creates the record of a job that has none, as if the job had been counted when it came in.

        False for a job that has a record or is no longer in that place. No counter changes."""

    def balance(self, drift: int, becomes: int = 0) -> bool:
        """Changes a counter so that a census whose drift is `drift` has the drift `becomes`.

        A positive difference counts as deleted, a negative one as adopted. False, and no change, unless the drift is
        exactly `drift` in this moment."""


class ProducerRegistry(Protocol):
    """Which producers are alive, and what they do: each reports itself with a lease. A report whose lease has ended no
    longer counts. For operators only: no job depends on it, and nothing is decided by it."""

    def report_producer(self, id: str, info: ProducerInfo, ttl_ms: int) -> None:
        """Replaces what is known of this producer. Its lease ends `ttl_ms` from now.

        May also delete reports of other producers whose lease has ended.

        Atomicity: the report. Repeat: the same, from the later time. Kill -9: the old report or the new one; it ends
        with its lease."""

    def remove_producer(self, id: str) -> None:
        """Removes the report of a producer that stops.

        Atomicity: the report. Repeat: no effect. Kill -9: removed, or it ends with its lease."""

    def producers(self) -> list[ProducerView]:
        """Every producer whose lease has not ended, by its id. Only reads."""


# What a broker promises about orders: what a worker still has to do with the file of a job that has ended.
#
# An order comes with the settlement that ends the job (`Settlement.order`) and is kept in the same atomic step. It is
# removed when it is done. The order of a worker that died stays, so another worker finds it and does it.


class Order(Struct, frozen=True):
    """An order of a job. Brokers do not read `body`."""

    id: str  # the id of the job, which has one order at most: a later settlement replaces it
    slot: str  # the slot that settled the job
    at_ms: int  # when it settled the job
    body: bytes


class FileOrders(Protocol):
    """Two workers may do the same order at the same time: it must be written so that this does no harm."""

    def orders(self, older_than_ms: int) -> Iterator[Order]:
        """Every order whose slot is not registered, or that is older than this. Only reads, page by page.

        An order that is added or removed during the iteration may be missed."""

    def finish_orders(self, done: Sequence[tuple[str, bytes]]) -> list[bool]:
        """Removes the order of each job (id, path), and writes the path to its record: the file is there now. An empty
        path is not written.

        False for a job that is not completed or dead; its record stays as it is. Such a job was put back into its
        queue, which has removed its order already.

        Atomicity: each job. Repeat: the same. Kill -9: each order is there and its record has the old path, or the
        order is removed and the record has the new one."""


class Broker(FileOrders, Protocol):
    """The hot path. Threads may share a broker, but not the waiters and replies it returns."""

    kind: str  # the configuration's name for it
    where: str  # for people: an address, a path

    @property
    def patience(self) -> float:
        """How many times its usual pause a process may make before it repeats a look that any other process would do as
        well: 1, and more if the last renew() found a large fleet. So all together look no less often."""

    def enqueue(self, entries: Sequence[Entry], *, limit: int = 0) -> Enqueued:
        """Takes jobs in: each gets a record, a ledger entry and a position in its queue or in `scheduled`.

        `limit` is the number of permits in one window of the shared rate limit; 0 means no limit. Only an entry whose
        version the ledger does not know takes a permit. The record of an entry with a version names the earlier jobs of
        its path (`after`): those in the ledger, which has the newest job of each version, and the unfinished ones that
        the last job of the same version names.

        A job with a `unique_key` takes the key, unless it belongs to an unfinished job: then the result is DUPLICATE,
        and `existing` names that job. A job holds its key while its record says that it is unfinished, so no method
        gives a key back. A job that another program pushed holds none.

        Atomicity: each entry as a whole, with its permit and its key. Raises BrokerError for an unknown queue, JobError
        for a job over MAX_JOB_BYTES or with a wrong unique key, before any entry.
        Repeat: DUPLICATE for an id that has a record, KNOWN for a version in the ledger; neither changes anything.
        Kill -9: each entry is enqueued completely or not at all."""

    def settle_and_claim(self, settlements: Sequence[Settlement], slots: Sequence[str]) -> TurnReply:
        """Settles what ended, then claims a job for each of these free slots, in one round trip.

        A settlement takes effect only if its slot still holds the job (the fence); otherwise it is FENCED and changes
        nothing. It also renews the slot's heartbeat. In the same step its order is kept (FileOrders) and its
        follow-ups are enqueued, after the job has moved; the record keeps their ids. A follow-up that enqueue() would
        call DUPLICATE is left out. The record keeps the last outputs, and makers() finds them. Raises BrokerError and
        JobError for a wrong follow-up as enqueue() does, before any settlement.

        A claim takes the front of the first queue, in claim order, that is not paused. A slot that is not registered
        gets nothing and is in `gone`. A claim `is_blocked` while a job that its record names in `after` is running, or
        while the one in `waits_for` is unfinished: the caller must defer it. The same holds for claims of renew().
        Bytes over MAX_DECODED_BYTES are a claim without a job, or the broker buries them in the same step and names
        them in `buried`.

        Bytes that another program pushed never touch a record that has an `origin` or a `batch`. In a queue they are
        foreign if they differ from the record's `raw`, or if its `queued` is 0: every way of a broker into a queue
        writes both. A claim buries them in the same step under raw_id(), one a call, and names them in `buried`. So
        does the settlement of a job whose record a job of fileq's own has replaced since; promote() and deregister()
        put such bytes into a queue, clear() leaves them there, revive() refuses them.

        Bytes that are no job leave the record of the id that can be read in them as it is. A broker that finds out
        only after the claim restores the record when they are buried or released, at the latest.

        Atomicity: each settlement as a whole (job, record, ledger, counters, follow-ups, outputs), and each claim as a
        whole (job, record, heartbeat, counters). No other call can see a job in two places or in none.
        Repeat: a settlement is DONE_ALREADY if it took effect and is the slot's last one, otherwise FENCED; neither
        changes anything. A slot that already holds a job gets that job again, with a new token.
        Kill -9: each job is in its queue, in its slot's processing list, or settled. A job in the processing list of a
        dead slot is found by suspects() when its heartbeat has ended. Foreign bytes are in their queue, and the next
        claim buries them, or in the dead-letter list with their record; the job that has their id is as it was."""

    def send_settle_and_claim(self, settlements: Sequence[Settlement], slots: Sequence[str]) -> PendingReply:
        """settle_and_claim in two steps: sends the call now, so that the caller can work until it takes the reply.

        All promises of settle_and_claim hold from here on, whether or not the reply is taken."""

    def admit(self, requests: Sequence[AdmitRequest]) -> list[Admission]:
        """Says which claimed jobs of limited routes may run now, in one round trip. Asked before a job starts.

        An admitted job is a holder of its route: slot and raw. A holder counts only while the processing list of its
        slot holds these bytes, so no other method has to release it; the call that finds a stale one removes it.
        `rate` is a counter for each route whose window begins with its first job. A window that ends later than
        `window_ms` from now belongs to an earlier configuration and counts as ended. Nothing is reserved for a job that
        is refused, and it uses no permit. Changes no job.

        Atomicity: all requests, in their order. No two callers get the last permit.
        Repeat: an admitted job whose slot still holds it is admitted again, without a second holder or permit.
        Kill -9: each job is a holder or not. A holder whose process died counts until a reaper has settled its job."""

    def renew(self, holdings: Sequence[tuple[str, bytes]]) -> list[Renewal]:
        """Renews the heartbeat of each slot, and compares what it holds with what the caller believes.

        A holding is a slot and the raw it believes to hold, or b"" for none. UNEXPECTED returns the claim of the job
        that the slot holds, with a new token.

        Atomicity: each slot. Repeat: the same, from the later time. Kill -9: some slots are renewed, others not."""

    def promote(self, limit: int = 500) -> Promoted:
        """Moves up to `limit` due jobs from `scheduled` to the end of their queues, earliest first.

        Also returns when the next schedule is due, when to call overdue(), and a number that grows after each request
        to cancel running jobs or a batch, so that a scheduler needs no second call.

        Atomicity: each job. Of several callers, one moves it.
        Repeat: moves the jobs that are due by then.
        Kill -9: each job is in `scheduled` or in its queue."""

    def overdue(self, limit: int = 500) -> list[Claim]:
        """Looks at up to `limit` jobs of the index of deadlines, and returns those that wait although their deadline
        has passed, for bury_overdue(). Changes no job.

        The claims have no slot, and `claimed_ms` is the time of this call. A job with a deadline enters the index when
        enqueue(), a settlement, fire() or revive() makes it wait; jobs without one cost nothing. The job may be in a
        queue that is paused. These are not returned: a job that runs, which is looked at again after RUNNING_LOOK_MS;
        one that has ended, which leaves the index; a member of a cancelled batch, which is about to be cancelled; and
        one of a queue that is not configured here. A job that is returned is looked at again after RETURNED_LOOK_MS,
        so that of several callers one gets it.

        A job that another program pushed, or whose record was lost, may not be in the index. The worker that claims it
        finds that its deadline has passed.

        Atomicity: the whole call. Repeat: looks at the next ones. Kill -9: the jobs that were returned wait, and are
        returned again after RETURNED_LOOK_MS."""

    def bury_overdue(self, settlements: Sequence[Settlement]) -> tuple[SettleResult, ...]:
        """Buries waiting jobs that overdue() has returned, with orders, follow-ups and batches as settle_and_claim()
        buries a claimed one. Only a job that still waits with the same bytes in the same queue or in `scheduled`;
        otherwise it is FENCED, and nothing changes. Of several copies with these bytes one leaves its queue.

        The record says that an attempt was refused at the time of this call, without a slot. A job that is not where
        its record says is FENCED and leaves the index; a repair puts it back, and its claim finds the deadline.

        Atomicity: each settlement as a whole. A claim at the same moment gets the job before it, or not at all.
        Repeat: FENCED. Kill -9: before it, each job waits, and overdue() returns it again; after it, each is dead with
        everything that follows; in between, some are dead and the others wait."""

    def realign(self, offset: int = 0, limit: int = 500) -> int | None:
        """Shortens delays that a step of the clock back has made longer, in one page of `scheduled`, latest due first.

        A job whose delay began more than a second in the future (`since_ms`) is due after its whole delay from now on.
        A job that was enqueued for a time keeps it. Returns the offset of the next page, or None at the end.

        Atomicity: each job. Repeat: changes nothing more. Kill -9: each job has its old or its new due time."""

    def due_now(self, ids: Sequence[str]) -> list[bool]:
        """Moves scheduled, retrying and deferred jobs to the end of their queues before their time, in this order.

        False, and no change, for a job that is in none of these states (any more).

        Atomicity: each job. Repeat: False. Kill -9: each job is in `scheduled` or in its queue."""

    def sweep_unique(self, cursor: str = "") -> str | None:
        """Forgets the unique keys, in one page of about 500, whose jobs have ended or have no record.

        Only frees memory: such a key can be taken anyway. Returns the cursor of the next page, or None at the end. A
        key that is taken during the sweep stays.

        Atomicity: each key. Repeat: changes nothing more. Kill -9: each key is there or forgotten."""

    def suspects(self, *, sweep: bool = False, gone: Collection[ProcessId] = ()) -> list[Suspect]:
        """Registered slots without a heartbeat, with what they hold. Only reads, page by page.

        `sweep` also finds processing lists of slots that are not registered, which takes longer. With `gone`: the slots
        of these processes, which have ended, and no others. They are suspects that `is_gone`, whether or not they have
        a heartbeat."""

    def processes(self, here: ProcessId) -> list[ProcessId]:
        """The worker processes of the machine of `here`: those that have called this, `here` among them, until
        forget_process(). A broker may name more, if they have registered slots. Its cost does not depend on the workers
        of other machines.

        Repeat: the same. Kill -9: the process is named or not."""

    def forget_process(self, process: ProcessId) -> None:
        """The process has ended, and its slots were reaped or deregistered.

        Repeat: no effect. Kill -9: it is named or not."""

    def lease(self, name: str, holder: str, ttl_ms: int, *, instead_of: str = "") -> str:
        """Takes a free lease, or renews it: it ends `ttl_ms` from now. Returns who has it then.

        `instead_of`: takes it from this holder, which is gone. 0 ms gives it back. No promise of any other method
        depends on a lease: it may be lost, or have two holders. A step of a clock may end it early. It may not make it
        last longer: a lease that ends later than `ttl_ms` from now is free.

        Atomicity: the lease. Repeat: the same, from the later time. Kill -9: the lease ends by itself."""

    def cancel_requests(self) -> int:
        """The number that promote() returns of the same name. Only reads."""

    def reap(self, slot: str, settlements: Sequence[Settlement], *, is_gone: bool = False) -> tuple[SettleResult, ...]:
        """Settles for a dead slot, with orders, follow-ups and outputs. A slot that holds no job then is deregistered.

        Changes nothing if the slot has a heartbeat: every result is FENCED then. `is_gone`: its process is known to
        have ended, so a heartbeat does not count and ends. If that were wrong, nothing would be lost: the worker would
        be told that its slot is gone, the fence would reject its settlement, and the job would run a second time. No
        slot id is used again, so the slot can't be one that was registered later.

        Atomicity: the check, each settlement with its order, and the deregistration are one step. Of several reapers,
        one moves the job and the others are FENCED.
        Repeat: FENCED.
        Kill -9: the slot holds its job and is still a suspect, or the job is settled."""

    def register(self, slots: Mapping[str, WorkerInfo]) -> None:
        """Registers slots and gives them a first heartbeat. For a registered slot, replaces its info.

        Atomicity: each slot. Repeat: the same. Kill -9: some slots are registered; they become suspects."""

    def deregister(self, slots: Sequence[str]) -> None:
        """Removes slots. A job that one still holds goes back to the front of its queue.

        Atomicity: each slot with its job. Repeat: no effect. Kill -9: the slots that are left become suspects."""

    def breaker_resets(self) -> Mapping[str, int]:
        """How often reset_breaker() was called for each route. Only reads."""

    def waiter(self) -> Waiter: ...

    def subscribe(self) -> Subscription: ...

    def lookup(self, paths: Sequence[bytes]) -> list[LedgerEntry | None]:
        """The ledger's entry of each path, or None. Only reads."""

    def knows(self, versions: Sequence[tuple[bytes, str]]) -> list[bool]:
        """Whether each signature is that of the newest version of its path, and the file is not marked as missing. A
        hash that only the ledger has is not compared. Only reads, and decodes no entry."""

    def ledger(self, under: bytes) -> Iterator[tuple[bytes, LedgerEntry]]:
        """Every entry whose path starts with `under`. Only reads, page by page.

        An entry that is added or removed during the iteration may be missed."""

    def update_ledger(self, changes: Sequence[tuple[bytes, LedgerEntry, LedgerEntry | None]]) -> list[bool]:
        """Replaces entries. A change is a path, the entry as it was read, and the new entry, or None to remove it.

        Returns False, and changes nothing, for an entry that is no longer as it was read.

        Atomicity: each entry. Repeat: False. Kill -9: each entry is the old or the new one."""

    def close(self) -> None:
        """Releases connections and files. May be repeated. Jobs and slots stay as they are."""


class Inspector(PlacePages, Protocol):
    """What operators need. Never on the hot path."""

    def census(self, *, sweep: bool = False) -> Census:
        """The number of jobs in each place and all counters, of one moment. Only reads.

        Takes the same short time for any length of the queues. `sweep` also counts processing lists of slots that are
        not registered, and may count the jobs one by one; that takes longer."""

    def overview(self, hours: int = 2, jobs: int = 0) -> Overview:
        """The census, the front of each queue, workers, producers and the counters of the last hours; also the first
        `jobs` jobs of each place, as peek() returns them. Only reads. The census is of one moment; the rest is read
        right after it. One round trip, unless the clocks differ by more than an hour."""

    def peek(self, place: str, limit: int) -> list[bytes]:
        """The first jobs of a place. Only reads.

        From a queue and `scheduled` those that come out next; from `dead_letter`, `completed` and `cancelled` the
        newest. Raises BrokerError for an unknown place."""

    def pages(self, place: str, size: int = 500) -> Iterator[list[bytes]]:
        """All jobs of a place, oldest first, page by page. Only reads.

        The caller may remove jobs of a page before it takes the next one; that hides no other job. While other
        processes move jobs, some may be missed or returned twice."""

    def records(self, ids: Sequence[str]) -> list[Record | None]: ...

    def states(self, ids: Sequence[str]) -> list[State | None]:
        """The states of the records, without reading the rest of them."""

    def workers(self) -> list[WorkerView]:
        """Every registered slot, by its id. Only reads."""

    def cancel(
        self,
        ids: Sequence[str],
        follow_ups: Mapping[str, Sequence[FollowUp]] | None = None,
        *,
        in_cancelled_batch: bool = False,
    ) -> list[CancelResult]:
        """Cancels a job that waits. For a running one, requests it: its slot's next renewal returns CANCEL. promote()
        has workers renew soon. With `in_cancelled_batch`, only members that must not run because their batch is
        cancelled: a job that was put back meanwhile, which lifts the cancellation, is KEPT.

        `follow_ups` are enqueued for each id that is cancelled by this call, as those of a settlement are. Raises for a
        wrong one before any job.

        Atomicity: each job with its follow-ups. Repeat: ENDED, or REQUESTED_BEFORE while it runs. Kill -9: each job is
        cancelled or untouched."""

    def clear(
        self, queue: str, raws: Sequence[bytes], follow_ups: Mapping[str, Sequence[FollowUp]] | None = None
    ) -> list[bool]:
        """Cancels those of these jobs that are among the first CLEAR_REACH of the queue. Returns for each whether this
        call has cancelled it.

        At most CLEAR_MAX, as peek() returned them. Unlike cancel(), it also takes jobs without a record, which another
        program pushed. Leaves bytes that are not a job, and copies of a job whose record says that it runs or is
        scheduled. `follow_ups` as for cancel().

        Atomicity: the whole call. Repeat: False, unless the same bytes were pushed again. Kill -9: all or none."""

    def makers(self, paths: Sequence[bytes]) -> list[str | None]:
        """The id of the job that made each file last, as its outputs say; for `worker.history_ttl`. Only reads."""

    def known_files(self, paths: Sequence[bytes]) -> list[tuple[LedgerEntry | None, str | None]]:
        """What lookup() and makers() return for each path, in one round trip. Only reads."""

    def revive(self, revivals: Sequence[Revival]) -> list[Revived]:
        """Moves dead jobs to the end or front of their queues, with new bytes. Not one that is not dead (any more), and
        not one whose unique key belongs to another unfinished job; otherwise the job takes its key again.

        Removes their orders: their files stay where they are until the jobs end again.

        Atomicity: each job with its key. Repeat: not revived. Kill -9: each job is dead or in its queue."""

    def discard(self, dead: Sequence[tuple[str, bytes]]) -> list[bool]:
        """Deletes dead jobs, by id and raw, with their records. Returns for each whether this call has deleted it. A
        record that is about another copy by now, which ran under the same id later, stays.

        Atomicity: each job. Repeat: False. Kill -9: each job is deleted or still dead."""

    def pause(self, queue: str) -> None:
        """No job of this queue is claimed until resume(). Running jobs go on. A repeat has no effect."""

    def resume(self, queue: str) -> None:
        """Ends a pause and wakes the waiters. A repeat has no effect."""

    def reset_breaker(self, route: str) -> None:
        """Raises the number of resets of a route; the empty name stands for all routes.

        Atomicity: the number. Repeat: raises it again, which resets the breaker once more. Kill -9: raised or not."""

    def hourly(self, hours: int) -> dict[int, dict[str, int]]:
        """The counters of each of the last hours, by hours since the epoch. Only reads."""


class FullBroker(Broker, Inspector, Repairer, ProducerRegistry, Catalog, Schedules, Batches, Protocol):
    """What open_broker returns."""

    def examine(self, *, permissions: bool = False) -> list[Finding]:
        """Checks what the broker depends on, such as server settings and the file system. Changes no job.

        For `fileq doctor` and for warnings at start. `permissions` also tries whether every command that the broker
        needs is allowed, which takes longer."""


class Waiter(Protocol):
    """Wakes one pump when a queue may hold a job. Used by one thread, and never claims or moves a job.

    Of all waiters for the same queues that are armed, a push wakes at least one. A claim that leaves jobs behind wakes
    another one. `resume` wakes as a push does. If a waiter is lost with its process, its wake is; then the others find
    the job when their longest wait ends."""

    def fileno(self) -> int:
        """A descriptor for select or epoll while it is armed. It is readable when there may be something to take()."""

    def arm(self) -> float:
        """Watches every queue that is not paused. Returns the longest time to wait, in seconds; then arm() is called
        again. May be repeated at any time. A job pushed before the call wakes the pump too."""

    def take(self) -> bool:
        """Whether there may be work, since the last call: the caller should claim. Does not wait."""

    def wait(self, timeout_s: float) -> bool:
        """Blocks until there may be work (True) or the timeout ends (False). Arms again where it has to."""

    def close(self) -> None:
        """From now on pushes wake other waiters. For a pump that has no room for jobs, or ends."""


class Subscription(Protocol):
    """The events of all processes since the subscription began, in the order of the transitions.

    Delivery is best effort: a kill -9 between a transition and its event loses the event, never the transition."""

    def get(self, timeout_s: float) -> bytes | None:
        """The next event as JSON, or None after the timeout."""

    def close(self) -> None: ...


@runtime_checkable
class DueReports(Protocol):
    """What a broker may do in addition: report that a job or a schedule is due earlier than promote() has said, or
    that a cancellation was requested."""

    def report_due_changes(self, changed: Callable[[], None]) -> None:
        """From now on calls `changed`, in any thread, when what a reply with `is_watched` said has changed.

        Such a reply is followed by one call at most. `changed` must return at once."""


class PendingReply(Protocol):
    """A call of settle_and_claim that was sent, and whose reply may not be there yet. Used by one thread."""

    is_answered: bool  # take() will not wait

    def wait(self, timeout_s: float) -> bool:
        """Waits for at most this long; whether take() would return without waiting much longer."""

    def take(self) -> TurnReply:
        """Waits for the reply and returns it, once. Raises what settle_and_claim raises."""

    def drop(self) -> None:
        """Discards the reply. The call itself is not undone."""


class ReadyReply:
    """The PendingReply of a broker that answers at once."""

    is_answered = True

    def __init__(self, reply: TurnReply) -> None:
        self._reply = reply

    def wait(self, timeout_s: float) -> bool:
        return True

    def take(self) -> TurnReply:
        return self._reply

    def drop(self) -> None:
        pass


@runtime_checkable
class RemovableData(Protocol):
    """Optional: for a broker whose data can be deleted, replaced or lost under a process that uses it."""

    def check_present(self) -> str:
        """Returns what was lost since the last call; "" if nothing was. Raises BrokerRemoved if only a restart of the
        process helps. Called once a second by one thread, so it makes at most one cheap round trip. Only reads."""
