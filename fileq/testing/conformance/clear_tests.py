"""clear: cancels the jobs at the front of a queue that the caller has seen, in one step."""

import pytest

from fileq.brokers.types import CLEAR_MAX, CLEAR_REACH
from fileq.core.errors import BrokerError
from fileq.core.job import State
from fileq.core.outcome import FollowUp
from fileq.core.settlement import complete, release
from fileq.testing.conformance.builders import (
    UNDECODABLE,
    a_job,
    burial,
    claim_one,
    claims_of,
    completed,
    counter,
    deferred,
    drift,
    enqueue,
    failed,
    foreign,
    ids_in,
    names,
    places_of,
    raws_in,
    record_of,
    running,
    settle,
    snapshot,
    subscribed,
)
from fileq.testing.conformance.concurrency import run_concurrently
from fileq.testing.conformance.harness import Harness, MakeHarness


def clear(harness: Harness, limit: int = 500, queue: str = "low") -> int:
    return sum(harness.broker.clear(queue, harness.broker.peek(queue, limit)))


def test_clearing_nothing_changes_nothing(harness: Harness) -> None:
    enqueue(harness, "a")
    before = snapshot(harness, "a")
    assert harness.broker.clear("low", []) == []
    assert harness.broker.clear("high", raws_in(harness, "low")) == [False]
    assert snapshot(harness, "a") == before


def test_waiting_jobs_become_cancelled(harness: Harness) -> None:
    enqueue(harness, "a", "b", "c")
    assert clear(harness, 2) == 2
    assert (ids_in(harness, "low"), ids_in(harness, "cancelled")) == (["c"], ["a", "b"])
    assert (counter(harness, "cancelled"), drift(harness)) == (2, 0)


def test_the_record_is_that_of_a_cancelled_job(harness: Harness) -> None:
    enqueue(harness, "a", "b")
    harness.advance(1)
    harness.broker.cancel(["b"])
    clear(harness)
    one, other = record_of(harness, "a"), record_of(harness, "b")
    assert (one.state, one.error, one.ended_ms, one.queued) == (State.CANCELLED, "cancelled", harness.clock.ms, 0)
    assert (one.state, one.error, one.ended_ms, one.queued) == (other.state, other.error, other.ended_ms, other.queued)
    harness.advance(harness.config.worker.history_ttl)
    assert harness.broker.records(["a"]) == [None]


def test_their_events_are_published(harness: Harness) -> None:
    enqueue(harness, "a", "b")
    with subscribed(harness) as next_events:
        clear(harness)
        events = next_events(2)
    assert [(event.event, event.job_id, event.error) for event in events] == [
        ("job:cancelled", "a", "cancelled"),
        ("job:cancelled", "b", "cancelled"),
    ]


def test_a_repeat_finds_nothing(harness: Harness) -> None:
    enqueue(harness, "a", "b")
    raws = harness.broker.peek("low", 2)
    assert harness.broker.clear("low", raws) == [True, True]
    before = snapshot(harness, "a", "b")
    assert harness.broker.clear("low", raws) == [False, False]
    assert snapshot(harness, "a", "b") == before


def test_of_two_callers_each_job_is_cleared_once(harness: Harness) -> None:
    enqueue(harness, *names(400))
    raws = harness.broker.peek("low", 400)
    other = harness.another()
    answers = run_concurrently(
        lambda: [harness.broker.clear("low", [raw]) == [True] for raw in raws],
        lambda: [other.clear("low", [raw]) == [True] for raw in reversed(raws)][::-1],
    )
    assert [one + another for one, another in zip(*answers, strict=True)] == [1] * 400
    assert (len(ids_in(harness, "cancelled")), drift(harness)) == (400, 0)


def test_of_jobs_that_others_took_meanwhile_it_says_which(harness: Harness) -> None:
    """medium: a bulk action names the jobs that it has changed, when others change some of them meanwhile."""
    enqueue(harness, *names(9))
    harness.push_raw("low", UNDECODABLE["text"])
    raws = harness.broker.peek("low", 10)
    harness.another().clear("low", raws[1:9:3])
    assert harness.broker.clear("low", raws) == [i < 9 and i % 3 != 1 for i in range(10)]
    assert drift(harness) == -1  # bytes that are no job stay, and are not accounted for until a slot claims them


def test_a_job_that_was_claimed_meanwhile_stays(harness: Harness) -> None:
    enqueue(harness, "a", "b")
    raws = harness.broker.peek("low", 2)
    claim = claim_one(harness)
    assert harness.broker.clear("low", raws) == [False, True]
    assert (places_of(harness, "a"), places_of(harness, "b")) == (["processing:w1"], ["cancelled"])
    settle(harness, complete(claim))
    assert drift(harness) == 0


def test_jobs_that_came_later_stay_in_order(harness: Harness) -> None:
    enqueue(harness, "a", "b")
    raws = harness.broker.peek("low", 2)
    enqueue(harness, "c", "d")
    assert harness.broker.clear("low", raws) == [True, True]
    assert ids_in(harness, "low") == ["c", "d"]


def test_jobs_between_those_that_are_cleared_stay_in_order(harness: Harness) -> None:
    enqueue(harness, *names(9))
    raws = harness.broker.peek("low", 9)
    assert harness.broker.clear("low", raws[::2]) == [True] * 5
    assert ids_in(harness, "low") == names(9)[1::2]
    assert [claim_one(harness, f"w{n}").id for n in range(4)] == names(9)[1::2]
    assert drift(harness) == 4 - 4


def test_a_job_behind_others_is_found_near_the_front(harness: Harness) -> None:
    enqueue(harness, *names(CLEAR_REACH + 1))
    raws = raws_in(harness, "low")
    assert harness.broker.clear("low", [raws[CLEAR_REACH]]) == [False]
    assert harness.broker.clear("low", [raws[CLEAR_REACH - 1]]) == [True]
    assert harness.broker.clear("low", [raws[CLEAR_REACH]]) == [True]


def test_a_long_queue_is_cleared_page_by_page(harness: Harness) -> None:
    enqueue(harness, *names(1200))
    assert [clear(harness), clear(harness), clear(harness), clear(harness)] == [500, 500, 200, 0]
    assert (harness.broker.census().pending["low"], drift(harness)) == (0, 0)


def test_too_many_jobs_and_an_unknown_queue_are_refused(harness: Harness) -> None:
    with pytest.raises(BrokerError, match="clear at most 500"):
        harness.broker.clear("low", [b""] * (CLEAR_MAX + 1))
    with pytest.raises(BrokerError, match="no queue is named 'nowhere'"):
        harness.broker.clear("nowhere", [])


def test_more_than_completed_max_are_trimmed_as_ever(make_harness: MakeHarness) -> None:
    harness = make_harness(**{"worker.completed_max": 3})
    enqueue(harness, *names(5))
    assert clear(harness) == 5
    assert ids_in(harness, "cancelled") == names(5)[2:]
    assert harness.broker.records(names(2)) == [None, None]


# jobs of other programs


def test_a_job_that_another_program_pushed_is_cancelled_too(harness: Harness) -> None:
    harness.push_raw("low", foreign("a"))
    assert clear(harness) == 1
    assert places_of(harness, "a") == ["cancelled"]
    record = record_of(harness, "a")
    assert (record.state, record.queue, record.raw, record.created_ms) == (
        State.CANCELLED,
        "low",
        foreign("a"),
        harness.clock.ms,
    )
    assert (counter(harness, "adopted"), drift(harness)) == (1, 0)


def test_a_job_that_was_pushed_again_after_it_ended_is_cancelled(harness: Harness) -> None:
    completed(harness, "a")
    harness.push_raw("low", foreign("a"))
    assert clear(harness) == 1
    assert record_of(harness, "a").state is State.CANCELLED
    assert drift(harness) == 0


def test_bytes_that_are_not_a_job_stay(harness: Harness) -> None:
    harness.push_raw("low", UNDECODABLE["text"])
    enqueue(harness, "a")
    assert clear(harness) == 1
    assert raws_in(harness, "low") == [UNDECODABLE["text"]]


def test_a_copy_of_a_job_that_runs_or_is_scheduled_stays(harness: Harness) -> None:
    running(harness, "a")
    settle(harness, failed(running(harness, "b", "w2")))
    settle(harness, deferred(running(harness, "c", "w2")))
    for id in ("a", "b", "c"):
        harness.push_raw("low", foreign(id))
    assert clear(harness) == 0
    assert ids_in(harness, "low") == ["a", "b", "c"]
    states = [record_of(harness, id).state for id in ("a", "b", "c")]
    assert states == [State.RUNNING, State.RETRYING, State.DEFERRED]


def test_two_copies_are_cleared_one_by_one(harness: Harness) -> None:
    enqueue(harness, "a")
    [raw] = raws_in(harness, "low")
    harness.push_raw("low", raw)
    assert harness.broker.clear("low", [raw]) == [True]
    assert (ids_in(harness, "low"), record_of(harness, "a").state) == (["a"], State.CANCELLED)
    assert harness.broker.clear("low", [raw, raw]) == [True, False]
    assert (ids_in(harness, "low"), drift(harness)) == ([], 0)


def test_a_released_job_is_cleared_and_a_dead_one_stays(harness: Harness) -> None:
    enqueue(harness, "a", "b")
    first, second = claims_of(harness, "w1", "w2")
    harness.broker.settle_and_claim([release(first), burial(second)], [])
    assert clear(harness) == 1
    assert (places_of(harness, "a"), places_of(harness, "b")) == (["cancelled"], ["dead_letter"])


# follow-ups


def test_follow_ups_come_with_each_job_that_is_cleared(harness: Harness) -> None:
    enqueue(harness, "a", "b")
    raws = harness.broker.peek("low", 2)
    claim = claim_one(harness)
    wanted = {id: [FollowUp(a_job(f"{id}.1", parent_id=id), "high")] for id in ("a", "b")}
    assert harness.broker.clear("low", raws, wanted) == [False, True]
    assert (claim.id, ids_in(harness, "high")) == ("a", ["b.1"])
    assert record_of(harness, "b").follow_ups == ("b.1",)
    assert harness.broker.clear("low", raws, wanted) == [False, False]
    assert (ids_in(harness, "high"), drift(harness)) == (["b.1"], 0)
    with pytest.raises(BrokerError):
        harness.broker.clear("low", raws, {"a": [FollowUp(a_job("c"), "nowhere")]})
