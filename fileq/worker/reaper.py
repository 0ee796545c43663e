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

A worker on the same machine is dead as soon as its process is gone (brokers/local_processes.py). Every second each
reaper looks for the processes of its machine that it knows, with a few system calls for each and no call of the broker;
at each check it asks the broker which there are. If one is gone for half a second, one reaper gives back all jobs of
that process, whatever its heartbeats say. The broker may execute a call that the process sent before it died, and let
it claim or register once more. So the process is forgotten only when a look a second later finds no slot of it.

The heartbeats of all slots are checked by one process of the fleet, the holder of a lease. Two of them do no harm.

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
from contextlib import suppress

from fileq.brokers.local_processes import Neighbours, ProcessId, this_holder, this_process
from fileq.brokers.lost_workers import LostSlot
from fileq.brokers.protocol import Broker
from fileq.brokers.types import Suspect
from fileq.config import Config
from fileq.core.errors import BrokerError, BrokerUnavailable
from fileq.core.events import Emit, followed, ignore, reaped
from fileq.core.job import wall_clock_ms
from fileq.core.outcome import WORKER_DIED, Died
from fileq.core.settlement import Policy, Settlement, SettleResult, Verb, decide
from fileq.core.units import two_units
from fileq.worker.lease import Lease
from fileq.worker.settlements import AddFollowUps, rules_of, with_order, worker_policy

SWEEP_EVERY_S = 180.0
LOOK_EVERY_S = 1.0  # for processes of this machine that are gone
REAP_LEASE_MS = 5000  # for the one that reaps such a process
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
        self._lease = Lease(broker, "reaper", self._interval_s, monotonic=monotonic)
        self._own = this_process()
        self._gone_since_s: dict[ProcessId, float] = {}
        self._neighbours: set[ProcessId] = set()  # the other worker processes of this machine
        self._next_check_s = 0.0

    def turn(self) -> float:
        """Reaps dead slots, if a check is due or a process of this machine is gone. Returns the seconds until the next
        turn."""
        now_s = self._monotonic()
        if now_s >= self._next_check_s:
            self._next_check_s = now_s + self._check(now_s)
        self._look_beside(now_s)
        ends_s = (since_s + CHILDREN_END_S for since_s in self._gone_since_s.values())
        waits_s = [end_s - now_s for end_s in ends_s if end_s > now_s]
        return min((self._next_check_s - now_s, *([LOOK_EVERY_S] if self._neighbours else []), *waits_s))

    def at_end(self) -> None:
        """Leaves what it does to other processes."""
        self._lease.give_back()
        with suppress(BrokerError):
            self._broker.forget_process(self._own)

    def _look_beside(self, now_s: float) -> None:
        """Reaps the processes of this machine that have ended."""
        look = Neighbours()
        gone = [process for process in self._neighbours if look.is_gone(process)]
        self._gone_since_s = {process: self._gone_since_s.get(process, now_s) for process in gone}
        ended = [process for process, since_s in self._gone_since_s.items() if now_s >= since_s + CHILDREN_END_S]
        # All reapers of this machine notice at the same time.
        mine = [process for process in ended if self._takes(process)]
        suspects = self._broker.suspects(gone=mine) if mine else []
        if suspects:
            self._note_lost([LostSlot(one.slot, 0.0, self._reap(one, PROCESS_GONE), is_gone=True) for one in suspects])
        for process in ended:
            if process in mine and not suspects:
                self._broker.forget_process(process)
                self._neighbours.discard(process)
                del self._gone_since_s[process]
            else:
                self._gone_since_s[process] = now_s + LOOK_EVERY_S - CHILDREN_END_S  # to look again in a second

    def _takes(self, process: ProcessId) -> bool:
        own = this_holder()
        return self._broker.lease(f"process:{process.pid}-{process.pid_start}", own, REAP_LEASE_MS) == own

    def _check(self, now_s: float) -> float:
        """Asks for the processes of this machine. With the lease, also checks all heartbeats and reaps dead slots.
        Returns the seconds until the next check."""
        does_count = self._connected_s is not None and now_s >= self._connected_s + self._ttl_s
        # A sweep reads all keys of the broker. Before checks count it would be for nothing.
        is_sweep = does_count and now_s >= self._next_sweep_s
        try:
            if self._own.boot_id:
                self._neighbours = set(self._broker.processes(self._own)) - {self._own}
            has_lease = self._lease.is_mine()
            suspects = self._broker.suspects(sweep=is_sweep) if has_lease else []
        except BrokerUnavailable:
            self._connected_s = None
            self._silent_since_s.clear()
            raise
        if self._connected_s is None:
            self._connected_s = now_s
        if does_count and has_lease:
            lost = self._reap_silent(suspects, now_s)
            if lost:
                self._note_lost(lost)
        else:
            self._silent_since_s.clear()
        # A slot that only a sweep finds needs a second check that finds it.
        if is_sweep and has_lease and not self._silent_since_s:
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
    now_ms, died = wall_clock_ms(), Died(f"{WORKER_DIED}{why})")
    settlements = []
    for claim in suspect.claims:
        settlement = decide(claim, died, policy, now_ms=now_ms, spread_s=policy.backoff.max)
        version = claim.job.signature if claim.job is not None else None
        settlements.append(add_follow_ups(with_order(settlement, version, rules)))
    results = broker.reap(suspect.slot, settlements, is_gone=suspect.is_gone)
    return [one for one, result in zip(settlements, results, strict=True) if result is SettleResult.DONE]
