"""`producer.identity: content`: a file that the ledger does not know by size, time and inode is read."""

import contextlib
import hashlib
import os

import pytest

from fileq.core.errors import BrokerUnavailable
from fileq.core.job import split_signature
from fileq.files import status
from fileq.producer import content_check
from tests.support.inodes import replace_unnoticed
from tests.support.producer_scenario import RESCAN, SETTLE, UNCLOSED, Scenario

pytestmark = pytest.mark.usefixtures("fake_watchers")


@pytest.fixture(autouse=True)
def on_ext4(monkeypatch):
    monkeypatch.setattr(status, "read_mountinfo", lambda: b"27 1 254:0 / / rw - ext4 /dev/vda rw\n")


@pytest.fixture
def reads(monkeypatch):
    """The files that were opened to be read."""
    paths = []

    class Reading(content_check.ContentReading):
        def __init__(self, file, open_file):
            paths.append(os.path.basename(file.path).decode())
            super().__init__(file, open_file)

    monkeypatch.setattr(content_check, "ContentReading", Reading)
    return paths


@pytest.fixture
def by_content(tmp_path):
    return Scenario(tmp_path / "in", identity="content")


def recorded(scenario, name="a"):
    return split_signature(scenario.entry(name).versions[0][0])


def test_a_new_file_is_read_once_and_its_hash_is_recorded(by_content, reads):
    by_content.add("a", size=3)
    by_content.run(UNCLOSED + 1)
    assert recorded(by_content).content == hashlib.blake2b(b"xxx", digest_size=16).hexdigest()
    assert [job.file_inode for job in by_content.jobs()] == [None], "a worker compares size and time only"
    by_content.run(RESCAN)
    by_content.make_event(closed="a")
    by_content.run()
    by_content.run(SETTLE)
    assert (len(by_content.jobs()), reads) == (1, ["a"])


@pytest.mark.parametrize("is_event", [False, True])
def test_a_file_that_was_touched_or_restored_is_not_new_and_read_once(by_content, reads, is_event):
    by_content.add("a")
    by_content.run(UNCLOSED + 1)
    for change in ("touch", "restore"):
        path = by_content.root / "a"
        if change == "touch":
            os.utime(path, ns=(1, 1))
        else:
            replace_unnoticed(path, b"x")
        if is_event:
            by_content.make_event(closed="a")
            by_content.run()
            by_content.run(SETTLE)
        for _ in range(3):
            by_content.run(RESCAN)
        status = path.stat()
        newest = recorded(by_content)
        assert (newest.short, newest.inode) == (f"1-{status.st_mtime_ns}", str(status.st_ino))
    assert (len(by_content.jobs()), reads) == (1, ["a", "a", "a"])


def test_another_content_is_new_though_size_and_time_are_the_same(by_content):
    by_content.add("a")
    by_content.run(UNCLOSED + 1)
    replace_unnoticed(by_content.root / "a", b"y")
    by_content.run(RESCAN)
    by_content.run(RESCAN)
    assert len(by_content.jobs()) == 2


def test_only_the_newest_content_is_compared(by_content):
    """A file that gets back an earlier content is processed: what was made of it is out of date."""
    for wall, content in enumerate((b"a", b"b", b"a"), 1):
        (by_content.root / "a").write_bytes(content)
        os.utime(by_content.root / "a", ns=(wall, wall))
        by_content.run(RESCAN)
    assert len(by_content.jobs()) == 3


def test_a_version_recorded_without_a_hash_is_the_same_by_size_and_time_and_gets_one(tmp_path, by_content):
    before = Scenario(tmp_path / "in", identity="inode")
    before.add("a")
    before.run(UNCLOSED + 1)
    by_content.broker = before.broker
    by_content.producer = by_content.start()
    replace_unnoticed(by_content.root / "a", b"x")
    by_content.run(UNCLOSED + 1)
    by_content.run(RESCAN)
    assert len(by_content.jobs()) == 1
    assert recorded(by_content).content
    replace_unnoticed(by_content.root / "a", b"y")
    by_content.run(RESCAN)
    assert len(by_content.jobs()) == 2


def test_a_large_file_is_read_in_many_turns(by_content, monkeypatch):
    monkeypatch.setattr(content_check, "CHUNK", 10)
    monkeypatch.setattr(content_check, "TURN_S", 0.0)
    by_content.add("a", size=95)
    by_content.turn(UNCLOSED + 1)
    for _ in range(8):
        assert by_content.turn() == 0
        assert (by_content.jobs(), by_content.producer.unsent, by_content.producer.is_idle) == ([], 1, False)
    by_content.run()
    assert recorded(by_content).content == hashlib.blake2b(b"x" * 95, digest_size=16).hexdigest()


def test_a_file_that_changes_while_it_is_read_waits_again(by_content, monkeypatch):
    monkeypatch.setattr(content_check, "CHUNK", 10)
    monkeypatch.setattr(content_check, "TURN_S", 0.0)
    by_content.add("a", size=25)
    by_content.turn(UNCLOSED + 1)
    by_content.add("a", size=30)
    by_content.run()
    assert by_content.jobs() == []
    by_content.run(UNCLOSED)
    assert [job.filesize for job in by_content.jobs()] == [30]


def test_a_file_that_vanishes_while_it_is_read_is_dropped(by_content, monkeypatch):
    monkeypatch.setattr(content_check, "CHUNK", 1)
    monkeypatch.setattr(content_check, "TURN_S", 0.0)
    by_content.add("a", size=2)
    by_content.turn(UNCLOSED + 1)
    (by_content.root / "a").unlink()
    by_content.run()
    assert (by_content.jobs(), by_content.producer.unsent) == ([], 0)


@pytest.mark.parametrize("change", ["deleted", "replaced"])
def test_a_large_file_that_is_gone_is_not_read_to_its_end(by_content, monkeypatch, change):
    """B3: the producer read on in a deleted file, for days if it was sparse, and took no other one meanwhile."""
    monkeypatch.setattr(content_check, "CHUNK", 1)
    monkeypatch.setattr(content_check, "TURN_S", 0.0)
    by_content.add("a", size=1)
    os.truncate(by_content.root / "a", 1_000_000)
    os.utime(by_content.root / "a", ns=(1, 1))
    for _ in range(5):
        assert by_content.turn() == 0
    (by_content.root / "a").unlink()
    if change == "replaced":
        by_content.add("a")
    by_content.run(UNCLOSED + 1)
    by_content.run(UNCLOSED + 1)
    assert by_content.producer.unsent == 0
    assert by_content.names() == (["a"] if change == "replaced" else [])


def test_a_large_file_does_not_hold_up_small_ones(by_content, monkeypatch):
    """B3: files were read one after the other."""
    monkeypatch.setattr(content_check, "CHUNK", 10)
    monkeypatch.setattr(content_check, "TURN_S", 0.0)
    by_content.add("a", size=1)
    os.truncate(by_content.root / "a", 1_000_000)
    os.utime(by_content.root / "a", ns=(1, 1))
    assert by_content.turn() == 0
    by_content.add("b", "c")
    by_content.make_event(closed="b")
    by_content.make_event(closed="c")
    by_content.turn()
    for _ in range(20):
        by_content.turn(SETTLE)
    assert by_content.names() == ["b", "c"]
    assert by_content.producer.unsent == 1


def test_a_scan_does_not_begin_a_large_file_anew(by_content, reads, monkeypatch):
    """B3: a file whose reading takes longer than rescan_interval was begun anew by each scan, and never enqueued."""
    monkeypatch.setattr(content_check, "CHUNK", 10)
    monkeypatch.setattr(content_check, "TURN_S", 0.0)
    by_content.add("a", size=95)
    by_content.clock.advance(UNCLOSED + 1)
    for _ in range(15):
        by_content.turn(RESCAN)
    assert reads == ["a"]
    assert recorded(by_content).content == hashlib.blake2b(b"x" * 95, digest_size=16).hexdigest()


def test_a_file_that_cannot_be_read_is_enqueued_without_a_hash(by_content, monkeypatch):
    def refuse(*arguments, **options):
        raise PermissionError

    monkeypatch.setattr(content_check, "ContentReading", refuse)
    by_content.add("a")
    by_content.run(UNCLOSED + 1)
    assert (by_content.names(), recorded(by_content).content) == (["a"], "")


@pytest.mark.parametrize("verb", ["lookup", "update_ledger", "enqueue"])
def test_an_outage_loses_nothing(by_content, verb):
    by_content.add("a", "b")
    by_content.run(UNCLOSED + 1)
    os.utime(by_content.root / "a", ns=(1, 1))
    replace_unnoticed(by_content.root / "b", b"y")
    left = [True] * 3
    by_content.broker.is_away = lambda called: called == verb and bool(left and left.pop())
    by_content.clock.advance(RESCAN)
    for _ in range(20):
        with contextlib.suppress(BrokerUnavailable):
            by_content.turn()
    assert left == []
    assert by_content.names() == ["a", "b", "b"]
    assert recorded(by_content, "a").short == "1-1"
