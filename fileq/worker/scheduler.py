"""Promotes jobs that are due from `scheduled` to their queues. Owns no thread; any number of schedulers may run.

One of them does it for the fleet, the holder of a lease. The others only look for cancellations, while jobs run here.
Two that promote do no harm: the broker moves each job once.

Due times are points on the broker's clock. After that clock has stepped back, by an hour for example, every job would
wait for an hour longer. So the scheduler compares it with the monotonic clock of this process. After a step, and at its
start, because the step may have been while no scheduler ran, it realigns all scheduled jobs: one page a turn, so that
promotions go on meanwhile.

The same call says when a schedule is due; ScheduleFiring fires it. It also says whether a cancellation of running
jobs was requested since the last turn. Then the worker renews its leases soon, which tells it what to cancel. And it
says when a deadline is to be looked at, for which the scheduler wakes another loop (deadlines.py).

Once an hour it sweeps the unique keys that no unfinished job has any more, which only frees memory.

What a kill -9 leaves: each due job promoted or not, each page realigned or not; any other scheduler promotes the rest,
and the next one that starts realigns the rest.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from functools import partial

from msgspec.structs import replace

from fileq.brokers.protocol import Broker, DueReports, FullBroker
from fileq.brokers.schedule_definitions import (
    KIND,
    KnownSchedule,
    broker_now_ms,
    define,
    known_schedules,
    remove,
    repair,
)
from fileq.brokers.schedules import Fire, FireResult, Overlap
from fileq.brokers.types import STEP_TOLERANCE_MS, Promoted
from fileq.config import Config
from fileq.core import events
from fileq.core.errors import BrokerRemoved, BrokerUnavailable, Conflict
from fileq.core.job import rfc3339_ms
from fileq.core.outcome import FollowUp
from fileq.core.schedule import (
    FROM_CONFIGURATION,
    ScheduleDocument,
    ScheduleStep,
    encode_document,
    job_id_of,
    job_of,
    steps,
)
from fileq.handlers.registry import REGISTRY
from fileq.webhooks.subscriptions import Withdrawals
from fileq.worker.lease import Lease

LEASE_S = 1.0  # how often the lease is renewed, and asked for
CANCELS_S = 0.5  # how often a scheduler without the lease looks for cancellations while jobs run
# The longest pause if the broker does not report changes: another process may schedule a job that is due at once.
LONGEST_PAUSE_S = 0.04
LONGEST_WATCHED_PAUSE_S = 1.0  # if it does: its clock may step, and a connection may be lost without a sign
PAGE = 500
SWEEP_EVERY_S = 3600.0


class Scheduler:
    name = "scheduler"

    def __init__(
        self,
        broker: Broker,
        *,
        firing: ScheduleFiring | None = None,
        cancel_requested: Callable[[], None] = lambda: None,
        deadline_reached: Callable[[], object] = lambda: None,
        is_busy: Callable[[], bool] = lambda: True,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._broker = broker
        self._lease = Lease(broker, "scheduler", LEASE_S, monotonic=monotonic)
        self._firing = firing
        self._is_busy = is_busy
        self._cancel_requested = cancel_requested
        self._deadline_reached = deadline_reached
        self._cancel_requests: int | None = None  # that were known in the last turn
        self._monotonic = monotonic
        self._unaligned: int | None = 0  # the offset of the next page to realign
        self._sweep_at_s = monotonic()
        self._swept = ""  # the cursor of the sweep that is under way
        self._last: tuple[int, float] | None = None  # the broker's time in the last turn, and our time after that call
        self.wake = threading.Event()  # cuts the pause short
        if isinstance(broker, DueReports):
            broker.report_due_changes(self.wake.set)

    def turn(self) -> float:
        """Promotes the jobs that are due, if this process does that. Returns the seconds until the next turn."""
        self.wake.clear()
        if not self._lease.is_mine():
            return self._stand_by()
        called_s = self._monotonic()
        promoted = self._broker.promote(PAGE)
        self._note_cancels(promoted.cancel_requests)
        deadline_ms = promoted.next_deadline_ms
        if deadline_ms is not None and deadline_ms <= promoted.now_ms:
            self._deadline_reached()
            deadline_ms = None  # until the other loop has looked, there is nothing to wait for
        if self._has_stepped_back(promoted.now_ms, called_s):
            self._unaligned = 0
        self._last = promoted.now_ms, self._monotonic()
        if self._unaligned is not None:
            self._unaligned = self._broker.realign(self._unaligned, PAGE)
        if called_s >= self._sweep_at_s:
            self._sweep(called_s)
        fires_ms = self._firing.turn(promoted) if self._firing is not None else None
        if promoted.count == PAGE:
            return 0.0
        due_ms = [due_ms for due_ms in (promoted.next_due_ms, fires_ms, deadline_ms) if due_ms is not None]
        longest_s = LONGEST_WATCHED_PAUSE_S if promoted.is_watched and not self._has_pages else LONGEST_PAUSE_S
        if not due_ms:
            return longest_s
        return min(longest_s, max(0.001, (min(due_ms) - promoted.now_ms) / 1000))

    def at_end(self) -> None:
        self._lease.give_back()

    def _stand_by(self) -> float:
        self._last = None  # its successor may have corrected what a step of the clock did
        if self._firing is not None:
            self._firing.keep_own()
        if self._cancel_requests is None or self._is_busy():
            self._note_cancels(self._broker.cancel_requests())
        return CANCELS_S

    def _note_cancels(self, requests: int) -> None:
        if self._cancel_requests not in (None, requests):
            self._cancel_requested()
        self._cancel_requests = requests

    @property
    def _has_pages(self) -> bool:
        """More pages are to be realigned or swept, one a turn."""
        return self._unaligned is not None or bool(self._swept)

    def _sweep(self, now_s: float) -> None:
        """Sweeps one page of the unique keys; the next one in the next turn, and all of them again in an hour."""
        cursor = self._broker.sweep_unique(self._swept)
        self._swept = cursor or ""
        if cursor is None:
            self._sweep_at_s = now_s + SWEEP_EVERY_S

    def _has_stepped_back(self, now_ms: int, called_s: float) -> bool:
        """Whether less time has passed on the broker's clock than here since the last turn, by more than a second."""
        if self._last is None:
            return False
        last_ms, last_s = self._last
        return now_ms - last_ms < (called_s - last_s) * 1000 - STEP_TOLERANCE_MS


# Fires schedules: asks core/schedule.py what is to be done about the slots that are due, and tells the broker.
#
# The scheduler calls it with what promote() returned, so it costs no call while nothing is due. Any number of workers
# do the same; the broker lets one of them end each slot. Only the broker's clock counts.
#
# A schedule that this worker can't fire is reported once, and then looked at once a second, so that a broken one
# neither delays the others nor keeps the scheduler busy.
#
# The schedules of a configuration are written when a worker starts or reloads, and looked at each minute. Any worker
# fires any schedule, whichever configuration it comes from. A definition with the same text changes
# nothing. Of workers whose configurations have different texts under one name, the one that started last wins.
#
# A schedule that was deleted from a configuration: the worker that starts without it marks it as unclaimed, which
# stops nothing. A running worker whose configuration has it removes the mark within a minute. If none does for
# CLAIM_S, any worker removes the schedule. So workers with different configurations leave each other's schedules
# alone.
#
# What a kill -9 leaves: slots that are still due, which any other worker ends; some schedules written and others not;
# half of one is repaired within a minute (see brokers/schedule_definitions.py).


BROKEN_PAUSE_MS = 1000
NO_WORKER = "no worker fired it in time"
UNFINISHED = "the last job of the schedule has not ended"
LOOK_EVERY_S = 60.0
CLAIM_S = 300.0


class ScheduleFiring:
    """`monotonic` is for the pauses only."""

    def __init__(
        self,
        config: Config,
        broker: FullBroker,
        *,
        emit: events.Emit = events.ignore,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._config = config
        self._broker = broker
        self._emit = emit
        self._monotonic = monotonic
        self._default_queue = config.producer.default_priority
        self._broken: dict[str, str] = {}  # those that can't be fired: name → what is wrong
        self._looks_again_s = 0.0
        self._own = {
            name: ScheduleDocument(definition=settings.definition, source=FROM_CONFIGURATION, is_paused=settings.paused)
            for name, settings in config.schedules.items()
        }
        self._keeps_s = monotonic()
        self._is_written = False
        self._unwritten: set[str] = set()  # those that can't be written

    def turn(self, promoted: Promoted) -> int | None:
        """Fires what is due. Returns when to look again, on the broker's clock; None if there is nothing to wait for.

        Raises BrokerUnavailable; a later turn continues."""
        self.keep_own(promoted.now_ms)
        next_ms, now_ms = promoted.next_fire_ms, promoted.now_ms
        if next_ms is None or next_ms > now_ms:
            if self._broken:
                self._ended(set(self._broken))
            return next_ms
        if self._broken and self._monotonic() < self._looks_again_s:
            return now_ms + BROKEN_PAUSE_MS
        self._looks_again_s = self._monotonic() + BROKEN_PAUSE_MS / 1000
        return now_ms if self._fire_all(now_ms) else now_ms + BROKEN_PAUSE_MS

    def _fire_all(self, now_ms: int) -> bool:
        """Returns whether another turn should follow at once: a slot ended, here or in another worker."""
        due = [
            known
            for known in known_schedules(self._broker).values()
            if known.state is not None and not known.state.is_paused and known.state.next_ms <= now_ms
        ]
        broken = {known.name for known in due if not self._try(known, now_ms)}
        self._ended(self._broken.keys() - broken)
        return len(broken) < len(due) or not due

    def _try(self, known: KnownSchedule, now_ms: int) -> bool:
        """Whether this worker can fire the schedule."""
        try:
            if known.problem:
                raise ValueError(known.problem)
            if known.is_complete:
                self._fire(known, now_ms)
            else:
                repair(self._broker, known, now_ms)
        except (BrokerUnavailable, BrokerRemoved):
            raise
        except Exception as error:  # of any kind: it stops only this schedule
            if self._broken.get(known.name) != str(error):
                self._broken[known.name] = str(error)
                self._emit(events.ScheduleBroken(known.name, str(error)))
            return False
        return True

    def _ended(self, names: set[str]) -> None:
        for name in sorted(names):
            del self._broken[name]
            self._emit(events.ScheduleRestored(name))

    def _fire(self, known: KnownSchedule, now_ms: int) -> None:
        document, state = known.document, known.state
        assert document is not None
        assert state is not None
        definition = document.definition
        task = REGISTRY.task(definition.type)
        queue = definition.priority or (task.priority if task is not None else "") or self._default_queue
        for step in steps(definition, state.next_ms, now_ms):
            entry, id = None, job_id_of(known.name, step.last_ms)
            if step.is_fired:
                job = job_of(definition, id=id, slot_ms=step.last_ms, missed=step.missed, queue=queue, now_ms=now_ms)
                entry = FollowUp(job, queue, is_own=True)
            fire = Fire(
                known.name,
                state.revision,
                step.slot_ms,
                step.next_ms,
                entry,
                step.missed,
                Overlap(definition.overlap),
                cancel_follow_ups=self._withdrawn(definition.overlap, state.last_job_id, now_ms),
                last_ms=step.last_ms,
            )
            result = self._broker.fire(fire)
            if result is FireResult.STALE:  # another worker was faster, or an operator changed the schedule
                return
            self._report(known.name, step, id, result, now_ms)

    def _withdrawn(self, overlap: str, last_job_id: str, now_ms: int) -> tuple[FollowUp, ...]:
        """The deliveries of webhooks about the last job, if this time may cancel it."""
        if overlap != Overlap.CANCEL or not last_job_id:
            return ()
        found = Withdrawals(self._broker, self._config, lambda: now_ms).of_ids([last_job_id])
        return tuple(found.get(last_job_id, ())) if found else ()

    def _report(self, name: str, step: ScheduleStep, id: str, result: FireResult, now_ms: int) -> None:
        time = rfc3339_ms(step.last_ms)
        if step.missed:
            self._emit(events.ScheduleMissed(name, step.missed, time, NO_WORKER))
        if result is FireResult.SKIPPED:
            self._emit(events.ScheduleMissed(name, 1, time, UNFINISHED))
        elif result is FireResult.FIRED:
            self._emit(events.ScheduleFired(name, id, time, max(0, now_ms - step.last_ms)))

    # the schedules of the configuration

    def keep_own(self, now_ms: int | None = None) -> None:
        """`now_ms` is the broker's time, if it is known. Costs nothing but once a minute, then one call if there is no
        schedule at all. Raises BrokerUnavailable."""
        if self._monotonic() < self._keeps_s:
            return
        if self._own or self._broker.catalog_revision(KIND):
            known = known_schedules(self._broker)
            now_ms = broker_now_ms(self._broker) if now_ms is None else now_ms
            if not self._is_written:
                self._write(known, now_ms)
            else:
                self._maintain(known, now_ms)
        self._is_written = True
        self._keeps_s = self._monotonic() + LOOK_EVERY_S

    def _write(self, known: dict[str, KnownSchedule], now_ms: int) -> None:
        for name, document in self._own.items():
            found = known.get(name)
            is_same = found is not None and found.document is not None and found.document.without_note == document
            if found is None or not is_same or not found.is_complete:
                self._change(name, partial(self._define, name, document, now_ms))
        for name, found in known.items():
            other = found.document
            if name in self._own or other is None or not other.is_configured or other.unclaimed_ms:
                continue
            self._emit(events.ScheduleUnclaimed(name, CLAIM_S))
            marked, revision = encode_document(replace(other, unclaimed_ms=now_ms)), found.catalog_revision
            self._change(name, partial(self._broker.put_document, KIND, name, marked, revision))

    def _maintain(self, known: dict[str, KnownSchedule], now_ms: int) -> None:
        for name, document in self._own.items():
            found = known.get(name)
            if found is None or (found.document is not None and found.document.unclaimed_ms):
                self._change(name, partial(self._define, name, document, now_ms))
        for name, found in known.items():
            unclaimed_ms = found.document.unclaimed_ms if found.document is not None else 0
            if name not in self._own and unclaimed_ms and now_ms - unclaimed_ms >= CLAIM_S * 1000:
                self._change(name, partial(self._remove, name, found))
            else:
                self._change(name, partial(repair, self._broker, found, now_ms))

    def _define(self, name: str, document: ScheduleDocument, now_ms: int) -> None:
        define(self._broker, name, document, now_ms)
        self._emit(events.ScheduleDefined(name, document.definition.cron, document.definition.timezone))

    def _remove(self, name: str, found: KnownSchedule) -> None:
        if remove(self._broker, name, found.catalog_revision):
            self._emit(events.ScheduleRemoved(name))

    def _change(self, name: str, step: Callable[[], object]) -> None:
        """One schedule that can't be written stops only itself, and is reported once."""
        try:
            step()
        except (BrokerUnavailable, BrokerRemoved):
            raise
        except Conflict:
            pass  # another worker changed it at the same moment; the next look sees what it is now
        except Exception as error:
            if name not in self._unwritten:
                self._unwritten.add(name)
                self._emit(events.ScheduleBroken(name, str(error)))
        else:
            self._unwritten.discard(name)
