"""The pump as a service: the thread that turns it, waits between turns, and drains it at shutdown.

One poll waits for everything: an outcome of the executor, a job in a queue, a request to stop. Decides nothing about
jobs.

What a kill -9 leaves: claims in the broker's processing lists. A reaper gives their jobs back.
"""

from __future__ import annotations

import os
import select
import threading
import time
from collections.abc import Callable

from fileq.brokers.protocol import Broker, Waiter
from fileq.config import Config
from fileq.core.errors import BrokerError, BrokerRemoved, BrokerUnavailable, FileqError
from fileq.core.events import BrokerRefused, DrainStarted, Emit, WorkerFailed
from fileq.runtime.service import Outage, longest_pause_s
from fileq.worker.executors.protocol import Executor
from fileq.worker.pump import KILL_GRACE_S, Gates, Pump

# After a wake that led to no claim: another worker was faster. Short, because this worker may have the watch.
FIRST_BACKOFF_S = 0.001
LONGEST_BACKOFF_S = 0.02
FULL_S = 0.005  # for so long, full slots are not worth closing the waiter
LEAVES_S = 0.2  # between two claims of a worker that leaves jobs to another
SETTLE_TIMEOUT_S = 3.0  # to settle, with a broker that may be unreachable, what was stopped by force
STUCK_MARGIN_S = 5.0


class WorkerService:
    name = "worker"

    def __init__(
        self,
        config: Config,
        pump: Pump,
        executor: Executor,
        broker: Broker,
        gates: Gates,
        *,
        on_failure: Callable[[FileqError], None],
        emit: Emit,
    ) -> None:
        self._pump = pump
        self._executor = executor
        self._broker = broker
        self._gates = gates
        self._on_failure = on_failure
        self._emit = emit
        self._idle_s = config.worker.brpoplpush_timeout
        self._stuck_s = stuck_after_s(config)
        self._outage = Outage(emit, longest_pause_s(config.worker.heartbeat_ttl))
        self._waiter: Waiter | None = None
        self._is_woken = True  # a queue may hold a job that no claim has looked for
        self._backoff_s = 0.0
        self._backs_off_until_s = 0.0  # the queues are not watched before
        self._armed_s = float("inf")  # the longest wait that the waiter allows
        self._closes_at_s = float("inf")
        self._wake_fd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._is_cancel_requested = False
        self._is_stopping = False
        self._grace_s: float | None = None  # set by a request to stop the running jobs
        self._gives_up_s = float("inf")
        self._turned_s = time.monotonic()
        self._is_finished = threading.Event()
        self._thread = threading.Thread(target=self._run, name=self.name, daemon=True)

    # the service

    def start(self) -> None:
        self._thread.start()

    def quiet(self) -> None:
        was_stopping, self._is_stopping = self._is_stopping, True
        self._pump.is_quiet = True
        if not was_stopping and (running := self._pump.running_count):
            self._emit(DrainStarted(running, "a second signal requeues them immediately"))
        self._wake()

    def retire(self) -> None:
        """Ends when the running jobs have ended, without a deadline: another worker has taken over."""
        self._pump.is_quiet = True
        self._wake()

    @property
    def is_alive(self) -> bool:
        return self._thread.is_alive()

    def stop(self, timeout_s: float) -> None:
        """Lets running jobs finish until the timeout; then cancels them, then kills and releases them."""
        self.quiet()
        if self._thread.ident is None:
            return
        if not self._is_finished.wait(timeout_s):
            self._kill(KILL_GRACE_S)
            self._is_finished.wait(KILL_GRACE_S + SETTLE_TIMEOUT_S + 5)
        self._thread.join(1.0)

    def hurry(self) -> None:
        """After a second signal: releases all jobs at once."""
        self._pump.is_quiet = True
        self._kill(0.0)

    def _kill(self, grace_s: float) -> None:
        self._grace_s = grace_s
        self._gives_up_s = min(self._gives_up_s, time.monotonic() + grace_s + SETTLE_TIMEOUT_S)
        self._wake()

    def cancel_requested(self) -> None:
        """Someone has requested to cancel running jobs. Called in the thread of the scheduler."""
        self._is_cancel_requested = True
        self._wake()

    def problem(self) -> str:
        if self._pump.is_quiet:
            return "shutting down"
        return self._outage.reason or self._gates.roots.problem()

    def is_turning(self) -> bool:
        return self._thread.is_alive() and time.monotonic() - self._turned_s < self._stuck_s

    def _wake(self) -> None:
        os.eventfd_write(self._wake_fd, 1)

    # its thread

    def _run(self) -> None:
        try:
            self._retry_until_done(self._pump.start)
            while not (self._pump.is_quiet and self._pump.is_idle) and not self._has_given_up():
                self._turn()
            # All jobs are settled. Slots that stay registered expire by themselves, so a broker that does not answer is
            # not waited for as long as running jobs are.
            self._gives_up_s = min(self._gives_up_s, time.monotonic() + SETTLE_TIMEOUT_S)
            self._retry_until_done(self._pump.finish)
        except BrokerRemoved:
            pass  # nothing can be settled any more; the role ends, see BrokerWatch
        except Exception as error:
            # The role ends, so that a service manager starts another one. The reapers give the jobs back.
            self._emit(WorkerFailed(repr(error), error))
            self._on_failure(FileqError(f"the worker has failed: {error!r}; its jobs go to other workers"))
        finally:
            try:
                self._drop_waiter()
                self._executor.close()
            finally:
                self._is_finished.set()

    def _turn(self) -> None:
        self._turned_s = time.monotonic()
        grace_s, self._grace_s = self._grace_s, None
        if grace_s is not None:
            self._pump.cancel_all(grace_s)
        if self._is_cancel_requested:
            self._is_cancel_requested = False
            self._pump.look_for_cancels()
        if self._pump.is_quiet:
            self._drop_waiter()
        reply_count = self._pump.reply_count
        try:
            claimed = self._pump.turn(is_woken=self._is_woken)
            self._is_woken = False
            if self._pump.reply_count > reply_count:
                self._outage.ended()
            if claimed:
                # The wake-up has led to a claim, so the backoff that began with it ends: the next job may be there.
                self._backoff_s = self._backs_off_until_s = 0.0
            if not self._pump.is_turn_due:
                may_claim = self._pump.is_underfilled and not self._pump.is_quiet
                if may_claim and self._pump.leaves_jobs:
                    # Of an idle fleet one waiter is woken, and that must be one of the other worker.
                    self._drop_waiter()
                    self._wait(min(LEAVES_S, self._longest_wait_s()), watches_queues=False)
                    self._is_woken = True
                else:
                    self._wait(self._longest_wait_s(), watches_queues=may_claim)
        except BrokerUnavailable as error:
            self._is_woken = True
            self._drop_waiter()
            self._wait(self._outage.failed(error), watches_queues=False)
        except BrokerRemoved:
            raise
        except BrokerError as error:
            # The broker answers but refuses: an operator has to fix it. Trying again loses nothing.
            self._is_woken = True
            self._drop_waiter()
            self._emit(BrokerRefused(str(error)))
            self._wait(1.0, watches_queues=False)

    def _longest_wait_s(self) -> float:
        now_s = time.monotonic()
        wait_s = min(self._idle_s, self._pump.next_due_s() - now_s)
        if cooldown_s := self._gates.breakers.next_probe_s():
            wait_s = min(wait_s, cooldown_s)
        return wait_s

    def _wait(self, longest_s: float, *, watches_queues: bool, watches_executor: bool = True) -> None:
        """Until the executor has an outcome, a queue may have a job, a request to stop comes, or the time is up."""
        poll = select.poll()
        poll.register(self._wake_fd, select.POLLIN)
        if watches_executor:
            poll.register(self._executor.fileno(), select.POLLIN)
        now_s = time.monotonic()
        may_watch = watches_queues and now_s >= self._backs_off_until_s and not self._pump.is_quiet
        waiter = self._arm_waiter() if may_watch else None
        if waiter is not None:
            poll.register(waiter.fileno(), select.POLLIN)
            longest_s = min(longest_s, self._armed_s)
        elif watches_queues:
            longest_s = min(longest_s, max(0.0, self._backs_off_until_s - now_s))
        else:
            longest_s = min(longest_s, self._close_waiter_when_due(now_s))
        ready = {fd for fd, _ in poll.poll(max(0.0, longest_s) * 1000)}
        if self._wake_fd in ready:
            os.eventfd_read(self._wake_fd)
        if waiter is not None and waiter.take():
            # If the next turn claims nothing, back off, twice as long each time.
            self._is_woken = True
            self._backoff_s = min(LONGEST_BACKOFF_S, max(FIRST_BACKOFF_S, 2 * self._backoff_s))
            pause_s = self._backoff_s if self._backoff_s > FIRST_BACKOFF_S else 0.0
            self._backs_off_until_s = time.monotonic() + pause_s

    def _arm_waiter(self) -> Waiter:
        """Raises BrokerError."""
        self._closes_at_s = float("inf")
        if self._waiter is None:
            self._waiter = self._broker.waiter()
        self._armed_s = self._waiter.arm()
        return self._waiter

    def _close_waiter_when_due(self, now_s: float) -> float:
        """No slot is free: the next job is for another worker. Returns the seconds until the waiter is to be closed."""
        if self._waiter is None:
            return float("inf")
        self._closes_at_s = min(self._closes_at_s, now_s + FULL_S)
        if now_s >= self._closes_at_s:
            self._drop_waiter()
            return float("inf")
        return self._closes_at_s - now_s

    def _drop_waiter(self) -> None:
        if self._waiter is not None:
            self._waiter.close()
            self._waiter = None

    def _retry_until_done(self, call: Callable[[], None]) -> None:
        """Repeats the call during an outage; at shutdown only until the worker gives up."""
        while not self._has_given_up():
            self._turned_s = time.monotonic()
            try:
                call()
                self._outage.ended()
                return
            except BrokerUnavailable as error:
                # Outcomes are not collected here, so a ready executor would end every wait at once.
                self._wait(self._outage.failed(error), watches_queues=False, watches_executor=False)

    def _has_given_up(self) -> bool:
        """It should have ended by now, and the broker does not answer. Its heartbeats will run out, and a reaper will
        give its jobs back."""
        return time.monotonic() >= self._gives_up_s


def stuck_after_s(config: Config) -> float:
    """How long the worker's loop may stand still before /healthz calls it stuck. One call may wait for a silent broker
    until its timeouts. Restarting the worker for that would not help."""
    redis = config.redis
    call_s = redis.dial_timeout + max(redis.read_timeout, redis.write_timeout)
    return max(config.worker.heartbeat_ttl, call_s + STUCK_MARGIN_S)
