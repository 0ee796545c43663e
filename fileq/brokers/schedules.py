"""What a broker promises about schedules: the state of each, and the one atomic step that fires it.

A broker computes no times: the caller says which slot of time it fires and when the next one is. No process leads: any
number of schedulers may fire the same slot, and one of them does. The rules of protocol.py hold here too.

A broker keeps no definitions, only their revision, which it compares. A step of the clock back fires nothing again: the
slot is compared with `next_ms`, never with the time.
"""

from __future__ import annotations

import enum
from collections.abc import Sequence
from typing import Protocol

from msgspec import Struct
from msgspec.structs import replace

from fileq.brokers.types import check_entries
from fileq.core.outcome import FollowUp


class ScheduleState(Struct, frozen=True):
    """What is known of one schedule. Times are the broker's clock."""

    revision: str  # the revision of its definition
    next_ms: int  # the slot that is due next
    last_ms: int = 0  # the slot that was fired, skipped or missed last
    last_job_id: str = ""  # the id of the job that was enqueued last
    is_paused: bool = False
    runs: int = 0  # jobs that were enqueued
    missed: int = 0  # slots without a job


class Overlap(enum.StrEnum):
    """What happens to a slot while the job of an earlier one (`last_job_id`) is unfinished."""

    ALLOW = "allow"  # the new job runs beside it
    SKIP = "skip"  # there is no new job; the slot counts as missed
    QUEUE = "queue"  # the new job waits until the last one has ended (`Record.waits_for`)
    CANCEL = "cancel"  # as QUEUE, and the last one is cancelled as cancel() does it


class Fire(Struct, frozen=True):
    """One slot of one schedule. `revision` and `slot_ms` are what the caller read; `next_ms` comes after it.

    `entry` is the job of this slot, or None if the slot itself is missed. `missed` are all slots that are missed with
    this step. `last_ms` is the last slot that this step ends, if that is not `slot_ms` itself. `cancel_follow_ups` are
    enqueued if CANCEL cancels a job that waits."""

    name: str
    revision: str
    slot_ms: int
    next_ms: int
    entry: FollowUp | None = None
    missed: int = 0
    overlap: Overlap = Overlap.ALLOW
    cancel_follow_ups: tuple[FollowUp, ...] = ()
    last_ms: int = 0


def defined(state: ScheduleState, revision: str, next_ms: int) -> ScheduleState:
    """The state after define_schedule() with another revision."""
    return replace(state, revision=revision, next_ms=next_ms if next_ms > state.last_ms else state.next_ms)


def check_fire(fire: Fire, known: Sequence[str]) -> None:
    """Raises BrokerError or JobError for jobs that can't be enqueued."""
    check_entries([*([] if fire.entry is None else [fire.entry]), *fire.cancel_follow_ups], known)


class FireResult(enum.StrEnum):
    """What `fire` did."""

    FIRED = "fired"
    SKIPPED = "skipped"  # the last job is unfinished, or another job has the unique key; counted as missed
    PASSED = "passed"  # there was no entry
    DUPLICATE = "duplicate"  # a job with this id still has a record
    STALE = "stale"  # another revision, another slot, paused or removed; nothing changed


class Schedules(Protocol):
    """Names match catalog.NAME_RULE; otherwise BrokerError."""

    def schedules(self) -> dict[str, ScheduleState]:
        """The state of every schedule by name, of one moment. Only reads."""

    def define_schedule(self, name: str, revision: str, next_ms: int) -> ScheduleState:
        """Creates a schedule, or gives it another revision and another next slot. Returns its state then.

        Changes nothing if it has this revision already. If `next_ms` does not come after `last_ms`, because a slot was
        fired since the caller looked, the next slot stays as it is: no slot fires twice.

        Atomicity: the schedule. Repeat: changes nothing. Kill -9: defined or not."""

    def remove_schedule(self, name: str) -> bool:
        """Removes the state of a schedule; its jobs stay. False if there is none.

        Atomicity: the schedule. Repeat: False. Kill -9: removed or not."""

    def pause_schedule(self, name: str) -> bool:
        """No slot fires until resume_schedule(). False if there is no such schedule.

        Atomicity: the schedule. Repeat: no effect. Kill -9: paused or not."""

    def resume_schedule(self, name: str, next_ms: int) -> bool:
        """Ends a pause; `next_ms` is the next slot. False, and no change, if the schedule is not paused.

        Atomicity: the schedule. Repeat: False. Kill -9: resumed or still paused."""

    def fire(self, fire: Fire) -> FireResult:
        """Ends a slot: enqueues its job, or counts it as missed, and sets the next one.

        STALE, and no change, unless the schedule has this revision, is not paused, and `slot_ms` is its next slot. The
        overlap is decided in the same step, by the record of `last_job_id`. Raises for a wrong entry as enqueue() does.

        Atomicity: the schedule, its new job with record, ledger, key and counters, and what happens to the last job. Of
        several callers, one fires.
        Repeat: STALE.
        Kill -9: the slot is still due, or it has ended and the next one is set. A cancelled job that waits far from the
        front of its queue may still be there, with its cancellation requested."""
