"""The calls of settle_and_claim whose replies a pump still awaits.

While the broker works on one call the pump prepares the next, for other slots. Under load two calls are in flight, each
for half of the slots, so pump and broker work at the same time.

Never sends a call again: after a lost reply the pump decides anew what to send. What a kill -9 leaves: the broker
executes each call completely or not at all. The replies are lost.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import NamedTuple

from fileq.brokers.protocol import Broker
from fileq.brokers.replies import PendingReply
from fileq.brokers.types import TurnReply
from fileq.core.settlement import Settlement
from fileq.worker.slot import Settling, Slot

CALLS_MAX = 2


class Call(NamedTuple):
    """A call in flight and the slots it is about."""

    settling: list[Slot]
    claiming: list[Slot]
    slots: frozenset[Slot]
    reply: PendingReply


class CallsInFlight:
    """At most two calls, and no slot is in both."""

    def __init__(self, broker: Broker, count: int, with_order: Callable[[Settling], Settlement] | None = None) -> None:
        self._broker = broker
        self._with_order = with_order  # adds what is to be done with the file; None if that is never anything
        self.count = count  # how many slots may hold a job at the moment
        self.is_awaited = False  # True once a reply took time, as with a broker that is another process
        self._calls: deque[Call] = deque()

    def __bool__(self) -> bool:
        return bool(self._calls)

    @property
    def share(self) -> int:
        """How many slots one call may be for: all of them, or half if two calls can be in flight."""
        return -(-self.count // CALLS_MAX) if self.is_awaited else self.count

    @property
    def is_answered(self) -> bool:
        """The newest call has its reply already, as with a broker that works in this process."""
        return bool(self._calls) and self._calls[-1].reply.is_answered

    def slots(self) -> frozenset[Slot]:
        """The slots of the oldest call in flight; empty if there is none."""
        return self._calls[0].slots if self._calls else frozenset()

    def is_another_worth_it(self, settling: int) -> bool:
        """Whether to send a second call before the first is answered. That pays off only with a full share of
        settlements that the first does not carry; `settling` is the number of all settlements."""
        if len(self._calls) == CALLS_MAX:
            return False
        return settling - sum(len(call.settling) for call in self._calls) >= self.share

    def send(self, settling: list[Slot], claiming: list[Slot]) -> None:
        states = [state for slot in settling if isinstance(state := slot.state, Settling)]
        settlements = [state.settlement for state in states]
        if self._with_order is not None:
            settlements = list(map(self._with_order, states))
        reply = self._broker.send_settle_and_claim(settlements, [slot.id for slot in claiming])
        if not reply.is_answered:
            self.is_awaited = True
        self._calls.append(Call(settling, claiming, frozenset((*settling, *claiming)), reply))

    def wait(self, timeout_s: float) -> bool:
        """Waits for the reply to the oldest call, for at most this long. Returns whether it has arrived."""
        return self._calls[0].reply.wait(timeout_s)

    def take(self) -> tuple[Call, TurnReply]:
        """The oldest call and its reply. If taking the reply fails, the call is no longer in flight."""
        call = self._calls.popleft()
        return call, call.reply.take()

    def drop(self) -> None:
        while self._calls:
            self._calls.pop().reply.drop()
