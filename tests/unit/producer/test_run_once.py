"""`produce_once`: one scan, then a summary."""

import os

import pytest

from fileq.producer.producer import Producer
from fileq.runtime.produce_once import PATIENCE_S, produce_once
from tests.support.producer_scenario import RESCAN, UNCLOSED, FakeWatcher, Scenario

pytestmark = pytest.mark.usefixtures("fake_watchers")


def test_once_scans_once_without_watches(scenario):
    scenario.add("a")
    scenario.clock.advance(UNCLOSED + 1)
    producer = scenario.start(is_once=True)
    made = len(FakeWatcher.made)
    summary = produce_once(producer, monotonic=scenario.clock.monotonic)
    assert (summary.found, summary.enqueued, summary.known, summary.unstable) == (1, 1, 0, 0)
    assert len(FakeWatcher.made) == made
    scenario.clock.advance(10 * RESCAN)
    producer.turn()
    assert producer.counts.found == 1


def test_once_never_polls_and_never_spins(tmp_path):
    scenario = Scenario(tmp_path / "in", watch="poll", poll_interval="100ms", rate_limit_per_sec=1)
    scenario.add("a", "b", "c", "d")
    scenario.clock.advance(UNCLOSED + 1)
    producer = scenario.start(is_once=True)
    producer.turn()
    scenario.clock.advance(0.5)
    assert producer.turn() > 0
    assert producer.counts.found == 4


def test_once_waits_for_writers_for_a_minute_at_most(scenario):
    scenario.add("a")
    producer = scenario.start(is_once=True)
    sizes = iter(range(2, 1000))

    def tick(producer: Producer) -> None:
        scenario.add("a", size=next(sizes))
        scenario.clock.advance(1.0)
        producer.wake.set()  # so that no real time passes

    started_s = scenario.clock.monotonic()
    summary = produce_once(producer, tick, scenario.clock.monotonic)
    assert summary.unstable == 1
    assert "still being written 1" in str(summary)
    assert "changing" not in str(summary)
    assert PATIENCE_S < scenario.clock.monotonic() - started_s < PATIENCE_S + 5


def test_the_summary_counts_skipped_files_by_reason(scenario):
    scenario.add("a", "x.tmp", "y.tmp")
    os.mkfifo(scenario.root / "pipe")
    scenario.clock.advance(UNCLOSED + 1)
    summary = produce_once(scenario.start(is_once=True), monotonic=scenario.clock.monotonic)
    assert str(summary) == ("found 1, enqueued 1, already known 0, skipped 2 (excluded), skipped 1 (special) in 0ms")
