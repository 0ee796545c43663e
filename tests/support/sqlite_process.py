"""Another process on the same database file: `python -m tests.support.sqlite_process CALL PATH [ARGUMENT…]`.

Prints `ready` first, and then one line for everything the broker acknowledged, after the acknowledgement. So a test
that kills it knows what must not be lost.
"""

import json
import os
import random
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from fileq.brokers.sqlite import SqliteBroker
from fileq.brokers.types import Entry, WorkerInfo
from fileq.config import Config, config_from
from fileq.core.errors import BrokerError
from fileq.core.job import Claim, Job, encode
from fileq.core.settlement import Settlement, bury, complete, release, retry

REPOSITORY = Path(__file__).parents[2]


def a_config(path: Path | str, **worker: object) -> Config:
    return config_from(
        {"broker": "sqlite", "sqlite": {"path": str(path)}, "worker": {"completed_max": 10**6, **worker}}
    )


def a_job(id: str) -> Job:
    return Job(id, f"/data/{id}.pdf", 4096, "low", 0, "2026-01-02T03:04:05.678Z", "", "")


def an_entry(id: str) -> Entry:
    return Entry(a_job(id), "low")


def a_worker() -> WorkerInfo:
    return WorkerInfo("alpha", os.getpid(), 0, "1.0", ("high", "low"))


@contextmanager
def started(call: str, path: Path | str, *arguments: str) -> Iterator[subprocess.Popen[str]]:
    """Starts the process, waits until it is ready, and kills it at the end if it still runs."""
    command = [sys.executable, "-m", __name__, call, str(path), *arguments]
    with subprocess.Popen(
        command, cwd=REPOSITORY, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1
    ) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "ready\n"
            yield process
        finally:
            process.kill()


def read_line(process: subprocess.Popen[str]) -> str:
    """The next line it prints, or "" after its end."""
    assert process.stdout is not None
    return process.stdout.readline().strip()


def send_line(process: subprocess.Popen[str], line: str = "go") -> None:
    assert process.stdin is not None
    process.stdin.write(line + "\n")
    process.stdin.flush()


def print_line(line: str) -> None:
    print(line, flush=True)


# the calls of the other process


def produce(path: str, seed: str) -> None:
    """Enqueues in batches for ever. Prints each id after its acknowledgement."""
    broker = SqliteBroker(a_config(path))
    chance = random.Random(seed)
    print_line("ready")
    number = 0
    while True:
        ids = [f"{seed}-{number + i}" for i in range(chance.randint(1, 5))]
        number += len(ids)
        broker.enqueue([an_entry(id) for id in ids])
        print_line(f"enqueued {' '.join(ids)}")


def work(path: str, seed: str) -> None:
    """Claims and settles for ever, in every way. Prints each completed id after its acknowledgement."""
    broker = SqliteBroker(a_config(path))
    chance = random.Random(seed)
    slots = [f"{seed}-{i}" for i in range(4)]
    broker.register(dict.fromkeys(slots, a_worker()))
    print_line("ready")
    claims: list[Claim] = []
    while True:
        broker.promote()
        ending = chance.sample(claims, chance.randint(0, len(claims)))
        settlements = [_random_settlement(claim, chance) for claim in ending]
        busy = {claim.slot for claim in claims} - {claim.slot for claim in ending}
        reply = broker.settle_and_claim(settlements, [slot for slot in slots if slot not in busy])
        claims = [claim for claim in claims if claim.slot in busy] + list(reply.claims)
        print_line(f"completed {' '.join(s.claim.id for s in settlements if s.verb == 'complete')}")


def _random_settlement(claim: Claim, chance: random.Random) -> Settlement:
    assert claim.job is not None
    again = encode(claim.job.but(retries=claim.job.retries + 1))
    return chance.choice(
        [
            complete(claim),
            retry(claim, again, delay_ms=chance.randint(0, 20), error="failed", kind="Failed"),
            bury(claim, claim.raw, error="hopeless"),
            release(claim),
        ]
    )


def enqueue(path: str, *ids: str) -> None:
    """Enqueues these after a line on standard input."""
    broker = SqliteBroker(a_config(path))
    print_line("ready")
    sys.stdin.readline()
    broker.enqueue([an_entry(id) for id in ids])
    print_line("enqueued")
    broker.close()


def subscribe(path: str) -> None:
    broker = SqliteBroker(a_config(path))
    subscription = broker.subscribe()
    print_line("ready")
    sys.stdin.readline()
    subscription.close()
    broker.close()


def write_for_ever(path: str) -> None:
    """Begins a transaction and ends it after a line on standard input."""
    broker = SqliteBroker(a_config(path))
    with broker.store.database.transaction():
        print_line("ready")
        sys.stdin.readline()
    print_line("written")
    broker.close()


def fork_in_a_transaction(path: str) -> None:
    """Begins a transaction and forks a child that outlives this process. Prints the child's pid."""
    broker = SqliteBroker(a_config(path))
    with broker.store.database.transaction():
        child = os.fork()
        if child == 0:
            signal.pause()
        print_line("ready")
        print_line(str(child))
        signal.pause()


def use_after_fork(path: str) -> None:
    """Prints the errors that a forked child gets, and then what its parent has in the queues after an enqueue."""
    broker = SqliteBroker(a_config(path))
    print_line("ready")
    child = os.fork()
    if child == 0:
        for call in (broker.census, lambda: broker.enqueue([an_entry("from the child")])):
            try:
                call()
            except BrokerError as error:
                print_line(str(error))
        broker.close()
        os._exit(0)
    os.waitpid(child, 0)
    broker.enqueue([an_entry("from the parent")])
    print_line(json.dumps(broker.census().pending))
    broker.close()


def die_in_each_statement(path: str) -> None:
    """Repeats one settle_and_claim on fresh databases, each time killed one statement later, until one survives.

    Prints for each what was found: [are all jobs there, results of the repeated settlements, drift]."""
    print_line("ready")
    for statements in range(1, 10_000):
        copy = f"{path}-{statements}"
        settlements = _claim_four_jobs(copy)
        child = os.fork()
        if child == 0:
            _settle_and_die(copy, settlements, statements)
        status = os.waitpid(child, 0)[1]
        print_line(json.dumps(_examine(copy, settlements)))
        if not os.WIFSIGNALED(status):
            return


def _claim_four_jobs(path: str) -> list[Settlement]:
    broker = SqliteBroker(a_config(path))
    broker.enqueue([an_entry(f"job-{i}") for i in range(8)])
    slots = [f"w{i}" for i in range(4)]
    broker.register(dict.fromkeys(slots, a_worker()))
    done, failed, hopeless, released = broker.settle_and_claim([], slots).claims
    broker.close()
    return [
        complete(done),
        retry(failed, failed.raw, delay_ms=1000, error="failed"),
        bury(hopeless, hopeless.raw, error="hopeless"),
        release(released),
    ]


def _settle_and_die(path: str, settlements: list[Settlement], statements: int) -> None:
    broker = SqliteBroker(a_config(path))
    left = statements

    def count(_: str) -> None:
        nonlocal left
        left -= 1
        if left == 0:
            os.kill(os.getpid(), signal.SIGKILL)

    broker.store.database.connection.set_trace_callback(count)
    broker.settle_and_claim(settlements, [s.claim.slot for s in settlements])
    os._exit(0)


def _examine(path: str, settlements: list[Settlement]) -> tuple[bool, list[str], int]:
    broker = SqliteBroker(a_config(path))
    try:
        places = ("high", "low", "scheduled", "dead_letter", "completed", "cancelled")
        raws = [raw for place in places for page in broker.pages(place) for raw in page]
        raws += [view.raw for view in broker.workers() if view.raw]
        is_whole = sorted(raws) == sorted(encode(a_job(f"job-{i}")) for i in range(8))
        with sqlite3.connect(path) as db:
            is_whole &= db.execute("PRAGMA integrity_check").fetchone() == ("ok",)
        db.close()
        drift = broker.census().drift
        return is_whole, [str(answer) for answer in broker.settle_and_claim(settlements, []).settled], drift
    finally:
        broker.close()


CALLS = (
    produce,
    work,
    enqueue,
    subscribe,
    write_for_ever,
    fork_in_a_transaction,
    use_after_fork,
    die_in_each_statement,
)

if __name__ == "__main__":
    {call.__name__: call for call in CALLS}[sys.argv[1]](*sys.argv[2:])
