"""How the ledger forgets: after a day, on the same device, and never by mistake."""

import os
from pathlib import Path

import pytest

from fileq.brokers.memory import MemoryBroker
from fileq.brokers.types import Entry, LedgerEntry
from fileq.config import config_from
from fileq.core.job import Version
from fileq.files import mounts as filesystems
from fileq.producer import forget
from fileq.producer.forget import DAY_MS, pardon, sweep
from fileq.producer.places import Places
from fileq.testing.conformance.builders import a_job

NOW = 1_800_000_000_000
ROOT_DISK = "27 1 254:0 / / rw - ext4 /dev/vda rw\n"


class Ledger:
    """A directory, a broker that knows some of its files, and the producer's sweep over both."""

    def __init__(self, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.root = root
        self.broker = MemoryBroker(config_from({"broker": "memory"}))
        self.mountinfo = ROOT_DISK
        monkeypatch.setattr(filesystems, "read_mountinfo", lambda: self.mountinfo.encode())
        self.places = Places("auto", bytes(root))

    def mount(self, device: str) -> None:
        self.mountinfo = ROOT_DISK + f"36 27 8:1 / {self.root} rw - ext4 {device} rw\n"
        self.places.refresh()

    def know(self, *names: str, is_there: bool = True) -> None:
        for name in names:
            path = self.root / name
            if is_there:
                path.parent.mkdir(parents=True, exist_ok=True)
                path.touch()
            version = Version(bytes(path), "1-1", self.places.device(bytes(path.parent)))
            self.broker.enqueue([Entry(a_job(f"job-{path}"), "low", version)])

    def entry(self, name: str) -> LedgerEntry | None:
        return self.broker.lookup([bytes(self.root / name)])[0]

    def is_marked(self, name: str) -> bool:
        entry = self.entry(name)
        assert entry is not None, f"{name} is forgotten"
        return entry.missing_since_ms > 0

    def sweep(self, now_ms: int = NOW, counts=lambda path: True) -> int:
        return sum(sweep(self.broker, bytes(self.root), self.places, counts, now_ms))


@pytest.fixture
def ledger(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Ledger:
    return Ledger(tmp_path / "in", monkeypatch)


def test_a_file_that_is_there_stays_as_it_is(ledger):
    ledger.know("a", "deep/b")
    before = ledger.entry("a")
    assert ledger.sweep() == 0
    assert ledger.entry("a") == before


def test_a_missing_file_is_marked_and_forgotten_after_the_day_only(ledger):
    ledger.know("a", "b")
    (ledger.root / "a").unlink()
    assert ledger.sweep() == 0
    assert ledger.is_marked("a")
    assert not ledger.is_marked("b")
    assert ledger.sweep(NOW + DAY_MS - 1) == 0
    assert ledger.is_marked("a")
    assert ledger.sweep(NOW + DAY_MS) == 1
    assert ledger.entry("a") is None
    assert ledger.entry("b") is not None


def test_a_directory_that_became_a_file_takes_its_files_along(ledger):
    ledger.know("deep/a")
    (ledger.root / "deep/a").unlink()
    (ledger.root / "deep").rmdir()
    (ledger.root / "deep").touch()
    ledger.sweep()
    assert ledger.is_marked("deep/a")


def test_a_file_that_reappears_has_its_day_before_it_again(ledger):
    ledger.know("a")
    (ledger.root / "a").unlink()
    ledger.sweep()
    (ledger.root / "a").touch()
    ledger.sweep(NOW + 1000)
    assert not ledger.is_marked("a")
    (ledger.root / "a").unlink()
    assert ledger.sweep(NOW + DAY_MS) == 0
    assert ledger.sweep(NOW + DAY_MS + 1000) == 0
    assert ledger.entry("a") is not None


def test_an_unmounted_volume_forgets_nothing(ledger):
    ledger.mount("/dev/sdb")
    ledger.know("a", is_there=False)
    ledger.mountinfo = ROOT_DISK
    for day in range(5):
        assert ledger.sweep(NOW + day * DAY_MS) == 0
        assert not ledger.is_marked("a")


def test_a_volume_that_is_not_mounted_for_a_while_takes_its_marks_back(ledger):
    ledger.mount("/dev/sdb")
    ledger.know("a", is_there=False)
    ledger.sweep()
    assert ledger.is_marked("a")
    ledger.mountinfo = ROOT_DISK
    ledger.sweep(NOW + 1000)
    assert not ledger.is_marked("a")
    ledger.mount("/dev/sdb")
    assert ledger.sweep(NOW + DAY_MS) == 0
    assert ledger.sweep(NOW + 2 * DAY_MS) == 1


def test_a_file_seen_on_another_device_belongs_to_that_one_from_then_on(ledger):
    ledger.know("a")
    ledger.mount("/dev/sdb")
    ledger.sweep()
    assert ledger.entry("a").device == "ext4:/dev/sdb"


def test_a_volume_that_goes_while_it_is_looked_at_marks_nothing(ledger, monkeypatch):
    ledger.mount("/dev/sdb")
    ledger.know("a", is_there=False)
    real = os.lstat

    def unmounted_meanwhile(path, **options):
        if path == bytes(ledger.root / "a"):
            ledger.mountinfo = ROOT_DISK
        return real(path, **options)

    monkeypatch.setattr(forget.os, "lstat", unmounted_meanwhile)
    ledger.sweep()
    assert not ledger.is_marked("a")


def test_where_it_cannot_be_told_nothing_is_forgotten(ledger, monkeypatch):
    ledger.know("a", is_there=False)
    ledger.sweep()

    def broken(path, **options):
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(forget.os, "lstat", broken)
    assert ledger.sweep(NOW + DAY_MS) == 0
    assert ledger.is_marked("a")


def test_an_entry_of_another_scan_dir_is_left_alone(ledger):
    others = [str(ledger.root) + "box/a", str(ledger.root) + "2"]
    ledger.know("a", *others, is_there=False)
    ledger.sweep()
    assert ledger.sweep(NOW + DAY_MS) == 1
    assert all(ledger.entry(other) is not None for other in others)


def test_an_entry_that_this_producer_would_never_make_is_left_alone(ledger):
    ledger.know("mine/a", "other/b", is_there=False)

    def is_mine(path: bytes) -> bool:
        return b"/mine/" in path

    ledger.sweep(counts=is_mine)
    assert ledger.sweep(NOW + DAY_MS, counts=is_mine) == 1
    assert ledger.entry("other/b") is not None
    assert ledger.entry("mine/a") is None


def test_an_entry_that_changed_since_it_was_read_is_left_alone(ledger, monkeypatch):
    ledger.know("a", is_there=False)
    ledger.sweep()
    real = os.lstat

    def enqueued_meanwhile(path, **options):
        if path == bytes(ledger.root / "a"):
            ledger.broker.enqueue([Entry(a_job("new"), "low", Version(path, "2-2", "ext4:/dev/vda"))])
        return real(path, **options)

    monkeypatch.setattr(forget.os, "lstat", enqueued_meanwhile)
    assert ledger.sweep(NOW + DAY_MS) == 0
    assert ledger.entry("a").knows("2-2")


def test_a_pardon_takes_back_every_mark(ledger):
    ledger.know("a", "b", is_there=False)
    ledger.sweep()
    assert sum(pardon(ledger.broker, bytes(ledger.root))) == 0
    assert not ledger.is_marked("a")
    assert not ledger.is_marked("b")
    assert ledger.sweep(NOW + DAY_MS) == 0


def test_it_goes_page_by_page(ledger, monkeypatch):
    monkeypatch.setattr(forget, "PAGE", 2)
    ledger.know(*"abcde", is_there=False)
    steps = list(sweep(ledger.broker, bytes(ledger.root), ledger.places, lambda path: True, NOW))
    assert steps == [0, 0, 0]
    assert all(ledger.is_marked(name) for name in "abcde")
