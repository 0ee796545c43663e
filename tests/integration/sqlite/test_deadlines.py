"""Deadlines on SQLite: the index knows where a job is in its queue, so that burying it does not read the queue."""

from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

from fileq.brokers.sqlite import SqliteBroker
from fileq.brokers.types import Entry
from fileq.config import config_from
from fileq.core.job import State
from fileq.core.settlement import SettleResult
from fileq.testing.conformance.builders import a_job, an_entry, burial, names
from tests.support.sqlite_store import change_one_row

PASSED = "2020-01-01T00:00:00Z"


def open_broker(path: Path) -> SqliteBroker:
    return SqliteBroker(config_from({"broker": "sqlite", "sqlite": {"path": str(path)}}))


def bury_overdue(broker: SqliteBroker) -> tuple[SettleResult, ...]:
    return broker.bury_overdue([burial(claim, refused=True) for claim in broker.overdue()])


def steps_of(broker: Any, call: Callable[[], object]) -> int:
    """How much work SQLite does for this call: the steps of its virtual machine, in tens."""
    steps = 0

    def count() -> None:
        nonlocal steps
        steps += 1

    connection = broker.store.database.connection
    connection.set_progress_handler(count, 10)
    try:
        call()
    finally:
        connection.set_progress_handler(None, 10)
    return steps


def test_a_job_in_a_long_queue_is_buried_without_reading_the_queue(tmp_path: Path) -> None:
    def steps_among(others: int) -> int:
        with closing(open_broker(tmp_path / f"{others}.db")) as broker:
            broker.enqueue([an_entry(id) for id in names(others, "before")])
            broker.enqueue([Entry(a_job("later", deadline=PASSED), "low", delay_ms=1)])
            broker.enqueue([Entry(a_job("a", deadline=PASSED), "low")])
            assert broker.due_now(["later"]) == [True]
            broker.enqueue([an_entry(id) for id in names(others, "after")])
            steps = steps_of(broker, lambda: bury_overdue(broker))
            assert broker.states(["a", "later"]) == [State.DEAD] * 2
            return steps

    assert steps_among(2000) < 2 * steps_among(10)


def test_another_job_at_the_position_of_the_index_stays(tmp_path: Path) -> None:
    """As after a repair, which does not tell the index where it puts a job."""
    with closing(open_broker(tmp_path / "fileq.db")) as broker:
        broker.enqueue([an_entry("first"), Entry(a_job("a", deadline=PASSED), "low"), an_entry("last")])
        change_one_row(broker, "UPDATE deadlines SET position = position + 1 WHERE id = 'a'")
        assert bury_overdue(broker) == (SettleResult.DONE,)
        assert broker.states(["first", "a", "last"]) == [State.PENDING, State.DEAD, State.PENDING]
        assert [id for id in ("first", "last") if broker.lost([id]) == [True]] == []
        assert broker.census().drift == 0
