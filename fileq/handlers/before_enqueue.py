"""Lets the functions decorated with @fileq.before_enqueue change or veto a job before it is enqueued.

Producers and clients call it in their own process. The broker knows nothing of it.
"""

from __future__ import annotations

from collections.abc import Callable

from fileq.config import Config
from fileq.core.errors import ConfigError, JobError
from fileq.core.job import Job, check_content, check_unique_key
from fileq.core.own_jobs import check_type
from fileq.handlers import extensions
from fileq.handlers.targets import Importer, InvalidTarget, is_async, unfitness

_KIND = "a function for before_enqueue", ("job",)
_FIXED = ("id", "filepath", "filepath_b64", "filesize", "signature", "file_inode", "retries", "recoveries")


def load_before_enqueue(config: Config, *, app_dir: str) -> Callable[[Job], Job | None] | None:
    """What a producer calls for each job; None if there is nothing to call. Imports the modules of `producer.imports`,
    and raises ConfigError for what is wrong with them or their functions."""
    problems: list[str] = []
    if config.producer.imports:
        importer = Importer(app_dir)
        for i, name in enumerate(config.producer.imports):
            try:
                importer.module(name)
            except InvalidTarget as error:
                problems.append(f"producer.imports[{i}] {error}")
    for one in extensions.EXTENSIONS.before_enqueue.values():
        fault = unfitness(one.function, *_KIND)
        if fault or is_async(one.function):
            reason = fault or "is async; a producer does not await it"
            problems.append(f"@fileq.before_enqueue on {one.target}, which {reason}")
    if problems:
        raise ConfigError(problems)
    return apply_before_enqueue if extensions.EXTENSIONS.before_enqueue else None


def apply_before_enqueue(job: Job) -> Job | None:
    """The job to enqueue; None if a function vetoed it. The functions are called in the order of their import.

    Raises what they raise. Raises JobError if one returns something else than a job, has changed what is fixed, or
    gives the job a type that only fileq's own jobs have."""
    for target, one in tuple(extensions.EXTENSIONS.before_enqueue.items()):
        result = one.function(job)
        if result is None:
            return None
        if not isinstance(result, Job):
            raise JobError(f"{target} returned {result!r:.100}; it must return the job, a changed copy, or None")
        changed = [name for name in _FIXED if getattr(result, name) != getattr(job, name)]
        if changed:
            raise JobError(f"{target} changed {', '.join(changed)} of job {job.id}, which can't be changed")
        job = result
        check_content(job)
        check_unique_key(job)
        check_type(job.type)
    return job
