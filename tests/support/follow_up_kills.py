"""Kills a worker with SIGKILL between the end of a handler and the settlement, at every point or at random.

`python -m tests.support.follow_up_kills SETTINGS KILLS SEED` prints what it did as JSON; with 0 kills it walks over all
points. It is a program of its own, because it forks: each worker is a process that runs one job with the real pump,
executor and broker, and is killed. Afterwards the job's follow-ups must exist if and only if the job is completed, each
once. Then the job is run again to its end.

A point is a call of a function in C by which the thread of the pump reaches the outside, from the end of the handler
on: a statement of SQLite, bytes sent to a server or received from it, a file. Between two points nothing changes that
another process could see.
"""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from types import FrameType, ModuleType
from typing import Any

from fileq.brokers import open_broker
from fileq.brokers.protocol import FullBroker
from fileq.brokers.types import Entry
from fileq.config import Config, config_from
from fileq.core.job import State, typed_job
from fileq.core.outcome import follow_up_id
from fileq.handlers.context import Context, JobView
from fileq.handlers.registry import handler
from fileq.handlers.routes import Routes
from fileq.handlers.run import run_task
from fileq.testing.conformance.harness import nested
from fileq.worker.executors.thread import ThreadExecutor
from fileq.worker.pump import Gates, Pump
from tests.support.program import REPOSITORY, environment
from tests.support.worker_setup import WorkerSetup

FOLLOW_UPS = 3  # two that the handler requests, and on_completed
OUTSIDE = ("sqlite3", "_socket", "socket", "posix", "fcntl", "select")  # modules of functions in C
LONGEST_S = 60.0


def splits(job: JobView, context: Context) -> str:
    context.enqueue("part", {"n": 1})
    context.enqueue("part", {"n": 2}, delay="1h")
    return "split"


def part(job: JobView, context: Context) -> None:
    raise RuntimeError("so that it stays unfinished")


def work(config: Config, arm: Callable[[], None]) -> None:
    """Claims one job, runs it and settles it. `arm` is called when its handler has ended."""
    broker = open_broker(config)
    routes = Routes.load(config, app_dir=".")
    executor = ThreadExecutor(1, lambda task, cancelled: run_task(routes, task, cancelled))
    pump = Pump(config, broker, executor, routes, Gates.of(config, routes, broker))
    end = Pump._end

    def end_and_arm(*arguments: Any) -> None:
        arm()
        end(*arguments)

    Pump._end = end_and_arm  # type: ignore[method-assign]
    pump.start()
    until_s = time.monotonic() + LONGEST_S
    while not pump.turn():
        assert time.monotonic() < until_s, "no job to claim"
    # The call that settles the job may claim a follow-up, which is run too, or given back at the end.
    while not pump.is_idle:
        assert time.monotonic() < until_s, "the job was not settled"
        pump.turn(may_claim=False)
    sys.setprofile(None)
    pump.finish()
    broker.close()


def kill_at(number: int) -> Callable[[], None]:
    """Kills this process at the call of this number after it was armed."""
    left = number

    def count(frame: FrameType, event: str, argument: object) -> None:
        nonlocal left
        if event == "c_call" and reaches_outside(argument):
            left -= 1
            if left == 0:
                os.kill(os.getpid(), signal.SIGKILL)

    return lambda: sys.setprofile(count)


def reaches_outside(function: object) -> bool:
    owner = getattr(function, "__self__", None)
    module = owner.__name__ if isinstance(owner, ModuleType) else type(owner).__module__
    return module in OUTSIDE


def kill_after(seconds: float) -> Callable[[], None]:
    """Kills this process so long after it was armed, wherever it is then."""

    def kill() -> None:
        time.sleep(seconds)
        os.kill(os.getpid(), signal.SIGKILL)

    return lambda: threading.Thread(target=kill, daemon=True).start()


class Kills:
    """Runs job after job in workers of which each is killed, and checks each time."""

    def __init__(self, config: Config) -> None:
        self._config = config
        self.completed: list[bool] = []  # for each kill, whether the job was completed by then

    def walk(self) -> int:
        """Kills at every point until none is left; returns their number."""
        number = 1
        while self.kill(f"walk-{number}", kill_at(number)):
            number += 1
        return number - 1

    def at_random(self, count: int, rng: random.Random) -> int:
        """Kills at random moments; returns how many workers had ended before."""
        longest_s = 0.004
        return sum(not self.kill(f"random-{n}", kill_after(rng.uniform(0, longest_s))) for n in range(count))

    def kill(self, id: str, arm: Callable[[], None]) -> bool:
        """Whether the worker was killed before it came to its end."""
        with opened(self._config) as broker:
            enqueue(broker, id)
        was_killed = self._run(arm)
        with opened(self._config) as broker:
            broker.deregister([worker.slot for worker in broker.workers()])
            self.completed.append(check(broker, id))
        if not self.completed[-1]:
            assert not self._run(lambda: None), "nothing kills this one"
            with opened(self._config) as broker:
                assert check(broker, id), f"{id} was not completed"
        return was_killed

    def _run(self, arm: Callable[[], None]) -> bool:
        pid = os.fork()
        if pid == 0:
            try:
                work(self._config, arm)
                os._exit(0)
            except BaseException as error:
                print(repr(error), file=sys.stderr)
                os._exit(1)
        _, status = os.waitpid(pid, 0)
        code = os.waitstatus_to_exitcode(status)
        assert code in (0, -signal.SIGKILL), f"a worker ended with {code}"
        return code != 0


@contextmanager
def opened(config: Config) -> Iterator[FullBroker]:
    broker = open_broker(config)
    try:
        yield broker
    finally:
        broker.close()


def enqueue(broker: FullBroker, id: str) -> None:
    broker.enqueue([Entry(typed_job("splits", None, priority="high", now=datetime.now(UTC), id=id), "high")])


def check(broker: FullBroker, id: str) -> bool:
    """Whether the job is completed. Its follow-ups exist exactly then, each once; they wait."""
    ids = [follow_up_id(id, 1), follow_up_id(id, 2), follow_up_id(id, "on_completed")]
    [record] = broker.records([id])
    assert record is not None, f"{id} is lost"
    followed = [found for found in broker.records(ids) if found is not None]
    if record.state is not State.COMPLETED:
        assert followed == [], f"{id} is {record.state}, and follow-ups exist"
        return False
    assert [found.id for found in followed] == ids, f"{id} is completed, and follow-ups are missing"
    assert record.follow_ups == tuple(ids)
    waiting = [raw for place in ("high", "low", "scheduled") for raw in broker.peek(place, 10)]
    assert len(waiting) == FOLLOW_UPS, f"{id} has {len(waiting)} follow-ups"
    assert broker.census(sweep=True).drift == 0
    broker.cancel(ids)  # so that the next worker claims the next job
    return True


def killed_everywhere(setup: WorkerSetup) -> dict[str, int]:
    """Walks over all points in a program of its own: `kills` is their number, and after `completed` of them the job was
    completed."""
    return _figures(setup, 0, 0)


def killed_at_random(setup: WorkerSetup, kills: int, seed: int) -> dict[str, int]:
    return _figures(setup, kills, seed)


def _figures(setup: WorkerSetup, *numbers: int) -> dict[str, int]:
    settings = json.dumps({"broker": setup.broker.kind, **nested(dict(setup.settings))}, default=str)
    arguments = [sys.executable, "-W", "error", "-m", __name__, settings, *map(str, numbers)]
    ended = subprocess.run(
        arguments, cwd=REPOSITORY, env=environment(), capture_output=True, text=True, timeout=300, check=False
    )
    assert ended.returncode == 0, ended.stderr
    figures: dict[str, int] = json.loads(ended.stdout)
    return figures


def main() -> None:
    handler(type="splits", on_completed="told", isolation="thread")(splits)
    handler(type="part", isolation="thread")(part)
    handler(type="told", isolation="thread")(part)
    settings, kills, seed = json.loads(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
    config = config_from({"worker": {"count": 1}, **settings})
    runs = Kills(config)
    if kills:
        ended = runs.at_random(kills, random.Random(seed))
        print(json.dumps({"kills": kills - ended, "completed": sum(runs.completed)}))
    else:
        points = runs.walk()
        print(json.dumps({"kills": points, "completed": sum(runs.completed[:-1])}))


if __name__ == "__main__":
    main()
