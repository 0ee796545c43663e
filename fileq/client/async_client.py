"""AsyncClient, AsyncHandle and AsyncBatch: the methods of Client, Handle and Batch, awaited. No logic of their own.

Each call runs in a thread. Calls that may take long, wait() and events(), have a thread each: in asyncio's own pool,
which is small, a few of them would hold up every other call of the program.
"""

from __future__ import annotations

import asyncio
import contextvars
import os
import threading
from collections.abc import AsyncIterator, Callable, Generator, Iterable
from pathlib import Path
from types import TracebackType
from typing import Any, Generic, Self, TypeVar, Unpack, overload

from msgspec import UNSET, UnsetType

from fileq.brokers.types import CancelResult, WireEvent
from fileq.client.batch_handle import BatchHandle, BatchKeywords
from fileq.client.client import Client
from fileq.client.event_stream import EventStream
from fileq.client.handle import Handle
from fileq.client.options import EnqueueOptions, JobFilters, NamedBatch, ScheduleKeywords
from fileq.client.tasks import TaskCall
from fileq.client.transport import BatchRetry
from fileq.config import Config
from fileq.core.public_name import public
from fileq.handlers.registry import TaskDefinition
from fileq.queries.documents import BatchDocument, JobDocument
from fileq.queries.job_queries import FileTrace

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

    async def jobs(self, **filters: Unpack[JobFilters]) -> AsyncIterator[JobDocument]:
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

    def events(self, *patterns: str) -> AsyncEventStream:
        """`async with client.events("job:dead") as events:`, or `events = await client.events(…)` to close it yourself.
        It begins there: what happens later is not missed."""
        return AsyncEventStream(lambda: self._client.events(*patterns))

    async def close(self) -> None:
        await asyncio.to_thread(self._client.close)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()


class AsyncEventStream(AsyncIterator[WireEvent]):
    """An EventStream, awaited."""

    def __init__(self, begin: Callable[[], EventStream]) -> None:
        self._begin = begin
        self._begun: tuple[EventStream, AsyncIterator[WireEvent]] | None = None

    def __await__(self) -> Generator[Any, None, Self]:
        return self.__aenter__().__await__()

    async def __anext__(self) -> WireEvent:
        _, events = await self._open()
        return await anext(events)

    async def close(self) -> None:
        if self._begun is not None:
            await asyncio.to_thread(self._begun[0].close)

    async def __aenter__(self) -> Self:
        await self._open()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def _open(self) -> tuple[EventStream, AsyncIterator[WireEvent]]:
        if self._begun is None:
            stream = await asyncio.to_thread(self._begin)
            self._begun = stream, _following(stream)
        return self._begun


async def _following(stream: EventStream) -> AsyncIterator[WireEvent]:
    """Closes the stream when the generator is closed: asyncio does that if the program forgets it."""
    try:
        while True:
            event = await in_own_thread(lambda is_stopped: stream.next_within(None, is_stopped))
            if event is None:
                return
            yield event
    finally:
        stream.close()


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

    @property
    def warning(self) -> str:
        return self._handle.warning

    async def status(self) -> JobDocument:
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

    variables = contextvars.copy_context()  # as asyncio.to_thread() does it
    threading.Thread(target=variables.run, args=(run,), name="fileq wait", daemon=True).start()
    try:
        return await ended
    finally:
        is_stopped.set()


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

    async def status(self) -> BatchDocument:
        return await asyncio.to_thread(self._batch.status)

    async def wait(self, timeout: float | None = None) -> BatchDocument:
        """As Batch.wait(). When it is cancelled, the batch goes on."""
        status = await in_own_thread(lambda is_stopped: self._batch.wait_unless(is_stopped, timeout))
        assert status is not None
        return status

    async def cancel(self) -> bool:
        return await asyncio.to_thread(self._batch.cancel)

    async def retry(self) -> BatchRetry:
        return await asyncio.to_thread(self._batch.retry)

    async def jobs(self, *, dead: bool = False) -> AsyncIterator[JobDocument]:
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
