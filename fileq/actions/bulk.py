"""Actions on many jobs: retry, cancel, run now, delete. The only engine for them: the command line, the API and its
operations, the console, the client and batches use it.

**The rule of repetition**

- *What an action changes.* The jobs that match, and that have been in a state which the action takes since before it
  began (`cutoff_ms`, the broker's clock). A job that comes into such a state later belongs to the next action.
- *At most once.* A change gives the job a newer state, so the same action does not take it again: a job that was put
  back and has died again died after the cutoff. No list of changed jobs is kept.
- *A repeat* is a new action. It finds what the first one has left, and what has happened since.
- *A kill -9* leaves each job changed or unchanged. An action that goes on with the same cutoff (an operation) changes
  the rest; one that is repeated does the same, and also takes jobs that have died since.
- *Two actions at the same time* share the jobs. The broker says for each job whether this call has changed it, so each
  job is counted by exactly one of them. What another one has taken is GONE: neither counted nor an error.
- *The end.* A place is read in pages while it changes, so one pass may miss jobs. Passes are repeated until one finds
  nothing to change, or PASSES_IN_VAIN in a row have changed nothing. A refused job stays and is counted once: the
  refusals are those of the last pass.
- *The cost.* A page is read, compared with outlines of its records and changed, each in one call for all its jobs
  (waiting jobs are cancelled by two: those at the front of their queue, then the others). Memory holds one page and the
  results of the first NAMED jobs, however many jobs there are; of the dead members of a batch also all ids.

A job that another program pushed and no worker has claimed has no record. Its own bytes say when it was created or
died; without a time, it was there before. `cancel` finds such a job only near the front of its queue.
"""

from __future__ import annotations

import enum
import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Annotated, TypeAlias

from msgspec import Struct
from msgspec.structs import replace

from fileq.brokers.batches import MEMBERS_PAGE
from fileq.brokers.protocol import FullBroker
from fileq.brokers.types import CancelResult, Record, Revival, Revived
from fileq.config import Config
from fileq.core.documented import means
from fileq.core.job import DELAYED_STATES, Job, State, attempt_of, decode_or_none, encode, rfc3339_ms, wall_clock_ms
from fileq.core.paging import pages, parts
from fileq.core.text import printable
from fileq.queries.job_filter import Conditions, JobFilter, StoredJob, stored_as
from fileq.queries.job_ids import UNCLAIMED
from fileq.queries.job_selection import job_page, matching, outlined, places_of, raws_in

if TYPE_CHECKING:
    from fileq.webhooks.subscriptions import Withdrawals

BATCH = 200  # jobs that are changed in one step
BATCH_ID_BYTES = 40_000  # the most bytes of their ids: an operation stores the ids of each batch in its document
COUNT_MAX = 2_000_000  # elements that are looked at to count jobs
NAMED = 1000  # jobs that a report names
PASSES_IN_VAIN = 3
# A waiting job is removed from the middle of its queue by comparing, 40 ms for a queue of a million. In a longer queue
# than this, the jobs of a cancelled batch stay until a worker claims them, which cancels them too.
LONG_QUEUE = 20_000


_NOT_ENDED = (State.RUNNING, State.PENDING, *DELAYED_STATES)


# With the states in which an action changes a job, what to say about the others, and the result for a job.
class JobAction(enum.StrEnum):
    states: tuple[State, ...]
    rule: str
    done: str

    def __new__(cls, word: str, states: tuple[State, ...] = (), rule: str = "", done: str = "") -> JobAction:
        action = str.__new__(cls, word)
        action._value_, action.states, action.rule, action.done = word, states, rule, done
        return action

    RETRY = "retry", (State.DEAD,), "only dead jobs can be retried", "retried"
    CANCEL = "cancel", _NOT_ENDED, "only unfinished jobs can be cancelled", "cancelled"
    RUN = "run", DELAYED_STATES, "only scheduled, retrying and deferred jobs can be made due", "due"
    DELETE = "delete", (State.DEAD,), "only dead jobs can be deleted", "deleted"


# Other results. Those of a dry run are `would_` and the action.
REQUESTED = "requested"  # of the worker that runs the job
REQUESTED_BEFORE = "requested_before"  # by another action
REFUSED = "refused"
GONE = "gone"  # another caller was faster
UNKNOWN = "unknown"
_CHANGED = frozenset([*(word for one in JobAction for word in (one.done, f"would_{one}")), REQUESTED])

NO_RECORD = "no job has this id, or its record has expired"
_NOT_TO_CANCEL = f"{NO_RECORD}, or {UNCLAIMED}; 'fileq cancel --all' also finds such jobs"
NOT_A_JOB = "these bytes are not a job and would only die again; delete them"
LEFT = "it left the dead-letter queue a moment ago"
CHANGED_ELSEWHERE = "its state changed a moment ago"
OUT_OF_REACH = "another program pushed it; it can be cancelled near the front of its queue, or once it is claimed"


class JobChange(Struct, frozen=True):
    """What an action did with one job."""

    id: str
    result: Annotated[
        str,
        means(
            "retried, cancelled, due, deleted or requested (from the worker that runs the job;"
            " requested_before: by an earlier action), in a dry run would_ and the action; otherwise refused, unknown"
            " (there is no such job) or gone (changed by another caller)"
        ),
    ]
    path: Annotated[str, means("where its file is now")] = ""
    reason: Annotated[str, means("why it was not changed; else empty")] = ""

    @property
    def is_done(self) -> bool:
        return self.result in _CHANGED

    @property
    def is_refused(self) -> bool:
        return self.result in (REFUSED, UNKNOWN)


class ActionReport(Struct, frozen=True):
    """What an action did with many jobs."""

    count: Annotated[int, means("jobs that were changed, or would be in a dry run")]
    is_dry_run: bool
    results: Annotated[
        tuple[JobChange, ...], means(f"each job passed by id; of others the first {NAMED}, refused first")
    ]

    @property
    def has_failed(self) -> bool:
        """Whether a job is not as it was to be."""
        return any(not one.is_done and one.result != REQUESTED_BEFORE for one in self.results)


class MatchedJobs(Struct, frozen=True):
    """How many jobs an action would change. `is_partial`: the count ended early, so there may be more."""

    count: int
    sample: tuple[StoredJob, ...]
    is_partial: bool


# Reads the jobs of a selection once, page by page, with at least outlines of their records.
Selection: TypeAlias = Callable[[], Iterable[Sequence[StoredJob]]]


class BulkActions:
    """The actions on the jobs of one broker."""

    def __init__(self, broker: FullBroker, config: Config, now_ms: Callable[[], int] = wall_clock_ms) -> None:
        self._broker = broker
        self._config = config
        self._queues = config.worker.priorities
        self._clock = now_ms

    def now_ms(self) -> int:
        """The broker's clock, for `cutoff_ms`."""
        return self._broker.census().now_ms

    # which jobs

    def matching(self, action: JobAction, wanted: JobFilter, *, has_deliveries: bool = False) -> Selection:
        """The jobs that meet the conditions, the oldest first; those of a queue and delayed ones as they come out.
        `has_deliveries`: a cancellation takes the deliveries of webhooks too."""
        states = wanted.states(action.states, action.rule)
        conditions = Conditions(_chosen(action, wanted, has_deliveries=has_deliveries))
        places = places_of(states, [queue for queue in self._queues if wanted.queue in (None, queue)])

        def selected() -> Iterator[list[StoredJob]]:
            for place in places:
                for raws in raws_in(self._broker, place, BATCH):
                    found = outlined(self._broker, raws, place, conditions, is_outline_needed=True).jobs
                    yield [job for job in found if job.state in states]

        return selected

    def dead_members(self, batch: str) -> Selection:
        """In the order in which they died, which is that of the dead-letter list: the search for a page goes on where
        the last one ended. In the order of the broker, which is none, each page would be a pass over the list."""

        def selected() -> Iterator[list[StoredJob]]:
            died: list[tuple[int, str]] = []
            for page in pages(lambda cursor: self._broker.dead_members(batch, cursor)):
                outlines = self._broker.outlines(page.ids) if page.ids else []
                died += [(one.ended_ms, one.id) for one in outlines if one is not None]
            for part in parts(sorted(died), MEMBERS_PAGE):
                records = self._broker.records([id for _, id in part])
                yield [stored_as(record) for record in records if record]

        return selected

    def matched(self, action: JobAction, wanted: JobFilter, sample: int) -> MatchedJobs:
        """Without conditions the lengths of the places say it, so deliveries of webhooks count too."""
        page = job_page(
            self._broker,
            self._queues,
            _chosen(action, wanted),
            states=wanted.states(action.states, action.rule),
            limit=max(1, sample),
            scan_max=COUNT_MAX,
            is_counted=True,
        )
        count = page.total if page.total is not None else page.matched
        return MatchedJobs(count, page.jobs[:sample], page.total is None)

    def by_ids(
        self,
        action: JobAction,
        ids: Iterable[str],
        is_seen: Callable[[Job | None], bool] = lambda job: True,
        *,
        searches: bool = False,
    ) -> tuple[list[StoredJob], list[JobChange]]:
        """The jobs with these ids that can be changed, and why the others can't. To a caller that does not see a job
        there is none. `searches` also looks through all dead jobs for an id without a record, for bytes that are too
        long to be kept in one, and, to delete it, for a dead job under whose id another copy ran later."""
        found: dict[str, StoredJob] = {}
        left: dict[str, JobChange] = {}
        unique = list(dict.fromkeys(ids))
        missing = set[str]()
        for id, record in zip(unique, self._broker.records(unique), strict=True):
            job = decode_or_none(record.raw) if record is not None else None
            if record is None or not is_seen(job):
                left[id] = JobChange(id, UNKNOWN, reason=_NOT_TO_CANCEL if action is JobAction.CANCEL else NO_RECORD)
                missing.add(id)
            elif record.state not in action.states:
                left[id] = JobChange(id, REFUSED, _path_of(stored_as(record)), _not_open(action, record))
                if action is JobAction.DELETE:
                    missing.add(id)
            else:
                found[id] = stored_as(record)
                if not record.raw:
                    missing.add(id)
        if searches and missing and State.DEAD in action.states:
            found |= self._dead_elements(missing)
        return [found[id] for id in unique if id in found], [left[id] for id in unique if id not in found]

    def _dead_elements(self, ids: set[str]) -> dict[str, StoredJob]:
        found: dict[str, StoredJob] = {}
        for page in self._broker.pages("dead_letter"):
            found |= {dead.id: dead for dead in matching(self._broker, page, "dead_letter") if dead.id in ids}
            if len(found) == len(ids):
                break
        return found

    # changes

    def begin(
        self,
        action: JobAction,
        selection: Selection,
        *,
        cutoff_ms: int | None = None,
        limit: int | None = None,
        is_dry_run: bool = False,
    ) -> BulkRun:
        """An action that begins now, or goes on with the cutoff of its beginning. It changes at most `limit` jobs."""
        return BulkRun(self, action, selection, self.now_ms() if cutoff_ms is None else cutoff_ms, limit, is_dry_run)

    def act_on(self, action: JobAction, ids: Sequence[str], *, is_dry_run: bool = False) -> ActionReport:
        """Changes the jobs with these ids. Looks everywhere for them."""
        jobs, left = self.by_ids(action, ids, searches=True)
        changes = self.change(action, jobs, is_dry_run=is_dry_run)
        changes = self._lost(changes) if action is JobAction.CANCEL else changes
        results = {change.id: change for change in (*left, *changes)}
        count = sum(change.is_done for change in changes)
        return ActionReport(count, is_dry_run, tuple(results[id] for id in dict.fromkeys(ids)))

    def change(self, action: JobAction, jobs: Sequence[StoredJob], *, is_dry_run: bool = False) -> list[JobChange]:
        """Changes these jobs now, in one step, if they still are in a state that the action takes."""
        if not jobs:
            return []
        if is_dry_run:
            return [_change(job, *_planned(action, job)) for job in jobs]
        if action in (JobAction.RETRY, JobAction.CANCEL):
            return self._retry(jobs) if action is JobAction.RETRY else self._cancel(jobs)
        if action is JobAction.DELETE:
            gone, answers = LEFT, self._broker.discard([(job.id, job.raw) for job in jobs])
        else:
            gone, answers = CHANGED_ELSEWHERE, self._broker.due_now([job.id for job in jobs])
        pairs = zip(jobs, answers, strict=True)
        return [_change(job, action.done) if is_done else _change(job, GONE, gone) for job, is_done in pairs]

    def _retry(self, jobs: Sequence[StoredJob]) -> list[JobChange]:
        possible = [job for job in jobs if job.job is not None]
        default = self._config.producer.default_priority
        answers = self._broker.revive([revival(job, default) for job in possible])
        done = {}
        for job, answer in zip(possible, answers, strict=True):
            why = why_stayed(answer)
            done[job.id] = _change(job, GONE if why == LEFT else REFUSED if why else JobAction.RETRY.done, why)
        return [done.get(job.id) or _change(job, REFUSED, NOT_A_JOB) for job in jobs]

    def _cancel(self, jobs: Sequence[StoredJob]) -> list[JobChange]:
        """First those at the front of their queue, without a search in the rest of it; then the others by their ids."""
        withdrawals = self._withdrawals()
        done = {i: _change(job, REFUSED, why) for i, job in enumerate(jobs) if (why := _why_left_pending(job))}
        for queue in {job.queue: None for i, job in enumerate(jobs) if job.queue and i not in done}:
            there = [i for i, job in enumerate(jobs) if job.queue == queue and i not in done]
            raws = [jobs[i].raw for i in there]
            cleared = self._broker.clear(queue, raws, withdrawals.of_raws(queue, raws))
            done |= {i: _change(jobs[i], JobAction.CANCEL.done) for i in itertools.compress(there, cleared)}
        left = [i for i in range(len(jobs)) if i not in done]
        ids = [jobs[i].id for i in left]
        results = self._broker.cancel(ids, withdrawals.of_ids(ids)) if ids else []
        done |= {i: _cancelled(jobs[i], result) for i, result in zip(left, results, strict=True)}
        return [done[i] for i in range(len(jobs))]

    def cancel_members(self, ids: Sequence[str]) -> bool:
        """Cancels those of these jobs whose batch is cancelled by then, except those that wait in a long queue. Whether
        one is cancelled now."""
        long_queues = {queue for queue, count in self._broker.census().pending.items() if count > LONG_QUEUE}
        if long_queues:
            found = zip(ids, self._broker.outlines(ids), strict=True)
            ids = [id for id, one in found if not (one and one.state is State.PENDING and one.queue in long_queues)]
        if not ids:
            return False
        results = self._broker.cancel(ids, self._withdrawals().of_ids(ids), in_cancelled_batch=True)
        return CancelResult.CANCELLED in results

    def _lost(self, changes: list[JobChange]) -> list[JobChange]:
        """Says of a job that was not where its record says it is what to do about it."""
        gone = [change.id for change in changes if change.result == GONE]
        states = dict(zip(gone, self._broker.states(gone), strict=True)) if gone else {}
        for at, change in enumerate(changes):
            if (state := states.get(change.id)) is not None:
                why = f"it is already {state.value}"
                if state in JobAction.CANCEL.states:
                    why = f"it is {state.value} according to its record, but was not found; run 'fileq fsck'"
                changes[at] = replace(change, result=REFUSED, reason=why)
        return changes

    def changed(self, action: JobAction, ids: Sequence[str], cutoff_ms: int) -> int:
        """How many of these jobs are no longer to be changed."""
        return sum(not is_open(action, record, cutoff_ms) for record in self._broker.outlines(ids))

    def _withdrawals(self) -> Withdrawals:
        """Makes the deliveries of webhooks about jobs that are cancelled."""
        from fileq.webhooks.subscriptions import Withdrawals  # needed here only

        return Withdrawals(self._broker, self._config, self._clock)


class BulkRun(Struct, eq=False):
    """One action on one selection. The caller changes each of its batches(); complete() does so.

    `count` jobs were changed. `named` are the first of them; `refused` counts those that could not be in this pass or
    the last one, and `refusals` are the first of these."""

    _actions: BulkActions
    _action: JobAction
    _selection: Selection
    _cutoff_ms: int
    _limit: int | None
    _is_dry_run: bool
    count: int = 0
    refused: int = 0
    _gone: int = 0
    named: list[JobChange] = []
    refusals: list[JobChange] = []

    def batches(self) -> Iterator[list[StoredJob]]:
        """The jobs that are still to be changed. The caller calls change() with each batch before it takes the next."""
        in_vain = PASSES_IN_VAIN if self._limit == 0 else 0
        while in_vain < PASSES_IN_VAIN:
            before = self.count
            self.refused = self._gone = 0
            self.refusals = []
            began_ms = self._actions.now_ms() if self._action is JobAction.CANCEL else 0
            for page in self._selection():
                left = self._open(page, began_ms)
                while left:
                    batch = _first_batch(left, self._limit and self._limit - self.count)
                    left = left[len(batch) :]
                    yield batch
                    if self.count == self._limit:
                        return
            if self._is_dry_run or (self.count == before and not self._gone):
                return
            in_vain = in_vain + 1 if self.count == before else 0

    def _open(self, page: Sequence[StoredJob], began_ms: int) -> list[StoredJob]:
        """Each job once: the broker identifies jobs by id, and the same id may be on a page twice. `began_ms`: when the
        pass of a cancellation began."""
        unique = {job.id: job for job in reversed(page)}.values()
        found = [job for job in unique if is_open(self._action, _judged(self._action, job, began_ms), self._cutoff_ms)]
        return found[::-1]

    def change(self, batch: Sequence[StoredJob]) -> list[JobChange]:
        changes = self._actions.change(self._action, batch, is_dry_run=self._is_dry_run)
        done = [change for change in changes if change.is_done]
        refused = [change for change in changes if change.is_refused]
        self.count += len(done)
        self.refused += len(refused)
        self._gone += len(changes) - len(done) - len(refused)
        self.named += done[: NAMED - len(self.named)]
        self.refusals += refused[: NAMED - len(self.refusals)]
        return changes

    def complete(self) -> ActionReport:
        for batch in self.batches():
            self.change(batch)
        return ActionReport(self.count, self._is_dry_run, tuple([*self.refusals, *self.named][:NAMED]))


def _chosen(action: JobAction, wanted: JobFilter, *, has_deliveries: bool = False) -> JobFilter:
    """The filter for this action: a cancellation leaves the deliveries of webhooks, which tell of it."""
    return replace(wanted, leaves_deliveries=action is JobAction.CANCEL and not has_deliveries, limit=None)


def is_open(action: JobAction, record: Record | None, cutoff_ms: int) -> bool:
    """Whether an action that began at this time has still to change the job."""
    if record is None or record.state not in action.states:
        return False
    if action is JobAction.CANCEL:
        return record.created_ms <= cutoff_ms and not record.is_cancel_requested
    if action is JobAction.RUN:
        return max(record.since_ms, record.created_ms) <= cutoff_ms
    return record.ended_ms <= cutoff_ms


def _judged(action: JobAction, job: StoredJob, began_ms: int) -> Record:
    """What tells whether the action takes a job. Of one whose record is about another copy, which ran under the same id
    before or after it, that is what its own bytes say."""
    if action is JobAction.DELETE:
        is_copy = job.state is State.DEAD and job.known.state is not State.DEAD
    else:  # one that ended after the pass had begun may be what this page has listed
        is_copy = action is JobAction.CANCEL and bool(_why_left_pending(job)) and job.known.ended_ms <= began_ms
    return (replace(job, record=None) if is_copy else job).known


def _why_left_pending(job: StoredJob) -> str:
    """Why a cancellation leaves a job in its queue: a job with its id has ended, and keeps its record."""
    if not job.queue or job.known.state.is_unfinished:
        return ""
    state = job.known.state.value
    return (
        f"it is already {state}; another program pushed its id again, and that copy is pending until a worker claims it"
    )


def _first_batch(jobs: Sequence[StoredJob], limit: int | None) -> list[StoredJob]:
    """The first jobs, as many as are changed in one step; at least one."""
    batch: list[StoredJob] = []
    size = 0
    for job in jobs[: min(BATCH, limit or BATCH)]:
        size += len(job.id.encode(errors="replace"))
        if batch and size > BATCH_ID_BYTES:
            break
        batch.append(job)
    return batch


_CANCELS = {
    CancelResult.CANCELLED: (JobAction.CANCEL.done, ""),
    CancelResult.REQUESTED: (REQUESTED, ""),
    CancelResult.REQUESTED_BEFORE: (REQUESTED_BEFORE, ""),
    CancelResult.ENDED: (GONE, CHANGED_ELSEWHERE),
    CancelResult.UNKNOWN: (UNKNOWN, _NOT_TO_CANCEL),
}


def _change(job: StoredJob, result: str, reason: str = "") -> JobChange:
    return JobChange(job.id, result, _path_of(job), reason)


def _cancelled(job: StoredJob, result: CancelResult) -> JobChange:
    if result is CancelResult.UNKNOWN and job.queue:
        return _change(job, REFUSED, "these bytes are not a job" if job.job is None else OUT_OF_REACH)
    return _change(job, *_CANCELS[result])


def _planned(action: JobAction, job: StoredJob) -> tuple[str, str]:
    if action is JobAction.RETRY and job.job is None:
        return REFUSED, NOT_A_JOB
    if action is JobAction.CANCEL and (why := _why_left_pending(job)):
        return REFUSED, why
    if action is JobAction.CANCEL and job.record is not None and job.record.is_cancel_requested:
        return REQUESTED_BEFORE, ""
    return f"would_{action}", ""


def _path_of(stored: StoredJob) -> str:
    """Where its file is: a file that was moved after the job had ended is retried there."""
    if stored.record is not None and stored.record.moved_to:
        return stored.record.moved_to.decode(errors="backslashreplace")
    return stored.job.filepath if stored.job is not None else ""


def _not_open(action: JobAction, record: Record) -> str:
    """Why the action does not take a job in this state, and what to do instead."""
    if action is JobAction.CANCEL:
        return f"it is already {record.state.value}"
    if action is JobAction.RUN:
        return f"it is {record.state.value}; {action.rule}"
    if action is JobAction.RETRY:
        return why_not_retried(record)
    ends = f"'fileq cancel {printable(record.id)}' cancels it"
    next_step = ends if record.state.is_unfinished else "its record expires after worker.history_ttl"
    return f"it is {record.state.value}, not dead; {next_step}"


def why_not_retried(record: Record) -> str:
    """Of a job that is not dead: how to run it."""
    job, state = decode_or_none(record.raw), record.state
    if state.is_unfinished:
        waits = "a worker will run it" if state is State.PENDING else "a worker will run it when it is due"
        next_step = "it needs no retry" if state is State.RUNNING else waits
    elif job is not None and not job.filepath:
        next_step = "enqueue a new job instead"
    else:
        next_step = "'fileq reprocess --match GLOB' enqueues its file again"
    return f"it is {state.value}, not dead; {next_step}"


def revival(dead: StoredJob, queue: str, *, is_probe: bool = False) -> Revival:
    """The job as new, due now, for `queue` if no record names another. If its file was moved after it had died, the job
    is for the file where it is now. A probe is the next job of its queue, and no open breaker defers it."""
    assert dead.job is not None
    # Its wait is counted from here, not from its creation.
    forgotten = {"retries": 0, "recoveries": 0, "error": None, "failed_at": None}
    before, due = attempt_of(dead.job) - 1, rfc3339_ms(wall_clock_ms())
    fresh = dead.job.but(**forgotten, attempts_before=before, process_at=due, first_error=dead.error or None)
    fresh = fresh.but(breaker_probe=is_probe)
    if dead.record is not None and dead.record.moved_to:
        fresh = fresh.at(dead.record.moved_to)
    return Revival(dead.raw, dead.id, encode(fresh), queue, is_next=is_probe)


def why_stayed(answer: Revived) -> str:
    """Why a job was not put back; empty if it was."""
    if answer.is_revived:
        return ""
    if answer.is_foreign:
        return "another program enqueued it under the id of another job"
    if answer.held_by:
        return f"job {printable(answer.held_by)} has the same unique key and is not finished"
    return LEFT
