"""The events that a DirectoryWatcher collects, on a real inotify."""

import contextlib
import errno
import os
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from fileq.producer.finder import finder as module
from fileq.producer.finder.finder import DirectoryWatcher, WatchEvents
from tests.support.waiting import wait_until


class Collected:
    """A watcher, and all its events so far."""

    def __init__(self) -> None:
        self.wake = threading.Event()
        self.watcher = DirectoryWatcher(self.wake)
        self.all = WatchEvents()

    def take(self) -> WatchEvents:
        events = self.watcher.take_events()
        self.all.closed |= events.closed
        self.all.created |= events.created
        self.all.directories |= events.directories
        self.all.is_overflown |= events.is_overflown
        return self.all

    def wait_closed(self, path: Path) -> None:
        wait_until(lambda: bytes(path) in self.take().closed, what=f"{path} was closed")


@pytest.fixture
def collected() -> Iterator[Collected]:
    collected = Collected()
    yield collected
    collected.watcher.close()


def kernel_watches() -> int:
    """The number of watches that the kernel holds for this process."""
    count = 0
    for fd in Path("/proc/self/fdinfo").iterdir():
        with contextlib.suppress(OSError):  # closed since it was listed
            count += fd.read_text().count("inotify wd:")
    return count


def test_a_written_file_is_reported_as_created_and_closed(collected, tmp_path):
    collected.watcher.watch(bytes(tmp_path))
    (tmp_path / "a").write_bytes(b"x")
    collected.wait_closed(tmp_path / "a")
    assert bytes(tmp_path / "a") in collected.all.created
    assert collected.wake.is_set()


def test_reading_a_file_causes_no_event(collected, tmp_path):
    (tmp_path / "a").write_bytes(b"x")
    collected.watcher.watch(bytes(tmp_path))
    (tmp_path / "a").read_bytes()
    (tmp_path / "b").write_bytes(b"x")
    collected.wait_closed(tmp_path / "b")
    assert bytes(tmp_path / "a") not in collected.all.closed | collected.all.created


def test_a_file_moved_in_counts_as_closed_and_a_link_as_created(collected, tmp_path):
    (tmp_path / "in").mkdir()
    (tmp_path / "a").touch()
    collected.watcher.watch(bytes(tmp_path / "in"))
    os.link(tmp_path / "a", tmp_path / "in/link")
    (tmp_path / "a").rename(tmp_path / "in/a")
    collected.wait_closed(tmp_path / "in/a")
    assert bytes(tmp_path / "in/link") in collected.all.created


def test_new_directories_are_reported(collected, tmp_path):
    (tmp_path / "in").mkdir()
    (tmp_path / "x").mkdir()
    collected.watcher.watch(bytes(tmp_path / "in"))
    (tmp_path / "in/new").mkdir()
    (tmp_path / "x").rename(tmp_path / "in/moved")
    wait_until(lambda: len(collected.take().directories) == 2)
    assert collected.all.directories == {bytes(tmp_path / "in/new"), bytes(tmp_path / "in/moved")}


def test_watching_a_directory_twice_is_one_watch(collected, tmp_path):
    for _ in range(3):
        collected.watcher.watch(bytes(tmp_path))
    assert len(collected.watcher) == 1
    (tmp_path / "a").write_bytes(b"x")
    collected.wait_closed(tmp_path / "a")


def test_events_of_a_moved_directory_have_its_new_path_only(collected, tmp_path):
    (tmp_path / "old/sub").mkdir(parents=True)
    for directory in ("", "old", "old/sub"):
        collected.watcher.watch(bytes(tmp_path / directory))
    (tmp_path / "old").rename(tmp_path / "new")
    wait_until(lambda: bytes(tmp_path / "new") in collected.take().directories)
    for directory in ("new", "new/sub"):
        collected.watcher.watch(bytes(tmp_path / directory))
    (tmp_path / "new/sub/a").write_bytes(b"x")
    collected.wait_closed(tmp_path / "new/sub/a")
    assert collected.all.closed == {bytes(tmp_path / "new/sub/a")}


def test_a_directory_that_moves_out_is_no_longer_watched(collected, tmp_path):
    (tmp_path / "in/x/y").mkdir(parents=True)
    for directory in ("in", "in/x", "in/x/y"):
        collected.watcher.watch(bytes(tmp_path / directory))
    (tmp_path / "in/x").rename(tmp_path / "x")
    wait_until(lambda: len(collected.watcher) == 1)
    assert kernel_watches() == 1
    (tmp_path / "x/y/a").write_bytes(b"x")
    (tmp_path / "in/b").write_bytes(b"x")
    collected.wait_closed(tmp_path / "in/b")
    assert collected.all.closed == {bytes(tmp_path / "in/b")}


def test_a_deleted_directory_leaves_no_watch_and_can_be_watched_again(collected, tmp_path):
    (tmp_path / "x").mkdir()
    collected.watcher.watch(bytes(tmp_path / "x"))
    (tmp_path / "x").rmdir()
    wait_until(lambda: len(collected.watcher) == 0)
    (tmp_path / "x").mkdir()
    collected.watcher.watch(bytes(tmp_path / "x"))
    (tmp_path / "x/a").write_bytes(b"x")
    collected.wait_closed(tmp_path / "x/a")


def test_after_a_directory_was_replaced_only_the_new_one_is_watched(collected, tmp_path):
    (tmp_path / "x").mkdir()
    collected.watcher.watch(bytes(tmp_path / "x"))
    (tmp_path / "x").rename(tmp_path / "old")
    (tmp_path / "x").mkdir()
    collected.watcher.watch(bytes(tmp_path / "x"))
    (tmp_path / "old/a").write_bytes(b"x")
    (tmp_path / "x/b").write_bytes(b"x")
    collected.wait_closed(tmp_path / "x/b")
    assert collected.all.closed == {bytes(tmp_path / "x/b")}
    assert len(collected.watcher) == 1


def test_events_of_a_directory_with_two_paths_have_both(collected, tmp_path):
    (tmp_path / "x").mkdir()
    (tmp_path / "link").symlink_to("x")
    collected.watcher.watch(bytes(tmp_path / "x"))
    collected.watcher.watch(bytes(tmp_path / "link"))
    (tmp_path / "x/a").write_bytes(b"x")
    collected.wait_closed(tmp_path / "x/a")
    assert collected.all.closed == {bytes(tmp_path / "x/a"), bytes(tmp_path / "link/a")}


@pytest.mark.parametrize("name", [b"gone", b"file", b"x" * 300])
def test_a_path_that_cannot_be_watched_is_ignored(collected, tmp_path, name):
    (tmp_path / "file").touch()
    collected.watcher.watch(os.path.join(bytes(tmp_path), name))
    assert len(collected.watcher) == 0


def test_without_further_watches_the_error_names_the_kernel_setting(collected, tmp_path, monkeypatch):
    monkeypatch.setattr(module, "inotify_add_watch", lambda fd, path, mask: -1)
    monkeypatch.setattr(module.ctypes, "get_errno", lambda: errno.ENOSPC)
    with pytest.raises(OSError, match=r"fs\.inotify\.max_user_watches"):
        collected.watcher.watch(bytes(tmp_path))


def test_without_further_instances_the_error_names_the_kernel_setting(monkeypatch):
    monkeypatch.setattr(module, "inotify_init", lambda: -1)
    monkeypatch.setattr(module.ctypes, "get_errno", lambda: errno.EMFILE)
    with pytest.raises(OSError, match=r"fs\.inotify\.max_user_instances"):
        DirectoryWatcher(threading.Event())


def test_more_events_than_the_limit_are_an_overflow(collected, tmp_path, monkeypatch):
    monkeypatch.setattr(module, "EVENTS_MAX", 10)
    collected.watcher.watch(bytes(tmp_path))
    for n in range(50):
        (tmp_path / str(n)).touch()
    wait_until(lambda: collected.take().is_overflown)


def test_unusual_names_arrive_unchanged(collected, tmp_path):
    collected.watcher.watch(bytes(tmp_path))
    for name in (b"a\nb", b"\xff", b"x" * 255, b"x" * 15, b"x" * 16, b" "):
        path = os.path.join(bytes(tmp_path), name)
        with open(path, "wb"):
            pass
        wait_until(lambda path=path: path in collected.take().closed)


def test_close_is_idempotent_and_frees_every_file_descriptor(tmp_path):
    before = set(os.listdir("/proc/self/fd"))
    watcher = DirectoryWatcher(threading.Event())
    watcher.watch(bytes(tmp_path))
    watcher.close()
    watcher.close()
    assert set(os.listdir("/proc/self/fd")) == before
