"""The loop of a worker: collect outcomes, settle them and claim for the free slots in one round trip, submit.

One thread owns it. All outcomes since the last turn go to the broker in one batch. So batches grow under load; on an
idle worker a batch is one job. The pump decides nothing about a job: the retry policy does.

What a kill -9 leaves: before the round trip, claims in processing lists; after it, settled jobs and new claims in
processing lists; during it, each job wholly settled or claimed, or not at all. A reaper gives the claimed jobs back.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import NamedTuple

from fileq.brokers.clocks import wall_clock_ms
from fileq.brokers.protocol import Broker, FullBroker, PendingReply
from fileq.brokers.types import LEDGER_DEPTH, LedgerEntry, Record, TurnReply
from fileq.config import Config
from fileq.core.claim import Claim
from fileq.core.errors import BrokerError
from fileq.core.events import Emit, EmitAll, Event, buried_unread, fenced, followed, ignore, one_by_one, settled
from fileq.core.job import State, decode_or_none
from fileq.core.settlement import Settlement, SettleResult, Verb
from fileq.core.webhook import DELIVERIES_MAX
from fileq.handlers.routes import Routes
from fileq.worker.attempts import Attempts, Gates, JobRules, Prefetch, WorkerClocks
from fileq.worker.batch_reconciler import finished_event
from fileq.worker.executors.protocol import Executor
from fileq.worker.heartbeats import Heartbeats
from fileq.worker.policies import policies_of
from fileq.worker.post_actions import PostActions
from fileq.worker.slots import Settling, Slot, Slots

KILL_GRACE_S = 5.0
TINY_TASKS_S = 0.001  # how long to wait for a reply before tiny tasks, which may have ended, are collected


class Pump:
    """The turns of one worker, without the waiting between them. A turn may raise BrokerUnavailable and then be
    repeated: nothing is lost by it."""

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
        worker, paths = config.worker, config.paths
        self._broker = broker
        self._executor = executor
        self._breakers = gates.breakers
        self._deferrals = gates.deferrals
        self._limits = gates.limits
        self._emit_all = emit_all = emit_all or one_by_one(emit)
        self._on_dead = on_dead
        self._monotonic = monotonic
        lease_ms = round(worker.heartbeat_ttl * 1000)
        self._slots = Slots(
            worker.count, tuple(worker.priorities), lease_ms=lease_ms, types=routes.types, globs=routes.globs
        )
        # Limits count jobs that run, not claims that wait. So a worker with limited routes claims nothing in advance.
        self._prefetch = prefetch = Prefetch(worker.count, is_allowed=not gates.limits.is_any, monotonic=monotonic)
        self._attempts = Attempts(
            self._slots,
            executor,
            JobRules(routes, paths, policies_of(worker, routes)),
            gates,
            prefetch,
            WorkerClocks(monotonic, wall_ms),
            emit=emit,
            emit_all=emit_all,
        )
        self._heartbeats = Heartbeats(
            broker,
            self._slots,
            self._attempts,
            executor,
            gates,
            is_draining=lambda: self.is_quiet,
            every_s=worker.heartbeat_ttl / 3,
            emit=emit,
            monotonic=monotonic,
        )
        self._post_actions = actions = PostActions(worker.after, paths, broker.finish_orders, emit)
        self._calls = CallsInFlight(broker, worker.count, actions.with_order if actions.has_rules else None)
        self.is_quiet = False  # claims nothing any more
        self.is_underfilled = True  # the last claim got fewer jobs than slots: wait until the broker wakes this worker
        self.paused: frozenset[str] = frozenset()
        self.reply_count = 0  # grows as long as the broker is reachable

    # what the service needs to know

    @property
    def is_turn_due(self) -> bool:
        """The next turn has something to send, to take or to decide, so it must not wait."""
        return bool(self._calls or self._slots.settling or self._attempts.undecided)

    @property
    def is_idle(self) -> bool:
        return not self._calls and self._slots.is_idle

    @property
    def running_count(self) -> int:
        return self._slots.running_count

    def next_due_s(self) -> float:
        """When to turn at the latest, by the monotonic clock."""
        deadline_s = self._executor.next_deadline_s()
        due_s = min(self._heartbeats.due_s, self._attempts.waiting_due_s)
        return due_s if deadline_s is None else min(due_s, deadline_s)

    # start and end

    def start(self) -> None:
        self._heartbeats.start()

    def look_for_cancels(self) -> None:
        """A cancellation was requested: if it is of a job that runs here, the next renewal says so."""
        if not self._slots.is_idle:
            self._heartbeats.renew_soon()

    def cancel_all(self, grace_s: float) -> None:
        self._executor.quit(grace_s)

    def finish(self) -> None:
        """Removes the slots from the broker, which gives back what they still hold, and ends the post actions."""
        self._calls.drop()
        self._broker.deregister(list(self._slots.by_id))
        self._post_actions.close(KILL_GRACE_S)

    # one turn

    def turn(self, may_claim: bool = True) -> int:
        """Collects outcomes, takes a reply that is due, sends the next call. Returns the number of jobs claimed.

        Makes one round trip at most, apart from the rare extra calls."""
        # While a reply is still to be taken, do not wait for tiny tasks: their outcomes are needed only when the next
        # tasks are submitted. A broker inside this process does nothing meanwhile; there, larger calls gain more.
        overlaps = self._calls.is_awaited
        self._attempts.collect(may_run=not self.is_quiet, waits=not self._calls, overlaps=overlaps)
        # Deliveries of webhooks run beside `worker.count` jobs, so a slow receiver takes no slot from a job.
        self._calls.count = self._slots.count + self._depth + self._attempts.delivering
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
        self._send(may_claim, is_claim_worth_it=not is_just_underfilled)
        if self._calls.is_answered:
            claim_count += self._take_reply()
        return claim_count

    @property
    def _depth(self) -> int:
        """How many jobs may be claimed in advance. 0 while a breaker is not closed: it might defer them."""
        return self._prefetch.depth if self._breakers.is_closed and not self.is_quiet else 0

    @property
    def _are_extra_slots_due(self) -> bool:
        return bool(self._depth or self._attempts.delivering) and not self._slots.has_extra

    def _is_extra_call_due(self) -> bool:
        heartbeats = self._heartbeats
        if self._limits.reached:
            self._limits.forget_unreached(self._monotonic())
        self._breakers.refresh()
        return (
            bool(self._attempts.undecided)
            or self._are_extra_slots_due
            or heartbeats.is_renewal_due
            or heartbeats.is_registration_due
        )

    def _make_extra_calls(self) -> None:
        """The calls that are needed now and then, each a round trip of its own."""
        undecided = self._attempts.undecided
        if undecided.changed:
            entries = self._broker.lookup(undecided.changed_paths())
            self._attempts.decide_changed(entries, may_run=not self.is_quiet)
        if undecided.vanished:
            claims, takes_completed = undecided.vanished_claims(), self._post_actions.takes_completed
            processed = were_processed(claims, self._broker, takes_completed=takes_completed)
            self._attempts.decide_vanished(processed)
        if self._heartbeats.is_renewal_due:
            self._heartbeats.renew(may_run=not self.is_quiet)
            self._run_limited()
            if self._slots.has_extra and not self._depth and not self._attempts.delivering:
                self._heartbeats.remove_extra()
        if self._are_extra_slots_due:
            self._heartbeats.add_extra(max(self._prefetch.extra_max, DELIVERIES_MAX))
        if self._heartbeats.is_registration_due:
            self._heartbeats.register()
        self.reply_count += 1

    def _may_send_another(self) -> bool:
        """Whether to send a second call. Never while every breaker is open, when probes are claimed one at a time."""
        return not self._breakers.is_limiting and self._calls.is_another_worth_it(len(self._slots.settling))

    def _send(self, may_claim: bool, *, is_claim_worth_it: bool) -> None:
        """Sends the settlements, and claims for the free slots unless their last claim just found nothing."""
        if self._calls and self._breakers.is_limiting:
            return
        in_flight, share = self._calls.slots(), self._calls.share
        settling = [slot for slot in self._slots.settling if slot not in in_flight]
        if len(settling) <= CALLS_MAX * share:  # more of them are claims made in advance, released all at once
            settling = settling[:share]
        claiming: list[Slot] = []
        if may_claim and not self.is_quiet and (is_claim_worth_it or settling):
            free = settling
            if len(settling) < share or self._slots.has_extra:
                idle = [slot for slot in self._slots.free() if slot not in in_flight]
                held = len(self._slots.by_id) - len(idle) - len(settling)
                free = [*settling, *idle][: max(0, min(share, self._calls.count - held))]
            claiming = free[: self._breakers.permits(len(free))]
        if not settling and not claiming:
            self.is_underfilled = self.is_underfilled and not is_claim_worth_it
            return
        self._calls.send(settling, claiming)

    def _take_reply(self) -> int:
        """Takes the reply to the oldest call and applies it. Returns the number of jobs claimed."""
        self._collect_if_late()
        try:
            call, reply = self._calls.take()
        except BrokerError:
            self._forget_calls()
            raise
        self.reply_count += 1
        completed = self._apply_settled(call, reply)
        self._attempts.start(reply.claims, may_run=not self.is_quiet)
        if completed:
            self._emit_all(completed)  # while tiny tasks run
        # Some tasks may have ended while the reply was awaited, or as soon as they were submitted.
        overlaps = self._calls.is_awaited
        self._attempts.collect(may_run=not self.is_quiet, waits=not overlaps, overlaps=overlaps)
        for id in reply.gone:
            if (slot := self._slots.by_id.get(id)) is not None:
                self._heartbeats.replace(slot)
        self.paused = reply.paused
        if reply.buried:
            self._emit_all([event for found in reply.buried for event in buried_unread(found)])
        self.is_underfilled = len(reply.claims) < len(call.claiming) and not reply.buried
        self._run_limited()
        return len(reply.claims) + len(reply.buried)

    def _is_another_due(self) -> bool:
        """Whether a slow reply leaves time for a second call, and enough tiny tasks have ended for it. With a server
        that is far away, waiting for each reply before the next call would halve the rate."""
        return self._collect_if_late() and self._may_send_another()

    def _collect_if_late(self) -> bool:
        """Collects tiny tasks if the reply to the oldest call takes longer than they do. Returns whether it does."""
        deadline_s = self._executor.next_deadline_s()
        has_tiny_tasks = deadline_s is not None and deadline_s <= 0.0
        if not has_tiny_tasks or self._calls.wait(TINY_TASKS_S):
            return False
        self._attempts.collect(may_run=not self.is_quiet)
        return True

    def _run_limited(self) -> None:
        """Runs the claimed jobs of limited routes, or defers them. One round trip if a limit is shared by all workers.

        If the broker does not answer, the slots stay free, and the next renewal returns their claims."""
        if not self._attempts.candidates:
            return
        requests = self._attempts.ask_limits()
        try:
            answers = self._broker.admit(requests) if requests else []
        except BrokerError:
            self._attempts.drop_candidates()
            self._heartbeats.renew_now()
            raise
        self._attempts.run_candidates(answers)

    def _apply_settled(self, call: Call, reply: TurnReply) -> list[Event]:
        """Returns the events that may be emitted after the new claims have begun: those of completed jobs. The event of
        a job that was put back precedes that of its next claim."""
        events: list[Event] = []
        is_usual = not self._post_actions.has_rules and not reply.finished_batches
        accepted: list[Settling] = []
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
                if self._deferrals.settled(settlement):  # one line for each reason, not for each deferral
                    events.append(settled(settlement))
            else:
                events.append(settled(settlement))
                if settlement.follow_ups or settlement.outputs:
                    events.append(followed(settlement))
                accepted.append(settling)
        if is_usual:
            return events
        if events:
            self._emit_all(events)
        if reply.finished_batches:
            self._report_finished(reply.finished_batches)
        for settling in accepted:
            if settling.settlement.verb is Verb.BURY:
                self._on_dead(settling.settlement.claim.id)
        if self._post_actions.has_rules:
            for settling in accepted:
                self._post_actions.add(settling.settlement, settling.processed)
        return []

    def _report_finished(self, ids: Sequence[str]) -> None:
        """Emits the events of finished batches; without their counts if the broker does not answer."""
        try:
            views = self._broker.batches_by_id(ids)
        except BrokerError:
            views = [None] * len(ids)
        events = (finished_event(id, view) for id, view in zip(ids, views, strict=True))
        self._emit_all(list(events))

    def _forget_calls(self) -> None:
        """Drops all calls in flight after a lost reply. It is unknown what they claimed: the next renewal finds out.
        Their settlements stay with their slots and go out with the next call. Their claims are not repeated, because
        the worker may be stopping by then."""
        self._calls.drop()
        self._heartbeats.renew_now()


# The calls of settle_and_claim whose replies a pump still awaits.
#
# While the broker works on one call the pump prepares the next, for other slots. Under load two calls are in flight,
# each for half of the slots, so pump and broker work at the same time.
#
# Never sends a call again: after a lost reply the pump decides again what to send. What a kill -9 leaves: the broker
# executes each call completely or not at all. The replies are lost.


CALLS_MAX = 2


class Call(NamedTuple):
    """A call in flight and the slots it is about."""

    settling: list[Slot]
    claiming: list[Slot]
    slots: frozenset[Slot]
    reply: PendingReply


class CallsInFlight:
    """At most two calls, and no slot is in both."""

    def __init__(self, broker: Broker, count: int, with_order: Callable[[Settling], Settlement] | None = None) -> None:
        self._broker = broker
        self._with_order = with_order  # adds what is to be done with the file; None if that is never anything
        self.count = count  # how many slots may hold a job at the moment
        self.is_awaited = False  # True once a reply took time, as with a broker that is another process
        self._calls: deque[Call] = deque()

    def __bool__(self) -> bool:
        return bool(self._calls)

    @property
    def share(self) -> int:
        """How many slots one call may be for: all of them, or half if two calls can be in flight."""
        return -(-self.count // CALLS_MAX) if self.is_awaited else self.count

    @property
    def is_answered(self) -> bool:
        """The newest call has its reply already, as with a broker that works in this process."""
        return bool(self._calls) and self._calls[-1].reply.is_answered

    def slots(self) -> frozenset[Slot]:
        """The slots of the oldest call in flight; empty if there is none."""
        return self._calls[0].slots if self._calls else frozenset()

    def is_another_worth_it(self, settling: int) -> bool:
        """Whether to send a second call before the first is answered. That pays off only with a full share of
        settlements that the first does not carry; `settling` is the number of all settlements."""
        if len(self._calls) == CALLS_MAX:
            return False
        return settling - sum(len(call.settling) for call in self._calls) >= self.share

    def send(self, settling: list[Slot], claiming: list[Slot]) -> None:
        states = [state for slot in settling if isinstance(state := slot.state, Settling)]
        settlements = [state.settlement for state in states]
        if self._with_order is not None:
            settlements = list(map(self._with_order, states))
        reply = self._broker.send_settle_and_claim(settlements, [slot.id for slot in claiming])
        if not reply.is_answered:
            self.is_awaited = True
        self._calls.append(Call(settling, claiming, frozenset((*settling, *claiming)), reply))

    def wait(self, timeout_s: float) -> bool:
        """Waits for the reply to the oldest call, for at most this long. Returns whether it has arrived."""
        return self._calls[0].reply.wait(timeout_s)

    def take(self) -> tuple[Call, TurnReply]:
        """The oldest call and its reply. If taking the reply fails, the call is no longer in flight."""
        call = self._calls.popleft()
        return call, call.reply.take()

    def drop(self) -> None:
        while self._calls:
            self._calls.pop().reply.drop()


# Whether a file that has vanished is one that fileq itself took away, after another job of the same version.
#
# The same version can have several jobs: `fileq enqueue` always makes one. If the first of them to run completes and
# `worker.after` moves or deletes the file, the others have nothing left to do, and that is no error. Only reads.


def were_processed(claims: Sequence[Claim], broker: FullBroker, *, takes_completed: bool) -> list[bool]:
    """For each claim: another job of its version was completed after this job had been enqueued, and its file was taken
    away. `takes_completed` is whether `worker.after` of this worker does that: the move itself is recorded a moment
    later than the end of the job."""
    records = broker.records([claim.id for claim in claims])
    entries = broker.lookup([claim.job.path if claim.job is not None else b"" for claim in claims])
    return [
        record is not None and _was_processed(record, entry, broker, takes_completed)
        for record, entry in zip(records, entries, strict=True)
    ]


def _was_processed(record: Record, entry: LedgerEntry | None, broker: FullBroker, takes_completed: bool) -> bool:
    """The ledger names the newest job of the version, and each record the jobs before it. So the jobs of one version
    that wait together are in one chain."""
    signature = _signature(record)
    newest = dict(entry.versions).get(signature or "") if entry is not None else None
    seen = {record.id}
    ids = {*record.after, *([newest] if newest is not None else [])} - seen
    for _ in range(LEDGER_DEPTH):
        if not ids:
            break
        seen |= ids
        others = [
            other for other in broker.records(sorted(ids)) if other is not None and _signature(other) == signature
        ]
        if any(_is_taken(other, record.created_ms, takes_completed) for other in others):
            return True
        ids = {id for other in others for id in other.after} - seen
    return False


def _is_taken(other: Record, since_ms: int, takes_completed: bool) -> bool:
    is_completed_since = other.state is State.COMPLETED and other.ended_ms >= since_ms
    return is_completed_since and (takes_completed or bool(other.moved_to))


def _signature(record: Record) -> str | None:
    job = decode_or_none(record.raw)
    return job.signature if job is not None else None
