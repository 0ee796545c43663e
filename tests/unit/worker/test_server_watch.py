"""When the fork server is pinged, and when it counts as frozen. The test passes the time."""

from fileq.worker.executors.process.child_pool import ANSWER_TIMEOUT_S, CHECK_EVERY_S, PING_EVERY_S, ServerWatch


def answered() -> ServerWatch:
    watch = ServerWatch(0.0)
    watch.answered()
    return watch


def test_a_server_that_answers_is_pinged_again_and_never_counts_as_frozen() -> None:
    watch = answered()
    for second in range(1, 100):
        assert watch.turn(second * PING_EVERY_S) is True
        assert watch.turn((second + 0.5) * PING_EVERY_S) is False
        watch.answered()
        assert not watch.is_frozen(ANSWER_TIMEOUT_S)


def test_a_server_that_does_not_answer_is_pinged_once_and_counts_as_frozen_after_the_timeout() -> None:
    watch = answered()
    pings = [watch.turn(second * CHECK_EVERY_S) for second in range(1, 11)]
    assert (pings.count(True), watch.is_frozen(ANSWER_TIMEOUT_S)) == (1, False)
    watch.turn(11 * CHECK_EVERY_S)
    assert watch.is_frozen(ANSWER_TIMEOUT_S)


def test_the_time_in_which_the_worker_was_stopped_as_well_does_not_count() -> None:
    watch = answered()
    watch.turn(PING_EVERY_S)
    watch.turn(PING_EVERY_S + 3600)
    assert not watch.is_frozen(ANSWER_TIMEOUT_S)
