"""A scan_dir that is missing, unreadable or replaced."""

import errno
import os
import re
from pathlib import Path

import pytest

from fileq.brokers.memory import MemoryBroker
from fileq.config import config_from
from fileq.core.errors import ConfigError
from fileq.producer.finder import scan
from fileq.producer.producer import Producer, check_scan_dir
from tests.support.producer_scenario import RESCAN, UNCLOSED, FakeWatcher
from tests.support.unprivileged import open_path, unprivileged

__all__ = ["open_path"]


def test_a_missing_scan_dir_is_a_problem_until_it_returns(scenario, tmp_path):
    scenario.run()
    assert scenario.producer.finder.problem == ""
    scenario.root.rename(tmp_path / "away")
    assert scenario.turn(0.1) > 0
    assert "No such file" in scenario.producer.finder.problem
    assert scenario.watcher.is_closed
    for seconds in (1.0, 1.0, 1.0, RESCAN, 1.0):
        assert 0 < scenario.turn(seconds) <= 1.0, "the producer must neither spin nor sleep too long"
    (tmp_path / "away").rename(scenario.root)
    scenario.add("a")
    scenario.run(0.1)
    assert scenario.producer.finder.problem == ""
    assert not scenario.watcher.is_closed
    scenario.run(UNCLOSED)
    assert scenario.names() == ["a"]
    assert (scenario.events.count("scan_dir.lost"), scenario.events.count("scan_dir.restored")) == (1, 1)


def test_a_scan_dir_that_vanishes_before_the_first_scan_is_waited_for(scenario, tmp_path):
    scenario.root.rename(tmp_path / "away")
    assert scenario.turn() > 0
    assert scenario.turn() > 0


def test_a_replaced_scan_dir_is_scanned_and_watched_again(scenario, tmp_path):
    scenario.add("a")
    scenario.run(UNCLOSED + 1)
    scenario.root.rename(tmp_path / "old")
    scenario.root.mkdir()
    scenario.add("b")
    scenario.run(0.1)
    assert len(FakeWatcher.made) == 2
    assert FakeWatcher.made[0].is_closed
    assert scenario.watcher.watched == {scenario.path("")}
    scenario.run(UNCLOSED)
    assert scenario.names() == ["a", "b"]
    assert scenario.producer.finder.problem == ""


def test_a_file_at_the_path_of_scan_dir_is_a_problem(scenario, tmp_path):
    scenario.run()
    scenario.root.rename(tmp_path / "away")
    scenario.root.touch()
    scenario.turn()
    assert "Not a directory" in scenario.producer.finder.problem


def test_an_unreadable_scan_dir_is_a_problem_and_is_tried_again_soon(scenario, monkeypatch):
    real = os.scandir

    def refuse(path):
        raise PermissionError(errno.EACCES, "Permission denied")

    scenario.add("a")
    monkeypatch.setattr(scan.os, "scandir", refuse)
    scenario.run()
    assert "Permission denied" in scenario.producer.finder.problem
    monkeypatch.setattr(scan.os, "scandir", real)
    scenario.run(1.0)
    assert scenario.producer.finder.problem == ""
    scenario.run(UNCLOSED)
    assert scenario.names() == ["a"]


@pytest.mark.parametrize(("make", "what"), [(lambda p: None, "does not exist"), (Path.touch, "is not a directory")])
def test_at_start_a_missing_scan_dir_is_a_config_error(tmp_path, make, what):
    make(tmp_path / "in")
    config = config_from({"broker": "memory", "producer": {"scan_dir": str(tmp_path / "in")}})
    with pytest.raises(ConfigError, match=f"producer.scan_dir is .*in', which {what}"):
        Producer(config, MemoryBroker(config))


@pytest.mark.parametrize(("closed", "mode"), [("in", 0), (".", 0), ("in", 0o711)])
def test_at_start_a_scan_dir_that_permissions_close_is_a_config_error(open_path, closed, mode):
    """The last one can be entered and not be listed."""
    (open_path / "in").mkdir()
    config = config_from({"broker": "memory", "producer": {"scan_dir": str(open_path / "in")}})
    (open_path / closed).chmod(mode)
    refused = re.escape(f"in', which can't be accessed: this user has no permission on {open_path / closed}; give")
    with unprivileged(), pytest.raises(ConfigError, match=refused):
        check_scan_dir(config)
