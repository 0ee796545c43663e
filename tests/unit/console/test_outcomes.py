"""What pages say about how something came out: cancelled jobs, files after their jobs, keys, and who may do what."""

from __future__ import annotations

from datetime import UTC, datetime
from itertools import count

import pytest
from msgspec.structs import replace

from fileq.actions.bulk import JobAction
from fileq.brokers.batches import NewBatch
from fileq.brokers.types import Entry, Record
from fileq.commands.acknowledgements import acknowledge_group
from fileq.commands.action_log import UPLOADS, UPLOADS_MAX, ActionLog, last_upload, note_upload
from fileq.commands.api_keys import KeyOptions
from fileq.commands.audit_entries import AuditChange, AuditEntry
from fileq.config.schema import AfterSettings
from fileq.core.api_key import Scope
from fileq.core.job import Claim, Job, State, Version, encode, file_job, stamp, wall_clock_ms
from fileq.core.settlement import Settlement, cancel, complete
from fileq.queries.documents import job_document
from fileq.queries.job_queries import FileTrace
from fileq.server.console.admin_views import in_words
from fileq.server.console.file_views import fate_of
from fileq.testing.conformance.builders import a_job
from fileq.worker.executors.protocol import CANCEL_GRACE_S
from tests.support.console_jobs import HOSTILE, SLOT, dies, end, held, in_order, pages_with_worker, shown, words
from tests.support.console_pages import ConsolePages

CAUSE, PATH = "0123456789ab", "/in/inv-7.pdf"


def dies_of_cause(claim: Claim) -> Settlement:
    return replace(dies(claim), fingerprint=CAUSE)


def acknowledge(pages: ConsolePages, later_ms: int) -> None:
    acknowledge_group(pages.broker, CAUSE, "rescan tomorrow", "olga", wall_clock_ms() + later_ms)


def a_file_job(path: str = PATH) -> tuple[Job, Version]:
    job = file_job(path.encode(), size=2, priority="low", now=datetime.now(UTC), signature="2-1", id="file")
    return job, Version(path.encode(), "2-1")


def test_a_running_job_that_was_cancelled_stays_on_the_page_of_workers_with_its_outcome() -> None:
    pages = pages_with_worker()
    for name, ending in (("a", cancel), ("b", complete), ("old", cancel)):
        end(pages, a_job(name, filepath=f"/in/{name}-{HOSTILE}.csv"), ending)
    pages.broker.enqueue([Entry(a_job("waits"), "high"), Entry(a_job("runs"), "low")])
    pages.broker.cancel(["waits"])
    pages.broker.settle_and_claim([], [SLOT])
    ages_s = {"a": 5, "b": 4, "old": 3600, "waits": 3, "runs": 2, "gone": 1}
    for name, age_s in ages_s.items():
        log = ActionLog(pages.broker, lambda age_s=age_s: wall_clock_ms() - age_s * 1000)  # type: ignore[misc]
        log.add(JobAction.CANCEL, "olga", [name])
    [text] = shown(pages, "/workers")
    part = text.partition("Cancelled by users, last 15 minutes")[2].partition("</section>")[0]
    assert in_order(
        words(part),
        "b-&lt;script&gt;",
        "completed before it could be stopped",
        "a-&lt;",
        "cancelled 5 s ago by olga",
    )
    assert 'href="/dashboard/jobs/a"' in part
    assert part.count("data-row=") == 2, "not those that never ran, still run, are unknown or long ago"
    pages.broker.enqueue([Entry(a_job("next"), "low")])
    listed, runs, waits = shown(pages, "/jobs?status=running", "/jobs/runs", "/jobs/next")
    assert [f"killed after {CANCEL_GRACE_S:g} s" in text for text in (listed, runs, waits)] == [
        True,
        True,
        False,
    ], "the dialog says what becomes of the handler"
    assert "It won't run. The file is not touched." in waits
    pages = pages_with_worker(server={"files": "none"})
    end(pages, a_job("a", filepath="/in/private.csv"), cancel)
    ActionLog(pages.broker, wall_clock_ms).add(JobAction.CANCEL, "olga", ["a"])
    [text] = shown(pages, "/workers")
    assert 'href="/dashboard/jobs/a"' in text
    assert "private" not in text


def test_a_dead_member_that_died_after_the_acknowledgement_is_not_covered_by_it() -> None:
    pages = pages_with_worker()
    pages.broker.create_batch(NewBatch("nightly", "nightly", allow_failures=True))
    end(pages, replace(a_job("a"), batch_id="nightly"), dies_of_cause, joins=True)
    acknowledge(pages, -60_000)
    _, batch, job = shown(pages, "", "/batches/nightly", "/jobs/a")
    assert "died since olga acknowledged the cause: rescan tomorrow" in words(batch)
    assert "state acknowledged" not in batch
    assert "this job died since" in job
    assert 'class="button main" data-action="POST /jobs/a/retry"' in job
    assert "dead jobs do not stop the batch" in batch
    acknowledge(pages, 1)
    _, batch, job = shown(pages, "", "/batches/nightly", "/jobs/a")
    assert "acknowledged by olga: rescan tomorrow" in words(batch)
    assert "died since" not in batch + job


def test_the_page_of_a_dead_file_says_where_it_is_what_tries_it_again_and_what_is_known() -> None:
    pages = pages_with_worker()
    job, version = a_file_job()
    end(pages, job, dies_of_cause, version=version)
    note_upload(pages.broker, PATH, f"anna {HOSTILE}", wall_clock_ms())
    [text] = shown(pages, f"/files/trace?path={PATH}")
    assert "File kept. It won&#39;t be retried automatically." in words(text)
    assert in_order(text, "Retry runs the same job again", "Reprocess enqueues the current file as a new job")
    assert 'class="button main" data-action="POST /jobs/file/retry"' in text
    assert "by anna &lt;script&gt;" in text.partition("Uploaded")[2]
    acknowledge(pages, 1)
    [text] = shown(pages, f"/files/trace?path={PATH}")
    assert "olga acknowledged this cause" in words(text)
    assert "rescan tomorrow" in text
    assert 'class="button main"' not in text.partition("<main")[2].partition("</main")[0]


@pytest.mark.parametrize(
    ("state", "moved_to", "missing_ms", "is_seen", "expected"),
    [
        ("running", "", 0, True, ""),
        ("completed", "", 0, False, "File deleted (worker.after)."),
        ("completed", "", 0, True, "File kept."),
        ("dead", "/bad/a", 0, False, "Moved to /bad/a. It won't be retried automatically."),
        (
            "dead",
            "/in/a",
            0,
            True,
            "The file was moved here from /x/a. It won't be retried automatically.",
        ),
        ("dead", "", 0, False, "It won't be retried automatically."),
        ("dead", "", 1, False, "The file is gone. It won't be retried automatically."),
        ("cancelled", "", 0, False, "File kept. It won't be retried automatically."),
    ],
)
def test_the_fate_of_a_file(state: str, moved_to: str, missing_ms: int, is_seen: bool, expected: str) -> None:
    job = job_document(
        Record("a", State(state), encode(a_job("a", filepath="/x/a")), "low", moved_to=moved_to.encode())
    )
    after = AfterSettings(completed="delete", dead="move:/bad")
    assert fate_of(FileTrace("/in/a", stamp(missing_ms), ()), job, after, is_seen=is_seen) == expected


def test_the_newest_uploads_are_kept() -> None:
    pages = ConsolePages()
    times = count(1_800_000_000_000)
    for number in range(UPLOADS_MAX + 20):
        note_upload(pages.broker, f"/in/{number}", "anna", next(times))
    note_upload(pages.broker, f"/in/{UPLOADS_MAX}", "bob", next(times))
    UPLOADS.trim(pages.broker)
    documents = pages.broker.documents(UPLOADS.kind)
    assert len(documents) == UPLOADS_MAX
    assert last_upload("/in/0", documents) is None
    found = last_upload(f"/in/{UPLOADS_MAX}", documents)
    assert found is not None
    assert found.by == "bob"


def test_the_backlog_counts_what_is_held_back() -> None:
    pages = pages_with_worker()
    end(pages, a_job("a"), held)
    [overview] = shown(pages, "")
    assert "Backlog 1 1 deferred" in words(overview)
    pages.broker.enqueue([Entry(a_job(name), "low") for name in "xyz"])
    [overview] = shown(pages, "")
    assert "Backlog 4 3 in queues, 1 deferred" in words(overview)


def test_a_reader_has_nothing_to_select_finds_operations_and_is_told_the_missing_scope() -> None:
    pages = pages_with_worker()
    end(pages, a_job("a"), dies)
    addresses = ["/jobs", "/dead", "/admin/operations", "/admin/audit"]
    (_, jobs), (_, dead), (_, operations), (status, refused) = pages.show(addresses, Scope.READ)
    assert "data-id=" not in jobs + dead
    assert "data-all" not in jobs + dead
    assert "<h1>Operations</h1>" in operations
    assert '<a href="/dashboard/admin/operations" aria-current="page">Operations</a>' in operations
    assert 'class="tabs"' not in operations
    assert status == 403
    assert "<h1>This page needs the scope admin</h1>" in refused
    assert "Your key does not have it." in refused
    jobs, operations = shown(pages, "/jobs", "/admin/operations")
    assert 'data-id="a"' in jobs
    assert "<h1>Admin</h1>" in operations


def test_logging_out_after_the_link_names_the_keys_that_lead_back() -> None:
    pages = ConsolePages()
    session = pages.keys.create(KeyOptions("root, one-time link 4dde", (Scope.ADMIN,), is_login=True))
    pages.keys.create(KeyOptions("viewer", (Scope.READ,)))
    [(_, before)] = pages.show_with(session.key, ["/admin"])
    assert 'data-logout="You signed in with a one-time link. To log in again, first create a key under' in before
    made = pages.keys.create(KeyOptions("<b>root", (Scope.ADMIN,)))
    [(_, after)] = pages.show_with(session.key, ["/admin"])
    assert f"this key has the scope admin: “&lt;b&gt;root” ({made.id})." in after


def test_times_in_the_audit_are_as_on_other_pages() -> None:
    changes = (
        AuditChange("expires", None, "2026-11-24T22:00:39.069Z"),
        AuditChange("covers deaths until", "2026-11-17 21:53:13.704 UTC", "2026-11-17 21:57:10.969 UTC"),
        AuditChange("note", None, "since 2026-11-24T22:00:39.069Z"),
    )
    entry = AuditEntry("2026-05-01T12:00:00.000Z", "me", "id", "create_key", "/keys", 1, 201, "r", changes=changes)
    assert [(one.old, one.new) for one in in_words(entry).changes] == [
        (None, "2026-11-24 22:00:39 UTC"),
        ("2026-11-17 21:53:13 UTC", "2026-11-17 21:57:10 UTC"),
        (None, "since 2026-11-24T22:00:39.069Z"),
    ]
