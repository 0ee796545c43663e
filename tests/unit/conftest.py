"""Producers that watch with a fake, so that the test makes their events."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from fileq.producer.finder import finder
from tests.support.producer_scenario import FakeWatcher, Scenario


@pytest.fixture
def fake_watchers(monkeypatch: pytest.MonkeyPatch) -> Iterator[type[FakeWatcher]]:
    """Producers watch with FakeWatcher, and are closed after the test."""
    monkeypatch.setattr(FakeWatcher, "made", [])
    monkeypatch.setattr(Scenario, "producers", [])
    monkeypatch.setattr(finder, "DirectoryWatcher", FakeWatcher)
    yield FakeWatcher
    for producer in Scenario.producers:
        producer.close()


@pytest.fixture
def scenario(tmp_path: Path, fake_watchers: type[FakeWatcher]) -> Scenario:
    return Scenario(tmp_path / "in")
