"""A broker of another author: a package, found by its entry point, that passes fileq.testing.conformance."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from fileq.brokers import open_broker
from fileq.config import config_from
from fileq.core.errors import ConfigError

REPOSITORY = Path(__file__).parents[3]
PROJECT = """
[build-system]
requires = ["setuptools"]
build-backend = "setuptools.build_meta"
[project]
name = "fileq-shelf"
version = "1.0"
[project.entry-points."fileq.brokers"]
shelf = "shelf_broker:open_shelf"
[tool.setuptools]
py-modules = ["shelf_broker"]
"""
MODULE = """
from fileq.brokers.memory import MemoryBroker
from fileq.brokers.protocol import FullBroker


class ShelfBroker:
    kind = "shelf"
    where = "a shelf"

    def __init__(self, store):
        self._store = store

    def __getattr__(self, name):
        if name.startswith("_") or name not in dir(FullBroker):
            raise AttributeError(name)
        return getattr(self._store, name)


def open_shelf(config):
    return ShelfBroker(MemoryBroker(config))
"""
USE = """
from fileq.brokers import open_broker
from fileq.config import config_from

broker = open_broker(config_from({"broker": "shelf", "worker": {"priorities": ["only"]},
                                  "producer": {"default_priority": "only", "high_priority_exts": []}}))
print(broker.kind, dict(broker.census().pending))
"""
CONFORMANCE = """
import pytest
from shelf_broker import ShelfBroker

from fileq.brokers.types import Promoted
from fileq.testing.conformance import BrokerConformance, Harness, MemoryHarness, config_of


class ShelfHarness(Harness):
    def __init__(self, config, clock=None):
        super().__init__(config, clock)
        self.memory = MemoryHarness(config, self.clock)
        self.broker = self.open()

    def open(self):
        return ShelfBroker(self.memory.broker)

    def push_raw(self, queue, raw):
        self.memory.push_raw(queue, raw)

    def schedule_raw(self, raw, due_ms):
        self.memory.schedule_raw(raw, due_ms)

    def remove_registration(self, slot):
        self.memory.remove_registration(slot)

    def remove_record(self, id):
        self.memory.remove_record(id)

    def remove_raw(self, place, raw, slot=""):
        self.memory.remove_raw(place, raw, slot)

    def change_counter(self, name, by):
        self.memory.change_counter(name, by)


class TestShelf(BrokerConformance):
    @pytest.fixture
    def open_harness(self):
        return lambda settings, clock=None: ShelfHarness(config_of("shelf", settings), clock)

    @pytest.fixture
    def state_machine_examples(self):
        return 5


class BrokenShelf(ShelfBroker):
    def promote(self, limit=500):
        return Promoted(0)


class BrokenHarness(ShelfHarness):
    def open(self):
        return BrokenShelf(self.memory.broker)


class TestBrokenShelf(BrokerConformance):
    @pytest.fixture
    def open_harness(self):
        return lambda settings, clock=None: BrokenHarness(config_of("shelf", settings), clock)
"""


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The directory that the package is installed into."""
    directory = tmp_path_factory.mktemp("shelf")
    source, site = directory / "source", directory / "site"
    source.mkdir()
    (source / "pyproject.toml").write_text(PROJECT)
    (source / "shelf_broker.py").write_text(MODULE)
    install = [sys.executable, "-m", "pip", "install", "--quiet", "--no-index", "--no-deps", "--no-build-isolation"]
    subprocess.run([*install, "--target", str(site), str(source)], check=True, capture_output=True, timeout=100)
    return site


def run_python(site: Path, *arguments: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    environ = {"PYTHONPATH": f"{site}:{REPOSITORY}", "PATH": "/usr/bin:/bin"}
    command = [sys.executable, "-W", "error", *arguments]
    return subprocess.run(command, cwd=cwd, env=environ, capture_output=True, text=True, check=False, timeout=110)


def run_conformance(site: Path, directory: Path, *selection: str) -> subprocess.CompletedProcess[str]:
    """Runs the test file of the broker's author in a directory of its own."""
    (directory / "test_shelf.py").write_text(CONFORMANCE)
    plugins = ("-p", "no:cacheprovider", "-p", "no:valkey")
    tests = [f"test_shelf.py::{name}" for name in selection]
    return run_python(site, "-m", "pytest", "-q", *plugins, *tests, cwd=directory)


def test_an_installed_broker_is_opened_by_its_name(site: Path, tmp_path: Path) -> None:
    ended = run_python(site, "-c", USE, cwd=tmp_path)
    assert ended.stdout == "shelf {'only': 0}\n", ended.stderr


def test_an_installed_broker_passes_the_conformance_tests(site: Path, tmp_path: Path) -> None:
    """A part of them: tests/conformance runs all of them on a broker that has the methods of the protocol only."""
    names = ("TestEnqueue", "TestClaim", "TestSettle", "TestReap", "TestStateMachine")
    ended = run_conformance(site, tmp_path, *(f"TestShelf::{name}" for name in names))
    assert ended.returncode == 0, ended.stdout + ended.stderr
    summary = re.search(r"^(\d+) passed in ", ended.stdout, re.MULTILINE)
    assert summary is not None, ended.stdout
    assert int(summary[1]) > 100


def test_a_broker_that_breaks_a_promise_fails_and_pytest_shows_the_values(site: Path, tmp_path: Path) -> None:
    ended = run_conformance(site, tmp_path, "TestBrokenShelf::TestPromote")
    assert ended.returncode == 1, ended.stdout + ended.stderr
    assert "TestBrokenShelf::TestPromote::test_exactly_at_its_time_a_job_is_promoted" in ended.stdout
    assert "E       assert Promoted(count=0" in ended.stdout


def test_the_error_for_a_broker_that_is_not_installed_lists_the_installed_ones() -> None:
    with pytest.raises(ConfigError, match=r"'shelf'.*redis.*sqlite.*memory"):
        open_broker(config_from({"broker": "shelf"}))
