"""The attempts of a worker: from a claim to a task of the executor, and from its outcome to a settlement.

The retry policy decides; this module brings it what it needs and moves the slots. Never calls the broker: the pump
sends the settlements.

What a kill -9 leaves: the claims in the broker's processing lists. A reaper gives their jobs back.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Sequence

from msgspec import Struct
from msgspec.structs import replace

from fileq.brokers.clocks import wall_clock_ms
from fileq.brokers.types import Admission, AdmitRequest, AdmitResult, LedgerEntry
from fileq.core.claim import Claim, ClaimKey
from fileq.core.events import Emit, EmitAll, claimed, error_ignored, fenced, result_dropped
from fileq.core.job import MADE_BY_TAG, Version
from fileq.core.outcome import Cancelled, Changed, Done, Failed, FinalOutcome, Refused, Released
from fileq.core.retry import Policy, RunChanged, decide
from fileq.core.settlement import defer
from fileq.core.webhook import DELIVERIES_MAX, DELIVERY_ROUTE
from fileq.files.paths import Paths
from fileq.handlers.routes import Routes
from fileq.handlers.task import Ran, Task
from fileq.worker.breakers import Breakers, sample_of
from fileq.worker.deferrals import DELIVERIES_RUN, EARLIER_JOB_RUNS, LAST_RUN_GOES_ON, Deferrals
from fileq.worker.executors.protocol import Executor, TaskOutcome
from fileq.worker.follow_ups import FollowUps
from fileq.worker.limits import Candidate, Limits, Refusal
from fileq.worker.policies import Policies
from fileq.worker.post_actions import version_left
from fileq.worker.roots import RootsWatch
from fileq.worker.slots import Free, Running, Slot, Slots, Waiting


class Gates(Struct, frozen=True):
    """What may keep a claimed job from running now, and the jobs that were deferred because of it."""

    breakers: Breakers
    limits: Limits
    roots: RootsWatch
    deferrals: Deferrals


class JobRules(Struct, frozen=True):
    """How a job runs, and what follows from its outcome."""

    routes: Routes
    paths: Paths
    policies: Policies


class WorkerClocks(Struct, frozen=True):
    monotonic: Callable[[], float]
    wall_ms: Callable[[], int] = wall_clock_ms


class Attempts:
    """`may_run` is False once the worker stops: then nothing starts, and claims are released."""

    def __init__(
        self,
        slots: Slots,
        executor: Executor,
        rules: JobRules,
        gates: Gates,
        prefetch: Prefetch,
        clocks: WorkerClocks,
        *,
        emit: Emit,
        emit_all: EmitAll,
    ) -> None:
        self._slots = slots
        self._routes = rules.routes
        self._paths = rules.paths
        self._policies = rules.policies
        self._breakers = gates.breakers
        self._deferrals = gates.deferrals
        self._limits = gates.limits
        self._roots = gates.roots
        self._prefetch = prefetch
        self._follow_ups = FollowUps(rules.routes, rules.paths)
        self._emit = emit
        self._emit_all = emit_all
        self._monotonic = clocks.monotonic
        self._wall_ms = clocks.wall_ms
        self.undecided = Undecided()
        self._queue = RunQueue(executor, slots.count, clocks.monotonic)
        self._claimed: list[Claim] = []  # the events of these claims are still to be emitted
        self.candidates: list[Candidate] = []  # claims of limited routes: the pump must find out whether they may run

    def start(self, claims: Iterable[Claim], *, may_run: bool) -> None:
        """Runs, defers, refuses or releases each claim; if the executor has no room, the claim waits. Ignores a claim
        whose slot is not free: the outcome of that job is known, and only its settlement has to be sent again."""
        slots = self._slots.by_id
        found = ((slots.get(claim.slot), claim) for claim in claims)
        new = [(slot, claim) for slot, claim in found if slot is not None and type(slot.state) is Free]
        if not may_run:
            self._release(new)
            return
        room = 0 if self._queue.is_any_waiting else self._room
        self._run_all(new[:room])
        if len(new) > room:
            self._queue.add(new[room:])

    def collect(self, *, may_run: bool = True, waits: bool = True, overlaps: bool = False) -> None:
        """Decides on each task that has ended, unless its claim was lost, and starts waiting claims in its place. With
        `overlaps`, does not wait for the tiny tasks that it starts: they run while the caller does other work."""
        is_any_begun = True
        while is_any_begun:
            ended = self._queue.collect(waits=waits)
            self._prefetch.ended(len(ended), self._slots.count - self._queue.room)
            for task, ran in ended:
                if (found := self._slots.running(task.key)) is not None:
                    self._end(*found, task, ran)
            waits = not overlaps  # a task that begins below may end at once
            is_any_begun = self._queue.is_any_waiting and self._begin_waiting(may_run)

    # claims that wait

    @property
    def waiting_due_s(self) -> float:
        """When collect() must be called because a claim will have waited too long, by the monotonic clock."""
        return self._queue.due_s

    @property
    def delivering(self) -> int:
        """How many deliveries of webhooks run, beside `worker.count` jobs."""
        return len(self._queue.deliveries)

    @property
    def _room(self) -> int:
        """For new tasks. Leaves room for the tasks of changed files, which may have to be submitted again."""
        return max(0, self._queue.room - len(self.undecided.changed))

    def _begin_waiting(self, may_run: bool) -> bool:
        """Runs as many waiting claims as there is room for; releases them if the worker stops, or if one has waited too
        long. Returns whether a task was submitted."""
        if not may_run:
            self._release(self._queue.take_all())
            return False
        room = self._queue.room
        self._run_all(self._queue.take(self._room))
        if self._queue.is_overdue:
            self._release(self._queue.take_all())
            self._prefetch.give_up()
        return self._queue.room < room

    def _release(self, claims: Sequence[tuple[Slot, Claim]]) -> None:
        for slot, claim in reversed(claims):  # each is put at the front of its queue, so the first one goes last
            self._emit(claimed(claim, is_run=False))
            self._end_without_run(slot, claim, Released())

    def cancel_waiting(self, slot: Slot) -> None:
        """Ends a job that was cancelled before it began."""
        assert isinstance(slot.state, Waiting)
        self._queue.remove(slot)
        self._emit(claimed(slot.state.claim, is_run=False))
        self._end_without_run(slot, slot.state.claim, Cancelled())

    def _run_all(self, claims: Iterable[tuple[Slot, Claim]]) -> None:
        tasks = [task for slot, claim in claims if (task := self._run(slot, claim)) is not None]
        self._emit_claimed()
        self._queue.submit(tasks)

    # files that have changed or vanished

    def decide_vanished(self, were_processed: Sequence[bool]) -> None:
        """Completes as skipped the jobs whose files were processed, and decides on the others as on any vanished
        file."""
        vanished, self.undecided.vanished = self.undecided.vanished, []
        for slot, was_processed in zip(vanished, were_processed, strict=True):
            assert isinstance(slot.state, Running)
            assert isinstance(slot.state.undecided, Failed)
            policy = self._policies.routes[slot.state.route]
            if was_processed:
                policy = replace(policy, skips_vanished=True)
            self._settle(slot, slot.state, slot.state.undecided, policy, slot.state.claim.key)

    def decide_changed(self, entries: Sequence[LedgerEntry | None], *, may_run: bool) -> None:
        """Decides on the changed files, given what the ledger knows of each."""
        changed, self.undecided.changed = self.undecided.changed, []
        tasks = []
        for slot, entry in zip(changed, entries, strict=True):
            assert isinstance(slot.state, Running)
            assert isinstance(slot.state.undecided, Changed)
            if task := self._decide_changed(slot, slot.state.claim, slot.state.undecided, entry, may_run):
                tasks.append(task)
        self._queue.submit(tasks)

    def lose(self, slot: Slot) -> None:
        """Ends the attempt of a job that this slot has lost. Nothing is settled: the broker has given the job away."""
        if isinstance(slot.state, Waiting):
            self._queue.remove(slot)
            slot.lose()
            return
        assert isinstance(slot.state, Running)
        claim, route = slot.state.claim, slot.state.route
        if slot.state.undecided is None:
            self._queue.abandon(claim.key)
        else:
            self.undecided.remove(slot, slot.state.undecided)
        slot.lose()
        self._breakers.record(route, claim.key, None)
        if self._limits.is_any:
            self._limits.ended(route)
        self._emit(fenced(claim))

    def _run(self, slot: Slot, claim: Claim, *, changed_to: str | None = None) -> Task | None:
        """The task to submit; None if the claim is refused or deferred."""
        task = prepare(claim, self._routes, self._paths, runs_changed=changed_to is not None)
        is_new = changed_to is None
        if is_new and isinstance(task, Task) and (deferral := self._deferral(claim, task)) is not None:
            self._defer(slot, claim, *deferral)
            return None
        if is_new and self._limits.is_any and isinstance(task, Task) and self._limits[task.route] is not None:
            self.candidates.append(Candidate(slot, claim, task))
            return None
        if is_new:
            self._claimed.append(claim)
        if isinstance(task, Refused | Cancelled):
            self._end_without_run(slot, claim, task)
            return None
        slot.run(Running(claim, task.route, self._monotonic(), changed_to or claim.version))
        if task.route == DELIVERY_ROUTE:
            self._queue.make_room(claim.key)
        return task

    def _emit_claimed(self) -> None:
        """Before the tasks are submitted: what a handler prints comes after the event of its claim."""
        if self._claimed:
            self._emit_all([claimed(claim) for claim in self._claimed])
            self._claimed.clear()

    # limited routes

    def ask_limits(self) -> list[AdmitRequest]:
        """Defers the candidates that `max_running` refuses. Returns what the broker must be asked about the others."""
        candidates, self.candidates = self.candidates, []
        refusals = self._limits.refused_here(candidates, self._slots.running_by_route())
        requests = []
        for candidate, refusal in zip(candidates, refusals, strict=True):
            limits = self._limits[candidate.task.route]
            if refusal is not None:
                self._refuse(candidate, refusal)
                continue
            self.candidates.append(candidate)
            if limits is not None and limits.is_shared:
                requests.append(limits.request(candidate.claim))
        return requests

    def run_candidates(self, answers: Iterable[Admission]) -> None:
        """Runs or defers the candidates, given the broker's answers to the requests."""
        candidates, self.candidates = self.candidates, []
        answers, tasks = iter(answers), []
        for candidate in candidates:
            slot, claim, task = candidate.slot, candidate.claim, candidate.task
            limits = self._limits[task.route]
            answer = next(answers) if limits is not None and limits.is_shared else None
            if answer is None or answer.result is AdmitResult.ADMITTED:
                self._claimed.append(claim)
                slot.run(Running(claim, task.route, self._monotonic(), claim.version))
                self._limits.admitted(task.route, claim.id)
                tasks.append(task)
            elif answer.result is AdmitResult.LOST:
                self._breakers.record(task.route, claim.key, None)
                self._emit(fenced(claim))
            else:
                self._refuse(candidate, self._limits.refused_there(task.route, answer))
        self._emit_claimed()
        self._queue.submit(tasks)

    def drop_candidates(self) -> None:
        """Forgets them. Their slots stay free; a renewal, or the next claim of each slot, returns the same jobs."""
        for candidate in self.candidates:
            self._breakers.record(candidate.task.route, candidate.claim.key, None)
        self.candidates.clear()

    def _refuse(self, candidate: Candidate, refusal: Refusal) -> None:
        """Defers a job that a limit of its route refuses. If it was the probe of a breaker, another job can be it."""
        self._breakers.record(candidate.task.route, candidate.claim.key, None)
        self._defer(candidate.slot, candidate.claim, refusal.reason, refusal.wait_s)

    def _deferral(self, claim: Claim, task: Task) -> tuple[str, float] | tuple[str, float, bool] | None:
        """Why the job cannot run yet, and for how many seconds at least; None if it can. With True, it comes after the
        other jobs of that reason."""
        if task.route == DELIVERY_ROUTE:
            return (DELIVERIES_RUN, 0.0) if self.delivering >= DELIVERIES_MAX else None
        if claim.is_blocked:
            return EARLIER_JOB_RUNS if task.path else LAST_RUN_GOES_ON, 0.0
        # The breaker last: a job that cannot run must not become the probe of a breaker.
        if self._roots.is_any_missing and task.path and (problem := self._roots.problem_of(task.path)):
            return problem, 0.0
        if self._breakers.is_closed:
            return None
        if self._breakers.admits(task.route, claim.key, is_probe=claim.is_probe, has_failed=claim.has_failed):
            return None
        wait_s = self._breakers.wait_s(task.route, has_failed=claim.has_failed)
        return self._breakers.reason(task.route), wait_s, claim.has_failed

    def _defer(self, slot: Slot, claim: Claim, reason: str, wait_s: float, is_last: bool = False) -> None:
        delay_ms = self._deferrals.delay_ms(reason, wait_s, is_last=is_last)
        slot.settle(defer(claim, reason=reason, delay_ms=delay_ms), claim.version)

    def _end(self, slot: Slot, running: Running, task: Task, ran: Ran | Cancelled) -> None:
        claim, policy = running.claim, self._policies.routes[running.route]
        if isinstance(ran, Done):
            if ran.warning:
                self._emit(result_dropped(claim, ran.warning))
        elif isinstance(ran, Cancelled | Released):
            if ran.raised is not None:
                self._emit(error_ignored(claim, ran, ran.raised))
        elif isinstance(ran, Changed):
            running.undecided = ran
            self.undecided.changed.append(slot)
            return
        elif isinstance(ran, Failed) and ran.is_vanished and not policy.skips_vanished and claim.version is not None:
            running.undecided = ran
            self.undecided.vanished.append(slot)
            return
        leaves = version_left(task.path, claim) if self._routes[running.route].in_place else None
        self._settle(slot, running, ran, policy, task.key, leaves)

    def _settle(
        self,
        slot: Slot,
        running: Running,
        ran: FinalOutcome,
        policy: Policy,
        key: ClaimKey,
        leaves: Version | None = None,
    ) -> None:
        duration_ms = round((self._monotonic() - running.started_s) * 1000)
        processed = leaves.signature if leaves is not None else running.signature
        now_ms = self._wall_ms()
        settlement = decide(running.claim, ran, policy, now_ms=now_ms, duration_ms=duration_ms, leaves=leaves)
        made = ran.made if type(ran) is Done else None
        if made is not None or self._follow_ups.is_any:
            settlement = self._follow_ups.added(settlement, running.route, made)
        slot.settle(settlement, processed, running.route)
        self._breakers.record(running.route, key, sample_of(ran), settlement.error, running.claim.id)
        if running.route == DELIVERY_ROUTE:
            self._deferrals.release(DELIVERIES_RUN, 1)

    def _end_without_run(self, slot: Slot, claim: Claim, outcome: Refused | Released | Cancelled) -> None:
        route = slot.state.route if isinstance(slot.state, Running) else None
        if route is not None:  # it was to run again for a changed file, and may be the probe of a breaker
            self._breakers.record(route, claim.key, None)
        settlement = decide(claim, outcome, self._policies.worker, now_ms=self._wall_ms())
        slot.settle(self._follow_ups.added(settlement, route), claim.version, route)

    def _decide_changed(
        self, slot: Slot, claim: Claim, changed: Changed, entry: LedgerEntry | None, may_run: bool
    ) -> Task | None:
        """The task to submit, if the file is to be run as it is now."""
        assert isinstance(slot.state, Running)
        route, policy, now_ms = slot.state.route, self._policies.worker, self._wall_ms()
        its_job = entry.job_of(changed.signature) if entry is not None else None
        decision = decide(claim, changed, policy, now_ms=now_ms, its_job=its_job, may_run=may_run)
        if isinstance(decision, RunChanged):
            return self._run(slot, claim, changed_to=decision.signature)
        slot.settle(self._follow_ups.added(decision, route), claim.version, route)
        self._breakers.record(route, claim.key, None)
        return None


# Makes the task of a claim, or gives the reason why there is none. Reads neither the broker nor the file system.


DEADLINE_PASSED = Refused("deadline passed", "DeadlinePassed")


def is_overdue(claim: Claim) -> bool:
    """Whether the deadline of the job had passed at the time of the claim."""
    deadline_ms = claim.job.deadline_ms if claim.job is not None else None
    return deadline_ms is not None and deadline_ms <= claim.claimed_ms


def prepare(claim: Claim, routes: Routes, paths: Paths, *, runs_changed: bool = False) -> Task | Refused | Cancelled:
    """The task; Refused if the bytes are not a job, no route takes it, or its deadline has passed; Cancelled if its
    batch is. Never raises.

    A deadline is compared with the broker's time of the claim, which begins within milliseconds: the clocks of workers
    differ. Most such jobs are dead before they are claimed (deadlines.py)."""
    try:
        return _task_of(claim, routes, paths, runs_changed)
    except Exception as error:
        # Any program can push a job. One that fileq was not made for must not end the worker, which has others to run.
        return Refused(f"can't be prepared: {error!r}", "CannotPrepare")


def _task_of(claim: Claim, routes: Routes, paths: Paths, runs_changed: bool) -> Task | Refused | Cancelled:
    job = claim.job
    if job is None:
        return Refused(claim.defect, "Undecodable")
    if claim.is_cancelled:
        return Cancelled(f"batch {job.batch_id} was cancelled" if job.batch_id else "its batch was cancelled")
    if is_overdue(claim):
        return DEADLINE_PASSED
    path = paths.here(job.path) if job.filepath else b""
    number = routes.find(job, paths.relative(path) if path else "")
    if number is None:
        return Refused(routes.refusal(job), "NoHandler")
    attempt = job.retries + job.recoveries + 1
    timeout_s = routes[number].timeout
    if job.timeout is not None:
        # A client with a limited key can shorten what the operator allows, not extend it.
        timeout_s = min(job.timeout, timeout_s) if MADE_BY_TAG in job.tag_values else job.timeout
    return Task(claim.key, claim.raw, number, path, paths.allowed, attempt, timeout_s, runs_changed)


# The attempts that can't be decided before the broker was read: those of files that have changed or vanished.
#
# Holds slots and reads their claims; the pump reads the broker, and Attempts decides.


class Undecided:
    """`changed`: the ledger is still to be read. `vanished`: the records of earlier jobs are still to be read."""

    def __init__(self) -> None:
        self.changed: list[Slot] = []
        self.vanished: list[Slot] = []

    def __bool__(self) -> bool:
        return bool(self.changed or self.vanished)

    def changed_paths(self) -> list[bytes]:
        """The files that changed since they were enqueued; Attempts.decide_changed() needs their ledger entries."""
        jobs = [slot.state.claim.job for slot in self.changed if isinstance(slot.state, Running)]
        return [job.path if job is not None else b"" for job in jobs]

    def vanished_claims(self) -> list[Claim]:
        """The jobs whose files have vanished; Attempts.decide_vanished() needs to know which of them were processed."""
        return [slot.state.claim for slot in self.vanished if isinstance(slot.state, Running)]

    def remove(self, slot: Slot, outcome: object) -> None:
        (self.changed if isinstance(outcome, Changed) else self.vanished).remove(slot)


# The tasks that the executor has, and the claims that wait until it has room for them.
#
# The executor never has more than `worker.count` tasks, not counting deliveries of webhooks. Claims that were made in
# advance wait here, in the order in which they were made.


NEVER_S = float("inf")


class RunQueue:
    """Only here are tasks submitted, collected and abandoned: `room` counts them."""

    def __init__(self, executor: Executor, count: int, monotonic: Callable[[], float]) -> None:
        self._executor = executor
        self._monotonic = monotonic
        self._waiting: deque[Slot] = deque()
        self.room = count  # how many more tasks may be submitted
        self.deliveries: set[ClaimKey] = set()  # those that run; they take no room, because they have their own threads

    def make_room(self, delivery: ClaimKey) -> None:
        """Makes room for one delivery, before it is submitted. The room is taken away when the delivery ends."""
        self.deliveries.add(delivery)
        self.room += 1

    def submit(self, tasks: Sequence[Task]) -> None:
        if tasks:
            self.room -= len(tasks)
            self._executor.submit(tasks)

    def collect(self, *, waits: bool) -> list[tuple[Task, TaskOutcome]]:
        ended = self._executor.collect(waits=waits)
        self.room += len(ended)
        if self.deliveries:
            for task, _ in ended:
                self._take_room(task.key)
        return ended

    def abandon(self, key: ClaimKey) -> None:
        self._executor.abandon(key)
        self.room += 1
        self._take_room(key)

    def _take_room(self, ended: ClaimKey) -> None:
        if ended in self.deliveries:
            self.deliveries.remove(ended)
            self.room -= 1

    # claims that wait

    @property
    def is_any_waiting(self) -> bool:
        return bool(self._waiting)

    def add(self, claims: Sequence[tuple[Slot, Claim]]) -> None:
        now_s = self._monotonic()
        for slot, claim in claims:
            slot.wait(claim, now_s)
            self._waiting.append(slot)

    def take(self, count: int) -> list[tuple[Slot, Claim]]:
        """Removes and returns the first claims, at most `count`. Their slots are still Waiting."""
        slots = [self._waiting.popleft() for _ in range(min(count, len(self._waiting)))]
        return [(slot, slot.state.claim) for slot in slots if isinstance(slot.state, Waiting)]

    def take_all(self) -> list[tuple[Slot, Claim]]:
        return self.take(len(self._waiting))

    def remove(self, slot: Slot) -> None:
        self._waiting.remove(slot)

    @property
    def due_s(self) -> float:
        """When the first claim will have waited for WAIT_MAX_S, by the monotonic clock."""
        state = self._waiting[0].state if self._waiting else None
        return state.since_s + WAIT_MAX_S if isinstance(state, Waiting) else NEVER_S

    @property
    def is_overdue(self) -> bool:
        return bool(self._waiting) and self._monotonic() >= self.due_s


# How many jobs a worker claims beyond `worker.count` while its jobs are tiny.
#
# A round trip has a fixed price, for the worker and for the broker. With tiny jobs it costs more than the jobs. So a
# worker that ends thousands of jobs a second claims the next ones before it has room to run them: one round trip then
# carries dozens. They wait in the worker, in the order of their claims, and never make more than `worker.count` jobs
# run.
#
# No job waits long in a worker. It claims in advance only what it ends within AHEAD_S at its present rate, in whole
# batches of `worker.count` where these fit, and only while these two hold:
# - A job runs for less than TURNOVER_S on average. Round trips do not count: a worker that is far from its server gains
#   most from claiming in advance.
# - Each slot ends a job within CYCLE_S, round trips included. A worker with little to do leaves the jobs to others.
#
# If a claimed job has waited for WAIT_MAX_S, because slow jobs came, all waiting jobs are released to the fronts of
# their queues, and the worker claims none in advance for a while. Pure: the clock is passed in.


HELD_MAX = 64  # claims of a worker, running ones included; with this many slots it claims nothing in advance
AHEAD_S = 0.004
TURNOVER_S = 0.005
CYCLE_S = 0.02
WAIT_MAX_S = 0.008
WINDOW_S = 0.005  # how long one measurement of the rate takes at least
FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.1, 5.0
GOOD_S = 10.0  # if the last release is longer ago than this, the next pause is a short one again


class Prefetch:
    """`depth` is how many jobs may be claimed beyond `count` now."""

    def __init__(self, count: int, *, is_allowed: bool, monotonic: Callable[[], float]) -> None:
        self._count = count
        # Not with one slot: such a worker runs jobs strictly in the order of their queue, which two calls could change.
        self.extra_max = max(0, HELD_MAX - count) if is_allowed and count > 1 else 0
        self._monotonic = monotonic
        self._rate = self._mean_running = 0.0
        self._ended = self._running = 0
        self._busy_s = 0.0  # how long tasks have run since the measurement began, added up over all slots
        self._since_s = self._last_s = monotonic()
        self._pause_s = FIRST_PAUSE_S
        self._resumes_s = self._gave_up_s = float("-inf")
        self.depth = 0

    def ended(self, count: int, running: int) -> None:
        """`count` tasks have ended since the last call, and `running` tasks run now. Call it in every turn, also
        without news: the rate of an idle worker must fall to 0."""
        if not self.extra_max:
            return
        now_s = self._monotonic()
        self._busy_s += self._running * (now_s - self._last_s)
        self._ended += count
        self._running, self._last_s = running, now_s
        elapsed_s = now_s - self._since_s
        if elapsed_s < WINDOW_S:
            return
        kept = 0.5 if elapsed_s < 2 * WINDOW_S else 0.0  # the weight of earlier measurements
        self._rate += (1 - kept) * (self._ended / elapsed_s - self._rate)
        self._mean_running += (1 - kept) * (self._busy_s / elapsed_s - self._mean_running)
        self._since_s, self._ended, self._busy_s = now_s, 0, 0.0
        are_tasks_short = self._mean_running <= self._rate * TURNOVER_S
        is_fast = are_tasks_short and self._rate * CYCLE_S >= self._count and now_s >= self._resumes_s
        self.depth = self._whole_batches(min(self.extra_max, int(self._rate * AHEAD_S))) if is_fast else 0

    def _whole_batches(self, depth: int) -> int:
        """Rounds the depth so that each of the two calls in flight brings whole batches of `count` jobs.

        What is left over would run as a small batch, which costs nearly as much as a whole one."""
        unit = 2 * self._count
        if unit > self._count + self.extra_max:
            return depth
        return max(1, (self._count + depth) // unit) * unit - self._count

    def give_up(self) -> None:
        """A job has waited too long: claims none in advance for a while. Each pause is twice as long as the last."""
        now_s = self._monotonic()
        is_repeated = now_s - self._gave_up_s < GOOD_S
        self._pause_s = min(2 * self._pause_s, LONGEST_PAUSE_S) if is_repeated else FIRST_PAUSE_S
        self._gave_up_s, self._resumes_s = now_s, now_s + self._pause_s
        self.depth = 0
