"""Gives back the jobs of workers that died: two checks, one renewal apart, then one atomic step per slot.

A worker on another machine:

1. A worker dies; the heartbeats of its slots run out.
2. A check finds a slot without a heartbeat. This is no proof: the worker may be reconnecting.
3. A second check, at least one renewal later, finds it without a heartbeat again: the slot counts as dead.
4. The broker moves its jobs where the retry policy sends them, only if the slot has no heartbeat at that moment. With
   a job that is buried goes the order to move or delete its file (`worker.after`); post_actions.py does it. In the
   same step the job that its route names in `on_dead` is enqueued.
   Then the process is noted for operators (brokers/lost_workers.py).
5. If its worker is alive after all, the fence rejects its settlements.

A worker on the same machine is dead as soon as its process is gone (brokers/local_processes.py). Every second the
reaper looks for the processes of its machine that its last check has found in the registry, with a few system calls for
each and no call of the broker. If one is gone for half a second it checks at once, and gives back all jobs of that
process, whatever its heartbeats say. The broker may execute a call that the process sent before it died, and let it
claim or register once more. So another check follows a second later. The first check is at the start. A process that
died before any check has found it is found by the next one, at most `reap_interval` later.

After a lost connection checks count only once the connection has lasted for a whole heartbeat. While the broker was
unreachable all heartbeats ran out, and running workers need time to renew theirs. A process that is gone needs none.

A slot may be missing in the registry and hold a job, as after a failover that lost one write. Only a sweep finds it. A
sweep is due every few minutes, and in each turn while it finds silent slots.

What a kill -9 leaves: each job moved or not; the reaper of another worker goes on.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Mapping, Sequence

from fileq.brokers.local_processes import Neighbours, ProcessId
from fileq.brokers.lost_workers import LostSlot
from fileq.brokers.protocol import Broker
from fileq.brokers.types import Suspect
from fileq.config import Config
from fileq.core.errors import BrokerUnavailable
from fileq.core.events import Emit, followed, ignore, reaped
from fileq.core.outcome import WORKER_DIED, Died
from fileq.core.retry import Policy, decide
from fileq.core.settlement import Settlement, SettleResult, Verb
from fileq.core.units import two_units
from fileq.worker.settlements import AddFollowUps, rules_of, with_order, worker_policy

SWEEP_EVERY_S = 180.0
LOOK_EVERY_S = 1.0  # for processes of this machine that are gone
# A job must not run beside its old handler. The kernel kills the children of a worker that was killed right after it
# (executors/process/fork_server.py); this is much longer than that takes.
CHILDREN_END_S = 0.5
PROCESS_GONE = "its process is gone"


class Reaper:
    """One check per turn, or only a look at the processes of this machine. Owns no thread."""

    name = "reaper"

    def __init__(
        self,
        config: Config,
        broker: Broker,
        *,
        add_follow_ups: AddFollowUps = lambda settlement: settlement,
        note_lost: Callable[[Sequence[LostSlot]], None] = lambda slots: None,
        on_dead: Callable[[str], None] = lambda id: None,
        emit: Emit = ignore,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        worker = config.worker
        self._add_follow_ups = add_follow_ups
        self._broker = broker
        self._note_lost = note_lost
        self._on_dead = on_dead
        self._emit = emit
        self._monotonic = monotonic
        self._interval_s = worker.reap_interval
        self._ttl_s = worker.heartbeat_ttl
        self._policy = worker_policy(worker)
        self._rules = rules_of(worker.after)
        self._connected_s: float | None = None
        self._silent_since_s: dict[str, float] = {}
        self._next_sweep_s = 0.0
        self._neighbours = Neighbours()  # that the last check has found
        self._gone_since_s: dict[ProcessId, float] = {}
        self._next_check_s = 0.0

    def turn(self) -> float:
        """Reaps dead slots, if a check is due or a process of this machine is gone. Returns the seconds until the next
        turn."""
        now_s = self._monotonic()
        gone = [self._is_gone(process, now_s) for process in self._neighbours.look_again()]
        if now_s >= self._next_check_s or any(gone):
            self._next_check_s = now_s + self._check(now_s)
        ends_s = (since_s + CHILDREN_END_S for since_s in self._gone_since_s.values())
        waits_s = [end_s - now_s for end_s in ends_s if end_s > now_s]
        return min((self._next_check_s - now_s, *([LOOK_EVERY_S] if self._neighbours else []), *waits_s))

    def _is_gone(self, process: ProcessId, now_s: float) -> bool:
        """Whether a process that has ended did so long enough ago. Called with processes that have ended."""
        return now_s >= self._gone_since_s.setdefault(process, now_s) + CHILDREN_END_S

    def _check(self, now_s: float) -> float:
        """Checks all heartbeats and reaps dead slots. Returns the seconds until the next check."""
        does_count = self._connected_s is not None and now_s >= self._connected_s + self._ttl_s
        # A sweep reads all keys of the broker. Before checks count it would be for nothing.
        is_sweep = does_count and now_s >= self._next_sweep_s
        neighbours = Neighbours()
        try:
            suspects = self._broker.suspects(
                sweep=is_sweep,
                is_gone=lambda process: neighbours.is_gone(process) and self._is_gone(process, now_s),
            )
        except BrokerUnavailable:
            self._connected_s = None
            self._silent_since_s.clear()
            raise
        self._neighbours = neighbours
        self._gone_since_s = {process: self._gone_since_s[process] for process in neighbours.gone()}
        if self._connected_s is None:
            self._connected_s = now_s
        gone = [one for one in suspects if one.is_gone]
        lost = [LostSlot(one.slot, 0.0, self._reap(one, PROCESS_GONE), is_gone=True) for one in gone]
        if does_count:
            lost += self._reap_silent([one for one in suspects if not one.is_gone], now_s)
        if lost:
            self._note_lost(lost)
        # A slot that only a sweep finds needs a second check that finds it.
        if is_sweep and not self._silent_since_s:
            self._next_sweep_s = now_s + SWEEP_EVERY_S
        return self._pause_s(now_s)

    def _pause_s(self, now_s: float) -> float:
        """Until the next regular check, the second check of a silent slot, or the first check that counts: whichever
        comes first."""
        moments_s = [since_s + self._ttl_s / 3 for since_s in self._silent_since_s.values()]
        if self._connected_s is not None:
            moments_s.append(self._connected_s + self._ttl_s)
        waits_s = [moment_s - now_s for moment_s in moments_s if moment_s > now_s]
        return min((self._interval_s * random.uniform(0.9, 1.0), *waits_s))

    def _reap_silent(self, suspects: list[Suspect], now_s: float) -> list[LostSlot]:
        silent = {suspect.slot: self._silent_since_s.get(suspect.slot, now_s) for suspect in suspects}
        self._silent_since_s = silent
        lost = []
        for suspect in suspects:
            if now_s >= silent[suspect.slot] + self._ttl_s / 3:
                # At the first check its heartbeat had run out already, so it was not renewed for this long before.
                silent_s = now_s - silent[suspect.slot] + self._ttl_s
                why = f"no heartbeat for {two_units(silent_s)} or more"
                lost.append(LostSlot(suspect.slot, silent_s, self._reap(suspect, why)))
        return lost

    def _reap(self, suspect: Suspect, why: str) -> int:
        """How many jobs were moved."""
        moved = reap(self._broker, suspect, self._policy, self._rules, why, self._add_follow_ups)
        self._silent_since_s.pop(suspect.slot, None)
        for settlement in moved:
            self._emit(reaped(settlement))
            if settlement.verb is Verb.BURY:
                self._on_dead(settlement.claim.id)
            if settlement.follow_ups:
                self._emit(followed(settlement))
        return len(moved)


def reap(
    broker: Broker,
    suspect: Suspect,
    policy: Policy,
    rules: Mapping[Verb, str],
    why: str = "no heartbeat",
    add_follow_ups: AddFollowUps = lambda settlement: settlement,
) -> list[Settlement]:
    """Settles the claims of a slot that died. Returns the settlements that took effect: another reaper may have been
    faster. `rules` say what happens to the files of buried jobs, `add_follow_ups` which jobs follow them. `why` says
    how the death was noticed."""
    now_ms, died = time.time_ns() // 1_000_000, Died(f"{WORKER_DIED}{why})")
    settlements = []
    for claim in suspect.claims:
        settlement = decide(claim, died, policy, now_ms=now_ms, spread_s=policy.backoff.max)
        version = claim.job.signature if claim.job is not None else None
        settlements.append(add_follow_ups(with_order(settlement, version, rules)))
    results = broker.reap(suspect.slot, settlements, is_gone=suspect.is_gone)
    return [one for one, result in zip(settlements, results, strict=True) if result is SettleResult.DONE]
