"""Unique keys: of all unfinished jobs, one has the key. No ending gives it back: an ended job no longer counts."""

from functools import partial
from typing import Any

import pytest
from msgspec.structs import replace

from fileq.brokers.protocol import FullBroker
from fileq.brokers.types import Enqueued, EnqueueResult, Entry, Revival, Revived
from fileq.core.errors import JobError
from fileq.core.job import State, Version, decode, encode
from fileq.core.outcome import FollowUp
from fileq.core.settlement import Verb, complete
from fileq.testing.conformance.builders import (
    EVERY_SETTLEMENT,
    a_job,
    an_entry,
    burial,
    claim_one,
    drift,
    enqueue,
    failed,
    foreign,
    has_record,
    ids_in,
    names,
    places_of,
    raws_in,
    record_of,
    settle,
    snapshot,
)
from fileq.testing.conformance.concurrency import run_concurrently
from fileq.testing.conformance.harness import Harness

KEY = 'report of "today" \\ ü'


def keyed(id: str, key: str = KEY, **options: Any) -> Entry:
    return Entry(a_job(id, unique_key=key), "low", **options)


def enqueue_keyed(harness: Harness, *ids: str, key: str = KEY, **options: Any) -> Enqueued:
    return harness.broker.enqueue([keyed(id, key, **options) for id in ids])


def is_free(harness: Harness, key: str = KEY) -> bool:
    """Whether a new job gets the key; it is removed again."""
    probe = f"probe-{harness.clock.ms}-{key}"
    [answer] = enqueue_keyed(harness, probe, key=key, delay_ms=1000).results
    if answer is EnqueueResult.ENQUEUED:
        harness.broker.cancel([probe])
    return answer is EnqueueResult.ENQUEUED


# enqueue


def test_a_second_job_with_the_key_is_a_duplicate_that_names_the_first(harness: Harness) -> None:
    answer = enqueue_keyed(harness, "a")
    assert (answer.results, answer.existing) == ((EnqueueResult.ENQUEUED,), ("",))
    before = snapshot(harness, "a", "b")
    answer = enqueue_keyed(harness, "b")
    assert (answer.results, answer.existing) == ((EnqueueResult.DUPLICATE,), ("a",))
    assert snapshot(harness, "a", "b") == before


def test_the_record_and_the_job_have_the_key(harness: Harness) -> None:
    enqueue_keyed(harness, "a")
    enqueue(harness, "b")
    assert [record_of(harness, id).unique_key for id in ("a", "b")] == [KEY, ""]
    assert decode(record_of(harness, "a").raw).unique_key == KEY


def test_within_one_call_the_first_gets_the_key(harness: Harness) -> None:
    answer = enqueue_keyed(harness, "a", "b")
    assert answer.results == (EnqueueResult.ENQUEUED, EnqueueResult.DUPLICATE)
    assert answer.existing == ("", "a")


def test_a_repeat_names_the_job_itself(harness: Harness) -> None:
    enqueue_keyed(harness, "a")
    answer = enqueue_keyed(harness, "a")
    assert (answer.results, answer.existing) == ((EnqueueResult.DUPLICATE,), ("a",))
    enqueue(harness, "plain")
    assert enqueue(harness, "plain").existing == ("plain",)


def test_other_keys_and_jobs_without_a_key_are_free(harness: Harness) -> None:
    enqueue_keyed(harness, "a")
    assert enqueue_keyed(harness, "b", key=KEY + "x").results == (EnqueueResult.ENQUEUED,)
    assert enqueue(harness, "c").results == (EnqueueResult.ENQUEUED,)


def test_of_two_callers_one_gets_the_key(harness: Harness) -> None:
    brokers = (harness.broker, harness.another())

    def take(broker: FullBroker, prefix: str) -> list[EnqueueResult]:
        return [broker.enqueue([keyed(f"{prefix}{n}", f"key-{n}")]).results[0] for n in range(20)]

    first, second = run_concurrently(lambda: take(brokers[0], "a"), lambda: take(brokers[1], "b"))
    for one, other in zip(first, second, strict=True):
        assert sorted((one, other)) == [EnqueueResult.DUPLICATE, EnqueueResult.ENQUEUED]
    assert (len(ids_in(harness, "low")), drift(harness)) == (20, 0)


def test_a_duplicate_takes_no_permit_and_the_ledger_does_not_learn_its_version(harness: Harness) -> None:
    enqueue_keyed(harness, "a")
    version = Version(b"/data/b", "v1")
    answer = harness.broker.enqueue([keyed("b", version=version)], limit=1)
    assert (answer.results, answer.permits, answer.existing) == ((EnqueueResult.DUPLICATE,), 0, ("a",))
    assert harness.broker.lookup([b"/data/b"]) == [None]


@pytest.mark.parametrize("key", ["", "a\nb", "\x1b[1m", "x" * 201])
def test_a_key_that_cannot_be_used_is_refused_before_any_entry(harness: Harness, key: str) -> None:
    before = snapshot(harness, "a", "b")
    with pytest.raises(JobError, match="unique_key"):
        harness.broker.enqueue([an_entry("a"), keyed("b", key)])
    assert snapshot(harness, "a", "b") == before


def test_the_longest_key_can_be_used(harness: Harness) -> None:
    assert enqueue_keyed(harness, "a", key="ü" * 200).results == (EnqueueResult.ENQUEUED,)
    assert enqueue_keyed(harness, "b", key="ü" * 200).existing == ("a",)


# how long a job has it


@pytest.mark.parametrize("verb", EVERY_SETTLEMENT, ids=str)
def test_an_ended_job_has_no_key_and_any_other_keeps_it(harness: Harness, verb: Verb) -> None:
    enqueue_keyed(harness, "a")
    settle(harness, EVERY_SETTLEMENT[verb](claim_one(harness)))
    assert is_free(harness) is (verb in (Verb.COMPLETE, Verb.BURY, Verb.CANCEL))


def test_a_job_has_its_key_while_it_waits_and_while_it_runs(harness: Harness) -> None:
    enqueue_keyed(harness, "a", delay_ms=1000)
    assert not is_free(harness)
    harness.advance(1)
    harness.broker.promote()
    assert not is_free(harness)
    claim = claim_one(harness)
    assert not is_free(harness)
    settle(harness, complete(claim))
    assert enqueue_keyed(harness, "b").results == (EnqueueResult.ENQUEUED,)
    assert enqueue_keyed(harness, "c").existing == ("b",)


def test_a_cancelled_job_has_no_key(harness: Harness) -> None:
    enqueue_keyed(harness, "a")
    harness.broker.cancel(["a"])
    assert is_free(harness)


def test_a_deleted_job_has_no_key(harness: Harness) -> None:
    enqueue_keyed(harness, "a")
    settle(harness, burial(claim_one(harness)))
    harness.broker.discard([("a", raws_in(harness, "dead_letter")[0])])
    assert is_free(harness)


def test_a_job_that_another_program_pushed_takes_no_key(harness: Harness) -> None:
    harness.push_raw("low", foreign("a", unique_key=KEY))
    claim_one(harness)
    assert is_free(harness)


def test_an_id_that_is_used_again_without_the_key_does_not_have_it(harness: Harness) -> None:
    enqueue_keyed(harness, "a")
    settle(harness, complete(claim_one(harness)))
    harness.advance(harness.config.worker.history_ttl)
    enqueue(harness, "a")
    assert is_free(harness)


# follow-ups


def test_a_follow_up_takes_the_key_that_its_own_job_had(harness: Harness) -> None:
    enqueue_keyed(harness, "a")
    again = FollowUp(a_job("b", parent_id="a", unique_key=KEY), "low")
    settle(harness, replace(complete(claim_one(harness)), follow_ups=(again,)))
    assert places_of(harness, "b") == ["low"]
    assert enqueue_keyed(harness, "c").existing == ("b",)


def test_a_follow_up_whose_key_is_taken_is_left_out(harness: Harness) -> None:
    enqueue_keyed(harness, "a")
    jobs = tuple(FollowUp(a_job(id, parent_id="a", unique_key=KEY), "low") for id in ("b", "c"))
    settle(harness, replace(failed(claim_one(harness)), follow_ups=jobs))
    assert not has_record(harness, "b")
    assert record_of(harness, "a").follow_ups == ()
    assert drift(harness) == 0


# revive


def revival(raw: bytes) -> Revival:
    job = decode(raw)
    return Revival(raw, job.id, encode(job.but(error=None, failed_at=None)), "low")


def buried(harness: Harness, id: str = "a", key: str = KEY) -> bytes:
    enqueue_keyed(harness, id, key=key)
    settlement = burial(claim_one(harness))
    settle(harness, settlement)
    return settlement.next_raw


def test_a_revived_job_takes_its_key_again(harness: Harness) -> None:
    """Also if another job had it meanwhile."""
    raw = buried(harness)
    enqueue_keyed(harness, "between")
    settle(harness, complete(claim_one(harness)))
    assert harness.broker.revive([revival(raw)]) == [Revived(True)]
    assert enqueue_keyed(harness, "b").existing == ("a",)


def test_a_dead_job_whose_key_is_taken_stays_dead_and_the_holder_is_named(harness: Harness) -> None:
    raw = buried(harness)
    enqueue_keyed(harness, "b")
    before = snapshot(harness, "a", "b")
    assert harness.broker.revive([revival(raw)]) == [Revived(False, "b")]
    assert snapshot(harness, "a", "b") == before
    settle(harness, complete(claim_one(harness)))
    assert harness.broker.revive([revival(raw)]) == [Revived(True)]
    assert drift(harness) == 0


def test_of_two_dead_jobs_with_one_key_the_first_is_revived(harness: Harness) -> None:
    raws = [buried(harness, id) for id in ("a", "b")]
    other = buried(harness, "c", key="other")
    answers = harness.broker.revive([revival(raw) for raw in (*raws, other)])
    assert answers == [Revived(True), Revived(False, "a"), Revived(True)]
    assert record_of(harness, "b").state is State.DEAD
    assert ids_in(harness, "low") == ["a", "c"]


def test_a_revived_job_without_a_record_takes_its_key(harness: Harness) -> None:
    raw = buried(harness)
    harness.remove_record("a")
    assert harness.broker.revive([revival(raw)]) == [Revived(True)]
    assert enqueue_keyed(harness, "b").existing == ("a",)


# the sweep


def sweep(broker: FullBroker) -> int:
    """Sweeps to the end and returns how many pages there were."""
    pages, cursor = 1, broker.sweep_unique()
    while cursor is not None:
        pages, cursor = pages + 1, broker.sweep_unique(cursor)
    return pages


def test_a_sweep_of_nothing_ends_at_once(harness: Harness) -> None:
    assert harness.broker.sweep_unique() is None


def test_a_sweep_keeps_the_keys_of_unfinished_jobs(harness: Harness) -> None:
    for n, id in enumerate(names(4)):
        enqueue_keyed(harness, id, key=f"key-{n}", delay_ms=1000 * (n == 3))
    settle(harness, complete(claim_one(harness, "w1")))
    settle(harness, failed(claim_one(harness, "w1")))
    for _ in range(2):
        sweep(harness.broker)
    assert [enqueue_keyed(harness, "x", key=f"key-{n}").existing[0] for n in (1, 2, 3)] == names(4)[1:]
    assert is_free(harness, "key-0")


def test_a_sweep_goes_through_many_keys_in_pages(harness: Harness) -> None:
    ids = names(1300)
    harness.broker.enqueue([keyed(id, f"key of {id}", delay_ms=1000) for id in ids])
    harness.broker.cancel(ids[::2])
    assert sweep(harness.broker) > 1
    assert sweep(harness.another()) > 0
    answers = harness.broker.enqueue([keyed(f"again-{id}", f"key of {id}", delay_ms=1000) for id in ids])
    assert answers.existing[1::2] == tuple(ids[1::2])
    assert set(answers.existing[::2]) == {""}


def test_a_key_that_is_taken_during_a_sweep_stays(harness: Harness) -> None:
    other = harness.another()
    for n in range(20):
        enqueue_keyed(harness, f"a{n}")
        harness.broker.cancel([f"a{n}"])
        run_concurrently(lambda: sweep(other), partial(enqueue_keyed, harness, f"b{n}"))
        assert enqueue_keyed(harness, "c").existing == (f"b{n}",)
        harness.broker.cancel([f"b{n}"])
