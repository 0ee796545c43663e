"""The length of a queue on SQLite, derived from its ends and its holes, always equals the counted one."""

import os
import random
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from fileq.brokers.sqlite import SqliteBroker
from fileq.config import config_from
from fileq.core.job import Claim, decode, encode
from fileq.core.settlement import complete, release
from fileq.testing.conformance.builders import an_entry, worker_info
from tests.support.sqlite_store import push_raw


@pytest.fixture
def directory() -> Iterator[Path]:
    """In memory if the machine has /dev/shm: these tests are not about the disk."""
    in_memory = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
    with TemporaryDirectory(prefix="fileq-", dir=in_memory) as made:
        yield Path(made)


def open_broker(path: Path) -> SqliteBroker:
    return SqliteBroker(config_from({"broker": "sqlite", "sqlite": {"path": str(path)}}))


def checked_length(broker: SqliteBroker) -> int:
    """The length of `low`, after checking that the derived and the counted lengths agree."""
    derived, counted = broker.census().pending, broker.census(sweep=True).pending
    assert derived == counted
    return counted["low"]


MOVES = ("enqueue", "enqueue", "push", "cancel", "cancel", "claim", "claim", "release", "complete", "drain")
SLOTS = ("w1", "w2", "w3", "w4")


@pytest.mark.parametrize("seed", range(4))
def test_the_derived_length_is_right_after_every_move(directory: Path, seed: int) -> None:
    """Jobs are cancelled at the ends and in the middle, claimed, released, completed, and pushed by another program."""
    draw = random.Random(seed)
    with closing(open_broker(directory / "fileq.db")) as broker:
        broker.register(dict.fromkeys(SLOTS, worker_info()))
        held: dict[str, Claim] = {}
        for i in range(250):
            ids = [decode(raw).id for page in broker.pages("low") for raw in page]
            move = draw.choice(MOVES)
            if move == "enqueue":
                broker.enqueue([an_entry(f"job-{i}-{n}") for n in range(draw.randrange(1, 4))])
            elif move == "push":
                push_raw(broker, "low", encode(an_entry(f"pushed-{i}").job))
            elif move == "cancel" and ids:
                broker.cancel(draw.sample(ids, min(len(ids), draw.randrange(1, 3))))
            elif move == "claim":
                held.update(
                    (c.slot, c)
                    for c in broker.settle_and_claim([], [slot for slot in SLOTS if slot not in held]).claims
                )
            elif move in ("release", "complete") and held:
                broker.settle_and_claim([(release if move == "release" else complete)(c) for c in held.values()], [])
                held.clear()
            elif move == "drain" and draw.random() < 0.3:
                broker.settle_and_claim([complete(c) for c in held.values()], [])
                held.clear()
                while claims := broker.settle_and_claim([], SLOTS).claims:
                    broker.settle_and_claim([complete(c) for c in claims], [])
            checked_length(broker)
