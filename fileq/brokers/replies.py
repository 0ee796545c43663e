"""The reply to a call of settle_and_claim that may still be on its way."""

from __future__ import annotations

from typing import Protocol

from fileq.brokers.types import TurnReply


class PendingReply(Protocol):
    """A call of settle_and_claim that was sent, and whose reply may not be there yet. Used by one thread."""

    is_answered: bool  # take() will not wait

    def wait(self, timeout_s: float) -> bool:
        """Waits for at most this long; whether take() would return without waiting much longer."""
        ...

    def take(self) -> TurnReply:
        """Waits for the reply and returns it, once. Raises what settle_and_claim raises."""
        ...

    def drop(self) -> None:
        """Discards the reply. The call itself is not undone."""
        ...


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
