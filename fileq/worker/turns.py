"""The turns whose answers a pump awaits.

While the broker is at work on one the pump prepares another, about other slots: under load there are two underway, each
about half of the slots, and neither side waits for the other.
"""

from __future__ import annotations

from collections import deque
from typing import NamedTuple

from fileq.brokers.protocol import Broker, PendingReply
from fileq.brokers.types import TurnReply
from fileq.core.settlement import Settlement

UNDERWAY_MAX = 2


class Underway(NamedTuple):
    """A turn that the broker is at work on, and what it is about."""

    settlements: list[Settlement]
    slots: list[str]
    told: frozenset[str]  # the slots it is about
    turn: PendingReply


class Turns:
    """At most two, no slot in both."""

    def __init__(self, broker: Broker, count: int) -> None:
        self._broker = broker
        self._count = count
        self._underway: deque[Underway] = deque()
        self.share = count  # most slots of one turn

    def __bool__(self) -> bool:
        return bool(self._underway)

    @property
    def is_answered(self) -> bool:
        """The one that was begun last: by a broker that does not let one wait."""
        return bool(self._underway) and self._underway[-1].turn.is_answered

    def told(self) -> frozenset[str]:
        """The slots that an answer is awaited about, when there is room for another turn."""
        return self._underway[0].told if self._underway else frozenset()

    def is_another_worth_it(self, settling: int) -> bool:
        """While the broker is busy a turn is worth its price only with a full share of settlements."""
        if len(self._underway) == UNDERWAY_MAX:
            return False
        return settling - sum(len(underway.settlements) for underway in self._underway) >= self.share

    def begin(self, settlements: list[Settlement], slots: list[str]) -> None:
        turn = self._broker.send_settle_and_claim(settlements, slots)
        if not turn.is_answered:
            self.share = -(-self._count // UNDERWAY_MAX)
        told = frozenset((*(settlement.claim.slot for settlement in settlements), *slots))
        self._underway.append(Underway(settlements, slots, told, turn))

    def take(self) -> tuple[Underway, TurnReply]:
        """The one that was begun first, and its answer. If there is none, the turn is no longer awaited."""
        underway = self._underway.popleft()
        return underway, underway.turn.take()

    def drop(self) -> None:
        while self._underway:
            self._underway.pop().turn.drop()
