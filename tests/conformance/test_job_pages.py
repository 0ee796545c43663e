"""Lists of jobs by pages, and groups of dead jobs, over every broker."""

from __future__ import annotations

from typing import cast

import pytest
from msgspec import Raw

from fileq.actions.bulk import JobAction
from fileq.brokers.protocol import FullBroker
from fileq.brokers.types import Entry
from fileq.core.errors import ConfigError
from fileq.core.fingerprint import fingerprint
from fileq.core.job import DELAYED_STATES, Job, State
from fileq.queries.dead_jobs import GroupedBy, group_dead
from fileq.queries.job_filter import JobFilter
from fileq.queries.job_selection import JobPage, job_page, select
from fileq.testing.conformance.builders import (
    a_job,
    burial,
    claim_one,
    claims_of,
    completed,
    deferred,
    enqueue,
    failed,
    names,
    record_of,
    register,
    running,
    settle,
)
from fileq.testing.conformance.harness import Harness
from tests.support.bulk_actions import act_on_all
from tests.support.counting_reads import CountingReads

QUEUES = ("high", "low")


def all_pages(harness: Harness, wanted: JobFilter, **options: int) -> list[JobPage]:
    pages = [job_page(harness.broker, QUEUES, wanted, **options)]
    while pages[-1].next_cursor:
        pages.append(job_page(harness.broker, QUEUES, wanted, cursor=pages[-1].next_cursor, **options))
    return pages


def ids_of(pages: list[JobPage]) -> list[str]:
    return [job.id for page in pages for job in page.jobs]


def bury(harness: Harness, job: Job, error: str) -> None:
    harness.broker.enqueue([Entry(job, "low", is_own=job.id.startswith("sched."))])
    settle(harness, burial(claim_one(harness), error=error))


def test_a_list_without_conditions_knows_its_length_from_the_first_page(harness: Harness) -> None:
    completed(harness, "done")
    enqueue(harness, *names(5))
    enqueue(harness, "urgent", queue="high")
    pages = all_pages(harness, JobFilter(state=State.PENDING), limit=4)
    assert ids_of(pages) == ["urgent", *names(5)]
    assert [(page.scanned, page.is_partial, page.total) for page in pages] == [(4, False, 6), (2, False, 6)]
    assert ids_of(all_pages(harness, JobFilter(), limit=3)) == ["urgent", *names(5), "done"]


def test_a_selection_has_the_order_of_a_list_and_ends_at_its_limit(harness: Harness) -> None:
    completed(harness, "older", "newer")
    settle(harness, failed(running(harness, "again"), delay_ms=5_000))
    enqueue(harness, "soon", delay_ms=2_000)
    enqueue(harness, "later", delay_ms=60_000)
    enqueue(harness, *names(3))
    everything = [*names(3), "soon", "again", "later", "newer", "older"]
    assert [job.id for job in select(harness.broker, QUEUES, JobFilter())] == everything
    assert ids_of(all_pages(harness, JobFilter(), limit=2)) == everything
    assert [job.id for job in select(harness.broker, QUEUES, JobFilter(limit=7))] == everything[:7]
    assert [job.id for job in select(harness.broker, QUEUES, JobFilter(state=State.SCHEDULED))] == ["soon", "later"]


def test_a_filtered_list_returns_each_job_once_and_knows_its_length_after_a_complete_scan(harness: Harness) -> None:
    harness.broker.enqueue([Entry(a_job(id, type="even" if n % 2 else "odd"), "low") for n, id in enumerate(names(20))])
    wanted = JobFilter(state=State.PENDING, type="even")
    pages = all_pages(harness, wanted, limit=3)
    assert ids_of(pages) == names(20)[1::2]
    first = job_page(harness.broker, QUEUES, wanted, limit=3)
    assert (len(first.jobs), first.total, first.is_partial) == (3, 10, False)
    assert ids_of([job_page(harness.broker, QUEUES, wanted, limit=99)]) == names(20)[1::2]


def test_a_scan_ends_after_so_many_elements_and_goes_on_from_its_cursor(harness: Harness) -> None:
    enqueue(harness, *names(9))
    enqueue(harness, "wanted")
    wanted = JobFilter(state=State.PENDING, match="wanted.pdf")
    pages = all_pages(harness, wanted, limit=5, scan_max=4)
    assert ids_of(pages) == ["wanted"]
    assert [(page.scanned, page.is_partial, page.total) for page in pages] == [
        *((4, True, None), (4, True, None), (2, False, None)),
    ]


def test_a_later_page_is_reached_by_its_number(harness: Harness) -> None:
    harness.broker.enqueue([Entry(a_job(id, type="even" if n % 2 else "odd"), "low") for n, id in enumerate(names(20))])
    even = names(20)[1::2]
    for wanted, ids in ((JobFilter(state=State.PENDING), names(20)), (JobFilter(type="even"), even)):
        for skip in (0, 3, 8, 30):
            page = job_page(harness.broker, QUEUES, wanted, limit=3, skip=skip)
            assert ids_of([page]) == ids[skip : skip + 3]
            assert page.total == len(ids)
            if page.next_cursor:
                following = job_page(harness.broker, QUEUES, wanted, limit=3, cursor=page.next_cursor)
                assert ids_of([following]) == ids[skip + 3 : skip + 6]


def test_retrying_deferred_and_scheduled_jobs_are_three_lists_of_one_place(harness: Harness) -> None:
    enqueue(harness, *names(6, "later"), delay_ms=60_000)
    settle(harness, deferred(running(harness, "deferred"), delay_ms=70_000))
    settle(harness, failed(running(harness, "failed"), delay_ms=80_000, error="OSError: disk full"))
    retrying, held, scheduled = (JobFilter(state=s) for s in (State.RETRYING, State.DEFERRED, State.SCHEDULED))
    assert ids_of(all_pages(harness, retrying, limit=1)) == ["failed"]
    assert ids_of(all_pages(harness, held, limit=1)) == ["deferred"]
    assert ids_of(all_pages(harness, scheduled, limit=4)) == names(6, "later")
    both = [job_page(harness.broker, QUEUES, JobFilter(), states=[State.RETRYING, State.DEFERRED], limit=9)]
    assert (ids_of(both), both[0].total) == (["deferred", "failed"], 2)
    delayed = [job_page(harness.broker, QUEUES, JobFilter(), states=DELAYED_STATES, limit=9)]
    assert ids_of(delayed) == [*names(6, "later"), "deferred", "failed"]
    assert [job.state for job in delayed[0].jobs] == [*[State.SCHEDULED] * 6, State.DEFERRED, State.RETRYING]
    assert ids_of(all_pages(harness, JobFilter(error="disk"), limit=4)) == ["failed"]
    assert ids_of(all_pages(harness, JobFilter(text="DISK"), limit=4)) == ["failed"]
    # More elements than a scan looks at: each outline counts as several of them.
    pages = all_pages(harness, held, limit=1, scan_max=6)
    assert ids_of(pages) == ["deferred"]
    assert max(page.scanned for page in pages) <= 6
    # The states are enough.
    broker = CountingReads(harness.broker)
    assert ids_of([job_page(cast(FullBroker, broker), QUEUES, held)]) == ["deferred"]
    assert broker.read == {"states": 8, "records": 1, "scheduled": 1}


def test_an_outline_counts_as_several_elements_whichever_condition_needs_it(harness: Harness) -> None:
    completed(harness, *names(12))
    for wanted in (JobFilter(queue="low"), JobFilter(since_ms=1)):
        broker = CountingReads(harness.broker)
        page = job_page(cast(FullBroker, broker), QUEUES, wanted, states=[State.COMPLETED], limit=1, scan_max=12)
        assert (page.scanned, broker.read["outlines"], page.total, page.is_partial) == (6, 6, None, False)


def test_a_filtered_list_looks_at_the_slots_once(harness: Harness) -> None:
    register(harness, *names(9, "slot"))
    enqueue(harness, *names(9))
    claims_of(harness, *names(9, "slot"))
    broker = CountingReads(harness.broker)
    page = job_page(cast(FullBroker, broker), QUEUES, JobFilter(type="none"), states=[State.RUNNING], limit=1)
    assert (page.scanned, page.total, broker.read) == (9, 0, {"processing": 1})


def test_a_list_reads_the_records_of_its_page_only(harness: Harness) -> None:
    for n in range(12):
        bury(harness, a_job(f"row-{n}"), f"ValueError: {'odd' if n % 2 else 'even'} row")
    broker = CountingReads(harness.broker)
    page = job_page(cast(FullBroker, broker), QUEUES, JobFilter(state=State.DEAD, error="odd"), limit=2)
    assert (len(page.jobs), page.total) == (2, 6)
    assert (broker.read["records"], broker.read["outlines"]) == (2, 0)


def test_groups_read_the_records_of_their_samples_only(harness: Harness) -> None:
    for n in range(12):
        bury(harness, a_job(f"row-{n}"), f"ValueError: {'odd' if n % 2 else 'even'} row")
    broker = CountingReads(harness.broker)
    for by in ("fingerprint", "kind"):
        found = group_dead(cast(FullBroker, broker), JobFilter(), cast(GroupedBy, by))
        assert (found.scanned, sum(group.count for group in found.groups)) == (12, 12)
    assert (broker.read["records"], broker.read["outlines"]) == (2 + 1, 0)
    timed = group_dead(cast(FullBroker, broker), JobFilter(since_ms=1), scan_max=50)
    assert (timed.scanned, timed.is_partial, broker.read["outlines"]) == (10, True, 10)


def test_every_condition_chooses(harness: Harness) -> None:
    job = a_job("sched.nightly.20260102T030405Z", type="mail", batch_id="b1", tags=Raw(b'{"team":"red"}'))
    bury(harness, job, "ValueError: row 7 is bad")
    bury(harness, a_job("other", priority="high"), "OSError: disk full")
    group = record_of(harness, job.id).fingerprint
    meeting = (
        *(JobFilter(schedule="nightly"), JobFilter(batch="b1"), JobFilter(tags=(("team", "red"),))),
        *(JobFilter(type="mail", priority="low"), JobFilter(fingerprint=group[:4]), JobFilter(text="ROW 7")),
        *(JobFilter(text="Nightly"), JobFilter(error="valueerror", worker="w1", queue="low")),
    )
    for wanted in meeting:
        assert ids_of(all_pages(harness, wanted, limit=5)) == [job.id], wanted
    missing = (
        *(JobFilter(schedule="night"), JobFilter(tags=(("team", "red"), ("x", "y"))), JobFilter(worker="w2")),
        *(JobFilter(batch="b"), JobFilter(fingerprint="0000"), JobFilter(text="nothing"), JobFilter(priority="none")),
    )
    for wanted in missing:
        assert ids_of(all_pages(harness, wanted, limit=5)) == [], wanted


def test_a_cursor_of_another_list_is_refused(harness: Harness) -> None:
    for cursor in ("x", '["nowhere",""]', "[1]", '["low",""]'):
        with pytest.raises(ConfigError, match="does not belong to this list"):
            job_page(harness.broker, QUEUES, JobFilter(state=State.DEAD), cursor=cursor)


def test_dead_jobs_are_grouped_by_their_cause(harness: Harness) -> None:
    for n in range(3):
        bury(harness, a_job(f"row-{n}", filepath=f"/in/csv/{n}.csv"), f"ValueError: row {n} is bad")
    bury(harness, a_job("disk", filepath="/in/pdf/a.pdf"), "OSError: disk full")
    harness.push_raw("low", b"not a job")
    settle(harness, burial(claim_one(harness), error="not a job: x"))
    found = group_dead(harness.broker, JobFilter())
    assert (found.total, found.scanned, found.is_partial, found.group_count) == (5, 5, False, 3)
    first = found.groups[0]
    assert (first.count, first.sample_id, first.kind, first.error) == (
        3,
        "row-2",
        "ValueError",
        "ValueError: row 2 is bad",
    )
    assert first.key == first.fingerprint == fingerprint("ValueError: row 0 is bad")
    assert [(one.name, one.count) for one in (*first.directories, *first.extensions)] == [("/in/csv", 3), (".csv", 3)]
    by_directory = group_dead(harness.broker, JobFilter(), "directory").groups
    assert [(group.key, group.count) for group in by_directory] == [("/in/csv", 3), ("", 1), ("/in/pdf", 1)]
    assert [group.count for group in group_dead(harness.broker, JobFilter(), "kind", limit=1).groups] == [3]
    # One group costs no more than all of them, so an old one is found among as many jobs.
    [one] = group_dead(harness.broker, JobFilter(fingerprint=first.key[:6]), scan_max=5).groups
    assert (one.key, one.count, one.newest_ids) == (first.key, 3, ("row-2", "row-1", "row-0"))
    assert (sum(one.timeline), sum(first.timeline)) == (3, 3)
    partial = group_dead(harness.broker, JobFilter(), scan_max=2)
    assert (partial.scanned, partial.is_partial, partial.total) == (2, True, 5)


def test_one_group_is_retried(harness: Harness) -> None:
    for n in range(3):
        bury(harness, a_job(f"row-{n}"), f"ValueError: row {n} is bad")
    bury(harness, a_job("disk"), "OSError: disk full")
    wanted = JobFilter(fingerprint=fingerprint("ValueError: row 9 is bad")[:5])
    assert act_on_all(harness.broker, harness.config, JobAction.RETRY, wanted).count == 3
    assert ids_of(all_pages(harness, JobFilter(state=State.DEAD), limit=5)) == ["disk"]
