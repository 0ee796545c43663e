"""The ledger: each version of a file is enqueued once, no matter how many producers find it."""

from typing import Any

import pytest

from fileq.brokers.protocol import FullBroker
from fileq.brokers.types import LEDGER_DEPTH, EnqueueResult, Entry, LedgerEntry
from fileq.core.job import Version
from fileq.core.settlement import complete
from fileq.testing.conformance.builders import (
    a_job,
    a_version,
    an_entry,
    claim_one,
    drift,
    enqueue,
    has_record,
    ids_in,
    ledger_entry,
    names,
    settle,
)
from fileq.testing.conformance.concurrency import run_concurrently
from fileq.testing.conformance.harness import Harness

PATH = b"/data/a.pdf"
# Paths with characters that are special in LIKE, glob or JSON.
ODD_PATHS = [
    b"/data/100%/a_b.pdf",
    b"/data/100x/a_b.pdf",
    b"/data/[a]*?\\/b.pdf",
    b"/data/new\nline",
    b"/data/\"quotes\" and 'more'",
    b"/data/\xff\xfe not UTF-8",
    b"/data/\xff\xff",
    "/data/ümläut/日本".encode(),
    b"/data/blank ",
    b"/data/{tag}",
]


def enqueue_version(harness: Harness, id: str, signature: str, path: bytes = PATH, **options: Any) -> EnqueueResult:
    """Enqueues a version of a file as a producer does."""
    [fate] = harness.broker.enqueue([an_entry(id, version=Version(path, signature), **options)]).results
    return fate


def versions(harness: Harness, path: bytes = PATH) -> tuple[tuple[str, str], ...]:
    return ledger_entry(harness, path).versions


def test_a_version_is_enqueued_once(harness: Harness) -> None:
    assert enqueue_version(harness, "a", "v1") is EnqueueResult.ENQUEUED
    assert enqueue_version(harness, "b", "v1") is EnqueueResult.KNOWN
    assert ids_in(harness, "low") == ["a"]
    assert not has_record(harness, "b")
    assert versions(harness) == (("v1", "a"),)
    assert drift(harness) == 0


def test_a_version_twice_in_one_batch_is_enqueued_once(harness: Harness) -> None:
    entries = [an_entry(id, version=a_version("v1")) for id in ("a", "b")]
    assert harness.broker.enqueue(entries).results == (EnqueueResult.ENQUEUED, EnqueueResult.KNOWN)
    assert ids_in(harness, "low") == ["a"]


def test_a_changed_file_is_a_new_version(harness: Harness) -> None:
    enqueue_version(harness, "a", "v1")
    assert enqueue_version(harness, "b", "v2") is EnqueueResult.ENQUEUED
    assert versions(harness) == (("v2", "b"), ("v1", "a"))


def test_the_same_signature_of_another_path_is_another_version(harness: Harness) -> None:
    enqueue_version(harness, "a", "v1", b"/data/a")
    assert enqueue_version(harness, "b", "v1", b"/data/b") is EnqueueResult.ENQUEUED


def test_an_older_version_that_is_still_known_is_not_enqueued_again(harness: Harness) -> None:
    enqueue_version(harness, "a", "v1")
    enqueue_version(harness, "b", "v2")
    assert enqueue_version(harness, "c", "v1") is EnqueueResult.KNOWN
    assert versions(harness) == (("v2", "b"), ("v1", "a"))


def test_a_version_stays_known_after_its_job_and_its_record_are_gone(harness: Harness) -> None:
    enqueue_version(harness, "a", "v1")
    harness.broker.cancel(["a"])
    harness.advance(harness.config.worker.history_ttl)
    assert not has_record(harness, "a")
    assert enqueue_version(harness, "b", "v1") is EnqueueResult.KNOWN


def test_the_newest_versions_are_kept_and_the_oldest_is_dropped(harness: Harness) -> None:
    signatures = [f"v{i}" for i in range(LEDGER_DEPTH + 1)]
    for signature in signatures:
        assert enqueue_version(harness, f"job-{signature}", signature) is EnqueueResult.ENQUEUED
    assert versions(harness) == tuple((s, f"job-{s}") for s in reversed(signatures[1:]))
    assert enqueue_version(harness, "again", signatures[1]) is EnqueueResult.KNOWN
    assert enqueue_version(harness, "forgotten", signatures[0]) is EnqueueResult.ENQUEUED


def test_a_duplicate_id_does_not_change_the_ledger(harness: Harness) -> None:
    enqueue(harness, "a")
    assert enqueue_version(harness, "a", "v1") is EnqueueResult.DUPLICATE
    assert harness.broker.lookup([PATH]) == [None]
    assert enqueue_version(harness, "b", "v1") is EnqueueResult.ENQUEUED


def test_a_job_without_a_version_does_not_change_the_ledger(harness: Harness) -> None:
    enqueue(harness, "a")
    assert list(harness.broker.ledger(b"")) == []


def test_always_enqueues_a_version_that_is_known(harness: Harness) -> None:
    enqueue_version(harness, "a", "v1")
    enqueue_version(harness, "b", "v2")
    assert enqueue_version(harness, "c", "v1", always=True) is EnqueueResult.ENQUEUED
    assert versions(harness) == (("v1", "c"), ("v2", "b"))
    assert ids_in(harness, "low") == ["a", "b", "c"]


def test_always_does_not_enqueue_an_id_twice(harness: Harness) -> None:
    enqueue_version(harness, "a", "v1")
    assert enqueue_version(harness, "a", "v1", always=True) is EnqueueResult.DUPLICATE
    assert enqueue_version(harness, "b", "v1", always=True) is EnqueueResult.ENQUEUED
    assert drift(harness) == 0


def test_a_delayed_version_is_known_immediately(harness: Harness) -> None:
    enqueue_version(harness, "a", "v1", delay_ms=5000)
    assert enqueue_version(harness, "b", "v1") is EnqueueResult.KNOWN


def test_lookup_returns_an_entry_for_each_path(harness: Harness) -> None:
    enqueue_version(harness, "a", "v1", b"/data/a")
    enqueue_version(harness, "c", "v3", b"/data/c")
    assert harness.broker.lookup([b"/data/a", b"/data/b", b"/data/c", b"/data/a"]) == [
        LedgerEntry((("v1", "a"),)),
        None,
        LedgerEntry((("v3", "c"),)),
        LedgerEntry((("v1", "a"),)),
    ]


def test_known_files_returns_the_entries_of_lookup(harness: Harness) -> None:
    enqueue_version(harness, "a", "v1")
    assert harness.broker.known_files([PATH, b"/x"]) == [(harness.broker.lookup([PATH])[0], None), (None, None)]


def test_lookup_of_nothing_finds_nothing(harness: Harness) -> None:
    assert harness.broker.lookup([]) == []
    assert harness.broker.knows([]) == []


def test_only_the_newest_version_of_a_file_that_is_there_is_known_at_first_sight(harness: Harness) -> None:
    stored = "1-2-i34-c5f"
    enqueue_version(harness, "a", "1-1-i34")
    enqueue_version(harness, "b", stored)
    enqueue_version(harness, "plain", "7-7", b"/data/plain")
    asked = {
        stored: True,
        "1-2-i34": True,  # the hash is not compared
        "1-1-i34": False,  # an older version
        "1-2-i3": False,
        "1-2-i345": False,
        "1-2": False,
        "1-2-i34-c5": False,
        "1-2-i99": False,
        "11-2-i34": False,
        "1-i34": False,
        "": False,
    }
    assert harness.broker.knows([(PATH, signature) for signature in asked]) == list(asked.values())
    assert harness.broker.knows([(b"/data/plain", "7-7"), (b"/data/plain", "7"), (b"/data/none", "7-7")]) == [
        True,
        False,
        False,
    ]
    [entry] = harness.broker.lookup([PATH])
    assert entry is not None
    harness.broker.update_ledger([(PATH, entry, LedgerEntry(entry.versions, missing_since_ms=9, device="8:1"))])
    assert harness.broker.knows([(PATH, stored), (PATH, "1-2-i34")]) == [False, False]


def test_a_thousand_versions_in_one_call(harness: Harness) -> None:
    ids = names(1000)
    entries = [an_entry(id, version=Version(b"/data/" + id.encode(), "v1")) for id in ids]
    assert set(harness.broker.enqueue(entries).results) == {EnqueueResult.ENQUEUED}
    found = harness.broker.lookup([b"/data/" + id.encode() for id in ids])
    assert [entry and entry.versions for entry in found] == [(("v1", id),) for id in ids]
    # the same files found by another producer, under ids of its own
    again = [Entry(a_job(f"other-{e.job.id}"), "low", e.version) for e in entries]
    assert set(harness.broker.enqueue(again).results) == {EnqueueResult.KNOWN}
    listed = list(harness.broker.ledger(b"/data/"))
    assert sorted(listed) == sorted((b"/data/" + id.encode(), LedgerEntry((("v1", id),))) for id in ids)


@pytest.mark.parametrize("path", ODD_PATHS)
def test_a_path_is_bytes_and_nothing_in_it_is_special(harness: Harness, path: bytes) -> None:
    assert enqueue_version(harness, "a", "v1", path) is EnqueueResult.ENQUEUED
    assert enqueue_version(harness, "b", "v1", path) is EnqueueResult.KNOWN
    assert harness.broker.lookup([path]) == [LedgerEntry((("v1", "a"),))]
    assert list(harness.broker.ledger(path)) == [(path, LedgerEntry((("v1", "a"),)))]


@pytest.mark.parametrize(
    "under", [b"", b"/data/", b"/data/100%/", b"/data/[a]*", b"/data/\xff", b"/data/\xff\xff", b"/dat", b"/other"]
)
def test_the_ledger_lists_the_paths_with_a_prefix(harness: Harness, under: bytes) -> None:
    paths = [*ODD_PATHS, b"/Data/upper", b"/dat", b"/datb"]
    for i, path in enumerate(paths):
        enqueue_version(harness, f"job-{i}", "v1", path)
    assert sorted(path for path, _ in harness.broker.ledger(under)) == sorted(p for p in paths if p.startswith(under))


def test_update_ledger_replaces_an_entry_that_is_as_it_was_read(harness: Harness) -> None:
    enqueue_version(harness, "a", "v1")
    entry = ledger_entry(harness, PATH)
    missing = LedgerEntry(entry.versions, missing_since_ms=harness.clock.ms, device="8:1")
    assert harness.broker.update_ledger([(PATH, entry, missing)]) == [True]
    assert harness.broker.lookup([PATH]) == [missing]
    assert enqueue_version(harness, "b", "v1") is EnqueueResult.KNOWN


def test_update_ledger_leaves_an_entry_that_has_changed_meanwhile(harness: Harness) -> None:
    enqueue_version(harness, "a", "v1")
    stale = ledger_entry(harness, PATH)
    enqueue_version(harness, "b", "v2")
    assert harness.broker.update_ledger([(PATH, stale, None)]) == [False]
    assert versions(harness) == (("v2", "b"), ("v1", "a"))


def test_update_ledger_forgets_and_the_version_is_new_again(harness: Harness) -> None:
    enqueue_version(harness, "a", "v1")
    entry = ledger_entry(harness, PATH)
    assert harness.broker.update_ledger([(PATH, entry, None)]) == [True]
    assert harness.broker.lookup([PATH]) == [None]
    assert enqueue_version(harness, "b", "v1") is EnqueueResult.ENQUEUED


def test_update_ledger_of_a_path_that_is_not_there_does_nothing(harness: Harness) -> None:
    assert harness.broker.update_ledger([(PATH, LedgerEntry(), None), (PATH, LedgerEntry(), LedgerEntry())]) == [
        False,
        False,
    ]
    assert harness.broker.lookup([PATH]) == [None]


def test_update_ledger_twice_has_no_second_effect(harness: Harness) -> None:
    enqueue_version(harness, "a", "v1")
    entry = ledger_entry(harness, PATH)
    missing = LedgerEntry(entry.versions, missing_since_ms=1, device="8:1")
    harness.broker.update_ledger([(PATH, entry, missing)])
    assert harness.broker.update_ledger([(PATH, entry, missing)]) == [False]
    assert harness.broker.lookup([PATH]) == [missing]


def test_update_ledger_returns_a_result_for_each_change(harness: Harness) -> None:
    assert harness.broker.update_ledger([]) == []
    enqueue_version(harness, "a", "v1", b"/data/a")
    enqueue_version(harness, "b", "v1", b"/data/b")
    a, b = ledger_entry(harness, b"/data/a"), ledger_entry(harness, b"/data/b")
    changes = [(b"/data/a", b, None), (b"/data/b", b, None), (b"/data/a", a, None)]
    assert harness.broker.update_ledger(changes) == [False, True, True]
    assert list(harness.broker.ledger(b"")) == []


def test_a_thousand_updates_in_one_call(harness: Harness) -> None:
    paths = [b"/data/" + id.encode() for id in names(1000)]
    harness.broker.enqueue([an_entry(p.decode(), version=Version(p, "v1")) for p in paths])
    changes = [(p, entry, None) for p, entry in zip(paths, harness.broker.lookup(paths), strict=True) if entry]
    assert harness.broker.update_ledger(changes) == [True] * 1000
    assert list(harness.broker.ledger(b"")) == []


def test_a_new_version_ends_the_missing_state(harness: Harness) -> None:
    enqueue_version(harness, "a", "v1")
    entry = ledger_entry(harness, PATH)
    harness.broker.update_ledger([(PATH, entry, LedgerEntry(entry.versions, missing_since_ms=1, device="8:1"))])
    enqueue_version(harness, "b", "v2")
    assert harness.broker.lookup([PATH]) == [LedgerEntry((("v2", "b"), ("v1", "a")), device="8:1")]


def test_the_entry_has_the_device_of_the_newest_version_that_names_one(harness: Harness) -> None:
    def seen_on(id: str, version: Version) -> LedgerEntry:
        harness.broker.enqueue([an_entry(id, version=version)])
        return ledger_entry(harness, PATH)

    assert seen_on("a", Version(PATH, "v1", "8:1")) == LedgerEntry((("v1", "a"),), device="8:1")
    assert seen_on("b", Version(PATH, "v2")) == LedgerEntry((("v2", "b"), ("v1", "a")), device="8:1")
    assert seen_on("c", Version(PATH, "v3", "8:2")).device == "8:2"


@pytest.mark.parametrize("device", ["", "8:1", "0:47"])
@pytest.mark.parametrize("missing_since_ms", [0, 1, 1_800_000_000_123])
@pytest.mark.parametrize("depth", [1, LEDGER_DEPTH])
def test_an_entry_is_read_as_it_was_written(harness: Harness, device: str, missing_since_ms: int, depth: int) -> None:
    enqueue_version(harness, "a", "v1")
    was = ledger_entry(harness, PATH)
    becomes = LedgerEntry(tuple((f"s{i}", f"job-{i}") for i in range(depth)), missing_since_ms, device)
    assert harness.broker.update_ledger([(PATH, was, becomes)]) == [True]
    assert harness.broker.lookup([PATH]) == [becomes]
    assert list(harness.broker.ledger(PATH)) == [(PATH, becomes)]
    assert harness.broker.update_ledger([(PATH, becomes, None)]) == [True]


def test_two_producers_enqueue_each_version_once(harness: Harness) -> None:
    other = harness.another()
    paths = [b"/data/%d" % i for i in range(50)]

    def scan(broker: FullBroker, prefix: str) -> list[EnqueueResult]:
        return [
            broker.enqueue([an_entry(f"{prefix}-{i}", version=Version(path, "v1"))]).results[0]
            for i, path in enumerate(paths)
        ]

    first, second = run_concurrently(lambda: scan(harness.broker, "x"), lambda: scan(other, "y"))
    assert all(
        {one, two} == {EnqueueResult.ENQUEUED, EnqueueResult.KNOWN} for one, two in zip(first, second, strict=True)
    )
    assert len(ids_in(harness, "low")) == 50
    assert drift(harness) == 0


def test_a_completed_job_leaves_its_version_known(harness: Harness) -> None:
    enqueue_version(harness, "a", "v1")
    settle(harness, complete(claim_one(harness)))
    assert enqueue_version(harness, "b", "v1") is EnqueueResult.KNOWN
