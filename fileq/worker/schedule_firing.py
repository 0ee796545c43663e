"""Fires schedules: asks core/schedule.py what is to be done about the slots that are due, and tells the broker.

The scheduler calls it with what promote() returned, so it costs no call while nothing is due. Any number of workers do
the same; the broker lets one of them end each slot. Only the broker's clock counts.

A schedule that this worker can't fire is reported once, and then looked at once a second, so that a broken one neither
delays the others nor keeps the scheduler busy. What a kill -9 leaves: slots that are still due; any other worker ends
them.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from fileq.brokers.protocol import FullBroker
from fileq.brokers.schedule_definitions import KnownSchedule, known_schedules, repair
from fileq.brokers.schedules import Fire, FireResult, Overlap
from fileq.brokers.types import Promoted
from fileq.config import Config
from fileq.core.errors import BrokerRemoved, BrokerUnavailable
from fileq.core.events import Emit, ScheduleBroken, ScheduleFired, ScheduleMissed, ScheduleRestored, ignore
from fileq.core.job import rfc3339_ms
from fileq.core.outcome import FollowUp
from fileq.core.schedule import ScheduleStep, job_id_of, job_of, steps
from fileq.handlers.registry import REGISTRY
from fileq.webhooks.subscriptions import Withdrawals
from fileq.worker.schedule_registration import ScheduleRegistration

BROKEN_PAUSE_MS = 1000
NO_WORKER = "no worker fired it in time"
UNFINISHED = "the last job of the schedule has not ended"


class ScheduleFiring:
    """`monotonic` is for the pauses only."""

    def __init__(
        self,
        config: Config,
        broker: FullBroker,
        *,
        emit: Emit = ignore,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._config = config
        self._broker = broker
        self._emit = emit
        self._monotonic = monotonic
        self._default_queue = config.producer.default_priority
        self._registration = ScheduleRegistration(config, broker, emit=emit, monotonic=monotonic)
        self._broken: dict[str, str] = {}  # name → what is wrong
        self._looks_again_s = 0.0

    def turn(self, promoted: Promoted) -> int | None:
        """Fires what is due. Returns when to look again, on the broker's clock; None if there is nothing to wait for.

        Raises BrokerUnavailable; a later turn continues."""
        self._registration.turn(promoted.now_ms)
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
                self._emit(ScheduleBroken(known.name, str(error)))
            return False
        return True

    def _ended(self, names: set[str]) -> None:
        for name in sorted(names):
            del self._broken[name]
            self._emit(ScheduleRestored(name))

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
            self._emit(ScheduleMissed(name, step.missed, time, NO_WORKER))
        if result is FireResult.SKIPPED:
            self._emit(ScheduleMissed(name, 1, time, UNFINISHED))
        elif result is FireResult.FIRED:
            self._emit(ScheduleFired(name, id, time, max(0, now_ms - step.last_ms)))
