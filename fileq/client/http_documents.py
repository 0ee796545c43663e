"""Jobs and batches as a server answers them, turned into what a broker would have returned.

The answer has less than the record of a broker: what no client shows is missing.
"""

from __future__ import annotations

from datetime import datetime

import msgspec
from msgspec import UNSET, Raw, Struct

from fileq.brokers.batches import BatchView
from fileq.brokers.types import Record
from fileq.client.batch_status import BatchInfo
from fileq.client.job_filter import StoredJob
from fileq.core.batch import BatchState, CallbackKind
from fileq.core.job import Job, State, encode, encoded_tags, rfc3339


class JobReply(Struct, frozen=True):
    """One job of an answer. Fields of later servers are ignored."""

    id: str
    status: State
    queue: str = ""
    type: str | None = None
    priority: str = ""
    retry_count: int = 0
    result: Raw = Raw(b"null")
    created_at: datetime | None = None
    started_at: datetime | None = None
    completed_at: datetime | None = None
    worker_id: str | None = None
    path: str | None = None
    payload: Raw = Raw(b"null")
    error: str | None = None
    scheduled_at: datetime | None = None
    deadline: str | None = None
    max_retries: int | None = None
    timeout_s: float | None = None
    unique_key: str | None = None
    batch_id: str | None = None
    batch_facts: Raw = Raw(b"null")
    parent_id: str | None = None
    tags: dict[str, str] = {}
    is_cancel_requested: bool = False
    deferred: str | None = None
    attempt_count: int = 0
    filesize: int = 0
    trace_id: str = ""
    span_id: str = ""

    def record(self) -> Record:
        result = bytes(self.result)
        return Record(
            id=self.id,
            state=self.status,
            raw=encode(self.job()),
            queue=self.queue,
            slot=self.worker_id or "",
            created_ms=_ms(self.created_at),
            started_ms=_ms(self.started_at),
            ended_ms=_ms(self.completed_at),
            due_ms=_ms(self.scheduled_at),
            error=self.error or "",
            result=b"" if result == b"null" else result,
            attempt_count=self.attempt_count,
            is_cancel_requested=self.is_cancel_requested,
            deferred=self.deferred or "",
            unique_key=self.unique_key or "",
            batch=self.batch_id or "",
        )

    def job(self) -> Job:
        payload, facts = bytes(self.payload), bytes(self.batch_facts)
        due = rfc3339(self.scheduled_at) if self.scheduled_at is not None else None
        return Job(
            id=self.id,
            filepath=self.path or "",
            filesize=self.filesize,
            priority=self.priority,
            retries=self.retry_count,
            creation_time=rfc3339(self.created_at) if self.created_at is not None else "",
            trace_id=self.trace_id,
            span_id=self.span_id,
            batch_facts=UNSET if facts == b"null" else Raw(facts),
            type=self.type,
            payload=UNSET if payload == b"null" else Raw(payload),
            max_retries=self.max_retries,
            timeout=self.timeout_s,
            process_at=due,
            deadline=self.deadline,
            batch_id=self.batch_id,
            error=self.error,
            parent_id=self.parent_id,
            unique_key=self.unique_key,
            tags=encoded_tags(self.tags),
        )

    def stored(self) -> StoredJob:
        record = self.record()
        return StoredJob(record.raw, self.id, self.job(), record, self.status, self.queue)


class CallbackReply(Struct, frozen=True):
    kind: CallbackKind
    is_fired: bool = False


class BatchReply(Struct, frozen=True):
    """One batch of an answer."""

    id: str
    state: BatchState
    name: str = ""
    parent: str = ""
    is_cancelled: bool = False
    allow_failures: bool = False
    priority: str = ""
    total: int = 0
    waiting: int = 0
    running: int = 0
    completed: int = 0
    dead: int = 0
    cancelled: int = 0
    deleted: int = 0
    created: datetime | None = None
    sealed: datetime | None = None
    finished: datetime | None = None
    first_dead: str = ""
    first_error: str = ""
    callbacks: tuple[CallbackReply, ...] = ()

    def view(self) -> BatchView:
        return BatchView(
            id=self.id,
            name=self.name,
            parent=self.parent,
            allow_failures=self.allow_failures,
            state=self.state,
            is_cancelled=self.is_cancelled,
            created_ms=_ms(self.created),
            touched_ms=0,
            sealed_ms=_ms(self.sealed),
            finished_ms=_ms(self.finished),
            total=self.total,
            waiting=self.waiting,
            running=self.running,
            completed=self.completed,
            dead=self.dead,
            cancelled=self.cancelled,
            deleted=self.deleted,
            callbacks=tuple(one.kind for one in self.callbacks),
            fired=tuple(one.kind for one in self.callbacks if one.is_fired),
            dead_id=self.first_dead,
            dead_error=self.first_error,
            info=msgspec.json.encode(BatchInfo(self.priority)),
        )


def _ms(moment: datetime | None) -> int:
    return round(moment.timestamp() * 1000) if moment is not None else 0
