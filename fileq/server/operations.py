"""Operations: actions on more jobs than one request can wait for. Each is a document of the catalog.

A server owns an operation while it works on it, and writes the document before each batch, expecting the revision that
it wrote last. So when another server takes an operation over, the former owner finds out before its next batch. The
document names the jobs of the batch (`underway`): after a kill -9 the server that continues finds out which of them
were changed, and counts those. The rule of repetition (actions/bulk.py) makes sure that no job is changed twice.

What a kill -9 leaves: the operation as it was before its last batch, and that batch done in part or whole.
"""

from __future__ import annotations

import secrets
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from fileq.actions.bulk import BulkActions, JobAction
from fileq.brokers.catalog import Catalog, Table
from fileq.commands.action_log import IDS_MAX, ActionLog
from fileq.core.errors import BrokerError, BrokerUnavailable, Conflict, FileqError, JobError
from fileq.core.events import Emit, OperationEnded, OperationStarted
from fileq.queries.job_filter import JobFilter

OPEN_MAX = 20  # operations that have not ended
ENDED_KEPT = 100
WAITING, RUNNING, COMPLETED, STOPPED, FAILED = "waiting", "running", "completed", "stopped", "failed"


class Operation(Struct, frozen=True, omit_defaults=True):
    """One operation. `matched` jobs were counted when it began, `done` were changed so far, `refused` could not be in
    the last pass. `conditions` are what the caller gave, for people; `wanted` is the filter. `owner` is the server that
    works on it; "" for none. `revision` is that of its document, which does not hold it."""

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
    revision: int = 0

    @property
    def is_ended(self) -> bool:
        return bool(self.ended_ms)


OPERATIONS = Table[Operation]("operations", Operation)


class OperationStore:
    """The operations of one broker."""

    def __init__(self, catalog: Catalog, now_ms: Callable[[], int]) -> None:
        self._catalog = catalog
        self.now_ms = now_ms

    def all(self) -> list[Operation]:
        """The newest first. A document of a later release that can't be read is left out."""
        documents = self._catalog.documents(OPERATIONS.kind)
        newest_first = sorted(OPERATIONS.read(documents).items(), reverse=True)
        return [replace(one, revision=documents[name].revision) for name, one in newest_first]

    def get(self, id: str) -> Operation | None:
        return next((one for one in self.all() if one.id == id), None)

    def revision(self) -> int:
        """Grows with every change of an operation. Cheap."""
        return self._catalog.catalog_revision(OPERATIONS.kind)

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
        if sum(not one.is_ended for one in known) >= OPEN_MAX:
            raise JobError(f"{OPEN_MAX} operations are unfinished; wait for one, or stop one")
        for old in [one for one in known if one.is_ended][ENDED_KEPT - 1 :]:
            OPERATIONS.remove(self._catalog, old.id)
        now_ms = self.now_ms()
        id = f"{now_ms:013d}-{secrets.token_hex(4)}"
        return self.save(Operation(id, action, wanted, conditions, matched, cutoff_ms, now_ms, created_by))

    def save(self, operation: Operation) -> Operation:
        """With its new revision. Raises Conflict if the document is not of the revision that the operation has."""
        made = replace(operation, updated_ms=self.now_ms(), revision=0)
        # A server whose memory is full gets room by these actions. The number of operations has a limit.
        frees_memory = made.action in (JobAction.CANCEL, JobAction.DELETE) or made.is_ended
        body, expected = msgspec.json.encode(made), operation.revision
        revision = self._catalog.put_document(OPERATIONS.kind, made.id, body, expected, frees_memory=frees_memory)
        return replace(made, revision=revision)

    def stop(self, id: str) -> Operation | None:
        """Ends an operation that has not ended; its owner notices before its next batch. None if there is none.
        Repeated, it changes nothing."""
        while True:
            known = self.get(id)
            if known is None or known.is_ended:
                return known
            try:
                return self.save(replace(known, state=STOPPED, ended_ms=self.now_ms()))
            except Conflict:
                continue  # its owner began another batch


TAKEOVER_S = 5.0
LOOK_S = 1.0  # between two looks for an operation without an owner
OUTAGE_S = 1.0


class OperationRunner:
    """Works on operations in a loop of the server, one at a time. Any server of a broker may work on any of them.

    A server takes an operation that has no owner, or whose document has not changed for TAKEOVER_S by this server's own
    clock: its owner writes the document before every batch. Two servers never work on one for longer than a batch, and
    even then the broker changes each job once. At a stop the operation is given back, so that another server goes on at
    once.

    Set `wake` when an operation was created here. `is_stopping` is set when the server stops."""

    name = "operations"

    def __init__(
        self,
        store: OperationStore,
        actions: BulkActions,
        emit: Emit,
        log: ActionLog,
        is_stopping: threading.Event,
    ) -> None:
        self.wake = threading.Event()
        self._is_stopping = is_stopping
        self._store = store
        self._actions = actions
        self._emit = emit
        self._log = log
        self._name = secrets.token_hex(6)
        self._seen: dict[tuple[str, int], float] = {}  # since when the operation of this id has this revision
        self._looked_at = -1  # the revision of all operations when there was nothing left to do
        self._own: Operation  # the one that it owns; a Conflict says that it does not any more
        self._changed: list[str] = []  # the ids of the first jobs that were changed, also by a former owner

    def turn(self) -> float:
        """Works on one operation until it has ended."""
        self.wake.clear()
        with suppress(Conflict):  # another server was faster
            if (taken := self._next()) is not None:
                self._work(taken)
                return 0.0
        return LOOK_S

    def _next(self) -> Operation | None:
        """Takes the oldest operation that needs an owner; None if there is none."""
        revision = self._store.revision()
        if revision == self._looked_at:
            return None
        opened = [one for one in self._store.all() if not one.is_ended]
        if not opened:
            self._looked_at, self._seen = revision, {}
            return None
        now_s = time.monotonic()
        self._seen = {key: self._seen.get(key, now_s) for key in ((one.id, one.revision) for one in opened)}
        free = (
            one for one in reversed(opened) if not one.owner or now_s - self._seen[one.id, one.revision] > TAKEOVER_S
        )
        found = next(free, None)
        return self._take(found) if found is not None else None

    def _take(self, before: Operation) -> Operation:
        """Counts what the former owner changed in its last batch and did not write down."""
        done = self._actions.changed(before.action, before.underway, before.cutoff_ms) if before.underway else 0
        is_resumed = before.state == RUNNING
        done, takeovers = before.done + done, before.takeovers + is_resumed
        taken = replace(before, owner=self._name, state=RUNNING, done=done, underway=(), takeovers=takeovers)
        saved = self._store.save(taken)
        self._emit(OperationStarted(taken.id, taken.action.value, taken.matched, taken.done, is_resumed))
        return saved

    def _work(self, taken: Operation) -> None:
        self._own, self._changed = taken, []
        with suppress(BrokerError):
            self._changed += next((one.ids for one in self._log.all() if one.id == taken.id), ())
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
        now = self._own
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
            self._note(done=self._own.done + len(changed), underway=())
            if len(self._changed) < IDS_MAX:
                self._changed += changed
                self._log_action(is_running=True)
        return self._end(COMPLETED, refused=work.refused)

    def _end(self, state: str, error: str = "", refused: int | None = None) -> Operation:
        now = self._own
        is_known = refused if refused is not None else now.refused
        ended = self._save(state=state, error=error[:500], refused=is_known, ended_ms=self._store.now_ms(), underway=())
        return ended or self._own

    def _log_action(self, *, is_running: bool) -> None:
        """For the view that shows what became of the jobs: the first ones are enough."""
        now = self._own
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
        self._own = replace(self._own, **changes)

    def _save(self, **changes: Any) -> Operation | None:
        """Writes the operation. If it was stopped meanwhile, writes what was done and returns it as it ended."""
        try:
            self._own = self._store.save(replace(self._own, **changes))
            return None
        except Conflict:
            found = self._store.get(self._own.id)
            if found is None or found.owner != self._own.owner or not found.is_ended:
                raise
            self._own = self._store.save(replace(found, done=self._own.done, underway=()))
            return self._own
