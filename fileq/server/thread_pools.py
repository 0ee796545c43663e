"""The threads in which endpoints call the broker, and those that read and write files for clients. Both are a bounded
number, so that a slow broker or disk can't exhaust the process.

A call that does not return in time is abandoned: its request is answered, its thread stays taken until the call ends.
Threads are daemons, so a broker that hangs does not delay the end of the process.
"""

from __future__ import annotations

import asyncio
import math
import threading
import time
from collections.abc import Callable, Sequence
from queue import SimpleQueue
from typing import Any, TypeVar
from weakref import WeakValueDictionary

from fileq.server.limits import Share
from fileq.server.problems import ApiProblem, broker_away

T = TypeVar("T")
CALLS_MAX = 16
SCANS_MAX = 3
SCANS_OF_ONE = 2  # of one caller
TURN_S = 0.4  # how long a request waits for its turn
ANSWER_S = 0.9  # with it and its turn a request is answered within about a second
_SILENT_S = 0.5  # a call without a time of its own that has run for this long is probably waiting for the broker


class ServerThread:
    """Calls _run() in a thread of its own, which looks at `_is_stopping` after each pause. `_wake` cuts one short."""

    def __init__(self, name: str) -> None:
        self._wake = threading.Event()
        self._is_stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self, timeout_s: float = 0.0) -> None:
        """Waits so long for its end."""
        self._is_stopping.set()
        self._wake.set()
        if self._thread.ident is not None:
            self._thread.join(timeout_s)

    def _run(self) -> None:
        raise NotImplementedError


class BrokerPool:
    """Belongs to the event loop that calls it."""

    def __init__(self, calls_max: int = CALLS_MAX, scans_max: int = SCANS_MAX) -> None:
        self._turns = asyncio.Semaphore(calls_max)
        self._scan_turns = asyncio.Semaphore(scans_max)
        self._own_scan_turns: WeakValueDictionary[str, asyncio.Semaphore] = WeakValueDictionary()
        self._work: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        self._threads = 0
        self._running: dict[int, float] = {}  # by when they should have returned
        self._number = 0

    async def call(self, work: Callable[[], T], *, scans_for: str = "", timeout_s: float | None = None) -> T:
        """What the work returns or raises. Raises ApiProblem: busy, or broker-away if it does not return in time.
        `scans_for` is the caller for whom the work looks through lists; "" if it does not."""
        needed = [(self._turns, "too many requests are being served at a time")]
        if scans_for:
            own = self._own_scan_turns.setdefault(scans_for, asyncio.Semaphore(SCANS_OF_ONE))
            needed.insert(0, (self._scan_turns, "too many lists are being read at a time"))
            needed.insert(0, (own, f"this key reads {SCANS_OF_ONE} lists already"))
        taken: list[asyncio.Semaphore] = []
        try:
            for turns, what in needed:
                await self._turn(turns, what)
                taken.append(turns)
        except BaseException:
            for turns in taken:
                turns.release()
            raise
        ended = self._start(work, taken, _SILENT_S if timeout_s is None else timeout_s)
        try:
            return await asyncio.wait_for(asyncio.shield(ended), ANSWER_S if timeout_s is None else timeout_s)
        except TimeoutError:
            if ended.done():
                return ended.result()
            ended.add_done_callback(ignore)
            raise broker_away("the broker has not answered in time; the request may still take effect") from None
        except asyncio.CancelledError:
            ended.add_done_callback(ignore)
            raise

    def close(self) -> None:
        for _ in range(self._threads):
            self._work.put(None)

    async def _turn(self, turns: asyncio.Semaphore, what: str) -> None:
        try:
            await asyncio.wait_for(turns.acquire(), TURN_S)
        except TimeoutError:
            if turns is self._turns and min(self._running.values(), default=math.inf) < time.monotonic():
                raise broker_away("the broker does not answer") from None
            raise ApiProblem("busy", f"{what}; try again", retry_after_s=1) from None

    def _start(self, work: Callable[[], T], taken: Sequence[asyncio.Semaphore], within_s: float) -> asyncio.Future[T]:
        loop = asyncio.get_running_loop()
        ended: asyncio.Future[T] = loop.create_future()
        self._number += 1
        number = self._number
        self._running[number] = time.monotonic() + within_s

        def finish(result: Any, error: BaseException | None) -> None:
            del self._running[number]
            for turns in taken:
                turns.release()
            if ended.cancelled():
                return
            if error is not None:
                ended.set_exception(error)
            else:
                ended.set_result(result)

        def run() -> None:
            result, error = None, None
            try:
                result = work()
            except BaseException as raised:
                error = raised
            if not loop.is_closed():
                loop.call_soon_threadsafe(finish, result, error)

        if len(self._running) > self._threads:
            self._threads += 1
            threading.Thread(target=self._serve, name=f"api {self._threads}", daemon=True).start()
        self._work.put(run)
        return ended

    def _serve(self) -> None:
        while (work := self._work.get()) is not None:
            work()


def ignore(ended: asyncio.Future[Any]) -> None:
    """Takes the error of a call for which no request waits any more."""
    if not ended.cancelled():
        ended.exception()


# Threads for what waits for something other than the broker: files of clients, and receivers of webhooks.
#
# Each kind of work has a bounded number of threads of its own, apart from those that call the broker, so a disk or a
# receiver that hangs holds these only.

TRANSFERS_MAX = 16
TRANSFERS_OF_ONE = 8  # of one caller
DISK_S = 120.0
TESTS_MAX = 4
TESTS_OF_ONE = 2
TEST_S = 30.0  # a receiver has 20 s to answer


class SlowWork:
    """Belongs to the event loop. A client holds one of the slots during its work, and makes one call() at a time."""

    def __init__(self, what: str, most: int, most_of_one: int, timeout_s: float) -> None:
        self._pool = BrokerPool(calls_max=most)
        self._timeout_s = timeout_s
        self.slots = Share(what, most, most_of_one)

    async def call(self, work: Callable[[], T]) -> T:
        return await self._pool.call(work, timeout_s=self._timeout_s)


def file_transfers() -> SlowWork:
    return SlowWork("transfers of files", TRANSFERS_MAX, TRANSFERS_OF_ONE, DISK_S)


def webhook_tests() -> SlowWork:
    return SlowWork("tests of webhooks", TESTS_MAX, TESTS_OF_ONE, TEST_S)
