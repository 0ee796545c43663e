"""The age of files by the wall clock, and when it cannot be trusted."""

from fileq.producer.stability import ClockGuard
from tests.support.clocks import ManualClocks


def test_a_file_has_aged_when_its_timestamp_is_old_enough():
    hands = ManualClocks()
    guard = ClockGuard(5.0, hands.wall_ns, hands.monotonic)
    modified_ns = hands.wall
    hands.advance(4.99)
    assert not guard.has_aged(modified_ns)
    hands.advance(0.01)
    assert guard.has_aged(modified_ns)


def test_a_timestamp_from_the_future_is_not_old():
    hands = ManualClocks()
    assert not ClockGuard(5.0, hands.wall_ns, hands.monotonic).has_aged(hands.wall + 10**12)


def test_after_a_step_forward_nothing_has_aged_until_the_settle_time_has_passed():
    hands = ManualClocks()
    guard = ClockGuard(5.0, hands.wall_ns, hands.monotonic)
    modified_ns = hands.wall
    hands.advance(0.1)
    hands.step(3600.0)
    assert not guard.has_aged(modified_ns)
    hands.advance(4.9)
    assert not guard.has_aged(modified_ns)
    hands.advance(0.1)
    assert guard.has_aged(modified_ns)


def test_a_slow_drift_of_the_clocks_is_no_step():
    hands = ManualClocks()
    guard = ClockGuard(5.0, hands.wall_ns, hands.monotonic)
    for _ in range(100):
        hands.advance(1.0)
        hands.step(0.01)
        guard.check()
    assert guard.has_aged(hands.wall - 5 * 10**9)


def test_a_delay_between_reading_the_two_clocks_is_no_step():
    hands = ManualClocks()
    is_slow = False

    def wall_ns() -> int:
        if is_slow:
            hands.advance(10.0)
        return hands.wall

    guard = ClockGuard(5.0, wall_ns, hands.monotonic)
    is_slow = True
    guard.check()
    is_slow = False
    assert guard.has_aged(hands.wall - 5 * 10**9)


def test_the_steady_time_is_unaffected_by_a_step():
    hands = ManualClocks()
    guard = ClockGuard(5.0, hands.wall_ns, hands.monotonic)
    started_ms = hands.wall // 10**6
    hands.advance(7.0)
    hands.step(3600.0)
    guard.check()
    assert abs(guard.steady_ms() - (started_ms + 7000)) <= 1
