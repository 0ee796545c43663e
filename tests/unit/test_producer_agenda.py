"""What is scanned next, and when."""

import pytest

from fileq.producer import agenda as module
from fileq.producer.agenda import NEVER, Agenda

ROOT, MOUNT = b"/d", b"/d/nfs"


@pytest.fixture
def agenda() -> Agenda:
    return Agenda(ROOT, rescan_s=60.0, poll_s=1.0)


@pytest.fixture
def scanned(agenda: Agenda) -> Agenda:
    """After the first scan, at 100 s, where nothing is polled."""
    assert agenda.take_whole()
    agenda.finished(ROOT, 100.0, 3.0, [])
    return agenda


def test_it_begins_with_a_whole_scan(agenda):
    assert not agenda.is_empty
    assert agenda.take_part() is None
    assert agenda.take_whole()
    assert agenda.is_empty
    assert not agenda.take_whole()


def test_the_next_whole_scan_is_due_an_interval_after_the_end_of_the_last(scanned):
    assert scanned.next_due_s == 160.0
    scanned.plan(159.9, [])
    assert scanned.is_empty
    scanned.plan(160.0, [])
    assert scanned.take_whole()
    assert scanned.next_due_s == NEVER


def test_directories_are_scanned_in_the_order_in_which_they_were_heard_of_each_once(scanned):
    for name in (b"/d/a", b"/d/b", b"/d/a"):
        scanned.want(name)
    assert [scanned.take_part(), scanned.take_part(), scanned.take_part()] == [b"/d/a", b"/d/b", None]


def test_a_directory_heard_of_while_a_whole_scan_is_wanted_does_not_wait_for_it(agenda):
    agenda.want(b"/d/a")
    assert agenda.take_part() == b"/d/a"
    assert agenda.take_whole()


def test_scan_dir_itself_is_the_whole(scanned):
    scanned.want(ROOT)
    assert scanned.take_part() is None
    assert scanned.take_whole()


def test_too_many_directories_become_one_whole_scan(scanned, monkeypatch):
    monkeypatch.setattr(module, "MOST_PARTS", 3)
    for n in range(4):
        scanned.want(b"/d/%d" % n)
    assert scanned.take_part() is None
    assert scanned.take_whole()


def test_what_is_polled_is_due_after_the_poll_interval(agenda):
    agenda.take_whole()
    agenda.finished(ROOT, 100.0, 0.1, [MOUNT])
    assert agenda.next_due_s == 101.0
    agenda.plan(101.0, [MOUNT])
    assert agenda.take_part() == MOUNT
    assert not agenda.take_whole()
    agenda.finished(MOUNT, 101.2, 0.2, [MOUNT])
    assert agenda.next_due_s == 102.2


def test_polls_are_stretched_to_twice_the_time_the_last_took(agenda):
    agenda.take_whole()
    agenda.finished(ROOT, 100.0, 7.0, [ROOT])
    assert agenda.next_due_s == 114.0
    agenda.plan(114.0, [ROOT])
    assert agenda.take_whole()


def test_a_poll_of_several_mounts_counts_their_times_together(agenda):
    agenda.take_whole()
    agenda.finished(ROOT, 100.0, 0.1, [MOUNT, b"/d/smb"])
    agenda.plan(101.0, [MOUNT, b"/d/smb"])
    agenda.finished(MOUNT, 103.0, 2.0, [MOUNT, b"/d/smb"])
    assert agenda.next_due_s == 160.0
    agenda.finished(b"/d/smb", 106.0, 3.0, [MOUNT, b"/d/smb"])
    assert agenda.next_due_s == 116.0


def test_small_scans_that_events_asked_for_do_not_put_off_a_poll(agenda):
    agenda.take_whole()
    agenda.finished(ROOT, 100.0, 0.1, [MOUNT])
    for n in range(9):
        agenda.want(b"/d/a")
        assert agenda.take_part() == b"/d/a"
        agenda.finished(b"/d/a", 100.1 + n / 10, 0.01, [MOUNT])
    assert agenda.next_due_s == 101.0


def test_a_mount_that_appears_later_is_polled_from_the_next_whole_scan_on(scanned):
    scanned.plan(160.0, [])
    scanned.take_whole()
    scanned.finished(ROOT, 161.0, 0.1, [MOUNT])
    assert scanned.next_due_s == 162.0


def test_a_mount_that_went_is_polled_no_more(agenda):
    agenda.take_whole()
    agenda.finished(ROOT, 100.0, 0.1, [MOUNT])
    agenda.plan(101.0, [])
    assert agenda.is_empty
    assert agenda.next_due_s == 160.0


def test_when_there_was_nothing_to_scan_it_is_tried_again_soon(scanned):
    scanned.want(b"/d/a")
    scanned.failed(200.0, 1.0)
    assert scanned.is_empty
    assert scanned.next_due_s == 201.0
    scanned.plan(201.0, [])
    assert scanned.take_whole()
