"""Another process on the same database file: `python -m tests.support.sqlite_process CALL PATH [ARGUMENT…]`.

Prints one line for every thing it was told is done, after it was told, so that a test that kills it knows
what must not be lost. Says `ready` first.
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
from fileq.core.claim import Claim
from fileq.core.errors import BrokerError
from fileq.core.job import Job, encode
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
    """The process, once it is ready; killed in the end if it still runs."""
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


def said(process: subprocess.Popen[str]) -> str:
    """The next line it prints, or "" when it has ended."""
    assert process.stdout is not None
    return process.stdout.readline().strip()


def tell(process: subprocess.Popen[str], line: str = "go") -> None:
    assert process.stdin is not None
    process.stdin.write(line + "\n")
    process.stdin.flush()


def say(line: str) -> None:
    print(line, flush=True)


# what the other process can do


def produce(path: str, seed: str) -> None:
    """Enqueue in batches for ever; each id is printed once it was acknowledged."""
    broker = SqliteBroker(a_config(path))
    chance = random.Random(seed)
    say("ready")
    number = 0
    while True:
        ids = [f"{seed}-{number + i}" for i in range(chance.randint(1, 5))]
        number += len(ids)
        broker.enqueue([an_entry(id) for id in ids])
        say(f"enqueued {' '.join(ids)}")


def work(path: str, seed: str) -> None:
    """Claim and settle for ever, in every way; ids are printed once their completion was acknowledged."""
    broker = SqliteBroker(a_config(path))
    chance = random.Random(seed)
    slots = [f"{seed}-{i}" for i in range(4)]
    broker.register(dict.fromkeys(slots, a_worker()))
    say("ready")
    claims: list[Claim] = []
    while True:
        broker.promote()
        ending = chance.sample(claims, chance.randint(0, len(claims)))
        settlements = [_some_end(claim, chance) for claim in ending]
        busy = {claim.slot for claim in claims} - {claim.slot for claim in ending}
        turn = broker.settle_and_claim(settlements, [slot for slot in slots if slot not in busy])
        claims = [claim for claim in claims if claim.slot in busy] + list(turn.claims)
        say(f"completed {' '.join(s.claim.id for s in settlements if s.verb == 'complete')}")


def _some_end(claim: Claim, chance: random.Random) -> Settlement:
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
    """Enqueue these when told to go."""
    broker = SqliteBroker(a_config(path))
    say("ready")
    sys.stdin.readline()
    broker.enqueue([an_entry(id) for id in ids])
    say("enqueued")
    broker.close()


def listen(path: str) -> None:
    broker = SqliteBroker(a_config(path))
    subscription = broker.subscribe()
    say("ready")
    sys.stdin.readline()
    subscription.close()
    broker.close()


def write_for_ever(path: str) -> None:
    """Begin a transaction and never end it."""
    broker = SqliteBroker(a_config(path))
    with broker.store.database.transaction():
        say("ready")
        sys.stdin.readline()
    say("written")
    broker.close()


def fork_in_a_transaction(path: str) -> None:
    """Like write_for_ever, but with a child that outlives this process; its pid is printed."""
    broker = SqliteBroker(a_config(path))
    with broker.store.database.transaction():
        child = os.fork()
        if child == 0:
            signal.pause()
        say("ready")
        say(str(child))
        signal.pause()


def use_after_fork(path: str) -> None:
    """What a forked child is told, and what the parent still can do afterwards."""
    broker = SqliteBroker(a_config(path))
    say("ready")
    child = os.fork()
    if child == 0:
        for call in (broker.census, lambda: broker.enqueue([an_entry("from the child")])):
            try:
                call()
            except BrokerError as error:
                say(str(error))
        broker.close()
        os._exit(0)
    os.waitpid(child, 0)
    broker.enqueue([an_entry("from the parent")])
    say(json.dumps(broker.census().pending))
    broker.close()


def die_in_a_turn(path: str) -> None:
    """One turn after the other, each on a fresh copy and killed one statement later than the one before, until
    one survives. Prints what was found after each: [is it all there, answers to the repeated turn, drift]."""
    say("ready")
    for statements in range(1, 10_000):
        copy = f"{path}-{statements}"
        settlements = _prepare_a_turn(copy)
        child = os.fork()
        if child == 0:
            _turn_and_die(copy, settlements, statements)
        status = os.waitpid(child, 0)[1]
        say(json.dumps(_look_after_a_death(copy, settlements)))
        if not os.WIFSIGNALED(status):
            return


def _prepare_a_turn(path: str) -> list[Settlement]:
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


def _turn_and_die(path: str, settlements: list[Settlement], statements: int) -> None:
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


def _look_after_a_death(path: str, settlements: list[Settlement]) -> tuple[bool, list[str], int]:
    broker = SqliteBroker(a_config(path))
    try:
        places = ("high", "low", "scheduled", "dead_letter", "completed", "cancelled")
        elements = [raw for place in places for page in broker.pages(place) for raw in page]
        elements += [view.raw for view in broker.workers() if view.raw]
        is_whole = sorted(elements) == sorted(encode(a_job(f"job-{i}")) for i in range(8))
        with sqlite3.connect(path) as db:
            is_whole &= db.execute("PRAGMA integrity_check").fetchone() == ("ok",)
        db.close()
        drift = broker.census().drift
        return is_whole, [str(answer) for answer in broker.settle_and_claim(settlements, []).settled], drift
    finally:
        broker.close()


CALLS = (produce, work, enqueue, listen, write_for_ever, fork_in_a_transaction, use_after_fork, die_in_a_turn)

if __name__ == "__main__":
    {call.__name__: call for call in CALLS}[sys.argv[1]](*sys.argv[2:])
