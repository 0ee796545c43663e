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
    """One planned fault; `fired` counts how often it has happened: assert it, or the test proves nothing."""

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
    """A request caught on its way; the server does not know of it until `release`."""

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
        """The client's connection ends now; the request stays on its way."""
        self.wait_caught()
        assert self.connection is not None
        self.connection.cut_client()

    def release(self, timeout_s: float = WAIT_S) -> None:
        """Delivers the request, whether its client is still there or not; returns when the server has answered."""
        self.wait_caught(timeout_s)
        self.go.set()
        if not self.answered.wait(timeout_s):
            raise TimeoutError(f"the server did not answer the released request within {timeout_s} s")
