"""What the kernel tells of directories, on a real inotify."""

import contextlib
import errno
import os
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from fileq.producer import watch as module
from fileq.producer.watch import Heard, Watcher
from tests.support.waiting import wait_until


class Ear:
    """A watcher, and all it has heard so far."""

    def __init__(self) -> None:
        self.wake = threading.Event()
        self.watcher = Watcher(self.wake)
        self.all = Heard(set(), set(), set())

    def hear(self) -> Heard:
        heard = self.watcher.take()
        self.all.closed |= heard.closed
        self.all.created |= heard.created
        self.all.directories |= heard.directories
        self.all.is_overflown |= heard.is_overflown
        return self.all

    def wait_closed(self, path: Path) -> None:
        wait_until(lambda: bytes(path) in self.hear().closed, what=f"{path} was closed")


@pytest.fixture
def ear() -> Iterator[Ear]:
    ear = Ear()
    yield ear
    ear.watcher.close()


def kernel_watches() -> int:
    """How many the kernel keeps for this process: they are scarce."""
    count = 0
    for fd in Path("/proc/self/fdinfo").iterdir():
        with contextlib.suppress(OSError):  # closed meanwhile
            count += fd.read_text().count("inotify wd:")
    return count


def test_a_written_file_is_created_and_closed(ear, tmp_path):
    ear.watcher.watch(bytes(tmp_path))
    (tmp_path / "a").write_bytes(b"x")
    ear.wait_closed(tmp_path / "a")
    assert bytes(tmp_path / "a") in ear.all.created
    assert ear.wake.is_set()


def test_a_file_that_is_only_read_says_nothing(ear, tmp_path):
    (tmp_path / "a").write_bytes(b"x")
    ear.watcher.watch(bytes(tmp_path))
    (tmp_path / "a").read_bytes()
    (tmp_path / "b").write_bytes(b"x")
    ear.wait_closed(tmp_path / "b")
    assert bytes(tmp_path / "a") not in ear.all.closed | ear.all.created


def test_a_file_moved_in_counts_as_closed_and_a_link_as_created(ear, tmp_path):
    (tmp_path / "in").mkdir()
    (tmp_path / "a").touch()
    ear.watcher.watch(bytes(tmp_path / "in"))
    os.link(tmp_path / "a", tmp_path / "in/link")
    (tmp_path / "a").rename(tmp_path / "in/a")
    ear.wait_closed(tmp_path / "in/a")
    assert bytes(tmp_path / "in/link") in ear.all.created


def test_directories_that_come_are_told_of(ear, tmp_path):
    (tmp_path / "in").mkdir()
    (tmp_path / "x").mkdir()
    ear.watcher.watch(bytes(tmp_path / "in"))
    (tmp_path / "in/new").mkdir()
    (tmp_path / "x").rename(tmp_path / "in/moved")
    wait_until(lambda: len(ear.hear().directories) == 2)
    assert ear.all.directories == {bytes(tmp_path / "in/new"), bytes(tmp_path / "in/moved")}


def test_watching_twice_is_watching_once(ear, tmp_path):
    for _ in range(3):
        ear.watcher.watch(bytes(tmp_path))
    assert len(ear.watcher) == 1
    (tmp_path / "a").write_bytes(b"x")
    ear.wait_closed(tmp_path / "a")


def test_a_directory_that_moves_within_the_tree_speaks_by_its_new_name_only(ear, tmp_path):
    (tmp_path / "old/sub").mkdir(parents=True)
    for directory in ("", "old", "old/sub"):
        ear.watcher.watch(bytes(tmp_path / directory))
    (tmp_path / "old").rename(tmp_path / "new")
    wait_until(lambda: bytes(tmp_path / "new") in ear.hear().directories)
    for directory in ("new", "new/sub"):
        ear.watcher.watch(bytes(tmp_path / directory))
    (tmp_path / "new/sub/a").write_bytes(b"x")
    ear.wait_closed(tmp_path / "new/sub/a")
    assert ear.all.closed == {bytes(tmp_path / "new/sub/a")}


def test_a_directory_that_moves_out_is_watched_no_more(ear, tmp_path):
    (tmp_path / "in/x/y").mkdir(parents=True)
    for directory in ("in", "in/x", "in/x/y"):
        ear.watcher.watch(bytes(tmp_path / directory))
    (tmp_path / "in/x").rename(tmp_path / "x")
    wait_until(lambda: len(ear.watcher) == 1)
    assert kernel_watches() == 1
    (tmp_path / "x/y/a").write_bytes(b"x")
    (tmp_path / "in/b").write_bytes(b"x")
    ear.wait_closed(tmp_path / "in/b")
    assert ear.all.closed == {bytes(tmp_path / "in/b")}


def test_a_deleted_directory_leaves_no_watch_behind_and_its_successor_is_watched(ear, tmp_path):
    (tmp_path / "x").mkdir()
    ear.watcher.watch(bytes(tmp_path / "x"))
    (tmp_path / "x").rmdir()
    wait_until(lambda: len(ear.watcher) == 0)
    (tmp_path / "x").mkdir()
    ear.watcher.watch(bytes(tmp_path / "x"))
    (tmp_path / "x/a").write_bytes(b"x")
    ear.wait_closed(tmp_path / "x/a")


def test_a_directory_replaced_under_its_name_is_the_one_that_is_heard(ear, tmp_path):
    (tmp_path / "x").mkdir()
    ear.watcher.watch(bytes(tmp_path / "x"))
    (tmp_path / "x").rename(tmp_path / "old")
    (tmp_path / "x").mkdir()
    ear.watcher.watch(bytes(tmp_path / "x"))
    (tmp_path / "old/a").write_bytes(b"x")
    (tmp_path / "x/b").write_bytes(b"x")
    ear.wait_closed(tmp_path / "x/b")
    assert ear.all.closed == {bytes(tmp_path / "x/b")}
    assert len(ear.watcher) == 1


def test_a_directory_with_two_names_speaks_by_both(ear, tmp_path):
    (tmp_path / "x").mkdir()
    (tmp_path / "link").symlink_to("x")
    ear.watcher.watch(bytes(tmp_path / "x"))
    ear.watcher.watch(bytes(tmp_path / "link"))
    (tmp_path / "x/a").write_bytes(b"x")
    ear.wait_closed(tmp_path / "x/a")
    assert ear.all.closed == {bytes(tmp_path / "x/a"), bytes(tmp_path / "link/a")}


@pytest.mark.parametrize("name", [b"gone", b"file", b"x" * 300])
def test_what_cannot_be_watched_is_left_to_the_listing(ear, tmp_path, name):
    (tmp_path / "file").touch()
    ear.watcher.watch(os.path.join(bytes(tmp_path), name))
    assert len(ear.watcher) == 0


def test_when_the_kernel_has_no_more_watches_it_says_so(ear, tmp_path, monkeypatch):
    monkeypatch.setattr(module, "inotify_add_watch", lambda fd, path, mask: -1)
    monkeypatch.setattr(module.ctypes, "get_errno", lambda: errno.ENOSPC)
    with pytest.raises(OSError, match=r"fs\.inotify\.max_user_watches"):
        ear.watcher.watch(bytes(tmp_path))


def test_when_the_kernel_has_no_more_instances_it_says_so(monkeypatch):
    monkeypatch.setattr(module, "inotify_init", lambda: -1)
    monkeypatch.setattr(module.ctypes, "get_errno", lambda: errno.EMFILE)
    with pytest.raises(OSError, match=r"fs\.inotify\.max_user_instances"):
        Watcher(threading.Event())


def test_more_than_can_be_kept_is_an_overflow(ear, tmp_path, monkeypatch):
    monkeypatch.setattr(module, "MOST_HEARD", 10)
    ear.watcher.watch(bytes(tmp_path))
    for n in range(50):
        (tmp_path / str(n)).touch()
    wait_until(lambda: ear.hear().is_overflown)


def test_odd_names_arrive_as_they_are(ear, tmp_path):
    ear.watcher.watch(bytes(tmp_path))
    for name in (b"a\nb", b"\xff", b"x" * 255, b"x" * 15, b"x" * 16, b" "):
        path = os.path.join(bytes(tmp_path), name)
        with open(path, "wb"):
            pass
        wait_until(lambda path=path: path in ear.hear().closed)


def test_closing_twice_is_closing_once(tmp_path):
    before = set(os.listdir("/proc/self/fd"))
    watcher = Watcher(threading.Event())
    watcher.watch(bytes(tmp_path))
    watcher.close()
    watcher.close()
    assert set(os.listdir("/proc/self/fd")) == before
