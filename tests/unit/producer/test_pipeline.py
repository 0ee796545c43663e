"""The way of a file through the pipeline: found, stable, enqueued; with markers, and with full stages."""

import os

import pytest

from fileq.files import status
from fileq.producer import enqueuer, stability
from fileq.producer.finder import scan
from tests.support.producer_scenario import RESCAN, SETTLE, UNCLOSED, Scenario

pytestmark = pytest.mark.usefixtures("fake_watchers")


def test_a_scanned_file_is_enqueued_after_it_was_stable_for_the_longer_time(scenario):
    scenario.add("a")
    scenario.run()
    scenario.run(UNCLOSED - 0.1)
    assert scenario.names() == []
    scenario.run(0.1)
    assert scenario.names() == ["a"]
    scenario.run(RESCAN)
    assert scenario.names() == ["a"]


def test_a_scanned_file_that_is_old_enough_is_enqueued_at_once(scenario):
    scenario.add("a", "b/c")
    scenario.run(UNCLOSED + 1)
    assert scenario.names() == ["a", "b/c"]


def test_on_a_network_file_system_timestamps_do_not_count(tmp_path, monkeypatch):
    table = f"27 1 254:0 / / rw - ext4 /dev/vda rw\n36 27 0:44 / {tmp_path} rw - nfs4 nas:/ rw\n"
    monkeypatch.setattr(status, "read_mountinfo", table.encode)
    scenario = Scenario(tmp_path / "in")
    scenario.add("a")
    scenario.run(UNCLOSED + 1)
    assert scenario.names() == []
    scenario.run(UNCLOSED)
    assert scenario.names() == ["a"]


def test_a_changed_file_is_a_new_version_with_a_job_of_its_own(scenario):
    scenario.add("a")
    scenario.run(UNCLOSED + 1)
    scenario.add("a", size=2)
    scenario.run(RESCAN)
    scenario.run(UNCLOSED)
    assert [job.filesize for job in scenario.jobs()] == [1, 2]


def test_a_file_that_is_deleted_before_it_is_stable_gets_no_job(scenario):
    scenario.add("a")
    scenario.run()
    (scenario.root / "a").unlink()
    scenario.run(UNCLOSED)
    assert scenario.producer.is_idle or len(scenario.producer.stability) == 0
    assert scenario.jobs() == []
    assert scenario.skipped["vanished"] == 1


def test_a_file_that_keeps_changing_is_reported_and_enqueued_in_the_end(scenario):
    scenario.add("a")
    scenario.run()
    for size in range(2, 12):
        scenario.add("a", size=size)
        scenario.run(UNCLOSED)
    assert scenario.jobs() == []
    assert scenario.skipped["changing"] == 10
    scenario.run(UNCLOSED)
    assert [job.filesize for job in scenario.jobs()] == [11]


def test_known_files_are_looked_up_in_batches(scenario):
    scenario.add(*(str(n) for n in range(100)))
    scenario.run(UNCLOSED + 1)
    scenario.broker.calls.clear()
    scenario.run(RESCAN)
    assert scenario.broker.calls.count("knows") <= 2
    assert not {"enqueue", "lookup"} & set(scenario.broker.calls)
    assert scenario.producer.counts.known == 100
    assert scenario.producer.counts.enqueued == scenario.events.count("job.produced") == 100


def test_an_older_version_that_comes_back_is_known(scenario):
    scenario.add("a")
    old = os.stat(scenario.path("a"))
    scenario.run(UNCLOSED + 1)
    scenario.add("a", size=2)
    scenario.run(RESCAN)
    scenario.run(UNCLOSED + 1)
    assert [job.filesize for job in scenario.jobs()] == [1, 2]
    scenario.broker.calls.clear()
    os.truncate(scenario.path("a"), 1)
    os.utime(scenario.path("a"), ns=(old.st_mtime_ns, old.st_mtime_ns))
    scenario.run(RESCAN)
    scenario.run(UNCLOSED + 1)
    assert "enqueue" not in scenario.broker.calls


def test_a_file_that_changes_while_it_waits_to_be_sent_is_enqueued_when_it_is_stable_again(tmp_path):
    scenario = Scenario(tmp_path / "in", max_pending=1, rescan_interval="1h")
    scenario.add("a", "b")
    scenario.run(UNCLOSED + 1)
    [first] = scenario.jobs()
    scenario.add("a" if first.filepath.endswith("b") else "b", size=2)
    scenario.broker.real.cancel([first.id])
    scenario.run(1.0)
    assert scenario.jobs() == []
    scenario.run(UNCLOSED)
    assert [job.filesize for job in scenario.jobs()] == [2]


def test_a_producer_that_cannot_send_pauses_although_a_scan_is_due(tmp_path, monkeypatch):
    monkeypatch.setattr(enqueuer, "UNSENT_MAX", 2)
    scenario = Scenario(tmp_path / "in", max_pending=1)
    scenario.add("a", "b", "c", "d")
    scenario.run(UNCLOSED + 1)
    assert len(scenario.jobs()) == 1
    scenario.run(RESCAN)  # fails if every turn wants another one at once


# markers


def test_a_file_gets_a_job_when_its_marker_exists(tmp_path):
    scenario = Scenario(tmp_path / "in", ready_suffix=".done")
    scenario.add("a", "b", "b.done")
    scenario.run(UNCLOSED + 1)
    assert scenario.names() == ["b"]
    assert len(scenario.producer.stability) == 0, "files without a marker would fill the memory"
    assert scenario.skipped["unmarked"] == 1
    scenario.add("a.done")
    scenario.make_event(closed="a.done")
    scenario.run()
    scenario.run(SETTLE)
    assert scenario.names() == ["a", "b"]


def test_a_closed_file_without_its_marker_gets_no_job(tmp_path):
    scenario = Scenario(tmp_path / "in", ready_suffix=".done")
    scenario.run()
    scenario.add("a")
    scenario.make_event(closed="a")
    scenario.run()
    scenario.run(SETTLE)
    assert scenario.jobs() == []
    assert len(scenario.producer.stability) == 0


# full stages


def in_the_enqueuer(scenario: Scenario) -> int:
    return scenario.producer.unsent - len(scenario.producer.stability)


def test_files_without_room_in_stability_are_found_again(scenario, monkeypatch):
    monkeypatch.setattr(stability, "WAITING_MAX", 3)
    scenario.run()
    for n in range(10):
        scenario.add(str(n))
        scenario.make_event(closed=str(n))
    for _ in range(40):
        scenario.turn(0.2)
        assert len(scenario.producer.stability) <= 3
    assert len(scenario.names()) == 10


def test_files_that_keep_changing_give_way_to_others(scenario, monkeypatch):
    monkeypatch.setattr(stability, "WAITING_MAX", 3)
    scenario.add("a", "b", "c", "d")
    for size in range(2, 40):
        scenario.add("a", "b", "c", size=size)
        scenario.turn(UNCLOSED / 2)
    assert scenario.names() == ["d"]


def test_while_the_enqueuer_is_full_nothing_more_is_scanned(tmp_path, monkeypatch):
    monkeypatch.setattr(enqueuer, "UNSENT_MAX", 5)
    monkeypatch.setattr(scan, "STEP_ENTRIES", 3)
    scenario = Scenario(tmp_path / "in", rate_limit_per_sec=1)
    scenario.add(*(str(n) for n in range(40)))
    scenario.clock.advance(UNCLOSED + 1)
    for _ in range(100):
        scenario.turn()
        assert in_the_enqueuer(scenario) <= 5 + 3
    assert len(scenario.jobs()) <= 2
    assert not scenario.producer.is_idle


def test_while_stability_is_full_nothing_more_is_scanned(scenario, monkeypatch):
    monkeypatch.setattr(stability, "WAITING_MAX", 5)
    monkeypatch.setattr(scan, "STEP_ENTRIES", 3)
    scenario.add(*(str(n) for n in range(40)))
    for _ in range(100):
        scenario.turn()
    assert scenario.producer.counts.found <= 5 + 3
    assert not scenario.producer.is_idle


def test_while_the_enqueuer_is_full_stable_files_stay_in_stability(tmp_path, monkeypatch):
    monkeypatch.setattr(enqueuer, "UNSENT_MAX", 5)
    scenario = Scenario(tmp_path / "in", rate_limit_per_sec=1)
    scenario.run()
    for batch in range(4):
        for n in range(5):
            scenario.add(f"{batch}-{n}")
            scenario.make_event(closed=f"{batch}-{n}")
        scenario.turn()
        scenario.turn(SETTLE)
        assert in_the_enqueuer(scenario) <= 10
    assert len(scenario.producer.stability) >= 9


def test_skipped_files_are_logged_once_each_and_up_to_a_limit(tmp_path, monkeypatch):
    monkeypatch.setattr(scan, "LOGGED_MAX", 3)
    scenario = Scenario(tmp_path / "in", follow_symlinks=True)
    for n in range(5):
        (scenario.root / f"out{n}").symlink_to("/etc/passwd")
    for _ in range(3):
        scenario.run(RESCAN)
    assert scenario.events.count("file.skipped") == 3
    assert scenario.skipped["outside"] == 15
