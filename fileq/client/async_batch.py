"""AsyncBatch: the methods of Batch, awaited. There is no logic of its own here."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Callable, Generator, Iterable
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypeVar, Unpack, overload

from msgspec import UNSET, UnsetType

from fileq.client.async_handle import PAGE, AsyncHandle, in_own_thread
from fileq.client.batch_handle import BatchHandle
from fileq.client.batch_status import BatchStatus
from fileq.client.job_options import EnqueueOptions
from fileq.client.listed_job import ListedJob
from fileq.client.task_call import TaskCall
from fileq.client.transport import BatchRetry
from fileq.core.public_name import public
from fileq.handlers.registry import TaskDefinition

P = TypeVar("P")
R = TypeVar("R")


@public()
class AsyncBatch:
    """`async with client.batch() as batch:`, or `batch = await client.batch()` to seal it yourself."""

    def __init__(self, create: Callable[[], BatchHandle]) -> None:
        self._create = create
        self._made: BatchHandle | None = None

    @classmethod
    def of(cls, batch: BatchHandle) -> AsyncBatch:
        made = cls(lambda: batch)
        made._made = batch
        return made

    def __repr__(self) -> str:
        return repr(self._made) if self._made is not None else "<fileq batch, not created yet>"

    def __await__(self) -> Generator[Any, None, Self]:
        return self._created().__await__()

    @property
    def id(self) -> str:
        return self._batch.id

    @property
    def priority(self) -> str:
        return self._batch.priority

    @overload
    async def add(
        self, task: TaskDefinition[P, R], payload: P | UnsetType = UNSET, **options: Unpack[EnqueueOptions]
    ) -> AsyncHandle[R]: ...

    @overload
    async def add(self, task: str, payload: Any = UNSET, **options: Unpack[EnqueueOptions]) -> AsyncHandle[Any]: ...

    async def add(
        self, task: TaskDefinition[Any, Any] | str, payload: Any = UNSET, **options: Unpack[EnqueueOptions]
    ) -> AsyncHandle[Any]:
        return AsyncHandle(await asyncio.to_thread(self._batch.add, task, payload, **options))  # type: ignore[arg-type]

    async def add_file(
        self, path: str | os.PathLike[str] | os.PathLike[bytes] | bytes, **options: Unpack[EnqueueOptions]
    ) -> AsyncHandle[Any]:
        return AsyncHandle(await asyncio.to_thread(self._batch.add_file, path, **options))

    async def add_many(self, calls: Iterable[TaskCall[Any, Any] | Path]) -> list[AsyncHandle[Any]]:
        return [AsyncHandle(one) for one in await asyncio.to_thread(self._batch.add_many, list(calls))]

    async def seal(self) -> bool:
        return await asyncio.to_thread(self._batch.seal)

    async def status(self) -> BatchStatus:
        return await asyncio.to_thread(self._batch.status)

    async def wait(self, timeout: float | None = None) -> BatchStatus:
        """As Batch.wait(). When it is cancelled, the batch goes on."""
        status = await in_own_thread(lambda is_stopped: self._batch.wait_unless(is_stopped, timeout))
        assert status is not None
        return status

    async def cancel(self) -> bool:
        return await asyncio.to_thread(self._batch.cancel)

    async def retry(self) -> BatchRetry:
        return await asyncio.to_thread(self._batch.retry)

    async def jobs(self, *, dead: bool = False) -> AsyncIterator[ListedJob]:
        found = await asyncio.to_thread(self._batch.jobs, dead=dead)
        while page := await asyncio.to_thread(lambda: [job for _, job in zip(range(PAGE), found, strict=False)]):
            for job in page:
                yield job

    async def __aenter__(self) -> Self:
        return await self._created()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await asyncio.to_thread(self._batch.__exit__, kind, error, trace)

    @property
    def _batch(self) -> BatchHandle:
        if self._made is None:
            raise RuntimeError("the batch is not created yet; write 'async with client.batch()' or await it")
        return self._made

    async def _created(self) -> Self:
        if self._made is None:
            self._made = await asyncio.to_thread(self._create)
        return self
