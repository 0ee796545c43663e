"""The one table of pages. A new page is a module with its function, a template, and one row here."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fileq.core.api_key import Scope
from fileq.server.console import admin_page
from fileq.server.console.admin_page import DeliveryLogQuery, webhook, webhooks
from fileq.server.console.batches_page import BatchesQuery, batch, batches
from fileq.server.console.dead_page import DeadQuery, dead
from fileq.server.console.files_page import FilePageQuery, FilesPageQuery, file, files
from fileq.server.console.jobs_page import JobsQuery, job, jobs
from fileq.server.console.operations_page import OperationQuery, operation, operations
from fileq.server.console.overview_page import OverviewQuery, overview
from fileq.server.console.page import ConsolePage, PageRequest
from fileq.server.console.queues_page import queues, workers
from fileq.server.console.scheduled_page import (
    NewScheduleQuery,
    PreviewQuery,
    ScheduledQuery,
    edit_schedule,
    new_schedule,
    preview,
    scheduled,
)

# The glossary page.
WORDS = {
    "Acknowledged": "An operator has seen this cause of dead jobs and may have left a note. If another job dies of it, "
    "the group returns to the top.",
    "Backlog": "Pending and deferred jobs, without those that are due later.",
    "Batch": "Jobs that are counted together. Sealed: no more jobs can be added. Ended: completed, dead, cancelled or "
    "deleted. Finished: all of its jobs have ended.",
    "Breaker": "Stops the jobs of a handler while most of them fail. Closed: jobs run. Open: jobs are deferred, and "
    "one is tried periodically. When that one succeeds, the breaker closes.",
    "Cancelled": "A user or a program ended the job before it was done. Its timeline says who, if known.",
    "Completed": "The handler returned without an error.",
    "Created": "A job is created when its file is found, or when a program enqueues it.",
    "Dead": "Out of retries. The job stays in the dead-letter queue until someone retries or deletes it.",
    "Deferred": "The job cannot run yet, though nothing failed: a breaker is open, a limit is reached, a root is "
    "missing, or an earlier job of its file is running. No attempt is counted. fileq tries again later.",
    "Expired": "The newest job of the file has ended and its record was removed (worker.history_ttl). Only files have "
    "this status: a job without a record is in no list.",
    "Fingerprint": "12 characters that are the same for all jobs that died of the same cause.",
    "Heartbeat": "A worker's regular sign of life. Without one for too long the worker is considered dead, and other "
    "workers take over its jobs.",
    "Pending": "Waiting in its queue for a free slot.",
    "Probe": "One job of a group that is retried first, to see whether the cause is fixed.",
    "Queue": "Where pending jobs wait. Workers claim from the highest-priority queue first.",
    "Retried manually": "Someone put a dead job back into its queue. Its attempts start over.",
    "Retrying": "Failed; waiting for the next attempt.",
    "Running": "A worker has claimed the job and runs its handler.",
    "Scheduled": "Due later. A schedule enqueues a job at each of its times.",
    "Slot": "One place of a worker for a running job.",
}


def words(request: PageRequest) -> Mapping[str, Any]:
    return {"words": WORDS}


ADMIN_PAGES = (
    ConsolePage(
        path="/admin",
        name="admin",
        title="Admin",
        template="admin_keys.html",
        function=admin_page.keys,
        scopes=(Scope.ADMIN,),
        letter="a",
        changes_with="",
    ),
    ConsolePage(
        path="/admin/audit",
        name="admin",
        title="Audit",
        template="admin_audit.html",
        function=admin_page.audit,
        query=admin_page.AuditPageQuery,
        scopes=(Scope.ADMIN,),
        is_scan=True,
        changes_with="",
    ),
    ConsolePage(
        path="/admin/operations",
        name="admin",
        title="Operations",
        template="admin_operations.html",
        function=operations,
    ),
    ConsolePage(
        path="/admin/operations/{id:path}",
        name="admin",
        title="Operation",
        template="operation.html",
        function=operation,
        query=OperationQuery,
    ),
    ConsolePage(
        path="/admin/configuration",
        name="admin",
        title="Configuration",
        template="admin_configuration.html",
        function=admin_page.configuration,
        scopes=(Scope.ADMIN,),
        changes_with="",
    ),
    ConsolePage(
        path="/admin/consistency",
        name="admin",
        title="Consistency",
        template="admin_consistency.html",
        function=admin_page.consistency,
        query=admin_page.CheckQuery,
        scopes=(Scope.ADMIN,),
        changes_with="",
        timeout_s=admin_page.FSCK_S,
    ),
    ConsolePage(
        path="/admin/environment",
        name="admin",
        title="Environment",
        template="admin_environment.html",
        function=admin_page.environment,
        query=admin_page.CheckQuery,
        scopes=(Scope.ADMIN,),
        changes_with="",
        timeout_s=admin_page.DOCTOR_S,
    ),
)
LONG_SCAN_S = 3.0  # on a busy machine 10,000 dead jobs or files take longer than a page may otherwise

PAGES: tuple[ConsolePage, ...] = (
    ConsolePage(
        path="",
        name="overview",
        title="Overview",
        template="overview.html",
        function=overview,
        query=OverviewQuery,
        is_scan=True,
        letter="o",
        changes_with="*",
    ),
    ConsolePage(
        path="/jobs",
        name="jobs",
        title="Jobs",
        template="jobs.html",
        function=jobs,
        query=JobsQuery,
        is_scan=True,
        letter="j",
    ),
    ConsolePage(path="/jobs/{id:path}", name="jobs", title="Job", template="job.html", function=job),
    ConsolePage(
        path="/dead",
        name="dead",
        title="Dead",
        template="dead.html",
        function=dead,
        query=DeadQuery,
        is_scan=True,
        timeout_s=LONG_SCAN_S,
        letter="d",
    ),
    ConsolePage(
        path="/files",
        name="files",
        title="Files",
        template="files.html",
        function=files,
        query=FilesPageQuery,
        is_scan=True,
        timeout_s=LONG_SCAN_S,
        letter="f",
    ),
    ConsolePage(
        path="/files/trace",
        name="files",
        title="File",
        template="file.html",
        function=file,
        query=FilePageQuery,
        is_scan=True,
        timeout_s=LONG_SCAN_S,
    ),
    ConsolePage(path="/queues", name="queues", title="Queues", template="queues.html", function=queues, letter="q"),
    ConsolePage(
        path="/workers", name="workers", title="Workers", template="workers.html", function=workers, letter="w"
    ),
    ConsolePage(
        path="/scheduled",
        name="scheduled",
        title="Scheduled",
        template="scheduled.html",
        function=scheduled,
        query=ScheduledQuery,
        is_scan=True,
        letter="s",
    ),
    ConsolePage(
        path="/scheduled/preview",
        name="scheduled",
        title="Next times",
        template="schedule_preview.html",
        function=preview,
        query=PreviewQuery,
        changes_with="",
    ),
    ConsolePage(
        path="/scheduled/new",
        name="scheduled",
        title="New schedule",
        template="schedule_form.html",
        function=new_schedule,
        query=NewScheduleQuery,
        changes_with="",
    ),
    ConsolePage(
        path="/scheduled/edit/{name:path}",
        name="scheduled",
        title="Schedule",
        template="schedule_form.html",
        function=edit_schedule,
        is_scan=True,
    ),
    ConsolePage(
        path="/batches",
        name="batches",
        title="Batches",
        template="batches.html",
        function=batches,
        query=BatchesQuery,
        is_scan=True,
        letter="b",
    ),
    ConsolePage(
        path="/batches/{id:path}", name="batches", title="Batch", template="batch.html", function=batch, is_scan=True
    ),
    ConsolePage(
        path="/webhooks",
        name="webhooks",
        title="Webhooks",
        template="webhooks.html",
        function=webhooks,
        is_scan=True,
        letter="h",
    ),
    ConsolePage(
        path="/webhooks/{name:path}",
        name="webhooks",
        title="Webhook",
        template="webhook.html",
        function=webhook,
        query=DeliveryLogQuery,
        is_scan=True,
    ),
    *ADMIN_PAGES,
    ConsolePage(
        path="/words",
        name="words",
        title="Words",
        template="words.html",
        function=words,
        changes_with="",
        serves_limited=True,
    ),
)
NAVIGATION = tuple(page for page in PAGES if page.letter)
