"""page: the jobs of a place, page by page, while other processes may move jobs."""

import pytest

from fileq.brokers.place_pages import outline_of
from fileq.brokers.types import Revival
from fileq.core.errors import BrokerError
from fileq.core.job import decode, encode
from fileq.core.settlement import cancel
from fileq.testing.conformance.builders import (
    a_job,
    a_version,
    an_entry,
    burial,
    claim_one,
    claims_of,
    completed,
    dead,
    deferred,
    enqueue,
    failed,
    id_of,
    names,
    register,
    running,
    settle,
)
from fileq.testing.conformance.harness import Harness

PLACES = ("high", "low", "scheduled", "processing", "dead_letter", "completed", "cancelled")


def ids_of_pages(harness: Harness, place: str, size: int, cursor: str = "") -> list[list[str]]:
    """The ids of each page, from the cursor to the end."""
    pages = []
    while True:
        page = harness.broker.page(place, cursor, size)
        pages.append([id_of(raw) for raw in page.raws])
        cursor = page.next_cursor
        if not cursor:
            return pages


def joined(pages: list[list[str]]) -> list[str]:
    return [id for page in pages for id in page]


def fill(harness: Harness, *ids: str) -> None:
    """Puts jobs of these ids into every place."""
    for id in ids:
        dead(harness, f"dead-{id}")
        completed(harness, f"done-{id}")
        settle(harness, cancel(running(harness, f"off-{id}")))
    for n, id in enumerate(ids):
        enqueue(harness, f"later-{id}", delay_ms=60_000 + n)
    enqueue(harness, *(f"run-{id}" for id in ids))
    claims_of(harness, *(f"slot-{id}" for id in ids))
    enqueue(harness, *(f"wait-{id}" for id in ids))


@pytest.mark.parametrize("place", PLACES)
def test_an_empty_place_has_one_empty_page(harness: Harness, place: str) -> None:
    register(harness, "idle")
    page = harness.broker.page(place)
    assert (page.raws, page.next_cursor, page.total) == ((), "", 0)


def test_every_place_has_its_order(harness: Harness) -> None:
    fill(harness, "a", "b", "c")
    first = {place: ids_of_pages(harness, place, 2) for place in PLACES}
    assert first == {
        "high": [[]],
        "low": [["wait-a", "wait-b"], ["wait-c"]],
        "scheduled": [["later-a", "later-b"], ["later-c"]],
        "processing": [["run-a", "run-b"], ["run-c"]],
        "dead_letter": [["dead-c", "dead-b"], ["dead-a"]],
        "completed": [["done-c", "done-b"], ["done-a"]],
        "cancelled": [["off-c", "off-b"], ["off-a"]],
    }
    for place in PLACES[1:]:
        assert harness.broker.page(place, "", 1).total == 3
        assert ids_of_pages(harness, place, 3) == [joined(first[place])]  # the end is known without an empty page


def test_it_begins_as_peek_does(harness: Harness) -> None:
    fill(harness, "a", "b", "c")
    for place in (place for place in PLACES if place != "processing"):
        assert list(harness.broker.page(place, "", 2).raws) == harness.broker.peek(place, 2)


def test_a_thousand_jobs_are_returned_once_each(harness: Harness) -> None:
    enqueue(harness, *names(1000))
    pages = ids_of_pages(harness, "low", 300)
    assert [len(page) for page in pages] == [300, 300, 300, 100]
    assert joined(pages) == names(1000)


def test_jobs_that_are_due_at_the_same_time_are_returned_once_each(harness: Harness) -> None:
    harness.broker.enqueue([an_entry(id, delay_ms=60_000) for id in names(7)])
    harness.broker.enqueue([an_entry("last", delay_ms=61_000)])
    pages = ids_of_pages(harness, "scheduled", 2)
    assert sorted(joined(pages)[:7]) == sorted(names(7))
    assert joined(pages)[7:] == ["last"]


def test_claims_at_the_front_of_a_queue_hide_no_job(harness: Harness) -> None:
    enqueue(harness, *names(9))
    page = harness.broker.page("low", "", 4)
    for slot in ("w1", "w2", "w3"):
        claim_one(harness, slot)
    enqueue(harness, "new")
    assert joined(ids_of_pages(harness, "low", 4, page.next_cursor)) == [*names(9)[4:], "new"]


def test_jobs_that_die_meanwhile_are_not_returned_and_hide_none(harness: Harness) -> None:
    raws = [dead(harness, id) for id in names(7)]
    page = harness.broker.page("dead_letter", "", 3)
    dead(harness, "new")
    job = decode(raws[0])
    harness.broker.discard([(id_of(raws[6]), raws[6])])  # returned already
    harness.broker.revive([Revival(raws[0], job.id, encode(job.but(error=None, failed_at=None)), "low")])
    assert ids_of_pages(harness, "dead_letter", 3, page.next_cursor) == [names(7)[3:0:-1]]
    assert harness.broker.page("dead_letter").total == 6


def test_jobs_that_become_due_meanwhile_hide_none(harness: Harness) -> None:
    for n, id in enumerate(names(6)):
        harness.broker.enqueue([an_entry(id, delay_ms=1000 * (n + 1))])
    page = harness.broker.page("scheduled", "", 3)
    harness.advance(2)
    harness.broker.promote()
    assert joined(ids_of_pages(harness, "scheduled", 2, page.next_cursor)) == names(6)[3:]


def test_long_jobs_make_short_pages(harness: Harness) -> None:
    payload = "x" * (7 << 20)
    for id in ("a", "b", "c"):
        harness.push_raw("low", encode(a_job(id, batch_id=payload)))
    assert ids_of_pages(harness, "low", 100) == [["a", "b"], ["c"]]


def test_bytes_that_are_not_a_job_are_returned_too(harness: Harness) -> None:
    harness.push_raw("low", b"not a job")
    harness.push_raw("low", b"\xff")
    page = harness.broker.page("low", "", 1)
    assert (page.raws, page.total) == ((b"not a job",), 2)
    assert harness.broker.page("low", page.next_cursor, 1).raws == (b"\xff",)


@pytest.mark.parametrize("place", ["low", "scheduled", "dead_letter"])
@pytest.mark.parametrize("cursor", ["x", "1.x.y", "-", "9" * 40, "\0", "1.\u0663"])
def test_a_wrong_cursor_is_refused(harness: Harness, place: str, cursor: str) -> None:
    with pytest.raises(BrokerError, match="does not belong to this list"):
        harness.broker.page(place, cursor)


def test_an_unknown_place_and_a_wrong_size_are_refused(harness: Harness) -> None:
    with pytest.raises(BrokerError, match="no place is named 'nowhere'; known: high, low, scheduled, processing"):
        harness.broker.page("nowhere")
    with pytest.raises(BrokerError, match="size is 0"):
        harness.broker.page("low", "", 0)


def test_an_outline_is_the_record_without_what_may_be_long(harness: Harness) -> None:
    enqueue(harness, "later", delay_ms=60_000)
    completed(harness, "done")
    settle(harness, deferred(running(harness, "deferred")))
    settle(harness, failed(running(harness, "failed"), delay_ms=5000, traceback="long", output="longer"))
    settle(harness, burial(running(harness, "dead"), error="IOError: \\ünï"))
    harness.broker.enqueue([an_entry("version", version=a_version("1-1"))])
    harness.broker.enqueue([an_entry("next", version=a_version("2-2"))])
    harness.broker.cancel([running(harness, "running", "w2", queue="high").id])
    ids = ["later", "done", "deferred", "failed", "dead", "version", "next", "running"]
    records = [record for record in harness.broker.records(ids) if record is not None]
    assert harness.broker.outlines([*ids, "unknown"]) == [*map(outline_of, records), None]
    assert harness.broker.outlines([]) == []
    assert harness.broker.fingerprints([*ids, "unknown"]) == [*(record.fingerprint for record in records), ""]
    assert harness.broker.fingerprints([]) == []
    standings = [(record.state, record.created_ms) for record in records]
    assert harness.broker.standings([*ids, "unknown"]) == [*standings, None]
    assert harness.broker.standings([]) == []


def test_following_the_cursors_of_the_ledger_returns_every_entry_below_a_path(harness: Harness) -> None:
    paths = [b"/data/%s/%d" % (folder, number) for folder in (b"a", b"a*b", b"b") for number in range(40)]
    versions = [a_version("1-1", path) for path in paths]
    harness.broker.enqueue([an_entry(f"job-{i}", version=version) for i, version in enumerate(versions)])
    for under, count in ((b"", 120), (b"/data/a", 80), (b"/data/a*", 40), (b"/data/b/", 40), (b"/nothing", 0)):
        found, cursor, is_end = list[bytes](), "", False
        while not is_end:
            page = harness.broker.ledger_page(under, cursor, 7)
            found += [path for path, entry in page.entries if entry.versions]
            cursor, is_end = page.next_cursor, not page.next_cursor
        assert sorted(set(found)) == sorted(path for path in paths if path.startswith(under))
        assert len(set(found)) == count
    with pytest.raises(BrokerError, match="cursor"):
        harness.broker.ledger_page(b"", "x.y")
