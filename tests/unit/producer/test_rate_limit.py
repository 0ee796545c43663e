"""How fast jobs may be enqueued."""

import pytest

from fileq.config import config_from
from fileq.producer.enqueuer import (
    JITTER_S,
    MAX_PENDING,
    PRESSURE_PAUSE_S,
    RATE_LIMIT,
    Hold,
    Throttle,
    permits_per_window,
)


@pytest.mark.parametrize(
    ("broker", "limit", "permits"),
    [
        ("redis", None, 100),
        ("sqlite", None, 0),
        ("memory", None, 0),
        ("redis", 0, 0),
        ("redis", 7, 7),
        ("sqlite", 7, 7),
        ("memory", 7, 7),
    ],
)
def test_the_default_limit_is_100_on_redis_and_none_elsewhere(broker, limit, permits):
    config = config_from({"broker": broker, "producer": {} if limit is None else {"rate_limit_per_sec": limit}})
    assert permits_per_window(config) == permits


def test_a_new_throttle_does_not_wait():
    assert Throttle().left_s(0.0) == 0.0


def test_after_a_full_window_the_wait_ends_with_the_window_plus_jitter():
    lefts = set()
    for _ in range(200):
        throttle = Throttle()
        throttle.window_is_full(100.0, wait_ms=400)
        left_s = throttle.left_s(100.1)
        assert 0.3 <= left_s <= 0.3 + JITTER_S + 1e-9
        assert throttle.left_s(100.4 + JITTER_S) == 0.0
        assert throttle.hold == Hold(RATE_LIMIT, 100.0)
        lefts.add(left_s)
    assert len(lefts) > 100, "producers that wait for the same window all call at once"


def test_the_pause_of_max_pending_is_short_and_names_the_setting():
    throttle = Throttle()
    throttle.too_many_pending(100.0)
    assert throttle.left_s(100.0) == PRESSURE_PAUSE_S
    assert throttle.hold == Hold(MAX_PENDING, 100.0)


def test_the_hold_stays_until_a_call_is_accepted_and_keeps_its_beginning():
    throttle = Throttle()
    assert throttle.hold is None
    throttle.window_is_full(100.0, wait_ms=1)
    assert throttle.left_s(200.0) == 0.0
    throttle.window_is_full(200.0, wait_ms=1)
    assert throttle.hold == Hold(RATE_LIMIT, 100.0)
    throttle.too_many_pending(300.0)
    assert throttle.hold == Hold(MAX_PENDING, 300.0)
    throttle.clear()
    assert throttle.hold is None
