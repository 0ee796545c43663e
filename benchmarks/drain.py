"""How fast one worker process drains a queue of no-op jobs, compared with a bare loop on the same server.

    python benchmarks/drain.py [--jobs 20000] [--slots 16] [--rounds 1] [--server PATH]

Records, counters and events are on. The no-op is one os.write to an O_APPEND file, so that every run can be counted.
The bare loop updates the same records by hand: redis-py, one script call per job, one job after the other. It runs
right before and right after each drain, and the ratio is to the mean of the two, because other load on the machine
changes over time.
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

from fileq.brokers import open_broker
from fileq.brokers.protocol import FullBroker
from fileq.brokers.types import Entry
from fileq.config import Config, config_from
from fileq.core.events import ignore
from fileq.core.job import decode, encode, typed_job
from fileq.handlers.routes import Routes
from fileq.runtime.handlers_program import handlers_program
from fileq.runtime.worker_service import WorkerService
from fileq.worker.breakers import breakers_of
from fileq.worker.deferrals import Deferrals
from fileq.worker.executors.by_isolation import ExecutorsByIsolation
from fileq.worker.pump import Pump
from fileq.worker.roots import RootsWatch
from tests.support.servers import Server, available_servers

HANDLER = """
import os
_fd = os.open(os.environ["DRAIN_LOG"], os.O_WRONLY | os.O_APPEND | os.O_CREAT)
def noop(job, context):
    os.write(_fd, b".")
"""
# The same records, written by hand: settles the last job and claims the next in one call.
BARE = """
local settled, id = ARGV[1], ARGV[2]
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local hour = KEYS[5] .. ':' .. math.floor(now / 3600000)
if settled ~= '' then
  local record = KEYS[6] .. id
  local started = redis.call('HGET', record, 'started')
  redis.call('HSET', record, 'state', 'completed', 'ended', now, 'attempts', 1,
    'attempt:1', '{"started_ms":' .. started .. ',"ended_ms":' .. now .. ',"worker":"bare","outcome":"completed"}')
  redis.call('PEXPIRE', record, 86400000)
  redis.call('LPUSH', KEYS[3], settled)
  redis.call('LTRIM', KEYS[3], 0, 9999)
  redis.call('LREM', KEYS[2], 1, settled)
  redis.call('HINCRBY', KEYS[5], 'completed', 1)
  redis.call('HINCRBY', hour, 'completed', 1)
  redis.call('PUBLISH', KEYS[7], '{"event":"job:completed","job_id":"' .. id .. '","worker_id":"bare"}')
end
local raw = redis.call('RPOPLPUSH', KEYS[1], KEYS[2])
if not raw then return nil end
local claimed = string.match(raw, '^{"id":"([^"]+)"')
redis.call('SET', KEYS[4], raw, 'PX', 30000)
redis.call('HSET', KEYS[6] .. claimed, 'state', 'running', 'json', raw, 'worker', 'bare', 'started', now)
redis.call('HINCRBY', KEYS[5], 'consumed', 1)
redis.call('HINCRBY', hour, 'consumed', 1)
redis.call('PUBLISH', KEYS[7], '{"event":"job:started","job_id":"' .. claimed .. '","worker_id":"bare"}')
return raw
"""
# The least that a queue can do: no record, no counter, no event.
BAREST = """
local raw = redis.call('RPOPLPUSH', KEYS[1], KEYS[2])
if not raw then return nil end
redis.call('LPUSH', KEYS[3], raw)
redis.call('LREM', KEYS[2], 1, raw)
return raw
"""
BARE_KEYS = [f"bare:{name}" for name in ("queue", "processing", "completed", "heartbeat", "stats", "job:", "events")]


def fill(broker: FullBroker, jobs: int) -> None:
    now = datetime.now(UTC)
    for start in range(0, jobs, 1000):
        batch = [typed_job("noop", None, priority="low", now=now) for _ in range(start, min(jobs, start + 1000))]
        broker.enqueue([Entry(job, "low") for job in batch])


class CountingBroker:
    """A broker that counts its calls of settle_and_claim, for the average size of a batch."""

    def __init__(self, broker: FullBroker) -> None:
        self._broker = broker
        self.calls = 0

    def __getattr__(self, name: str) -> object:
        return getattr(self._broker, name)

    def send_settle_and_claim(self, settlements: object, slots: object) -> object:
        self.calls += 1
        return self._broker.send_settle_and_claim(settlements, slots)  # type: ignore[arg-type]


@contextmanager
def app(log: Path) -> Iterator[str]:
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "drain_handlers.py").write_text(HANDLER)
        os.environ["DRAIN_LOG"] = str(log)
        yield folder


def drain(config: Config, app_dir: str, jobs: int, log: Path) -> tuple[float, float]:
    """Jobs per second, and jobs per call."""
    broker = open_broker(config)
    counting = CountingBroker(broker)
    fill(broker, jobs)
    before = log.stat().st_size if log.exists() else 0
    routes = Routes.load(config, app_dir=app_dir)
    executor = ExecutorsByIsolation(config.worker, routes, handlers_program(config, app_dir=app_dir))
    breakers, deferrals, roots = breakers_of(routes), Deferrals(), RootsWatch(config.paths.roots)
    parts = (config.paths, breakers, deferrals, roots)
    pump = Pump(config, counting, executor, routes, *parts)  # type: ignore[arg-type]
    service = WorkerService(
        pump,
        executor,
        broker,
        breakers,
        roots_problem=lambda: "",
        emit=ignore,
        idle_s=1.0,
        longest_pause_s=1.0,
        stuck_s=60.0,
    )
    started_s = time.monotonic()
    service.start()
    while not log.exists() or log.stat().st_size - before < jobs:
        time.sleep(0.01)
    while broker.census().counters.get("completed", 0) < jobs:
        time.sleep(0.002)
    seconds = time.monotonic() - started_s
    service.stop(10.0)
    broker.close()
    assert log.stat().st_size - before == jobs, "a job ran twice, or not at all"
    return jobs / seconds, jobs / max(1, counting.calls)


def bare_loop(server: Server, jobs: int, log: Path, script_text: str = BARE) -> float:
    """Jobs per second with one script call per job, on one connection."""
    client = redis.Redis(port=server.port)
    client.delete(*BARE_KEYS)
    now = datetime.now(UTC)
    for start in range(0, jobs, 1000):
        batch = (typed_job("noop", None, priority="low", now=now) for _ in range(start, min(jobs, start + 1000)))
        client.lpush("bare:queue", *(encode(job) for job in batch))
    script = client.register_script(script_text)
    fd = os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    started_s = time.monotonic()
    raw, id = b"", ""
    while (raw := script(keys=BARE_KEYS, args=[raw, id])) is not None:
        id = decode(raw).id
        os.write(fd, b".")
    seconds = time.monotonic() - started_s
    os.close(fd)
    for key in client.scan_iter("bare:*", count=1000):
        client.delete(key)
    client.close()
    return jobs / seconds


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--jobs", type=int, default=20_000)
    parser.add_argument("--slots", type=int, default=16)
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--server", default=available_servers()["redis"] or available_servers()["valkey"])
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder, Server(options.server) as server:
        log = Path(folder) / "ran"
        with app(log) as app_dir:
            bare = bare_loop(server, options.jobs // 4, log)
            for number in range(options.rounds):
                for broker in ("redis", "sqlite"):
                    for isolation in ("thread", "process"):
                        settings = {
                            "broker": broker,
                            "redis": {"addr": server.address, "prefix": f"drain-{number}-{isolation}"},
                            "sqlite": {"path": f"{folder}/{number}-{isolation}.db"},
                            "worker": {"count": options.slots, "isolation": isolation},
                            "handlers": [{"type": "noop", "use": "drain_handlers:noop"}],
                        }
                        rate, batch = drain(config_from(settings), app_dir, options.jobs, log)
                        before, bare = bare, bare_loop(server, options.jobs // 4, log)
                        ratio = 2 * rate / (before + bare)
                        print(
                            f"{broker:<7} {isolation:<8}{rate:>9,.0f}/s {batch:>6.1f} jobs a call  {ratio:>5.2f} x "
                            f"the bare loop ({before:,.0f}/s before, {bare:,.0f}/s after)",
                            flush=True,
                        )
            print(f"a loop without records {bare_loop(server, options.jobs // 4, log, BAREST):,.0f}/s")


if __name__ == "__main__":
    main()
