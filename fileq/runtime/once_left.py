"""What a run with `--once` leaves: the jobs that nothing in this run would let start, by reason. Only reads."""

from __future__ import annotations

from collections import Counter
from itertools import chain

from msgspec import Struct

from fileq.brokers.protocol import FullBroker
from fileq.brokers.types import Census, OpenBreaker
from fileq.core.text import printable
from fileq.runtime.worker_build import WorkerParts
from fileq.worker.breakers import reason_of
from fileq.worker.deferrals import retrying_jobs


class WhatIsLeft(Struct):
    """`lines` say what stays, for the report. `problem` says why jobs stay that should have run, and what to do."""

    lines: list[str]
    problem: str = ""


def what_is_left(broker: FullBroker, worker: WorkerParts, census: Census) -> WhatIsLeft | None:
    """None while there is work that this run can do. A run does not wait for the cooldown of an open breaker: a probe
    that fails would be followed by another cooldown, up to once for each attempt of each job.

    Raises BrokerUnavailable."""
    # Before the jobs are read: a breaker in its cooldown starts none of them meanwhile.
    cooling = [breaker for breaker in worker.breakers.open_ones() if breaker.next_probe_ms]
    breakers = {reason_of(breaker.route): _described(breaker) for breaker in cooling}
    holds_all = bool(cooling) and len(cooling) == len(worker.breakers.names)
    everything = "; ".join(breakers.values()) if holds_all else ""
    if _has_work(census, holds_all=holds_all):
        return None
    roots = set(worker.roots.problems.values())
    held: Counter[str] = Counter()  # by breaker
    missing: Counter[str] = Counter()  # by root
    if census.scheduled:
        for record in chain.from_iterable(retrying_jobs(broker)):
            if record.deferred in roots:
                missing[record.deferred] += 1
            elif reason := breakers.get(record.deferred, everything):
                held[reason] += 1
            else:
                return None
        census = broker.census()  # a job may have been promoted before it was read above
        if _has_work(census, holds_all=holds_all):
            return None
    later = census.scheduled - missing.total() - held.total()
    if later < 0:
        return None  # a job was promoted after it was read: it would be counted twice
    if holds_all and (pending := sum(n for queue, n in census.pending.items() if queue not in census.paused)):
        held[everything] += pending
    return WhatIsLeft(
        [
            *(f"left {n} in {q}, which is paused" for q, n in census.pending.items() if n and q in census.paused),
            *(f"left {n} deferred: {reason}" for reason, n in chain(missing.items(), held.items())),
            *([f"left {later} scheduled for later"] if later > 0 else []),
        ],
        _problem(missing, held),
    )


def _problem(missing: Counter[str], held: Counter[str]) -> str:
    advice = "mount it" if all(reason.endswith("(not mounted?)") for reason in missing) else "fix it"
    parts = [f"{'; '.join(missing)}; {advice} and run again"] if missing else []
    if held:
        waiting = "1 job waits" if held.total() == 1 else f"{held.total()} jobs wait"
        parts.append(f"{waiting} for the next run: {'; '.join(held)}; fix the cause and run again")
    return "; ".join(parts)


def _described(breaker: OpenBreaker) -> str:
    reason = reason_of(breaker.route)
    return printable(f"{reason} ({breaker.error})" if breaker.error else reason)


def _has_work(census: Census, *, holds_all: bool) -> bool:
    """`holds_all`: no job is claimed now, because every breaker is open."""
    if census.running:
        return True
    return not holds_all and any(n for queue, n in census.pending.items() if queue not in census.paused)
