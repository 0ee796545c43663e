"""Which users can open the files of a database, and what another user's files at their names do."""

from __future__ import annotations

import os
import sqlite3
import stat
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from fileq.brokers.sqlite import SqliteBroker
from fileq.brokers.sqlite.file_access import check_side_file, check_writers, narrowed
from fileq.core.errors import BrokerError
from tests.support.producer_setup import BrokerSetup
from tests.support.program import run
from tests.support.sqlite_process import a_config, an_entry

ALL = {"fileq.db", "fileq.db-wal", "fileq.db-shm", "fileq.db-lock", "fileq.db-listen", "fileq.db-leases"}
STRANGER = 54321


@pytest.fixture
def no_umask() -> Iterator[None]:
    """The widest modes that a process can ask for; programs started meanwhile inherit it."""
    before = os.umask(0)
    yield
    os.umask(before)


def modes(directory: Path) -> dict[str, int]:
    return {path.name: stat.S_IMODE(path.stat().st_mode) for path in directory.glob("fileq.db*")}


def test_no_other_user_can_open_the_files_of_a_running_program(on_sqlite: BrokerSetup, no_umask: None) -> None:
    with on_sqlite.producer():
        assert modes(on_sqlite.directory) == dict.fromkeys(ALL, 0o600)


@pytest.mark.parametrize(
    ("before", "after"), [(0o644, 0o600), (0o666, 0o600), (0o664, 0o600), (0o640, 0o640), (0o660, 0o640)]
)
def test_files_that_others_can_open_are_narrowed_while_another_process_uses_them(
    tmp_path: Path, before: int, after: int
) -> None:
    """A group that could read them still can; no group can write."""
    path = tmp_path / "fileq.db"
    with closing(SqliteBroker(a_config(path))) as user:
        user.enqueue([an_entry("a")])
        for name in ALL:
            (tmp_path / name).chmod(before)
        with closing(SqliteBroker(a_config(path), create=False)) as broker:
            assert modes(tmp_path) == dict.fromkeys(ALL, after)
            broker.enqueue([an_entry("b")])
        user.enqueue([an_entry("c")])
        assert user.census().pending["low"] == 3


def test_the_log_of_a_database_that_a_group_may_read_can_be_read_by_it_too(tmp_path: Path, no_umask: None) -> None:
    path = tmp_path / "fileq.db"
    path.touch(0o640)
    with closing(SqliteBroker(a_config(path))):
        assert modes(tmp_path) == dict.fromkeys(ALL, 0o640)


def test_a_new_database_behind_a_link_is_private(tmp_path: Path, no_umask: None) -> None:
    (tmp_path / "disk").mkdir()
    (tmp_path / "link.db").symlink_to(tmp_path / "disk" / "fileq.db")
    with closing(SqliteBroker(a_config(tmp_path / "link.db"))):
        assert modes(tmp_path / "disk") == dict.fromkeys(("fileq.db", "fileq.db-wal", "fileq.db-shm"), 0o600)


@pytest.mark.parametrize("suffix", ["-lock", "-listen", "-leases", "-wal", "-shm", "-journal"])
@pytest.mark.parametrize("is_dangling", [True, False])
def test_a_link_at_the_name_of_a_side_file_is_refused_and_not_followed(
    tmp_path: Path, suffix: str, is_dangling: bool
) -> None:
    target, link = tmp_path / "target", tmp_path / f"fileq.db{suffix}"
    link.symlink_to(target)
    if not is_dangling:
        target.touch()
    with pytest.raises(BrokerError, match=f"{link} is a symbolic link; fileq does not use it: remove it"):
        SqliteBroker(a_config(tmp_path / "fileq.db"))
    assert target.exists() != is_dangling
    assert is_dangling or target.read_bytes() == b""


def test_the_program_ends_with_one_line_about_such_a_link(on_sqlite: BrokerSetup) -> None:
    link = on_sqlite.directory / "fileq.db-lock"
    link.symlink_to("/dev/null")
    settings = on_sqlite.all_settings(producer__scan_dir=on_sqlite.inbox)
    ended = run("producer", "--once", cwd=on_sqlite.directory, settings=settings)
    assert ended.returncode == 1
    assert ended.stderr.splitlines()[-1].startswith(f"fileq: {link} is a symbolic link; fileq does not use it")
    assert "Traceback" not in ended.stderr


def test_a_pipe_at_the_name_of_a_lock_is_refused_at_once(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fileq.db-lock")
    with pytest.raises(BrokerError, match=r"fileq\.db-lock is not a regular file; fileq does not use it: remove it"):
        SqliteBroker(a_config(tmp_path / "fileq.db"))


def of_user(uid: int) -> os.stat_result:
    return os.stat_result((stat.S_IFREG | 0o666, 1, 1, 1, uid, uid, 0, 0, 0, 0))


def test_a_side_file_of_another_user_is_refused() -> None:
    with pytest.raises(BrokerError, match=f"x-lock belongs to the user {STRANGER}, who could stop the queue"):
        check_side_file("x-lock", of_user(STRANGER), of_user(os.geteuid()))
    for trusted in (0, os.geteuid()):
        check_side_file("x-lock", of_user(trusted), of_user(os.geteuid()))
    check_side_file("x-lock", of_user(STRANGER), of_user(STRANGER))  # root looks at a service's database


def test_no_mode_is_wider_than_0640_and_none_becomes_wider() -> None:
    for mode in range(0o1000):
        assert narrowed(mode) & ~0o640 == 0
        assert narrowed(mode) & ~mode == 0


def test_a_database_that_another_program_holds_keeps_its_locks(tmp_path: Path) -> None:
    """Opening and closing a descriptor of the file would release the locks that this process has on it."""
    path = tmp_path / "fileq.db"
    with closing(SqliteBroker(a_config(path))) as broker, closing(sqlite3.connect(path, isolation_level=None)) as held:
        held.execute("BEGIN IMMEDIATE")
        with closing(SqliteBroker(a_config(path))):
            pass
        locks = Path("/proc/locks").read_text()
        assert f":{(tmp_path / 'fileq.db-shm').stat().st_ino} " in locks
        held.execute("ROLLBACK")
        broker.enqueue([an_entry("a")])


def test_a_database_of_another_user_that_all_can_write_to_is_refused(tmp_path: Path) -> None:
    """L8: root ran the jobs of a database that any user could have filled."""
    with pytest.raises(BrokerError, match=f"belongs to the user {STRANGER}"):
        check_writers("x.db", of_user(STRANGER))
    if os.geteuid() != 0:
        return  # only root can give a file to another user
    path = tmp_path / "fileq.db"
    SqliteBroker(a_config(path)).close()
    os.chown(path, STRANGER, STRANGER)
    path.chmod(0o666)
    with pytest.raises(BrokerError, match=r"every user can write to it \(mode 0666\)"):
        SqliteBroker(a_config(path))
    for command in ("doctor", "stats"):
        shown = run(command, cwd=tmp_path, settings={"broker": "sqlite", "sqlite.path": str(path)})
        assert shown.returncode != 0
        assert "every user can write to it" in shown.stdout + shown.stderr
    path.chmod(0o640)
    SqliteBroker(a_config(path)).close()
