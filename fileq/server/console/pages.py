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
    "Acknowledged": "An operator has seen this cause. If another job dies of it, the group returns to the top.",
    "Backlog": "Pending and deferred jobs; not those due later.",
    "Batch": "Jobs tracked together. Waiting: not started. Sealed: no more jobs can be added. Ended: completed, dead, "
    "cancelled or deleted. Finished: all jobs have ended.",
    "Breaker": "Stops a handler while most of its jobs fail. Closed: jobs run. Open: jobs are deferred, and "
    "one is tried periodically. When it succeeds, the breaker closes.",
    "Cancelled": "Stopped by a user or program. The timeline says who, if known.",
    "Completed": "The handler returned without an error.",
    "Created": "A job is created when its file is found or a program enqueues it.",
    "Dead": "Out of retries. The job stays in the dead-letter queue until someone retries or deletes it.",
    "Deferred": "The job cannot run yet, though nothing failed: a breaker is open, a limit is reached, a root is "
    "missing, or an earlier job of its file is running. No attempt is counted. fileq tries again later.",
    "Expired": "The file's newest job has ended and its record was removed (worker.history_ttl).",
    "Fingerprint": "Identifies a cause: 12 characters shared by all jobs that died of it.",
    "Heartbeat": "A worker's periodic sign of life. Without it the worker is considered dead and other workers take "
    "over its jobs.",
    "Pending": "Waiting in its queue for a free slot.",
    "Probe": "One job of a group, retried first to see whether the cause is fixed.",
    "Queue": "Where pending jobs wait. Workers claim from the highest-priority queue first.",
    "Retried manually": "A user put the dead job back into its queue. Its attempts start over.",
    "Retrying": "Failed; waiting for the next attempt.",
    "Running": "A worker has claimed the job and runs its handler.",
    "Scheduled": "Due later. A schedule enqueues a job for each run.",
    "Slot": "Capacity of a worker for one running job.",
}


GLOSSARY = PageList()


@GLOSSARY.add("/words", "Glossary", "words.html", changes_with="", serves_limited=True)
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
