"""The catalog: named documents whose revision shows whether they were changed since they were read."""

import pytest

from fileq.brokers.catalog import MAX_DOCUMENT_BYTES, Document
from fileq.brokers.protocol import FullBroker
from fileq.core.errors import BrokerError, Conflict
from fileq.testing.conformance.builders import enqueue, names, snapshot
from fileq.testing.conformance.concurrency import run_concurrently
from fileq.testing.conformance.harness import Harness

ODD_BODY = bytes(range(256)) + b"\n7\n"


def test_there_are_no_documents_at_first(harness: Harness) -> None:
    assert harness.broker.documents("webhooks") == {}
    assert harness.broker.catalog_revision("webhooks") == 0
    assert harness.broker.remove_document("webhooks", "a") is False


def test_a_document_is_read_as_it_was_written(harness: Harness) -> None:
    revision = harness.broker.put_document("webhooks", "A.b_c-9", ODD_BODY)
    assert harness.another().documents("webhooks") == {"A.b_c-9": Document(ODD_BODY, revision)}
    assert harness.broker.catalog_revision("webhooks") == revision == 1


def test_an_empty_document_is_one(harness: Harness) -> None:
    harness.broker.put_document("webhooks", "a", b"")
    assert harness.broker.documents("webhooks") == {"a": Document(b"", 1)}


def test_kinds_are_apart(harness: Harness) -> None:
    harness.broker.put_document("webhooks", "a", b"1")
    harness.broker.put_document("webhooks", "b", b"2")
    harness.broker.put_document("keys", "a", b"3")
    assert harness.broker.documents("keys") == {"a": Document(b"3", 1)}
    assert harness.broker.documents("webhooks") == {"a": Document(b"1", 1), "b": Document(b"2", 2)}
    kinds = ["keys", "views", "webhooks"]
    assert harness.broker.documents_of(kinds) == [harness.broker.documents(kind) for kind in kinds]
    assert harness.broker.documents_of([]) == []
    assert [harness.broker.catalog_revision(kind) for kind in ("webhooks", "keys", "views")] == [2, 1, 0]
    assert harness.broker.catalog_revision("webhooks", "keys", "views") == 3, "it grows with a change of any of them"


def test_a_change_has_a_new_revision(harness: Harness) -> None:
    assert harness.broker.put_document("webhooks", "a", b"1") == 1
    assert harness.broker.put_document("webhooks", "a", b"2") == 2
    assert harness.broker.put_document("webhooks", "a", b"3", expected=2) == 3
    assert harness.broker.documents("webhooks") == {"a": Document(b"3", 3)}


def test_a_document_that_was_changed_since_it_was_read_is_not_replaced(harness: Harness) -> None:
    harness.broker.put_document("webhooks", "a", b"1")
    harness.broker.put_document("webhooks", "a", b"2")
    for expected in (0, 1, 3):
        with pytest.raises(Conflict, match=rf"'a' of webhooks: expected revision {expected}, but its revision is 2"):
            harness.broker.put_document("webhooks", "a", b"3", expected)
        with pytest.raises(Conflict):
            harness.broker.remove_document("webhooks", "a", expected)
    with pytest.raises(Conflict, match="expected revision 2, but it does not exist"):
        harness.broker.put_document("webhooks", "b", b"3", 2)
    assert harness.broker.documents("webhooks") == {"a": Document(b"2", 2)}
    assert harness.broker.catalog_revision("webhooks") == 2


def test_expecting_none_creates_a_document(harness: Harness) -> None:
    assert harness.broker.put_document("webhooks", "a", b"1", expected=0) == 1


def test_a_repeat_returns_the_same_revision(harness: Harness) -> None:
    harness.broker.put_document("webhooks", "a", b"1")
    for expected in (1, 1, None):
        assert harness.broker.put_document("webhooks", "a", b"2", expected) == 2
    for _ in range(2):
        assert harness.broker.put_document("webhooks", "b", b"", 0) == 3
    assert harness.broker.catalog_revision("webhooks") == 3


def test_a_removed_document_is_gone_and_a_repeat_has_no_effect(harness: Harness) -> None:
    harness.broker.put_document("webhooks", "a", b"1")
    harness.broker.put_document("webhooks", "b", b"2")
    assert harness.broker.remove_document("webhooks", "a", expected=1) is True
    assert harness.broker.catalog_revision("webhooks") == 3
    for expected in (1, None):
        assert harness.broker.remove_document("webhooks", "a", expected) is False
    assert harness.broker.documents("webhooks") == {"b": Document(b"2", 2)}
    assert harness.broker.catalog_revision("webhooks") == 3


def test_a_revision_is_never_used_again(harness: Harness) -> None:
    seen = set()
    for _ in range(3):
        seen.add(harness.broker.put_document("webhooks", "a", b"1", expected=0))
        harness.broker.remove_document("webhooks", "a")
    assert seen == {1, 3, 5}


def test_of_two_callers_one_replaces_the_document(harness: Harness) -> None:
    harness.broker.put_document("webhooks", "a", b"")
    other = harness.another()

    def replace_each(broker: FullBroker, mark: bytes) -> int:
        count = 0
        for n in range(1, 21):
            try:
                count += broker.put_document("webhooks", "a", b"%b %d" % (mark, n), expected=n) == n + 1
            except Conflict:
                while broker.catalog_revision("webhooks") <= n:
                    pass
        return count

    counts = run_concurrently(lambda: replace_each(harness.broker, b"one"), lambda: replace_each(other, b"two"))
    assert sum(counts) == harness.broker.catalog_revision("webhooks") - 1 == 20


def test_the_largest_document_fits(harness: Harness) -> None:
    body = b"x" * MAX_DOCUMENT_BYTES
    harness.broker.put_document("webhooks", "n" * 100, body)
    assert harness.broker.documents("webhooks")["n" * 100].body == body
    with pytest.raises(BrokerError, match="65537 bytes; at most 65536"):
        harness.broker.put_document("webhooks", "a", body + b"x")


@pytest.mark.parametrize("name", ["", "a b", "a:b", "a/b", "ü", "a\n", "n" * 101, "{a}"])
def test_a_name_that_could_be_mistaken_is_refused(harness: Harness, name: str) -> None:
    for call in (
        lambda: harness.broker.put_document("webhooks", name, b""),
        lambda: harness.broker.put_document(name, "a", b""),
        lambda: harness.broker.remove_document("webhooks", name),
        lambda: harness.broker.remove_document(name, "a"),
        lambda: harness.broker.documents(name),
        lambda: harness.broker.documents_of(["webhooks", name]),
        lambda: harness.broker.catalog_revision(name),
    ):
        with pytest.raises(BrokerError, match=r"a name must match \[A-Za-z0-9"):
            call()


def test_documents_change_no_job_and_no_counter(harness: Harness) -> None:
    enqueue(harness, *names(3))
    before = snapshot(harness, *names(3))
    harness.broker.put_document("webhooks", "a", b"1")
    harness.broker.remove_document("webhooks", "a")
    assert snapshot(harness, *names(3)) == before
