"""Which directory is scanned next, and when."""

import pytest

from fileq.producer.finder import finder as module
from fileq.producer.finder.finder import NEVER, ScanSchedule

ROOT, MOUNT = b"/d", b"/d/nfs"


@pytest.fixture
def schedule() -> ScanSchedule:
    return ScanSchedule(ROOT, rescan_s=60.0, poll_s=1.0)


@pytest.fixture
def scanned(schedule: ScanSchedule) -> ScanSchedule:
    """After the first scan, at 100 s, where nothing is polled."""
    assert schedule.take_whole()
    schedule.finish(ROOT, 100.0, 3.0, [])
    return schedule


def test_the_first_scan_is_a_whole_one(schedule):
    assert not schedule.is_empty
    assert schedule.take_part() is None
    assert schedule.take_whole()
    assert schedule.is_empty
    assert not schedule.take_whole()


def test_the_next_whole_scan_is_due_an_interval_after_the_end_of_the_last(scanned):
    assert scanned.next_due_s == 160.0
    scanned.advance(159.9, [])
    assert scanned.is_empty
    scanned.advance(160.0, [])
    assert scanned.take_whole()
    assert scanned.next_due_s == NEVER


def test_requested_directories_are_scanned_in_order_and_once_each(scanned):
    for name in (b"/d/a", b"/d/b", b"/d/a"):
        scanned.request(name)
    assert [scanned.take_part(), scanned.take_part(), scanned.take_part()] == [b"/d/a", b"/d/b", None]


def test_a_requested_directory_does_not_wait_for_a_whole_scan(schedule):
    schedule.request(b"/d/a")
    assert schedule.take_part() == b"/d/a"
    assert schedule.take_whole()


def test_a_request_for_scan_dir_itself_is_a_whole_scan(scanned):
    scanned.request(ROOT)
    assert scanned.take_part() is None
    assert scanned.take_whole()


def test_too_many_directories_become_one_whole_scan(scanned, monkeypatch):
    monkeypatch.setattr(module, "PARTS_MAX", 3)
    for n in range(4):
        scanned.request(b"/d/%d" % n)
    assert scanned.take_part() is None
    assert scanned.take_whole()


def test_a_polled_directory_is_due_after_the_poll_interval(schedule):
    schedule.take_whole()
    schedule.finish(ROOT, 100.0, 0.1, [MOUNT])
    assert schedule.next_due_s == 101.0
    schedule.advance(101.0, [MOUNT])
    assert schedule.take_part() == MOUNT
    assert not schedule.take_whole()
    schedule.finish(MOUNT, 101.2, 0.2, [MOUNT])
    assert schedule.next_due_s == 102.2


def test_a_poll_waits_twice_as_long_as_the_last_one_took(schedule):
    schedule.take_whole()
    schedule.finish(ROOT, 100.0, 7.0, [ROOT])
    assert schedule.next_due_s == 114.0
    schedule.advance(114.0, [ROOT])
    assert schedule.take_whole()


def test_the_times_of_several_polled_mounts_are_added_up(schedule):
    schedule.take_whole()
    schedule.finish(ROOT, 100.0, 0.1, [MOUNT, b"/d/smb"])
    schedule.advance(101.0, [MOUNT, b"/d/smb"])
    schedule.finish(MOUNT, 103.0, 2.0, [MOUNT, b"/d/smb"])
    assert schedule.next_due_s == 160.0
    schedule.finish(b"/d/smb", 106.0, 3.0, [MOUNT, b"/d/smb"])
    assert schedule.next_due_s == 116.0


def test_scans_requested_by_events_do_not_postpone_a_poll(schedule):
    schedule.take_whole()
    schedule.finish(ROOT, 100.0, 0.1, [MOUNT])
    for n in range(9):
        schedule.request(b"/d/a")
        assert schedule.take_part() == b"/d/a"
        schedule.finish(b"/d/a", 100.1 + n / 10, 0.01, [MOUNT])
    assert schedule.next_due_s == 101.0


def test_a_new_mount_is_polled_after_the_next_whole_scan(scanned):
    scanned.advance(160.0, [])
    scanned.take_whole()
    scanned.finish(ROOT, 161.0, 0.1, [MOUNT])
    assert scanned.next_due_s == 162.0


def test_an_unmounted_directory_is_no_longer_polled(schedule):
    schedule.take_whole()
    schedule.finish(ROOT, 100.0, 0.1, [MOUNT])
    schedule.advance(101.0, [])
    assert schedule.is_empty
    assert schedule.next_due_s == 160.0


def test_a_failed_whole_scan_is_repeated_soon(scanned):
    scanned.request(b"/d/a")
    scanned.fail(200.0, 1.0)
    assert scanned.is_empty
    assert scanned.next_due_s == 201.0
    scanned.advance(201.0, [])
    assert scanned.take_whole()
