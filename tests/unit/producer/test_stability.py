"""When a file is stable."""

import pytest

from fileq.config import config_from
from fileq.files.status import FoundFile, ScanDirMounts
from fileq.producer import stability as module
from fileq.producer.finder.scan import ProducerCounts
from fileq.producer.stability import ClockGuard, Stability
from tests.support.clocks import ManualClocks

CLOSED, UNCLOSED = 0.5, 5.0  # the defaults of settle and settle_unclosed


def file(path: bytes = b"/d/a", size: int = 1, mtime_ns: int = 100, inode: int = 7) -> FoundFile:
    return FoundFile(path, size, mtime_ns, inode)


class Disk:
    """Rules by which every file counts; `files` is what a second look finds."""

    def __init__(self) -> None:
        self.files: dict[bytes, FoundFile] = {}
        self.counts = ProducerCounts()

    def find(self, path: bytes) -> FoundFile | None:
        return self.files.get(path)


class Waiting:
    """A stability stage over a disk of the test."""

    def __init__(self) -> None:
        self.disk = Disk()
        self.counts = self.disk.counts
        hands = ManualClocks()
        clock = ClockGuard(UNCLOSED, hands.wall_ns, hands.monotonic)
        config = config_from({"broker": "memory"})
        self.stage = Stability(config, self.disk, None, ScanDirMounts(b"/d"), clock)  # type: ignore[arg-type]

    def add(self, found: FoundFile, now_s: float, *, is_closed: bool) -> bool:
        self.disk.files[found.path] = found
        return self.stage.add([found], now_s, is_closed=is_closed)

    def change(self, found: FoundFile) -> None:
        self.disk.files[found.path] = found

    def turn(self, now_s: float, most: int = 10) -> list[FoundFile]:
        return self.stage.turn(now_s, most)

    @property
    def changing(self) -> int:
        """How often a file was found changed after its time."""
        return self.counts.skipped["changing"]  # type: ignore[index]


@pytest.fixture
def waiting() -> Waiting:
    return Waiting()


def changes() -> list[FoundFile]:
    return [file(size=2), file(mtime_ns=200), file(inode=8)]


def test_a_file_that_was_not_closed_is_stable_after_the_longer_time(waiting):
    assert waiting.add(file(), 10.0, is_closed=False)
    assert waiting.turn(14.9) == []
    assert waiting.stage.next_due_s() == 15.0
    assert waiting.turn(15.0) == [file()]
    assert len(waiting.stage) == 0
    assert waiting.stage.next_due_s() is None


def test_a_closed_file_is_stable_after_the_shorter_time(waiting):
    waiting.add(file(), 10.0, is_closed=True)
    assert waiting.turn(10.4) == []
    assert waiting.turn(10.5) == [file()]


def test_a_close_shortens_the_wait_of_a_file_found_before(waiting):
    waiting.add(file(), 10.0, is_closed=False)
    waiting.add(file(), 12.0, is_closed=True)
    assert waiting.stage.next_due_s() == 12.5
    assert waiting.turn(12.5) == [file()]
    assert waiting.turn(99.0) == []


def test_every_close_starts_the_time_anew(waiting):
    waiting.add(file(), 10.0, is_closed=True)
    waiting.add(file(), 10.4, is_closed=True)
    assert waiting.turn(10.5) == []
    assert waiting.turn(10.9) == [file()]


def test_finding_the_same_file_again_changes_nothing(waiting):
    waiting.add(file(), 10.0, is_closed=True)
    waiting.add(file(), 10.3, is_closed=False)
    assert waiting.stage.next_due_s() == 10.5


@pytest.mark.parametrize("changed", changes())
def test_a_change_starts_the_longer_time_even_after_a_close(waiting, changed):
    waiting.add(file(), 10.0, is_closed=True)
    waiting.add(changed, 10.3, is_closed=False)
    assert waiting.stage.next_due_s() == 15.3
    assert waiting.turn(15.3) == [changed]


@pytest.mark.parametrize("changed", changes())
def test_a_file_that_changed_unnoticed_is_counted_and_waits_for_the_longer_time(waiting, changed):
    waiting.add(file(), 10.0, is_closed=True)
    waiting.change(changed)
    assert waiting.turn(10.5) == []
    assert waiting.changing == 1
    assert len(waiting.stage) == 1
    assert waiting.stage.next_due_s() == 15.5
    assert waiting.turn(15.5) == [changed]


def test_a_file_that_keeps_changing_is_never_dropped(waiting):
    now_s = 0.0
    waiting.add(file(), now_s, is_closed=False)
    for size in range(2, 50):
        now_s += UNCLOSED
        waiting.change(file(size=size))
        assert waiting.turn(now_s) == []
    assert waiting.changing == 48
    assert len(waiting.stage) == 1
    assert waiting.turn(now_s + UNCLOSED) == [file(size=49)]


def test_a_vanished_file_is_dropped(waiting):
    waiting.add(file(), 10.0, is_closed=True)
    waiting.disk.files.clear()
    assert waiting.turn(11.0) == []
    assert len(waiting.stage) == 0


def test_the_earliest_files_come_first_and_no_more_than_requested(waiting):
    files = [file(b"/d/%d" % n) for n in range(5)]
    for n, found in enumerate(reversed(files)):
        waiting.add(found, 10.0 + n, is_closed=True)
    assert waiting.turn(99.0, most=2) == [files[4], files[3]]
    assert len(waiting.stage) == 3


def test_without_room_new_files_are_rejected_and_waiting_files_are_updated(waiting, monkeypatch):
    monkeypatch.setattr(module, "WAITING_MAX", 2)
    assert waiting.add(file(b"/d/a"), 1.0, is_closed=True)
    assert waiting.add(file(b"/d/b"), 1.0, is_closed=True)
    assert waiting.stage.is_full
    assert not waiting.add(file(b"/d/c"), 1.0, is_closed=True)
    assert waiting.add(file(b"/d/b", size=2), 1.0, is_closed=True)
    assert len(waiting.stage) == 2


def test_without_room_a_changing_file_leaves(waiting, monkeypatch):
    monkeypatch.setattr(module, "WAITING_MAX", 2)
    waiting.add(file(b"/d/a"), 1.0, is_closed=True)
    waiting.add(file(b"/d/b"), 1.0, is_closed=True)
    waiting.change(file(b"/d/a", size=2))
    assert waiting.turn(1.5, most=1) == []
    assert waiting.changing == 1
    assert len(waiting.stage) == 1
    assert not waiting.stage.is_full


def test_a_failing_check_loses_no_file(waiting, monkeypatch):
    waiting.add(file(), 1.0, is_closed=True)

    def fail(path: bytes) -> FoundFile | None:
        raise MemoryError

    with monkeypatch.context() as patch:
        patch.setattr(waiting.disk, "find", fail)
        with pytest.raises(MemoryError):
            waiting.turn(2.0)
    assert waiting.turn(2.0) == [file()]
