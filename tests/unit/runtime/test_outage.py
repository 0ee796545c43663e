"""An outage of the broker: told twice, tried again in between."""

import pytest

from fileq.core.errors import BrokerError, BrokerUnavailable
from fileq.runtime.service import FIRST_PAUSE_S, Outage, longest_pause_s
from tests.support.clocks import ManualClocks, RecordedEvents

LONGEST_S = 5.0


def test_an_outage_is_told_at_its_start_and_at_its_end_with_its_length():
    told, hands = RecordedEvents(), ManualClocks()
    outage = Outage(told, LONGEST_S, hands.monotonic)
    outage.ended()
    assert told.events == []
    for _ in range(50):
        outage.failed(BrokerUnavailable("Redis is unavailable"))
        hands.advance(1.0)
    assert [event for event, _ in told.events] == ["broker.lost"]
    assert outage.reason == "Redis is unavailable"
    outage.ended()
    outage.ended()
    assert [event for event, _ in told.events] == ["broker.lost", "broker.restored"]
    assert told.fields("broker.restored")["seconds"] == 50.0
    assert outage.reason == ""


def test_each_outage_has_its_own_two_lines():
    told = RecordedEvents()
    outage = Outage(told, LONGEST_S, ManualClocks().monotonic)
    for _ in range(3):
        outage.failed(BrokerUnavailable("away"))
        outage.ended()
    assert (told.count("broker.lost"), told.count("broker.restored")) == (3, 3)


def test_the_pauses_grow_to_the_longest_and_never_beyond():
    outage = Outage(RecordedEvents(), LONGEST_S, ManualClocks().monotonic)
    pauses = [outage.failed(BrokerUnavailable("away")) for _ in range(200)]
    assert FIRST_PAUSE_S / 2 <= pauses[0] <= FIRST_PAUSE_S
    assert all(LONGEST_S / 2 <= pause <= LONGEST_S for pause in pauses[10:])
    assert len(set(pauses[10:])) > 50, "everybody comes at the same moment"


def test_after_an_outage_the_first_pause_is_short_again():
    outage = Outage(RecordedEvents(), LONGEST_S, ManualClocks().monotonic)
    for _ in range(20):
        outage.failed(BrokerUnavailable("away"))
    outage.ended()
    assert outage.failed(BrokerUnavailable("away")) <= FIRST_PAUSE_S


@pytest.mark.parametrize("error", [BrokerUnavailable("away"), BrokerError("forbidden")])
def test_a_broker_that_refuses_is_an_outage_too(error):
    told = RecordedEvents()
    Outage(told, LONGEST_S).failed(error)
    assert told.fields("broker.lost")["error"] == str(error)


@pytest.mark.parametrize(("ttl_s", "pause_s"), [(3.0, 0.5), (6.0, 1.0), (30.0, 2.0), (600.0, 2.0)])
def test_no_pause_is_longer_than_a_sixth_of_a_heartbeat_nor_than_two_seconds(ttl_s: float, pause_s: float) -> None:
    assert longest_pause_s(ttl_s) == pause_s
