"""How fast one worker process drains a queue of no-op jobs, beside a bare loop on the same server in the same run.

    python benchmarks/drain.py [--jobs 20000] [--slots 16] [--server PATH]

Records, counters and events are on. The no-op is one os.write to an O_APPEND file, so that every run can be counted.
The bare loop does what most queues do: redis-py, one script call a job. These machines are noisy: read the ratios.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

import redis

from fileq.breaker import Breaker
from fileq.brokers import open_broker
from fileq.brokers.base import FullBroker
from fileq.brokers.types import Entry
from fileq.config import Config, config_from
from fileq.handlers.routes import Routes
from fileq.job import typed_job
from fileq.worker.executors.mixed import MixedExecutor
from fileq.worker.paths import Paths
from fileq.worker.pump import Pump
from fileq.worker.service import WorkerService
from tests.servers import Server, available_servers

HANDLER = """
import os
_fd = os.open(os.environ["DRAIN_LOG"], os.O_WRONLY | os.O_APPEND | os.O_CREAT)
def noop(job, context):
    os.write(_fd, b".")
"""
BARE = """
local raw = redis.call('RPOPLPUSH', KEYS[1], KEYS[2])
if not raw then return nil end
redis.call('HSET', KEYS[4], 'state', 'completed')
redis.call('LPUSH', KEYS[3], raw)
redis.call('LREM', KEYS[2], 1, raw)
return raw
"""


def fill(broker: FullBroker, jobs: int) -> None:
    now = datetime.now(UTC)
    for start in range(0, jobs, 1000):
        batch = [typed_job("noop", None, priority="low", now=now) for _ in range(start, min(jobs, start + 1000))]
        broker.enqueue([Entry(job, "low") for job in batch])


class Counting:
    """A broker whose turns are counted, to know the average batch."""

    def __init__(self, broker: FullBroker) -> None:
        self._broker = broker
        self.turns = 0

    def __getattr__(self, name: str) -> object:
        return getattr(self._broker, name)

    def turn(self, settlements: object, slots: object) -> object:
        self.turns += 1
        return self._broker.turn(settlements, slots)  # type: ignore[arg-type]


@contextmanager
def app(log: Path) -> Iterator[str]:
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "drain_handlers.py").write_text(HANDLER)
        os.environ["DRAIN_LOG"] = str(log)
        yield folder


def drain(config: Config, app_dir: str, jobs: int, log: Path) -> tuple[float, float]:
    """Jobs a second, and jobs a turn."""
    broker = open_broker(config)
    counting = Counting(broker)
    fill(broker, jobs)
    before = log.stat().st_size if log.exists() else 0
    routes = Routes.load(config, handlers_are_set=True, app_dir=app_dir)
    executor = MixedExecutor(config, routes, handlers_are_set=True, app_dir=app_dir)
    breaker = Breaker(config.circuit_breaker)
    pump = Pump(config, counting, executor, routes, Paths(config), breaker)  # type: ignore[arg-type]
    service = WorkerService(
        pump,
        executor,
        broker,
        breaker,
        roots_problem=lambda: "",
        emit=lambda event, **fields: None,
        idle_s=1.0,
        longest_pause_s=1.0,
        stuck_s=60.0,
    )
    started_s = time.monotonic()
    service.start()
    while broker.census().counters.get("completed", 0) < jobs:
        time.sleep(0.02)
    seconds = time.monotonic() - started_s
    service.stop(10.0)
    broker.close()
    assert log.stat().st_size - before == jobs, "a job ran twice, or not at all"
    return jobs / seconds, jobs / max(1, counting.turns)


def bare_loop(server: Server, jobs: int) -> float:
    """One script call a job, on one connection."""
    client = redis.Redis(port=server.port)
    raw = b'{"id":"%032d","filepath":"/data/a","filesize":1,"priority":"low","retries":0}'
    client.delete("bare", "bare:processing", "bare:completed")
    for start in range(0, jobs, 1000):
        client.lpush("bare", *(raw % i for i in range(start, min(jobs, start + 1000))))
    script = client.register_script(BARE)
    started_s = time.monotonic()
    done = 0
    while script(keys=["bare", "bare:processing", "bare:completed", f"bare:job:{done}"]) is not None:
        done += 1
    seconds = time.monotonic() - started_s
    client.close()
    return done / seconds


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--jobs", type=int, default=20_000)
    parser.add_argument("--slots", type=int, default=16)
    parser.add_argument("--server", default=available_servers()["redis"] or available_servers()["valkey"])
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder, Server(options.server) as server:
        log = Path(folder) / "ran"
        base = bare_loop(server, options.jobs)
        print(f"{'bare loop, one call a job':<32}{base:>9,.0f}/s")
        with app(log) as app_dir:
            for broker in ("redis", "sqlite"):
                for isolation in ("thread", "process"):
                    settings = {
                        "broker": broker,
                        "redis": {"addr": server.address, "prefix": f"drain-{isolation}"},
                        "sqlite": {"path": f"{folder}/{isolation}.db"},
                        "worker": {"count": options.slots, "isolation": isolation},
                        "handlers": [{"type": "noop", "use": "drain_handlers:noop"}],
                    }
                    rate, batch = drain(config_from(settings), app_dir, options.jobs, log)
                    name = f"fileq on {broker}, {isolation}"
                    print(f"{name:<32}{rate:>9,.0f}/s  {rate / base:>5.2f} x  {batch:>5.1f} jobs a turn")
        print(f"{'bare loop again':<32}{bare_loop(server, options.jobs):>9,.0f}/s")


if __name__ == "__main__":
    main()
