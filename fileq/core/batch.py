"""A batch: jobs that are counted together, and the jobs that follow when they have ended. Rules only, no I/O.

The functions here change a Batch and return the callbacks that are due. The brokers in Python call them inside their
atomic step; the Redis broker does the same in lua/prelude/batches.lua. A batch with a parent is one member of it.

A member is counted when it is removed from the members that are not counted yet, so it is counted once, whichever
process sees its end first. The brokers keep these members; a Batch knows only their number.
"""

from __future__ import annotations

import enum

import msgspec
from msgspec import UNSET, Raw, Struct

from fileq.core.job import Job, State
from fileq.core.public_name import public

LEVELS_MAX = 8  # a batch, its parent, and so on
KEPT_MS = 30 * 24 * 3600 * 1000  # how long a finished batch is kept
UNTOUCHED_MS = 24 * 3600 * 1000  # after this time an open batch that nothing was added to is cancelled

# Stands in the stored bytes of a callback for the facts, which are known only when it is due. `batch_facts` comes
# before anything that a user chose freely, so the first one is the one to replace.
FACTS_MARK = msgspec.json.encode("\0facts")


class BatchState(enum.StrEnum):
    OPEN = "open"  # jobs can be added; it cannot finish
    SEALED = "sealed"  # only its own running jobs can add jobs
    FINISHED = "finished"  # sealed, and no member is unfinished


class Ending(enum.StrEnum):
    COMPLETED = "completed"
    DEAD = "dead"
    CANCELLED = "cancelled"
    DELETED = "deleted"  # a dead job that was deleted, or a member that has no record any more


# How a job in this state counts. The others are unfinished.
ENDINGS_OF_STATES = {State.COMPLETED: Ending.COMPLETED, State.DEAD: Ending.DEAD, State.CANCELLED: Ending.CANCELLED}


class CallbackKind(enum.StrEnum):
    THEN = "then"
    CATCH = "catch"
    FINALLY = "finally"


@public()
class BatchFacts(Struct, frozen=True):
    """A batch as it was in the step that enqueued this callback. `first_dead` is the member that died first, a job or a
    child batch, and `first_error` its error; both are empty if none died."""

    id: str
    callback: str  # then, catch or finally
    total: int
    completed: int
    dead: int
    cancelled: int
    deleted: int
    first_dead: str = ""
    first_error: str = ""


class Callback(Struct, frozen=True):
    """A job that a batch enqueues, complete but for its facts: its id is callback_id(), its `batch_facts` the mark."""

    kind: CallbackKind
    raw: bytes
    queue: str


class Batch(Struct, omit_defaults=True):
    """One batch at one moment. The brokers in Python keep it so, and the functions below change it in place.

    total = unfinished + completed + dead + cancelled + deleted. `unfinished` are the members that are not counted yet,
    child batches included; `running` are those of them that a slot holds, which only Batches.batches_by_id() and
    batch_page() find out. Times are the broker's clock; 0 means not yet."""

    id: str
    name: str = ""  # for people; empty if the id says it all
    parent: str = ""
    allow_failures: bool = False
    callbacks: tuple[Callback, ...] = ()
    info: bytes = b""  # JSON that the creator keeps here, such as a delivery
    state: BatchState = BatchState.OPEN
    is_cancelled: bool = False
    created_ms: int = 0
    touched_ms: int = 0  # when a job was added last; at first, when it was created
    sealed_ms: int = 0
    finished_ms: int = 0
    total: int = 0
    unfinished: int = 0
    running: int = 0
    completed: int = 0
    dead: int = 0
    cancelled: int = 0
    deleted: int = 0
    fired: tuple[CallbackKind, ...] = ()
    dead_id: str = ""  # of the member that died first
    dead_error: str = ""
    is_counted: bool = False  # its parent has counted it

    @property
    def waiting(self) -> int:
        return self.unfinished - self.running

    @property
    def is_success(self) -> bool:
        """Whether no member ended in another way than completed. A cancelled batch may lack jobs that were never
        added, so it is none."""
        return not (self.dead or self.cancelled or self.deleted or self.is_cancelled)

    @property
    def is_takeable(self) -> bool:
        return self.state is BatchState.OPEN and not self.is_cancelled


def callback_id(batch_id: str, kind: CallbackKind) -> str:
    return f"{batch_id}.{kind}"


def runs_though_cancelled(id: str) -> bool:
    """Whether a member of this id runs although its batch is cancelled. `catch` and `finally` of a child batch do: the
    death that makes them due also cancels the parent, whose members they are. No other member has such an id
    (core/own_jobs.py)."""
    return id.endswith((f".{CallbackKind.CATCH}", f".{CallbackKind.FINALLY}"))


def callback_job(job: Job, batch_id: str, kind: CallbackKind) -> Job:
    return job.but(id=callback_id(batch_id, kind), batch_facts=Raw(FACTS_MARK))


def facts_of(job: Job) -> BatchFacts | None:
    """Of a callback that was enqueued. None for another job, and for what another program has put there."""
    if job.batch_facts is UNSET:
        return None
    try:
        return _facts_decoder.decode(job.batch_facts)
    except (msgspec.DecodeError, ValueError):
        return None


def add_member(batch: Batch, now_ms: int) -> None:
    batch.total += 1
    batch.unfinished += 1
    batch.touched_ms = now_ms


def count_ending(batch: Batch, ending: Ending, member: str, error: str) -> list[Callback]:
    """Counts a member that was not counted yet. The first death of all fires `catch`, and cancels the rest unless
    failures are allowed. The caller calls finish() afterwards."""
    batch.unfinished -= 1
    setattr(batch, ending, getattr(batch, ending) + 1)
    if ending is not Ending.DEAD:
        return []
    if not batch.allow_failures:
        batch.is_cancelled = True
    if batch.dead_id:
        return []
    batch.dead_id, batch.dead_error = member, error
    return _unfired(batch, CallbackKind.CATCH)


def count_child(parent: Batch, child: Batch) -> list[Callback]:
    """Counts a finished batch in its parent, as count_ending() does it."""
    child.is_counted = True
    if child.is_success:
        return count_ending(parent, Ending.COMPLETED, child.id, "")
    error = f"batch {child.id} failed: {child.dead} dead, {child.cancelled} cancelled, {child.deleted} deleted"
    if child.dead_error:
        error += f"; first {child.dead_error}"
    return count_ending(parent, Ending.DEAD, child.id, error)


def finish(batch: Batch, now_ms: int) -> list[Callback]:
    """Finishes a sealed batch without unfinished members: `then` is due if all completed, `finally` in every case, each
    once. Returns nothing if the batch is not done."""
    if batch.state is not BatchState.SEALED or batch.unfinished:
        return []
    batch.state, batch.finished_ms = BatchState.FINISHED, now_ms
    due = [CallbackKind.THEN, CallbackKind.FINALLY] if batch.is_success else [CallbackKind.FINALLY]
    return [callback for kind in due for callback in _unfired(batch, kind)]


def seal(batch: Batch, now_ms: int) -> None:
    """The caller calls finish() afterwards: an empty batch is done at once."""
    if batch.state is BatchState.OPEN:
        batch.state, batch.sealed_ms = BatchState.SEALED, now_ms


def cancel(batch: Batch, now_ms: int) -> None:
    """Cancels and seals. The members that wait are cancelled later, when they are claimed or by the reconciler."""
    if batch.state is not BatchState.FINISHED:
        batch.is_cancelled = True
        seal(batch, now_ms)


def is_cancellable(batch: Batch, untouched_since_ms: int | None = None) -> bool:
    """Whether cancel() changes it. With a time, only if it is open and nothing was added to it since then."""
    if untouched_since_ms is not None:
        return batch.state is BatchState.OPEN and batch.touched_ms < untouched_since_ms
    return batch.state is BatchState.OPEN or (batch.state is BatchState.SEALED and not batch.is_cancelled)


def revive(batch: Batch, parent: Batch | None) -> None:
    """A dead member waits again, so the batch is unfinished. `then` may still fire, `finally` not a second time. The
    parent counts the batch a second time, unless it has finished: a finished parent stays so."""
    batch.dead -= 1
    batch.unfinished += 1
    if batch.state is not BatchState.FINISHED:
        return
    batch.state, batch.finished_ms = BatchState.SEALED, 0
    if parent is not None and batch.is_counted and parent.state is not BatchState.FINISHED:
        batch.is_counted = False
        parent.dead -= 1
        parent.unfinished += 1


def delete_dead(batch: Batch) -> None:
    batch.dead -= 1
    batch.deleted += 1


def _unfired(batch: Batch, kind: CallbackKind) -> list[Callback]:
    """The callback of this kind with the facts of now, once."""
    found = [c for c in batch.callbacks if c.kind is kind and kind not in batch.fired]
    if not found:
        return []
    batch.fired = (*batch.fired, kind)
    counts = (batch.total, batch.completed, batch.dead, batch.cancelled, batch.deleted)
    facts = msgspec.json.encode(BatchFacts(batch.id, kind, *counts, batch.dead_id, batch.dead_error))
    return [Callback(c.kind, c.raw.replace(FACTS_MARK, facts, 1), c.queue) for c in found]


_facts_decoder = msgspec.json.Decoder(BatchFacts)
