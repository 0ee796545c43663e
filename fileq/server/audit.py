"""Writes one audit entry for every unsafe request, to the list on the broker and to the log.

A thread writes the entries of a moment together, so no request waits for the list. What a kill -9 leaves: the list
lacks the entries of the last moment, the log has them.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from typing import Any

from fileq.brokers.catalog import Catalog, entry_name
from fileq.brokers.types import Record
from fileq.commands.audit_entries import (
    AUDIT,
    AUDIT_REFUSED,
    AuditChange,
    AuditEntry,
    changes_between,
    one_document,
    short,
)
from fileq.core.errors import BrokerError
from fileq.core.events import Emit, Event, RequestAudited
from fileq.core.job import decode_or_none, stamp
from fileq.server.thread_pools import ServerThread

PAUSE_S = 0.2
_WAITING_MAX = 5_000


class AuditNote:
    """What the function of an endpoint says about its request, for the entry of the audit. Never a secret."""

    def __init__(self) -> None:
        self.changes: tuple[AuditChange, ...] = ()
        self.job_id = self.type = self.path = self.detail = self.action_id = ""
        self.is_dry_run = False

    def changed(self, old: Mapping[str, Any], new: Mapping[str, Any]) -> None:
        self.changes = changes_between(old, new)

    def about(self, record: Record) -> None:
        """The one job that was changed."""
        job = decode_or_none(record.raw)
        self.about_job(record.id, job.type if job is not None else None, job.filepath if job is not None else "")

    def about_job(self, id: str, type: str | None, path: str | None) -> None:
        self.job_id, self.type, self.path = short(id), short(type or ""), short(path or "")

    def chose(self, conditions: Mapping[str, Any]) -> None:
        """Which jobs or files a caller chose."""
        given = {name: value for name, value in conditions.items() if value not in (None, "", {})}
        self.detail = short(", ".join(f"{name}: {value}" for name, value in given.items()))


class AuditLog(ServerThread):
    """The writer. add() may be called by any thread and never waits."""

    def __init__(self, catalog: Catalog, emit: Emit, now_ms: Callable[[], int]) -> None:
        super().__init__("audit")
        self._catalog = catalog
        self._emit = emit
        self._now_ms = now_ms
        # Bounded, for an outage.
        self._waiting = {log: deque[AuditEntry](maxlen=_WAITING_MAX) for log in (AUDIT, AUDIT_REFUSED)}

    def entry(
        self, who: str, caller_id: str, action: str, target: str, count: int, result: int, request: str, **note: Any
    ) -> AuditEntry:
        """Of now. `note` are the fields of an AuditNote."""
        at, action, target = stamp(self._now_ms()) or "", short(action), short(target)
        return AuditEntry(at, who, caller_id, action, target, count, result, request, **note)

    def add(self, entry: AuditEntry, event: Event | None = None) -> None:
        """`event` is what the log says, if that is not the request itself."""
        self._emit(event or RequestAudited(*(getattr(entry, name) for name in RequestAudited.__struct_fields__)))
        self._waiting[entry.log].append(entry)
        self._wake.set()

    def _run(self) -> None:
        while True:
            self._wake.wait()
            self._is_stopping.wait(PAUSE_S)  # so that entries of a moment share a document
            self._wake.clear()
            is_last = self._is_stopping.is_set()
            try:
                self._write()
            except BrokerError:
                self._wake.set()  # the entries still wait
                self._is_stopping.wait(1.0)
            if is_last:
                return

    def _write(self) -> None:
        for log, entries in self._waiting.items():
            while entries:
                written = one_document([*entries])
                log.add(self._catalog, entry_name(self._now_ms()), written)
                for _ in written:
                    entries.popleft()
