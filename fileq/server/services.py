"""What the functions of endpoints work with, one of each for a server, and its threads: audit, samples, uploads."""

from __future__ import annotations

import asyncio
import os
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any

from msgspec import Struct

from fileq.actions.bulk import BulkActions
from fileq.brokers.catalog import Catalog, entry_name
from fileq.brokers.protocol import FullBroker
from fileq.brokers.types import Census, Record
from fileq.client.broker_transport import BrokerTransport
from fileq.commands.acknowledgements import Acknowledgement
from fileq.commands.action_log import ActionLog
from fileq.commands.api_keys import KeyStore
from fileq.commands.audit_entries import (
    AUDIT,
    AUDIT_REFUSED,
    AuditChange,
    AuditEntry,
    changes_between,
    one_document,
    short,
)
from fileq.config import Config
from fileq.core.errors import BrokerError, BrokerUnavailable
from fileq.core.events import (
    Emit,
    Event,
    JobCancelled,
    JobCompleted,
    JobDead,
    LoginsFailed,
    RequestAudited,
    RequestFailed,
    UploadsRemoved,
)
from fileq.core.job import State, decode_or_none, stamp, wall_clock_ms
from fileq.files.uploads import remove_abandoned
from fileq.runtime.service import LONGEST_PAUSE_S, Loop, Turning, without_outages
from fileq.server.authentication import Authentication, FailedLogins, Sessions, signer_of
from fileq.server.event_hub import RESET, EventHub, LiveEvent
from fileq.server.limits import BrokerPool, RateLimiter, RequestBodies, Share, SlowWork
from fileq.server.operations import OperationRunner, OperationStore
from fileq.server.problems import ApiProblem, broker_away, problem_of

# A disk or a receiver that hangs holds only threads of these works.
TRANSFERS_MAX = 16
TRANSFERS_OF_ONE = 8  # of one caller
DISK_S = 120.0
TESTS_MAX = 4
TESTS_OF_ONE = 2
TEST_S = 30.0  # a receiver has 20 s to answer
SWEEP_S = 3600.0  # between two looks for abandoned uploads
UNKNOWN = "unknown"  # who failed to log in, in the audit


class Services:
    """Blocking parts: `broker`, `transport`, `keys`; only functions in the pool call them. Loops of its own write the
    audit, take samples, work on operations and remove abandoned uploads, from start() to stop().

    `known_causes` are the acknowledgements as a view read them last, for views that must not ask for them."""

    def __init__(self, config: Config, broker: FullBroker, loop: asyncio.AbstractEventLoop, *, emit: Emit) -> None:
        now_ms = wall_clock_ms
        self.config = config
        self.broker = broker
        self.transport = BrokerTransport(broker, config, clock=now_ms)
        self.keys = KeyStore(broker, now_ms)
        self.signer = signer_of(broker)
        self.audit = AuditLog(broker, emit, now_ms)
        self.emit = emit
        self.now_ms = now_ms
        self.actions = BulkActions(broker, config, now_ms)
        self.operations = OperationStore(broker, now_ms)
        self.action_log = ActionLog(broker, now_ms)
        self._is_stopping = threading.Event()
        self.operation_runner = OperationRunner(self.operations, self.actions, emit, self.action_log, self._is_stopping)
        self.samples = LiveSamples(broker)
        self.open_breakers = OpenBreakers(broker)
        self.pool = BrokerPool()
        self.bodies = RequestBodies()
        self.transfers = SlowWork("transfers of files", TRANSFERS_MAX, TRANSFERS_OF_ONE, DISK_S)
        self.webhook_tests = SlowWork("tests of webhooks", TESTS_MAX, TESTS_OF_ONE, TEST_S)
        self.sessions = Sessions(self.signer, now_ms, config.server.base_path)
        self.failed_logins = FailedLogins(loop.time, loop.call_later, self._report_failed_logins)
        self.authentication = Authentication(
            config.server, self.keys, self.pool, self.sessions, self.failed_logins, now_ms
        )
        self.rate_limiter = RateLimiter(config.server.rate_limit, loop.time)
        self.known_causes: Mapping[str, Acknowledgement] = {}
        self.hides_paths = config.server.files == "none"
        self.hub = EventHub(loop, broker, self.pool, self.authentication, hides_paths=self.hides_paths, emit=emit)
        self.waits = JobWaits(broker.states, self.pool, self.hub)
        turnings: list[Turning] = [self.audit, self.samples]
        if not config.server.read_only:  # which changes nothing
            turnings += [self.operation_runner, UploadSweep(config.server.upload_dir, emit, self._is_stopping)]
        quiet = without_outages(emit)  # requests report an outage
        self._loops = [Loop(one, emit=quiet, longest_pause_s=LONGEST_PAUSE_S) for one in turnings]

    def start(self) -> None:
        for loop in self._loops:
            loop.start()

    def stop(self, timeout_s: float) -> None:
        until_s = time.monotonic() + timeout_s
        self._is_stopping.set()
        for loop in self._loops:
            loop.quiet()
        for loop in self._loops:
            loop.stop(max(0.0, until_s - time.monotonic()))

    def stop_streams(self) -> None:
        """Ends what would hold a connection open: event streams and waiting requests."""
        self.hub.close()
        self.waits.close()
        self.failed_logins.flush()

    def reported(self, error: Exception, what: str, request_id: str, *, names_broker: bool = True) -> ApiProblem:
        """The problem to answer with. A defect is logged, with the request id that its answer has. Without
        `names_broker` an outage does not say where the broker is."""
        problem = problem_of(error)
        if isinstance(error, BrokerUnavailable) and not names_broker:
            problem = broker_away("try again later; the server reports the reason to keys with the scope admin")
        if problem is None:
            self.emit(RequestFailed(what, request_id, repr(error)[:500], error))
            problem = ApiProblem("internal", f"see the log of the server for request {request_id}")
        return problem

    def _report_failed_logins(self, failures: int, addresses: int, address: str, how: str) -> None:
        detail = f"the last one from {address}, by {how}; from {addresses} addresses"
        entry = self.audit.entry(UNKNOWN, "", "failed_login", "/login", failures, 401, "", detail=detail)
        self.audit.add(entry, LoginsFailed(failures, addresses, address, how))


class UploadSweep:
    """Removes what servers leave that are killed during an upload. What a kill -9 of its own leaves: nothing. The next
    server goes on."""

    name = "upload sweep"

    def __init__(self, directory: str, emit: Emit, is_stopping: threading.Event) -> None:
        self._directory = directory
        self._emit = emit
        self._is_stopping = is_stopping

    def turn(self) -> float:
        top = os.fsencode(self._directory)
        if top and (count := remove_abandoned(top, time.time(), self._is_stopping.is_set)):
            self._emit(UploadsRemoved(count, self._directory))
        return SWEEP_S


INTERVAL_S = 0.25
LOST_S = 1.0
WAITS_MAX = 1_000
WAITS_OF_ONE = 500  # of one caller
BATCH = 500
ENDS = frozenset(kind.published_as.replace(":", ".") for kind in (JobCompleted, JobDead, JobCancelled))


class JobWaits:
    """Requests that wait for the end of a job. No thread is held: an event says that the job has ended.

    An event can get lost, so the states of all these jobs are read besides: whenever events may be missed, every LOST_S
    while they are followed, and every INTERVAL_S while they can't be.

    Belongs to the event loop."""

    def __init__(self, states: Callable[[Sequence[str]], list[State | None]], pool: BrokerPool, hub: EventHub) -> None:
        self._states = states
        self._pool = pool
        self._hub = hub
        self._waits: dict[str, set[asyncio.Future[None]]] = {}
        self._task: asyncio.Task[None] | None = None
        self._share = Share("waiting requests", WAITS_MAX, WAITS_OF_ONE)
        self._wake = asyncio.Event()
        self._is_closed = False

    async def until_ended(self, id: str, timeout_s: float, caller: str) -> None:
        """Returns when the job has ended or is unknown, after the timeout, or when the server stops."""
        if self._is_closed:
            return
        ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        with self._share.held(caller), suppress(TimeoutError):
            self._waits.setdefault(id, set()).add(ended)
            if self._task is None or self._task.done():
                self._task = asyncio.create_task(self._run())
            try:
                async with asyncio.timeout(timeout_s):
                    await self._look_at([id])  # it may have ended before its events were followed
                    await ended
            finally:
                self._waits[id].discard(ended)
                if not self._waits[id]:
                    del self._waits[id]

    def _take(self, event: LiveEvent) -> None:
        if event.name == RESET:
            self._wake.set()
        elif event.name in ENDS:
            self._end(event.job_id)

    def close(self) -> None:
        self._is_closed = True
        for id in list(self._waits):
            self._end(id)

    async def _run(self) -> None:
        self._hub.follow(self._take)
        try:
            while self._waits and not self._is_closed:
                with suppress(TimeoutError):
                    await asyncio.wait_for(self._wake.wait(), LOST_S if self._hub.is_connected else INTERVAL_S)
                self._wake.clear()  # before the jobs are read, so that no event of meanwhile is missed
                ids = list(self._waits)
                for start in range(0, len(ids), BATCH):
                    await self._look_at(ids[start : start + BATCH])
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


KEPT_S = 5.0


class OpenBreakers:
    """The routes whose jobs workers defer, for views that show it beside something else. Only reads.

    The registry has an entry for each slot of each worker, so it is read at most once in a few seconds.

    Threads may share it: two of them may read at the same time, and the later answer stays."""

    def __init__(self, broker: FullBroker, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._broker = broker
        self._monotonic = monotonic
        self._known: tuple[float, tuple[str, ...]] = (float("-inf"), ())

    def routes(self) -> tuple[str, ...]:
        """Those with a breaker that is not closed, of any living worker. A round trip if the last is KEPT_S old."""
        read_s, routes = self._known
        now_s = self._monotonic()
        if now_s - read_s >= KEPT_S:
            living = (view for view in self._broker.workers() if view.is_alive)
            routes = tuple(sorted({breaker.route for view in living for breaker in view.info.breakers}))
            self._known = now_s, routes
        return routes


# Samples of the counts.

EVERY_S = 5.0
KEPT = 720  # an hour
RATES = ("produced", "completed", "failed", "dead")


class LiveSample(Struct, frozen=True):
    """The counts at one moment, and the rates since the sample before. `failed` counts attempts."""

    at: str
    waiting: int
    scheduled: int
    running: int
    dead: int
    produced_per_second: float
    completed_per_second: float
    failed_per_second: float
    dead_per_second: float


class LiveSamples:
    """The counts of the last hour, which the server takes from the broker every few seconds. Kept in memory only: a
    server that has just started has few samples. take() and read() may be called by any thread."""

    name = "samples"

    def __init__(self, broker: FullBroker) -> None:
        self._broker = broker
        self._taken: deque[Census] = deque(maxlen=KEPT)
        self._taken_s = float("-inf")
        self._lock = threading.Lock()

    def turn(self) -> float:
        """In an outage the samples have a gap."""
        self.take()
        return EVERY_S

    def take(self) -> None:
        """A sample now."""
        census = self._broker.census()
        with self._lock:
            if not self._taken or census.now_ms > self._taken[-1].now_ms:
                self._taken.append(census)
            self._taken_s = time.monotonic()

    @property
    def is_recent(self) -> bool:
        """Whether the broker has answered a moment ago."""
        return time.monotonic() - self._taken_s < 2 * EVERY_S

    def read(self) -> list[LiveSample]:
        """The samples, oldest first. A clock that stepped back, or counters that were reset, leave a gap of zeros."""
        with self._lock:
            taken = list(self._taken)
        return [_sample(before, now) for before, now in zip([taken[0], *taken], taken, strict=False)] if taken else []

    def waiting_change(self, samples: int) -> dict[str, float]:
        """How many more jobs wait in each queue than so many samples ago, per minute; below 0 if fewer wait. Empty
        without two samples. Counters of what comes in and goes out are of all queues together."""
        with self._lock:
            taken = list(self._taken)[-samples - 1 :]
        minutes = (taken[-1].now_ms - taken[0].now_ms) / 60_000 if taken else 0.0
        if minutes <= 0:
            return {}
        first, last = taken[0].pending, taken[-1].pending
        return {name: (count - first.get(name, 0)) / minutes for name, count in last.items()}


def per_second(samples: Sequence[LiveSample], name: str) -> float:
    """The mean of the rate of these samples."""
    values = [getattr(sample, f"{name}_per_second") for sample in samples]
    return round(sum(values) / len(values), 3) if values else 0.0


def _sample(before: Census, now: Census) -> LiveSample:
    seconds = (now.now_ms - before.now_ms) / 1000

    def rate(name: str) -> float:
        count = now.counters.get(name, 0) - before.counters.get(name, 0)
        return round(count / seconds, 3) if seconds > 0 and count > 0 else 0.0

    counts = sum(now.pending.values()), now.scheduled, now.running, now.dead
    return LiveSample(stamp(now.now_ms) or "", *counts, *(rate(name) for name in RATES))


# Writes one audit entry for every unsafe request, to the list on the broker and to the log.
#
# A loop writes the entries of a moment together, so no request waits for the list. What a kill -9 leaves: the list
# lacks the entries of the last moment, the log has them.

PAUSE_S = 0.2
IDLE_S = 60.0
_WAITING_MAX = 5_000


class AuditNote:
    """What the function of an endpoint says about its request, for the entry of the audit. Never a secret."""

    def __init__(self) -> None:
        self.changes: tuple[AuditChange, ...] = ()
        self.job_id = self.type = self.path = self.detail = self.action_id = ""
        self.is_dry_run = False

    def changed(self, old: Mapping[str, Any], new: Mapping[str, Any]) -> None:
        self.changes = changes_between(old, new)

    def about(self, record: Record) -> None:
        """The one job that was changed."""
        job = decode_or_none(record.raw)
        self.about_job(record.id, job.type if job is not None else None, job.filepath if job is not None else "")

    def about_job(self, id: str, type: str | None, path: str | None) -> None:
        self.job_id, self.type, self.path = short(id), short(type or ""), short(path or "")

    def chose(self, conditions: Mapping[str, Any]) -> None:
        """Which jobs or files a caller chose."""
        given = {name: value for name, value in conditions.items() if value not in (None, "", {})}
        self.detail = short(", ".join(f"{name}: {value}" for name, value in given.items()))


class AuditLog:
    """The writer. add() may be called by any thread and never waits."""

    name = "audit"

    def __init__(self, catalog: Catalog, emit: Emit, now_ms: Callable[[], int]) -> None:
        self.wake = threading.Event()
        self._catalog = catalog
        self._emit = emit
        self._now_ms = now_ms
        # Bounded, for an outage.
        self._waiting = {log: deque[AuditEntry](maxlen=_WAITING_MAX) for log in (AUDIT, AUDIT_REFUSED)}

    def entry(
        self, who: str, caller_id: str, action: str, target: str, count: int, result: int, request: str, **note: Any
    ) -> AuditEntry:
        """Of now. `note` are the fields of an AuditNote."""
        at, action, target = stamp(self._now_ms()) or "", short(action), short(target)
        return AuditEntry(at, who, caller_id, action, target, count, result, request, **note)

    def add(self, entry: AuditEntry, event: Event | None = None) -> None:
        """`event` is what the log says, if that is not the request itself."""
        self._emit(event or RequestAudited(*(getattr(entry, name) for name in RequestAudited.__struct_fields__)))
        self._waiting[entry.log].append(entry)
        self.wake.set()

    def turn(self) -> float:
        if self.wake.is_set():
            time.sleep(PAUSE_S)  # so that entries of a moment share a document
        self.wake.clear()
        self._write()
        return IDLE_S

    def at_end(self) -> None:
        with suppress(BrokerError):
            self._write()

    def _write(self) -> None:
        for log, entries in self._waiting.items():
            while entries:
                written = one_document([*entries])
                log.add(self._catalog, entry_name(self._now_ms()), written)
                for _ in written:
                    entries.popleft()
