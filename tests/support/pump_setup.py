"""A pump with an executor that the test controls, on a memory broker that can fail, with clocks moved by hand."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from typing import Any

from fileq.brokers.memory import MemoryBroker
from fileq.brokers.types import Entry, Renewal, TurnReply
from fileq.config import Config, config_from
from fileq.core.errors import BrokerUnavailable
from fileq.core.events import Event
from fileq.core.job import ClaimKey, State, Version, decode, file_job, typed_job
from fileq.core.outcome import Released, Task
from fileq.core.settlement import Settlement, release
from fileq.core.webhook import DELIVERIES_MAX, Webhook
from fileq.files.paths import MISSING
from fileq.handlers.routes import Routes
from fileq.webhooks.store import KnownWebhook, ReceiverState
from fileq.webhooks.subscriptions import Subscriptions
from fileq.worker.pump import Gates, Pump
from tests.support.clocks import ManualClocks, RecordedEvents

NOW = datetime(2026, 11, 16, tzinfo=UTC)
TTL_S = 30.0


class FakeExecutor:
    """An executor in which a task runs until the test ends it."""

    def __init__(self, count: int) -> None:
        self._count = count
        self.submitted: list[Task] = []
        self.running: dict[ClaimKey, Task] = {}
        self.ended: list[tuple[Task, Any]] = []
        self.cancelled: list[ClaimKey] = []
        self.abandoned: list[ClaimKey] = []
        self.bundles = 0  # of tiny tasks, each in a child of its own
        self.waits: list[bool] = []  # of each collect()

    def fileno(self) -> int:
        raise AssertionError("the pump does not wait")

    def submit(self, tasks: Sequence[Task]) -> None:
        assert not any(task.key in self.running for task in tasks)
        self.submitted += tasks
        self.running |= {task.key: task for task in tasks}
        assert len(self.running) <= self._count, "more tasks than the executor can run"

    def collect(self, *, waits: bool = True, for_all: bool = True) -> list[tuple[Task, Any]]:
        self.waits.append(waits)
        if waits:
            self.bundles = 0 if for_all else max(0, self.bundles - 1)
        ended, self.ended = self.ended, []
        return ended

    def next_deadline_s(self) -> float | None:
        return 0.0 if self.bundles else None

    def cancel(self, key: ClaimKey) -> None:
        self.cancelled.append(key)

    def abandon(self, key: ClaimKey) -> None:
        self.abandoned.append(key)
        del self.running[key]

    def quit(self, grace_s: float) -> None:
        for key in list(self.running):
            self.ended.append((self.running.pop(key), Released()))

    def close(self) -> None: ...

    def end(self, ran: Any, *ids: str) -> None:
        """Ends every running task, or those of these jobs, with this outcome."""
        for key in [key for key, task in self.running.items() if not ids or job_id(task) in ids]:
            self.ended.append((self.running.pop(key), ran))


class UnreliableBroker(MemoryBroker):
    """Can be unreachable, and can lose replies of calls that it has carried out. Keeps the holdings of each renewal."""

    loses_replies = 0
    is_away = False
    calls = 0

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.renewed: list[list[tuple[str, bytes]]] = []

    def settle_and_claim(self, settlements: Sequence[Settlement], slots: Sequence[str]) -> TurnReply:
        if self.is_away:
            raise BrokerUnavailable("away")
        self.calls += 1
        reply = super().settle_and_claim(settlements, slots)
        if self.loses_replies:
            self.loses_replies -= 1
            raise BrokerUnavailable("the reply was lost")
        return reply

    def renew(self, holdings: Sequence[tuple[str, bytes]]) -> list[Renewal]:
        self.renewed.append(list(holdings))
        return super().renew(holdings)


def _config(
    count: int, root: str, after: str, handlers: list[dict[str, Any]] | None, breaker: dict[str, Any]
) -> Config:
    worker = {
        "count": count,
        "heartbeat_ttl": f"{TTL_S}s",
        "backoff": {"jitter": 0},
        "after": {"completed": after},
    }
    return config_from(
        {
            "broker": "memory",
            "worker": worker,
            "producer": {"scan_dir": root},
            "handlers": handlers or [{"match": "**/*", "use": "fileq.handlers:checksum"}],
            "circuit_breaker": breaker,
        }
    )


class PumpSetup:
    """One started pump and everything it works with."""

    broker_class: type[UnreliableBroker] = UnreliableBroker

    def __init__(
        self,
        *,
        count: int = 2,
        root: str = "/data",
        after: str = "keep",
        handlers: list[dict[str, Any]] | None = None,
        webhooks: Sequence[Webhook] = (),
        **breaker: Any,
    ) -> None:
        self.root = root.encode()
        self.clocks = ManualClocks()
        self.events = RecordedEvents()
        self.config = _config(count, root, after, handlers, breaker)
        self.broker = self.broker_class(self.config, clock=lambda: self.clocks.wall_ns() // 1_000_000)
        self.executor = FakeExecutor(count + (DELIVERIES_MAX if webhooks else 0))
        self.routes = routes = Routes.load(self.config, app_dir="")
        self.subscriptions = Subscriptions(self.config.paths, "low")
        self.subscriptions.set(KnownWebhook(webhook, ReceiverState()) for webhook in webhooks)
        routes.enable_deliveries(self.subscriptions)
        self.missing: set[bytes] = set()
        self.on_dead: Callable[[str], None] = lambda id: None
        self.batches: list[tuple[list[str], int]] = []  # the events of each emit_all, and the tasks submitted before
        gates = Gates.of(
            self.config,
            routes,
            self.broker,
            emit=self.events,
            monotonic=self.clocks.monotonic,
            look=lambda root: MISSING if root in self.missing else "",
        )
        self.breakers, _, self.roots, self.deferrals = gates
        self.pump = Pump(
            self.config,
            self.broker,
            self.executor,
            routes,
            gates,
            emit=self.events,
            emit_all=self._emit_all,
            on_dead=lambda id: self.on_dead(id),
            monotonic=self.clocks.monotonic,
        )
        self.pump.start()

    def _emit_all(self, events: Sequence[Event]) -> None:
        self.batches.append(([event.name for event in events], len(self.executor.submitted)))
        for event in events:
            self.events(event)

    def enqueue(self, *ids: str, signature: str | None = None) -> None:
        for id in ids:
            path = self.root + b"/" + id.encode()
            job = file_job(path, size=1, priority="low", now=NOW, signature=signature, id=id)
            version = Version(path, signature) if signature else None
            self.broker.enqueue([Entry(job, "low", version=version)])

    def enqueue_version(self, name: str, signature: str, id: str) -> None:
        """Enqueues a job for this version of a file."""
        path = self.root + b"/" + name.encode()
        job = file_job(path, size=1, priority="low", now=NOW, signature=signature, id=id)
        self.broker.enqueue([Entry(job, "low", version=Version(path, signature))])

    def raw(self, id: str) -> bytes:
        [record] = self.broker.records([id])
        assert record is not None
        return record.raw

    def enqueue_typed(self, type: str, id: str) -> None:
        self.broker.enqueue([Entry(typed_job(type, None, priority="low", now=NOW, id=id), "low")])

    def check_roots(self) -> None:
        """Checks the roots and compares, as the threads and the loop of a worker do."""
        self.roots.check()
        self.roots.turn()

    def state(self, id: str) -> State:
        record = self.broker.records([id])[0]
        assert record is not None
        return record.state

    def submitted(self) -> list[str]:
        return [job_id(task) for task in self.executor.submitted]

    def slot_ids(self) -> set[str]:
        """As the broker knows them."""
        return {view.slot for view in self.broker.workers()}

    def advance_to_renewal(self) -> None:
        self.clocks.advance(TTL_S / 3)

    def reap_all(self) -> None:
        """Lets all heartbeats run out, and gives the jobs back as a reaper does."""
        self.clocks.advance(2 * TTL_S)
        for suspect in self.broker.suspects():
            self.broker.reap(suspect.slot, [release(claim) for claim in suspect.claims])


def job_id(task: Task) -> str:
    return task.path.rpartition(b"/")[2].decode() or decode(task.raw).id
