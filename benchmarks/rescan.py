"""Measures a rescan in which every file is known, and compares it with `find` and `os.walk` over the same tree.

    python benchmarks/rescan.py [--files 100000] [--redis HOST:PORT]

All three list every file and read its size and time. The rescan also looks every file up in the ledger. The best of a
few rounds is printed; the tree is in the page cache for all of them. Without --redis the broker is an SQLite file next
to the tree.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from fileq.brokers import open_broker
from fileq.brokers.protocol import FullBroker
from fileq.config import Config, config_from
from fileq.producer.counts import ProducerCounts
from fileq.producer.producer import Producer

FILES_PER_DIRECTORY = 500


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--files", type=int, default=100_000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--redis", metavar="HOST:PORT", help="an empty server; its keys start with fileq-benchmark")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="fileq-rescan-") as directory:
        tree = Path(directory, "tree")
        make_tree(tree, options.files)
        config = config_for(tree, options.redis)
        broker = open_broker(config)
        try:
            enqueued = produce(config, broker).enqueued
            print(f"{enqueued} files enqueued on {broker.kind}; best of {options.rounds}:")
            for name, run in (
                ("find", lambda: find(tree)),
                ("os.walk", lambda: walk(tree)),
                ("rescan", lambda: produce(config, broker).known),
            ):
                seconds = best(run, options.rounds, options.files)
                print(f"  {name:<8} {seconds:6.2f} s  {seconds / options.files * 1e6:5.1f} µs per file")
        finally:
            broker.close()


def config_for(tree: Path, redis: str | None) -> Config:
    broker = {"redis": {"addr": redis, "prefix": "fileq-benchmark"}} if redis else {"sqlite": {"path": f"{tree}.db"}}
    producer = {"scan_dir": str(tree), "settle_unclosed": "0s", "rate_limit_per_sec": 0}
    return config_from({**broker, "producer": producer})


def make_tree(tree: Path, files: int) -> None:
    for n in range(files):
        directory = tree / str(n // FILES_PER_DIRECTORY // 20) / str(n // FILES_PER_DIRECTORY % 20)
        if n % FILES_PER_DIRECTORY == 0:
            directory.mkdir(parents=True)
        os.close(os.open(directory / f"file-{n}.txt", os.O_CREAT | os.O_WRONLY))


def best(run: Callable[[], int], rounds: int, files: int) -> float:
    times = []
    for _ in range(rounds):
        started_s = time.perf_counter()
        seen = run()
        times.append(time.perf_counter() - started_s)
        if seen != files:
            raise SystemExit(f"{seen} of {files} files were seen")
    return min(times)


def find(tree: Path) -> int:
    listed = subprocess.run(
        ["find", str(tree), "-type", "f", "-printf", "%p %s %T@\\n"], capture_output=True, check=True
    ).stdout
    return listed.count(b"\n")


def walk(tree: Path) -> int:
    seen = 0
    for directory, _, names in os.walk(bytes(tree)):
        for name in names:
            os.stat(os.path.join(directory, name))
            seen += 1
    return seen


def produce(config: Config, broker: FullBroker) -> ProducerCounts:
    """The counts of one whole scan. It stops before the ledger is swept, which a producer does only once an hour."""
    producer = Producer(config, broker, broker, is_once=True)
    while not producer.waits_only_for_writers:
        producer.turn()
    producer.close()
    return producer.counts


if __name__ == "__main__":
    main()
