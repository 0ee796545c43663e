"""The faults that FaultProxy can inject, each with the requests it acts on and how often it has happened."""

import threading
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum, auto
from typing import Protocol

WAIT_S = 10.0

Match = bytes | Callable[[bytes], bool]


class Kind(Enum):
    DROP_REPLY = auto()
    CUT_REPLY = auto()
    STALL_REPLY = auto()
    RESET = auto()
    HOLD = auto()
    DELAY_REQUEST = auto()
    DELAY_REPLY = auto()


class ClientSide(Protocol):
    """The connection that carries a held request."""

    def cut_client(self) -> None: ...


@dataclass
class Fault:
    """One planned fault. A test must assert `fired`, the number of times it has happened, or it proves nothing."""

    kind: Kind
    match: Match
    nth: int = 1
    times: int | None = 1
    delay_s: float = 0.0
    after: int = 0
    fired: int = 0
    matched: int = 0

    def takes(self, request: bytes) -> bool:
        if not (self.match in request if isinstance(self.match, bytes) else self.match(request)):
            return False
        self.matched += 1
        return self.matched >= self.nth and (self.times is None or self.matched < self.nth + self.times)


class HeldRequest(Fault):
    """A request that the proxy holds; the server receives it after `release`."""

    def __init__(self, match: Match, nth: int) -> None:
        super().__init__(Kind.HOLD, match, nth)
        self.caught = threading.Event()
        self.go = threading.Event()
        self.answered = threading.Event()
        self.connection: ClientSide | None = None

    def wait_caught(self, timeout_s: float = WAIT_S) -> None:
        if not self.caught.wait(timeout_s):
            raise TimeoutError(f"no request came to be held within {timeout_s} s")

    def cut_client(self) -> None:
        """End the client's connection now; the request stays held."""
        self.wait_caught()
        assert self.connection is not None
        self.connection.cut_client()

    def release(self, timeout_s: float = WAIT_S) -> None:
        """Deliver the request, even if its client has gone, and wait for the server's reply."""
        self.wait_caught(timeout_s)
        self.go.set()
        if not self.answered.wait(timeout_s):
            raise TimeoutError(f"the server did not answer the released request within {timeout_s} s")
