"""Measures what many clients of live events cost the workers: python -m benchmarks.live_streams [--turns 3]

A worker with tiny jobs, a Redis server, `fileq serve` and the streams share this machine. In each turn there is a round
without a stream, one with a single stream and one with 200. Jobs arrive at a fixed rate. The figure of a round is the
CPU time that a job takes from the worker and from Redis: where they have their own cores, it alone decides their
throughput. Redis publishes events only if there is a subscriber, so the step from 0 to 1
is the price of the events, and the step from 1 to 200 that of the clients. The CPU time and memory of `fileq serve` are
given beside it.
"""

from __future__ import annotations

import argparse
import itertools
import json
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from benchmarks.proc import tree_pss_mb, tree_times
from fileq.brokers import open_broker
from fileq.brokers.protocol import FullBroker
from fileq.brokers.types import Entry
from fileq.config import config_from
from fileq.core.job import typed_job
from tests.support.program import Program
from tests.support.servers import Server, available_servers
from tests.support.waiting import wait_until

KEY = "an-admin-key-from-outside"
HANDLERS = '[{"type":"noop","use":"benchmarks.executors:noop"}]'
READERS = Path(__file__).parent / "programs" / "sse_readers.py"
CHANNEL = "jobqueue:events"
FEED_S = 0.05
SAMPLE_S = 2.0
BACKLOG = 5_000


@dataclass(frozen=True)
class Setup:
    redis: Server
    broker: FullBroker
    worker: int
    server: int
    port: int


@dataclass(frozen=True)
class Round:
    """Of one round: rates a second, and CPU time in µs a job."""

    jobs: float
    events: float
    worker_us: float
    redis_us: float
    server_percent: float
    memory_mb: tuple[float, float]
    streams: str = ""

    @property
    def cpu_us(self) -> float:
        return self.worker_us + self.redis_us


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--streams", type=int, default=200)
    parser.add_argument("--events", type=int, default=5000, help="a second; 0 = as many as the worker can cause")
    parser.add_argument("--seconds", type=float, default=20.0, help="of each round")
    options = parser.parse_args()
    binary = available_servers()["redis"] or available_servers()["valkey"]
    counts = (0, 1, options.streams)
    turns: list[dict[int, Round]] = []
    with (
        tempfile.TemporaryDirectory() as folder,
        Server(binary) as redis,
        _running(redis, Path(folder)) as setup,
        _fed(setup, options.events),
    ):
        for number in range(options.turns):
            # The order changes from turn to turn, because a virtual machine becomes slower or faster with time.
            order = counts if number % 2 == 0 else counts[::-1]
            turns.append({count: _round(setup, count, options.seconds) for count in order})
    for fewer in counts[:-1]:
        ratios = [turn[options.streams].cpu_us / turn[fewer].cpu_us for turn in turns]
        print(
            f"CPU a job, {options.streams} streams ÷ {fewer}: {', '.join(f'{ratio:.3f}' for ratio in ratios)}; "
            f"median {statistics.median(ratios):.3f}"
        )


@contextmanager
def _running(redis: Server, folder: Path) -> Iterator[Setup]:
    base = {"broker": "redis", "redis.addr": redis.address, "observability.log_level": "warn"}
    serve = {
        **base,
        "server.port": 0,
        "server.api_key": KEY,
        "server.rate_limit": "1000/s",
        "observability.log_level": "info",
    }
    work = {**base, "worker.count": 16, "worker.isolation": "thread", "handlers": HANDLERS}
    broker = open_broker(config_from({"broker": "redis", "redis": {"addr": redis.address}}))
    with (
        Program("serve", cwd=folder, settings=serve) as server,
        Program("worker", cwd=folder, settings=work, wait=False) as worker,
    ):
        wait_until(broker.workers, 30.0)
        port = int(server.wait_for("server.opened")["url"].rpartition(":")[2])
        yield Setup(redis, broker, worker.process.pid, server.process.pid, port)
    broker.close()


@contextmanager
def _fed(setup: Setup, events: int) -> Iterator[None]:
    """Enqueues jobs at the rate at which they cause so many events, or so that BACKLOG jobs wait. CPU time of this
    process is not measured."""
    jobs_s, stopping = events / _events_a_job(setup), threading.Event()

    def feed() -> None:
        start_s, count = time.monotonic(), 0
        while not stopping.wait(FEED_S):
            if events:
                missing = int((time.monotonic() - start_s) * jobs_s) - count
            else:
                missing = max(0, BACKLOG - sum(setup.broker.census().pending.values()))
            now = datetime.now(UTC)
            setup.broker.enqueue(
                [Entry(typed_job("noop", None, priority="low", now=now), "low") for _ in range(missing)]
            )
            count += missing

    thread = threading.Thread(target=feed)
    thread.start()
    try:
        yield
    finally:
        stopping.set()
        thread.join()


def _events_a_job(setup: Setup) -> float:
    """How many events a completed job publishes."""
    with setup.redis.client().pubsub() as heard:
        heard.subscribe(CHANNEL)
        job = typed_job("noop", None, priority="low", now=datetime.now(UTC))
        setup.broker.enqueue([Entry(job, "low")])
        count = 0
        while message := heard.get_message(timeout=3.0):
            count += message["type"] == "message"
    return count


def _round(setup: Setup, streams: int, seconds: float) -> Round:
    readers = None
    if streams:
        command = [sys.executable, str(READERS), str(setup.port), str(streams), KEY]
        readers = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        assert readers.stdout is not None
        assert readers.stdout.readline() == "open\n"
    else:
        while setup.redis.client().pubsub_numsub(CHANNEL)[0][1]:  # the server keeps its subscription for a while
            time.sleep(0.5)
    time.sleep(2.0)
    samples = [_sample(setup)]
    for _ in range(max(2, round(seconds / SAMPLE_S))):
        time.sleep(SAMPLE_S)
        samples.append(_sample(setup))
    before, after = samples[0], samples[-1]
    told = json.loads(readers.communicate("end\n")[0]) if readers is not None else {}
    jobs, lasted_s = after["jobs"] - before["jobs"], after["at"] - before["at"]
    found = Round(
        jobs=jobs / lasted_s,
        events=(after["events"] - before["events"]) / lasted_s,
        worker_us=_undisturbed(samples, "worker"),
        redis_us=_undisturbed(samples, "redis"),
        server_percent=(after["server"] - before["server"]) / lasted_s / 10_000,
        memory_mb=(before["memory"], after["memory"]),
        streams=f"{told['bytes'] / lasted_s / 1e6:.1f} MB/s read, {told['lagging']} with lag" if told else "",
    )
    print(
        f"{streams:4} streams: {found.jobs:6.0f} jobs/s {found.events:6.0f} events/s; CPU µs a job: worker "
        f"{found.worker_us:5.1f} + Redis {found.redis_us:5.1f} = {found.cpu_us:5.1f}; fileq serve "
        f"{found.server_percent:3.0f} % of a core, {found.memory_mb[0]:.0f} to {found.memory_mb[1]:.0f} MB; "
        f"{found.streams}",
        flush=True,
    )
    return found


def _undisturbed(samples: Sequence[dict[str, float]], name: str) -> float:
    """CPU time a job: the lower quartile of the intervals. Other programs on the machine only make it dearer."""
    spent = [
        (after[name] - before[name]) / max(1.0, after["jobs"] - before["jobs"])
        for before, after in itertools.pairwise(samples)
    ]
    return statistics.quantiles(spent, n=4, method="inclusive")[0]


def _sample(setup: Setup) -> dict[str, float]:
    counters = setup.broker.census().counters
    redis = setup.redis.client()
    published = redis.info("commandstats").get("cmdstat_publish", {"calls": 0})["calls"]
    spent = redis.info("cpu")
    cpu = {name: tree_times([pid]) for name, pid in (("worker", setup.worker), ("server", setup.server))}
    return {
        "at": time.monotonic(),
        "jobs": counters.get("completed", 0),
        "events": published,
        "worker": cpu["worker"].root_us + cpu["worker"].below_us,
        "server": cpu["server"].root_us + cpu["server"].below_us,
        "redis": (spent["used_cpu_user"] + spent["used_cpu_sys"]) * 1e6,
        "memory": tree_pss_mb(setup.server),
    }


if __name__ == "__main__":
    main()
