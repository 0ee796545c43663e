"""AsyncClient, AsyncHandle and AsyncBatch: the methods of Client, Handle and Batch, awaited. No logic of their own.

Each call runs in a thread. Calls that may take long, wait() and events(), have a thread each: in asyncio's own pool,
which is small, a few of them would hold up every other call of the program.
"""

from __future__ import annotations

import asyncio
import contextvars
import functools
import threading
from collections.abc import AsyncIterator, Callable, Coroutine, Generator, Iterable, Iterator
from concurrent.futures import Future
from itertools import islice
from pathlib import Path
from typing import Any, Concatenate, Generic, ParamSpec, Self, TypeVar, Unpack, overload

from msgspec import UNSET, UnsetType

from fileq.brokers.types import WireEvent
from fileq.client.batch_handle import BatchHandle, BatchKeywords
from fileq.client.client import Client
from fileq.client.event_stream import EventStream
from fileq.client.handle import Handle
from fileq.client.options import JobFilters
from fileq.client.tasks import TaskCall
from fileq.config import Config
from fileq.core.job_options import EnqueueOptions, NamedBatch
from fileq.core.public_name import public
from fileq.files.paths import AnyPath
from fileq.handlers.registry import TaskDefinition
from fileq.queries.documents import BatchDocument, JobDocument

P = TypeVar("P")
R = TypeVar("R")
T = TypeVar("T")
A = ParamSpec("A")
PAGE = 100  # jobs that one step of jobs() reads


def awaited(method: Callable[Concatenate[Any, A], T]) -> Callable[Concatenate[Any, A], Coroutine[Any, Any, T]]:
    """The method of a Client, a Handle or a Batch for the class that awaits it and has it as `_sync`."""

    @functools.wraps(method)
    async def call(self: Any, /, *args: A.args, **kwargs: A.kwargs) -> T:
        return await asyncio.to_thread(method, self._sync, *args, **kwargs)

    return call


async def _paged(read: Callable[[], Iterator[JobDocument]]) -> AsyncIterator[JobDocument]:
    found = await asyncio.to_thread(read)
    while page := await asyncio.to_thread(lambda: list(islice(found, PAGE))):
        for job in page:
            yield job


async def in_own_thread(work: Callable[[Callable[[], bool]], T]) -> T:
    """Runs `work` in a thread of its own; returns or raises what it does. `work` gets a function that returns True once
    the caller has been cancelled, so that it can stop early."""
    ended: Future[T] = Future()
    is_stopped = threading.Event()
    ended.set_running_or_notify_cancel()  # from now on only the thread ends it

    def run() -> None:
        try:
            ended.set_result(work(is_stopped.is_set))
        except BaseException as error:
            ended.set_exception(error)

    variables = contextvars.copy_context()  # as asyncio.to_thread() does it
    threading.Thread(target=variables.run, args=(run,), name="fileq wait", daemon=True).start()
    try:
        return await asyncio.wrap_future(ended)
    finally:
        is_stopped.set()


@public()
class AsyncClient:
    """The parameters are those of Client."""

    def __init__(self, where: str | Config | None = None, *, key: str = "", app_dir: str = ".") -> None:
        self._sync = Client(where, key=key, app_dir=app_dir)

    @classmethod
    def of(cls, client: Client) -> AsyncClient:
        """A client that shares the connections of another."""
        made = cls.__new__(cls)
        made._sync = client
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
        return AsyncHandle(await asyncio.to_thread(self._sync.enqueue, task, payload, **options))  # type: ignore[arg-type]

    async def enqueue_file(self, path: AnyPath, **options: Unpack[EnqueueOptions]) -> AsyncHandle[Any]:
        return AsyncHandle(await asyncio.to_thread(self._sync.enqueue_file, path, **options))

    async def enqueue_many(
        self, calls: Iterable[TaskCall[Any, Any] | Path], *, batch: NamedBatch | str | None = None
    ) -> list[AsyncHandle[Any]]:
        made = await asyncio.to_thread(self._sync.enqueue_many, list(calls), batch=batch)
        return [AsyncHandle(one) for one in made]

    def job(self, id: str) -> AsyncHandle[Any]:
        return AsyncHandle(self._sync.job(id))

    def jobs(self, **filters: Unpack[JobFilters]) -> AsyncIterator[JobDocument]:
        return _paged(lambda: self._sync.jobs(**filters))

    file = awaited(Client.file)
    size = awaited(Client.size)
    clear = awaited(Client.clear)
    schedule = awaited(Client.schedule)
    close = awaited(Client.close)

    def batch(self, name: str = "", **options: Unpack[BatchKeywords]) -> AsyncBatch:
        """`async with client.batch() as batch:`, or `batch = await client.batch()`."""
        return AsyncBatch(lambda: self._sync.batch(name, **options))

    async def find_batch(self, id: str) -> AsyncBatch:
        return await AsyncBatch(lambda: self._sync.find_batch(id))

    def events(self, *patterns: str) -> AsyncEventStream:
        """`async with client.events("job:dead") as events:`, or `events = await client.events(…)` to close it yourself.
        It begins there: what happens later is not missed."""
        return AsyncEventStream(lambda: self._sync.events(*patterns))

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()


@public()
class AsyncHandle(Generic[R]):
    """One job of an AsyncClient: the methods of Handle, awaited."""

    def __init__(self, handle: Handle[R]) -> None:
        self._sync = handle
        self.id, self.fate, self.warning = handle.id, handle.fate, handle.warning

    def __repr__(self) -> str:
        return repr(self._sync)

    async def wait(self, timeout: float | None = None) -> R:
        """As Handle.wait(). When it is cancelled, the job goes on."""
        return await in_own_thread(lambda is_stopped: self._sync.wait_unless(is_stopped, timeout))

    status = awaited(Handle.status)
    cancel = awaited(Handle.cancel)
    retry = awaited(Handle.retry)


class _Made(Generic[T]):
    """What a thread makes when it is awaited or entered."""

    def __init__(self, make: Callable[[], T]) -> None:
        self._make = make
        self._made: T | None = None

    def __await__(self) -> Generator[Any, None, Self]:
        return self.__aenter__().__await__()

    async def __aenter__(self) -> Self:
        if self._made is None:
            self._made = await asyncio.to_thread(self._make)
        return self


class AsyncEventStream(_Made[EventStream], AsyncIterator[WireEvent]):
    """An EventStream, awaited."""

    _events: AsyncIterator[WireEvent] | None = None

    async def __anext__(self) -> WireEvent:
        await self
        if self._events is None:
            assert self._made is not None
            self._events = _following(self._made)
        return await anext(self._events)

    async def close(self) -> None:
        if self._made is not None:
            await asyncio.to_thread(self._made.close)

    async def __aexit__(self, *_: object) -> None:
        await self.close()


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


@public()
class AsyncBatch(_Made[BatchHandle]):
    """`async with client.batch() as batch:`, or `batch = await client.batch()` to seal it yourself."""

    def __repr__(self) -> str:
        return repr(self._made) if self._made is not None else "<fileq batch, not created yet>"

    @property
    def id(self) -> str:
        return self._sync.id

    @property
    def priority(self) -> str:
        return self._sync.priority

    @overload
    async def add(
        self, task: TaskDefinition[P, R], payload: P | UnsetType = UNSET, **options: Unpack[EnqueueOptions]
    ) -> AsyncHandle[R]: ...

    @overload
    async def add(self, task: str, payload: Any = UNSET, **options: Unpack[EnqueueOptions]) -> AsyncHandle[Any]: ...

    async def add(
        self, task: TaskDefinition[Any, Any] | str, payload: Any = UNSET, **options: Unpack[EnqueueOptions]
    ) -> AsyncHandle[Any]:
        return AsyncHandle(await asyncio.to_thread(self._sync.add, task, payload, **options))  # type: ignore[arg-type]

    async def add_file(self, path: AnyPath, **options: Unpack[EnqueueOptions]) -> AsyncHandle[Any]:
        return AsyncHandle(await asyncio.to_thread(self._sync.add_file, path, **options))

    async def add_many(self, calls: Iterable[TaskCall[Any, Any] | Path]) -> list[AsyncHandle[Any]]:
        return [AsyncHandle(one) for one in await asyncio.to_thread(self._sync.add_many, list(calls))]

    seal = awaited(BatchHandle.seal)
    status = awaited(BatchHandle.status)
    cancel = awaited(BatchHandle.cancel)
    retry = awaited(BatchHandle.retry)

    async def wait(self, timeout: float | None = None) -> BatchDocument:
        """As Batch.wait(). When it is cancelled, the batch goes on."""
        return await in_own_thread(lambda is_stopped: self._sync.wait_unless(is_stopped, timeout))

    def jobs(self, *, dead: bool = False) -> AsyncIterator[JobDocument]:
        return _paged(lambda: self._sync.jobs(dead=dead))

    async def __aexit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        await asyncio.to_thread(self._sync.__exit__, kind, error, trace)

    @property
    def _sync(self) -> BatchHandle:
        if self._made is None:
            raise RuntimeError("the batch is not created yet; write 'async with client.batch()' or await it")
        return self._made
