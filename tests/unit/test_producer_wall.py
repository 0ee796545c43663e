"""The age of files by the wall clock, and when that is not believed."""

from fileq.producer.wall import Wall
from tests.support.clocks import ManualClocks


def test_a_file_has_rested_once_its_stamps_are_old_enough():
    hands = ManualClocks()
    wall = Wall(5.0, hands.wall_ns, hands.monotonic)
    touched = hands.wall
    hands.advance(4.99)
    assert not wall.has_rested(touched)
    hands.advance(0.01)
    assert wall.has_rested(touched)


def test_stamps_from_the_future_are_not_old():
    hands = ManualClocks()
    assert not Wall(5.0, hands.wall_ns, hands.monotonic).has_rested(hands.wall + 10**12)


def test_after_a_step_forward_nothing_seems_old_until_the_settle_time_has_passed():
    hands = ManualClocks()
    wall = Wall(5.0, hands.wall_ns, hands.monotonic)
    touched = hands.wall
    hands.advance(0.1)
    hands.step(3600.0)
    assert not wall.has_rested(touched)
    hands.advance(4.9)
    assert not wall.has_rested(touched)
    hands.advance(0.1)
    assert wall.has_rested(touched)


def test_clocks_that_drift_apart_slowly_are_believed():
    hands = ManualClocks()
    wall = Wall(5.0, hands.wall_ns, hands.monotonic)
    for _ in range(100):
        hands.advance(1.0)
        hands.step(0.01)
        wall.look()
    assert wall.has_rested(hands.wall - 5 * 10**9)


def test_being_held_up_between_two_looks_at_the_clocks_is_no_step():
    hands = ManualClocks()
    is_slow = False

    def wall_ns() -> int:
        if is_slow:
            hands.advance(10.0)
        return hands.wall

    wall = Wall(5.0, wall_ns, hands.monotonic)
    is_slow = True
    wall.look()
    is_slow = False
    assert wall.has_rested(hands.wall - 5 * 10**9)


def test_the_steady_clock_does_not_step():
    hands = ManualClocks()
    wall = Wall(5.0, hands.wall_ns, hands.monotonic)
    began_ms = hands.wall // 10**6
    hands.advance(7.0)
    hands.step(3600.0)
    wall.look()
    assert abs(wall.steady_ms() - (began_ms + 7000)) <= 1
