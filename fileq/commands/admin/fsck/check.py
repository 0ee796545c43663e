"""Checks twice, reports what both checks found, and on request repairs it and checks again."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import TypeVar

from fileq.brokers.protocol import FullBroker
from fileq.brokers.types import Census, Record, Suspect, UnrecordedJob
from fileq.commands.admin.fsck import broker_walk
from fileq.commands.admin.fsck.broker_walk import (
    SEARCHES,
    BatchCheck,
    BatchFault,
    BrokerWalk,
    LostFile,
    Measurement,
    agreed_excess,
    find_lost_files,
    measure,
    measurement_from,
)
from fileq.commands.admin.fsck.repairs import OnDead, Repairs
from fileq.commands.admin.fsck.report import NAMED, Problem, Repair, Report, balance_of
from fileq.config import Config
from fileq.core.errors import ConfigError
from fileq.core.job import State, decode_or_none

PAUSE_S = 1.0  # between two checks of a job
# Rounds without a repair after which missing jobs are counted as deleted. A false positive of the Bloom filter hides a
# lost job from one walk, hardly from two: each walk has its own filter.
ROUNDS_BEFORE_COUNTING = 2

Sleep = Callable[[float], None]
T = TypeVar("T")


class Discrepancy:
    """What two checks found."""

    def __init__(self, walk: BrokerWalk, first: Measurement) -> None:
        self.walk = walk
        self.first = first
        self.second = first
        self.excess = 0
        self.lost: dict[str, Record] = {}
        self.unrecorded: list[UnrecordedJob] = []  # in places that are not queues
        self.unrecorded_in_queues: list[UnrecordedJob] = []
        self.silent: list[Suspect] = []
        self.lost_files: list[LostFile] = []
        self.batches = 0
        self.batch_faults: list[BatchFault] = []

    @property
    def is_complete(self) -> bool:
        """Whether every candidate fitted into memory: only then the remaining excess is unexplained."""
        has_all_unrecorded = len(self.walk.unrecorded_jobs) < broker_walk.CANDIDATES or self.excess <= 0
        return len(self.walk.lost) < broker_walk.CANDIDATES and has_all_unrecorded

    def problems(self) -> list[Problem]:
        problems = [
            Problem("unheld" if record.state is State.RUNNING else "lost", id, record.state.value, path_in(record.raw))
            for id, record in self.lost.items()
        ]
        # A job without a record in a queue was pushed by another program, unless the balance proves that one is ours.
        ours = self.unrecorded_in_queues if self.excess > 0 else []
        problems += [
            Problem("unrecorded", job.record.id, job.place, path_in(job.record.raw))
            for job in (*self.unrecorded, *ours)
        ]
        for suspect in self.silent:
            problems += [Problem("silent", claim.id, suspect.slot, path_in(claim.raw)) for claim in suspect.claims]
        problems += [
            Problem("forsaken", file.id, "", file.path.decode(errors="backslashreplace")) for file in self.lost_files
        ]
        problems += [fault.problem for fault in self.batch_faults]
        return problems


def path_in(raw: bytes) -> str:
    job = decode_or_none(raw)
    return job.filepath if job is not None else ""


def fsck(
    broker: FullBroker,
    config: Config,
    *,
    is_repairing: bool = False,
    sleep: Sleep = time.sleep,
    here: Callable[[bytes], bytes] = lambda path: path,
    app_dir: str = ".",
) -> Report:
    """Reports the state, or the state after the repair. `here` maps a producer's path to a path on this machine. The
    handlers in `app_dir` say which jobs follow those that are buried."""
    found = check_twice(broker, config, sleep)
    if not is_repairing:
        return _report(found)
    repairs = Repairs(broker, config, here, OnDead(config, app_dir, broker))
    rounds_in_vain = 0
    while True:
        done_before = len(repairs.done)
        _repair_jobs(found, repairs)
        if len(repairs.done) == done_before:
            # Not before: a member without a record counts as deleted, and its job may get its record back.
            repairs.reconcile(found.batch_faults)
        if len(repairs.done) > done_before:
            rounds_in_vain = 0
        elif not found.excess or not found.is_complete:
            break
        else:
            rounds_in_vain += 1
            if rounds_in_vain == ROUNDS_BEFORE_COUNTING:
                rounds_in_vain = 0
                repairs.balance(lambda: measure(broker, config.worker.priorities, sleep))
                if len(repairs.done) == done_before:
                    break
        found = check_twice(broker, config, sleep)
    return _report(found, repairs.done, is_repair=True)


def _repair_jobs(found: Discrepancy, repairs: Repairs) -> None:
    lost = list(found.lost.values())
    repairs.repair_jobs(found.silent, lost, found.unrecorded, found.unrecorded_in_queues, found.excess)
    if found.is_complete:
        # Not before: a file must not be enqueued again for a job that can still be restored.
        repairs.enqueue(found.lost_files)


def check_twice(broker: FullBroker, config: Config, sleep: Sleep) -> Discrepancy:
    queues = config.worker.priorities
    before = broker.census(sweep=True)
    walk = BrokerWalk(broker, queues, expected=_size_of(before))
    walk.everything()
    if walk.unknown_queues:
        # The jobs in these queues can't be counted: only worker.priorities says which lists exist.
        names = ", ".join(sorted(map(repr, walk.unknown_queues)))
        raise ConfigError(f"there are jobs of the queue {names}, which is not in worker.priorities; add it first")
    found = Discrepancy(walk, measurement_from(before, broker.census(sweep=True), walk))
    batches = BatchCheck(broker)
    found.batches = batches.batches
    is_doubtful = not found.first.is_exact or bool(found.first.excess)
    if is_doubtful or batches.faults or walk.lost or walk.unrecorded_jobs or walk.silent or walk.copies:
        sleep(max(PAUSE_S, config.worker.heartbeat_ttl / 2) if walk.silent else PAUSE_S)
        if is_doubtful:
            _measure_again(broker, queues, found, sleep)
        _confirm(broker, config, found)
        found.batch_faults = batches.confirmed()
        unexplained = found.excess - len(found.lost) - len(found.unrecorded_in_queues)
        if found.is_complete:
            found.lost_files = find_lost_files(broker, config, found.second.census, unexplained)
    return found


def _measure_again(broker: FullBroker, queues: Sequence[str], found: Discrepancy, sleep: Sleep) -> None:
    """Sets the excess that two measurements prove. A first one that gave only bounds is replaced by a third."""
    found.second = measure(broker, queues, sleep)
    earlier = found.first
    if found.second.excess and found.second.is_exact and not earlier.is_exact:
        sleep(PAUSE_S)
        earlier, found.second = found.second, measure(broker, queues, sleep)
    found.excess = agreed_excess(earlier, found.second)


def _confirm(broker: FullBroker, config: Config, found: Discrepancy) -> None:
    """The second check: keeps the candidates of the walk that the broker confirms."""
    walk = found.walk
    found.lost = {id: walk.lost[id] for id in _confirmed(broker.lost, list(walk.lost))}
    if walk.copies:
        walk.confirm_copies()
    candidates = walk.unrecorded_jobs.values()
    queues = config.worker.priorities
    found.unrecorded = _confirmed(broker.unrecorded, [job for job in candidates if job.place not in queues])
    if found.excess > 0:
        found.unrecorded_in_queues = _confirmed(broker.unrecorded, [job for job in candidates if job.place in queues])
    if walk.silent:
        still_silent = {suspect.slot: suspect for suspect in broker.suspects(sweep=True)}
        found.silent = [still_silent[slot] for slot in walk.silent if slot in still_silent]


def _confirmed(check: Callable[[Sequence[T]], list[bool]], candidates: Sequence[T]) -> list[T]:
    confirmed: list[T] = []
    for start in range(0, len(candidates), SEARCHES):
        batch = candidates[start : start + SEARCHES]
        confirmed += [candidate for candidate, is_so in zip(batch, check(batch), strict=True) if is_so]
    return confirmed


def _size_of(census: Census) -> int:
    return sum(census.pending.values()) + census.scheduled + census.dead


def _report(found: Discrepancy, repairs: Sequence[Repair] = (), *, is_repair: bool = False) -> Report:
    problems = found.problems()
    return Report(
        is_clean=not problems and not found.excess,
        balance=balance_of(found.second.census, found.second.unclaimed, found.excess, is_exact=found.second.is_exact),
        problems=tuple(problems[:NAMED]),
        problem_count=len(problems),
        duplicates=found.walk.copies_found(),
        undecodable=found.walk.undecodable,
        elements=found.walk.elements,
        records=found.walk.records,
        slots=found.walk.slots,
        batches=found.batches,
        repairs=tuple(repairs),
        is_repair=is_repair,
    )
