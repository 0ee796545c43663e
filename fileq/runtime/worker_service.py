"""The pump as a service: turns, waits for whatever comes first, drains when told to.

One wait watches everything: the executor's children, the broker's queues, and the descriptor that ends the wait.
"""

from __future__ import annotations

import os
import select
import threading
import time
from collections.abc import Callable

from fileq.brokers.protocol import Broker, Waiter
from fileq.core.breaker import Breaker
from fileq.core.errors import BrokerError, BrokerUnavailable
from fileq.core.events import Emit
from fileq.core.process_events import BrokerRefused, DrainStarted, WorkerFailed
from fileq.runtime.outage import Outage
from fileq.worker.executors.protocol import Executor
from fileq.worker.pump import KILL_GRACE_S, Pump

FIRST_BACKOFF_S = 0.001
PATIENCE_S = 3.0  # for telling a broker that may be away what has ended by force
NOT_ALLOWED_PAUSE_S = 0.2  # between looks whether claiming is allowed again


class WorkerService:
    name = "worker"

    def __init__(
        self,
        pump: Pump,
        executor: Executor,
        broker: Broker,
        breaker: Breaker,
        *,
        roots_problem: Callable[[], str],
        emit: Emit,
        idle_s: float,
        longest_pause_s: float,
        stuck_s: float,
    ) -> None:
        self._pump = pump
        self._executor = executor
        self._broker = broker
        self._breaker = breaker
        self._roots_problem = roots_problem
        self._emit = emit
        self._idle_s = idle_s
        self._stuck_s = stuck_s
        self._outage = Outage(emit, longest_pause_s)
        self._waiter: Waiter | None = None
        self._backoff_s = 0.0
        self._deaf_until_s = 0.0
        self._wake_fd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._grace_s: float | None = None  # to be granted to what runs, once
        self._gives_up_s = float("inf")
        self._turned_s = time.monotonic()
        self._is_finished = threading.Event()
        self._thread = threading.Thread(target=self._run, name=self.name, daemon=True)

    # the service

    def start(self) -> None:
        self._thread.start()

    def quiet(self) -> None:
        was_quiet, self._pump.is_quiet = self._pump.is_quiet, True
        if not was_quiet and (running := len(self._pump.slots.running)):
            self._emit(DrainStarted(running, "a second signal gives them back at once"))
        self._wake()

    def stop(self, deadline_s: float) -> None:
        """Running jobs may finish until the deadline; then they are cancelled, then killed and given back."""
        self.quiet()
        if self._thread.ident is None:
            return
        if not self._is_finished.wait(deadline_s):
            self._kill(KILL_GRACE_S)
            self._is_finished.wait(KILL_GRACE_S + PATIENCE_S + 5)
        self._thread.join(1.0)

    def hurry(self) -> None:
        """A second signal: everything back to its queue at once."""
        self._pump.is_quiet = True
        self._kill(0.0)

    def _kill(self, grace_s: float) -> None:
        self._grace_s = grace_s
        self._gives_up_s = min(self._gives_up_s, time.monotonic() + grace_s + PATIENCE_S)
        self._wake()

    def problem(self) -> str:
        if self._pump.is_quiet:
            return "shutting down"
        return self._outage.reason or self._roots_problem()

    def is_turning(self) -> bool:
        return self._thread.is_alive() and time.monotonic() - self._turned_s < self._stuck_s

    @property
    def is_idle(self) -> bool:
        return self._pump.is_idle

    def _wake(self) -> None:
        os.eventfd_write(self._wake_fd, 1)

    # its thread

    def _run(self) -> None:
        try:
            self._keep_trying(self._pump.start)
            while not (self._pump.is_quiet and self._pump.is_idle) and not self._has_given_up():
                self._turn()
            self._keep_trying(self._pump.finish)
        except Exception as error:
            # The jobs are safe with the reapers; the loop is not, and /healthz says so from now on.
            self._emit(WorkerFailed(repr(error), error))
        finally:
            try:
                self._drop_waiter()
                self._executor.close()
            finally:
                self._is_finished.set()

    def _turn(self) -> None:
        self._turned_s = time.monotonic()
        self._quit_if_told()
        may_claim = not self._roots_problem()
        answers = self._pump.answers
        try:
            claimed = self._pump.turn(may_claim)
            if self._pump.answers > answers:
                self._outage.over()
        except BrokerUnavailable as error:
            self._drop_waiter()
            self._rest(self._outage.met(error), is_listening=False)
            return
        except BrokerError as error:
            # Refused, not away: somebody has to mend it, and until then nothing is lost by asking again.
            self._emit(BrokerRefused(str(error)))
            self._rest(1.0, is_listening=False)
            return
        if claimed:
            # Also the pause that began with this wake: it was not in vain, and the next job may be there already.
            self._backoff_s = self._deaf_until_s = 0.0
        if not self._pump.has_news:
            self._rest(self._longest_rest_s(may_claim), is_listening=self._pump.is_hungry and may_claim)

    def _longest_rest_s(self, may_claim: bool) -> float:
        now_s = time.monotonic()
        rest_s = min(self._idle_s, self._pump.next_due_s() - now_s)
        if opens_in_s := self._breaker.opens_in_s():
            rest_s = min(rest_s, opens_in_s)
        return rest_s if may_claim else min(rest_s, NOT_ALLOWED_PAUSE_S)

    def _rest(self, longest_s: float, *, is_listening: bool, hears_executor: bool = True) -> None:
        """Until a child has something to say, a queue may have, somebody calls, or the time is up."""
        poll = select.poll()
        poll.register(self._wake_fd, select.POLLIN)
        if hears_executor:
            poll.register(self._executor.fileno(), select.POLLIN)
        now_s = time.monotonic()
        waiter = self._armed() if is_listening and now_s >= self._deaf_until_s and not self._pump.is_quiet else None
        if waiter is not None:
            poll.register(waiter.fileno(), select.POLLIN)
        elif is_listening:
            longest_s = min(longest_s, max(0.0, self._deaf_until_s - now_s))
        ready = {fd for fd, _ in poll.poll(max(0.0, min(longest_s, self._armed_s)) * 1000)}
        if self._wake_fd in ready:
            os.eventfd_read(self._wake_fd)
        if waiter is not None and waiter.fileno() in ready:
            # If the next turn finds nothing, somebody else was faster: stay away a little, longer each time.
            self._backoff_s = min(self._idle_s, max(FIRST_BACKOFF_S, 2 * self._backoff_s))
            self._deaf_until_s = time.monotonic() + (self._backoff_s if self._backoff_s > FIRST_BACKOFF_S else 0.0)

    _armed_s = float("inf")

    def _armed(self) -> Waiter | None:
        try:
            if self._waiter is None:
                self._waiter = self._broker.waiter()
            self._armed_s = self._waiter.arm(self._pump.paused)
            return self._waiter
        except BrokerUnavailable:
            self._drop_waiter()  # the next turn meets the outage
            return None

    def _drop_waiter(self) -> None:
        self._armed_s = float("inf")
        if self._waiter is not None:
            self._waiter.close()
            self._waiter = None

    def _quit_if_told(self) -> None:
        grace_s, self._grace_s = self._grace_s, None
        if grace_s is not None:
            self._pump.cancel_all(grace_s)

    def _keep_trying(self, call: Callable[[], None]) -> None:
        """Through an outage, but not for ever while stopping."""
        while not self._has_given_up():
            self._turned_s = time.monotonic()
            try:
                call()
                self._outage.over()
                return
            except BrokerUnavailable as error:
                # What a thread brings now nobody collects: with an ear for it there would be no rest.
                self._rest(self._outage.met(error), is_listening=False, hears_executor=False)

    def _has_given_up(self) -> bool:
        """It should have ended, and the broker does not answer: heartbeats run out by themselves, and whoever reaps
        this worker gives its jobs back."""
        return time.monotonic() >= self._gives_up_s
