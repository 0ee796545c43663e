"""Operations: actions on more jobs than one request can wait for. Each is a document of the catalog.

A server owns an operation while it works on it, and writes the document before each batch, expecting the revision that
it wrote last. So when another server takes an operation over, the former owner finds out before its next batch. The
document names the jobs of the batch (`underway`): after a kill -9 the server that continues finds out which of them
were changed, and counts those. The rule of repetition (actions/bulk.py) makes sure that no job is changed twice.

What a kill -9 leaves: the operation as it was before its last batch, and that batch done in part or whole.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from fileq.actions.bulk import BulkActions, JobAction
from fileq.brokers.catalog import Catalog
from fileq.commands.action_log import IDS_MAX, ActionLog
from fileq.core.errors import BrokerError, BrokerUnavailable, Conflict, FileqError, JobError
from fileq.core.events import Emit, OperationEnded, OperationStarted
from fileq.queries.job_filter import JobFilter
from fileq.server.limits import ServerThread

KIND = "operations"
OPEN_MAX = 20  # operations that have not ended
ENDED_KEPT = 100
WAITING, RUNNING, COMPLETED, STOPPED, FAILED = "waiting", "running", "completed", "stopped", "failed"


class Operation(Struct, frozen=True, omit_defaults=True):
    """One operation. `matched` jobs were counted when it began, `done` were changed so far, `refused` could not be in
    the last pass. `conditions` are what the caller gave, for people; `wanted` is the filter. `owner` is the server that
    works on it; "" for none."""

    id: str
    action: JobAction
    wanted: JobFilter
    conditions: dict[str, Any]
    matched: int
    cutoff_ms: int
    created_ms: int
    created_by: str
    done: int = 0
    refused: int = 0
    owner: str = ""
    underway: tuple[str, ...] = ()
    state: str = WAITING
    updated_ms: int = 0
    ended_ms: int = 0
    error: str = ""
    takeovers: int = 0

    @property
    def is_ended(self) -> bool:
        return bool(self.ended_ms)


class StoredOperation(Struct, frozen=True):
    operation: Operation
    revision: int


class OperationStore:
    """The operations of one broker."""

    def __init__(self, catalog: Catalog, now_ms: Callable[[], int]) -> None:
        self._catalog = catalog
        self.now_ms = now_ms

    def all(self) -> list[StoredOperation]:
        """The newest first. A document of a later release that can't be read is left out."""
        found = []
        for _, document in sorted(self._catalog.documents(KIND).items(), reverse=True):
            try:
                found.append(StoredOperation(msgspec.json.decode(document.body, type=Operation), document.revision))
            except msgspec.DecodeError:
                continue
        return found

    def get(self, id: str) -> StoredOperation | None:
        return next((stored for stored in self.all() if stored.operation.id == id), None)

    def revision(self) -> int:
        """Grows with every change of an operation. Cheap."""
        return self._catalog.catalog_revision(KIND)

    def create(
        self,
        action: JobAction,
        wanted: JobFilter,
        conditions: dict[str, Any],
        *,
        matched: int,
        cutoff_ms: int,
        created_by: str,
    ) -> Operation:
        """Raises JobError if too many operations have not ended. Removes the oldest ended ones."""
        known = self.all()
        if sum(not stored.operation.is_ended for stored in known) >= OPEN_MAX:
            raise JobError(f"{OPEN_MAX} operations have not ended; wait for one, or stop one")
        for stored in [stored for stored in known if stored.operation.is_ended][ENDED_KEPT - 1 :]:
            self._catalog.remove_document(KIND, stored.operation.id)
        now_ms = self.now_ms()
        id = f"{now_ms:013d}-{secrets.token_hex(4)}"
        operation = Operation(id, action, wanted, conditions, matched, cutoff_ms, now_ms, created_by, updated_ms=now_ms)
        self._put(operation, 0)
        return operation

    def save(self, operation: Operation, expected: int) -> StoredOperation:
        """Raises Conflict if the document is another one than expected."""
        operation = replace(operation, updated_ms=self.now_ms())
        return StoredOperation(operation, self._put(operation, expected))

    def stop(self, id: str) -> Operation | None:
        """Ends an operation that has not ended; its owner notices before its next batch. None if there is none.
        Repeated, it changes nothing."""
        while True:
            stored = self.get(id)
            if stored is None or stored.operation.is_ended:
                return stored.operation if stored is not None else None
            try:
                stopped = replace(stored.operation, state=STOPPED, ended_ms=self.now_ms())
                return self.save(stopped, stored.revision).operation
            except Conflict:
                continue  # its owner began another batch

    def _put(self, operation: Operation, expected: int) -> int:
        # A server whose memory is full gets room by these actions. The number of operations has a limit.
        frees_memory = operation.action in (JobAction.CANCEL, JobAction.DELETE) or operation.is_ended
        body = msgspec.json.encode(operation)
        return self._catalog.put_document(KIND, operation.id, body, expected, frees_memory=frees_memory)


TAKEOVER_S = 5.0
LOOK_S = 1.0  # between two looks for an operation without an owner
OUTAGE_S = 1.0


class OperationRunner(ServerThread):
    """Works on operations in a thread of the server, one at a time. Any server of a broker may work on any of them.

    A server takes an operation that has no owner, or whose document has not changed for TAKEOVER_S by this server's own
    clock: its owner writes the document before every batch. Two servers never work on one for longer than a batch, and
    even then the broker changes each job once. At a stop the operation is given back, so that another server goes on at
    once.

    start() and stop() it. wake() when an operation was created here."""

    def __init__(self, store: OperationStore, actions: BulkActions, emit: Emit, log: ActionLog) -> None:
        super().__init__("operations")
        self._store = store
        self._actions = actions
        self._emit = emit
        self._log = log
        self._name = secrets.token_hex(6)
        self._seen: dict[tuple[str, int], float] = {}  # since when the operation of this id has this revision
        self._looked_at = -1  # the revision of all operations when there was nothing left to do
        self._stored: StoredOperation  # the one that it owns; a Conflict says that it does not any more
        self._changed: list[str] = []  # the ids of the first jobs that were changed, also by a former owner

    def wake(self) -> None:
        self._wake.set()

    def _run(self) -> None:
        while not self._is_stopping.is_set():
            try:
                stored = self._next()
                if stored is not None:
                    self._work(stored)
                    continue
            except (BrokerUnavailable, Conflict):
                pass  # the broker is away, or another server was faster
            except FileqError:
                self._is_stopping.wait(OUTAGE_S)
            self._wake.wait(LOOK_S)
            self._wake.clear()

    def _next(self) -> StoredOperation | None:
        """Takes the oldest operation that needs an owner; None if there is none."""
        revision = self._store.revision()
        if revision == self._looked_at:
            return None
        opened = [stored for stored in self._store.all() if not stored.operation.is_ended]
        if not opened:
            self._looked_at, self._seen = revision, {}
            return None
        now_s = time.monotonic()
        seen = {(one.operation.id, one.revision) for one in opened}
        self._seen = {key: self._seen.get(key, now_s) for key in seen}
        for stored in reversed(opened):
            is_silent = now_s - self._seen[stored.operation.id, stored.revision] > TAKEOVER_S
            if not stored.operation.owner or is_silent:
                return self._take(stored)
        return None

    def _take(self, stored: StoredOperation) -> StoredOperation:
        """Counts what the former owner changed in its last batch and did not write down."""
        before = stored.operation
        done = self._actions.changed(before.action, before.underway, before.cutoff_ms) if before.underway else 0
        is_resumed = before.state == RUNNING
        done, takeovers = before.done + done, before.takeovers + is_resumed
        taken = replace(before, owner=self._name, state=RUNNING, done=done, underway=(), takeovers=takeovers)
        saved = self._store.save(taken, stored.revision)
        self._emit(OperationStarted(taken.id, taken.action.value, taken.matched, taken.done, is_resumed))
        return saved

    def _work(self, stored: StoredOperation) -> None:
        self._stored, self._changed = stored, []
        with suppress(BrokerError):
            self._changed += next((one.ids for one in self._log.all() if one.id == stored.operation.id), ())
        while True:
            try:
                ended = self._change_all()
                break
            except BrokerUnavailable:
                if self._is_stopping.wait(OUTAGE_S):
                    return  # another server takes it over
            except Conflict:
                raise
            except Exception as error:
                ended = self._end(FAILED, str(error) if isinstance(error, FileqError) else repr(error))
                break
        if ended is not None:
            how = ended.state, ended.done, ended.refused, ended.error
            self._emit(OperationEnded(ended.id, ended.action.value, *how))
            self._log_action(is_running=False)

    def _change_all(self) -> Operation | None:
        """Changes what is left. None if the server stops before; a repeat goes on."""
        now = self._stored.operation
        if now.underway:  # after an outage: the reply about the last batch was lost
            done = self._actions.changed(now.action, now.underway, now.cutoff_ms)
            self._note(done=now.done + done, underway=())
        selection = self._actions.matching(now.action, now.wanted)
        work = self._actions.begin(now.action, selection, cutoff_ms=now.cutoff_ms)
        for batch in work.batches():
            if self._is_stopping.is_set():
                self._save(owner="")
                return None
            if (ended := self._save(underway=tuple(job.id for job in batch), refused=work.refused)) is not None:
                return ended
            changed = [change.id for change in work.change(batch) if change.is_done]
            self._note(done=self._stored.operation.done + len(changed), underway=())
            if len(self._changed) < IDS_MAX:
                self._changed += changed
                self._log_action(is_running=True)
        return self._end(COMPLETED, refused=work.refused)

    def _end(self, state: str, error: str = "", refused: int | None = None) -> Operation:
        now = self._stored.operation
        is_known = refused if refused is not None else now.refused
        ended = self._save(state=state, error=error[:500], refused=is_known, ended_ms=self._store.now_ms(), underway=())
        return ended or self._stored.operation

    def _log_action(self, *, is_running: bool) -> None:
        """For the view that shows what became of the jobs: the first ones are enough."""
        now = self._stored.operation
        self._log.add(
            now.action,
            now.created_by,
            self._changed,
            count=now.done,
            refused=now.refused,
            conditions=now.conditions,
            id=now.id,
            at_ms=now.created_ms,
            is_running=is_running,
        )

    def _note(self, **changes: Any) -> None:
        """Written with the next batch."""
        self._stored = StoredOperation(replace(self._stored.operation, **changes), self._stored.revision)

    def _save(self, **changes: Any) -> Operation | None:
        """Writes the operation. If it was stopped meanwhile, writes what was done and returns it as it ended."""
        mine = replace(self._stored.operation, **changes)
        try:
            self._stored = self._store.save(mine, self._stored.revision)
            return None
        except Conflict:
            found = self._store.get(mine.id)
            if found is None or found.operation.owner != self._stored.operation.owner or not found.operation.is_ended:
                raise
            stopped = replace(found.operation, done=self._stored.operation.done, underway=())
            self._stored = self._store.save(stopped, found.revision)
            return self._stored.operation
