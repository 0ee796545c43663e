"""What every system runs and how its jobs are sent; the same for all, so that only the queues differ.

A job is a kind and a value. Each run appends to the file BENCH_LOG with one write, so that the harness can count the
runs by its size. `client` is the command line of the program that enqueues; it prints one JSON object.

This file is imported by the peers, in an environment without fileq. It uses only the standard library.
"""

from __future__ import annotations

import asyncio
import inspect
import json
import os
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

REDIS_PORT = int(os.environ.get("BENCH_REDIS_PORT", "0"))
REDIS_URL = f"redis://127.0.0.1:{REDIS_PORT}/0"
SQLITE = os.environ.get("BENCH_SQLITE", "")
SLOTS = int(os.environ.get("BENCH_SLOTS", "16"))
PAYLOAD = {"text": "x" * 244, "number": 12345}  # 270 bytes of JSON
PICKUP_BYTES = 16
BULK = 1000
SPINS = 60_000
QUIET_S = 0.005

_log = os.open(os.environ["BENCH_LOG"], os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)


def run(kind: str, value: Any) -> None:
    """Runs one job."""
    if kind == "pickup":
        os.write(_log, b"%15d\n" % (time.monotonic_ns() - value))
        return
    if kind == "spin":
        total = 0
        for number in range(SPINS):
            total += number & 7
    elif kind == "file":
        read_file(value)
    os.write(_log, b".")


def read_file(path: str) -> None:
    with open(path, "rb") as file:
        file.read()


Send = Callable[[str, Any], Any]
SendMany = Callable[[list[tuple[str, Any]]], Any]


def client(one: Send, many: SendMany | None = None) -> None:
    """`enqueue one|bulk KIND COUNT`, `pickup COUNT` or `walk DIRECTORY`. `one` and `many` may be coroutines."""
    asyncio.run(_client(sys.argv[1:], one, many or _one_by_one(one)))


def _one_by_one(one: Send) -> SendMany:
    async def send(jobs: list[tuple[str, Any]]) -> None:
        for job in jobs:
            await _done(one(*job))

    return send


async def _done(result: Any) -> None:
    if inspect.isawaitable(result):
        await result


async def _client(words: list[str], one: Send, many: SendMany) -> None:
    await _done(one("noop", PAYLOAD))  # opens the connection and loads scripts; the harness expects this job
    started_s = time.perf_counter()
    match words:
        case ["enqueue", "one", kind, count]:
            for _ in range(int(count)):
                await _done(one(kind, PAYLOAD))
        case ["enqueue", "bulk", kind, count]:
            await _bulk(many, ((kind, PAYLOAD) for _ in range(int(count))))
        case ["walk", directory]:
            await _bulk(many, (("file", path) for path in _files(directory)))
        case ["pickup", count]:
            await _pickups(one, int(count))
        case _:
            raise SystemExit(f"unknown command: {words}")
    print(json.dumps({"seconds": time.perf_counter() - started_s}), flush=True)
    os._exit(0)  # some clients keep threads or loops


async def _bulk(many: SendMany, jobs: Iterator[tuple[str, Any]]) -> None:
    batch = []
    for job in jobs:
        batch.append(job)
        if len(batch) == BULK:
            await _done(many(batch))
            batch = []
    if batch:
        await _done(many(batch))


def _files(directory: str) -> Iterator[str]:
    for parent, _, names in os.walk(directory):
        for name in names:
            yield os.path.join(parent, name)


async def _pickups(one: Send, count: int) -> None:
    """Sends one job at a time, each when the last one has run and the worker has been idle for a moment."""
    await _grown_to(1)
    for number in range(count):
        time.sleep(QUIET_S)
        await _done(one("pickup", time.monotonic_ns()))
        await _grown_to(1 + (number + 1) * PICKUP_BYTES)


async def _grown_to(size: int) -> None:
    deadline_s = time.monotonic() + 30
    while os.fstat(_log).st_size < size:
        if time.monotonic() > deadline_s:
            raise SystemExit("a job did not run within 30 s")
        time.sleep(0.001)
