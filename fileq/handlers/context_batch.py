"""The batch of a job, for its handler. Like every follow-up, what it adds exists exactly if the job is completed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Unpack

from fileq.handlers.making import FollowUpOptions, Making, NamedTask, Path


class ContextBatch:
    """`context.batch`. A job that is added joins the batch in the step that completes this job, also if the batch is
    sealed; if the batch is cancelled meanwhile, the job is enqueued outside it."""

    def __init__(self, id: str, making: Callable[[], Making]) -> None:
        self.id = id
        self._making = making

    def __repr__(self) -> str:
        return f"<fileq batch {self.id}>"

    def add(self, task: NamedTask | str, payload: Any = None, **options: Unpack[FollowUpOptions]) -> str:
        """As context.enqueue(), for a job that becomes a member of this batch. Returns its id."""
        return self._making().add_job(task, payload, options, joins=True)

    def add_file(self, path: Path, **options: Unpack[FollowUpOptions]) -> str:
        """As context.enqueue_file(), for a job that becomes a member of this batch."""
        return self._making().add_file(path, options, joins=True)
