"""For tests of programs that enqueue: a whole queue in the test's own process, with a clock that only the test moves.

    with fileq.testing.queue(imports=["app"]) as q:
        app.sign_up("ada@example.org")
        q.drain()
        assert q.completed("welcome")[0].payload.to == "ada@example.org"

The broker keeps everything in memory; pump, retry policy, routes and producer are those of the program. Handlers run in
the calling thread. Nothing sleeps: where the program would wait, the clock jumps.
"""

from __future__ import annotations

import os
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from contextvars import ContextVar
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, TypeVar, Unpack, overload

from msgspec import UNSET, UnsetType
from msgspec.structs import replace

from fileq.brokers.memory import MemoryBroker, MemoryStore
from fileq.brokers.protocol import Subscription
from fileq.brokers.rules.unit_of_work import UnitOfWork
from fileq.client.async_client import AsyncClient
from fileq.client.batch_handle import BatchHandle, BatchKeywords
from fileq.client.broker_transport import BrokerTransport
from fileq.client.client import NOT_ENTERED, UNENTERED, Client, replaced_by
from fileq.client.handle import Handle
from fileq.client.schedule_changes import the_schedule
from fileq.commands.built_in_jobs import built_in_jobs
from fileq.config import Config, config_from
from fileq.config.schema import BackoffSettings, WorkerSettings
from fileq.core.errors import ConfigError
from fileq.core.events import ignore
from fileq.core.job_options import EnqueueOptions
from fileq.core.own_jobs import is_own_type
from fileq.core.schedule import is_of_schedule
from fileq.core.units import LONGEST_S, Duration, seconds
from fileq.handlers.context import no_handler
from fileq.handlers.registry import TaskDefinition
from fileq.handlers.routes import Routes, made_job_problems
from fileq.producer.producer import Producer
from fileq.queries.documents import JobDocument
from fileq.testing.inline_executor import InlineExecutor
from fileq.worker.deadlines import Deadlines
from fileq.worker.pump import Gates, Pump
from fileq.worker.scheduler import ScheduleFiring, Scheduler
from fileq.worker.settlements import FollowUps

P = TypeVar("P")
R = TypeVar("R")
MOST_ATTEMPTS = 10_000  # of one drain
# The queues that are running the handler that this code belongs to; coroutines and asyncio's threads inherit it.
_running: ContextVar[tuple[TrialQueue, ...]] = ContextVar("running", default=())


class TrialClock:
    """Begins at the present and stands still until it is moved."""

    def __init__(self) -> None:
        self._now_ns = time.time_ns()

    def wall_ns(self) -> int:
        return self._now_ns

    def wall_ms(self) -> int:
        return self._now_ns // 1_000_000

    def monotonic(self) -> float:
        return self._now_ns / 1e9

    def move_to_ms(self, ms: int) -> None:
        self._now_ns = max(self._now_ns, ms * 1_000_000)


class TrialSubscription:
    """Events for a caller that waits: it runs the queue itself, step by step, because no worker does it meanwhile."""

    def __init__(self, queue: TrialQueue, events: Subscription) -> None:
        self._queue = queue
        self._events = events

    def get(self, timeout_s: float) -> bytes | None:
        event = self._events.get(0)
        if event is not None:
            return event
        if self._queue.step():
            return None
        event = self._events.get(0)
        if event is None:
            raise RuntimeError(
                "no job is left to run, so this wait would never end; is the queue paused, or the batch not sealed?"
            )
        return event

    def close(self) -> None:
        self._events.close()


class TrialStore(MemoryStore):
    """Changes nothing any more once the `with` of its queue has ended; what it holds can still be read."""

    has_ended = False

    def check_open(self) -> None:
        if self.has_ended:
            raise ConfigError(
                "the `with` of this test queue has ended, so nothing runs its jobs; use it inside the block, or make "
                "another by fileq.testing.queue()"
            )

    @contextmanager
    def unit_of_work(self) -> Iterator[UnitOfWork]:
        self.check_open()
        with super().unit_of_work() as work:
            yield work


class TrialTransport(BrokerTransport):
    """A transport without a worker behind it: see TrialSubscription."""

    def __init__(self, queue: TrialQueue, broker: MemoryBroker, config: Config, clock: TrialClock) -> None:
        super().__init__(broker, config, clock=clock.wall_ms)
        self._queue = queue

    def subscribe(self) -> Subscription:
        return TrialSubscription(self._queue, super().subscribe())


class TrialQueue:
    """`client` and `async_client` enqueue here. Within the `with` so do tasks and every client that was made without an
    address; one with an address raises ConfigError. `directory` is the scan_dir.

    It is made by the `with`. Until then it refuses every use, and so do tasks and clients: without the `with` a test
    would enqueue into the real queue. Once the `with` has ended, its jobs can only be read."""

    def __init__(self, imports: Sequence[str], config: Config | Mapping[str, Any] | None, app_dir: str) -> None:
        self._given = imports, config, app_dir
        self._resources = ExitStack()
        UNENTERED.add(self)

    if not TYPE_CHECKING:

        def __getattr__(self, name):
            if self in UNENTERED and not name.startswith("__"):
                raise ConfigError(NOT_ENTERED)
            raise AttributeError(f"a test queue has no {name!r}")

    def _open(self, imports: Sequence[str], config: Config | Mapping[str, Any] | None, app_dir: str) -> None:
        self.directory = Path(self._resources.enter_context(tempfile.TemporaryDirectory(prefix="fileq-")))
        self._config = config = _config(imports, config, self.directory)
        self._clock = clock = TrialClock()
        self._broker = MemoryBroker(config, clock=clock.wall_ms)
        self._broker.store = self._store = TrialStore(config, clock=clock.wall_ms)
        built_in = built_in_jobs(app_dir)(self._broker, config, ignore)
        routes = Routes.load(config, app_dir=app_dir).with_built_in(built_in, config)
        routes.has_all_types = True
        if problems := list(made_job_problems(config, routes)):
            raise ConfigError(problems)
        self._routes = routes
        self._executor = InlineExecutor(routes)
        self._resources.callback(self._executor.close)
        gates = Gates.of(config, routes, self._broker, monotonic=clock.monotonic)
        self._pump = Pump(
            config, self._broker, self._executor, routes, gates, monotonic=clock.monotonic, wall_ms=clock.wall_ms
        )
        self._pump.start()
        self._resources.callback(self._pump.finish)
        firing = ScheduleFiring(config, self._broker, monotonic=clock.monotonic)
        deadlines = Deadlines(config, self._broker, add_follow_ups=FollowUps(routes, config.paths, clock.wall_ms).added)
        self._scheduler = Scheduler(
            self._broker, firing=firing, deadline_reached=deadlines.turn, monotonic=clock.monotonic
        )
        self._scheduler.turn()  # defines the schedules of the configuration
        self._lock = threading.Lock()
        self.client = Client.over(TrialTransport(self, self._broker, config, clock))
        self.async_client = AsyncClient.of(self.client)

    @overload
    def enqueue(
        self, task: TaskDefinition[P, R], payload: P | UnsetType = UNSET, **options: Unpack[EnqueueOptions]
    ) -> Handle[R]: ...

    @overload
    def enqueue(self, task: str, payload: Any = UNSET, **options: Unpack[EnqueueOptions]) -> Handle[Any]: ...

    def enqueue(self, task: Any, payload: Any = UNSET, **options: Unpack[EnqueueOptions]) -> Handle[Any]:
        """As Client.enqueue()."""
        return self.client.enqueue(task, payload, **options)

    def batch(self, name: str = "", **options: Unpack[BatchKeywords]) -> BatchHandle:
        """As Client.batch(). Its callbacks run in drain(), as every job."""
        return self.client.batch(name, **options)

    def drop(self, path: str | os.PathLike[str], data: bytes | str = b"") -> Handle[Any]:
        """Writes a file below `directory` and lets a producer find it. ConfigError if the path leads elsewhere, before
        anything is written, or if the producer does not take the file."""
        self._store.check_open()
        file = self._place_of(path)
        file.parent.mkdir(parents=True, exist_ok=True)
        new = file.with_name(f".{file.name}.tmp")
        new.write_bytes(data.encode() if isinstance(data, str) else data)
        new.replace(file)  # a new inode, so it is a new version even if its content is the same
        before = self._newest(file)
        self._produce()
        id = self._newest(file)
        if id is None or id == before:
            raise ConfigError(f"the producer does not take {os.fspath(path)!r}; see include_globs and exclude_globs")
        return self.client.job(id)

    def drain(self) -> int:
        """Runs every job until none is left: also retries and jobs for later, to whose times the clock jumps. Returns
        the number of attempts. RuntimeError if there is no end to it. Ctrl-C, pytest.fail() and pytest.skip() in a
        handler end it."""
        return self._run(None)

    def advance(self, duration: Duration) -> int:
        """Lets this much time pass, and runs what becomes due in it, each at its time. Schedules fire here only."""
        try:
            passing_s = seconds(duration)
        except ValueError as error:
            raise ConfigError(f"duration is {duration!r}; it must be {error}") from None
        return self._run(self._clock.wall_ms() + round(passing_s * 1000))

    def completed(self, type: TaskDefinition[Any, Any] | str | None = None) -> list[JobDocument]:
        """The completed jobs, of this task or type, in the order in which they ended. ConfigError for a type that no
        imported module or route takes: otherwise a test with a misspelt name could not fail."""
        type = type.name if isinstance(type, TaskDefinition) else type
        if type is not None and not isinstance(type, str):
            raise ConfigError(f"completed() was given {type!r:.100}; give a task, the name of a type, or nothing")
        if type is not None and type not in self._routes.types and not is_own_type(type):
            raise ConfigError(no_handler(type, self._routes.types))
        found = self.client.jobs(status="completed", type=type) if type else self.client.jobs(status="completed")
        return list(found)[::-1]

    def fired(self, schedule: str) -> list[JobDocument]:
        """The jobs that this schedule has made, in any state, in the order of their times. BrokerError if there is no
        such schedule."""
        the_schedule(self._broker, schedule)
        return sorted((job for job in self.client.jobs() if is_of_schedule(job.id, schedule)), key=lambda job: job.id)

    @property
    def dead(self) -> list[JobDocument]:
        """The dead jobs, in the order in which they died."""
        return list(self.client.jobs(status="dead"))[::-1]

    def close(self) -> None:
        self._resources.close()
        self._store.has_ended = True

    def __enter__(self) -> Self:
        if self not in UNENTERED:
            raise ConfigError("a test queue is for one `with`; make another by fileq.testing.queue()")
        UNENTERED.discard(self)
        try:
            self._open(*self._given)
        except BaseException:
            self._resources.close()
            raise
        self._resources.enter_context(replaced_by(self.client))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _run(self, until_ms: int | None) -> int:
        before = self._executor.count
        while self.step(until_ms):
            if self._executor.count - before > MOST_ATTEMPTS:
                raise RuntimeError(f"more than {MOST_ATTEMPTS} attempts; does a job enqueue itself for ever?")
        return self._executor.count - before

    def step(self, until_ms: int | None = None) -> bool:
        """Runs at most one job, or lets the clock jump to the next. Returns whether there may be more to do."""
        self._store.check_open()
        if self in _running.get() and self._lock.locked():
            raise RuntimeError("a handler can't run the queue that runs it, nor wait for another job of it")
        with self._lock:
            before = _running.set((*_running.get(), self))
            try:
                return self._step(until_ms)
            finally:
                _running.reset(before)

    def _step(self, until_ms: int | None) -> bool:
        self._scheduler.turn()
        claim_count = self._pump.turn()
        self._executor.raise_interruption()
        if claim_count or self._pump.is_turn_due or not self._pump.is_idle:
            return True
        promoted = self._broker.promote()
        if promoted.count:
            return True
        # Without an end to it no schedule fires: it would never be the last time.
        times_ms = [promoted.next_due_ms, promoted.next_fire_ms if until_ms is not None else None]
        if promoted.next_due_ms is not None or until_ms is not None:  # the job may miss it before it is due
            times_ms.append(promoted.next_deadline_ms)
        due_ms = min((due_ms for due_ms in times_ms if due_ms is not None), default=None)
        if due_ms is not None and (until_ms is None or due_ms <= until_ms):
            self._clock.move_to_ms(due_ms)
            return True
        if until_ms is not None:
            self._clock.move_to_ms(until_ms)
        return False

    def _produce(self) -> None:
        clock = self._clock
        producer = Producer(self._config, self._broker, is_once=True, monotonic=clock.monotonic, wall_ns=clock.wall_ns)
        try:
            while not producer.is_idle:
                pause_s = producer.turn()
                if not producer.is_idle:
                    clock.move_to_ms(clock.wall_ms() + round(pause_s * 1000))
        finally:
            producer.close()

    def _place_of(self, path: str | os.PathLike[str]) -> Path:
        given = self.directory / path
        directory, parent = self.directory.resolve(), given.parent.resolve()
        if given == self.directory or given.name == ".." or not parent.is_relative_to(directory):
            raise ConfigError(f"path is {os.fspath(path)!r}; it must be below q.directory")
        return self.directory / parent.relative_to(directory) / given.name

    def _newest(self, file: Path) -> str | None:
        [entry] = self._broker.lookup([os.fsencode(file)])
        return entry.versions[0][1] if entry is not None and entry.versions else None


def queue(
    imports: Sequence[str] = (), config: Config | Mapping[str, Any] | None = None, *, app_dir: str = "."
) -> TrialQueue:
    """A queue for one test. `imports` are modules with tasks and handlers, `config` further settings: a mapping such as
    {"worker": {"max_retries": 1}}, or a Config. Circuit breakers are off, delays have no random part,
    and results are kept unless `worker.history_ttl` is set."""
    if isinstance(imports, str):
        raise ConfigError(f"imports is {imports!r}; it must be a list of modules, such as [{imports!r}]")
    return TrialQueue(imports, config, app_dir)


def _config(imports: Sequence[str], given: Config | Mapping[str, Any] | None, directory: Path) -> Config:
    config = given if isinstance(given, Config) else config_from(given or {})
    backoff = config.worker.backoff
    if isinstance(backoff, BackoffSettings):
        backoff = replace(backoff, jitter=0.0)
    history_ttl = config.worker.history_ttl
    if history_ttl == WorkerSettings().history_ttl:
        history_ttl = LONGEST_S  # the clock may be moved past the default, and the test still asks for its results
    return replace(
        config,
        broker="memory",
        imports=(*config.imports, *imports),
        worker=replace(config.worker, count=1, backoff=backoff, history_ttl=history_ttl),
        producer=replace(
            config.producer, scan_dir=str(directory), settle=0.0, settle_unclosed=0.0, rate_limit_per_sec=0
        ),
        circuit_breaker=replace(config.circuit_breaker, enabled=False),
    )
