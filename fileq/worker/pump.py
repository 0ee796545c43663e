"""Takes each job of a worker from its claim to its settlement, in one thread, turn by turn.

A turn collects outcomes, settles them and claims for the free slots in one round trip, and submits what was claimed.
All outcomes since the last turn go out together, so calls grow under load. A slot holds one job at a time:

    Free      One call settles what has ended and claims for the free slots. A claimed job is
              - refused, deferred by a gate (root, breaker, limit) or because only another
                worker has its handler, cancelled or released                              → Settling
              - claimed in advance, and there is no room for it yet                        → Waiting
              - admitted                                                                   → Running
    Waiting   When there is room, it goes on as from Free. If it has waited too long, or the
              worker stops, it is released                                                 → Settling
    Running   The executor has the task. When its attempt ends the retry policy decides    → Settling
              If the root of its file was missing it is deferred                           → Settling
              If the file has changed or vanished the job stays Running, undecided, until
              the broker was read: then it runs again, or is decided.
    Settling  The next call carries the settlement; after a lost reply it is sent again.
              When the broker has answered, whether it accepted it or not                  → Free

The broker may say that a slot no longer holds its job (Running, Waiting → Free) or is no longer known (any → Gone; a
new slot takes its position). A transition that is not listed here is a defect and raises.

The pump decides nothing about a job: the gates and the retry policy do. A turn may raise BrokerUnavailable and then be
repeated: nothing is lost by it. Never renews leases while a call is in flight: the two would contradict each other.

What a kill -9 leaves: before the round trip, claims in processing lists; after it, settled jobs and new claims in
processing lists; during it, each job wholly settled or claimed, or not at all. A reaper gives the claimed jobs back.
"""

from __future__ import annotations

import os
import secrets
import socket
import time
from collections import Counter, deque
from collections.abc import Callable, Iterable, KeysView, Mapping, Sequence
from typing import NamedTuple, TypeAlias

from msgspec import Struct
from msgspec.structs import replace

from fileq.brokers.protocol import FullBroker, PendingReply
from fileq.brokers.types import AdmitResult, LeaseStatus, LedgerEntry, Renewal, TurnReply
from fileq.config import Config
from fileq.core.errors import BrokerError
from fileq.core.events import (
    Emit,
    EmitAll,
    Event,
    SlotReplaced,
    buried_unread,
    claimed,
    error_ignored,
    fenced,
    followed,
    ignore,
    one_by_one,
    result_dropped,
    settled,
)
from fileq.core.job import MADE_BY_TAG, Claim, ClaimKey, Version, attempt_of, wall_clock_ms
from fileq.core.outcome import Cancelled, Changed, Done, Failed, FinalOutcome, Made, Ran, Refused, Released, Task
from fileq.core.settlement import Policy, Settlement, SettleResult, Verb, decide, decide_changed, defer
from fileq.core.webhook import DELIVERIES_MAX, DELIVERY_ROUTE
from fileq.files.paths import Paths, directory_problem
from fileq.handlers.routes import Routes
from fileq.worker.batch_reconciler import finished_event
from fileq.worker.breakers import Breakers, sample_of
from fileq.worker.deferrals import (
    DELIVERIES_RUN,
    EARLIER_JOB_RUNS,
    LAST_RUN_GOES_ON,
    Deferrals,
    LeftJobs,
    Limits,
    RootsWatch,
)
from fileq.worker.executors.protocol import Executor
from fileq.worker.heartbeats import Heartbeats
from fileq.worker.post_actions import PostActions, version_left, were_processed
from fileq.worker.prefetch import WAIT_MAX_S, Prefetch
from fileq.worker.settlements import FollowUps, route_policies, rules_of, with_order, worker_policy

KILL_GRACE_S = 5.0
CALLS_MAX = 2  # in flight
NEVER_S = float("inf")


class Free(Struct, frozen=True):
    """Holds no claim."""


class Waiting(Struct, frozen=True):
    """The claim was made in advance: nothing of the job has begun."""

    claim: Claim
    since_s: float


class Running(Struct):
    """The executor has the task of this claim, or has returned it as `undecided`: its file has changed or vanished, and
    what the broker knows of the file is still to be read."""

    claim: Claim
    route: int
    started_s: float
    signature: str | None  # of the version that the handler was given, if it is known
    is_cancelling: bool = False
    undecided: Changed | Failed | None = None


class Settling(Struct, frozen=True):
    """The outcome is decided; the broker has not answered yet. `route` is that of the attempt that has ended, if there
    was one."""

    settlement: Settlement
    route: int | None = None

    @property
    def claim(self) -> Claim:
        return self.settlement.claim


class Gone(Struct, frozen=True):
    """The broker no longer knows the slot. Its id is never used again."""


SlotState: TypeAlias = Free | Waiting | Running | Settling | Gone
FREE, GONE = Free(), Gone()
_MAY_RUN = (Free, Running, Waiting)


class SlotDefect(Exception):
    """A transition from a state that does not allow it."""


class Slot:
    """`settling` is shared by all slots of a worker: those that are Settling, in the order in which they became so.
    Only the transitions change it, together with the state."""

    __slots__ = ("_settling", "id", "number", "state")

    def __init__(self, id: str, number: int, settling: dict[Slot, None]) -> None:
        self.id = id
        self.number = number
        self.state: SlotState = FREE
        self._settling = settling

    def wait(self, claim: Claim, now_s: float) -> None:
        if type(self.state) is not Free:
            raise self._defect("wait")
        self.state = Waiting(claim, now_s)

    def run(self, running: Running) -> None:
        if type(self.state) not in _MAY_RUN:
            raise self._defect("run")
        self.state = running

    def settle(self, settlement: Settlement, route: int | None = None) -> None:
        if type(self.state) not in _MAY_RUN:
            raise self._defect("settle")
        self.state = Settling(settlement, route)
        self._settling[self] = None

    def finish(self) -> Settling:
        """Free again; returns what was settled."""
        settling = self.state
        if type(settling) is not Settling:
            raise self._defect("finish")
        self.state = FREE
        del self._settling[self]
        return settling

    def lose(self) -> None:
        if type(self.state) is not Running and type(self.state) is not Waiting:
            raise self._defect("lose")
        self.state = FREE

    def leave(self) -> None:
        if type(self.state) is Gone:
            raise self._defect("leave")
        self.state = GONE
        self._settling.pop(self, None)

    def _defect(self, transition: str) -> SlotDefect:
        return SlotDefect(f"slot {self.id} cannot {transition}: it is {type(self.state).__name__}")


class Slots:
    """The slots of a worker: `count`, and extra ones while jobs are claimed in advance. All are alike, except that
    operators are not shown the extra ones. Other threads read `by_id`, so a change makes a new dictionary."""

    def __init__(self, count: int) -> None:
        self.count = count
        self._process = f"{socket.gethostname()}-{os.getpid()}"
        self._settling: dict[Slot, None] = {}
        self.by_id: Mapping[str, Slot] = {}
        self._add(range(count))

    def _add(self, numbers: Iterable[int]) -> list[Slot]:
        new = [self._new(number) for number in numbers]
        self.by_id = {**self.by_id, **{slot.id: slot for slot in new}}
        return new

    def _new(self, number: int) -> Slot:
        """Its id has a nonce, because a restarted container may have the same host and pid, and must not inherit old
        claims."""
        return Slot(f"{self._process}-{number}-{secrets.token_hex(4)}", number, self._settling)

    def running(self, key: ClaimKey) -> tuple[Slot, Running] | None:
        """The slot that runs this claim; None if it was lost meanwhile."""
        slot = self.by_id.get(key.slot)
        if slot is not None:
            state = slot.state
            if type(state) is Running and state.claim.token == key.token:
                return slot, state
        return None

    @property
    def settling(self) -> KeysView[Slot]:
        """In the order in which their attempts ended."""
        return self._settling.keys()

    def free(self) -> list[Slot]:
        return [slot for slot in self.by_id.values() if type(slot.state) is Free]

    @property
    def is_idle(self) -> bool:
        return all(type(slot.state) is Free for slot in self.by_id.values())

    @property
    def running_count(self) -> int:
        return sum(type(slot.state) is Running for slot in self.by_id.values())

    def running_by_route(self) -> Counter[int]:
        return Counter(slot.state.route for slot in self.by_id.values() if isinstance(slot.state, Running))

    def holdings(self) -> list[tuple[str, bytes]]:
        """Each slot's id with the raw job that it holds as far as this worker knows, or b""; for renewing."""
        return [
            (slot.id, slot.state.claim.raw if isinstance(slot.state, Waiting | Running | Settling) else b"")
            for slot in self.by_id.values()
        ]

    @property
    def has_extra(self) -> bool:
        return len(self.by_id) > self.count

    def add_extra(self, count: int) -> list[Slot]:
        return self._add(range(self.count, self.count + count))

    def remove_extra(self) -> list[str]:
        """Removes the extra slots, if all of them are free. Returns their ids, which are never used again."""
        extra = [slot for slot in self.by_id.values() if slot.number >= self.count]
        if not all(type(slot.state) is Free for slot in extra):
            return []
        for slot in extra:
            slot.leave()
        self.by_id = {id: slot for id, slot in self.by_id.items() if slot.number < self.count}
        return [slot.id for slot in extra]

    def replace(self, slot: Slot) -> Slot:
        """The slot is gone; a new one, with a new id, takes its position."""
        slot.leave()
        new = self._new(slot.number)
        slots = [new if other is slot else other for other in self.by_id.values()]
        self.by_id = {other.id: other for other in slots}
        return new


Candidate: TypeAlias = tuple[Slot, Claim, Task]  # of a limited route; the slot is Free until the job may run


class Call(NamedTuple):
    """A call of settle_and_claim in flight, and the slots it is about."""

    settling: list[Slot]
    claiming: list[Slot]
    slots: frozenset[Slot]
    reply: PendingReply


class Gates(NamedTuple):
    """What may keep a claimed job from running now, and the jobs that were deferred because of it."""

    breakers: Breakers
    limits: Limits
    roots: RootsWatch
    deferrals: Deferrals

    @classmethod
    def of(
        cls,
        config: Config,
        routes: Routes,
        broker: FullBroker,
        *,
        are_roots_expected: bool = True,
        emit: Emit = ignore,
        monotonic: Callable[[], float] = time.monotonic,
        look: Callable[[bytes], str] = directory_problem,
    ) -> Gates:
        """Connected: when a breaker closes or a root is back, the jobs that were deferred for it are released."""
        deferrals = Deferrals(broker, monotonic=monotonic)
        own = [(route.route_name, route.circuit_breaker) for route in routes if not route.is_built_in]
        breakers = Breakers(own, deferrals, clock=monotonic, emit=emit)
        paths, are_expected = config.paths, are_roots_expected
        roots = RootsWatch(
            paths.roots, paths.folders, emit=emit, on_end=deferrals.end, are_expected=are_expected, look=look
        )
        return cls(breakers, Limits(routes, deferrals), roots, deferrals)


class Pump:
    """The turns of one worker, without the waiting between them."""

    def __init__(
        self,
        config: Config,
        broker: FullBroker,
        executor: Executor,
        routes: Routes,
        gates: Gates,
        *,
        emit: Emit = ignore,
        emit_all: EmitAll | None = None,
        on_dead: Callable[[str], None] = lambda id: None,
        monotonic: Callable[[], float] = time.monotonic,
        wall_ms: Callable[[], int] = wall_clock_ms,
    ) -> None:
        worker = config.worker
        self._broker = broker
        self._executor = executor
        self._routes = routes
        self._paths = config.paths
        self._breakers, self._limits, self._roots, self._deferrals = gates
        self._policy = worker_policy(worker)  # for claims without a route
        self._policies = route_policies(worker, routes)
        self._rules = rules_of(worker.after)
        self._follow_ups = FollowUps(routes, config.paths, wall_ms)
        self._emit = emit
        self._emit_all = emit_all or one_by_one(emit)
        self._on_dead = on_dead
        self._monotonic = monotonic
        self._wall_ms = wall_ms
        self._slots = Slots(worker.count)
        # Limits count jobs that run, not claims that wait. So a worker with limited routes claims nothing in advance.
        self._prefetch = Prefetch(worker.count, is_allowed=not self._limits.is_any, monotonic=monotonic)
        self._heartbeats = Heartbeats(config, routes, *gates[:3], is_draining=lambda: self.is_quiet, clock=monotonic)
        self._post_actions = PostActions(config, broker, emit)
        self._left = LeftJobs(broker, config, monotonic)
        self._calls: deque[Call] = deque()  # in flight: at most two, and no slot is in both
        self._held_max = worker.count  # how many slots may hold a job at the moment
        self._are_replies_awaited = False  # True once a reply took time, as with a broker that is another process
        self._claimed: list[Claim] = []  # the events of these claims are still to be emitted
        self._candidates: list[Candidate] = []
        self._waiting: deque[Slot] = deque()  # in the order of their claims
        self._room = worker.count  # how many more tasks the executor takes
        self._deliveries: set[ClaimKey] = set()  # those that run; they take no room: they have threads of their own
        self._changed: list[Slot] = []  # undecided: the ledger is still to be read
        self._vanished: list[Slot] = []  # undecided: the records of earlier jobs are still to be read
        self.is_quiet = False  # claims nothing any more, and starts nothing
        self.is_underfilled = True  # the last claim got fewer jobs than slots: wait until the broker wakes this worker
        self.reply_count = 0  # grows as long as the broker is reachable

    # what the service needs

    @property
    def is_turn_due(self) -> bool:
        """The next turn has something to send, to take or to decide, so it must not wait."""
        return bool(self._calls or self._slots.settling or self._changed or self._vanished)

    @property
    def is_idle(self) -> bool:
        return not self._calls and self._slots.is_idle

    @property
    def running_count(self) -> int:
        return self._slots.running_count

    @property
    def leaves_jobs(self) -> bool:
        """Jobs that only another worker has a handler for come back soon: that one should be the first to claim."""
        return self._monotonic() < self._left.recent_until_s

    def next_due_s(self) -> float:
        """When to turn at the latest, by the monotonic clock."""
        deadline_s = self._executor.next_deadline_s()
        due_s = min(self._heartbeats.due_s, self._waiting_due_s)
        return due_s if deadline_s is None else min(due_s, deadline_s)

    def start(self) -> None:
        self._breakers.apply_resets(self._broker.breaker_resets())
        self._register_all()
        self._heartbeats.start()

    def look_for_cancels(self) -> None:
        """A cancellation was requested: if it is of a job that runs here, the next renewal says so."""
        if not self._slots.is_idle:
            self._heartbeats.renew_soon()

    def cancel_all(self, grace_s: float) -> None:
        self._executor.quit(grace_s)

    def finish(self) -> None:
        """Removes the slots from the broker, which gives back what they still hold, and ends the post actions."""
        self._drop_calls()
        self._broker.deregister(list(self._slots.by_id))
        self._post_actions.close(KILL_GRACE_S)

    # one turn

    def turn(self, may_claim: bool = True, *, is_woken: bool = True) -> int:
        """Collects outcomes, takes a reply that is due, sends the next call. Returns the number of jobs claimed.

        After a claim that found fewer jobs than slots, only `is_woken` or a settlement, which has to be sent anyway,
        makes it claim again. Makes one round trip at most, apart from the rare extra calls."""
        # While a reply is still to be taken, do not wait for tiny tasks: their outcomes are needed only when the next
        # tasks are submitted. A broker inside this process does nothing meanwhile; there, larger calls gain more.
        self._collect(waits=not self._calls, overlaps=self._are_replies_awaited)
        # Deliveries of webhooks run beside `worker.count` jobs, so a slow receiver takes no slot from a job.
        self._held_max = self._slots.count + self._depth + len(self._deliveries)
        claim_count = 0
        if self._is_extra_call_due():
            # Extra calls read or change what a slot holds; a call in flight for the same slot would contradict them.
            while self._calls:
                claim_count += self._take_reply()
            self._make_extra_calls()
        is_just_underfilled = False
        if self._calls and not self._may_send_another() and not self._is_another_due():
            claim_count += self._take_reply()
            is_just_underfilled = self.is_underfilled
        is_claim_worth_it = not is_just_underfilled and (is_woken or not self.is_underfilled)
        self._send(may_claim, is_claim_worth_it=is_claim_worth_it)
        if self._calls and self._calls[-1].reply.is_answered:  # as with a broker that works in this process
            claim_count += self._take_reply()
        return claim_count

    @property
    def _depth(self) -> int:
        """How many jobs may be claimed in advance. 0 while a breaker is not closed: it might defer them."""
        return self._prefetch.depth if self._breakers.is_closed and not self.is_quiet else 0

    @property
    def _are_extra_slots_due(self) -> bool:
        return bool(self._depth or self._deliveries) and not self._slots.has_extra

    def _is_extra_call_due(self) -> bool:
        if self._limits.reached:
            self._limits.forget_unreached(self._monotonic())
        self._breakers.refresh()
        return (
            bool(self._changed or self._vanished)
            or self._are_extra_slots_due
            or self._heartbeats.is_renewal_due
            or self._heartbeats.is_registration_due
        )

    def _make_extra_calls(self) -> None:
        """The calls that are needed now and then, each a round trip of its own."""
        if self._changed:
            self._decide_changed()
        if self._vanished:
            self._decide_vanished()
        if self._heartbeats.is_renewal_due:
            self._renew()
            self._run_candidates()
            are_extra_needed = self._depth or self._deliveries
            if self._slots.has_extra and not are_extra_needed and (ids := self._slots.remove_extra()):
                self._broker.deregister(ids)  # if the call fails, their heartbeats run out
        if self._are_extra_slots_due:  # registered before any of them claims a job
            self._register(self._slots.add_extra(max(self._prefetch.extra_max, DELIVERIES_MAX)))
        if self._heartbeats.is_registration_due:
            self._register_all()
        self.reply_count += 1

    def _may_send_another(self) -> bool:
        """Whether to send a second call. That pays off only with a full share of settlements that the first does not
        carry. Never while every breaker is open, when probes are claimed one at a time."""
        if self._breakers.is_limiting or len(self._calls) == CALLS_MAX:
            return False
        return len(self._slots.settling) - sum(len(call.settling) for call in self._calls) >= self._share

    def _is_another_due(self) -> bool:
        """Whether a slow reply leaves time for a second call, and enough tiny tasks have ended for it. With a server
        that is far away, waiting for each reply before the next call would halve the rate."""
        while self._collect_before_reply():
            if self._may_send_another():
                return True
        return False

    def _collect_before_reply(self) -> bool:
        """Collects the tiny tasks of one child unless the reply to the oldest call is there. Returns whether it did."""
        deadline_s = self._executor.next_deadline_s()
        has_tiny_tasks = deadline_s is not None and deadline_s <= 0.0
        if not has_tiny_tasks or self._calls[0].reply.wait(0.0):
            return False
        self._collect(overlaps=True)
        return True

    # from Settling to Free, and from Free to a claim: the call
    #
    # While the broker works on one call the pump prepares the next, for other slots. Under load two calls are in
    # flight, each for half of the slots, so pump and broker work at the same time. A call is never sent again: after a
    # lost reply the pump decides again what to send. The broker executes each call completely or not at all.

    @property
    def _share(self) -> int:
        """How many slots one call may be for: all of them, or half if two calls can be in flight."""
        return -(-self._held_max // CALLS_MAX) if self._are_replies_awaited else self._held_max

    def _send(self, may_claim: bool, *, is_claim_worth_it: bool) -> None:
        """Sends the settlements, and claims for the free slots unless their last claim just found nothing."""
        if self._calls and self._breakers.is_limiting:
            return
        in_flight, share = self._calls[0].slots if self._calls else frozenset(), self._share
        settling = [slot for slot in self._slots.settling if slot not in in_flight]
        if len(settling) <= CALLS_MAX * share:  # more of them are claims made in advance, released all at once
            settling = settling[:share]
        claiming: list[Slot] = []
        if may_claim and not self.is_quiet and (is_claim_worth_it or settling):
            free = settling
            if len(settling) < share or self._slots.has_extra:
                idle = [slot for slot in self._slots.free() if slot not in in_flight]
                held = len(self._slots.by_id) - len(idle) - len(settling)
                free = [*settling, *idle][: max(0, min(share, self._held_max - held))]
            claiming = free[: self._breakers.permits(len(free))]
        if not settling and not claiming:
            self.is_underfilled = self.is_underfilled and not is_claim_worth_it
            return
        settlements = [state.settlement for slot in settling if isinstance(state := slot.state, Settling)]
        reply = self._broker.send_settle_and_claim(settlements, [slot.id for slot in claiming])
        if not reply.is_answered:
            self._are_replies_awaited = True
        self._calls.append(Call(settling, claiming, frozenset((*settling, *claiming)), reply))

    def _drop_calls(self) -> None:
        while self._calls:
            self._calls.pop().reply.drop()

    def _take_reply(self) -> int:
        """Takes the reply to the oldest call and applies it. Returns the number of jobs claimed."""
        while self._collect_before_reply():  # they may have slow ones before them
            pass
        call = self._calls.popleft()
        try:
            reply = call.reply.take()
        except BrokerError:
            # It is unknown what the calls claimed: the next renewal finds out. Their settlements stay with their slots
            # and go out with the next call. Their claims are not repeated: the worker may be stopping by then.
            self._drop_calls()
            self._heartbeats.renew_now()
            raise
        self.reply_count += 1
        completed = self._apply_settled(call, reply)
        self._start(reply.claims)
        if completed:
            self._emit_all(completed)  # while tiny tasks run
        # Some tasks may have ended while the reply was awaited, or as soon as they were submitted.
        overlaps = self._are_replies_awaited
        self._collect(waits=not overlaps, overlaps=overlaps)
        for id in reply.gone:
            if (slot := self._slots.by_id.get(id)) is not None:
                self._replace(slot)
        if reply.buried:
            self._emit_all([event for found in reply.buried for event in buried_unread(found)])
        self.is_underfilled = len(reply.claims) < len(call.claiming) and not reply.buried
        self._run_candidates()
        return len(reply.claims) + len(reply.buried)

    # claimed: admitted, refused, deferred, or released

    def _start(self, claims: Iterable[Claim]) -> None:
        """Ignores a claim whose slot is not free: the outcome of that job is known, and only its settlement has to be
        sent again."""
        slots = self._slots.by_id
        found = ((slots.get(claim.slot), claim) for claim in claims)
        new = [(slot, claim) for slot, claim in found if slot is not None and type(slot.state) is Free]
        if self.is_quiet:
            self._release(new)
            return
        room = 0 if self._waiting else self._room_for_new
        self._admit_all(new[:room])
        if len(new) > room:
            now_s = self._monotonic()
            for slot, claim in new[room:]:
                slot.wait(claim, now_s)
                self._waiting.append(slot)

    def _admit_all(self, claims: Iterable[tuple[Slot, Claim]]) -> None:
        self._submit([task for slot, claim in claims if (task := self._admit(slot, claim)) is not None])

    def _admit(self, slot: Slot, claim: Claim) -> Task | None:
        """The task to submit; None if the claim is refused or deferred, or a candidate."""
        task = prepare(claim, self._routes, self._paths)
        if isinstance(task, Task):
            if (deferral := self._deferral(claim, task)) is not None:
                self._defer(slot, claim, *deferral)
                return None
            if self._limits.is_any and task.route in self._limits:
                self._candidates.append((slot, claim, task))
                return None
        elif isinstance(task, Refused) and task.kind == NO_HANDLER and (left := self._left.deferral(claim)):
            self._defer(slot, claim, *left)
            return None
        self._claimed.append(claim)
        if not isinstance(task, Task):
            self._end_without_run(slot, claim, task)
            return None
        return self._run(slot, claim, task, claim.version)

    def _deferral(self, claim: Claim, task: Task) -> tuple[str, float] | tuple[str, float, bool] | None:
        """Why the job cannot run yet, and for how many seconds at least; None if it can. With True, it comes after the
        other jobs of that reason."""
        if task.route == DELIVERY_ROUTE:
            return (DELIVERIES_RUN, 0.0) if len(self._deliveries) >= DELIVERIES_MAX else None
        if claim.is_blocked:
            return EARLIER_JOB_RUNS if task.path else LAST_RUN_GOES_ON, 0.0
        # The breaker last: a job that cannot run must not become the probe of a breaker.
        if self._roots.is_any_missing and task.path and (problem := self._roots.problem_of(task.path)):
            return problem, 0.0
        if task.path and not self._paths.allows(task.path) and (left := self._left.deferral(claim, lacks_root=True)):
            return left
        if self._breakers.is_closed:
            return None
        if self._breakers.admits(task.route, claim.key, is_probe=claim.is_probe, has_failed=claim.has_failed):
            return None
        wait_s = self._breakers.wait_s(task.route, has_failed=claim.has_failed)
        return self._breakers.reason(task.route), wait_s, claim.has_failed

    def _defer(
        self, slot: Slot, claim: Claim, reason: str, wait_s: float, is_last: bool = False, *, route: int | None = None
    ) -> None:
        delay_ms = self._deferrals.delay_ms(reason, wait_s, is_last=is_last)
        slot.settle(defer(claim, reason=reason, delay_ms=delay_ms), route)

    def _run_candidates(self) -> None:
        """Runs the claimed jobs of limited routes, or defers them. One round trip if a limit is shared by all workers.

        If the broker does not answer, the slots stay free; a renewal, or the next claim of each, returns the same jobs.
        """
        if not self._candidates:
            return
        candidates, self._candidates = self._candidates, []
        refusals = self._limits.refused_here([task.route for *_, task in candidates], self._slots.running_by_route())
        allowed: list[Candidate] = []
        for candidate, reason in zip(candidates, refusals, strict=True):
            if reason is not None:
                self._refuse(candidate, reason, 0.0)
            else:
                allowed.append(candidate)
        requests = [self._limits.request(claim, task.route) for _, claim, task in allowed]
        asked = [request for request in requests if request is not None]
        try:
            answers = iter(self._broker.admit(asked) if asked else ())
        except BrokerError:
            for _, claim, task in allowed:
                self._breakers.record(task.route, claim.key, None)
            self._heartbeats.renew_now()
            raise
        tasks = []
        for candidate, request in zip(allowed, requests, strict=True):
            slot, claim, task = candidate
            answer = next(answers) if request is not None else None
            if answer is None or answer.result is AdmitResult.ADMITTED:
                self._claimed.append(claim)
                self._limits.admitted(task.route, claim.id)
                tasks.append(self._run(slot, claim, task, claim.version))
            elif answer.result is AdmitResult.LOST:
                self._breakers.record(task.route, claim.key, None)
                self._emit(fenced(claim))
            else:
                self._refuse(candidate, *self._limits.refused_there(task.route, answer))
        self._submit(tasks)

    def _refuse(self, candidate: Candidate, reason: str, wait_s: float) -> None:
        """Defers a job that a limit of its route refuses. If it was the probe of a breaker, another job can be it."""
        slot, claim, task = candidate
        self._breakers.record(task.route, claim.key, None)
        self._defer(slot, claim, reason, wait_s)

    def _release(self, claims: Sequence[tuple[Slot, Claim]]) -> None:
        for slot, claim in reversed(claims):  # each is put at the front of its queue, so the first one goes last
            self._emit(claimed(claim, is_run=False))
            self._end_without_run(slot, claim, Released())

    def _end_without_run(self, slot: Slot, claim: Claim, outcome: Refused | Released | Cancelled) -> None:
        route = slot.state.route if isinstance(slot.state, Running) else None
        if route is not None:  # it was to run again for a changed file, and may be the probe of a breaker
            self._breakers.record(route, claim.key, None)
        settlement = decide(claim, outcome, self._policy, now_ms=self._wall_ms())
        self._settle(slot, settlement, claim.version, route)

    # waiting: claimed in advance

    @property
    def _room_for_new(self) -> int:
        """Leaves room for the tasks of changed files, which may have to be submitted again."""
        return max(0, self._room - len(self._changed))

    @property
    def _waiting_due_s(self) -> float:
        """When a claim will have waited too long, by the monotonic clock."""
        state = self._waiting[0].state if self._waiting else None
        return state.since_s + WAIT_MAX_S if isinstance(state, Waiting) else NEVER_S

    def _begin_waiting(self) -> bool:
        """Starts as many waiting claims as there is room for; releases them if the worker stops, or if one has waited
        too long. Returns whether a task was submitted."""
        if self.is_quiet:
            self._release(self._take_waiting())
            return False
        room = self._room
        self._admit_all(self._take_waiting(self._room_for_new))
        if self._waiting and self._monotonic() >= self._waiting_due_s:
            self._release(self._take_waiting())
            self._prefetch.give_up()
        return self._room < room

    def _take_waiting(self, most: int | None = None) -> list[tuple[Slot, Claim]]:
        """The first of them. Their slots are still Waiting."""
        count = len(self._waiting) if most is None else min(most, len(self._waiting))
        slots = [self._waiting.popleft() for _ in range(count)]
        return [(slot, slot.state.claim) for slot in slots if isinstance(slot.state, Waiting)]

    # running, until the attempt ends

    def _run(self, slot: Slot, claim: Claim, task: Task, signature: str | None) -> Task:
        slot.run(Running(claim, task.route, self._monotonic(), signature))
        if task.route == DELIVERY_ROUTE:  # room of its own, until it ends
            self._deliveries.add(claim.key)
            self._room += 1
        return task

    def _submit(self, tasks: Sequence[Task]) -> None:
        if self._claimed:  # before the tasks: what a handler prints comes after the event of its claim
            self._emit_all([claimed(claim) for claim in self._claimed])
            self._claimed.clear()
        if tasks:
            self._room -= len(tasks)
            self._executor.submit(tasks)

    def _collect(self, *, waits: bool = True, overlaps: bool = False) -> None:
        """Decides on each task that has ended, unless its claim was lost, and starts waiting claims in its place. With
        `overlaps`, waits for the tiny tasks of one child only, and not for those that it starts: they run while the
        caller does other work."""
        is_any_begun = True
        while is_any_begun:
            ended = self._executor.collect(waits=waits, for_all=not overlaps)
            self._room += len(ended)
            if self._deliveries:
                for task, _ in ended:
                    self._end_delivery(task.key)
            self._prefetch.ended(len(ended), self._slots.count - self._room)
            for task, ran in ended:
                if (found := self._slots.running(task.key)) is not None:
                    self._end(*found, task, ran)
            waits = not overlaps  # a task that begins below may end at once
            is_any_begun = bool(self._waiting) and self._begin_waiting()

    def _end_delivery(self, ended: ClaimKey) -> None:
        if ended in self._deliveries:
            self._deliveries.remove(ended)
            self._room -= 1

    def _end(self, slot: Slot, running: Running, task: Task, ran: Ran | Cancelled) -> None:
        claim, policy = running.claim, self._policies[running.route]
        if isinstance(ran, Done):
            if ran.warning:
                self._emit(result_dropped(claim, ran.warning))
        elif isinstance(ran, Cancelled | Released):
            if ran.raised is not None:
                self._emit(error_ignored(claim, ran, ran.raised))
        elif isinstance(ran, Changed):
            running.undecided = ran
            self._changed.append(slot)
            return
        elif isinstance(ran, Failed) and ran.lost_root is not None:
            # It was lost after the last check of the roots. A root that is back already is tried again like the others.
            self._breakers.record(running.route, claim.key, None)
            self._defer(slot, claim, self._roots.note_lost(ran.lost_root) or ran.error, 0.0, route=running.route)
            return
        elif isinstance(ran, Failed) and ran.is_vanished and not policy.skips_vanished and claim.version is not None:
            running.undecided = ran
            self._vanished.append(slot)
            return
        leaves = version_left(task.path, claim) if self._routes[running.route].in_place else None
        self._decide(slot, running, ran, policy, leaves)

    def _decide_changed(self) -> None:
        """Runs each job again whose file has changed, unless the ledger has a newer job for the file."""
        jobs = [slot.state.claim.job for slot in self._changed if isinstance(slot.state, Running)]
        entries = self._broker.lookup([job.path if job is not None else b"" for job in jobs])
        changed, self._changed = self._changed, []
        tasks = (self._rerun_or_end(slot, entry) for slot, entry in zip(changed, entries, strict=True))
        self._submit([task for task in tasks if task is not None])

    def _rerun_or_end(self, slot: Slot, entry: LedgerEntry | None) -> Task | None:
        """The task to submit, if the file is to be run as it is now."""
        assert isinstance(slot.state, Running)
        assert isinstance(slot.state.undecided, Changed)
        claim, changed, route = slot.state.claim, slot.state.undecided, slot.state.route
        its_job = entry.job_of(changed.signature) if entry is not None else None
        decision = decide_changed(claim, its_job, may_run=not self.is_quiet)
        if decision is not None:
            self._settle(slot, decision, claim.version, route)
            self._breakers.record(route, claim.key, None)
            return None
        task = prepare(claim, self._routes, self._paths, runs_changed=True)
        if isinstance(task, Task):
            return self._run(slot, claim, task, changed.signature)
        self._end_without_run(slot, claim, task)
        return None

    def _decide_vanished(self) -> None:
        """Completes as skipped the jobs whose files were processed by another job, and decides on the others as on any
        vanished file."""
        claims = [slot.state.claim for slot in self._vanished if isinstance(slot.state, Running)]
        processed = were_processed(claims, self._broker, takes_completed=Verb.COMPLETE in self._rules)
        vanished, self._vanished = self._vanished, []
        for slot, was_processed in zip(vanished, processed, strict=True):
            assert isinstance(slot.state, Running)
            assert isinstance(slot.state.undecided, Failed)
            policy = self._policies[slot.state.route]
            if was_processed:
                policy = replace(policy, skips_vanished=True)
            self._decide(slot, slot.state, slot.state.undecided, policy)

    def _decide(
        self, slot: Slot, running: Running, ran: FinalOutcome, policy: Policy, leaves: Version | None = None
    ) -> None:
        claim, route = running.claim, running.route
        duration_ms = round((self._monotonic() - running.started_s) * 1000)
        processed = leaves.signature if leaves is not None else running.signature
        settlement = decide(claim, ran, policy, now_ms=self._wall_ms(), duration_ms=duration_ms, leaves=leaves)
        made = ran.made if type(ran) is Done else None
        self._settle(slot, settlement, processed, route, made)
        self._breakers.record(route, claim.key, sample_of(ran), settlement.error, claim.id)
        if route == DELIVERY_ROUTE:
            self._deferrals.release(DELIVERIES_RUN, 1)

    def _settle(
        self, slot: Slot, settlement: Settlement, processed: str | None, route: int | None, made: Made | None = None
    ) -> None:
        """With the jobs that follow and the order for the file. `processed` is the signature of the version that the
        settlement is about, if it is known."""
        if made is not None or self._follow_ups.is_any:
            settlement = self._follow_ups.added(settlement, route, made)
        if self._rules:
            settlement = with_order(settlement, processed, self._rules)
        slot.settle(settlement, route)

    # settled: the broker has answered

    def _apply_settled(self, call: Call, reply: TurnReply) -> list[Event]:
        """Returns the events that may be emitted after the new claims have begun: those of completed jobs. The event of
        a job that was put back precedes that of its next claim."""
        events: list[Event] = []
        is_usual = not self._rules and not reply.finished_batches
        accepted: list[Settlement] = []
        for slot, result in zip(call.settling, reply.settled, strict=True):
            settling = slot.finish()
            settlement = settling.settlement
            is_usual = is_usual and settlement.verb is Verb.COMPLETE
            if self._limits.is_any and settling.route is not None:
                self._limits.ended(settling.route)
            if result is SettleResult.FENCED:
                events.append(fenced(settlement.claim))
                if settlement.verb is Verb.DEFER:
                    self._deferrals.fenced(settlement)
            elif settlement.verb is Verb.DEFER:
                # One line for each reason, not for each deferral; and one for each job that was reported as claimed.
                if self._deferrals.settled(settlement) or settling.route is not None:
                    events.append(settled(settlement))
            else:
                events.append(settled(settlement))
                if settlement.follow_ups or settlement.outputs:
                    events.append(followed(settlement))
                accepted.append(settlement)
        if is_usual:
            return events
        if events:
            self._emit_all(events)
        if reply.finished_batches:
            self._report_finished(reply.finished_batches)
        for settlement in accepted:
            if settlement.verb is Verb.BURY:
                self._on_dead(settlement.claim.id)
            if settlement.order:
                self._post_actions.add(settlement)
        return []

    def _report_finished(self, ids: Sequence[str]) -> None:
        """Emits the events of finished batches; without their counts if the broker does not answer."""
        try:
            views = self._broker.batches_by_id(ids)
        except BrokerError:
            views = [None] * len(ids)
        self._emit_all([finished_event(id, view) for id, view in zip(ids, views, strict=True)])

    # the leases: a job may be cancelled or lost before it is settled

    def _register_all(self) -> None:
        """With the states that the breakers, limits and roots have now, and whether the worker drains."""
        shown = self._heartbeats.to_show()
        self._register(self._slots.by_id.values())
        self._heartbeats.shown = shown

    def _register(self, slots: Iterable[Slot]) -> None:
        self._broker.register({slot.id: self._heartbeats.info(slot.number) for slot in slots})

    def _renew(self) -> None:
        """Renews the lease of every slot. Where the broker and a slot disagree about its claim, the slot is corrected.
        Also applies the resets of breakers that operators have requested."""
        renewals = self._broker.renew(self._slots.holdings())
        self._heartbeats.note_renewed()
        unexpected = [claim for renewal in renewals if (claim := self._apply_renewal(renewal)) is not None]
        self._breakers.apply_resets(self._broker.breaker_resets())
        if not self.is_quiet:  # a stopping worker leaves such a claim alone: deregistering its slot gives the job back
            self._start(unexpected)

    def _apply_renewal(self, renewal: Renewal) -> Claim | None:
        """Returns a claim that the slot holds without knowing it."""
        slot = self._slots.by_id.get(renewal.slot)
        if slot is None:
            return None
        running = slot.state if isinstance(slot.state, Running) else None
        is_waiting = isinstance(slot.state, Waiting)
        match renewal.status:
            case LeaseStatus.GONE:
                self._replace(slot)
            case LeaseStatus.LOST if running is not None or is_waiting:
                self._lose(slot)
            case LeaseStatus.CANCEL if running is not None and not running.is_cancelling:
                running.is_cancelling = True
                self._executor.cancel(running.claim.key)
            case LeaseStatus.CANCEL if isinstance(slot.state, Waiting):
                claim = slot.state.claim
                self._waiting.remove(slot)
                self._emit(claimed(claim, is_run=False))
                self._end_without_run(slot, claim, Cancelled())
            case LeaseStatus.UNEXPECTED if running is None:
                return renewal.claim
        return None

    def _lose(self, slot: Slot) -> None:
        """Ends the attempt of a job that this slot has lost. Nothing is settled: the broker has given the job away."""
        state = slot.state
        slot.lose()
        if not isinstance(state, Running):
            self._waiting.remove(slot)
            return
        claim, route = state.claim, state.route
        if state.undecided is None:
            self._executor.abandon(claim.key)
            self._room += 1
            self._end_delivery(claim.key)
        else:
            (self._changed if isinstance(state.undecided, Changed) else self._vanished).remove(slot)
        self._breakers.record(route, claim.key, None)
        if self._limits.is_any:
            self._limits.ended(route)
        self._emit(fenced(claim))

    def _replace(self, slot: Slot) -> None:
        """Continues under a new id after the broker has forgotten this slot. Its claim is lost."""
        if isinstance(slot.state, Running | Waiting):
            self._lose(slot)
        elif isinstance(slot.state, Settling):
            # The broker would reject the settlement of a slot that it has forgotten, so it is not sent.
            settlement, route = slot.state.settlement, slot.state.route
            self._emit(fenced(settlement.claim))
            if route is not None:
                self._limits.ended(route)
            if settlement.verb is Verb.DEFER:
                self._deferrals.fenced(settlement)
        new = self._slots.replace(slot)
        self._register([new])
        self._emit(SlotReplaced(slot.id, new.id))


# Makes the task of a claim, or gives the reason why there is none. Reads neither the broker nor the file system.


NO_HANDLER = "NoHandler"
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
        return Refused(routes.refusal(job), NO_HANDLER)
    timeout_s = routes[number].timeout
    if job.timeout is not None:
        # A client with a limited key can shorten what the operator allows, not extend it.
        timeout_s = min(job.timeout, timeout_s) if MADE_BY_TAG in job.tag_values else job.timeout
    return Task(claim.key, claim.raw, number, path, paths.allowed, attempt_of(job), timeout_s, runs_changed)
