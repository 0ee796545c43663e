"""Requests that wait for the end of a job. However many wait, the broker is asked once in INTERVAL_S for all of them,
and no thread is held."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

from fileq.core.job import State
from fileq.server.broker_pool import BrokerPool
from fileq.server.shares import Share

INTERVAL_S = 0.25
WAITS_MAX = 1_000
WAITS_OF_ONE = 500  # of one caller
BATCH = 500


class JobWaits:
    """Belongs to the event loop. look() may be called earlier than the interval says, for example by an event."""

    def __init__(self, states: Callable[[Sequence[str]], list[State | None]], pool: BrokerPool) -> None:
        self._states = states
        self._pool = pool
        self._waits: dict[str, set[asyncio.Future[None]]] = {}
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

    def look(self) -> None:
        """Asks the broker now."""
        self._wake.set()

    def close(self) -> None:
        self._is_closed = True
        for id in list(self._waits):
            self._end(id)

    async def _run(self) -> None:
        while self._waits and not self._is_closed:
            ids = list(self._waits)
            for start in range(0, len(ids), BATCH):
                await self._look_at(ids[start : start + BATCH])
            self._wake.clear()
            try:
                await asyncio.wait_for(self._wake.wait(), INTERVAL_S)
            except TimeoutError:
                continue

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
