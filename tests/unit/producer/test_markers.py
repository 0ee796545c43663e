"""The markers of `producer.ready_suffix`: each announces one version, and is removed with it."""

import os
import stat
from pathlib import Path

import pytest

from fileq.core.batch import BatchState
from fileq.core.events import SkipReason
from fileq.producer import markers
from fileq.producer.finder.scan import ProducerCounts, ScanRules
from fileq.producer.markers import Markers
from tests.support.producer_scenario import RESCAN, SETTLE, UNCLOSED, Scenario

pytestmark = pytest.mark.usefixtures("fake_watchers")


@pytest.fixture
def marked(tmp_path: Path) -> Scenario:
    return Scenario(tmp_path / "in", ready_suffix=".done")


def write_later(scenario: Scenario, name: str, than: str, size: int = 1) -> None:
    """Writes the file until the file system says that it is newer than the other one: its clock ticks in steps."""
    other = os.stat(scenario.root / than, follow_symlinks=False)
    path = scenario.root / name
    path.write_bytes(b"x" * size)
    while os.stat(path).st_mtime_ns <= other.st_ctime_ns:
        path.write_bytes(b"x" * size)


def closed(scenario: Scenario, name: str) -> None:
    scenario.make_event(closed=name)
    scenario.run()
    scenario.run(SETTLE)


def sizes(scenario: Scenario) -> list[int]:
    return [job.filesize for job in scenario.jobs()]


def left(scenario: Scenario) -> list[str]:
    return sorted(os.listdir(scenario.root))


@pytest.mark.parametrize("follows_links", [False, True])
def test_a_marker_is_removed_in_the_scan_dir_and_below_it(tmp_path: Path, follows_links: bool) -> None:
    scenario = Scenario(tmp_path / "in", ready_suffix=".done", follow_symlinks=follows_links)
    scenario.add("a", "a.done", "sub/b", "sub/b.done")
    scenario.run()
    scenario.run(RESCAN)
    assert scenario.names() == ["a", "sub/b"]
    assert left(scenario) == ["a", "sub"]
    assert os.listdir(scenario.root / "sub") == ["b"]
    assert scenario.events.count("producer.markers_kept") == 0


@pytest.mark.parametrize("how", ["by an event", "by a scan"])
def test_a_marker_is_removed_with_its_file_and_the_next_file_waits_for_its_own(marked: Scenario, how: str) -> None:
    marked.run()
    marked.add("a", "a.done")
    if how == "by an event":
        closed(marked, "a.done")
    marked.run(RESCAN)
    assert sizes(marked) == [1]
    assert left(marked) == ["a"]
    marked.add("a", size=2)
    closed(marked, "a")
    marked.run(RESCAN)
    assert sizes(marked) == [1]
    marked.add("a.done")
    closed(marked, "a.done")
    assert sizes(marked) == [1, 2]
    assert left(marked) == ["a"]


def test_a_marker_that_is_older_than_its_file_does_not_count(marked: Scenario) -> None:
    """A worker has moved the first file away, and the producer was killed before it removed the marker."""
    marked.run()
    marked.add("a.done")
    write_later(marked, "a", than="a.done")
    closed(marked, "a")
    marked.run(RESCAN)
    assert marked.jobs() == []
    assert marked.skipped["old_marker"] >= 1
    assert marked.events.count("file.skipped") == 1
    assert marked.events.fields("file.skipped")["reason"] == "old_marker"
    write_later(marked, "a.done", than="a")
    closed(marked, "a.done")
    assert marked.names() == ["a"]


@pytest.mark.parametrize("after", ["chmod", "a time in the future"])
def test_a_file_whose_times_were_set_is_announced_by_its_marker(marked: Scenario, after: str) -> None:
    marked.run()
    marked.add("a")
    if after == "chmod":
        os.utime(marked.root / "a", ns=(0, 0))
        marked.add("a.done")
        os.chmod(marked.root / "a", 0o600)
    else:
        future_ns = (1 << 33) * 10**9
        os.utime(marked.root / "a", ns=(future_ns, future_ns))
        marked.add("a.done")
    closed(marked, "a.done")
    assert marked.names() == ["a"]
    assert left(marked) == ["a"]


def test_a_marker_that_a_killed_producer_left_is_removed_by_the_next_scan(marked: Scenario) -> None:
    marked.run()
    marked.add("a", "a.done")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Markers, "remove", lambda *_: None)  # killed after the enqueue
        closed(marked, "a.done")
    assert left(marked) == ["a", "a.done"]
    marked.producer = marked.start()
    marked.run(UNCLOSED + 1)
    assert left(marked) == ["a"]
    assert sizes(marked) == [1]


def test_a_marker_is_removed_although_a_worker_took_the_file_at_once(marked: Scenario) -> None:
    marked.run()
    marked.add("a", "a.done")
    marked.broker.loses_reply = lambda verb: verb == "enqueue" and bool((marked.root / "a").unlink(missing_ok=True))
    closed(marked, "a.done")
    assert left(marked) == []


def test_a_marker_of_a_version_that_was_not_enqueued_stays(marked: Scenario) -> None:
    """The sender replaces the file, and announces the new one, while the broker answers for the old one."""
    marked.run()
    marked.add("a", "a.done")

    def replace(verb: str) -> bool:
        if verb == "enqueue" and sizes(marked) == [1]:
            marked.add("b", size=2)
            (marked.root / "b").rename(marked.root / "a")
            marked.add("a.done")
        return False

    marked.broker.loses_reply = replace
    closed(marked, "a.done")
    marked.broker.loses_reply = lambda verb: False
    assert left(marked) == ["a", "a.done"]
    closed(marked, "a.done")
    assert sizes(marked) == [1, 2]
    assert left(marked) == ["a"]


def test_a_marker_that_is_made_while_the_old_one_is_removed_keeps_its_name(
    marked: Scenario, monkeypatch: pytest.MonkeyPatch
) -> None:
    marked.run()
    marked.add("a", "a.done")
    real = markers.take

    def late(directory: int, name: bytes, private: bytes) -> None:
        monkeypatch.setattr(markers, "take", real)
        marked.add("a", size=2)
        marked.clock.advance(1.0)
        write_later(marked, "a.done", than="a")
        real(directory, name, private)

    monkeypatch.setattr(markers, "take", late)
    closed(marked, "a.done")
    assert left(marked) == ["a", "a.done"]
    closed(marked, "a.done")
    assert sizes(marked) == [1, 2]
    assert left(marked) == ["a"]


@pytest.mark.parametrize("next_file", ["written", "moved in with an old time"])
def test_a_marker_that_cannot_be_removed_is_reported_once_and_does_not_count_again(
    marked: Scenario, monkeypatch: pytest.MonkeyPatch, next_file: str
) -> None:
    def refuse(*_: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(markers, "take", refuse)
    marked.run()
    for name in ("a", "b"):
        marked.add(name, f"{name}.done")
        closed(marked, f"{name}.done")
    reported = marked.events.fields("producer.markers_kept")
    assert (reported["path"], reported["error"]) == (str(marked.root / "a.done"), "Permission denied")
    if next_file == "written":
        write_later(marked, "a", than="a.done", size=2)
    else:
        marked.add("c", size=2)
        os.utime(marked.root / "c", ns=(0, 0))
        (marked.root / "c").rename(marked.root / "a")
    closed(marked, "a")
    marked.run(RESCAN)
    assert sizes(marked) == [1, 1]
    write_later(marked, "a.done", than="a")
    closed(marked, "a.done")
    assert sizes(marked) == [1, 1, 2]
    assert marked.events.count("producer.markers_kept") == 1


def test_a_directory_as_a_marker_stays_and_does_not_count_again(marked: Scenario) -> None:
    marked.run()
    marked.add("a")
    (marked.root / "a.done").mkdir()
    closed(marked, "a")
    assert sizes(marked) == [1]
    marked.add("a", size=2)
    closed(marked, "a")
    assert sizes(marked) == [1]
    assert stat.S_ISDIR(os.stat(marked.root / "a.done").st_mode)


def test_the_memory_of_markers_that_stay_is_bounded(marked: Scenario, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(markers, "KEPT_MAX", 3)
    kept = Markers(".done", ScanRules(marked.config, ProducerCounts()))
    files = []
    for n in range(5):
        marked.add(f"{n}")
        (marked.root / f"{n}.done").mkdir()
        file = ScanRules(marked.config).find(marked.path(f"{n}"))
        assert file is not None
        files.append(file)
    kept.remove(files)
    old = [kept.refusal(file, kept.of(file.path)) for file in files]
    assert old == [None, None, *[SkipReason.OLD_MARKER] * 3]


def test_a_link_to_another_directory_does_not_choose_whose_marker_is_removed(tmp_path: Path) -> None:
    scenario = Scenario(tmp_path / "in", ready_suffix=".done")
    scenario.run()
    scenario.add("sub/a", "sub/a.done")
    (tmp_path / "other").mkdir()
    (tmp_path / "other/a.done").touch()

    def swap(verb: str) -> bool:
        if verb == "enqueue":
            (scenario.root / "sub").rename(scenario.root / "old")
            (scenario.root / "sub").symlink_to(tmp_path / "other")
        return False

    scenario.broker.loses_reply = swap
    closed(scenario, "sub/a.done")
    assert len(scenario.jobs()) == 1
    assert (tmp_path / "other/a.done").exists()


def test_a_delivery_counts_the_files_whose_markers_were_removed(tmp_path: Path) -> None:
    """Their checksums are compared with those of the manifest, and those without a marker are awaited."""
    wrong = "0" * 64
    delivery = {"match": "acme/*/", "complete": {"manifest": "*.sha256"}}
    scenario = Scenario(tmp_path / "in", ready_suffix=".done", deliveries=[delivery])
    scenario.add("acme/a/1", "acme/a/1.done", "acme/a/2")
    (scenario.root / "acme/a/all.sha256").write_text(f"{wrong}  1\n{wrong}  2\n")
    for _ in range(6):
        scenario.run(UNCLOSED)
    (batch,) = scenario.broker.real.batch_page().batches
    assert (batch.state, batch.total) == (BatchState.OPEN, 1), "file 2 has no marker yet"
    scenario.add("acme/a/2.done")
    scenario.make_event(closed="acme/a/2.done")
    for _ in range(6):
        scenario.run(UNCLOSED)
    (batch,) = scenario.broker.real.batch_page().batches
    assert (batch.state, batch.total) == (BatchState.SEALED, 4), "two files, and two jobs that report their checksums"
