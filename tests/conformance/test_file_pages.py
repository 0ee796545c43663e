"""Lists of known files and trees of directories read no more than they need, over every broker."""

from __future__ import annotations

from typing import Any

import pytest

from fileq.brokers.place_pages import LedgerPage
from fileq.queries import file_pages
from fileq.queries.file_pages import file_page, file_tree, file_tree_and_page
from fileq.testing.conformance.builders import (
    ERROR,
    a_version,
    burial,
    claim_one,
    deferred,
    enqueue,
    failed,
    names,
    settle,
)
from fileq.testing.conformance.harness import Harness
from tests.support.counting_reads import CountingReads

FILES = names(12)


class SmallPages(CountingReads):
    """Returns no more files at once than asked for; Redis returns a short ledger whole."""

    def ledger_page(self, under: bytes, cursor: str = "", size: int = 500) -> LedgerPage:
        entries, start = sorted(self._broker.ledger(under)), int(cursor or 0)
        page = tuple(entries[start : start + size])
        end = start + len(page)
        return LedgerPage(page, str(end) if end < len(entries) else "", len(page))


@pytest.fixture
def broker(harness: Harness) -> Any:
    """Knows 12 files; the job of the first one is dead."""
    for n, id in enumerate(FILES):
        enqueue(harness, id, version=a_version("1-1", b"/data/%d/%d.pdf" % (n % 2, n)))
    settle(harness, burial(claim_one(harness)))
    return SmallPages(harness.broker)


def test_a_status_is_compared_without_outlines_of_the_other_files(broker: Any) -> None:
    [dead] = file_page(broker, "/data", status="dead").files
    assert (dead.path, dead.status, dead.error) == ("/data/0/0.pdf", "dead", ERROR)
    assert broker.read == {"states": 12, "outlines": 1}
    assert file_page(broker, "/data", status="expired").files == ()
    assert broker.read == {"states": 24, "outlines": 1}


def test_files_whose_jobs_are_deferred_have_a_status_of_their_own(harness: Harness) -> None:
    for id in ("failed", "held"):
        enqueue(harness, id, version=a_version("1-1", f"/data/{id}".encode()))
    settle(harness, failed(claim_one(harness)))
    settle(harness, deferred(claim_one(harness), reason="a limit"))
    [held] = file_page(harness.broker, "/data", status="deferred").files
    assert (held.path, held.status, held.deferred) == ("/data/held", "deferred", "a limit")
    [retrying] = file_page(harness.broker, "/data", status="retrying").files
    assert (retrying.path, retrying.deferred) == ("/data/failed", "")


def test_a_scan_for_a_status_has_an_end_of_its_own(broker: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(file_pages, "STATES_MAX", 6)
    page = file_page(broker, "/data", status="expired", limit=3)
    assert (page.files, page.scanned, page.is_partial) == ((), 9, True)  # pages of 3 and of 6
    assert broker.read == {"states": 9}
    rest = file_page(broker, "/data", status="expired", cursor=page.next_cursor, limit=3)
    assert (rest.scanned, rest.is_partial) == (3, False)


def test_a_tree_counts_a_bounded_number_of_files(broker: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    tree = file_tree(broker, "/data", 1)
    found = [(one.directory, one.files, one.dead) for one in tree.directories]
    assert found == [("/data", 12, 1), ("/data/0", 6, 1), ("/data/1", 6, 0)]
    assert (tree.is_partial, broker.read) == (False, {"standings": 12})
    monkeypatch.setattr(file_pages, "TREE_MAX", 5)
    monkeypatch.setattr(file_pages, "_PAGE", 3)
    tree = file_tree(broker, "/data", 1)
    assert (tree.directories[0].files, tree.is_partial, broker.read) == (6, True, {"standings": 18})


def test_a_tree_and_the_first_files_come_from_one_scan(broker: Any) -> None:
    tree, page = file_tree_and_page(broker, "/data", 1, limit=5)
    assert tree == file_tree(broker, "/data", 1)
    assert page.files == file_page(broker, "/data", limit=5).files
    rest = file_page(broker, "/data", cursor=page.next_cursor, limit=50)
    assert {one.path for one in (*page.files, *rest.files)} == {f"/data/{n % 2}/{n}.pdf" for n in range(12)}
    assert (page.total, file_tree_and_page(broker, "/data", 1, limit=50)[1].total) == (None, 12)
