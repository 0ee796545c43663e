"""The attempts of a worker: from a claim to a task of the executor, and from its outcome to a settlement.

The retry policy decides; this module brings it what it needs and moves the slots. Never calls the broker: the pump
sends the settlements.

What a kill -9 leaves: the claims in the broker's processing lists. A reaper gives their jobs back.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from msgspec.structs import replace

from fileq.brokers.admission_types import Admission, AdmitRequest, AdmitResult
from fileq.brokers.clocks import wall_clock_ms
from fileq.brokers.types import LedgerEntry
from fileq.core.claim import Claim, ClaimKey
from fileq.core.events import Emit, EmitAll, claimed, error_ignored, fenced, result_dropped
from fileq.core.job import Version
from fileq.core.outcome import Cancelled, Changed, Done, Failed, FinalOutcome, Refused, Released
from fileq.core.retry import Policy, RunChanged, decide
from fileq.core.settlement import defer
from fileq.core.webhook import DELIVERIES_MAX, DELIVERY_ROUTE
from fileq.files.paths import Paths
from fileq.handlers.routes import Routes
from fileq.handlers.task import Ran, Task
from fileq.worker.breakers import Breakers, sample_of
from fileq.worker.deferrals import DELIVERIES_RUN, EARLIER_JOB_RUNS, LAST_RUN_GOES_ON, Deferrals
from fileq.worker.executors.protocol import Executor
from fileq.worker.follow_ups import FollowUps
from fileq.worker.limits import Candidate, Limits, Refusal
from fileq.worker.policies import Policies
from fileq.worker.post_actions import version_left
from fileq.worker.prefetch import Prefetch
from fileq.worker.prepare import prepare
from fileq.worker.roots import RootsWatch
from fileq.worker.run_queue import RunQueue
from fileq.worker.slot import Free, Running, Slot, Waiting
from fileq.worker.slots import Slots
from fileq.worker.undecided import Undecided


class Attempts:
    """`may_run` is False once the worker stops: then nothing starts, and claims are released."""

    def __init__(
        self,
        slots: Slots,
        executor: Executor,
        routes: Routes,
        paths: Paths,
        breakers: Breakers,
        deferrals: Deferrals,
        limits: Limits,
        roots: RootsWatch,
        policies: Policies,
        prefetch: Prefetch,
        *,
        emit: Emit,
        emit_all: EmitAll,
        monotonic: Callable[[], float],
        wall_ms: Callable[[], int] = wall_clock_ms,
    ) -> None:
        self._slots = slots
        self._routes = routes
        self._paths = paths
        self._breakers = breakers
        self._deferrals = deferrals
        self._limits = limits
        self._roots = roots
        self._policies = policies
        self._prefetch = prefetch
        self._follow_ups = FollowUps(routes, paths)
        self._emit = emit
        self._emit_all = emit_all
        self._monotonic = monotonic
        self._wall_ms = wall_ms
        self.undecided = Undecided()
        self._queue = RunQueue(executor, slots.count, monotonic)
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
        if is_new and isinstance(task, Task) and (obstacle := self._obstacle(claim, task)) is not None:
            self._defer(slot, claim, *obstacle)
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

    def _obstacle(self, claim: Claim, task: Task) -> tuple[str, float] | tuple[str, float, bool] | None:
        """Why the job cannot run yet, and for how many seconds at least; None if it can. With True, it comes after the
        other jobs of that reason."""
        if task.route == DELIVERY_ROUTE:
            return (DELIVERIES_RUN, 0.0) if self.delivering >= DELIVERIES_MAX else None
        if claim.is_blocked:
            return EARLIER_JOB_RUNS if task.path else LAST_RUN_GOES_ON, 0.0
        # The breaker last: a job that cannot run must not become the probe of a breaker.
        if self._roots.is_any_missing and task.path and (problem := self._roots.obstacle(task.path)):
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
