"""How soon an idle worker starts a job that another program pushed: from LPUSH to the first line of the handler.

    python benchmarks/pickup.py [--jobs 300] [--server PATH]

Runs the installed program with two queues. Only low jobs are pushed, and brpoplpush_timeout is 5 s: a worker that
waited for the empty high queue first would show it here. Then 1,000 jobs are pushed at once, for the rate.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

import redis

from tests.support.servers import Server, available_servers
from tests.support.waiting import wait_until
from tests.support.worker_setup import Farm, farm_on, on_files

QUEUE = "jobqueue:low_priority"
AT_ONCE = 1000


def job(farm: Farm, id: str) -> str:
    fields = {"id": id, "filepath": str(farm.inbox / "file"), "filesize": 1, "priority": "low", "retries": 0}
    return json.dumps(fields | {"creation_time": "2026-11-16T00:00:00Z", "trace_id": "", "span_id": ""})


def one_by_one(farm: Farm, client: redis.Redis, jobs: int) -> list[float]:
    """Milliseconds from push to start, each with an idle worker."""
    pushed_s: dict[str, float] = {}
    for n in range(jobs):
        wait_until(lambda: client.info("clients")["blocked_clients"] >= 2, 10)
        pushed_s[f"one-{n}"] = time.time()
        client.lpush(QUEUE, job(farm, f"one-{n}"))
        farm.wait_told("file", n + 1)
    return [1000 * (line.at_s - pushed_s[line.id]) for line in farm.diary("file")]


def at_once(farm: Farm, client: redis.Redis, before: int) -> float:
    """Jobs per second."""
    pushed_s = time.time()
    client.lpush(QUEUE, *(job(farm, f"many-{n}") for n in range(AT_ONCE)))
    farm.wait_told("file", before + AT_ONCE, 60)
    return AT_ONCE / (farm.diary("file")[-1].at_s - pushed_s)


def measure(server: Server, count: int, isolation: str, jobs: int) -> None:
    server.reset()
    with tempfile.TemporaryDirectory() as folder, farm_on(Path(folder), {"redis.addr": server.address}) as farm:
        (farm.inbox / "file").write_bytes(b"x")
        settings = {"brpoplpush_timeout": "5s", "heartbeat_ttl": "60s", "handlers": on_files("on_file")}
        farm.worker(count=count, isolation=isolation, observability__log_level="warn", wait=False, **settings)
        client = server.client()
        times_ms = one_by_one(farm, client, jobs)
        rate = at_once(farm, client, jobs)
        centiles = statistics.quantiles(times_ms, n=100)
        print(
            f"count {count:2} {isolation:8}  p50 {centiles[49]:6.2f} ms   p99 {centiles[98]:6.2f} ms"
            f"   worst {max(times_ms):6.2f} ms   {AT_ONCE} at once: {rate:,.0f}/s"
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--jobs", type=int, default=300)
    parser.add_argument("--server", default=available_servers()["valkey"])
    options = parser.parse_args()
    with Server(options.server) as server:
        for count in (1, 16):
            for isolation in ("process", "thread"):
                measure(server, count, isolation, options.jobs)


if __name__ == "__main__":
    main()
