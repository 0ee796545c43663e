"""The one table of pages. A new page is a function with `@PAGES.add(…)` in a module, and a template."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fileq.server.console import (
    admin_page,
    batches_page,
    dead_page,
    files_page,
    jobs_page,
    operations_page,
    overview_page,
    queues_page,
    scheduled_page,
)
from fileq.server.console.page import ConsolePage, PageList, PageRequest
from fileq.server.route import NoQuery

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


GLOSSARY = PageList()


@GLOSSARY.add("/words", "Words", "words.html", changes_with="", serves_limited=True)
def words(request: PageRequest[NoQuery]) -> Mapping[str, Any]:
    return {"words": WORDS}


# Those with a letter are in the navigation, in this order.
PAGES: tuple[ConsolePage, ...] = (
    *overview_page.PAGES,
    *jobs_page.PAGES,
    *dead_page.PAGES,
    *files_page.PAGES,
    *queues_page.PAGES,
    *scheduled_page.PAGES,
    *batches_page.PAGES,
    *admin_page.PAGES,
    *operations_page.PAGES,
    *GLOSSARY,
)
NAVIGATION = tuple(page for page in PAGES if page.letter)
