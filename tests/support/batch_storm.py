"""Batches are filled and run while workers are killed and the server is restarted: every batch finishes, and every
callback exists once.

Odd batches allow failures, and one job in 50 of them fails: their `catch` is due instead of their `then`. The jobs of
each tenth batch add jobs of their own.
"""

from __future__ import annotations

import random
import time
from collections import Counter
from collections.abc import Callable
from datetime import UTC, datetime
from typing import TypeVar

from msgspec import Struct

from fileq.brokers.types import Entry
from fileq.client.batch_handle import batch_request
from fileq.client.broker_transport import new_batch
from fileq.core.batch import Batch, BatchState
from fileq.core.errors import BrokerUnavailable
from fileq.core.job import State, decode, typed_job
from tests.support.program import Program, run
from tests.support.servers import Server
from tests.support.worker_setup import WorkerSetup

HANDLERS = """
import fileq

@fileq.handler(type="member", isolation="thread")
def member(job, context):
    if job.id.endswith("-grows"):
        context.batch.add("member")

@fileq.handler(type="fails", isolation="thread", max_retries=0)
def fails(job, context):
    raise fileq.Permanent("as it should")

@fileq.handler(type="note", isolation="thread")
def note(job, context):
    pass
"""
LONGEST_S = 300.0
PAGE = 100
FAULT_EVERY_S = 4.0  # a worker needs time to start, or none would ever run a job
T = TypeVar("T")


class StormFigures(Struct, frozen=True):
    jobs: int
    dead: int
    callbacks: int
    kills: int
    restarts: int


class BatchStorm:
    def __init__(self, setup: WorkerSetup, seed: int, workers: int, server: Server | None) -> None:
        self._setup = setup
        self._rng = random.Random(seed)
        self._server = server
        self.kills = self.restarts = 0
        (setup.directory / "storm.py").write_text(HANDLERS)
        self._workers = [self._worker() for _ in range(workers)]

    def _worker(self) -> Program:
        settings = {"imports": "[storm]", "completed_max": 1_000_000, "max_recoveries": 1000, "count": 4}
        return self._setup.worker(wait=False, **settings)

    def until_done(self, call: Callable[[], T]) -> T:
        """Repeats the call while the server is away."""
        until_s = time.monotonic() + 60
        while True:
            try:
                return call()
            except BrokerUnavailable:
                assert time.monotonic() < until_s
                time.sleep(0.1)

    def fault(self) -> None:
        """Kills a worker and starts another, or restarts the server."""
        if self._server is not None and self._rng.random() < 0.2:
            self._server.kill()
            self._server.start()
            self.restarts += 1
            return
        number = self._rng.randrange(len(self._workers))
        self._workers[number].kill()
        self._workers[number] = self._worker()
        self.kills += 1

    def fill(self, number: int, jobs: int) -> str:
        broker, config = self._setup.broker, self._setup.config
        is_failing = number % 2 == 1
        request = batch_request(f"storm{number}", allow_failures=is_failing, then="note", catch="note", finally_="note")
        new = new_batch(config, request, datetime.now(UTC))
        self.until_done(lambda: broker.create_batch(new))
        for start in range(0, jobs, PAGE):
            entries = [self._entry(request.id, number, n) for n in range(start, min(jobs, start + PAGE))]
            self.until_done(lambda entries=entries: broker.enqueue(entries))  # type: ignore[misc]
        self.until_done(lambda: broker.seal_batch(request.id))
        return request.id

    def _entry(self, batch: str, number: int, n: int) -> Entry:
        type = "fails" if number % 2 and n % 50 == 0 else "member"
        id = f"{batch}-{n}{'-grows' if number % 10 == 0 and n % 5 == 0 and type == 'member' else ''}"
        job = typed_job(type, None, priority="low", now=datetime.now(UTC), id=id).but(batch_id=batch)
        return Entry(job, "low", always=True, joins=True)

    def views(self, ids: list[str]) -> list[Batch | None]:
        return self.until_done(lambda: self._setup.broker.batches_by_id(ids))

    def run_to_the_end(self, ids: list[str]) -> None:
        """Faults go on until half of the batches are finished; then everything must end by itself."""
        until_s = time.monotonic() + LONGEST_S
        next_fault_s = time.monotonic() + FAULT_EVERY_S
        while (left := [v for v in self.views(ids) if v is None or v.state is not BatchState.FINISHED]) != []:
            assert time.monotonic() < until_s, left
            if 2 * len(left) > len(ids) and time.monotonic() >= next_fault_s:
                self.fault()
                next_fault_s = time.monotonic() + FAULT_EVERY_S
            time.sleep(0.3)

    def judge(self, ids: list[str], jobs: int) -> StormFigures:
        broker = self._setup.broker
        views = [view for view in self.views(ids) if view is not None]
        expected: Counter[str] = Counter()
        for number, view in enumerate(views):
            failing = len(range(0, jobs, 50)) if number % 2 else 0
            growing = sum("grows" in self._entry("x", number, n).job.id for n in range(jobs))
            assert (view.total, view.dead, view.completed) == (jobs + growing, failing, jobs + growing - failing), view
            kinds = ("catch", "finally") if failing else ("then", "finally")
            expected.update(f"{view.id}.{kind}" for kind in kinds)
        self._setup.wait_for(State.COMPLETED, list(expected))
        ended = Counter(decode(raw).id for page in broker.pages("completed") for raw in page)
        assert {id: n for id, n in ended.items() if id.partition(".")[2]} == expected
        for worker in self._workers:
            worker.stop()
        assert self._setup.census().drift == 0
        settings = {**self._setup.settings, "producer.scan_dir": self._setup.inbox}
        checked = run("fsck", cwd=self._setup.directory, settings=settings)
        assert checked.returncode == 0, checked.stdout + checked.stderr
        total = sum(view.total for view in views)
        dead = sum(view.dead for view in views)
        return StormFigures(total, dead, expected.total(), self.kills, self.restarts)


def storm(
    setup: WorkerSetup, *, batches: int, jobs: int, workers: int, seed: int, server: Server | None = None
) -> StormFigures:
    run = BatchStorm(setup, seed, workers, server)
    ids = []
    for number in range(batches):
        ids.append(run.fill(number, jobs))
        run.fault()
    run.run_to_the_end(ids)
    return run.judge(ids, jobs)
