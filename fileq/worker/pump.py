"""The loop of a worker: poll what ended, settle it and claim for the free slots in one round trip, submit.

One thread owns it. However many jobs ended since the last turn go in one batch: under load batches grow by
themselves, idle they are one job.

What a kill -9 leaves: before the round trip, claims in processing lists, which a reaper gives back; in it, whatever the
broker made of it, each job in one place; after it, settled jobs and new claims, which a reaper gives back.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable

from fileq.brokers.protocol import Broker
from fileq.brokers.types import LeaseStatus, Renewal, TurnReply
from fileq.config import Config
from fileq.core.breaker import Breaker
from fileq.core.claim import Claim, ClaimKey
from fileq.core.errors import BrokerError
from fileq.core.events import Emit, claimed, fenced, ignore, result_dropped, settled
from fileq.core.job import Version
from fileq.core.outcome import Cancelled, Changed, Died, Done, Failed, Outcome, Refused, Released
from fileq.core.process_events import SlotReplaced
from fileq.core.retry import Policy, decide
from fileq.core.settlement import Settlement, SettleResult
from fileq.files.paths import Paths
from fileq.handlers.routes import Routes
from fileq.handlers.task import Ran, Task
from fileq.worker.aftermath import Aftermath
from fileq.worker.executors.protocol import Executor
from fileq.worker.prepare import prepare
from fileq.worker.slots import Running, Slots
from fileq.worker.turns import Turns

KILL_GRACE_S = 5.0


class Pump:
    """One worker's turn, testable by itself. Raises BrokerUnavailable; nothing is lost by it."""

    def __init__(
        self,
        config: Config,
        broker: Broker,
        executor: Executor,
        routes: Routes,
        paths: Paths,
        breaker: Breaker,
        *,
        emit: Emit = ignore,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._broker = broker
        self._executor = executor
        self._routes = routes
        self._paths = paths
        self._breaker = breaker
        self._emit = emit
        self._monotonic = monotonic
        self._renew_every_s = config.worker.heartbeat_ttl / 3
        max_recoveries = config.worker.max_recoveries
        self._policy = Policy(config.worker.max_retries, max_recoveries, config.worker.backoff)
        self._policies = [Policy(route.max_retries, max_recoveries, route.backoff) for route in routes]
        self._aftermath = Aftermath(config.worker.after, emit)
        self.slots = Slots(config.worker.count, tuple(config.worker.priorities))
        self.is_quiet = False
        self.is_hungry = True  # a free slot found nothing: it is worth being woken
        self.paused: frozenset[str] = frozenset()
        self.answers = 0  # of the broker, so far: as long as they come it is not away
        self._tasks: dict[ClaimKey, str] = {}  # key → slot
        self._processed: dict[str, str | None] = {}  # slot → version of the file that its settlement is about
        self._orders: list[tuple[Claim, str]] = []  # changed files, and their signature now
        self._turns = Turns(broker, config.worker.count)
        self._next_renewal_s = 0.0
        self._shown_breaker = ""

    # one turn

    def start(self) -> None:
        self._register()
        self._next_renewal_s = self._monotonic() + self._renew_every_s

    def turn(self, may_claim: bool = True) -> int:
        """Collect what ended, take an answer that is awaited, begin the next turn; how many jobs were claimed. But for
        what is rare, one round trip at most."""
        self._collect()
        claims = 0
        if self._is_more_due():
            # With nothing underway: what these say of a slot must not be crossed by a turn about the same slot.
            while self._turns:
                claims += self._take()
            self._do_more()
        is_in_vain = False
        if self._turns and not self._may_begin_another():
            claims += self._take()
            is_in_vain = self.is_hungry
        self._ask(may_claim, is_worth_asking=not is_in_vain)
        if self._turns.is_answered:
            claims += self._take()
        return claims

    def _may_begin_another(self) -> bool:
        """With a breaker that lets one probe through, which of two turns found it would be anybody's guess."""
        return self._breaker.is_closed and self._turns.is_another_worth_it(len(self.slots.settling))

    def _ask(self, may_claim: bool, *, is_worth_asking: bool) -> None:
        """Begin a turn if there is something to say, or a slot to be filled that did not just ask in vain."""
        if self._turns and not self._breaker.is_closed:
            return
        told, share = self._turns.told(), self._turns.share
        settling = self.slots.settling
        ending = [slot for slot in settling if slot not in told][:share]
        settlements = [settling[slot] for slot in ending]
        slots: list[str] = []
        if may_claim and not self.is_quiet and (is_worth_asking or settlements):
            idle = (slot for slot in self.slots.free() if slot not in settling and slot not in told)
            free = ending if len(ending) == share else [*ending, *idle][:share]
            slots = free[: self._breaker.permits(len(free))]
        if not settlements and not slots:
            self.is_hungry = self.is_hungry and not is_worth_asking
            return
        try:
            self._turns.begin(settlements, slots)
        except BrokerError:
            self._breaker.took([])
            raise

    def _take(self) -> int:
        """The answer to the turn that was begun first: what it settled is settled, what it claimed begins."""
        try:
            underway, answer = self._turns.take()
        except BrokerError:
            self._give_up_turns()
            raise
        self.answers += 1
        if not self._breaker.is_closed:
            self._breaker.took([claim.key for claim in answer.claims])
        self._take_settled(underway.settlements, answer)
        self._begin(answer.claims)
        self._collect()  # what ended while the answer was awaited, or as soon as it began
        for slot in answer.gone:
            self._replace(slot)
        self.paused = answer.paused
        self.is_hungry = len(answer.claims) < len(underway.slots)
        return len(answer.claims)

    def _give_up_turns(self) -> None:
        """No answer, so nobody knows what was claimed: a renewal tells. The other turn must not be sent again either:
        by the time it gets through, claiming may no longer be allowed. What is to be settled is told again."""
        self._turns.drop()
        self._breaker.took([])  # a probe that may not have been claimed is asked for again
        self._next_renewal_s = self._monotonic()

    def _is_more_due(self) -> bool:
        return (
            bool(self._orders)
            or self._monotonic() >= self._next_renewal_s
            or self._breaker.state != self._shown_breaker
        )

    def _do_more(self) -> None:
        """What needs a round trip of its own now and then."""
        self._judge_changed()
        if self._monotonic() >= self._next_renewal_s:
            self._renew()
        if self._breaker.state != self._shown_breaker:
            self._register()
        self.answers += 1

    @property
    def has_news(self) -> bool:
        """Something waits to be told to the broker, or an answer to be taken: turn at once."""
        return bool(self._turns or self.slots.settling or self._orders)

    @property
    def is_idle(self) -> bool:
        return not self._turns and self.slots.is_idle

    def next_due_s(self) -> float:
        """By the monotonic clock: when to turn at the latest."""
        deadline_s = self._executor.next_deadline_s()
        return self._next_renewal_s if deadline_s is None else min(self._next_renewal_s, deadline_s)

    def cancel_all(self, grace_s: float) -> None:
        self._executor.quit(grace_s)

    def finish(self) -> None:
        """Everything is settled: nothing of this worker stays behind in the broker."""
        self._turns.drop()
        self._broker.deregister(self.slots.names)
        self._aftermath.close(KILL_GRACE_S)

    # claims

    def _begin(self, claims: Iterable[Claim]) -> None:
        """Claims start to run, or are refused at once; what comes after quiet is given back. One whose outcome is known
        already is only settled again."""
        new = [claim for claim in claims if claim.slot not in self.slots.settling]
        for claim in new:
            self._emit(claimed(claim))
        if self.is_quiet:
            for claim in reversed(new):  # each goes to the front
                self._settle(claim, Released(), self._policy, 0)
        elif tasks := [task for claim in new if (task := self._prepared(claim)) is not None]:
            self._executor.submit(tasks)

    def _prepared(self, claim: Claim, *, changed_to: str | None = None) -> Task | None:
        """What to submit for a claim; None if it was refused."""
        task = prepare(claim, self._routes, self._paths, runs_changed=changed_to is not None)
        if isinstance(task, Refused):
            self._settle(claim, task, self._policy, 0)
            return None
        signature = changed_to or (claim.job.signature if claim.job is not None else None)
        self.slots.running[claim.slot] = Running(claim, task.route, self._monotonic(), signature)
        self._tasks[task.key] = claim.slot
        return task

    def _collect(self) -> None:
        for task, ran in self._executor.collect():
            slot = self._tasks.pop(task.key, None)
            running = self.slots.running.pop(slot, None) if slot is not None else None
            if running is not None:
                self._end(running, task, ran)

    def _end(self, running: Running, task: Task, ran: Ran | Cancelled | Released) -> None:
        if isinstance(ran, Changed):
            self._orders.append((running.claim, ran.signature))
            self.slots.running[running.claim.slot] = running
            return
        claim = running.claim
        duration_ms = round((self._monotonic() - running.started_s) * 1000)
        if isinstance(ran, Done) and ran.warning:
            self._emit(result_dropped(claim, ran.warning))
        leaves = self._aftermath.version_left(task.path, claim) if self._routes[running.route].in_place else None
        self._processed[claim.slot] = leaves.signature if leaves is not None else running.signature
        self._settle(claim, ran, self._policies[running.route], duration_ms, leaves, key=task.key)

    def _settle(
        self,
        claim: Claim,
        outcome: Outcome,
        policy: Policy,
        duration_ms: int,
        leaves: Version | None = None,
        *,
        key: ClaimKey | None = None,
    ) -> None:
        now_ms = time.time_ns() // 1_000_000
        settlement = decide(claim, outcome, policy, now_ms=now_ms, duration_ms=duration_ms, leaves=leaves)
        self.slots.settling[claim.slot] = settlement
        self._breaker.ended(key or claim.key, _as_sample(outcome))

    def _judge_changed(self) -> None:
        """A file that is another version now: done with, if that version has a job of its own; else run as it is."""
        if not self._orders:
            return
        paths = [claim.job.path if claim.job else b"" for claim, _ in self._orders]
        entries = self._broker.lookup(paths)
        orders, self._orders = self._orders, []
        tasks = []
        for (claim, signature), entry in zip(orders, entries, strict=True):
            self.slots.running.pop(claim.slot, None)
            newer = dict(entry.versions).get(signature) if entry is not None else None
            if newer is not None and newer != claim.id:
                self._settle(claim, Done(is_superseded=True), self._policy, 0)
            elif self.is_quiet:  # nothing of it has run
                self._settle(claim, Released(), self._policy, 0)
            elif task := self._prepared(claim, changed_to=signature):
                tasks.append(task)
        if tasks:
            self._executor.submit(tasks)

    def _take_settled(self, settlements: list[Settlement], answer: TurnReply) -> None:
        for settlement, said in zip(settlements, answer.settled, strict=True):
            slot, job = settlement.claim.slot, settlement.claim.job
            self.slots.settling.pop(slot, None)
            processed = self._processed.pop(slot, job.signature if job is not None else None)
            if said is SettleResult.FENCED:
                self._emit(fenced(settlement.claim))
            else:
                self._emit(settled(settlement))
                self._aftermath.follow(settlement, self._paths, processed)

    # heartbeats

    def _renew(self) -> None:
        """Prolong what is held, and learn what is not."""
        renewals = self._broker.renew(self.slots.believed())
        self._next_renewal_s = self._monotonic() + self._renew_every_s
        self._begin([claim for renewal in renewals if (claim := self._heed(renewal)) is not None])

    def _heed(self, renewal: Renewal) -> Claim | None:
        """A job that the slot turns out to hold, to be begun."""
        slot = renewal.slot
        running = self.slots.running.get(slot)
        if renewal.status is LeaseStatus.GONE:
            self._replace(slot)
        elif renewal.status is LeaseStatus.LOST and running is not None:
            self._lose(running)
        elif renewal.status is LeaseStatus.CANCEL and running is not None and not running.is_cancelling:
            running.is_cancelling = True
            self._executor.cancel(running.claim.key)
        elif (
            renewal.status is LeaseStatus.UNEXPECTED
            and renewal.claim is not None
            and running is None
            and not self.is_quiet
        ):
            return renewal.claim  # a quiet pump leaves it: deregistering gives it back
        return None

    def _lose(self, running: Running) -> None:
        """Somebody else has the job now: end ours, and say nothing of it."""
        key = running.claim.key
        self._executor.abandon(key)
        self._tasks.pop(key, None)
        self.slots.running.pop(running.claim.slot, None)
        self._breaker.ended(key, None)
        self._emit(fenced(running.claim))

    def _replace(self, slot: str) -> None:
        running = self.slots.running.get(slot)
        settlement = self.slots.settling.get(slot)
        if running is not None:
            self._lose(running)
        elif settlement is not None:
            # It ended, and too late: a slot that is gone can't tell, so it is fenced without being asked.
            self._emit(fenced(settlement.claim))
        name = self.slots.replace(slot)
        self._broker.register({name: self.slots.info(self._breaker.state)})
        self._emit(SlotReplaced(slot, name))

    def _register(self) -> None:
        """All slots, with the breaker's state as it is now."""
        state = self._breaker.state
        self._broker.register({name: self.slots.info(state) for name in self.slots.names})
        self._shown_breaker = state


def _as_sample(outcome: Outcome) -> bool | None:
    """What the breaker hears: completions and failed attempts, nothing else."""
    if isinstance(outcome, Done):
        return None if outcome.is_superseded else True
    if isinstance(outcome, Failed):
        return False if outcome.is_sample else None
    if isinstance(outcome, Died):
        return False
    return None
