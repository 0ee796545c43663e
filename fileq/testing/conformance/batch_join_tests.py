"""Jobs that join a batch later: those that exist already, and follow-ups. Repairing the counts."""

from collections.abc import Sequence
from functools import partial

import pytest
from msgspec.structs import replace

from fileq.brokers.batches import JoinResult
from fileq.core.batch import BatchState, CallbackKind
from fileq.core.outcome import FollowUp
from fileq.core.settlement import cancel, complete
from fileq.testing.conformance.batch_builders import (
    JOB_QUEUE,
    add,
    batch_of,
    callback_jobs,
    counts,
    create,
    member,
    revive,
    unfinished_ids,
)
from fileq.testing.conformance.builders import (
    MakeSettlement,
    burial,
    claim_one,
    completed,
    dead,
    deferred,
    enqueue,
    failed,
    record_of,
    register,
    settle,
)
from fileq.testing.conformance.concurrency import run_concurrently
from fileq.testing.conformance.harness import Harness

THEN, CATCH, FINALLY = CallbackKind.THEN, CallbackKind.CATCH, CallbackKind.FINALLY


# joining


def test_jobs_that_exist_join_in_the_state_they_are_in(harness: Harness) -> None:
    create(harness, CATCH, allow_failures=True)
    completed(harness, "done")
    dead(harness, "died")
    enqueue(harness, "deferred")
    settle(harness, deferred(claim_one(harness)))
    enqueue(harness, "waits")
    ids = ["waits", "deferred", "done", "died", "unknown"]
    assert harness.broker.join_batch("b", ids) == [JoinResult.JOINED] * 5
    assert harness.broker.join_batch("b", ids) == [JoinResult.MEMBER] * 5
    assert counts(harness) == {"total": 5, "waiting": 2, "completed": 2, "dead": 1}
    assert record_of(harness, "waits").batch == record_of(harness, "died").batch == "b"
    assert batch_of(harness).dead_id == "died"
    assert callback_jobs(harness) == {"b.catch"}
    assert revive(harness, "died")
    assert counts(harness) == {"total": 5, "waiting": 3, "completed": 2}


def test_a_job_of_another_batch_joins_only_if_it_has_ended_for_good(harness: Harness) -> None:
    create(harness, id="other", allow_failures=True)
    create(harness)
    harness.broker.enqueue([member(id, batch="other") for id in ("done", "died", "waits")])
    settle(harness, complete(claim_one(harness)))
    settle(harness, burial(claim_one(harness)))
    expected = [JoinResult.JOINED, JoinResult.ELSEWHERE, JoinResult.ELSEWHERE]
    assert harness.broker.join_batch("b", ["done", "died", "waits"]) == expected
    assert counts(harness) == {"total": 1, "completed": 1}
    assert record_of(harness, "done").batch == "other"


@pytest.mark.parametrize("close", ["seal", "cancel", "never created"])
def test_no_job_joins_a_batch_that_takes_none(harness: Harness, close: str) -> None:
    enqueue(harness, "a")
    if close != "never created":
        create(harness)
        (harness.broker.seal_batch if close == "seal" else harness.broker.cancel_batch)("b")
    assert harness.broker.join_batch("b", ["a", "unknown"]) == [JoinResult.CLOSED] * 2
    assert record_of(harness, "a").batch == ""


def test_of_two_callers_one_joins_a_job(harness: Harness) -> None:
    create(harness)
    enqueue(harness, "a")
    calls = [partial(harness.another().join_batch, "b", ["a", "unknown"]) for _ in range(2)]
    answers = [list(answers) for answers in zip(*run_concurrently(*calls), strict=True)]
    assert [sorted(answer) for answer in answers] == [[JoinResult.JOINED, JoinResult.MEMBER]] * 2
    assert counts(harness) == {"total": 2, "waiting": 1, "completed": 1}


# follow-ups


def followed_by(harness: Harness, ids: Sequence[str], make: MakeSettlement = complete) -> None:
    following = tuple(FollowUp(member(id).job, JOB_QUEUE, joins=True) for id in ids)
    settle(harness, replace(make(claim_one(harness)), follow_ups=following))


@pytest.mark.parametrize("make", [complete, burial, cancel, failed], ids=["complete", "bury", "cancel", "retry"])
def test_follow_ups_of_a_member_join_its_sealed_batch(harness: Harness, make: MakeSettlement) -> None:
    create(harness, FINALLY, allow_failures=True)
    add(harness, "a")
    harness.broker.seal_batch("b")
    followed_by(harness, ["a.0", "a.1"], make)
    assert counts(harness)["total"] == 3
    assert batch_of(harness).state is BatchState.SEALED
    assert unfinished_ids(harness) >= {"a.0", "a.1"}


def test_follow_ups_that_join_are_counted_before_the_job_that_they_follow(harness: Harness) -> None:
    create(harness, THEN)
    add(harness, "a")
    harness.broker.seal_batch("b")
    for number in range(3):
        followed_by(harness, [f"a.{number}"])
        assert callback_jobs(harness) == set()
    settle(harness, complete(claim_one(harness)))
    assert counts(harness) == {"total": 4, "completed": 4}
    assert callback_jobs(harness) == {"b.then"}


def test_follow_ups_of_a_member_join_its_cancelled_batch(harness: Harness) -> None:
    create(harness)
    add(harness, "a")
    claim = claim_one(harness)
    harness.broker.cancel_batch("b")
    settle(harness, replace(complete(claim), follow_ups=(FollowUp(member("a.0").job, JOB_QUEUE, joins=True),)))
    assert claim_one(harness).is_cancelled


def test_a_follow_up_of_a_job_outside_joins_only_an_open_batch(harness: Harness) -> None:
    create(harness)
    enqueue(harness, "x", "y", queue="high")
    followed_by(harness, ["x.0"])
    harness.broker.seal_batch("b")
    followed_by(harness, ["y.0"])
    assert (record_of(harness, "x.0").batch, record_of(harness, "y.0").batch) == ("b", "")
    assert counts(harness) == {"total": 1, "waiting": 1}


# repairing the counts


def test_members_that_ended_without_being_counted_are_counted(harness: Harness) -> None:
    create(harness, FINALLY)
    add(harness, "a", "c")
    harness.broker.seal_batch("b")
    harness.remove_record("a")
    assert harness.broker.count_members("b", ["a", "c", "other"]) == 1
    assert harness.broker.count_members("b", ["a", "c", "other"]) == 0
    assert counts(harness) == {"total": 2, "waiting": 1, "deleted": 1}
    harness.remove_record("c")
    register(harness, "w1")
    settle(harness, complete(claim_one(harness)))  # its bytes are still there: it is adopted, without a batch
    settle(harness, complete(claim_one(harness)))
    assert harness.broker.count_members("b", ["c"]) == 1
    assert counts(harness) == {"total": 2, "completed": 1, "deleted": 1}
    assert callback_jobs(harness) == {"b.finally"}


def test_the_pages_of_members_end(harness: Harness) -> None:
    create(harness)
    ids = [f"m{number}" for number in range(25)]
    add(harness, *ids)
    found: list[str] = []
    cursor = ""
    while True:
        page = harness.broker.unfinished_members("b", cursor, 10)
        found += page.ids
        if not (cursor := page.next_cursor):
            break
    assert sorted(set(found)) == sorted(ids)
