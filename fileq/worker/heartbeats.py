"""The heartbeats of a worker's slots: registers the slots, renews their leases, applies what the broker says of them.

Never renews while a call of settle_and_claim is in flight: the two would contradict each other about a slot's claim.

What a kill -9 leaves: registered slots whose heartbeats run out. Then a reaper gives their jobs back.
"""

from __future__ import annotations

from collections.abc import Callable

from fileq.brokers.protocol import Broker
from fileq.brokers.types import LeaseStatus, Renewal, WorkerInfo
from fileq.core.claim import Claim
from fileq.core.events import Emit, SlotReplaced, fenced
from fileq.worker.attempts import Attempts, Gates
from fileq.worker.executors.protocol import Executor
from fileq.worker.slots import Running, Settling, Slot, Slots, Waiting

CANCELS_EVERY_S = 0.5  # the shortest time between two renewals because of cancellations


class Heartbeats:
    """Renews every `every_s` seconds. `due_s` is the time of the next renewal, by the monotonic clock."""

    def __init__(
        self,
        broker: Broker,
        slots: Slots,
        attempts: Attempts,
        executor: Executor,
        gates: Gates,
        *,
        is_draining: Callable[[], bool],
        every_s: float,
        emit: Emit,
        monotonic: Callable[[], float],
    ) -> None:
        self._broker = broker
        self._slots = slots
        self._attempts = attempts
        self._executor = executor
        self._breakers = gates.breakers
        self._limits = gates.limits
        self._roots = gates.roots
        self._is_draining = is_draining
        self._every_s = every_s
        self._emit = emit
        self._monotonic = monotonic
        self._registered_changes = (-1, -1, -1, False)  # what the broker knows, see _changes()
        self._renewed_s = 0.0
        self.due_s = 0.0

    def start(self) -> None:
        self._breakers.remember_resets(self._broker.breaker_resets())
        self.register()
        self.due_s = self._monotonic() + self._every_s

    def renew_now(self) -> None:
        """Makes a renewal due at once."""
        self.due_s = self._monotonic()

    def renew_soon(self) -> None:
        """Makes a renewal due because a cancellation was requested somewhere. Many requests share one renewal."""
        self.due_s = min(self.due_s, max(self._monotonic(), self._renewed_s + CANCELS_EVERY_S))

    @property
    def is_renewal_due(self) -> bool:
        return self._monotonic() >= self.due_s

    @property
    def is_registration_due(self) -> bool:
        return self._changes() != self._registered_changes

    def _changes(self) -> tuple[int, int, int, bool]:
        changes = self._breakers.change_count, self._limits.change_count, self._roots.change_count
        return *changes, self._is_draining()

    def register(self) -> None:
        """Registers all slots, with the states that the breakers, limits and roots have now, and whether it drains."""
        changes = self._changes()
        info, first = self._info(), self._info(is_first=True)
        extra = self._info(is_extra=True) if self._slots.has_extra else info
        self._broker.register(
            {
                id: extra if self._slots.is_extra(slot) else first if slot.number == 0 else info
                for id, slot in self._slots.by_id.items()
            }
        )
        self._registered_changes = changes

    def _info(self, *, is_extra: bool = False, is_first: bool = False) -> WorkerInfo:
        breakers = self._breakers
        return self._slots.info(
            breakers.state,
            breakers.open_ones(),
            is_claiming=not breakers.is_limiting,
            lost_roots=tuple(self._roots.problems.values()),
            limits=self._limits.reached,
            is_extra=is_extra,
            is_first=is_first,
            is_draining=self._is_draining(),
        )

    def add_extra(self, count: int) -> None:
        """Registers extra slots, before any of them claims a job."""
        new = self._slots.add_extra(count)
        self._broker.register(dict.fromkeys((slot.id for slot in new), self._info(is_extra=True)))

    def remove_extra(self) -> None:
        """Deregisters the extra slots, if all of them are free. If the call fails, their heartbeats run out."""
        if ids := self._slots.remove_extra():
            self._broker.deregister(ids)

    def renew(self, *, may_run: bool) -> None:
        """Renews the lease of every slot. Where the broker and a slot disagree about its claim, the slot is corrected.
        Also applies the resets of breakers that operators have requested."""
        renewals = self._broker.renew(self._slots.holdings())
        self._renewed_s = self._monotonic()
        self.due_s = self._renewed_s + self._every_s
        unexpected = [claim for renewal in renewals if (claim := self._apply(renewal)) is not None]
        self._breakers.apply_resets(self._broker.breaker_resets())
        if may_run:  # a stopping worker leaves such a claim alone: deregistering its slot gives the job back
            self._attempts.start(unexpected, may_run=True)

    def replace(self, slot: Slot) -> None:
        """Continues under a new id after the broker has forgotten this slot. Its claim is lost."""
        if isinstance(slot.state, Running | Waiting):
            self._attempts.lose(slot)
        elif isinstance(slot.state, Settling):
            # The broker would reject the settlement of a slot that it has forgotten, so it is not sent.
            self._emit(fenced(slot.state.claim))
            self._limits.lost(slot.state)
        new = self._slots.replace(slot)
        info = self._info(is_extra=self._slots.is_extra(new), is_first=new.number == 0)
        self._broker.register({new.id: info})
        self._emit(SlotReplaced(slot.id, new.id))

    def _apply(self, renewal: Renewal) -> Claim | None:
        """Applies what the broker says of a slot. Returns a claim that the slot holds without knowing it."""
        slot = self._slots.by_id.get(renewal.slot)
        if slot is None:
            return None
        running = slot.state if isinstance(slot.state, Running) else None
        is_waiting = isinstance(slot.state, Waiting)
        match renewal.status:
            case LeaseStatus.GONE:
                self.replace(slot)
            case LeaseStatus.LOST if running is not None or is_waiting:
                self._attempts.lose(slot)
            case LeaseStatus.CANCEL if running is not None and not running.is_cancelling:
                running.is_cancelling = True
                self._executor.cancel(running.claim.key)
            case LeaseStatus.CANCEL if is_waiting:
                self._attempts.cancel_waiting(slot)
            case LeaseStatus.UNEXPECTED if running is None:
                return renewal.claim
        return None
