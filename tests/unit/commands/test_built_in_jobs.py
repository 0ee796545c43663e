"""The jobs of fileq itself stop between two steps when they are told to, and each step is bounded."""

from __future__ import annotations

import hashlib
import os
import sys
import tracemalloc
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from msgspec import Raw
from msgspec.structs import replace

from fileq.brokers import open_broker
from fileq.brokers.memory import MemoryBroker
from fileq.brokers.protocol import FullBroker
from fileq.brokers.types import Entry
from fileq.commands.built_in_jobs import CHUNK_BYTES, built_in_jobs
from fileq.config import Config, config_from
from fileq.core.delivery import CHECK_TYPE
from fileq.core.errors import ConfigError, FileqError, Permanent
from fileq.core.events import ignore
from fileq.core.job import Version
from fileq.core.own_jobs import origin_of
from fileq.core.schedule import REPROCESS_TYPE, SCAN_TYPE
from fileq.producer import delivery_completion
from fileq.producer.finder import scan as scan_module
from fileq.testing.conformance.builders import a_job

EMPTY = hashlib.sha256(b"").hexdigest()
FILES = 3_000  # more than one step of a walk, one page of a ledger and one batch have


class Steps:
    """`context.cancelled`: counts the looks at it, and is set from the one of this number on. `on_step` is called at
    each."""

    def __init__(self, last: int, on_step: Callable[[], object] = lambda: None) -> None:
        self.count = 0
        self._last = last
        self._on_step = on_step

    def is_set(self) -> bool:
        self.count += 1
        self._on_step()
        return self.count >= self._last


def run(config: Config, broker: FullBroker, type: str, payload: dict[str, Any], steps: Steps) -> Any:
    function = built_in_jobs(".")(broker, config, ignore)[type]
    return function(SimpleNamespace(payload=payload), SimpleNamespace(cancelled=steps))


@pytest.fixture
def config(tmp_path: Path) -> Config:
    return config_from({"broker": "memory", "producer": {"scan_dir": str(tmp_path), "rate_limit_per_sec": 0}})


def test_a_check_of_a_long_file_stops_within_one_chunk(tmp_path: Path, config: Config) -> None:
    """C1: neither cancel nor timeout reached a check; its slot was held until the last byte."""
    path = tmp_path / "long"
    with path.open("wb") as file:
        file.truncate(64 * CHUNK_BYTES)
    payload, steps = {"directory": str(tmp_path), "path": str(path), "sha256": "0" * 64}, Steps(3)
    with pytest.raises(FileqError, match="stopped early"):
        run(config, MemoryBroker(config), CHECK_TYPE, payload, steps)
    assert steps.count == 3


def test_a_check_of_a_file_that_grows_all_the_time_ends(tmp_path: Path, config: Config) -> None:
    """C1: it reads as many bytes as the file had when it was opened."""
    path = tmp_path / "log"
    path.write_bytes(bytes(2 * CHUNK_BYTES))
    steps = Steps(100, lambda: path.write_bytes(path.read_bytes() + bytes(CHUNK_BYTES)))
    payload = {"directory": str(tmp_path), "path": str(path), "sha256": hashlib.sha256(path.read_bytes()).hexdigest()}
    assert run(config, MemoryBroker(config), CHECK_TYPE, payload, steps)["size"] == 2 * CHUNK_BYTES
    assert steps.count == 2


def test_reprocessing_stops_at_the_next_entry_of_the_ledger(tmp_path: Path, config: Config) -> None:
    """C1: it went on through the whole ledger."""
    broker = MemoryBroker(config)
    known = [Version(os.fsencode(tmp_path / f"{n}"), f"1-{n}") for n in range(FILES)]
    broker.enqueue([Entry(a_job(f"{n}"), "low", version) for n, version in enumerate(known)])
    steps = Steps(700)
    with pytest.raises(FileqError, match="stopped early"):
        run(config, broker, REPROCESS_TYPE, {"match": "**/*"}, steps)
    assert steps.count == 700


def peak_of(call: Callable[[], object]) -> int:
    """The most bytes that Python objects of this call take at a time."""
    tracemalloc.start()
    try:
        call()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def test_a_check_of_a_huge_file_takes_the_memory_of_a_few_chunks(tmp_path: Path, config: Config) -> None:
    """Jobs of fileq's own run in threads of the worker, where nothing could stop one that takes too much."""
    path = tmp_path / "huge"
    with path.open("wb") as file:
        file.truncate(128 * CHUNK_BYTES)
    payload = {"directory": str(tmp_path), "path": str(path), "sha256": "0" * 64}

    def check() -> None:
        with pytest.raises(Permanent):
            run(config, MemoryBroker(config), CHECK_TYPE, payload, Steps(sys.maxsize))

    assert peak_of(check) < 8 * CHUNK_BYTES


def test_reprocessing_takes_no_more_memory_for_a_longer_ledger(tmp_path: Path, config: Config) -> None:
    """The same: it holds a page of the ledger, a batch, and the first files of its report."""
    on_disk = replace(config, broker="sqlite", sqlite=replace(config.sqlite, path=str(tmp_path / "fileq.db")))
    peaks: list[int] = []
    with closing(open_broker(on_disk)) as broker:
        for known in range(0, 8 * FILES, 4 * FILES):
            versions = [Version(b"/data/%d" % n, f"1-{n}") for n in range(known, known + 4 * FILES)]
            broker.enqueue([Entry(a_job(f"{one.signature}"), "low", one) for one in versions])
            peaks.append(peak_of(lambda: run(on_disk, broker, REPROCESS_TYPE, {}, Steps(sys.maxsize))))
    assert peaks[1] < peaks[0] * 1.25, peaks


def test_a_scan_takes_no_more_memory_for_more_directories(
    tmp_path: Path, config: Config, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same: it remembered every directory of a level, and a sender may create millions of empty ones."""
    monkeypatch.setattr(scan_module, "STACK_MAX", 100)
    peaks: list[int] = []
    for known in range(0, 8 * FILES, 4 * FILES):
        for n in range(known, known + 4 * FILES):
            (tmp_path / f"{n:0200}").mkdir()
        peaks.append(
            peak_of(lambda: run(config, MemoryBroker(config), SCAN_TYPE, {"dir": str(tmp_path)}, Steps(10**9)))
        )
    assert peaks[1] < peaks[0] * 1.25, peaks


@pytest.mark.parametrize(
    ("files", "line"),
    [(6_000, "{sha256}  {name}"), (6_000, '{{"path": "{name}", "{name}": 1}}'), (16_000, "{sha256}  {name}")],
)
def test_a_scan_holds_no_more_of_a_delivery_than_the_memory_limit(
    tmp_path: Path, config: Config, files: int, line: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """C1: a sender decides how many files a delivery has and how long its manifest is."""
    monkeypatch.setattr(delivery_completion, "RECENT_NS", 0)  # the manifest is kept from the first look on
    limit = 12 << 20
    directory = tmp_path / "in/acme/a"
    directory.mkdir(parents=True)
    for name in (f"{n:08}" for n in range(files)):
        (directory / name).touch()
    (directory / "list").write_text("".join(f"{line.format(sha256=EMPTY, name=f'{n:08}')}\n" for n in range(20_000)))
    given = {
        "broker": "sqlite",
        "sqlite": {"path": str(tmp_path / "fileq.db")},
        "worker": {"max_memory": "12MB"},
        "producer": {
            "scan_dir": str(tmp_path / "in"),
            "rate_limit_per_sec": 0,
            "settle": "0s",
            "settle_unclosed": "0s",  # the shortest pause between two looks
            "deliveries": [{"match": "acme/*/", "complete": {"manifest": "list"}}],
        },
    }
    with closing(open_broker(config := config_from(given))) as broker:
        payload = {"dir": str(tmp_path / "in")}
        peak = peak_of(lambda: run(config, broker, SCAN_TYPE, payload, Steps(10**9)))
        assert broker.census().counters["produced"] == files, "the files are jobs all the same"
    assert peak < limit


def test_a_scan_of_a_missing_directory_names_it_and_no_setting(tmp_path: Path, config: Config) -> None:
    with pytest.raises(
        ConfigError, match=r"^the directory to scan is '.*/absent', which does not exist here; create it"
    ):
        run(config, MemoryBroker(config), SCAN_TYPE, {"dir": str(tmp_path / "absent")}, Steps(10**9))


def test_a_scan_stops_after_its_turn(tmp_path: Path, config: Config) -> None:
    for n in range(FILES):
        (tmp_path / f"{n}").touch()
    broker, steps = MemoryBroker(config), Steps(1)
    with pytest.raises(FileqError, match="stopped early"):
        run(config, broker, SCAN_TYPE, {"dir": str(tmp_path)}, steps)
    assert steps.count == 1
    assert broker.census().counters.get("produced", 0) < FILES


def test_the_origin_of_a_built_in_job_is_about_its_payload() -> None:
    """C1: a job of the same type that does something else does not match."""
    one, other = (a_job("x", type=SCAN_TYPE, payload=Raw(b'{"dir":"%b"}' % name)) for name in (b"/srv/in", b"/root"))
    assert origin_of(one) != origin_of(other)
    assert origin_of(one) == origin_of(one.but(id="y", retries=1))
