"""A broker from another package is found by its entry point."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from fileq.brokers import open_broker
from fileq.config import config_from
from fileq.core.errors import ConfigError

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


class ShelfBroker(MemoryBroker):
    kind = "shelf"


def open_shelf(config):
    return ShelfBroker(config)
"""
USE = """
from fileq.brokers import open_broker
from fileq.config import config_from

broker = open_broker(config_from({"broker": "shelf", "worker": {"priorities": ["only"]},
                                  "producer": {"default_priority": "only", "high_priority_exts": []}}))
print(broker.kind, dict(broker.census().pending))
"""


@pytest.fixture
def site(tmp_path: Path) -> Path:
    source, site = tmp_path / "source", tmp_path / "site"
    source.mkdir()
    (source / "pyproject.toml").write_text(PROJECT)
    (source / "shelf_broker.py").write_text(MODULE)
    install = [sys.executable, "-m", "pip", "install", "--quiet", "--no-index", "--no-deps", "--no-build-isolation"]
    subprocess.run([*install, "--target", str(site), str(source)], check=True, capture_output=True, timeout=100)
    return site


def test_an_installed_broker_is_opened_by_its_name(site: Path) -> None:
    environ = {"PYTHONPATH": f"{site}:{Path(__file__).parents[2]}", "PATH": "/usr/bin:/bin"}
    ended = subprocess.run([sys.executable, "-c", USE], env=environ, capture_output=True, text=True, check=False)
    assert ended.stdout == "shelf {'only': 0}\n", ended.stderr


def test_the_error_for_a_broker_that_is_not_installed_lists_the_installed_ones() -> None:
    with pytest.raises(ConfigError, match=r"'shelf'.*redis.*sqlite.*memory"):
        open_broker(config_from({"broker": "shelf"}))
