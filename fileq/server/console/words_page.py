"""The words of the pages, each explained once. Does no I/O."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fileq.server.console.page import PageRequest

WORDS = {
    "Acknowledged": "An operator has seen the cause of these deaths, and may have left a note. When another job dies "
    "of the same cause, the group comes back to the top.",
    "Backlog": "The jobs that wait in queues, and those that are held back; without those that wait for their time.",
    "Batch": "Jobs that belong together. Sealed: no job is added any more. Ended: a job of it is completed, dead, "
    "cancelled or deleted. Finished: all of its jobs have ended.",
    "Breaker": "It protects what a handler needs. Closed is the usual state: jobs run. Open is the bad one: too many "
    "jobs of that kind have failed, so the others are held back, and one is tried from time to time. When that one "
    "succeeds, the breaker closes.",
    "Cancelled": "An operator or a program has ended the job before it was done. Its timeline says who, if that is "
    "known.",
    "Completed": "The handler of the job has ended without an error.",
    "Dead": "The last attempt of the job has failed, and nothing is tried any more until an operator retries it.",
    "Held back (deferred)": "The job was put off without being tried: a breaker is open, a limit is reached, or a "
    "root is missing. It is tried again by itself.",
    "Expired": "The newest job of the file has ended, and its record is gone (worker.history_ttl). Only files are "
    "shown with this word: a job without a record is in no list.",
    "Fingerprint": "Twelve characters that are the same for all jobs that died of the same cause.",
    "Found, created": "A job is created at the moment when its file was found, or when a program enqueued it.",
    "Heartbeat": "A worker says regularly that it is alive. A worker that has been silent for too long counts as dead, "
    "and other workers take over its jobs.",
    "Pending": "The job waits in its queue for a free slot.",
    "Priority, queue": "The same thing: each priority has a queue, and workers claim from the queues in their order.",
    "Probe": "One job of a group that is retried first, to see whether the cause is gone.",
    "Retried by hand": "An operator has put a dead job back into its queue. Its attempts begin anew.",
    "Retrying": "An attempt has failed, and the next one has its time.",
    "Running": "A worker has claimed the job and runs its handler.",
    "Scheduled": "The job has a time to come. A schedule makes jobs at its times.",
    "Slot": "A place of a worker that runs one job at a time.",
}


def words(request: PageRequest) -> Mapping[str, Any]:
    return {"words": WORDS}
