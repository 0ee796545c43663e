"""Batches in batches: a batch with a parent is one member of it, and its callbacks are members of the parent."""

import pytest

from fileq.brokers.types import LeaseStatus
from fileq.core.batch import LEVELS_MAX, BatchState, CallbackKind
from fileq.core.errors import BrokerError
from fileq.core.settlement import complete
from fileq.testing.conformance.batch_builders import (
    add,
    batch_of,
    callback_jobs,
    counts,
    create,
    end,
    revive,
    unfinished_ids,
)
from fileq.testing.conformance.builders import burial, claim_one, claims_of, drift, record_of, settle
from fileq.testing.conformance.harness import Harness

THEN, CATCH, FINALLY = CallbackKind.THEN, CallbackKind.CATCH, CallbackKind.FINALLY


def nested(harness: Harness, *kinds: CallbackKind, allow_failures: bool = False) -> None:
    """A sealed parent with one sealed child that has one member."""
    create(harness, THEN, CATCH, FINALLY, id="parent", allow_failures=allow_failures)
    create(harness, *kinds, id="child", parent="parent", allow_failures=allow_failures)
    add(harness, "a", batch="child")
    harness.broker.seal_batch("parent")
    harness.broker.seal_batch("child")


def test_a_child_is_one_member_of_its_parent(harness: Harness) -> None:
    nested(harness)
    assert counts(harness, "parent") == {"total": 1, "waiting": 1}
    assert unfinished_ids(harness, "parent") == set()
    end(harness, complete)
    assert counts(harness, "parent") == {"total": 1, "completed": 1}
    assert batch_of(harness, "child").is_counted
    assert batch_of(harness, "parent").state is BatchState.FINISHED
    assert callback_jobs(harness, "parent") == {"parent.then", "parent.finally"}


def test_one_settlement_finishes_a_batch_with_all_its_parents(harness: Harness) -> None:
    nested(harness)
    answer = harness.broker.settle_and_claim([complete(claim_one(harness))], [])
    assert answer.finished_batches == ("child", "parent")


def test_the_callbacks_of_a_child_are_members_of_its_parent(harness: Harness) -> None:
    nested(harness, THEN)
    end(harness, complete)
    assert record_of(harness, "child.then").batch == "parent"
    assert counts(harness, "parent") == {"total": 2, "waiting": 1, "completed": 1}
    assert batch_of(harness, "parent").state is BatchState.SEALED
    end(harness, complete)
    assert counts(harness, "parent") == {"total": 2, "completed": 2}
    assert callback_jobs(harness, "parent") == {"parent.then", "parent.finally"}


def test_a_callback_of_a_child_that_fails_fails_the_parent(harness: Harness) -> None:
    nested(harness, THEN)
    end(harness, complete)
    end(harness, burial)
    assert counts(harness, "child") == {"total": 1, "completed": 1}
    assert counts(harness, "parent") == {"total": 2, "completed": 1, "dead": 1}
    assert batch_of(harness, "parent").dead_id == "child.then"
    assert callback_jobs(harness, "parent") == {"parent.catch", "parent.finally"}


@pytest.mark.parametrize("how", ["a death", "cancel_batch"])
def test_catch_and_finally_of_a_child_run_though_its_parent_is_cancelled(harness: Harness, how: str) -> None:
    nested(harness, THEN, CATCH, FINALLY)
    if how == "cancel_batch":
        claim = claim_one(harness)
        assert harness.broker.cancel_batch("parent")
        settle(harness, burial(claim))
    else:
        end(harness, burial)
    assert batch_of(harness, "parent").is_cancelled
    claims = claims_of(harness, "w1", "w2")
    assert sorted(claim.id for claim in claims if not claim.is_cancelled) == ["child.catch", "child.finally"]
    held = [(claim.slot, claim.raw) for claim in claims]
    assert [one.status for one in harness.broker.renew(held)] == [LeaseStatus.HELD] * 2
    for claim in claims:
        [unexpected] = harness.broker.renew([(claim.slot, b"")])
        assert unexpected.claim is not None
        assert not unexpected.claim.is_cancelled
        settle(harness, complete(unexpected.claim))
    assert counts(harness, "parent") == {"total": 3, "completed": 2, "dead": 1}
    assert callback_jobs(harness, "parent") == {"parent.catch", "parent.finally"}
    assert drift(harness) == 0


def test_then_of_a_child_is_cancelled_with_its_parent(harness: Harness) -> None:
    nested(harness, THEN)
    end(harness, complete)
    assert harness.broker.cancel_batch("parent")
    claim = claim_one(harness)
    assert (claim.id, claim.is_cancelled) == ("child.then", True)


def test_a_child_that_failed_counts_as_dead_and_fires_catch_of_the_parent(harness: Harness) -> None:
    nested(harness)
    end(harness, burial)
    assert counts(harness, "parent") == {"total": 1, "dead": 1}
    parent = batch_of(harness, "parent")
    assert parent.dead_id == "child"
    assert parent.dead_error == "batch child failed: 1 dead, 0 cancelled, 0 deleted; first ValueError: no such page"
    assert harness.broker.dead_members("parent").ids == ()
    assert harness.broker.dead_members("child").ids == ("a",)
    assert callback_jobs(harness, "parent") == {"parent.catch", "parent.finally"}
    assert drift(harness) == 0


def test_a_revival_reopens_a_parent_that_is_unfinished(harness: Harness) -> None:
    create(harness, THEN, id="parent", allow_failures=True)
    create(harness, id="child", parent="parent", allow_failures=True)
    add(harness, "a", batch="child")
    harness.broker.seal_batch("child")
    end(harness, burial)
    assert counts(harness, "parent") == {"total": 1, "dead": 1}
    assert revive(harness, "a")
    assert counts(harness, "parent") == {"total": 1, "waiting": 1}
    assert not batch_of(harness, "child").is_counted
    harness.broker.seal_batch("parent")
    end(harness, complete)
    assert counts(harness, "parent") == {"total": 1, "completed": 1}
    assert callback_jobs(harness, "parent") == {"parent.then"}


def test_a_revival_does_not_reopen_a_finished_parent(harness: Harness) -> None:
    nested(harness, FINALLY, allow_failures=True)
    end(harness, burial, id="a")
    end(harness, complete, id="child.finally")
    assert batch_of(harness, "parent").state is BatchState.FINISHED
    before = batch_of(harness, "parent")
    assert revive(harness, "a")
    assert batch_of(harness, "child").state is BatchState.SEALED
    end(harness, complete, id="a")
    assert batch_of(harness, "child").state is BatchState.FINISHED
    assert batch_of(harness, "parent") == before


def test_batches_nest_in_so_many_levels(harness: Harness) -> None:
    for level in range(LEVELS_MAX):
        assert create(harness, FINALLY, id=f"b{level}", parent=f"b{level - 1}" if level else "")
    with pytest.raises(BrokerError, match="nested"):
        create(harness, id="too-deep", parent=f"b{LEVELS_MAX - 1}")
    for level in range(LEVELS_MAX - 1):
        assert harness.broker.seal_batch(f"b{level}")
    assert harness.broker.seal_batch(f"b{LEVELS_MAX - 1}")
    for level in reversed(range(LEVELS_MAX)):
        assert batch_of(harness, f"b{level}").state is BatchState.FINISHED
        settle(harness, complete(claim_one(harness)))
    assert counts(harness, "b0") == {"total": 2, "completed": 2}


@pytest.mark.parametrize("close", ["seal", "cancel", "never created"])
def test_a_parent_that_takes_no_jobs_takes_no_batch(harness: Harness, close: str) -> None:
    if close != "never created":
        create(harness, id="parent")
        (harness.broker.seal_batch if close == "seal" else harness.broker.cancel_batch)("parent")
    with pytest.raises(BrokerError, match="parent"):
        create(harness, id="child", parent="parent")
    assert harness.broker.batches_by_id(["child"]) == [None]


def test_a_repeated_creation_is_not_counted_again(harness: Harness) -> None:
    create(harness, id="parent")
    assert create(harness, id="child", parent="parent")
    harness.broker.seal_batch("parent")
    assert not create(harness, id="child", parent="parent")
    assert counts(harness, "parent") == {"total": 1, "waiting": 1}


def test_cancelling_a_parent_cancels_the_unfinished_children(harness: Harness) -> None:
    create(harness, FINALLY, id="parent")
    create(harness, id="child", parent="parent")
    create(harness, id="grandchild", parent="child")
    create(harness, id="done", parent="parent")
    add(harness, "a", batch="grandchild")
    harness.broker.seal_batch("done")
    assert harness.broker.cancel_batch("parent")
    flags = {id: batch_of(harness, id).is_cancelled for id in ("parent", "child", "grandchild", "done")}
    assert flags == {"parent": True, "child": True, "grandchild": True, "done": False}
    assert claim_one(harness).is_cancelled
    harness.broker.deregister(["w1"])
    harness.broker.cancel(["a"])
    assert counts(harness, "child") == {"total": 1, "dead": 1}
    assert counts(harness, "parent") == {"total": 2, "completed": 1, "dead": 1}
    assert callback_jobs(harness, "parent") == {"parent.finally"}
