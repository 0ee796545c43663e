"""Requests that wait for the end of a job. No thread is held, and a job is read when an event says that it has ended.

An event can get lost, so the states of all these jobs are read besides: every LOST_S while the events are followed, and
every INTERVAL_S while they can't be.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

from fileq.core.events import JobCancelled, JobCompleted, JobDead
from fileq.core.job import State
from fileq.server.broker_pool import BrokerPool
from fileq.server.event_hub import EventHub
from fileq.server.event_ring import RESET, LiveEvent
from fileq.server.shares import Share

INTERVAL_S = 0.25
LOST_S = 1.0
WAITS_MAX = 1_000
WAITS_OF_ONE = 500  # of one caller
BATCH = 500
ENDS = frozenset(kind.published_as.replace(":", ".") for kind in (JobCompleted, JobDead, JobCancelled))


class JobWaits:
    """Belongs to the event loop. Implements Follower."""

    def __init__(self, states: Callable[[Sequence[str]], list[State | None]], pool: BrokerPool, hub: EventHub) -> None:
        self._states = states
        self._pool = pool
        self._hub = hub
        self._waits: dict[str, set[asyncio.Future[None]]] = {}
        self._due: set[str] = set()  # the jobs to read next
        self._all_due_s = 0.0  # when to read all
        self._task: asyncio.Task[None] | None = None
        self._share = Share("waiting requests", WAITS_MAX, WAITS_OF_ONE)
        self._wake = asyncio.Event()
        self._is_closed = False

    async def until_ended(self, id: str, timeout_s: float, caller: str) -> None:
        """Returns when the job has ended or is unknown, after the timeout, or when the server stops."""
        if self._is_closed:
            return
        self._share.take(caller)
        ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waits.setdefault(id, set()).add(ended)
        self._read_soon(id)
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._run())
        try:
            await asyncio.wait_for(ended, timeout_s)
        except TimeoutError:
            return
        finally:
            self._share.give_back(caller)
            waiting = self._waits.get(id, set())
            waiting.discard(ended)
            if not waiting:
                self._waits.pop(id, None)

    def take(self, event: LiveEvent) -> None:
        if event.name == RESET:
            self.connection_changed()
        elif event.name in ENDS and event.job_id in self._waits:
            self._read_soon(event.job_id)

    def connection_changed(self) -> None:
        self._all_due_s = 0.0
        self._wake.set()

    def close(self) -> None:
        self._is_closed = True
        for id in list(self._waits):
            self._end(id)

    def _read_soon(self, id: str) -> None:
        self._due.add(id)
        self._wake.set()

    async def _run(self) -> None:
        loop = asyncio.get_running_loop()
        self._hub.follow(self)
        try:
            while self._waits and not self._is_closed:
                ids, self._due = [id for id in self._due if id in self._waits], set()
                self._wake.clear()  # before the jobs are read, so that no event of meanwhile is missed
                if loop.time() >= self._all_due_s:
                    ids = list(self._waits)
                    self._all_due_s = loop.time() + (LOST_S if self._hub.is_connected else INTERVAL_S)
                for start in range(0, len(ids), BATCH):
                    await self._look_at(ids[start : start + BATCH])
                try:
                    await asyncio.wait_for(self._wake.wait(), max(0.0, self._all_due_s - loop.time()))
                except TimeoutError:
                    continue
        finally:
            self._hub.unfollow()

    async def _look_at(self, ids: list[str]) -> None:
        try:
            states = await self._pool.call(lambda: self._states(ids))
        except Exception:  # an outage is waited out, as Handle.wait() does
            return
        for id, state in zip(ids, states, strict=True):
            if state is None or not state.is_unfinished:
                self._end(id)

    def _end(self, id: str) -> None:
        for ended in self._waits.get(id, ()):
            if not ended.done():
                ended.set_result(None)
