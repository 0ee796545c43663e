"""For which batches submit() of the thread executor waits."""

from __future__ import annotations

from fileq.worker.executors.wait_policy import MAX_SKIPS, WaitPolicy


def skips(policy: WaitPolicy) -> int:
    """The number of batches until the next one that is waited for."""
    count = 0
    while not policy.should_wait():
        count += 1
    return count


def test_while_batches_are_done_in_time_every_one_is_waited_for() -> None:
    policy = WaitPolicy()
    for _ in range(5):
        assert policy.should_wait()
        assert not policy.is_cautious
        policy.record(was_done_in_time=True)


def test_after_each_failed_wait_twice_as_many_batches_are_skipped_up_to_a_limit() -> None:
    policy = WaitPolicy()
    found = []
    for _ in range(7):
        policy.record(was_done_in_time=False)
        found.append(skips(policy))
    assert found == [1, 3, 7, 15, 31, 31, 31]
    assert found[-1] == MAX_SKIPS


def test_after_a_failed_wait_the_policy_is_cautious_until_a_batch_is_done_in_time() -> None:
    policy = WaitPolicy()
    policy.record(was_done_in_time=False)
    assert policy.is_cautious
    assert skips(policy) == 1
    assert policy.is_cautious
    policy.record(was_done_in_time=True)
    assert not policy.is_cautious
    assert skips(policy) == 0
