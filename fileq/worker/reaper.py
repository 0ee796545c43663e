"""Gives back the jobs of workers that died: two looks a renewal apart, then one atomic step a slot.

1. A worker dies; its slots' heartbeats run out.
2. A look finds a slot silent. That proves nothing yet: the worker may be reconnecting.
3. A second look, at least one renewal later, finds it silent still: now it is dead to us.
4. Its jobs go where the retry policy sends them, only if it is silent at that very moment.
5. If it lives after all, the fence tells it that it lost them.

After a lost connection the looks count only once the connection has stood for a whole heartbeat: a broker that was
away has let all heartbeats run out, and the living need time to renew theirs.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable

from fileq.brokers.protocol import Broker
from fileq.brokers.types import Suspect
from fileq.config import Config
from fileq.core.errors import BrokerUnavailable
from fileq.core.events import Emit, ignore, reaped
from fileq.core.outcome import Died
from fileq.core.retry import Policy, decide
from fileq.core.settlement import Settlement, SettleResult

SWEEP_EVERY_S = 180.0
CAUSE = "its worker died (no heartbeat)"


class Reaper:
    """One look a turn. Owns no thread."""

    name = "reaper"

    def __init__(
        self,
        config: Config,
        broker: Broker,
        *,
        emit: Emit = ignore,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        worker = config.worker
        self._broker = broker
        self._emit = emit
        self._monotonic = monotonic
        self._interval_s = worker.reap_interval
        self._ttl_s = worker.heartbeat_ttl
        self._policy = Policy(worker.max_retries, worker.max_recoveries, worker.backoff)
        self._connected_s: float | None = None
        self._silent_since_s: dict[str, float] = {}
        self._next_sweep_s = 0.0

    def turn(self) -> float:
        """One look; the seconds until the next."""
        now_s = self._monotonic()
        try:
            suspects = self._broker.suspects(sweep=now_s >= self._next_sweep_s)
        except BrokerUnavailable:
            self._connected_s = None
            self._silent_since_s.clear()
            raise
        if now_s >= self._next_sweep_s:
            self._next_sweep_s = now_s + SWEEP_EVERY_S
        if self._connected_s is None:
            self._connected_s = now_s
        if now_s >= self._connected_s + self._ttl_s:
            self._judge(suspects, now_s)
        return self._pause_s(now_s)

    def _pause_s(self, now_s: float) -> float:
        """Until the next look, or the second look at a silent slot, or the first look that counts, if that comes
        first."""
        moments_s = [since_s + self._ttl_s / 3 for since_s in self._silent_since_s.values()]
        if self._connected_s is not None:
            moments_s.append(self._connected_s + self._ttl_s)
        waits_s = [moment_s - now_s for moment_s in moments_s if moment_s > now_s]
        return min((self._interval_s * random.uniform(0.9, 1.0), *waits_s))

    def _judge(self, suspects: list[Suspect], now_s: float) -> None:
        silent = {suspect.slot: self._silent_since_s.get(suspect.slot, now_s) for suspect in suspects}
        self._silent_since_s = silent
        for suspect in suspects:
            if now_s >= silent[suspect.slot] + self._ttl_s / 3:
                self._reap(suspect)

    def _reap(self, suspect: Suspect) -> None:
        moved = reap(self._broker, suspect, self._policy)
        self._silent_since_s.pop(suspect.slot, None)
        for verdict in moved:
            self._emit(reaped(verdict))


def reap(broker: Broker, suspect: Suspect, policy: Policy) -> list[Settlement]:
    """Settle for a slot that died; what was really moved, for others may have been faster."""
    now_ms = time.time_ns() // 1_000_000
    verdicts = [
        decide(claim, Died(CAUSE), policy, now_ms=now_ms, spread_s=policy.backoff.max) for claim in suspect.claims
    ]
    answers = broker.reap(suspect.slot, verdicts)
    return [verdict for verdict, answer in zip(verdicts, answers, strict=True) if answer is SettleResult.DONE]
