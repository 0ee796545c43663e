"""For which bundles submit() of an executor waits."""

from __future__ import annotations

from fileq.worker.executors.protocol import MAX_PAUSE_S, MAX_SKIPS, PausingWaitPolicy, WaitPolicy


def skips(policy: WaitPolicy) -> int:
    """The number of bundles until the next one that is waited for."""
    count = 0
    while not policy.should_wait():
        count += 1
    return count


def test_while_bundles_are_done_in_time_every_one_is_waited_for() -> None:
    policy = WaitPolicy()
    for _ in range(5):
        assert policy.should_wait()
        assert not policy.is_cautious
        policy.record(was_done_in_time=True)


def test_after_each_failed_wait_twice_as_many_bundles_are_skipped_up_to_a_limit() -> None:
    policy = WaitPolicy()
    found = []
    for _ in range(7):
        policy.record(was_done_in_time=False)
        found.append(skips(policy))
    assert found == [1, 3, 7, 15, 31, 31, 31]
    assert found[-1] == MAX_SKIPS


def test_after_a_failed_wait_the_policy_is_cautious_until_a_bundle_is_done_in_time() -> None:
    policy = WaitPolicy()
    policy.record(was_done_in_time=False)
    assert policy.is_cautious
    assert skips(policy) == 1
    assert policy.is_cautious
    policy.record(was_done_in_time=True)
    assert not policy.is_cautious
    assert skips(policy) == 0


def test_after_each_failed_wait_bundles_are_skipped_for_twice_as_long_up_to_a_limit() -> None:
    now_s = 1000.0
    policy = PausingWaitPolicy(lambda: now_s)
    policy.record(was_done_in_time=False)
    for pause_s in (0.002, 0.004, 0.008, 0.016, 0.032, 0.064, 0.128, 0.256, MAX_PAUSE_S, MAX_PAUSE_S):
        assert policy.should_wait()
        policy.record(was_done_in_time=False)
        now_s += 0.9 * pause_s
        assert not policy.should_wait()
        now_s += 0.2 * pause_s


def test_one_failed_wait_between_others_has_no_pause() -> None:
    policy = PausingWaitPolicy(lambda: 1000.0)
    for was_done in (False, True, False, True, False):
        policy.record(was_done_in_time=was_done)
        assert policy.should_wait()
    policy.record(was_done_in_time=False)
    assert not policy.should_wait()


def test_a_bundle_that_is_done_in_time_ends_the_pauses() -> None:
    policy = PausingWaitPolicy(lambda: 1000.0)
    for failures in (5, 2):
        for _ in range(failures):
            policy.record(was_done_in_time=False)
        assert not policy.should_wait()
        policy.record(was_done_in_time=True)
        assert policy.should_wait()
