"""revive and discard: an operator puts dead jobs back or deletes them, each one once."""

from msgspec.structs import replace

from fileq.brokers.protocol import FullBroker
from fileq.brokers.types import Revival, Revived
from fileq.core.job import State, decode, encode, raw_id
from fileq.core.settlement import complete, release
from fileq.testing.conformance.builders import (
    a_job,
    an_entry,
    burial,
    claim_one,
    claims_of,
    counter,
    dead,
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
    running,
    settle,
    snapshot,
)
from fileq.testing.conformance.concurrency import run_concurrently
from fileq.testing.conformance.harness import Harness


def revival(raw: bytes, queue: str = "low") -> Revival:
    """As `dlq retry` makes it: the same id, no retries, no recoveries, no error."""
    job = decode(raw)
    return Revival(raw, job.id, encode(job.but(retries=0, recoveries=0, error=None, failed_at=None)), queue)


def test_reviving_or_discarding_no_job_returns_nothing(harness: Harness) -> None:
    assert harness.broker.revive([]) == []
    assert harness.broker.discard([]) == []


def test_a_revived_job_starts_from_the_beginning(harness: Harness) -> None:
    settle(harness, failed(running(harness, "a"), delay_ms=0))
    harness.broker.promote()
    settle(harness, burial(claim_one(harness)))
    [raw] = raws_in(harness, "dead_letter")
    assert harness.broker.revive([revival(raw)]) == [Revived(True)]
    assert places_of(harness, "a") == ["low"]
    assert raws_in(harness, "low") == [encode(a_job("a"))]
    record = record_of(harness, "a")
    assert (record.state, record.error, record.ended_ms, record.fingerprint) == (State.PENDING, "", 0, "")
    assert [attempt.outcome for attempt in record.attempts] == ["failed", "failed"]
    assert drift(harness) == 0


def test_a_revived_job_goes_to_the_back_of_the_queue_it_came_from(harness: Harness) -> None:
    raw = dead(harness, "a", queue="high")
    enqueue(harness, "b", queue="high")
    harness.broker.revive([revival(raw, queue="low")])
    assert (ids_in(harness, "high"), ids_in(harness, "low")) == (["b", "a"], [])


def test_a_revived_job_that_is_next_goes_to_the_front_of_its_queue(harness: Harness) -> None:
    raw = dead(harness, "a", queue="high")
    enqueue(harness, "b", queue="high")
    harness.broker.revive([replace(revival(raw), is_next=True)])
    assert ids_in(harness, "high") == ["a", "b"]
    assert claim_one(harness).id == "a"
    assert drift(harness) == 0


def test_a_revived_job_runs_and_completes(harness: Harness) -> None:
    harness.broker.revive([revival(dead(harness, "a"))])
    settle(harness, complete(claim_one(harness)))
    assert places_of(harness, "a") == ["completed"]
    assert record_of(harness, "a").state is State.COMPLETED
    assert drift(harness) == 0


def test_a_revived_record_expires_like_any_other(harness: Harness) -> None:
    harness.broker.revive([revival(dead(harness, "a"))])
    harness.advance(2 * harness.config.worker.history_ttl)
    assert has_record(harness, "a")
    settle(harness, complete(claim_one(harness)))
    harness.advance(harness.config.worker.history_ttl)
    assert not has_record(harness, "a")


def test_a_request_to_cancel_ends_with_the_job(harness: Harness) -> None:
    claim = running(harness, "a")
    harness.broker.cancel(["a"])
    settle(harness, burial(claim))
    harness.broker.revive([revival(raws_in(harness, "dead_letter")[0])])
    assert record_of(harness, "a").is_cancel_requested is False


def test_the_same_call_twice_revives_once(harness: Harness) -> None:
    revivals = [revival(dead(harness, "a"))]
    harness.broker.revive(revivals)
    before = snapshot(harness, "a")
    assert harness.broker.revive(revivals) == [Revived(False)]
    assert snapshot(harness, "a") == before


def test_a_job_twice_in_one_call_is_revived_once(harness: Harness) -> None:
    raw = dead(harness, "a")
    assert harness.broker.revive([revival(raw), revival(raw)]) == [Revived(True), Revived(False)]
    assert places_of(harness, "a") == ["low"]
    assert drift(harness) == 0


def test_a_thousand_are_revived_in_their_order(harness: Harness) -> None:
    enqueue(harness, *names(1000))
    claims = claims_of(harness, *names(1000, "slot"))
    harness.broker.settle_and_claim([burial(claim) for claim in claims], [])
    revivals = [revival(raw) for raw in raws_in(harness, "dead_letter")]
    assert harness.broker.revive(revivals) == [Revived(True)] * 1000
    assert ids_in(harness, "low") == names(1000)
    assert raws_in(harness, "dead_letter") == []
    assert drift(harness) == 0


def test_identical_dead_jobs_are_revived_one_at_a_time(harness: Harness) -> None:
    raw = foreign("a")
    for _ in range(2):
        harness.push_raw("low", raw)
    for claim in claims_of(harness, "w1", "w2"):
        settle(harness, burial(claim))
    first, second = raws_in(harness, "dead_letter")
    assert first == second
    assert harness.broker.revive([revival(first)]) == [Revived(True)]
    assert sorted(places_of(harness, "a")) == ["dead_letter", "low"]
    assert harness.broker.revive([revival(second)]) == [Revived(True)]
    assert places_of(harness, "a") == ["low", "low"]
    assert drift(harness) == 0
    for claim in claims_of(harness, "w1", "w2"):
        settle(harness, complete(claim))
    assert drift(harness) == 0


def test_the_oldest_of_identical_dead_jobs_is_revived_first(harness: Harness) -> None:
    for raw in (b"same", b"other", b"same", b"third", b"same"):
        harness.push_raw("low", raw)
        settle(harness, burial(claim_one(harness)))
    harness.broker.revive([Revival(b"same", raw_id(b"same"), b"same", "low")])
    assert raws_in(harness, "dead_letter") == [b"other", b"same", b"third", b"same"]
    harness.broker.discard([(raw_id(b"same"), b"same")])
    assert raws_in(harness, "dead_letter") == [b"other", b"third", b"same"]


def test_two_operators_at_the_same_time_revive_each_job_once(harness: Harness) -> None:
    raws = [dead(harness, id) for id in names(30)]
    other = harness.another()

    def revive_all(broker: FullBroker) -> int:
        return sum(broker.revive([revival(raw)])[0].is_revived for raw in raws)

    assert sum(run_concurrently(lambda: revive_all(harness.broker), lambda: revive_all(other))) == 30
    assert ids_in(harness, "low") == names(30)
    assert drift(harness) == 0


def test_a_discarded_job_is_deleted_with_its_record(harness: Harness) -> None:
    raw = dead(harness, "a")
    other = dead(harness, "b")
    assert harness.broker.discard([("a", raw)]) == [True]
    assert places_of(harness, "a") == []
    assert not has_record(harness, "a")
    assert raws_in(harness, "dead_letter") == [other]
    assert has_record(harness, "b")
    assert counter(harness, "deleted") == 1
    assert drift(harness) == 0


def test_discarding_twice_deletes_once(harness: Harness) -> None:
    raw = dead(harness, "a")
    assert harness.broker.discard([("a", raw), ("a", raw)]) == [True, False]
    assert harness.broker.discard([("a", raw)]) == [False]
    assert counter(harness, "deleted") == 1
    assert drift(harness) == 0


def test_what_is_not_dead_is_not_discarded(harness: Harness) -> None:
    enqueue(harness, "a")
    [raw] = raws_in(harness, "low")
    before = snapshot(harness, "a")
    assert harness.broker.discard([("a", raw)]) == [False]
    assert snapshot(harness, "a") == before


def test_a_thousand_are_discarded_in_one_call(harness: Harness) -> None:
    enqueue(harness, *names(1000))
    claims = claims_of(harness, *names(1000, "slot"))
    harness.broker.settle_and_claim([burial(claim) for claim in claims], [])
    pairs = list(zip(names(1000), raws_in(harness, "dead_letter"), strict=True))
    assert harness.broker.discard(pairs) == [True] * 1000
    assert raws_in(harness, "dead_letter") == []
    assert set(harness.broker.records(names(1000))) == {None}
    assert drift(harness) == 0


def test_pages_do_not_skip_what_follows_a_job_that_the_caller_removes(harness: Harness) -> None:
    for id in names(50):
        dead(harness, id)
    raws, found = raws_in(harness, "dead_letter"), []
    for page in harness.broker.pages("dead_letter", 10):
        found += page
        assert harness.broker.discard([(decode(raw).id, raw) for raw in page[::2]]) == [True] * len(page[::2])
    assert found == raws
    assert raws_in(harness, "dead_letter") == raws[1::2]


def test_copies_at_both_ends_are_removed_oldest_first(harness: Harness) -> None:
    ends = [b"same", b"first", b"second", b"same"]
    for raw in ends:
        harness.push_raw("low", raw)
        settle(harness, burial(claim_one(harness)))
    same = (raw_id(b"same"), b"same")
    assert harness.broker.discard([same]) == [True]
    assert raws_in(harness, "dead_letter") == ends[1:]
    assert harness.broker.discard([same, same]) == [True, False]
    assert raws_in(harness, "dead_letter") == ends[1:3]
    assert drift(harness) == 0


def test_jobs_are_revived_while_others_are_buried_and_discarded(harness: Harness) -> None:
    """Each job goes one way, and the others stay dead."""
    raws = {id: dead(harness, id) for id in names(40)}
    one, other = harness.another(), harness.another()
    wanted = [revival(raws[id]) for id in names(40)[::2]]
    pairs = [(id, raws[id]) for id in names(40)[::4]]
    revived, discarded, _ = run_concurrently(
        lambda: [harness.broker.revive([one])[0].is_revived for one in wanted],
        lambda: one.discard(pairs),
        lambda: other.enqueue([an_entry(f"new-{i}", queue="high") for i in range(40)]),
    )
    assert sum(revived) + sum(discarded) == 20
    assert ids_in(harness, "dead_letter") == names(40)[1::2]
    assert sum(revived) == len(ids_in(harness, "low"))
    assert drift(harness) == 0


def test_of_two_callers_each_knows_which_jobs_it_has_discarded(harness: Harness) -> None:
    """medium: `dlq delete` names the jobs that it has deleted, when others delete some of them meanwhile."""
    raws = {id: dead(harness, id) for id in names(60)}
    pairs, other = list(raws.items()), harness.another()
    answers = run_concurrently(
        lambda: [harness.broker.discard([pair]) == [True] for pair in pairs],
        lambda: [other.discard([pair]) == [True] for pair in reversed(pairs)][::-1],
    )
    assert [one + another for one, another in zip(*answers, strict=True)] == [1] * 60
    assert (counter(harness, "deleted"), drift(harness)) == (60, 0)


def test_of_jobs_that_others_have_discarded_it_says_which(harness: Harness) -> None:
    """medium: as above, in one call."""
    pairs = [(id, dead(harness, id)) for id in names(9)]
    harness.another().discard(pairs[1::3])
    assert harness.broker.discard(pairs) == [i % 3 != 1 for i in range(9)]
    assert (counter(harness, "deleted"), drift(harness)) == (9, 0)


def test_discarding_one_copy_leaves_the_record_of_one_that_runs(harness: Harness) -> None:
    for _ in range(2):
        harness.push_raw("low", foreign("a"))
    first, second = claims_of(harness, "w1", "w2")
    settle(harness, burial(first))
    harness.broker.revive([revival(burial(first).next_raw)])
    claim_one(harness, "w1")
    settle(harness, burial(second))
    assert harness.broker.discard([("a", burial(second).next_raw)]) == [True]
    assert places_of(harness, "a") == ["processing:w1"]
    assert drift(harness) == 0


def test_discarding_a_copy_does_not_forget_that_another_waits(harness: Harness) -> None:
    """Otherwise the waiting copy would be counted a second time when it is claimed."""
    for _ in range(2):
        harness.push_raw("low", foreign("a"))
    first, second = claims_of(harness, "w1", "w2")
    settle(harness, release(first))
    settle(harness, burial(second))
    harness.broker.discard([("a", burial(second).next_raw)])
    assert places_of(harness, "a") == ["low"]
    settle(harness, complete(claim_one(harness)))
    assert counter(harness, "adopted") == 2
    assert drift(harness) == 0


def test_discarding_a_job_leaves_the_record_of_a_copy_that_completed_later(harness: Harness) -> None:
    raw = dead(harness, "a")
    harness.push_raw("low", foreign("a"))
    settle(harness, complete(claim_one(harness)))
    assert harness.broker.discard([("a", raw)]) == [True]
    assert raws_in(harness, "dead_letter") == []
    assert record_of(harness, "a").state is State.COMPLETED
    assert [counter(harness, name) for name in ("produced", "adopted", "completed", "deleted")] == [1] * 4
    assert drift(harness) == 0


def test_bytes_that_are_not_a_job_can_be_revived(harness: Harness) -> None:
    raw = b"\xff not a job"
    harness.push_raw("high", raw)
    settle(harness, burial(claim_one(harness)))
    assert harness.broker.revive([Revival(raw, raw_id(raw), raw, "low")]) == [Revived(True)]
    assert raws_in(harness, "high") == [raw]
    assert raws_in(harness, "dead_letter") == []
    assert not has_record(harness, raw_id(raw))
    assert drift(harness) == -1  # not accounted for until a slot claims it again
    settle(harness, burial(claim_one(harness)))
    assert raws_in(harness, "dead_letter") == [raw]
    assert drift(harness) == 0


def test_bytes_that_are_not_a_job_can_be_discarded(harness: Harness) -> None:
    raw = b"\xff not a job"
    harness.push_raw("low", raw)
    settle(harness, burial(claim_one(harness)))
    assert harness.broker.discard([(raw_id(raw), raw)]) == [True]
    assert not has_record(harness, raw_id(raw))
    assert drift(harness) == 0


def test_discarding_one_of_two_equal_elements_keeps_their_record(harness: Harness) -> None:
    raw = b"\xff not a job"
    for _ in range(2):
        harness.push_raw("low", raw)
        settle(harness, burial(claim_one(harness)))
    assert harness.broker.discard([(raw_id(raw), raw)]) == [True]
    assert raws_in(harness, "dead_letter") == [raw]
    assert record_of(harness, raw_id(raw)).state is State.DEAD
    assert harness.broker.discard([(raw_id(raw), raw)]) == [True]
    assert not has_record(harness, raw_id(raw))
    assert drift(harness) == 0


def test_two_equal_elements_are_discarded_with_their_record_in_one_call(harness: Harness) -> None:
    raw = b"\xff not a job"
    for _ in range(2):
        harness.push_raw("low", raw)
        settle(harness, burial(claim_one(harness)))
    assert harness.broker.discard([(raw_id(raw), raw)] * 2) == [True, True]
    assert (raws_in(harness, "dead_letter"), has_record(harness, raw_id(raw))) == ([], False)
