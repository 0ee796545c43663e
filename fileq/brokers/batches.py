"""What a broker promises about batches: jobs that are counted together. The rules of a batch are in core/batch.py.

A job is a member of at most one batch, the one that its record names (`Record.batch`). If the record names none, the
field `batch_id` of the job is only a label. The rules of protocol.py hold here too, and these besides:

- Whichever call ends a job (settle_and_claim, reap, cancel, clear, fire, a burial while claiming) counts it in its
  batch in the same step, if the batch has not counted it yet. The order within the step: follow-ups are enqueued, the
  member is counted, callbacks that are due are enqueued, then the same for the parent of a batch that has finished.
- revive() of a dead member makes its batch unfinished again in the same step, and its parent too, unless the parent is
  finished. It also lifts the cancellation of the batch and of those around it, so the revived job runs; members that
  were cancelled stay so. Kill -9: the job is dead and the batch cancelled, or neither.
- discard() counts a dead member as deleted.
- A claim of a member whose batch is cancelled has `is_cancelled`: the caller must settle it as cancelled. claim() and
  renew() return it so. The `catch` and `finally` of a child batch run all the same.
- A callback is enqueued as a follow-up is: not if a job with its id still has a record. A callback of a batch with a
  parent becomes a member of the parent.
- A finished batch is kept for KEPT_MS, an unfinished one for ever.
- Each finished batch publishes `batch:finished` (wire_events.py). TurnReply.finished_batches names those that a call
  of settle_and_claim has finished.

Names match catalog.NAME_RULE; otherwise BrokerError.
"""

from __future__ import annotations

import enum
from collections.abc import Sequence
from typing import Protocol

from msgspec import Struct

from fileq.brokers.catalog import check_name
from fileq.brokers.types import check_entries
from fileq.core.batch import LEVELS_MAX, Batch, Callback, callback_id
from fileq.core.errors import BrokerError
from fileq.core.job import decode
from fileq.core.outcome import FollowUp
from fileq.core.own_jobs import check_batch, check_type

MEMBERS_PAGE = 500
CHILDREN_CANCELLED = 1_000  # child batches that one call of cancel_batch() cancels


class NewBatch(Struct, frozen=True):
    """A batch to create; the fields are those of core.batch.Batch."""

    id: str
    name: str = ""
    parent: str = ""
    allow_failures: bool = False
    callbacks: tuple[Callback, ...] = ()
    info: bytes = b""
    is_own: bool = False  # it is the batch of a delivery


class BatchWireEvent(Struct, frozen=True):
    """What is published when a batch has finished. The order of the fields is that of the JSON."""

    event: str
    batch_id: str
    total: int
    completed: int
    dead: int
    cancelled: int
    deleted: int
    at: int = 0  # the broker's time in ms since the epoch


class BatchPage(Struct, frozen=True):
    """Batches, newest first. `next_cursor` is empty at the end."""

    batches: tuple[Batch, ...]
    next_cursor: str = ""


class MemberPage(Struct, frozen=True):
    """Ids of members, in no defined order. `next_cursor` is empty at the end."""

    ids: tuple[str, ...]
    next_cursor: str = ""


class JoinResult(enum.StrEnum):
    """What `join_batch` did with one job."""

    JOINED = "joined"  # it is a member now; counted at once if it has ended
    MEMBER = "member"  # it was a member of this batch already
    ELSEWHERE = "elsewhere"  # it is unfinished or dead, and a member of another batch
    CLOSED = "closed"  # the batch no longer accepts jobs, or does not exist


def check_new_batch(new: NewBatch, known: Sequence[str]) -> None:
    """Raises BrokerError for wrong names and callbacks, and for callbacks in a queue that is not among the known;
    JobError for a callback, or the batch of a delivery, that only fileq itself may make."""
    check_name("batch", new.id)
    if not new.is_own:
        check_batch(new.id)
        check_batch(new.parent)
    if new.parent:
        check_name("batch", new.parent)
    for callback in new.callbacks:
        job = decode(callback.raw)
        check_type(job.type)
        if (id := job.id) != callback_id(new.id, callback.kind):
            raise BrokerError(f"batch {new.id}: its {callback.kind} has the id {id!r}, not <batch>.{callback.kind}")
    if len({callback.kind for callback in new.callbacks}) != len(new.callbacks):
        raise BrokerError(f"batch {new.id} has two callbacks of one kind; give at most one then, catch and finally")
    check_entries([follow_up_of(callback) for callback in new.callbacks], known)


def follow_up_of(callback: Callback) -> FollowUp:
    """The follow-up that enqueues a callback. Its batch is that of the caller: the parent, if there is one."""
    return FollowUp(decode(callback.raw), callback.queue, is_own=True)


def parent_refused(id: str, parent: Batch | None, name: str) -> BrokerError:
    """Why this batch can't be created as a member of the batch of that name."""
    if parent is None:
        return BrokerError(f"batch {id} can't be created: its parent {name} does not exist")
    reason = "is cancelled" if parent.is_cancelled else f"is {parent.state}"
    return BrokerError(f"batch {id} can't be created: its parent {name} {reason} and no longer accepts jobs")


def too_deep(id: str) -> BrokerError:
    return BrokerError(f"batch {id} can't be created: at most {LEVELS_MAX} batches can be nested")


class Batches(Protocol):
    """Besides these verbs: Entry.joins and FollowUp.joins make a job a member of the batch that its `batch_id` names.

    enqueue() answers REFUSED, and changes nothing, for an entry that joins a batch that is not open or is cancelled. A
    follow-up joins also while its batch is sealed, if the job that it follows is an unfinished member of the same
    batch. A follow-up whose batch takes no jobs is enqueued all the same, without being a member; so is one that would
    join the batch of a delivery (core/own_jobs.py) and follows no unfinished member of it."""

    def create_batch(self, new: NewBatch) -> bool:
        """Creates an open batch; as a member of its parent, if it has one. False, and no change, if the id is taken.

        Raises BrokerError if the parent does not exist, takes no jobs, or if there would be more than LEVELS_MAX.

        Atomicity: the batch and the count of its parent. Repeat: False. Kill -9: created or not."""

    def seal_batch(self, id: str) -> bool:
        """Seals an open batch; finishes it if nothing is unfinished. False, and no change, if it is not open.

        Atomicity: the batch, its callbacks and its parents. Repeat: False. Kill -9: sealed or not."""

    def cancel_batch(self, id: str, *, untouched_since_ms: int | None = None) -> bool:
        """Marks an unfinished batch as cancelled and seals it; finishes it if nothing is unfinished.

        Running members learn of it at their next renewal (CANCEL), waiting ones are cancelled when they are claimed,
        or by cancel(); not the `catch` and `finally` of a child batch. Child batches that are unfinished are cancelled
        too, at most LEVELS_MAX levels and CHILDREN_CANCELLED of them. With `untouched_since_ms`, only an open batch
        that nothing was added to since then. False, and no change, if it is finished, cancelled and sealed already,
        unknown, or was touched. (A batch that a death has cancelled may still be open.)

        Atomicity: each batch with its callbacks. Repeat: False. Kill -9: cancelled or not; a child that is left is
        cancelled by the reconciler, because its parent is."""

    def join_batch(self, id: str, job_ids: Sequence[str]) -> list[JoinResult]:
        """Makes jobs that exist already members of an open batch. One without a record counts as completed.

        The record of a job that was in no batch names this one afterwards. A job that has ended is counted at once.

        Atomicity: each job with the count. Repeat: MEMBER. Kill -9: each job is a member or not."""

    def batches_by_id(self, ids: Sequence[str]) -> list[Batch | None]:
        """Each batch of one moment; None where there is none, also for a name that none can have. Only reads."""

    def batch_page(self, cursor: str = "", limit: int = 100, *, unfinished: bool = False) -> BatchPage:
        """The batches, newest first; with `unfinished` only those. Only reads.

        A batch that is created or ends during the iteration may be missed."""

    def unfinished_members(self, id: str, cursor: str = "", limit: int = MEMBERS_PAGE) -> MemberPage:
        """Members that the batch has not counted, about `limit` of them, without child batches. Only reads."""

    def dead_members(self, id: str, cursor: str = "", limit: int = MEMBERS_PAGE) -> MemberPage:
        """Members that are dead, about `limit` of them. Only reads; child batches are not among them."""

    def count_members(self, id: str, job_ids: Sequence[str]) -> int:
        """Counts those of these members that have ended without being counted, and returns how many.

        For what a lost key left. The record of each is read in the same step: one that is
        completed, dead or cancelled counts so, a member without a record counts as deleted. May finish the batch.

        Atomicity: the whole call. Repeat: 0. Kill -9: all or none."""
