"""The ledger with signatures that have an inode or a hash: what one of two signatures lacks is not compared."""

from collections.abc import Sequence

import pytest

from fileq.brokers.types import LEDGER_DEPTH, EnqueueResult, LedgerEntry
from fileq.core.job import Version
from fileq.core.settlement import complete
from fileq.testing.conformance.builders import an_entry, claim_one, ledger_entry, settle
from fileq.testing.conformance.harness import Harness

PATH = b"/data/a.pdf"
SAME = [
    ("4-1-i7", "4-1-i7"),
    ("4-1", "4-1-i7"),
    ("4-1-i7", "4-1"),
    ("4-1-i7", "4-1-i7-cab"),
    ("4-1-i7-cab", "4-1-i8-cab"),
    ("4-1-cab", "4-1-i8"),
]
OTHER = [
    ("4-1-i7", "4-1-i8"),
    ("4-1-i7", "4-1-i77"),
    ("4-1-i7-cab", "4-1-i7-cac"),
    ("4-1-i7-cab", "4-1-i8"),
    ("4-1-i7", "4-2-i7"),
    ("4-1-cab", "4-1-cabc"),
]


def enqueue_version(harness: Harness, id: str, signature: str, *, always: bool = False) -> EnqueueResult:
    [fate] = harness.broker.enqueue([an_entry(id, version=Version(PATH, signature), always=always)]).results
    return fate


@pytest.mark.parametrize(("recorded", "found"), SAME)
def test_a_version_is_the_same_if_nothing_that_both_have_differs(harness: Harness, recorded: str, found: str) -> None:
    enqueue_version(harness, "a", recorded)
    assert enqueue_version(harness, "b", found) is EnqueueResult.KNOWN
    assert ledger_entry(harness, PATH).versions == ((recorded, "a"),)


@pytest.mark.parametrize(("recorded", "found"), OTHER)
def test_another_inode_or_another_content_is_a_new_version(harness: Harness, recorded: str, found: str) -> None:
    enqueue_version(harness, "a", recorded)
    assert enqueue_version(harness, "b", found) is EnqueueResult.ENQUEUED
    assert ledger_entry(harness, PATH).versions == ((found, "b"), (recorded, "a"))


@pytest.mark.parametrize(("recorded", "found"), SAME)
def test_a_version_enqueued_again_replaces_the_same_one(harness: Harness, recorded: str, found: str) -> None:
    for id, signature in (("a", "4-2"), ("b", recorded), ("c", "9-9-i9")):
        enqueue_version(harness, id, signature)
    enqueue_version(harness, "d", found, always=True)
    assert ledger_entry(harness, PATH).versions == ((found, "d"), ("9-9-i9", "c"), ("4-2", "a"))


def test_every_version_keeps_its_own_inode(harness: Harness) -> None:
    signatures = [f"4-1-i{n}" for n in range(1, LEDGER_DEPTH + 2)]
    for signature in signatures:
        assert enqueue_version(harness, f"job{signature}", signature) is EnqueueResult.ENQUEUED
    assert [s for s, _ in ledger_entry(harness, PATH).versions] == signatures[:0:-1]
    assert enqueue_version(harness, "known", signatures[1]) is EnqueueResult.KNOWN
    assert enqueue_version(harness, "forgotten", signatures[0]) is EnqueueResult.ENQUEUED


def test_a_version_left_by_a_handler_needs_no_inode(harness: Harness) -> None:
    enqueue_version(harness, "a", "4-1-i7")
    settle(harness, complete(claim_one(harness), leaves=Version(PATH, "5-2", "8:1")))
    assert ledger_entry(harness, PATH) == LedgerEntry((("5-2", "a"), ("4-1-i7", "a")), device="8:1")
    assert enqueue_version(harness, "b", "5-2-i9") is EnqueueResult.KNOWN


@pytest.mark.parametrize("device", ["", "8:1"])
@pytest.mark.parametrize("missing_since_ms", [0, 1_800_000_000_123])
@pytest.mark.parametrize(
    "signatures", [["4-1-i7"], ["4-2", "4-1-i7-cab"], ["4-2-i8", "4-1"], ["4-3", "4-2-cab", "4-1"]]
)
def test_an_entry_is_read_as_it_was_written(
    harness: Harness, device: str, missing_since_ms: int, signatures: Sequence[str]
) -> None:
    enqueue_version(harness, "a", "v1")
    was = ledger_entry(harness, PATH)
    becomes = LedgerEntry(tuple((s, f"job of {s}") for s in signatures), missing_since_ms, device)
    assert harness.broker.update_ledger([(PATH, was, becomes)]) == [True]
    assert harness.broker.lookup([PATH]) == [becomes]
    assert enqueue_version(harness, "b", "9-9-i9") is EnqueueResult.ENQUEUED
    added = LedgerEntry((("9-9-i9", "b"), *becomes.versions), device=device)
    assert harness.broker.lookup([PATH]) == [added]
    assert harness.broker.update_ledger([(PATH, added, None)]) == [True]
