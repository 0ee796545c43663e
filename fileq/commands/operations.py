"""Operations: actions on more jobs than one request can wait for. Each is a document of the catalog.

A server owns an operation while it works on it, and writes the document before each batch, expecting the revision that
it wrote last. So when another server takes an operation over, the former owner finds out before its next batch. The
document names the jobs of the batch (`underway`): after a kill -9 the server that continues finds out which of them
were changed, and counts those.

What a kill -9 leaves: the operation as it was before its last batch, and that batch done in part or whole.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable
from typing import Any

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from fileq.brokers.catalog import Catalog
from fileq.commands.bulk_actions import JobAction
from fileq.core.errors import Conflict, JobError
from fileq.queries.job_filter import JobFilter

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
        operation = Operation(
            id=f"{now_ms:013d}-{secrets.token_hex(4)}",
            action=action,
            wanted=wanted,
            conditions=conditions,
            matched=matched,
            cutoff_ms=cutoff_ms,
            created_ms=now_ms,
            created_by=created_by,
            updated_ms=now_ms,
        )
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
