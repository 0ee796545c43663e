"""A broker that is unavailable, for some calls or for all."""

import contextlib
import random

import pytest

from fileq.core.errors import BrokerUnavailable
from fileq.producer import enqueuer
from fileq.producer.finder import scan
from fileq.producer.ledger_stages import PROBE_S
from tests.support.producer_scenario import RESCAN, SETTLE, UNCLOSED, Scenario

pytestmark = pytest.mark.usefixtures("fake_watchers")


def test_an_outage_of_the_lookup_loses_nothing(scenario):
    scenario.add("a", "b")
    scenario.clock.advance(UNCLOSED + 1)
    scenario.broker.is_away = lambda verb: verb == "lookup"
    for _ in range(3):
        with pytest.raises(BrokerUnavailable):
            scenario.turn()
    scenario.broker.is_away = lambda verb: False
    scenario.run()
    assert scenario.names() == ["a", "b"]
    assert scenario.producer.counts.found == 2


def test_while_the_lookup_fails_nothing_more_is_scanned(scenario, monkeypatch):
    monkeypatch.setattr(scan, "STEP_ENTRIES", 3)
    scenario.add(*(str(n) for n in range(40)))
    scenario.broker.is_away = lambda verb: verb == "lookup"
    with contextlib.suppress(BrokerUnavailable):
        scenario.turn()  # the first step only enters scan_dir
    for _ in range(20):
        with pytest.raises(BrokerUnavailable):
            scenario.turn()
        assert scenario.producer.unsent <= 3


def test_an_outage_of_the_enqueue_call_loses_nothing(scenario):
    scenario.add("a", "b")
    scenario.clock.advance(UNCLOSED + 1)
    scenario.broker.is_away = lambda verb: verb == "enqueue"
    for _ in range(3):
        with pytest.raises(BrokerUnavailable):
            scenario.turn()
    scenario.broker.is_away = lambda verb: False
    scenario.run()
    assert scenario.names() == ["a", "b"]


def test_events_during_an_outage_are_not_lost(scenario):
    scenario.run()
    scenario.broker.is_away = lambda verb: True
    scenario.add("a")
    scenario.make_event(closed="a")
    for _ in range(10):
        with pytest.raises(BrokerUnavailable):
            scenario.turn(PROBE_S)
    scenario.broker.is_away = lambda verb: False
    scenario.run(SETTLE)
    assert scenario.names() == ["a"]


def test_an_outage_is_noticed_while_there_is_nothing_to_do(scenario):
    scenario.run()
    scenario.broker.is_away = lambda verb: True
    scenario.turn(PROBE_S - 0.1)
    with pytest.raises(BrokerUnavailable):
        scenario.turn(0.1)
    with pytest.raises(BrokerUnavailable):
        scenario.turn()
    scenario.broker.is_away = lambda verb: False
    scenario.turn()


@pytest.mark.parametrize("seed", range(5))
def test_with_random_failures_every_version_is_enqueued_once(tmp_path, seed, monkeypatch):
    monkeypatch.setattr(scan, "STEP_ENTRIES", 7)
    monkeypatch.setattr(enqueuer, "BATCH", 5)
    dice = random.Random(seed)
    scenario = Scenario(tmp_path / "in")
    scenario.broker.is_away = lambda verb: dice.random() < 0.3
    scenario.broker.loses_reply = lambda verb: dice.random() < 0.3
    expected = []
    for n in range(60):
        name = f"{dice.choice('xyz')}/{n}"
        scenario.add(name)
        expected.append(name)
        if dice.random() < 0.5:
            scenario.make_event(closed=name)
        with contextlib.suppress(BrokerUnavailable):
            scenario.turn(dice.choice([0.0, 0.3, 3.0]))
    scenario.broker.is_away = scenario.broker.loses_reply = lambda verb: False
    for _ in range(3):
        scenario.run(RESCAN)
        scenario.run(UNCLOSED)
    assert scenario.names() == sorted(expected)
    assert scenario.broker.real.census().drift == 0
