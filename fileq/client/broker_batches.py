"""Batches on a broker, for clients and commands: creates one with its callbacks, seals, cancels, retries.

What a kill -9 leaves: a batch created or not; a cancelled batch whose waiting members are not cancelled yet, which the
reconciler of any worker continues; of a retry, the members that were put back until then.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from datetime import UTC, datetime
from itertools import islice

import msgspec

from fileq.actions.bulk import BulkActions, JobAction
from fileq.brokers.batches import NewBatch
from fileq.brokers.clocks import wall_clock_ms
from fileq.brokers.protocol import FullBroker
from fileq.brokers.types import Record
from fileq.client.new_entries import check_priority, typed_entry
from fileq.client.transport import BatchRequest, BatchRetry, JobDocuments
from fileq.config import Config
from fileq.core.batch import Callback, CallbackKind, callback_id, callback_job
from fileq.core.errors import ConfigError, JobError
from fileq.core.job import State, check_content, checked_id, encode
from fileq.core.own_jobs import check_batch
from fileq.core.paging import pages
from fileq.queries.documents import BatchDocument, BatchInfo, batch_document, job_document

CANCEL_PAGES = 20  # pages of members that cancel() cancels; the reconciler of a worker cancels the rest


class BrokerBatches:
    """Implements BatchTransport."""

    def __init__(self, broker: FullBroker, config: Config, clock: Callable[[], int] = wall_clock_ms) -> None:
        self._broker = broker
        self._config = config
        self._clock = clock

    def create(self, request: BatchRequest) -> None:
        now = datetime.fromtimestamp(self._clock() / 1000, UTC)
        self._broker.create_batch(new_batch(self._config, request, now))

    def get(self, id: str) -> BatchDocument | None:
        return find_batch(self._broker, id)

    def seal(self, id: str) -> bool:
        check_client_batch(id)
        return self._broker.seal_batch(id)

    def cancel(self, id: str) -> bool:
        """The members of the first pages; the reconciler cancels the others."""
        if not self._broker.cancel_batch(id):
            return False
        actions = BulkActions(self._broker, self._config, self._clock)
        for page in islice(pages(lambda cursor: self._broker.unfinished_members(id, cursor)), CANCEL_PAGES):
            if page.ids:
                actions.cancel_members(page.ids)
        return True

    def retry(self, id: str) -> BatchRetry:
        """Does nothing if none is dead: without the mark a batch that has finished would look like a success, and its
        `then` never ran."""
        [view] = self._broker.batches_by_id([id])
        if view is not None and not view.dead:
            return BatchRetry(0, {})
        self._broker.uncancel_batch(id)
        actions = BulkActions(self._broker, self._config)
        run = actions.begin(JobAction.RETRY, actions.dead_members(id))
        run.complete()
        return BatchRetry(run.count, {change.id: change.reason for change in run.refusals})

    def dead_page(self, id: str, cursor: str, *, is_outline: bool = False) -> JobDocuments:
        page = self._broker.dead_members(id, cursor)
        dead = _dead(self._broker.records(page.ids) if page.ids else ())
        return JobDocuments(tuple(job_document(one, is_outline=is_outline) for one in dead), page.next_cursor)


def find_batch(broker: FullBroker, id: str) -> BatchDocument | None:
    """With the jobs of its callbacks and the first failures among the first page of its dead members: enough to see
    what goes wrong. At most three round trips."""
    [view] = broker.batches_by_id([id])
    if view is None:
        return None
    callbacks = [callback_id(id, one.kind) for one in view.callbacks]
    members = broker.dead_members(id).ids if view.dead else ()
    ids = [*callbacks, *members]
    records = dict(zip(ids, broker.records(ids) if ids else (), strict=True))
    return batch_document(view, records, _dead(records[member] for member in members))


def _dead(records: Iterable[Record | None]) -> list[Record]:
    return [one for one in records if one is not None and one.state is State.DEAD]


def new_batch(config: Config, request: BatchRequest, now: datetime) -> NewBatch:
    """The batch with its callbacks as complete jobs. ConfigError for a queue that does not exist, and for what only
    fileq itself may make."""
    check_priority(config, request.priority)
    check_client_batch(request.id)
    check_client_batch(request.parent)
    info = BatchInfo(request.priority, request.made_by)
    callbacks = tuple(_callback(config, request, kind, now) for kind in request.callbacks)
    encoded = msgspec.json.encode(info) if info != BatchInfo() else b""
    return NewBatch(request.id, request.name, request.parent, request.allow_failures, callbacks, encoded)


def _callback(config: Config, request: BatchRequest, kind: CallbackKind, now: datetime) -> Callback:
    wanted = request.callbacks[kind]
    try:
        entry = typed_entry(config, wanted.type, wanted.payload, wanted.options, now, request.parent or None)
        job = callback_job(entry.job, request.id, kind)
        checked_id(job.id)
    except JobError as error:
        raise ConfigError(f"{kind}: {error}") from error
    check_content(job)
    return Callback(kind, encode(job), entry.queue)


def check_client_batch(id: str) -> None:
    """ConfigError for a batch that only producers create, fill and seal. It can be cancelled and retried like any."""
    try:
        check_batch(id)
    except JobError as error:
        raise ConfigError(str(error)) from error
