"""AsyncClient: the methods of Client, awaited. Each call runs in a thread; there is no logic of its own here.

Calls that may take long, wait() and events(), have a thread each: in asyncio's own pool, which is small, a few of them
would hold up every other call of the program.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Iterable
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypeVar, Unpack, overload

from msgspec import UNSET, UnsetType

from fileq.brokers.types import WireEvent
from fileq.client.async_batch import AsyncBatch
from fileq.client.async_handle import PAGE, AsyncHandle, in_own_thread
from fileq.client.batch_options import BatchKeywords
from fileq.client.client import Client, JobFilters
from fileq.client.event_stream import EventStream
from fileq.client.job_options import EnqueueOptions, NamedBatch
from fileq.client.listed_job import ListedJob
from fileq.client.queries import FileTrace
from fileq.client.schedule_options import ScheduleKeywords
from fileq.client.task_call import TaskCall
from fileq.config import Config
from fileq.core.public_name import public
from fileq.handlers.registry import TaskDefinition

P = TypeVar("P")
R = TypeVar("R")


@public()
class AsyncClient:
    """The parameters are those of Client."""

    def __init__(self, where: str | Config | None = None, *, key: str = "", app_dir: str = ".") -> None:
        self._client = Client(where, key=key, app_dir=app_dir)

    @classmethod
    def of(cls, client: Client) -> AsyncClient:
        """A client that shares the connections of another."""
        made = cls.__new__(cls)
        made._client = client
        return made

    @overload
    async def enqueue(
        self, task: TaskDefinition[P, R], payload: P | UnsetType = UNSET, **options: Unpack[EnqueueOptions]
    ) -> AsyncHandle[R]: ...

    @overload
    async def enqueue(self, task: str, payload: Any = UNSET, **options: Unpack[EnqueueOptions]) -> AsyncHandle[Any]: ...

    async def enqueue(
        self, task: TaskDefinition[Any, Any] | str, payload: Any = UNSET, **options: Unpack[EnqueueOptions]
    ) -> AsyncHandle[Any]:
        return AsyncHandle(await asyncio.to_thread(self._client.enqueue, task, payload, **options))  # type: ignore[arg-type]

    async def enqueue_file(
        self, path: str | os.PathLike[str] | os.PathLike[bytes] | bytes, **options: Unpack[EnqueueOptions]
    ) -> AsyncHandle[Any]:
        return AsyncHandle(await asyncio.to_thread(self._client.enqueue_file, path, **options))

    async def enqueue_many(
        self, calls: Iterable[TaskCall[Any, Any] | Path], *, batch: NamedBatch | str | None = None
    ) -> list[AsyncHandle[Any]]:
        made = await asyncio.to_thread(self._client.enqueue_many, list(calls), batch=batch)
        return [AsyncHandle(one) for one in made]

    def job(self, id: str) -> AsyncHandle[Any]:
        return AsyncHandle(self._client.job(id))

    async def jobs(self, **filters: Unpack[JobFilters]) -> AsyncIterator[ListedJob]:
        found = await asyncio.to_thread(self._client.jobs, **filters)
        while page := await asyncio.to_thread(lambda: [job for _, job in zip(range(PAGE), found, strict=False)]):
            for job in page:
                yield job

    async def file(self, path: str | os.PathLike[str] | os.PathLike[bytes] | bytes) -> FileTrace:
        return await asyncio.to_thread(self._client.file, path)

    async def size(self, queue: str) -> int:
        return await asyncio.to_thread(self._client.size, queue)

    async def clear(self, queue: str) -> int:
        return await asyncio.to_thread(self._client.clear, queue)

    async def schedule(
        self,
        name: str,
        cron: str,
        task: TaskDefinition[Any, Any] | str,
        payload: Any = None,
        *,
        timezone: str = "UTC",
        **options: Unpack[ScheduleKeywords],
    ) -> None:
        await asyncio.to_thread(self._client.schedule, name, cron, task, payload, timezone=timezone, **options)

    def batch(self, name: str = "", **options: Unpack[BatchKeywords]) -> AsyncBatch:
        """`async with client.batch() as batch:`, or `batch = await client.batch()`."""
        return AsyncBatch(lambda: self._client.batch(name, **options))

    async def find_batch(self, id: str) -> AsyncBatch:
        return AsyncBatch.of(await asyncio.to_thread(self._client.find_batch, id))

    async def events(self, *patterns: str) -> AsyncIterator[WireEvent]:
        """`async for event in await client.events("job:dead")`; begins when it is awaited."""
        return _following(await asyncio.to_thread(self._client.events, *patterns))

    async def close(self) -> None:
        await asyncio.to_thread(self._client.close)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()


async def _following(stream: EventStream) -> AsyncIterator[WireEvent]:
    try:
        while True:
            event = await in_own_thread(lambda is_stopped: stream.next_within(None, is_stopped))
            if event is None:
                return
            yield event
    finally:
        stream.close()
