"""AsyncHandle: the methods of Handle, awaited; and how a call that may take long gets a thread of its own."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import Generic, TypeVar

from fileq.brokers.types import CancelResult
from fileq.client.handle import Handle, Status
from fileq.core.public_name import public

R = TypeVar("R")
T = TypeVar("T")
PAGE = 100  # jobs that one step of jobs() reads


@public()
class AsyncHandle(Generic[R]):
    """One job of an AsyncClient: the methods of Handle, awaited."""

    def __init__(self, handle: Handle[R]) -> None:
        self._handle = handle

    def __repr__(self) -> str:
        return repr(self._handle)

    @property
    def id(self) -> str:
        return self._handle.id

    @property
    def fate(self) -> str | None:
        return self._handle.fate

    async def status(self) -> Status:
        return await asyncio.to_thread(self._handle.status)

    async def wait(self, timeout: float | None = None) -> R:
        """As Handle.wait(). When it is cancelled, the job goes on."""
        found = await in_own_thread(lambda is_stopped: self._handle.wait_unless(is_stopped, timeout))
        assert found is not None
        return found[0]

    async def cancel(self) -> CancelResult:
        return await asyncio.to_thread(self._handle.cancel)

    async def retry(self) -> None:
        await asyncio.to_thread(self._handle.retry)


async def in_own_thread(work: Callable[[Callable[[], bool]], T]) -> T:
    """Runs `work` in a thread of its own; returns or raises what it does. `work` gets a function that returns True once
    the caller has been cancelled, so that it can stop early."""
    loop = asyncio.get_running_loop()
    ended: asyncio.Future[T] = loop.create_future()
    is_stopped = threading.Event()

    def settle(result: T | None, error: BaseException | None) -> None:
        if ended.done():
            return
        if error is not None:
            ended.set_exception(error)
        else:
            ended.set_result(result)  # type: ignore[arg-type]

    def run() -> None:
        result, error = None, None
        try:
            result = work(is_stopped.is_set)
        except BaseException as raised:
            error = raised
        if not loop.is_closed():
            loop.call_soon_threadsafe(settle, result, error)

    threading.Thread(target=run, name="fileq wait", daemon=True).start()
    try:
        return await ended
    finally:
        is_stopped.set()
