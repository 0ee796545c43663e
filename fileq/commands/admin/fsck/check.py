"""Proves that no job was lost, while workers are running, and repairs what was.

**The balance.** produced + adopted = pending + scheduled (with retrying and deferred) + running + dead + completed +
cancelled + deleted. One census reads both sides atomically, so no moving job is ever between two places. A job that
another program pushed is on the right side only, until a claim adopts it. So `drift + unclaimed` must be 0, where drift
is left minus right. The number of unclaimed jobs is known only after a walk through the queues, which takes time:

1. If the walk was quiet, that is, nothing moved between the census before it and the census after it, it is exact.
2. Otherwise it is between 0 and the number of all pending jobs. A drift above 0 then proves a loss; a drift below minus
   the number of pending jobs proves a surplus; anything between proves nothing and is never reported.

Two measurements must agree before a difference is reported.

**The cross-check.** The record of a job that has not ended names a place, and at every instant the bytes that the
record holds are in that place: each verb of the broker changes both in one step. So the broker's `lost`, one atomic
look at record and place, has no false alarms on a busy system; nor has `unrecorded`, for bytes without a record. The
walk reads lists and records page by page while they change, so it only finds candidates. A candidate is reported if the
broker confirms it after a pause. The ids that the walk saw in lists are kept in a Bloom filter of bounded size: no
false negatives, a few false positives, different ones in each walk. Everything else is one page at a time.

**Batches.** The counts of a batch must add up, and agree with its members (`BatchCheck`). A member that has ended, or
has no record, must be counted.

A slot without a heartbeat counts as dead only if two looks, half a ttl apart, find it silent. Live slots renew at a
third of the ttl, and reconnect after an outage within a sixth.

**Repair.** In this order, because each step can make later ones unnecessary: dead slots are reaped as a reaper would
do; lost jobs are restored to the place that their record names, or, if they were running, to the front of their queue;
bytes without a record get one, in queues only as many as the balance proves to be ours; files whose job left a trace
only in the ledger are enqueued again under its id (if that is certain: `find_lost_files`); members of batches that
have ended are counted. Counts of a batch that do not add up are only reported: no record says which is wrong. After a
repair everything is checked again. The counters are changed last, after two whole rounds that found nothing to repair,
by the difference that remains, and only if it is still exactly that.

Each repair is one atomic step of the broker that checks again first. So a kill -9 at any instant leaves each repair
done or not done, and the next fsck continues. Where a worker, a reaper or another fsck was faster, the step does
nothing. A worker that is alive after all while its slot is reaped is fenced; at worst its job runs twice.
"""

from __future__ import annotations

import functools
import os
import time
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime
from itertools import compress
from typing import TypeVar

from msgspec import Struct
from msgspec.structs import replace

from fileq.brokers.protocol import FullBroker
from fileq.brokers.types import EnqueueResult, Entry, Record, Suspect, UnrecordedJob
from fileq.commands.admin.fsck import broker_walk
from fileq.commands.admin.fsck.broker_walk import BatchCheck, BatchFault, BrokerWalk, LostFile, Measurement, measure
from fileq.commands.admin.fsck.report import NAMED, DuplicateJob, Problem, Repair, Report, balance_of
from fileq.config import Config
from fileq.config.schema import priority_chooser
from fileq.core.errors import ConfigError
from fileq.core.job import State, Version, decode_or_none, encode, file_job, split_signature, wall_clock_ms
from fileq.core.own_jobs import is_own_id
from fileq.core.paging import parts
from fileq.core.settlement import Settlement, Verb
from fileq.core.text import printable
from fileq.webhooks.subscriptions import Subscriptions, current_subscriptions
from fileq.worker.reaper import reap
from fileq.worker.settlements import AddFollowUps, rules_of, worker_policy

PAUSE_S = 1.0  # between two checks of a job
# Rounds without a repair after which missing jobs are counted as deleted. A false positive of the Bloom filter hides a
# lost job from one walk, hardly from two: each walk has its own filter.
ROUNDS_BEFORE_COUNTING = 2
BALANCE_ATTEMPTS = 5

Sleep = Callable[[float], None]
T = TypeVar("T")


class Discrepancy(Struct):
    """What two checks found."""

    walk: BrokerWalk
    second: Measurement
    excess: int = 0
    lost: dict[str, Record] = {}
    unrecorded: list[UnrecordedJob] = []  # in places that are not queues
    unrecorded_in_queues: list[UnrecordedJob] = []
    silent: list[Suspect] = []
    lost_files: list[LostFile] = []
    batches: int = 0
    batch_faults: list[BatchFault] = []

    @property
    def is_complete(self) -> bool:
        """Whether every candidate fitted into memory: only then the remaining excess is unexplained."""
        has_all = len(self.walk.unrecorded_jobs) < broker_walk.CANDIDATES or self.excess <= 0
        return has_all and len(self.walk.lost) < broker_walk.CANDIDATES

    def problems(self) -> list[Problem]:
        found: list[Problem] = []

        def add(kind: str, id: str, detail: str, raw: bytes) -> None:
            job = decode_or_none(raw)
            found.append(Problem(kind, id, detail, job.filepath if job is not None else ""))

        for id, record in self.lost.items():
            add("unheld" if record.state is State.RUNNING else "lost", id, record.state.value, record.raw)
        # A job without a record in a queue was pushed by another program, unless the balance proves that one is ours.
        for job in (*self.unrecorded, *(self.unrecorded_in_queues if self.excess > 0 else ())):
            add("unrecorded", job.record.id, job.place, job.record.raw)
        for suspect in self.silent:
            for claim in suspect.claims:
                add("silent", claim.id, suspect.slot, claim.raw)
        for file in self.lost_files:
            found.append(Problem("lost_file", file.id, "", file.path.decode(errors="backslashreplace")))
        return [*found, *(Problem(fault.kind, fault.batch, fault.detail) for fault in self.batch_faults)]


def fsck(
    broker: FullBroker, config: Config, *, is_repairing: bool = False, sleep: Sleep = time.sleep, app_dir: str = "."
) -> Report:
    """Reports the state, or the state after the repair. The handlers in `app_dir` say which jobs follow those that are
    buried."""
    found = check_twice(broker, config, sleep)
    if not is_repairing:
        return _report(found)
    repairs = Repairs(broker, config, OnDead(config, app_dir, broker))
    rounds_in_vain = 0
    while True:
        done_before = len(repairs.done)
        repairs.repair_jobs(found)
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


def check_twice(broker: FullBroker, config: Config, sleep: Sleep) -> Discrepancy:
    queues = config.worker.priorities
    before = broker.census(sweep=True)
    walk = BrokerWalk(broker, queues, expected=sum(before.pending.values()) + before.scheduled + before.dead)
    walk.everything()
    if walk.unknown_queues:
        # The jobs in these queues can't be counted: only worker.priorities says which lists exist.
        names = ", ".join(sorted(map(repr, walk.unknown_queues)))
        raise ConfigError(f"there are jobs of the queue {names}, which is not in worker.priorities; add it first")
    first, batches = broker_walk.measurement_from(before, broker.census(sweep=True), walk), BatchCheck(broker)
    found = Discrepancy(walk, first, batches=batches.batches)
    is_doubtful = not first.is_exact or bool(first.excess)
    if is_doubtful or batches.faults or walk.lost or walk.unrecorded_jobs or walk.silent or walk.copies:
        sleep(max(PAUSE_S, config.worker.heartbeat_ttl / 2) if walk.silent else PAUSE_S)
        if is_doubtful:  # the excess that two measurements prove
            found.second = measure(broker, queues, sleep)
            if found.second.excess and found.second.is_exact and not first.is_exact:
                # A first one that gave only bounds is replaced by a third.
                sleep(PAUSE_S)
                first, found.second = found.second, measure(broker, queues, sleep)
            found.excess = broker_walk.agreed_excess(first, found.second)
        _confirm(broker, config, found)
        found.batch_faults = batches.confirmed()
        unexplained = found.excess - len(found.lost) - len(found.unrecorded_in_queues)
        if found.is_complete:
            found.lost_files = broker_walk.find_lost_files(broker, config, found.second.census, unexplained)
    return found


def _confirm(broker: FullBroker, config: Config, found: Discrepancy) -> None:
    """The second check: keeps the candidates of the walk that the broker confirms."""
    walk = found.walk
    found.lost = {id: walk.lost[id] for id in _confirmed(broker.lost, list(walk.lost))}
    if walk.copies:
        walk.confirm_copies()
    candidates = walk.unrecorded_jobs.values()
    queues = config.worker.priorities
    found.unrecorded = list(_confirmed(broker.unrecorded, [job for job in candidates if job.place not in queues]))
    if found.excess > 0:
        in_queues = [job for job in candidates if job.place in queues]
        found.unrecorded_in_queues = list(_confirmed(broker.unrecorded, in_queues))
    if walk.silent:
        still_silent = {suspect.slot: suspect for suspect in broker.suspects(sweep=True)}
        found.silent = [still_silent[slot] for slot in walk.silent if slot in still_silent]


def _confirmed(check: Callable[[Sequence[T]], list[bool]], candidates: Sequence[T]) -> Iterator[T]:
    """Those of which the broker says so, or which it has repaired."""
    for batch in parts(candidates, broker_walk.SEARCHES):
        yield from compress(batch, check(batch))


def _report(found: Discrepancy, repairs: Sequence[Repair] = (), *, is_repair: bool = False) -> Report:
    problems, walk, measured = found.problems(), found.walk, found.second
    return Report(
        is_clean=not problems and not found.excess,
        balance=balance_of(measured.census, measured.unclaimed, found.excess, is_exact=measured.is_exact),
        problems=tuple(problems[:NAMED]),
        problem_count=len(problems),
        duplicates=tuple(DuplicateJob(id, count) for id, count in sorted(walk.copies.items())[:NAMED]),
        **{name: getattr(walk, name) for name in ("undecodable", "elements", "records", "slots")},
        batches=found.batches,
        repairs=tuple(repairs),
        is_repair=is_repair,
    )


class Repairs:
    """Repairs what two checks confirmed, each by one atomic step of the broker. `done` lists the repairs, in their
    order."""

    def __init__(self, broker: FullBroker, config: Config, add_follow_ups: AddFollowUps) -> None:
        self._broker = broker
        self._config = config
        self._add_follow_ups = add_follow_ups
        self._policy = worker_policy(config.worker)
        self._rules = rules_of(config.worker.after)
        self.done: list[Repair] = []

    def repair_jobs(self, found: Discrepancy) -> None:
        """Repairs jobs, slots and records, but not the counters."""
        for suspect in found.silent:
            self._reap(suspect)
        restored = self._restore(list(found.lost.values()))
        self._create_records(found.unrecorded)
        # Each restored job explains one of the missing ones. The rest of the excess are jobs of ours that lost their
        # record; the other jobs in queues were pushed by other programs and need no record.
        ours = sorted(found.unrecorded_in_queues, key=self._foreignness)[: max(0, found.excess - restored)]
        self._create_records(ours)
        if found.is_complete:
            # Not before: a file must not be enqueued again for a job that can still be restored.
            self._enqueue(found.lost_files)

    def _reap(self, suspect: Suspect) -> None:
        next_states = {"release": "back in its queue", "retry": "to be retried", "bury": "dead"}
        for verdict in reap(self._broker, suspect, self._policy, self._rules, "no heartbeat", self._add_follow_ups):
            self._did("reaped", verdict.claim.id, f"its slot {suspect.slot} died; {next_states[verdict.verb.value]}")
        if not suspect.claims:
            self._did("forgotten", suspect.slot, "the slot died without a job")

    def _restore(self, lost: Sequence[Record]) -> int:
        """Returns how many were restored. A job that was running counts too: it goes back to its queue."""
        count = 0
        for record in _confirmed(lambda records: self._broker.restore([one.id for one in records]), lost):
            count += 1
            self._did("restored", record.id, _destination(record))
        return count

    def _create_records(self, unrecorded: Sequence[UnrecordedJob]) -> None:
        for job in _confirmed(self._broker.create_record, unrecorded):
            self._did("recorded", job.record.id, f"as {job.record.state.value}, from its bytes")

    def reconcile(self, faults: Sequence[BatchFault]) -> None:
        """Counts members that have ended. Nothing repairs counts that are wrong in themselves."""
        for fault in faults:
            for members in parts(fault.members, broker_walk.SEARCHES):
                if counted := self._broker.count_members(fault.batch, members):
                    noun = "member" if counted == 1 else "members"
                    self._did("reconciled", fault.batch, f"counted {counted:,} {noun} that had ended")

    def _enqueue(self, files: Sequence[LostFile]) -> None:
        """Enqueues a job with the old id for each file that still exists, or with a new one if another program chose an
        id of fileq's own. `balance` counts the old job as deleted."""
        entries = []
        for file in files:
            try:
                size = os.stat(self._config.paths.here(file.path)).st_size
            except (OSError, ValueError):
                continue
            queue = priority_chooser(self._config)(file.path)
            short = split_signature(file.signature).short
            job = file_job(file.path, size=size, priority=queue, now=datetime.now(UTC), signature=short)
            job = job if is_own_id(file.id) else job.but(id=file.id)
            entries.append(Entry(job, queue, Version(file.path, file.signature), always=True))
        for entry, fate in zip(entries, self._broker.enqueue(entries).results if entries else (), strict=True):
            if fate is EnqueueResult.ENQUEUED:
                self._did("enqueued", entry.job.id, f"again, for {printable(entry.job.filepath)}")

    def _foreignness(self, unrecorded: UnrecordedJob) -> tuple[bool, bool]:
        """A sort key: first the jobs that the ledger knows, then those encoded as fileq encodes them, then others."""
        job = decode_or_none(unrecorded.record.raw)
        if job is None:
            return True, True
        [entry] = self._broker.lookup([job.path]) if job.filepath else [None]
        is_known = entry is not None and any(id == job.id for _, id in entry.versions)
        return not is_known, encode(job) != unrecorded.record.raw

    def balance(self, measure: Callable[[], Measurement]) -> None:
        """Changes the counters by the remaining excess, if it is still exactly that; otherwise measures again."""
        for _ in range(BALANCE_ATTEMPTS):
            first = measure()
            now = measure() if first.excess else first
            excess = broker_walk.agreed_excess(first, now)
            if not excess:
                return
            drift = now.census.drift
            if self._broker.balance(drift, drift - excess):
                why = "entered the broker, found nowhere" if excess > 0 else "found, never entered the broker"
                self._did("counted", "deleted" if excess > 0 else "adopted", f"+{abs(excess)}: {why}")
                return

    def _did(self, action: str, id: str, detail: str) -> None:
        self.done.append(Repair(action, id, detail))


def _destination(record: Record) -> str:
    if record.state in (State.PENDING, State.RUNNING):
        return f"to the front of {record.queue}"
    return "to the dead-letter queue" if record.state is State.DEAD else "to the scheduled jobs"


class OnDead:
    """Adds what follows from a settlement: the `on_dead` of jobs that fsck buries, and the deliveries about all that it
    gives back. Imports the handlers, but only if a job is buried. ConfigError, before anything is changed, if the
    routes can't be loaded."""

    def __init__(self, config: Config, app_dir: str, broker: FullBroker) -> None:
        self._config = config
        self._app_dir = app_dir
        self._broker = broker
        self._add: AddFollowUps | None = None

    @functools.cached_property
    def _subscriptions(self) -> Subscriptions:
        return current_subscriptions(self._broker, self._config)

    def __call__(self, settlement: Settlement) -> Settlement:
        if settlement.verb is Verb.BURY and self._may_be_any():
            self._add = self._add or self._load(settlement)
            settlement = self._add(settlement)
        deliveries = self._subscriptions.settled(settlement, wall_clock_ms())
        return replace(settlement, follow_ups=(*settlement.follow_ups, *deliveries)) if deliveries else settlement

    def _may_be_any(self) -> bool:
        """Whether a route has `on_dead`, or a module may define one that has."""
        routes = self._config.handlers
        has_own = any(route.use is not None and not route.use.startswith("fileq.") for route in routes)
        return bool(self._config.imports) or has_own or any(route.on_dead for route in routes)

    def _load(self, settlement: Settlement) -> AddFollowUps:
        from fileq.handlers.routes import Routes
        from fileq.worker.settlements import FollowUps

        try:
            return FollowUps(Routes.load(self._config, app_dir=self._app_dir), self._config.paths).added
        except ConfigError as error:
            advice = "give --app-dir, or leave the job to a worker"
            first = f"job {settlement.claim.id} is to be buried, and the on_dead of its route can't be read; {advice}"
            raise ConfigError([first, *error.problems]) from error
