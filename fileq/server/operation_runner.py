"""Works on operations in a thread of the server, one at a time. Any server of a broker may work on any of them.

A server takes an operation that has no owner, or whose document has not changed for TAKEOVER_S by this server's own
clock: its owner writes the document before every batch. Two servers never work on one for longer than a batch, and even
then the broker changes each job once. At a stop the operation is given back, so that another server goes on at once.
"""

from __future__ import annotations

import secrets
import threading
import time
from contextlib import suppress
from typing import Any

from msgspec.structs import replace

from fileq.commands.action_log import IDS_MAX, ActionLog
from fileq.commands.bulk_actions import GONE_ELSEWHERE, BulkActions, changed_ids
from fileq.commands.operations import COMPLETED, FAILED, RUNNING, Operation, OperationStore, StoredOperation
from fileq.core.errors import BrokerError, BrokerUnavailable, Conflict, FileqError
from fileq.core.events import Emit, OperationEnded, OperationStarted
from fileq.queries.dead_jobs import GONE

TAKEOVER_S = 5.0
LOOK_S = 1.0  # between two looks for an operation without an owner
OUTAGE_S = 1.0


class OperationRunner:
    """start() and stop() it. wake() when an operation was created here."""

    def __init__(self, store: OperationStore, actions: BulkActions, emit: Emit, log: ActionLog) -> None:
        self._store = store
        self._actions = actions
        self._emit = emit
        self._log = log
        self._name = secrets.token_hex(6)
        self._seen: dict[str, tuple[int, float]] = {}  # id → revision, since when it has been this one
        self._looked_at = -1  # the revision of all operations when there was nothing left to do
        self._wake = threading.Event()
        self._is_stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="operations", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def wake(self) -> None:
        self._wake.set()

    def stop(self, timeout_s: float) -> None:
        self._is_stopping.set()
        self._wake.set()
        if self._thread.ident is not None:
            self._thread.join(timeout_s)

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
        self._seen = {
            stored.operation.id: seen
            if (seen := self._seen.get(stored.operation.id)) is not None and seen[0] == stored.revision
            else (stored.revision, now_s)
            for stored in opened
        }
        for stored in reversed(opened):
            operation = stored.operation
            is_silent = now_s - self._seen[operation.id][1] > TAKEOVER_S
            if not operation.owner or is_silent:
                return self._take(stored)
        return None

    def _take(self, stored: StoredOperation) -> StoredOperation:
        """Counts what the former owner changed in its last batch and did not write down."""
        before = stored.operation
        done = self._actions.changed(before.action, before.underway, before.cutoff_ms) if before.underway else 0
        is_resumed = before.state == RUNNING
        taken = replace(
            before,
            owner=self._name,
            state=RUNNING,
            done=before.done + done,
            underway=(),
            takeovers=before.takeovers + is_resumed,
        )
        saved = self._store.save(taken, stored.revision)
        self._emit(OperationStarted(taken.id, taken.action.value, taken.matched, taken.done, is_resumed))
        return saved

    def _work(self, stored: StoredOperation) -> None:
        work = _OwnedOperation(self._store, self._actions, stored, self._is_stopping, self._log)
        while True:
            try:
                ended = work.run()
                break
            except BrokerUnavailable:
                if self._is_stopping.wait(OUTAGE_S):
                    return  # another server takes it over
            except Conflict:
                raise
            except Exception as error:
                ended = work.end(FAILED, str(error) if isinstance(error, FileqError) else repr(error))
                break
        if ended is not None:
            self._emit(
                OperationEnded(ended.id, ended.action.value, ended.state, ended.done, ended.refused, ended.error)
            )
            work.log_end(ended)


class _OwnedOperation:
    """An operation that this server owns. Raises Conflict when it does not any more."""

    def __init__(
        self,
        store: OperationStore,
        actions: BulkActions,
        stored: StoredOperation,
        is_stopping: threading.Event,
        log: ActionLog,
    ) -> None:
        self._store = store
        self._actions = actions
        self._stored = stored
        self._is_stopping = is_stopping
        self._action_log = log
        self._changed: list[str] | None = None  # the ids of the first jobs that were changed; None before they are read

    def run(self) -> Operation | None:
        """Passes over the jobs until a pass changes none. None if the server stops before; a repeat goes on."""
        self._count_underway()
        while True:
            changed, refused = 0, 0
            now = self._stored.operation
            for batch in self._actions.batches(now.action, now.wanted, now.cutoff_ms):
                if self._is_stopping.is_set():
                    self._save(owner="")
                    return None
                ids = tuple(job.id for job in batch)
                if (ended := self._save(underway=ids, refused=refused)) is not None:
                    return ended
                reasons = self._actions.apply(now.action, batch)
                done = reasons.count("")
                changed += done
                refused += sum(reason not in ("", GONE, GONE_ELSEWHERE) for reason in reasons)
                self._note(done=self._stored.operation.done + done, underway=())
                self._log_changed(changed_ids(batch, reasons))
            if not changed:
                return self.end(COMPLETED, refused=refused)

    def end(self, state: str, error: str = "", refused: int | None = None) -> Operation:
        now = self._stored.operation
        is_known = refused if refused is not None else now.refused
        ended = self._save(state=state, error=error[:500], refused=is_known, ended_ms=self._store.now_ms(), underway=())
        return ended or self._stored.operation

    def _log_changed(self, ids: list[str]) -> None:
        """For the page that shows what became of them: the first jobs are enough."""
        if len(known := self._logged()) < IDS_MAX:
            known += ids
            self._log(self._stored.operation, is_running=True)

    def log_end(self, ended: Operation) -> None:
        self._log(ended, is_running=False)

    def _logged(self) -> list[str]:
        if self._changed is None:
            self._changed = []
            with suppress(BrokerError):
                ids = (one.ids for one in self._action_log.all() if one.id == self._stored.operation.id)
                self._changed = list(next(ids, ()))  # of a former owner
        return self._changed

    def _log(self, now: Operation, *, is_running: bool) -> None:
        self._action_log.add(
            now.action,
            now.created_by,
            self._logged(),
            count=now.done,
            refused=now.refused,
            conditions=now.conditions,
            id=now.id,
            at_ms=now.created_ms,
            is_running=is_running,
        )

    def _count_underway(self) -> None:
        """After an outage: the reply about the last batch was lost."""
        now = self._stored.operation
        if now.underway:
            done = self._actions.changed(now.action, now.underway, now.cutoff_ms)
            self._note(done=now.done + done, underway=())

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
