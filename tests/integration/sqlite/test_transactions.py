"""Each call is one transaction, applied completely or not at all; leases and the rate limit use the monotonic clock."""

from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest

from fileq.brokers.batches import CHILDREN_CANCELLED, NewBatch
from fileq.brokers.rules import queues, tables, unit_of_work
from fileq.brokers.sqlite import SqliteBroker, database
from fileq.brokers.types import EnqueueResult, Entry
from fileq.core.job import Version
from fileq.core.settlement import SettleResult, complete
from tests.support.sqlite_process import a_config, a_job, a_worker, an_entry

YEAR_MS = 365 * 24 * 3600 * 1000


class Clock:
    def __init__(self, ms: int) -> None:
        self.ms = ms

    def __call__(self) -> int:
        return self.ms


@pytest.fixture
def wall() -> Clock:
    return Clock(1_800_000_000_000)


@pytest.fixture
def monotonic() -> Clock:
    return Clock(123_456)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "fileq.db"


@pytest.fixture
def broker(path: Path, wall: Clock, monotonic: Clock) -> Iterator[SqliteBroker]:
    config = a_config(path, starvation_share=0.5, heartbeat_ttl="30s", history_ttl="60s")
    with closing(SqliteBroker(config, clock=wall, monotonic=monotonic)) as broker:
        yield broker


@contextmanager
def transactions_of(broker: SqliteBroker) -> Iterator[list[str]]:
    """Collects every BEGIN, COMMIT and ROLLBACK of the writing connection."""
    seen: list[str] = []

    def collect(statement: str) -> None:
        if statement.split()[0] in ("BEGIN", "COMMIT", "ROLLBACK"):
            seen.append(statement)

    broker.store.database.connection.set_trace_callback(collect)
    yield seen
    broker.store.database.connection.set_trace_callback(None)


# one call, one transaction


def test_settling_and_claiming_64_jobs_is_one_transaction(broker: SqliteBroker):
    slots = [f"w{i}" for i in range(64)]
    broker.register(dict.fromkeys(slots, a_worker()))
    broker.enqueue([an_entry(f"job-{i}") for i in range(128)])
    claims = broker.settle_and_claim([], slots).claims
    with transactions_of(broker) as seen:
        reply = broker.settle_and_claim([complete(claim) for claim in claims], slots)
    assert set(reply.settled) == {SettleResult.DONE}
    assert len(reply.claims) == 64
    assert seen == ["BEGIN IMMEDIATE", "COMMIT"]


def test_enqueueing_1000_jobs_is_one_transaction(broker: SqliteBroker):
    with transactions_of(broker) as seen:
        broker.enqueue([an_entry(f"job-{i}") for i in range(1000)], limit=5)
    assert seen == ["BEGIN IMMEDIATE", "COMMIT"]
    assert broker.census().pending["low"] == 1000


def test_reading_calls_open_no_writing_transaction(broker: SqliteBroker):
    broker.enqueue([an_entry("a")])
    with transactions_of(broker) as seen:
        broker.census()
        broker.records(["a"])
        broker.suspects(sweep=True)
        broker.peek("low", 5)
        list(broker.pages("scheduled"))
        broker.workers()
        broker.lookup([b"/data/a.pdf"])
        list(broker.ledger(b""))
        broker.hourly(3)
    assert seen == []


def test_a_failed_call_changes_nothing_not_even_the_claim_order(broker: SqliteBroker, monkeypatch):
    broker.register({"w": a_worker()})
    broker.enqueue([Entry(a_job(f"{queue}-{i}"), queue) for queue in ("high", "low") for i in range(2)])
    with monkeypatch.context() as patch:
        patch.setattr(unit_of_work.UnitOfWork, "write", lambda self: self.db.execute("SELECT 1 FROM no_such_table"))
        with pytest.raises(Exception, match="no_such_table"):
            broker.settle_and_claim([], ["w"])
    assert broker.census().running == 0
    order = []
    for _ in range(4):
        [claim] = broker.settle_and_claim([], ["w"]).claims
        order.append(claim.id)
        broker.settle_and_claim([complete(claim)], [])
    # Every second claim starts at the low queue. If the failed one counted, low-0 would be first.
    assert order == ["high-0", "low-0", "high-1", "low-1"]


# clocks


def test_a_step_of_the_wall_clock_ends_no_lease(broker: SqliteBroker, wall: Clock, monotonic: Clock):
    broker.register({"w": a_worker()})
    for step in (YEAR_MS, -2 * YEAR_MS):
        wall.ms += step
        assert broker.suspects() == []
        assert broker.census().heartbeats == 1
    monotonic.ms += 29_999
    assert broker.suspects() == []
    monotonic.ms += 1
    assert [suspect.slot for suspect in broker.suspects()] == ["w"]


def test_a_lease_ends_with_a_reboot(path: Path, broker: SqliteBroker, wall, monkeypatch):
    broker.register({"w": a_worker()})
    broker.enqueue([an_entry("a")])
    [claim] = broker.settle_and_claim([], ["w"]).claims
    monkeypatch.setattr(database, "boot_id", lambda: "another boot")
    # After a reboot the monotonic clock restarts, far below the end of the old lease.
    with closing(SqliteBroker(broker.store.config, clock=wall, monotonic=Clock(5))) as rebooted:
        [suspect] = rebooted.suspects()
        assert [held.id for held in suspect.claims] == ["a"]
        assert rebooted.reap("w", [complete(claim)]) == (SettleResult.DONE,)


def test_a_wall_clock_set_back_does_not_extend_the_rate_limit(broker: SqliteBroker, wall: Clock, monotonic: Clock):
    def enqueue(id: str) -> tuple[EnqueueResult, int]:
        reply = broker.enqueue([Entry(a_job(id), "low", version=Version(id.encode(), "1"))], limit=1)
        return reply.results[0], reply.wait_ms

    assert enqueue("a") == (EnqueueResult.ENQUEUED, 0)
    wall.ms -= YEAR_MS
    monotonic.ms += 400
    assert enqueue("b") == (EnqueueResult.THROTTLED, 600)
    monotonic.ms += 600
    assert enqueue("b") == (EnqueueResult.ENQUEUED, 0)


# retention


def test_expired_records_are_deleted_a_few_per_transaction(broker: SqliteBroker, wall: Clock, monkeypatch):
    monkeypatch.setattr(tables, "EXPIRED_PER_TRANSACTION", 2)
    slots = [f"w{i}" for i in range(5)]
    broker.register(dict.fromkeys(slots, a_worker()))
    ids = [f"job-{i}" for i in range(5)]
    broker.enqueue([an_entry(id) for id in ids])
    broker.settle_and_claim([complete(claim) for claim in broker.settle_and_claim([], slots).claims], [])

    def stored() -> int:
        with broker.store.database.snapshot() as db:
            return db.execute("SELECT count(*) FROM records").fetchone()[0]

    wall.ms += 60_000
    assert broker.records(ids) == [None] * 5
    assert stored() == 5, "reading deletes nothing"
    for left in (3, 1, 0):
        broker.pause("high")
        assert stored() == left


def test_an_id_may_be_used_again_before_its_expired_record_is_deleted(broker: SqliteBroker, wall, monkeypatch):
    monkeypatch.setattr(tables, "EXPIRED_PER_TRANSACTION", 0)
    broker.register({"w": a_worker()})
    broker.enqueue([an_entry("a")])
    broker.settle_and_claim([complete(claim) for claim in broker.settle_and_claim([], ["w"]).claims], [])
    assert broker.enqueue([an_entry("a")]).results == (EnqueueResult.DUPLICATE,)
    wall.ms += 60_000
    assert broker.enqueue([an_entry("a")]).results == (EnqueueResult.ENQUEUED,)
    [record] = broker.records(["a"])
    assert record is not None
    assert record.attempts == ()


def test_a_settlement_from_before_a_slot_was_registered_again_is_fenced(broker: SqliteBroker):
    """A slot's tokens continue after it was deregistered, in another process too."""
    broker.enqueue([an_entry("a"), an_entry("b")])
    broker.register({"w": a_worker()})
    [old] = broker.settle_and_claim([], ["w"]).claims
    broker.deregister(["w"])
    with closing(
        SqliteBroker(broker.store.config, clock=broker.store.clock, monotonic=broker.store.monotonic)
    ) as other:
        other.register({"w": a_worker()})
        [new] = other.settle_and_claim([], ["w"]).claims
        assert (old.id, new.id) == ("a", "a")
        assert new.token > old.token
        assert other.settle_and_claim([complete(new)], []).settled == (SettleResult.DONE,)
        assert other.settle_and_claim([complete(old)], []).settled == (SettleResult.FENCED,)


def test_only_the_newest_deregistered_slots_keep_their_tokens(broker: SqliteBroker, wall: Clock, monkeypatch):
    monkeypatch.setattr(queues, "GONE_SLOTS_KEPT", 3)
    for number in range(10):
        wall.ms += 1
        broker.register({f"w{number}": a_worker()})
        broker.deregister([f"w{number}"])
    broker.register({"last": a_worker()})
    with broker.store.database.snapshot() as db:
        assert [slot for (slot,) in db.execute("SELECT slot FROM slots ORDER BY slot")] == ["last", "w7", "w8", "w9"]


def test_the_census_includes_queues_of_another_configuration(path: Path, broker: SqliteBroker):
    """Two processes may have different queues; the drift must be 0 for both."""
    theirs = a_config(path, priorities=["express"])
    with closing(SqliteBroker(theirs)) as other:
        other.enqueue([Entry(a_job("a"), "express")])
    assert broker.census().pending == {"high": 0, "low": 0, "express": 1}
    assert broker.census().drift == 0


def test_of_very_many_child_batches_one_cancellation_reads_a_bounded_number(
    broker: SqliteBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A batch with 50,000 child batches, finished ones too, stopped all processes for 4 s when it was cancelled."""
    broker.create_batch(NewBatch("b"))
    broker.create_batch(NewBatch("child", parent="b"))
    with broker.store.database.transaction() as db:
        [row] = db.execute("SELECT * FROM batches WHERE id = 'child'").fetchall()
        for n in range(5_000):
            facts = row[4].replace(b'"child"', b'"c%d"' % n)
            db.execute("INSERT INTO batches VALUES (?, ?, ?, ?, ?, ?)", (f"c{n}", *row[1:3], n % 2, facts, row[5]))
    read = list[str]()
    find = unit_of_work.UnitOfWork.find_batches
    monkeypatch.setattr(unit_of_work.UnitOfWork, "find_batches", lambda self, ids: read.extend(ids) or find(self, ids))
    assert broker.cancel_batch("b")
    assert CHILDREN_CANCELLED <= len(read) <= CHILDREN_CANCELLED + 10
