"""The producer's turns, one after the other, on the memory broker: its clocks, its watches and its outages are ours."""

import contextlib
import errno
import os
import random
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, ClassVar

import pytest

from fileq.brokers.memory import MemoryBroker
from fileq.config import config_from
from fileq.core.errors import BrokerUnavailable, ConfigError
from fileq.core.job import Job, decode
from fileq.files import mounts as filesystems
from fileq.producer import outbox, patrol, scan
from fileq.producer import producer as module
from fileq.producer.forget import DAY_MS
from fileq.producer.producer import PROBE_S, Producer
from fileq.producer.settle import Settling
from fileq.producer.watch import Heard
from fileq.runtime.produce_once import PATIENCE_S, produce_once
from tests.support.clocks import ManualClocks, RecordedEvents

SETTLE, UNCLOSED, RESCAN = 0.5, 5.0, 60.0
HOUR = 3600.0


class FakeWatcher:
    """Hears what the test says."""

    made: "list[FakeWatcher]"
    most = 1000  # watches that the kernel gives

    def __init__(self, wake: object) -> None:
        self.heard = Heard(set(), set(), set())
        self.watched: set[bytes] = set()
        self.is_closed = False
        type(self).made.append(self)

    def watch(self, directory: bytes) -> None:
        if len(self.watched) >= self.most:
            raise OSError(errno.ENOSPC, "no more watches")
        self.watched.add(directory)

    def take(self) -> Heard:
        heard, self.heard = self.heard, Heard(set(), set(), set())
        return heard

    def close(self) -> None:
        self.is_closed = True


class ShakyBroker:
    """The memory broker, away when it is told to be."""

    def __init__(self, real: MemoryBroker) -> None:
        self.real = real
        self.is_away: Callable[[str], bool] = lambda verb: False
        self.loses_reply: Callable[[str], bool] = lambda verb: False
        self.calls: list[str] = []

    def __getattr__(self, verb: str) -> Any:
        method = getattr(self.real, verb)

        def call(*args: Any, **options: Any) -> Any:
            self.calls.append(verb)
            if self.is_away(verb):
                raise BrokerUnavailable("away")
            answer = method(*args, **options)
            if self.loses_reply(verb):
                raise BrokerUnavailable("no answer")
            return answer

        return call


class Stage:
    """A directory, a broker and a producer."""

    producers: ClassVar[list[Producer]] = []  # to be closed after the test

    def __init__(self, root: Path, **producer: object) -> None:
        root.mkdir(exist_ok=True)
        self.root = root
        self.hands = ManualClocks(wall_ns=time.time_ns())
        self.told = RecordedEvents()
        self.config = config_from({"broker": "memory", "producer": {"scan_dir": str(root), **producer}})
        self.broker = ShakyBroker(MemoryBroker(self.config))
        self.producer = self.start()

    def start(self, **options: Any) -> Producer:
        producer = Producer(
            self.config,
            self.broker,  # type: ignore[arg-type]
            self.broker,  # type: ignore[arg-type]
            emit=self.told,
            monotonic=self.hands.monotonic,
            wall_ns=self.hands.wall_ns,
            **options,
        )
        self.producers.append(producer)
        return producer

    @property
    def watcher(self) -> FakeWatcher:
        return FakeWatcher.made[-1]

    def add(self, *names: str, size: int = 1) -> None:
        for name in names:
            path = self.root / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(b"x" * size)
            os.utime(path, ns=(self.hands.wall, self.hands.wall))

    def path(self, name: str) -> bytes:
        return bytes(self.root / name)

    def hear(self, *, closed: str = "", created: str = "", directory: str = "") -> None:
        for name, where in ((closed, "closed"), (created, "created"), (directory, "directories")):
            if name:
                getattr(self.watcher.heard, where).add(self.path(name))

    def turn(self, seconds: float = 0.0) -> float:
        """One turn, after some time."""
        self.hands.advance(seconds)
        return self.producer.turn()

    def settle_down(self, seconds: float = 0.0) -> None:
        """Turns until there is nothing to do right now."""
        self.hands.advance(seconds)
        for _ in range(10_000):
            if self.producer.turn() > 0:
                return
        raise AssertionError("it never comes to rest")

    def jobs(self) -> list[Job]:
        return [decode(raw) for queue in ("high", "low") for raw in self.broker.real.peek(queue, 10**6)]

    def names(self) -> list[str]:
        return sorted(os.path.relpath(job.filepath, self.root) for job in self.jobs())


@pytest.fixture(autouse=True)
def watchers(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    FakeWatcher.made = []
    FakeWatcher.most = 1000
    monkeypatch.setattr(patrol, "Watcher", FakeWatcher)
    Stage.producers = []
    yield
    for producer in Stage.producers:
        producer.close()


@pytest.fixture
def stage(tmp_path: Path) -> Stage:
    return Stage(tmp_path / "in")


# scan and settle


def test_a_file_that_a_scan_finds_is_enqueued_once_it_stood_still_for_the_longer_time(stage):
    stage.add("a")
    stage.settle_down()
    stage.settle_down(UNCLOSED - 0.1)
    assert stage.names() == []
    stage.settle_down(0.1)
    assert stage.names() == ["a"]
    stage.settle_down(RESCAN)
    assert stage.names() == ["a"]


def test_a_file_that_was_left_alone_long_before_the_scan_is_enqueued_at_once(stage):
    stage.add("a", "b/c")
    stage.settle_down(UNCLOSED + 1)
    assert stage.names() == ["a", "b/c"]


def test_on_a_network_file_system_stamps_prove_nothing(tmp_path, monkeypatch):
    table = f"27 1 254:0 / / rw - ext4 /dev/vda rw\n36 27 0:44 / {tmp_path} rw - nfs4 nas:/ rw\n"
    monkeypatch.setattr(filesystems, "read_mountinfo", table.encode)
    stage = Stage(tmp_path / "in")
    stage.add("a")
    stage.settle_down(UNCLOSED + 1)
    assert stage.names() == []
    stage.settle_down(UNCLOSED)
    assert stage.names() == ["a"]


def test_a_changed_file_is_a_new_version_with_a_job_of_its_own(stage):
    stage.add("a")
    stage.settle_down(UNCLOSED + 1)
    stage.add("a", size=2)
    stage.settle_down(RESCAN)
    stage.settle_down(UNCLOSED)
    assert [job.filesize for job in stage.jobs()] == [1, 2]


def test_a_file_that_is_deleted_while_it_settles_leaves_nothing_behind(stage):
    stage.add("a")
    stage.settle_down()
    (stage.root / "a").unlink()
    stage.settle_down(UNCLOSED)
    assert stage.producer.is_idle or stage.producer.unsettled == 0
    assert stage.jobs() == []
    assert stage.producer.tally["skipped:vanished"] == 1


def test_a_file_that_keeps_changing_is_reported_and_enqueued_in_the_end(stage):
    stage.add("a")
    stage.settle_down()
    for size in range(2, 12):
        stage.add("a", size=size)
        stage.settle_down(UNCLOSED)
    assert stage.jobs() == []
    assert stage.producer.tally["skipped:changing"] == 10
    stage.settle_down(UNCLOSED)
    assert [job.filesize for job in stage.jobs()] == [11]


def test_what_is_found_again_and_again_is_looked_up_in_batches(stage):
    stage.add(*(str(n) for n in range(100)))
    stage.settle_down(UNCLOSED + 1)
    stage.broker.calls.clear()
    stage.settle_down(RESCAN)
    assert stage.broker.calls.count("lookup") <= 2
    assert "enqueue" not in stage.broker.calls
    assert stage.producer.tally["known"] == 100


# events


def test_a_close_leads_to_a_job_after_the_shorter_time(stage):
    stage.settle_down()
    stage.add("a")
    stage.hear(closed="a")
    stage.settle_down()
    stage.settle_down(SETTLE)
    assert stage.names() == ["a"]
    assert stage.producer.tally["scans"] <= 1


def test_a_creation_without_a_close_takes_the_longer_time(stage):
    stage.settle_down()
    stage.add("a")
    stage.hear(created="a")
    stage.settle_down()
    stage.settle_down(SETTLE)
    assert stage.names() == []
    stage.settle_down(UNCLOSED)
    assert stage.names() == ["a"]


def test_the_pause_ends_when_the_next_file_may_have_settled(stage):
    stage.settle_down()
    stage.add("a")
    stage.hear(closed="a")
    assert stage.turn() == pytest.approx(SETTLE)
    assert stage.turn(0.2) == pytest.approx(SETTLE - 0.2)


def test_a_new_directory_is_watched_and_scanned_at_once(stage):
    stage.settle_down()
    stage.add("x/y/a")
    stage.hear(directory="x")
    stage.settle_down()
    assert {stage.path("x"), stage.path("x/y")} <= stage.watcher.watched
    stage.settle_down(UNCLOSED)
    assert stage.names() == ["x/y/a"]


def test_a_new_directory_that_is_excluded_is_neither_watched_nor_scanned(tmp_path):
    stage = Stage(tmp_path / "in", exclude_globs=["cache/**"])
    stage.settle_down()
    stage.add("cache/x/a")
    stage.hear(directory="cache")
    stage.hear(directory="cache/x")
    stage.settle_down(UNCLOSED)
    stage.settle_down(UNCLOSED)
    assert stage.watcher.watched == {stage.path("")}
    assert stage.jobs() == []


def test_a_new_link_to_a_directory_is_scanned_where_links_are_followed(tmp_path):
    stage = Stage(tmp_path / "in", follow_symlinks=True)
    stage.add("real/a")
    stage.settle_down(UNCLOSED + 1)
    (stage.root / "link").symlink_to("real")
    stage.hear(created="link")
    stage.settle_down()
    assert stage.names() == ["link/a", "real/a"]


def test_events_do_not_wait_for_the_end_of_a_scan(stage, monkeypatch):
    monkeypatch.setattr(scan, "STEP", 2)
    stage.add(*(f"old/{n}" for n in range(200)))
    stage.turn()
    stage.add("new", "fresh/a")
    stage.hear(closed="new", directory="fresh")
    for _ in range(12):
        stage.turn(0.1)
    assert "new" in stage.names()
    assert stage.path("fresh") in stage.watcher.watched
    assert not stage.producer.waits_only_for_writers, "the scan was over before: nothing is proved"


def test_a_scan_goes_on_while_new_directories_keep_coming(stage, monkeypatch):
    monkeypatch.setattr(scan, "STEP", 3)
    stage.add(*(f"old/{n}" for n in range(30)))
    stage.hands.advance(UNCLOSED + 1)
    for n in range(80):
        stage.add(f"x{n}/a")
        stage.hear(directory=f"x{n}")
        stage.turn()
    assert sum(name.startswith("old/") for name in stage.names()) == 30


def test_lost_events_are_told_of_once_and_answered_by_a_scan_at_once(stage):
    stage.settle_down()
    stage.add("a")
    for _ in range(5):
        stage.watcher.heard.is_overflown = True
        stage.turn()
        stage.watcher.heard.is_overflown = True
    stage.settle_down()
    stage.settle_down(UNCLOSED)
    assert stage.names() == ["a"]
    assert stage.told.count("producer.events_lost") == 1
    stage.watcher.heard.is_overflown = True
    stage.settle_down(60.0)
    assert stage.told.count("producer.events_lost") == 2


def test_when_watches_run_out_it_says_so_once_and_polls(tmp_path):
    FakeWatcher.most = 2
    stage = Stage(tmp_path / "in", poll_interval="1s")
    stage.add("a/x", "b/x", "c/x")
    stage.settle_down(UNCLOSED + 1)
    assert stage.names() == ["a/x", "b/x", "c/x"]
    assert stage.told.count("producer.watch_failed") == 1
    assert "no more watches" in str(stage.told.fields("producer.watch_failed")["error"])
    assert stage.watcher.is_closed
    stage.add("a/new")
    stage.settle_down(1.0)
    stage.settle_down(UNCLOSED)
    assert "a/new" in stage.names()
    assert stage.told.count("producer.watch_failed") == 1


def test_where_no_watcher_can_be_had_at_all_it_polls(tmp_path, monkeypatch):
    def refuse(wake):
        raise OSError(errno.EMFILE, "too many instances")

    monkeypatch.setattr(patrol, "Watcher", refuse)
    stage = Stage(tmp_path / "in")
    stage.settle_down()
    stage.add("a")
    stage.settle_down(1.0)
    stage.settle_down(UNCLOSED)
    assert stage.names() == ["a"]
    assert stage.told.count("producer.watch_failed") == 1


def test_watching_is_off_when_it_is_told_to_be(tmp_path):
    stage = Stage(tmp_path / "in", watch="off")
    stage.settle_down()
    stage.add("a")
    stage.settle_down(UNCLOSED)
    assert FakeWatcher.made == []
    assert stage.jobs() == []
    stage.settle_down(RESCAN)
    stage.settle_down(UNCLOSED)
    assert stage.names() == ["a"]


# markers


def test_a_file_counts_once_its_marker_is_there(tmp_path):
    stage = Stage(tmp_path / "in", ready_suffix=".done")
    stage.add("a", "b", "b.done")
    stage.settle_down(UNCLOSED + 1)
    assert stage.names() == ["b"]
    assert stage.producer.unsettled == 0, "files without a marker would fill the memory"
    assert stage.producer.tally["skipped:unmarked"] == 1
    stage.add("a.done")
    stage.hear(closed="a.done")
    stage.settle_down()
    stage.settle_down(SETTLE)
    assert stage.names() == ["a", "b"]


def test_a_closed_file_without_its_marker_is_no_job(tmp_path):
    stage = Stage(tmp_path / "in", ready_suffix=".done")
    stage.settle_down()
    stage.add("a")
    stage.hear(closed="a")
    stage.settle_down()
    stage.settle_down(SETTLE)
    assert stage.jobs() == []
    assert stage.producer.unsettled == 0


# the ground


def test_a_missing_scan_dir_is_a_problem_and_its_return_the_end_of_it(stage, tmp_path):
    stage.settle_down()
    assert stage.producer.problem == ""
    stage.root.rename(tmp_path / "away")
    assert stage.turn(0.1) > 0
    assert "No such file" in stage.producer.problem
    assert stage.watcher.is_closed
    for seconds in (1.0, 1.0, 1.0, RESCAN, 1.0):
        assert 0 < stage.turn(seconds) <= 1.0, "it must neither spin nor sleep too long"
    (tmp_path / "away").rename(stage.root)
    stage.add("a")
    stage.settle_down(0.1)
    assert stage.producer.problem == ""
    assert not stage.watcher.is_closed
    stage.settle_down(UNCLOSED)
    assert stage.names() == ["a"]
    assert (stage.told.count("scan_dir.lost"), stage.told.count("scan_dir.restored")) == (1, 1)


def test_a_scan_dir_that_goes_before_the_first_scan_is_waited_for_too(stage, tmp_path):
    stage.root.rename(tmp_path / "away")
    assert stage.turn() > 0
    assert stage.turn() > 0


def test_a_scan_dir_that_was_replaced_is_scanned_and_watched_anew(stage, tmp_path):
    stage.add("a")
    stage.settle_down(UNCLOSED + 1)
    stage.root.rename(tmp_path / "old")
    stage.root.mkdir()
    stage.add("b")
    stage.settle_down(0.1)
    assert len(FakeWatcher.made) == 2
    assert FakeWatcher.made[0].is_closed
    assert stage.watcher.watched == {stage.path("")}
    stage.settle_down(UNCLOSED)
    assert stage.names() == ["a", "b"]
    assert stage.producer.problem == ""


def test_a_file_in_its_place_is_no_scan_dir(stage, tmp_path):
    stage.settle_down()
    stage.root.rename(tmp_path / "away")
    stage.root.touch()
    stage.turn()
    assert "Not a directory" in stage.producer.problem


def test_a_scan_dir_that_cannot_be_read_is_a_problem_and_tried_again_soon(stage, monkeypatch):
    real = os.scandir

    def refuse(path):
        raise PermissionError(errno.EACCES, "Permission denied")

    stage.add("a")
    monkeypatch.setattr(scan.os, "scandir", refuse)
    stage.settle_down()
    assert "Permission denied" in stage.producer.problem
    monkeypatch.setattr(scan.os, "scandir", real)
    stage.settle_down(1.0)
    assert stage.producer.problem == ""
    stage.settle_down(UNCLOSED)
    assert stage.names() == ["a"]


@pytest.mark.parametrize(("make", "what"), [(lambda p: None, "does not exist"), (Path.touch, "is not a directory")])
def test_at_start_a_missing_scan_dir_is_a_mistake(tmp_path, make, what):
    make(tmp_path / "in")
    config = config_from({"broker": "memory", "producer": {"scan_dir": str(tmp_path / "in")}})
    with pytest.raises(ConfigError, match=f"producer.scan_dir is .*in', which {what}"):
        Producer(config, MemoryBroker(config), MemoryBroker(config))


# bounds


def test_what_has_no_room_to_settle_is_found_again(stage):
    stage.producer._settling = Settling(SETTLE, UNCLOSED, most=3)
    stage.settle_down()
    for n in range(10):
        stage.add(str(n))
        stage.hear(closed=str(n))
    for _ in range(40):
        stage.turn(0.2)
        assert stage.producer.unsettled <= 3
    assert len(stage.names()) == 10


def test_files_that_keep_changing_do_not_keep_others_out(stage):
    stage.producer._settling = Settling(SETTLE, UNCLOSED, most=3)
    stage.add("a", "b", "c", "d")
    for size in range(2, 40):
        stage.add("a", "b", "c", size=size)
        stage.turn(UNCLOSED / 2)
    assert stage.names() == ["d"]


def test_while_the_outbox_is_full_nothing_more_is_brought(tmp_path, monkeypatch):
    monkeypatch.setattr(outbox, "MOST", 5)
    monkeypatch.setattr(scan, "STEP", 3)
    stage = Stage(tmp_path / "in", rate_limit_per_sec=1)
    stage.add(*(str(n) for n in range(40)))
    stage.hands.advance(UNCLOSED + 1)
    for _ in range(100):
        stage.turn()
        assert len(stage.producer._outbox) <= 5 + 3
    assert len(stage.jobs()) <= 2
    assert not stage.producer.is_idle


def test_while_the_outbox_is_full_what_has_settled_stays_where_it_is(tmp_path, monkeypatch):
    monkeypatch.setattr(outbox, "MOST", 5)
    stage = Stage(tmp_path / "in", rate_limit_per_sec=1)
    stage.settle_down()
    for batch in range(4):
        for n in range(5):
            stage.add(f"{batch}-{n}")
            stage.hear(closed=f"{batch}-{n}")
        stage.turn()
        stage.turn(SETTLE)
        assert len(stage.producer._outbox) <= 10
    assert stage.producer.unsettled >= 9


def test_only_so_many_files_get_a_line_of_their_own_and_each_one_only(tmp_path, monkeypatch):
    monkeypatch.setattr(module, "MOST_TOLD", 3)
    stage = Stage(tmp_path / "in", follow_symlinks=True)
    for n in range(5):
        (stage.root / f"out{n}").symlink_to("/etc/passwd")
    for _ in range(3):
        stage.settle_down(RESCAN)
    assert stage.told.count("file.skipped") == 3
    assert stage.producer.tally["skipped:outside"] == 15


# outages


def test_an_outage_between_finding_and_asking_loses_nothing(stage):
    stage.add("a", "b")
    stage.hands.advance(UNCLOSED + 1)
    stage.broker.is_away = lambda verb: verb == "lookup"
    for _ in range(3):
        with pytest.raises(BrokerUnavailable):
            stage.turn()
    stage.broker.is_away = lambda verb: False
    stage.settle_down()
    assert stage.names() == ["a", "b"]
    assert stage.producer.tally["found"] == 2


def test_an_outage_between_asking_and_enqueueing_loses_nothing(stage):
    stage.add("a", "b")
    stage.hands.advance(UNCLOSED + 1)
    stage.broker.is_away = lambda verb: verb == "enqueue"
    for _ in range(3):
        with pytest.raises(BrokerUnavailable):
            stage.turn()
    stage.broker.is_away = lambda verb: False
    stage.settle_down()
    assert stage.names() == ["a", "b"]


def test_events_heard_during_an_outage_are_not_lost(stage):
    stage.settle_down()
    stage.broker.is_away = lambda verb: True
    stage.add("a")
    stage.hear(closed="a")
    for _ in range(10):
        with pytest.raises(BrokerUnavailable):
            stage.turn(PROBE_S)
    stage.broker.is_away = lambda verb: False
    stage.settle_down(SETTLE)
    assert stage.names() == ["a"]


def test_an_outage_is_noticed_also_when_there_is_nothing_to_do(stage):
    stage.settle_down()
    stage.broker.is_away = lambda verb: True
    stage.turn(PROBE_S - 0.1)
    with pytest.raises(BrokerUnavailable):
        stage.turn(0.1)
    with pytest.raises(BrokerUnavailable):
        stage.turn()
    stage.broker.is_away = lambda verb: False
    stage.turn()


@pytest.mark.parametrize("seed", range(5))
def test_whatever_call_fails_whenever_every_version_is_enqueued_once(tmp_path, seed, monkeypatch):
    monkeypatch.setattr(scan, "STEP", 7)
    monkeypatch.setattr(outbox, "BATCH", 5)
    dice = random.Random(seed)
    stage = Stage(tmp_path / "in")
    stage.broker.is_away = lambda verb: dice.random() < 0.3
    stage.broker.loses_reply = lambda verb: dice.random() < 0.3
    expected = []
    for n in range(60):
        name = f"{dice.choice('xyz')}/{n}"
        stage.add(name)
        expected.append(name)
        if dice.random() < 0.5:
            stage.hear(closed=name)
        with contextlib.suppress(BrokerUnavailable):
            stage.turn(dice.choice([0.0, 0.3, 3.0]))
    stage.broker.is_away = stage.broker.loses_reply = lambda verb: False
    for _ in range(3):
        stage.settle_down(RESCAN)
        stage.settle_down(UNCLOSED)
    assert stage.names() == sorted(expected)
    assert stage.broker.real.census().drift == 0


# forgetting


def test_a_scan_that_sees_a_file_again_takes_its_mark_back(stage):
    stage.add("a", "b")
    stage.settle_down(UNCLOSED + 1)
    (stage.root / "a").rename(stage.root / "../a")
    stage.settle_down(HOUR)
    assert stage.broker.real.lookup([stage.path("a")])[0].missing_since_ms
    (stage.root / "../a").rename(stage.root / "a")
    stage.settle_down(RESCAN)
    assert not stage.broker.real.lookup([stage.path("a")])[0].missing_since_ms
    assert stage.names() == ["a", "b"]


def test_a_file_is_forgotten_after_a_day_of_scans_that_did_not_see_it(stage):
    stage.add("a", "b")
    stage.settle_down(UNCLOSED + 1)
    (stage.root / "a").unlink()
    for _ in range(24):
        stage.settle_down(HOUR)
        assert stage.broker.real.lookup([stage.path("a")])[0] is not None
    stage.settle_down(HOUR)
    assert stage.broker.real.lookup([stage.path("a")]) == [None]
    assert stage.broker.real.lookup([stage.path("b")]) != [None]
    assert stage.producer.tally["forgotten"] == 1


def test_an_error_in_between_begins_the_day_anew(stage, monkeypatch):
    stage.add("a", "locked/b")
    stage.settle_down(UNCLOSED + 1)
    (stage.root / "a").unlink()
    for _ in range(20):
        stage.settle_down(HOUR)
    real = os.scandir

    def refuse(path):
        if path.endswith(b"/locked"):
            raise PermissionError(errno.EACCES, "Permission denied")
        return real(path)

    with monkeypatch.context() as patch:
        patch.setattr(scan.os, "scandir", refuse)
        stage.settle_down(RESCAN)
        stage.settle_down(RESCAN)
    assert not stage.broker.real.lookup([stage.path("a")])[0].missing_since_ms
    for _ in range(24):
        stage.settle_down(HOUR)
        assert stage.broker.real.lookup([stage.path("a")]) != [None]
    stage.settle_down(HOUR)
    assert stage.broker.real.lookup([stage.path("a")]) == [None]


def test_a_step_of_the_clock_is_not_a_day(stage):
    stage.add("a")
    stage.settle_down(UNCLOSED + 1)
    (stage.root / "a").unlink()
    stage.settle_down(HOUR)
    stage.hands.step(3 * DAY_MS / 1000)
    stage.settle_down(HOUR)
    stage.settle_down(HOUR)
    assert stage.broker.real.lookup([stage.path("a")]) != [None]


def test_an_outage_during_a_sweep_ends_it_and_another_follows(stage):
    stage.add("a")
    stage.settle_down(UNCLOSED + 1)
    (stage.root / "a").unlink()
    stage.broker.is_away = lambda verb: verb == "update_ledger"
    stage.hands.advance(HOUR)
    with pytest.raises(BrokerUnavailable):
        stage.settle_down()
    stage.broker.is_away = lambda verb: True
    with pytest.raises(BrokerUnavailable):
        stage.turn()  # nothing is to be done, and still only an answer ends the outage
    stage.broker.is_away = lambda verb: False
    stage.settle_down(HOUR)
    assert stage.broker.real.lookup([stage.path("a")])[0].missing_since_ms


def test_a_second_producer_of_another_directory_touches_nothing_of_the_first(stage, tmp_path):
    stage.add("a")
    stage.settle_down(UNCLOSED + 1)
    (stage.root / "a").unlink()
    other = Stage(tmp_path / "in2")
    other.broker = stage.broker
    other.producer = other.start(forget_after_ms=0)
    for _ in range(3):
        other.settle_down(HOUR)
    assert stage.broker.real.lookup([stage.path("a")])[0].missing_since_ms == 0


# once


def test_once_scans_once_and_needs_no_watches(stage):
    stage.add("a")
    stage.hands.advance(UNCLOSED + 1)
    producer = stage.start(is_once=True)
    made = len(FakeWatcher.made)
    summary = produce_once(producer, monotonic=stage.hands.monotonic)
    assert (summary.found, summary.enqueued, summary.known, summary.unsettled) == (1, 1, 0, 0)
    assert len(FakeWatcher.made) == made
    stage.hands.advance(10 * RESCAN)
    producer.turn()
    assert producer.tally["found"] == 1


def test_once_neither_polls_nor_spins_where_it_would_poll(tmp_path):
    stage = Stage(tmp_path / "in", watch="poll", poll_interval="100ms", rate_limit_per_sec=1)
    stage.add("a", "b", "c", "d")
    stage.hands.advance(UNCLOSED + 1)
    producer = stage.start(is_once=True)
    producer.turn()
    stage.hands.advance(0.5)
    assert producer.turn() > 0
    assert producer.tally["found"] == 4


def test_once_waits_for_writers_and_not_for_ever(stage):
    stage.add("a")
    producer = stage.start(is_once=True)
    sizes = iter(range(2, 1000))

    def tick(producer: Producer) -> None:
        stage.add("a", size=next(sizes))
        stage.hands.advance(1.0)
        producer.wake.set()  # no time passes but ours

    started_s = stage.hands.monotonic()
    summary = produce_once(producer, tick, stage.hands.monotonic)
    assert summary.unsettled == 1
    assert "still being written 1" in str(summary)
    assert "changing" not in str(summary)
    assert PATIENCE_S < stage.hands.monotonic() - started_s < PATIENCE_S + 5


def test_a_summary_names_what_was_skipped_and_why(stage):
    stage.add("a", "x.tmp", "y.tmp")
    os.mkfifo(stage.root / "pipe")
    stage.hands.advance(UNCLOSED + 1)
    summary = produce_once(stage.start(is_once=True), monotonic=stage.hands.monotonic)
    assert str(summary) == ("found 1, enqueued 1, already known 0, skipped 2 (excluded), skipped 1 (special) in 0.0 s")
