"""Waiting until files stand still."""

import pytest

from fileq.producer.scan import Found
from fileq.producer.settle import Settling

CLOSE, UNCLOSED = 0.5, 5.0


def file(path: bytes = b"/d/a", size: int = 1, mtime_ns: int = 100, inode: int = 7) -> Found:
    return Found(path, size, mtime_ns, inode, ctime_ns=100)


class Disk:
    """What a second look finds."""

    def __init__(self, *files: Found) -> None:
        self.files = {found.path: found for found in files}

    def look(self, path: bytes) -> Found | None:
        return self.files.get(path)


def settling(most: int = 100) -> Settling:
    return Settling(CLOSE, UNCLOSED, most)


def test_a_file_without_a_close_settles_after_the_longer_time():
    some, disk = settling(), Disk(file())
    assert some.offer(file(), 10.0, is_closed=False)
    assert some.take_settled(14.9, 10, disk.look) == ([], [])
    assert some.next_due_s() == 15.0
    assert some.take_settled(15.0, 10, disk.look) == ([file()], [])
    assert len(some) == 0
    assert some.next_due_s() is None


def test_a_file_that_was_closed_settles_after_the_shorter_time():
    some = settling()
    some.offer(file(), 10.0, is_closed=True)
    assert some.take_settled(10.4, 10, Disk(file()).look) == ([], [])
    assert some.take_settled(10.5, 10, Disk(file()).look) == ([file()], [])


def test_a_close_shortens_the_wait_of_a_file_that_was_seen_before():
    some = settling()
    some.offer(file(), 10.0, is_closed=False)
    some.offer(file(), 12.0, is_closed=True)
    assert some.next_due_s() == 12.5
    assert some.take_settled(12.5, 10, Disk(file()).look) == ([file()], [])
    assert some.take_settled(99.0, 10, Disk(file()).look) == ([], [])


def test_every_close_starts_the_time_anew():
    some = settling()
    some.offer(file(), 10.0, is_closed=True)
    some.offer(file(), 10.4, is_closed=True)
    assert some.take_settled(10.5, 10, Disk(file()).look) == ([], [])
    assert some.take_settled(10.9, 10, Disk(file()).look) == ([file()], [])


def test_a_scan_that_sees_the_same_file_again_changes_nothing():
    some = settling()
    some.offer(file(), 10.0, is_closed=True)
    some.offer(file(), 10.3, is_closed=False)
    assert some.next_due_s() == 10.5


def test_a_change_seen_on_the_way_starts_the_time_anew_and_takes_the_close_back():
    for changed in (file(size=2), file(mtime_ns=200), file(inode=8)):
        some = settling()
        some.offer(file(), 10.0, is_closed=True)
        some.offer(changed, 10.3, is_closed=False)
        assert some.next_due_s() == 15.3
        assert some.take_settled(15.3, 10, Disk(changed).look) == ([changed], [])


def test_a_file_that_changed_since_is_told_of_and_waits_again_as_unclosed():
    for changed in (file(size=2), file(mtime_ns=200), file(inode=8)):
        some = settling()
        some.offer(file(), 10.0, is_closed=True)
        assert some.take_settled(10.5, 10, Disk(changed).look) == ([], [changed])
        assert changed.path in some
        assert some.next_due_s() == 15.5
        assert some.take_settled(15.5, 10, Disk(changed).look) == ([changed], [])


def test_a_file_that_never_stands_still_is_never_dropped():
    some, now_s = settling(), 0.0
    some.offer(file(), now_s, is_closed=False)
    for size in range(2, 50):
        now_s += UNCLOSED
        assert some.take_settled(now_s, 10, Disk(file(size=size)).look) == ([], [file(size=size)])
    assert len(some) == 1
    assert some.take_settled(now_s + UNCLOSED, 10, Disk(file(size=49)).look) == ([file(size=49)], [])


def test_a_file_that_is_gone_is_forgotten():
    some = settling()
    some.offer(file(), 10.0, is_closed=True)
    assert some.take_settled(11.0, 10, Disk().look) == ([], [])
    assert len(some) == 0


def test_the_earliest_come_first_and_no_more_than_asked_for():
    some = settling()
    files = [file(b"/d/%d" % n) for n in range(5)]
    for n, found in enumerate(reversed(files)):
        some.offer(found, 10.0 + n, is_closed=True)
    assert some.take_settled(99.0, 2, Disk(*files).look) == ([files[4], files[3]], [])
    assert len(some) == 3


def test_when_there_is_no_room_others_are_turned_away_and_those_inside_are_not():
    some = settling(most=2)
    assert some.offer(file(b"/d/a"), 1.0, is_closed=True)
    assert some.offer(file(b"/d/b"), 1.0, is_closed=True)
    assert some.is_full
    assert not some.offer(file(b"/d/c"), 1.0, is_closed=True)
    assert some.offer(file(b"/d/b", size=2), 1.0, is_closed=True)
    assert len(some) == 2


def test_when_there_is_no_room_files_that_keep_changing_make_some():
    some = settling(most=2)
    some.offer(file(b"/d/a"), 1.0, is_closed=True)
    some.offer(file(b"/d/b"), 1.0, is_closed=True)
    changed = file(b"/d/a", size=2)
    assert some.take_settled(1.5, 1, Disk(changed).look) == ([], [changed])
    assert b"/d/a" not in some
    assert not some.is_full


def test_a_look_that_fails_loses_no_file():
    some = settling()
    some.offer(file(), 1.0, is_closed=True)

    def broken(path: bytes) -> Found | None:
        raise MemoryError

    with pytest.raises(MemoryError):
        some.take_settled(2.0, 10, broken)
    assert some.take_settled(2.0, 10, Disk(file()).look) == ([file()], [])
