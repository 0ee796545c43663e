"""How the producer reacts to file-system events, and to their absence."""

import errno

import pytest

from fileq.producer.finder import finder, scan
from tests.support.producer_scenario import RESCAN, SETTLE, UNCLOSED, FakeWatcher, Scenario

pytestmark = pytest.mark.usefixtures("fake_watchers")


def test_a_close_leads_to_a_job_after_the_shorter_time(scenario):
    scenario.run()
    scenario.add("a")
    scenario.make_event(closed="a")
    scenario.run()
    scenario.run(SETTLE)
    assert scenario.names() == ["a"]
    assert scenario.events.count("scan.finished") <= 1


def test_a_creation_without_a_close_takes_the_longer_time(scenario):
    scenario.run()
    scenario.add("a")
    scenario.make_event(created="a")
    scenario.run()
    scenario.run(SETTLE)
    assert scenario.names() == []
    scenario.run(UNCLOSED)
    assert scenario.names() == ["a"]


def test_the_pause_ends_when_the_next_file_may_be_stable(scenario):
    scenario.run()
    scenario.add("a")
    scenario.make_event(closed="a")
    assert scenario.turn() == pytest.approx(SETTLE)
    assert scenario.turn(0.2) == pytest.approx(SETTLE - 0.2)


def test_a_new_directory_is_watched_and_scanned_at_once(scenario):
    scenario.run()
    scenario.add("x/y/a")
    scenario.make_event(directory="x")
    scenario.run()
    assert {scenario.path("x"), scenario.path("x/y")} <= scenario.watcher.watched
    scenario.run(UNCLOSED)
    assert scenario.names() == ["x/y/a"]


def test_a_new_directory_that_is_excluded_is_neither_watched_nor_scanned(tmp_path):
    scenario = Scenario(tmp_path / "in", exclude_globs=["cache/**"])
    scenario.run()
    scenario.add("cache/x/a")
    scenario.make_event(directory="cache")
    scenario.make_event(directory="cache/x")
    scenario.run(UNCLOSED)
    scenario.run(UNCLOSED)
    assert scenario.watcher.watched == {scenario.path("")}
    assert scenario.jobs() == []


def test_a_new_link_to_a_directory_is_scanned_where_links_are_followed(tmp_path):
    scenario = Scenario(tmp_path / "in", follow_symlinks=True)
    scenario.add("real/a")
    scenario.run(UNCLOSED + 1)
    (scenario.root / "link").symlink_to("real")
    scenario.make_event(created="link")
    scenario.run()
    assert scenario.names() == ["link/a", "real/a"]


def test_events_do_not_wait_for_the_end_of_a_scan(scenario, monkeypatch):
    monkeypatch.setattr(scan, "STEP_ENTRIES", 2)
    scenario.add(*(f"old/{n}" for n in range(200)))
    scenario.turn()
    scenario.add("new", "fresh/a")
    scenario.make_event(closed="new", directory="fresh")
    for _ in range(12):
        scenario.turn(0.1)
    assert "new" in scenario.names()
    assert scenario.path("fresh") in scenario.watcher.watched
    assert not scenario.producer.waits_only_for_writers, "the scan ended before: the test proves nothing"


def test_a_scan_continues_while_new_directories_keep_coming(scenario, monkeypatch):
    monkeypatch.setattr(scan, "STEP_ENTRIES", 3)
    scenario.add(*(f"old/{n}" for n in range(30)))
    scenario.clock.advance(UNCLOSED + 1)
    for n in range(80):
        scenario.add(f"x{n}/a")
        scenario.make_event(directory=f"x{n}")
        scenario.turn()
    assert sum(name.startswith("old/") for name in scenario.names()) == 30


def test_lost_events_are_reported_once_and_cause_a_scan_at_once(scenario):
    scenario.run()
    scenario.add("a")
    for _ in range(5):
        scenario.watcher.events.is_overflown = True
        scenario.turn()
        scenario.watcher.events.is_overflown = True
    scenario.run()
    scenario.run(UNCLOSED)
    assert scenario.names() == ["a"]
    assert scenario.events.count("producer.events_lost") == 1
    scenario.watcher.events.is_overflown = True
    scenario.run(60.0)
    assert scenario.events.count("producer.events_lost") == 2


def test_without_further_watches_the_producer_reports_it_once_and_polls(tmp_path, monkeypatch):
    monkeypatch.setattr(FakeWatcher, "most", 2)
    scenario = Scenario(tmp_path / "in", poll_interval="1s")
    scenario.add("a/x", "b/x", "c/x")
    scenario.run(UNCLOSED + 1)
    assert scenario.names() == ["a/x", "b/x", "c/x"]
    assert scenario.events.count("producer.watch_failed") == 1
    assert "no more watches" in str(scenario.events.fields("producer.watch_failed")["error"])
    assert scenario.watcher.is_closed
    scenario.add("a/new")
    scenario.run(1.0)
    scenario.run(UNCLOSED)
    assert "a/new" in scenario.names()
    assert scenario.events.count("producer.watch_failed") == 1


def test_when_a_watch_is_refused_all_of_scan_dir_is_scanned_at_once(tmp_path, monkeypatch):
    monkeypatch.setattr(FakeWatcher, "most", 2)
    scenario = Scenario(tmp_path / "in")
    scenario.add("a/x")
    scenario.run(UNCLOSED + 1)
    scenario.add("a/new", "b/x")
    scenario.make_event(directory="b")
    scenario.run()
    scenario.run(UNCLOSED)
    assert scenario.names() == ["a/new", "a/x", "b/x"]


def test_without_an_inotify_instance_the_producer_polls(tmp_path, monkeypatch):
    def refuse(wake):
        raise OSError(errno.EMFILE, "too many instances")

    monkeypatch.setattr(finder, "DirectoryWatcher", refuse)
    scenario = Scenario(tmp_path / "in")
    scenario.run()
    scenario.add("a")
    scenario.run(1.0)
    scenario.run(UNCLOSED)
    assert scenario.names() == ["a"]
    assert scenario.events.count("producer.watch_failed") == 1


def test_with_watch_off_only_rescans_find_files(tmp_path):
    scenario = Scenario(tmp_path / "in", watch="off")
    scenario.run()
    scenario.add("a")
    scenario.run(UNCLOSED)
    assert FakeWatcher.made == []
    assert scenario.jobs() == []
    scenario.run(RESCAN)
    scenario.run(UNCLOSED)
    assert scenario.names() == ["a"]
