"""The batch of a job, for its handler. Like every follow-up, what it adds exists exactly if the job is completed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Unpack

from fileq.core.batch import BatchFacts
from fileq.core.errors import JobError
from fileq.handlers.making import FollowUpOptions, Making, NamedTask, Path


class ContextBatch:
    """`context.batch`. A job that is added joins the batch in the step that completes this job, also if the batch is
    sealed; if the batch is cancelled meanwhile, the job is enqueued outside it.

    In a callback it is the batch that has the callback: `facts` says how it stood, and nothing can be added to it.
    `parent` is then the batch that the callback is a member of, if there is one."""

    def __init__(
        self,
        id: str,
        making: Callable[[], Making],
        facts: BatchFacts | None = None,
        parent: ContextBatch | None = None,
    ) -> None:
        self.id = id
        self.facts = facts
        self.parent = parent
        self._making = making

    def __repr__(self) -> str:
        return f"<fileq batch {self.id}>"

    def add(self, task: NamedTask | str, payload: Any = None, **options: Unpack[FollowUpOptions]) -> str:
        """As context.enqueue(), for a job that becomes a member of this batch. Returns its id."""
        return self._joining().add_job(task, payload, options, joins=True)

    def add_file(self, path: Path, **options: Unpack[FollowUpOptions]) -> str:
        """As context.enqueue_file(), for a job that becomes a member of this batch."""
        return self._joining().add_file(path, options, joins=True)

    def _joining(self) -> Making:
        if self.facts is not None:
            other = "context.enqueue()" if self.parent is None else "context.batch.parent.add() or context.enqueue()"
            raise JobError(f"{self.facts.callback} of batch {self.id} is not a member of it; use {other}")
        return self._making()
