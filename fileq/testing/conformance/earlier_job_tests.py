"""Jobs of one file: the record names the earlier ones, and a claim says whether one of them is running."""

from typing import Any

from fileq.brokers.types import EnqueueResult, Revival
from fileq.core.job import Claim, State, Version, encode
from fileq.core.settlement import complete
from fileq.testing.conformance.builders import (
    EVERY_SETTLEMENT,
    a_job,
    an_entry,
    burial,
    claim_one,
    claims_of,
    deferred,
    drift,
    enqueue,
    expire_leases,
    failed,
    foreign,
    reap_all,
    record_of,
    register,
    settle,
)
from fileq.testing.conformance.harness import Harness, MakeHarness

PATH = b"/data/\xff a\n.pdf"
ODD_ID = 'odd %0A "id"\n\\ ü'


def enqueue_version(harness: Harness, id: str, signature: str = "", **options: Any) -> None:
    """Enqueues a job for a version of the one file; by default the version has the job's name."""
    version = Version(PATH, signature or f"v-{len(id)}-{id[:1]}")
    reply = harness.broker.enqueue([an_entry(id, version=version, **options)])
    assert reply.results == (EnqueueResult.ENQUEUED,)


def blocked(claims: list[Claim]) -> list[tuple[str, bool]]:
    return [(claim.id, claim.is_blocked) for claim in claims]


# enqueue


def test_a_record_names_the_earlier_jobs_of_its_file_newest_first(harness: Harness) -> None:
    for id in ("a", "b", "c"):
        enqueue_version(harness, id)
    assert [record_of(harness, id).after for id in ("a", "b", "c")] == [(), ("a",), ("b", "a")]


def test_at_most_the_eight_newest_are_named(harness: Harness) -> None:
    ids = [chr(ord("a") + n) for n in range(11)]
    for id in ids:
        enqueue_version(harness, id)
    assert record_of(harness, ids[-1]).after == tuple(ids[-2:1:-1])


def test_jobs_of_one_call_name_each_other(harness: Harness) -> None:
    harness.broker.enqueue([an_entry(id, version=Version(PATH, f"v-{id}")) for id in ("a", "b")])
    assert record_of(harness, "b").after == ("a",)


def test_a_job_of_a_known_version_names_the_job_of_that_version(harness: Harness) -> None:
    enqueue_version(harness, "a", "v1")
    enqueue_version(harness, "again", "v1", always=True, delay_ms=1000)
    assert record_of(harness, "again").after == ("a",)


def test_a_job_of_a_known_version_also_names_the_unfinished_jobs_before_that_one(harness: Harness) -> None:
    """The ledger has the newest job of a version only, which may wait as well."""
    enqueue_version(harness, ODD_ID, "v1")
    first = claim_one(harness, "w1")
    for id in ("b", "c"):
        enqueue_version(harness, id, "v1", always=True)
    assert [record_of(harness, id).after for id in ("b", "c")] == [(ODD_ID,), ("b", ODD_ID)]
    assert blocked(claims_of(harness, "w2", "w3")) == [("b", True), ("c", True)]
    settle(harness, complete(first))
    enqueue_version(harness, "d", "v1", always=True)
    assert record_of(harness, "d").after == ("c", "b"), "those that have ended are left out"


def test_a_record_names_sixteen_earlier_jobs_at_most(harness: Harness) -> None:
    ids = [f"again-{n}" for n in range(20)]
    for id in ids:
        enqueue_version(harness, id, "v1", always=True)
    assert record_of(harness, ids[-1]).after == tuple(ids[-2:2:-1])


def test_a_job_that_the_ledger_names_twice_is_named_once(harness: Harness) -> None:
    enqueue_version(harness, "a", "v1")
    settle(harness, complete(claim_one(harness), leaves=Version(PATH, "v2", "8:1")))
    enqueue_version(harness, "b", "v3")
    assert record_of(harness, "b").after == ("a",)


def test_a_job_never_names_itself(harness: Harness) -> None:
    """An id can be used again when its record has expired."""
    enqueue_version(harness, "a", "v1")
    settle(harness, complete(claim_one(harness)))
    harness.remove_record("a")
    enqueue_version(harness, "a", "v2")
    assert record_of(harness, "a").after == ()


def test_a_job_never_names_itself_because_a_later_job_names_it(harness: Harness) -> None:
    enqueue_version(harness, "a", "v1")
    settle(harness, complete(claim_one(harness)))
    enqueue_version(harness, "b", "v1", always=True)
    harness.remove_record("a")
    enqueue_version(harness, "a", "v1", always=True)
    assert [record_of(harness, id).after for id in ("b", "a")] == [("a",), ("b",)]


def test_jobs_of_other_files_and_jobs_without_a_version_name_none(harness: Harness) -> None:
    enqueue_version(harness, "a")
    enqueue(harness, "b", version=Version(PATH + b"x", "v1"))
    enqueue(harness, "c")
    assert [record_of(harness, id).after for id in ("b", "c")] == [(), ()]


def test_an_odd_id_is_named_exactly(harness: Harness) -> None:
    enqueue_version(harness, ODD_ID)
    enqueue_version(harness, "b")
    assert record_of(harness, "b").after == (ODD_ID,)
    assert blocked(claims_of(harness, "w1", "w2")) == [(ODD_ID, False), ("b", True)]


# claim


def test_a_claim_is_blocked_while_an_earlier_job_runs(harness: Harness) -> None:
    enqueue_version(harness, "a")
    first = claim_one(harness, "w1")
    enqueue_version(harness, "b")
    second = claim_one(harness, "w2")
    assert blocked([first, second]) == [("a", False), ("b", True)]
    assert record_of(harness, "b").state is State.RUNNING
    settle(harness, complete(first))
    settle(harness, deferred(second, delay_ms=0))
    harness.broker.promote()
    assert blocked([claim_one(harness, "w2")]) == [("b", False)]


def test_any_of_the_earlier_jobs_blocks(harness: Harness) -> None:
    for id in ("a", "b", "c"):
        enqueue_version(harness, id)
    claims = claims_of(harness, "w1", "w2")
    settle(harness, complete(claims[1]))
    assert blocked([claim_one(harness, "w3")]) == [("c", True)]


def test_an_earlier_job_that_does_not_run_blocks_nothing(make_harness: MakeHarness) -> None:
    """It waits, has ended, or its record is gone."""
    for verb, end in EVERY_SETTLEMENT.items():
        harness = make_harness()
        enqueue_version(harness, "a")
        settle(harness, end(claim_one(harness, "w1")))
        enqueue_version(harness, "b", queue="high")
        assert blocked([claim_one(harness, "w2")]) == [("b", False)], verb
    harness = make_harness()
    enqueue_version(harness, "a")
    claim_one(harness, "w1")
    harness.remove_record("a")
    enqueue_version(harness, "b")
    assert blocked([claim_one(harness, "w2")]) == [("b", False)]


def test_a_settlement_in_the_same_call_unblocks(harness: Harness) -> None:
    enqueue_version(harness, "a")
    first = claim_one(harness)
    enqueue_version(harness, "b")
    assert blocked(list(harness.broker.settle_and_claim([complete(first)], ["w1"]).claims)) == [("b", False)]


def test_a_later_job_does_not_block_an_earlier_one(harness: Harness) -> None:
    """The earlier one finds that its file has changed."""
    enqueue_version(harness, "a")
    enqueue_version(harness, "b", queue="high")
    assert blocked(claims_of(harness, "w1", "w2")) == [("b", False), ("a", False)]


def test_a_job_that_its_slot_holds_already_is_blocked_too(harness: Harness) -> None:
    """The reply of its claim was lost: the next claim or renewal must not run it beside the other."""
    enqueue_version(harness, "a")
    enqueue_version(harness, "b")
    first, _ = claims_of(harness, "w1", "w2")
    assert blocked(claims_of(harness, "w1", "w2")) == [("a", False), ("b", True)]
    [found] = harness.broker.renew([("w2", b"")])
    assert found.claim is not None
    assert blocked([found.claim]) == [("b", True)]
    settle(harness, complete(first))
    [found] = harness.broker.renew([("w2", b"")])
    assert found.claim is not None
    assert blocked([found.claim]) == [("b", False)]


def test_the_job_of_a_dead_worker_blocks_until_it_is_reaped(harness: Harness) -> None:
    enqueue_version(harness, "a")
    claim_one(harness, "w1")
    enqueue_version(harness, "b")
    expire_leases(harness)
    second = claim_one(harness, "w2")
    assert second.is_blocked
    settle(harness, deferred(second, delay_ms=0))
    reap_all(harness)
    harness.broker.promote()
    register(harness, "w3")
    # The reaped job is at the front of the queue again.
    assert blocked(claims_of(harness, "w2", "w3")) == [("a", False), ("b", True)]
    assert drift(harness) == 0


def test_jobs_of_other_programs_and_of_other_files_are_never_blocked(harness: Harness) -> None:
    enqueue_version(harness, "a")
    harness.push_raw("low", foreign("b", filepath="/data/a.pdf"))
    enqueue(harness, "c", version=Version(PATH + b"x", "v1"))
    assert blocked(claims_of(harness, "w1", "w2", "w3")) == [("a", False), ("b", False), ("c", False)]


def test_what_a_record_names_survives_a_retry_and_a_revival(harness: Harness) -> None:
    enqueue_version(harness, "a")
    enqueue_version(harness, "b", queue="high")
    settle(harness, failed(claim_one(harness), delay_ms=0))
    harness.broker.promote()
    buried = burial(claim_one(harness))
    settle(harness, buried)
    harness.broker.revive([Revival(buried.next_raw, "b", encode(a_job("b")), "high")])
    assert record_of(harness, "b").after == ("a",)
