"""When the producer forgets files that no longer exist, and when it must not."""

import errno
import os

import pytest

from fileq.core.errors import BrokerUnavailable
from fileq.producer.finder import scan
from fileq.producer.ledger_stages import DAY_MS, SWEEPS
from tests.support.producer_scenario import HOUR, RESCAN, UNCLOSED, Scenario


def test_a_scan_that_finds_a_missing_file_again_clears_its_mark(scenario):
    scenario.add("a", "b")
    scenario.run(UNCLOSED + 1)
    (scenario.root / "a").rename(scenario.root / "../a")
    scenario.run(HOUR)
    assert scenario.is_marked_missing("a")
    (scenario.root / "../a").rename(scenario.root / "a")
    scenario.run(RESCAN)
    assert not scenario.is_marked_missing("a")
    assert scenario.names() == ["a", "b"]


def test_a_file_is_forgotten_after_a_day_of_scans_without_it(scenario):
    scenario.add("a", "b")
    scenario.run(UNCLOSED + 1)
    (scenario.root / "a").unlink()
    for _ in range(24):
        scenario.run(HOUR)
        assert scenario.entry("a") is not None
    scenario.run(HOUR)
    assert scenario.entry("a") is None
    assert scenario.entry("b") is not None


def test_producers_of_the_same_files_sweep_once_an_hour_together(scenario):
    scenario.add("a", "b")
    scenario.run(UNCLOSED + 1)
    (scenario.root / "a").unlink()
    for _ in range(3):
        scenario.producer = scenario.start(is_once=True)
        scenario.broker.calls.clear()
        scenario.run(HOUR / 4)
        assert scenario.producer.is_idle
        assert "ledger" not in scenario.broker.calls
    scenario.producer = scenario.start(is_once=True)
    scenario.run(HOUR / 4)
    assert scenario.is_marked_missing("a")


def test_a_sweep_by_a_clock_that_was_ahead_is_repeated(scenario):
    scenario.add("a")
    scenario.run(UNCLOSED + 1)
    (scenario.root / "a").unlink()
    [name] = SWEEPS.all(scenario.broker.real)
    SWEEPS.put(scenario.broker.real, name, 10 * scenario.clock.wall // 1_000_000)
    scenario.producer = scenario.start()
    scenario.run()
    assert scenario.is_marked_missing("a")


def test_a_sweep_waits_for_a_broker_that_is_away(scenario):
    scenario.add("a")
    scenario.run(UNCLOSED + 1)
    (scenario.root / "a").unlink()
    scenario.broker.is_away = lambda verb: verb == "documents"
    scenario.clock.advance(HOUR)
    with pytest.raises(BrokerUnavailable):
        scenario.run()
    scenario.broker.is_away = lambda verb: False
    scenario.run()
    assert scenario.is_marked_missing("a")


def test_a_scan_with_an_error_starts_the_day_anew(scenario, monkeypatch):
    scenario.add("a", "locked/b")
    scenario.run(UNCLOSED + 1)
    (scenario.root / "a").unlink()
    for _ in range(20):
        scenario.run(HOUR)
    real = os.scandir

    def refuse(path):
        if path.endswith(b"/locked"):
            raise PermissionError(errno.EACCES, "Permission denied")
        return real(path)

    with monkeypatch.context() as patch:
        patch.setattr(scan.os, "scandir", refuse)
        scenario.run(RESCAN)
        scenario.run(RESCAN)
    assert not scenario.is_marked_missing("a")
    for _ in range(24):
        scenario.run(HOUR)
        assert scenario.entry("a") is not None
    scenario.run(HOUR)
    assert scenario.entry("a") is None


def test_a_step_of_the_wall_clock_is_not_a_day(scenario):
    scenario.add("a")
    scenario.run(UNCLOSED + 1)
    (scenario.root / "a").unlink()
    scenario.run(HOUR)
    scenario.clock.step(3 * DAY_MS / 1000)
    scenario.run(HOUR)
    scenario.run(HOUR)
    assert scenario.entry("a") is not None


def test_an_outage_ends_a_sweep_and_another_sweep_follows(scenario):
    scenario.add("a")
    scenario.run(UNCLOSED + 1)
    (scenario.root / "a").unlink()
    scenario.broker.is_away = lambda verb: verb == "update_ledger"
    scenario.clock.advance(HOUR)
    with pytest.raises(BrokerUnavailable):
        scenario.run()
    scenario.broker.is_away = lambda verb: True
    with pytest.raises(BrokerUnavailable):
        scenario.turn()  # there is nothing to do, but only an answer ends the outage
    scenario.broker.is_away = lambda verb: False
    scenario.run(HOUR)
    assert scenario.is_marked_missing("a")


def test_a_producer_of_another_directory_leaves_these_entries_alone(scenario, tmp_path):
    scenario.add("a")
    scenario.run(UNCLOSED + 1)
    (scenario.root / "a").unlink()
    other = Scenario(tmp_path / "in2")
    other.broker = scenario.broker
    other.producer = other.start(forget_after_ms=0)
    for _ in range(3):
        other.run(HOUR)
    assert not scenario.is_marked_missing("a")


def test_marks_are_cleared_even_if_an_outage_follows_the_scan_with_the_error(scenario, monkeypatch):
    scenario.add("a", "b", "locked/c")
    scenario.run(UNCLOSED + 1)
    (scenario.root / "a").unlink()
    scenario.run(HOUR)
    assert scenario.is_marked_missing("a")
    real = os.scandir

    def refuse(path):
        if path.endswith(b"/locked"):
            raise PermissionError(errno.EACCES, "Permission denied")
        return real(path)

    scenario.broker.is_away = lambda verb: True
    with monkeypatch.context() as patch:
        patch.setattr(scan.os, "scandir", refuse)
        with pytest.raises(BrokerUnavailable):
            scenario.turn(RESCAN)
    scenario.broker.is_away = lambda verb: False
    scenario.turn()
    assert not scenario.is_marked_missing("a")
