"""What the SQLite broker can do with jobs of an older schema, after it has migrated their database."""

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest
from msgspec.structs import replace

from fileq.brokers.batches import JoinResult, NewBatch
from fileq.brokers.schedules import Fire, FireResult
from fileq.brokers.sqlite import SqliteBroker, open_sqlite
from fileq.brokers.types import AdmitRequest
from fileq.core.job import Version
from fileq.core.outcome import FollowUp, Output
from fileq.core.settlement import complete
from fileq.testing.conformance.batch_builders import member
from fileq.testing.conformance.builders import a_job, an_entry, burial, deferred, worker_info
from fileq.testing.conformance.producers_tests import producer_info
from tests.support.old_schemas import downgrade
from tests.support.sqlite_process import a_config
from tests.support.sqlite_store import change_one_row


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "fileq.db"


def make_database(path: Path, *ids: str) -> None:
    with closing(SqliteBroker(a_config(path))) as broker:
        broker.enqueue([an_entry(id) for id in ids])


def columns_and_more(path: Path) -> dict[str, list[tuple[object, ...]]]:
    """Name, type, whether it may be NULL, default and key of every column, by table; and every index and trigger."""
    with closing(sqlite3.connect(path)) as db:
        tables = [name for (name,) in db.execute("SELECT name FROM sqlite_schema WHERE type = 'table'")]
        columns = {t: sorted(row[1:] for row in db.execute(f"PRAGMA table_info({t})")) for t in sorted(tables)}
        return columns | {"": db.execute("SELECT name, type FROM sqlite_schema ORDER BY name").fetchall()}


def ids_in_backup(path: Path, version: int) -> list[str]:
    with closing(sqlite3.connect(f"{path}.backup-v{version}")) as db:
        return [id for (id,) in db.execute("SELECT id FROM records")]


@pytest.mark.parametrize("version", [1, 2, 3, 4, 5, 6, 7])
def test_a_migrated_database_has_the_columns_of_a_new_one(tmp_path: Path, version: int) -> None:
    new, old = tmp_path / "new.db", tmp_path / "old.db"
    for path in (new, old):
        make_database(path, "a")
    downgrade(old, version)
    with closing(open_sqlite(a_config(old))) as broker:
        assert broker.census().pending["low"] == 1
    assert columns_and_more(old) == columns_and_more(new)


def test_jobs_of_schema_2_can_be_deferred_after_the_migration(path: Path) -> None:
    make_database(path, "a")
    downgrade(path, 2)
    with closing(open_sqlite(a_config(path))) as broker:
        broker.register({"w1": worker_info()})
        [claim] = broker.settle_and_claim([], ["w1"]).claims
        assert list(broker.settle_and_claim([deferred(claim)], []).settled) == ["done"]
        [record] = broker.records(["a"])
        assert (record.deferred_count, record.state) == (1, "retrying")
    assert ids_in_backup(path, 2) == ["a"]


def test_producers_can_report_after_the_migration_of_schema_3(path: Path) -> None:
    make_database(path, "a")
    downgrade(path, 3)
    with closing(open_sqlite(a_config(path))) as broker:
        broker.report_producer("p1", producer_info(), 30_000)
        assert [view.id for view in broker.producers()] == ["p1"]
        assert broker.census().pending["low"] == 1
    assert ids_in_backup(path, 3) == ["a"]


def test_jobs_of_schema_3_can_be_admitted_after_the_migration(path: Path) -> None:
    make_database(path, "a")
    downgrade(path, 3)
    with closing(open_sqlite(a_config(path))) as broker:
        broker.register({"w1": worker_info()})
        [claim] = broker.settle_and_claim([], ["w1"]).claims
        request = AdmitRequest("mail", "w1", claim.raw, max_running_total=1, rate=1)
        assert [answer.result for answer in broker.admit([request, request])] == ["admitted", "admitted"]


def test_a_version_enqueued_after_the_migration_waits_for_a_job_of_schema_3(path: Path) -> None:
    with closing(SqliteBroker(a_config(path))) as broker:
        broker.enqueue([an_entry("a", version=Version(b"/data/a", "v1"))])
    downgrade(path, 3)
    with closing(open_sqlite(a_config(path))) as broker:
        broker.enqueue([an_entry("b", version=Version(b"/data/a", "v2"))])
        broker.register({"w1": worker_info(), "w2": worker_info()})
        claims = broker.settle_and_claim([], ["w1", "w2"]).claims
        assert [(claim.id, claim.is_blocked) for claim in claims] == [("a", False), ("b", True)]
        assert [record.after for record in broker.records(["a", "b"])] == [(), ("a",)]


def test_a_job_of_schema_5_brings_follow_ups_and_outputs_after_the_migration(path: Path) -> None:
    make_database(path, "a")
    downgrade(path, 5)
    with closing(open_sqlite(a_config(path))) as broker:
        broker.register({"w1": worker_info()})
        [claim] = broker.settle_and_claim([], ["w1"]).claims
        follow_up = FollowUp(a_job("b", parent_id="a", unique_key="k"), "low")
        settlement = replace(complete(claim), follow_ups=(follow_up,), outputs=(Output(b"/out", 1, "s"),))
        assert list(broker.settle_and_claim([settlement], []).settled) == ["done"]
        assert broker.enqueue([an_entry("c")]).existing == ("",)
        assert broker.makers([b"/out"]) == ["a"]
        assert [record.follow_ups for record in broker.records(["a", "b"]) if record is not None] == [("b",), ()]
        broker.define_schedule("nightly", "r1", 1000)
        fire = Fire("nightly", "r1", 1000, 2000, FollowUp(a_job("s"), "low"))
        assert broker.fire(fire) is FireResult.FIRED
        assert broker.put_document("keys", "k", b"") == 1
        assert broker.census().drift == 0
    assert ids_in_backup(path, 5) == ["a"]


def test_jobs_of_schema_6_join_a_batch_after_the_migration(path: Path) -> None:
    make_database(path, "a")
    downgrade(path, 6)
    with closing(open_sqlite(a_config(path))) as broker:
        assert broker.create_batch(NewBatch("b"))
        assert broker.join_batch("b", ["a"]) == [JoinResult.JOINED]
        assert broker.seal_batch("b")
        broker.register({"w1": worker_info()})
        [claim] = broker.settle_and_claim([], ["w1"]).claims
        assert broker.settle_and_claim([complete(claim)], []).finished_batches == ("b",)
    assert ids_in_backup(path, 6) == ["a"]


def test_members_of_schema_7_are_counted_once_after_the_migration(path: Path) -> None:
    """One waits, one is dead, one is completed, and one has no record any more."""
    with closing(SqliteBroker(a_config(path))) as broker:
        broker.create_batch(NewBatch("b", allow_failures=True))
        broker.enqueue([member(id) for id in ("dead", "done", "waits", "lost")])
        broker.register({"w1": worker_info(), "w2": worker_info()})
        first, second = broker.settle_and_claim([], ["w1", "w2"]).claims
        broker.settle_and_claim([burial(first), complete(second)], [])
        change_one_row(broker, "DELETE FROM records WHERE id = ?", "lost")
    downgrade(path, 7)
    with closing(open_sqlite(a_config(path))) as broker:
        assert broker.records(["waits"])[0].batch == "b"
        assert (broker.dead_members("b").ids, broker.unfinished_members("b").ids) == (("dead",), ("lost", "waits"))
        assert broker.count_members("b", ["lost", "waits", "done", "dead"]) == 1
        assert broker.seal_batch("b")
        [claim] = broker.settle_and_claim([], ["w1"]).claims
        assert broker.settle_and_claim([complete(claim)], []).finished_batches == ("b",)
        [view] = broker.batches_by_id(["b"])
        assert (view.total, view.completed, view.dead, view.deleted) == (4, 2, 1, 1)
