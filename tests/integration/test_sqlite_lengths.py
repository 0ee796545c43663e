"""How long a queue is, on SQLite: told by its ends and the holes between them, and always what counting would tell."""

import random
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from fileq.brokers.sqlite import SqliteBroker
from fileq.brokers.sqlite.schema import VERSION
from fileq.brokers.types import complete, release
from fileq.config import config_from
from tests.conformance.builders import an_entry, worker_info


def opened(path: Path) -> SqliteBroker:
    return SqliteBroker(config_from({"broker": "sqlite", "sqlite": {"path": str(path)}}))


def agree(broker: SqliteBroker) -> int:
    quick, counted = broker.census().pending, broker.census(sweep=True).pending
    assert quick == counted
    return counted["low"]


@pytest.mark.parametrize("seed", range(5))
def test_whatever_happens_the_ends_tell_the_length(tmp_path: Path, seed: int) -> None:
    """Cancelled at the ends and in the middle, claimed, released to the front, emptied and filled again."""
    draw = random.Random(seed)
    with closing(opened(tmp_path / "fileq.db")) as broker:
        broker.register({"w1": worker_info()})
        held = None
        for i in range(300):
            waiting = [raw for page in broker.pages("low") for raw in page]
            ids = [raw.split(b'"')[3].decode() for raw in waiting]
            move = draw.choice(["enqueue", "enqueue", "cancel", "cancel", "claim", "release", "complete", "empty"])
            if move == "enqueue":
                broker.enqueue([an_entry(f"job-{i}-{n}") for n in range(draw.randrange(1, 4))])
            elif move == "cancel" and ids:
                broker.cancel([draw.choice(ids)])
            elif move == "claim" and held is None:
                held = next(iter(broker.turn([], ["w1"]).claims), None)
            elif move in ("release", "complete") and held is not None:
                broker.turn([(release if move == "release" else complete)(held)], [])
                held = None
            elif move == "empty" and draw.random() < 0.2:
                broker.cancel(ids)
            agree(broker)


def test_a_database_of_the_first_schema_learns_its_holes(tmp_path: Path) -> None:
    path = tmp_path / "fileq.db"
    with closing(opened(path)) as broker:
        broker.enqueue([an_entry(f"job-{i}") for i in range(10)])
        broker.cancel(["job-3", "job-4", "job-8"])
    with closing(sqlite3.connect(path)) as old:
        old.execute("DROP TABLE holes")
        old.execute("PRAGMA user_version = 1")
        old.commit()
    with closing(opened(path)) as broker:
        assert agree(broker) == 7
        broker.cancel(["job-6"])
        assert agree(broker) == 6
    with closing(sqlite3.connect(path)) as new:
        assert new.execute("PRAGMA user_version").fetchone() == (VERSION,)
    assert (tmp_path / "fileq.db.backup-v1").exists()
