"""A batch at one moment, as programs and `--json` see it."""

from __future__ import annotations

from datetime import UTC, datetime

import msgspec
from msgspec import Struct

from fileq.brokers.batches import BatchView
from fileq.core.batch import BatchState, CallbackKind, callback_id
from fileq.core.errors import BatchError
from fileq.core.public_name import public


class BatchCallback(Struct, frozen=True):
    """A callback of a batch. Its job exists once `is_fired`."""

    kind: CallbackKind
    job_id: str
    is_fired: bool


@public()
class BatchStatus(Struct, frozen=True):
    """total = waiting + running + completed + dead + cancelled + deleted, all of one moment.

    A child batch is one member; while it is unfinished it is `waiting`. `first_dead` is the member that died first, a
    job or a child batch, and `first_error` its error."""

    id: str
    name: str
    parent: str
    state: BatchState
    is_cancelled: bool
    allow_failures: bool
    priority: str
    total: int
    waiting: int
    running: int
    completed: int
    dead: int
    cancelled: int
    deleted: int
    created: datetime | None
    sealed: datetime | None
    finished: datetime | None
    first_dead: str
    first_error: str
    callbacks: tuple[BatchCallback, ...]

    @property
    def is_finished(self) -> bool:
        return self.state is BatchState.FINISHED

    @property
    def is_success(self) -> bool:
        """Finished, not cancelled, and every member was completed."""
        return self.is_finished and not self.is_cancelled and self.completed == self.total

    @property
    def ended(self) -> int:
        """Members that have ended."""
        return self.total - self.waiting - self.running


class BatchInfo(Struct, frozen=True, omit_defaults=True):
    """What fileq keeps in the `info` of a batch. `made_by` is the id of the key that created it through a server, if
    that key may add to its own batches only."""

    priority: str = ""
    made_by: str = ""


def info_of(raw: bytes) -> BatchInfo:
    """Empty for what another program has put there."""
    try:
        return msgspec.json.decode(raw, type=BatchInfo) if raw else BatchInfo()
    except (msgspec.DecodeError, ValueError):
        return BatchInfo()


def status_of_batch(id: str, view: BatchView | None) -> BatchStatus:
    """Raises BatchError if there is no such batch."""
    if view is None:
        raise BatchError(f"no batch has the id {id!r}; see 'fileq batch list'; a finished one is kept for 30 days")
    callbacks = (BatchCallback(kind, callback_id(view.id, kind), kind in view.fired) for kind in view.callbacks)
    return BatchStatus(
        id=view.id,
        name=view.name,
        parent=view.parent,
        state=view.state,
        is_cancelled=view.is_cancelled,
        allow_failures=view.allow_failures,
        priority=info_of(view.info).priority,
        total=view.total,
        waiting=view.waiting,
        running=view.running,
        completed=view.completed,
        dead=view.dead,
        cancelled=view.cancelled,
        deleted=view.deleted,
        created=_moment(view.created_ms),
        sealed=_moment(view.sealed_ms),
        finished=_moment(view.finished_ms),
        first_dead=view.dead_id,
        first_error=view.dead_error,
        callbacks=tuple(callbacks),
    )


def _moment(ms: int) -> datetime | None:
    return datetime.fromtimestamp(ms / 1000, UTC) if ms else None
