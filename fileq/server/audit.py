"""Who did what: one entry for every unsafe request, in a capped list on the broker and in the log.

The list is made of documents of the catalog, which every broker has: no broker needs a verb for it. A thread writes the
entries of a moment together as one new document, whose name begins with the time. So servers never change each other's
documents, and no request waits for the list. The oldest documents are removed above ENTRIES_MAX entries; a document's
name says how many it has. What a kill -9 leaves: the list lacks the entries of the last moment, the log has them.
"""

from __future__ import annotations

import re
import secrets
import threading
from collections import deque
from collections.abc import Callable

import msgspec
from msgspec import Struct

from fileq.brokers.catalog import Catalog
from fileq.core.errors import BrokerError
from fileq.core.events import Emit
from fileq.core.job import stamp
from fileq.core.server_events import RequestAudited

KIND = "audit"
ENTRIES_MAX = 10_000
DOCUMENT_ENTRIES_MAX = 100
TRIM_EVERY = 100  # documents
PAUSE_S = 0.2
TEXT_MAX = 200
_WAITING_MAX = 5_000
_KEY = re.compile(r"(fq_[A-Za-z0-9]{8}_)[\w-]{20,}")


class AuditEntry(Struct, frozen=True):
    """`who` is the name of the key or user. `result` is the status of the answer."""

    at: str
    who: str
    caller_id: str
    action: str
    target: str
    count: int
    result: int
    request_id: str


class AuditLog:
    """The writer. add() may be called by any thread and never waits."""

    def __init__(self, catalog: Catalog, emit: Emit, now_ms: Callable[[], int]) -> None:
        self._catalog = catalog
        self._emit = emit
        self._now_ms = now_ms
        self._waiting: deque[AuditEntry] = deque(maxlen=_WAITING_MAX)  # bounded, for an outage
        self._wake = threading.Event()
        self._is_stopping = threading.Event()
        self._written = 0
        self._thread = threading.Thread(target=self._run, name="audit", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def add(
        self, who: str, caller_id: str, action: str, target: str, *, count: int, result: int, request_id: str
    ) -> None:
        action, target = _without_keys(action)[:TEXT_MAX], _without_keys(target)[:TEXT_MAX]
        entry = AuditEntry(stamp(self._now_ms()) or "", who, caller_id, action, target, count, result, request_id)
        self._emit(RequestAudited(who, caller_id, action, target, count, result, request_id))
        self._waiting.append(entry)
        self._wake.set()

    def stop(self, timeout_s: float) -> None:
        self._is_stopping.set()
        self._wake.set()
        if self._thread.ident is not None:
            self._thread.join(timeout_s)

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
        while self._waiting:
            batch = [self._waiting[i] for i in range(min(len(self._waiting), DOCUMENT_ENTRIES_MAX))]
            name = f"{self._now_ms():013d}-{len(batch):03d}-{secrets.token_hex(4)}"
            self._catalog.put_document(KIND, name, msgspec.json.encode(batch))
            for _ in batch:
                self._waiting.popleft()
            if self._written % TRIM_EVERY == 0:
                trim(self._catalog)
            self._written += 1


def _without_keys(text: str) -> str:
    """A key that was sent in a path by mistake is not kept."""
    return _KEY.sub(r"\1***", text)


def trim(catalog: Catalog, keep: int = ENTRIES_MAX) -> None:
    """Removes the oldest documents beyond this many entries."""
    count = 0
    for name in sorted(catalog.documents(KIND), reverse=True):
        count += _entries_in(name)
        if count > keep:
            catalog.remove_document(KIND, name)


class AuditPosition(Struct, frozen=True, array_like=True):
    """The last entry of a page: its document, and how many of the document's entries were on pages before."""

    document: str
    count: int


def read_audit(catalog: Catalog, limit: int) -> list[AuditEntry]:
    """The newest entries, newest first."""
    return audit_page(catalog, limit, None)[0]


def audit_page(
    catalog: Catalog, limit: int, after: AuditPosition | None
) -> tuple[list[AuditEntry], AuditPosition | None]:
    """Entries, newest first, and where the next page begins; None at the end. Entries that are added meanwhile are
    newer, so no page changes."""
    found: list[AuditEntry] = []
    for name, document in sorted(catalog.documents(KIND).items(), reverse=True):
        if after is not None and name > after.document:
            continue
        skip = after.count if after is not None and name == after.document else 0
        try:
            entries = msgspec.json.decode(document.body, type=list[AuditEntry])[::-1]
        except msgspec.DecodeError:
            continue  # of a later version
        taken = entries[skip : skip + limit - len(found)]
        found += taken
        if len(found) == limit:
            return found, AuditPosition(name, skip + len(taken))
    return found, None


def _entries_in(name: str) -> int:
    count = name.split("-")[1] if name.count("-") == 2 else ""
    return int(count) if count.isdecimal() else 1
