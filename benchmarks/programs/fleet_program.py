"""Many workers in one process: all that a worker asks of the broker, without children and threads that run jobs.

`fleet_program.py WORKERS`, with the configuration in BENCH_CONFIG. Each worker has a broker of its own, the real thread
that claims and waits, and the loops of a worker. Those of all workers take turns in one thread. Each worker appears to
run on a machine of its own, so only its lease shows that it is gone.

A job of type `hold` is claimed and never ends; any other ends when it is claimed. For each line on stdin it prints how
often its workers were woken so far.
"""

from __future__ import annotations

import heapq
import json
import os
import sys
import threading
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

import msgspec
import workload

from fileq.brokers import open_broker
from fileq.brokers.local_processes import ProcessId
from fileq.brokers.protocol import RemovableData, Waiter
from fileq.config import config_from
from fileq.core.errors import BrokerError
from fileq.core.events import ignore
from fileq.core.job import ClaimKey, decode
from fileq.core.outcome import Done, Task, TaskOutcome
from fileq.handlers.routes import Routes
from fileq.runtime.roles import CHECK_EVERY_S
from fileq.runtime.worker_build import Deliveries
from fileq.runtime.worker_service import WorkerService
from fileq.worker import heartbeats, lease, reaper
from fileq.worker.batch_reconciler import BatchReconciler
from fileq.worker.pump import Gates, Pump
from fileq.worker.reaper import Reaper
from fileq.worker.scheduler import Scheduler


class InstantExecutor:
    """Runs a job when it is submitted."""

    def __init__(self) -> None:
        self._fd = os.eventfd(0, os.EFD_NONBLOCK)
        self._ended: list[tuple[Task, TaskOutcome]] = []

    def fileno(self) -> int:
        return self._fd

    def submit(self, tasks: Sequence[Task]) -> None:
        for task in tasks:
            job = decode(task.raw)
            if job.type != "hold":
                workload.run(str(job.type), msgspec.json.decode(job.payload or b"null"))
                self._ended.append((task, Done()))

    def collect(self, *, waits: bool = True, for_all: bool = True) -> list[tuple[Task, TaskOutcome]]:
        ended, self._ended = self._ended, []
        return ended

    def next_deadline_s(self) -> float | None:
        return 0.0 if self._ended else None

    def cancel(self, key: ClaimKey) -> None: ...
    def abandon(self, key: ClaimKey) -> None: ...
    def quit(self, grace_s: float) -> None: ...
    def close(self) -> None: ...


class Wakes:
    """Counts those of all waiters of this process."""

    def __init__(self) -> None:
        self.count = 0

    def counted(self, make: Callable[[], Waiter]) -> Callable[[], Waiter]:
        def waiter() -> Waiter:
            made = make()
            take = made.take

            def counting() -> bool:
                is_woken = take()
                self.count += is_woken
                return is_woken

            made.take = counting  # type: ignore[method-assign]
            return made

        return waiter


def machine() -> ProcessId:
    """That of the worker whose thread calls."""
    name = threading.current_thread().name
    return ProcessId(f"machine-{os.getpid()}-{name}", "net", os.getpid(), 1)


def holder() -> str:
    own = machine()
    return f"0 {own.boot_id} {own.namespaces} {own.pid} {own.pid_start}"


def check_present(broker: RemovableData) -> float:
    """A turn of runtime/roles.py:BrokerWatch."""
    broker.check_present()
    return CHECK_EVERY_S


def turn_all(loops: list[tuple[float, int, str, Callable[[], float]]]) -> None:
    """Each loop says after how many seconds its next turn is due."""
    number = len(loops)
    heapq.heapify(loops)
    while True:
        due_s, _, name, turn = loops[0]
        time.sleep(max(0.0, due_s - time.monotonic()))
        threading.current_thread().name = name
        try:
            pause_s = turn()
        except BrokerError:
            pause_s = 1.0
        number += 1
        heapq.heapreplace(loops, (time.monotonic() + pause_s, number, name, turn))


def main(count: int) -> None:
    reaper.this_process = heartbeats.this_process = machine  # type: ignore[assignment]
    reaper.this_holder = lease.this_holder = holder  # type: ignore[assignment]
    config = config_from(json.loads(Path(os.environ["BENCH_CONFIG"]).read_text()))
    routes = Routes.load(config, app_dir=str(Path(__file__).parent))
    wakes, loops = Wakes(), []
    for number in range(count):
        threading.current_thread().name = name = f"worker-{number}"
        broker = open_broker(config, role="worker")
        broker.waiter = wakes.counted(broker.waiter)  # type: ignore[method-assign]
        executor, gates = InstantExecutor(), Gates.of(config, routes, broker, are_roots_expected=False, emit=ignore)
        pump = Pump(config, broker, executor, routes, gates)
        service = type("Worker", (WorkerService,), {"name": name})(
            config, pump, executor, broker, gates, on_failure=lambda error: os._exit(1), emit=ignore
        )
        turning = [
            Scheduler(broker, is_busy=lambda pump=pump: pump.running_count > 0),
            Reaper(config, broker),
            Deliveries(config, broker, ignore).watch,
            BatchReconciler(config, broker),
        ]
        service.start()
        turns = [one.turn for one in turning]
        turns.append(partial(check_present, broker))
        start_s = time.monotonic()
        loops += [(start_s, len(loops) + i, name, turn) for i, turn in enumerate(turns)]
    print("started", flush=True)
    threading.Thread(target=turn_all, args=(loops,), daemon=True).start()
    for _ in sys.stdin:
        print(wakes.count, flush=True)


if __name__ == "__main__":
    main(int(sys.argv[1]))
