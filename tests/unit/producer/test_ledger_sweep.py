"""Which entries the ledger forgets: files missing for a day on the same device, and no others."""

import os
from pathlib import Path
from types import SimpleNamespace

import pytest

from fileq.brokers.memory import MemoryBroker
from fileq.brokers.types import Entry, LedgerEntry
from fileq.config import config_from
from fileq.core.job import Version
from fileq.files import status
from fileq.files.status import ScanDirMounts
from fileq.producer import ledger_stages
from fileq.producer.ledger_stages import DAY_MS, LedgerSweep
from fileq.producer.stability import ClockGuard
from fileq.testing.conformance.builders import a_job

NOW = 1_800_000_000_000
ROOT_DISK = "27 1 254:0 / / rw - ext4 /dev/vda rw\n"


class Ledger:
    """A directory, and a broker whose ledger knows some of its files."""

    def __init__(self, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.root = root
        self.broker = MemoryBroker(config_from({"broker": "memory"}))
        self.mountinfo = ROOT_DISK
        monkeypatch.setattr(status, "read_mountinfo", lambda: self.mountinfo.encode())
        self.mounts = ScanDirMounts(bytes(root))

    def mount(self, device: str) -> None:
        self.mountinfo = ROOT_DISK + f"36 27 8:1 / {self.root} rw - ext4 {device} rw\n"
        self.mounts.refresh()

    def know(self, *names: str, is_there: bool = True) -> None:
        for name in names:
            path = self.root / name
            if is_there:
                path.parent.mkdir(parents=True, exist_ok=True)
                path.touch()
            version = Version(bytes(path), "1-1", self.mounts.device(bytes(path.parent)))
            self.broker.enqueue([Entry(a_job(f"job-{path}"), "low", version)])

    def entry(self, name: str) -> LedgerEntry | None:
        return self.broker.lookup([bytes(self.root / name)])[0]

    def is_marked(self, name: str) -> bool:
        entry = self.entry(name)
        assert entry is not None, f"{name} is not in the ledger"
        return entry.missing_since_ms > 0

    def sweep(self, now_ms: int = NOW, covers=lambda path: True) -> int:
        """Returns how many entries it forgot."""
        before = self.size
        for _ in self.stage(covers).sweep(now_ms):
            pass
        return before - self.size

    def stage(self, covers=lambda path: True) -> LedgerSweep:
        rules = SimpleNamespace(root=bytes(self.root), covers=covers, filter=SimpleNamespace(patterns=()))
        return LedgerSweep(self.broker, rules, self.mounts, ClockGuard(0.0), DAY_MS)

    @property
    def size(self) -> int:
        return len(list(self.broker.ledger(b"/")))


@pytest.fixture
def ledger(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Ledger:
    return Ledger(tmp_path / "in", monkeypatch)


def test_the_entry_of_an_existing_file_stays_as_it_is(ledger):
    ledger.know("a", "deep/b")
    before = ledger.entry("a")
    assert ledger.sweep() == 0
    assert ledger.entry("a") == before


def test_a_missing_file_is_marked_and_forgotten_after_a_day(ledger):
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


def test_files_below_a_directory_that_became_a_file_are_missing(ledger):
    ledger.know("deep/a")
    (ledger.root / "deep/a").unlink()
    (ledger.root / "deep").rmdir()
    (ledger.root / "deep").touch()
    ledger.sweep()
    assert ledger.is_marked("deep/a")


def test_for_a_file_that_reappears_the_day_starts_anew(ledger):
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


def test_files_of_an_unmounted_volume_are_not_forgotten(ledger):
    ledger.mount("/dev/sdb")
    ledger.know("a", is_there=False)
    ledger.mountinfo = ROOT_DISK
    for day in range(5):
        assert ledger.sweep(NOW + day * DAY_MS) == 0
        assert not ledger.is_marked("a")


def test_unmounting_a_volume_clears_the_marks_of_its_files(ledger):
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


def test_the_entry_of_a_file_found_on_another_device_names_that_device(ledger):
    ledger.know("a")
    ledger.mount("/dev/sdb")
    ledger.sweep()
    assert ledger.entry("a").device == "ext4:/dev/sdb"


def test_unmounting_a_volume_during_the_sweep_marks_nothing(ledger, monkeypatch):
    ledger.mount("/dev/sdb")
    ledger.know("a", is_there=False)
    real = os.lstat

    def unmounted_meanwhile(path, **options):
        if path == bytes(ledger.root / "a"):
            ledger.mountinfo = ROOT_DISK
        return real(path, **options)

    monkeypatch.setattr(ledger_stages.os, "lstat", unmounted_meanwhile)
    ledger.sweep()
    assert not ledger.is_marked("a")


def test_a_file_that_cannot_be_checked_is_not_forgotten(ledger, monkeypatch):
    ledger.know("a", is_there=False)
    ledger.sweep()

    def broken(path, **options):
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(ledger_stages.os, "lstat", broken)
    assert ledger.sweep(NOW + DAY_MS) == 0
    assert ledger.is_marked("a")


def test_an_entry_of_another_scan_dir_is_left_alone(ledger):
    others = [str(ledger.root) + "box/a", str(ledger.root) + "2"]
    ledger.know("a", *others, is_there=False)
    ledger.sweep()
    assert ledger.sweep(NOW + DAY_MS) == 1
    assert all(ledger.entry(other) is not None for other in others)


def test_an_entry_of_a_file_that_the_rules_exclude_is_left_alone(ledger):
    ledger.know("mine/a", "other/b", is_there=False)

    def is_mine(path: bytes) -> bool:
        return b"/mine/" in path

    ledger.sweep(covers=is_mine)
    assert ledger.sweep(NOW + DAY_MS, covers=is_mine) == 1
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

    monkeypatch.setattr(ledger_stages.os, "lstat", enqueued_meanwhile)
    assert ledger.sweep(NOW + DAY_MS) == 0
    assert ledger.entry("a").knows("2-2")


def test_clearing_removes_every_mark(ledger):
    ledger.know("a", "b", is_there=False)
    ledger.sweep()
    for _ in ledger.stage().clear_missing_marks():
        pass
    assert ledger.size == 2
    assert not ledger.is_marked("a")
    assert not ledger.is_marked("b")
    assert ledger.sweep(NOW + DAY_MS) == 0


def test_a_sweep_handles_one_page_per_step(ledger, monkeypatch):
    monkeypatch.setattr(ledger_stages, "PAGE", 2)
    ledger.know(*"abcde", is_there=False)
    assert len(list(ledger.stage().sweep(NOW))) == 3
    assert all(ledger.is_marked(name) for name in "abcde")
