"""Which files the SQLite broker opens, which it refuses, and which errors trouble with the file becomes."""

import errno
import os
import shutil
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from fileq.brokers.sqlite import SqliteBroker, database, database_schema
from fileq.core.errors import BrokerError, BrokerUnavailable, ConfigError
from fileq.files import status
from fileq.testing.conformance.builders import an_entry
from tests.support.sqlite_process import a_config, a_worker
from tests.support.unprivileged import open_path, unprivileged

__all__ = ["open_path"]

VERSION = database_schema.VERSION


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "fileq.db"


@pytest.fixture
def broker(path: Path) -> Iterator[SqliteBroker]:
    with closing(SqliteBroker(a_config(path))) as broker:
        yield broker


def make_database(path: Path, *ids: str) -> None:
    with closing(SqliteBroker(a_config(path))) as broker:
        broker.enqueue([an_entry(id) for id in ids])


def run_sql(path: Path, *statements: str) -> list[tuple[object, ...]]:
    """The rows of the last statement, run by a plain SQLite connection."""
    with closing(sqlite3.connect(path, isolation_level=None)) as db:
        return [db.execute(statement).fetchall() for statement in statements][-1]


def pending(path: Path) -> int:
    with closing(SqliteBroker(a_config(path), create=False)) as broker:
        return broker.census().pending["low"]


# the location of the file


def test_a_broker_has_its_kind_and_its_path(tmp_path: Path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with closing(SqliteBroker(a_config("./fileq.db"))) as broker:
        assert (broker.kind, broker.where) == ("sqlite", str(tmp_path / "fileq.db"))


@pytest.mark.parametrize("name", ["a b.db", "a?b#c%20.db", "ü.db", "'quoted'.db"])
def test_a_path_may_contain_any_character(tmp_path: Path, name: str):
    make_database(tmp_path / name, "a")
    assert pending(tmp_path / name) == 1
    assert (tmp_path / name).exists()


def test_jobs_are_still_there_after_reopening(path: Path):
    make_database(path, "a", "b")
    assert pending(path) == 2


def test_every_commit_reaches_the_disk_before_it_is_acknowledged(broker: SqliteBroker):
    settings = [
        broker.store.database.connection.execute(f"PRAGMA {name}").fetchone()[0]
        for name in ("journal_mode", "synchronous")
    ]
    assert settings == ["wal", 2]  # 2 is FULL


def test_opening_without_create_creates_no_database(path: Path):
    with pytest.raises(BrokerUnavailable, match=f"no database at {path}; start a producer or worker"):
        SqliteBroker(a_config(path), create=False)
    assert list(path.parent.iterdir()) == []


def test_opening_an_empty_file_without_create_leaves_it_empty(path: Path):
    path.touch()
    with pytest.raises(BrokerUnavailable, match="no database at"):
        SqliteBroker(a_config(path), create=False)
    assert path.read_bytes() == b""


def test_an_empty_file_becomes_a_database(path: Path):
    path.touch()
    make_database(path, "a")
    assert pending(path) == 1


@pytest.mark.parametrize("create", [True, False])
def test_the_error_for_a_missing_directory_names_it(tmp_path: Path, create: bool):
    with pytest.raises(BrokerUnavailable, match=f"no database at {tmp_path}/no/fileq.db; .* or set sqlite.path"):
        SqliteBroker(a_config(tmp_path / "no" / "fileq.db"), create=create)


def test_a_database_that_can_only_be_read_is_refused_to_those_who_write(open_path: Path):
    path = open_path / "fileq.db"
    make_database(path, "a")
    path.chmod(0o444)
    with (
        unprivileged(),
        pytest.raises(BrokerUnavailable, match=f"database {path}: can't be read and written: {path}; check the perm"),
    ):
        SqliteBroker(a_config(path))
    assert pending(path) == 1, "a command that only reads"


def test_a_directory_is_refused(tmp_path: Path):
    with pytest.raises(ConfigError, match=f"sqlite.path is {tmp_path}, a directory"):
        SqliteBroker(a_config(tmp_path))


def test_a_network_file_system_is_refused(path: Path, monkeypatch):
    table = f"1 0 0:1 / {path.parent} rw - nfs4 nas:/ rw\n".encode()
    monkeypatch.setattr(status, "read_mountinfo", lambda: table)
    with pytest.raises(ConfigError, match=r"a network file system \(nfs4\)"):
        SqliteBroker(a_config(path))
    assert not path.exists()


def test_the_error_for_a_lock_file_that_cannot_be_created_names_it(path: Path, monkeypatch):
    def full(*_: object, **__: object) -> int:
        raise OSError(errno.EDQUOT, os.strerror(errno.EDQUOT), f"{path}-lock")

    path.touch()
    monkeypatch.setattr(os, "open", full)
    with pytest.raises(BrokerUnavailable, match=f"{path}-lock; check the permissions"):
        SqliteBroker(a_config(path), create=False)


def test_a_database_removed_while_in_use_takes_no_more_jobs(path: Path, broker: SqliteBroker):
    path.unlink()
    with pytest.raises(BrokerError, match="removed or replaced while in use"):
        broker.enqueue([an_entry("a")])


# the schema of the file


def test_a_database_of_another_schema_is_refused_and_not_changed(path: Path):
    make_database(path)
    run_sql(path, f"PRAGMA user_version = {VERSION + 1}")
    before = path.read_bytes()
    expected = f"has schema {VERSION + 1} and this fileq knows {VERSION}; use the fileq that created it"
    with pytest.raises(BrokerError, match=expected):
        SqliteBroker(a_config(path))
    assert path.read_bytes() == before


def test_a_copy_of_a_database_that_is_refused_gets_no_files_beside_it(path: Path, tmp_path: Path):
    make_database(path)
    copy = tmp_path / "copied" / "copy.db"
    copy.parent.mkdir()
    shutil.copy(path, copy)
    run_sql(copy, f"PRAGMA user_version = {VERSION + 1}")
    with pytest.raises(BrokerError, match=f"has schema {VERSION + 1}"):
        SqliteBroker(a_config(copy))
    assert os.listdir(copy.parent) == ["copy.db"]


def test_a_broker_whose_schema_was_changed_meanwhile_writes_nothing_more(path: Path, broker):
    run_sql(path, f"PRAGMA user_version = {VERSION + 1}")
    with pytest.raises(BrokerError, match=f"became schema {VERSION + 1} while in use"):
        broker.enqueue([an_entry("a")])
    assert run_sql(path, "SELECT count(*) FROM queued") == [(0,)]


# other files


def test_a_file_that_is_no_database_is_refused_and_not_changed(path: Path):
    path.write_bytes(b"plain text, no database\n" * 100)
    with pytest.raises(BrokerError, match="it is not an SQLite database; set"):
        SqliteBroker(a_config(path))
    assert path.read_bytes() == b"plain text, no database\n" * 100
    assert os.listdir(path.parent) == [path.name]


def test_a_database_of_another_program_is_refused_and_not_changed(path: Path):
    run_sql(path, "CREATE TABLE addresses (name)")
    before = path.read_bytes()
    with pytest.raises(BrokerError, match="is another program's; set"):
        SqliteBroker(a_config(path))
    assert path.read_bytes() == before
    assert os.listdir(path.parent) == [path.name]


def test_a_damaged_database_is_an_error_and_not_an_outage(path: Path):
    make_database(path, *(f"job-{i}" for i in range(500)))
    content = bytearray(path.read_bytes())
    content[8192:] = b"\xff" * (len(content) - 8192)
    path.write_bytes(content)
    with pytest.raises(BrokerError, match="it is damaged") as caught:
        make_database(path, "a")
    assert not isinstance(caught.value, BrokerUnavailable)
    assert isinstance(caught.value.__cause__, sqlite3.DatabaseError)


def test_an_sqlite_library_without_returning_is_refused(path: Path, monkeypatch):
    monkeypatch.setattr(sqlite3, "sqlite_version_info", (3, 34, 1))
    with pytest.raises(BrokerError, match=r"fileq needs 3\.35\.0 or later"):
        SqliteBroker(a_config(path))


def test_a_machine_without_a_boot_id_is_refused(path: Path, monkeypatch):
    monkeypatch.setattr(database, "BOOT_ID_FILE", "/nowhere/boot_id")
    with pytest.raises(BrokerError, match="/nowhere/boot_id"):
        SqliteBroker(a_config(path))


# trouble during use


def test_a_full_disk_is_an_outage_and_no_part_of_the_batch_is_enqueued(path: Path, broker: SqliteBroker):
    broker.enqueue([an_entry("a")])
    broker.register({"w": a_worker()})
    pages = broker.store.database.connection.execute("PRAGMA page_count").fetchone()[0]
    broker.store.database.connection.execute(f"PRAGMA max_page_count = {pages}")
    with pytest.raises(BrokerUnavailable, match="the disk is full") as caught:
        broker.enqueue([an_entry(f"job-{i}") for i in range(1000)])
    assert isinstance(caught.value.__cause__, sqlite3.OperationalError)
    assert broker.census().counters == {"produced": 1}
    broker.store.database.connection.execute("PRAGMA max_page_count = 1000000")
    broker.enqueue([an_entry("b")])
    assert broker.census().pending["low"] == 2


def test_a_read_only_database_is_an_outage(broker: SqliteBroker):
    broker.store.database.connection.execute("PRAGMA query_only = ON")
    with pytest.raises(BrokerUnavailable, match="it can't be written to"):
        broker.enqueue([an_entry("a")])
    broker.store.database.connection.execute("PRAGMA query_only = OFF")
    broker.enqueue([an_entry("a")])


def test_a_database_locked_by_another_program_is_an_outage_until_it_is_unlocked(path: Path, broker: SqliteBroker):
    broker.store.database.connection.execute("PRAGMA busy_timeout = 0")
    with closing(sqlite3.connect(path, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        with pytest.raises(BrokerUnavailable, match=r"another process keeps it locked; a later try may succeed$"):
            broker.enqueue([an_entry("a")])
        assert broker.census().pending["low"] == 0
        other.execute("ROLLBACK")
    broker.enqueue([an_entry("a")])
    assert broker.census().pending["low"] == 1


def test_a_call_of_a_closed_broker_raises(broker: SqliteBroker):
    subscription, waiter = broker.subscribe(), broker.waiter()
    broker.close()
    for call in (broker.census, lambda: broker.enqueue([an_entry("a")]), broker.subscribe, lambda: subscription.get(0)):
        with pytest.raises(BrokerError, match="is closed"):
            call()
    for closed in (broker, subscription, waiter):
        closed.close()
