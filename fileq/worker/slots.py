"""The slots of one worker process: their ids, who is free, who holds what, and what still has to be settled.

A slot is in exactly one state: free, holding a claim that runs, or holding one whose settlement the broker has not
answered yet. A settlement leaves only with an answer, so a lost reply means that it is sent again.
"""

from __future__ import annotations

import os
import secrets
import socket
import time

from msgspec import Struct

from fileq import __version__
from fileq.brokers.types import WorkerInfo
from fileq.core.claim import Claim
from fileq.core.settlement import Settlement


class Running(Struct):
    """A claim in the hands of the executor."""

    claim: Claim
    route: int
    started_s: float
    signature: str | None  # of the version it was given, if that is known
    is_cancelling: bool = False


class Slots:
    """Bookkeeping only."""

    def __init__(self, count: int, queues: tuple[str, ...]) -> None:
        self._queues = queues
        self._started_ms = time.time_ns() // 1_000_000
        self._host = socket.gethostname()
        self.names = [self._name(i) for i in range(count)]
        self.running: dict[str, Running] = {}  # slot → what it runs
        self.settling: dict[str, Settlement] = {}  # slot → what to tell the broker

    def _name(self, number: int) -> str:
        """host-pid-number and a nonce: containers restart with the same host and pid, and must not inherit lists."""
        return f"{self._host}-{os.getpid()}-{number}-{secrets.token_hex(4)}"

    def free(self) -> list[str]:
        """Slots that can take a job in the next turn: idle ones, and those settled in the same turn."""
        return [name for name in self.names if name not in self.running]

    @property
    def is_idle(self) -> bool:
        return not self.running and not self.settling

    def believed(self) -> list[tuple[str, bytes]]:
        """What each slot believes to hold, for renewing."""
        held = {slot: running.claim.raw for slot, running in self.running.items()}
        held |= {slot: settlement.claim.raw for slot, settlement in self.settling.items()}
        return [(name, held.get(name, b"")) for name in self.names]

    def replace(self, slot: str) -> str:
        """A slot the broker has forgotten goes on under a new nonce."""
        i = self.names.index(slot)
        self.names[i] = self._name(i)
        self.running.pop(slot, None)
        self.settling.pop(slot, None)
        return self.names[i]

    def info(self, breaker: str = "closed") -> WorkerInfo:
        return WorkerInfo(self._host, os.getpid(), self._started_ms, __version__, self._queues, breaker)
