"""Which jobs people changed by hand, and who did it: one document of the catalog for each action. Decides nothing.

The timelines of jobs and files, and the page of an action, read it. A document is written after its action, so a kill
-9 leaves at most an action that is not in the log. The newest ones are kept, of each the ids of its first jobs.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Any

import msgspec
from msgspec import Struct

from fileq.brokers.catalog import Catalog, Document, readable
from fileq.commands.bulk_actions import JobAction
from fileq.core.errors import BrokerError
from fileq.core.job import stamp

KIND = "job-actions"
ACTIONS_MAX, ALL_IDS_MAX = 200, 5_000  # in the log; all of it is read at once
IDS_MAX, IDS_BYTES = 1_000, 40_000  # of one action
TRIM_EVERY = 16


class LoggedAction(Struct, frozen=True, omit_defaults=True):
    """`count` jobs were changed, and `refused` were not. `ids` are those of the first of them. `conditions` are how the
    caller chose them; empty if by ids. `is_running`: an operation still works on the others. `cause` is what the errors
    of the jobs say, if they were chosen by their fingerprint and it is known."""

    id: str
    action: JobAction
    by: str
    at: str
    count: int
    ids: tuple[str, ...] = ()
    conditions: dict[str, Any] = {}
    refused: int = 0
    is_running: bool = False
    cause: str = ""

    def is_about(self, job_id: str, batch_id: str) -> bool:
        """An action on a whole batch names no jobs."""
        return job_id in self.ids or bool(batch_id and self.conditions == {"batch": batch_id})


class ActionLog:
    """The actions of one broker."""

    def __init__(self, catalog: Catalog, now_ms: Callable[[], int]) -> None:
        self._catalog = catalog
        self._now_ms = now_ms
        self._written = 0

    def add(
        self,
        action: JobAction,
        by: str,
        ids: Iterable[str] = (),
        *,
        count: int | None = None,
        refused: int = 0,
        conditions: Mapping[str, Any] | None = None,
        id: str = "",
        at_ms: int = 0,
        is_running: bool = False,
        cause: str = "",
    ) -> str:
        """The id of the entry; "" if nothing was changed, or the broker did not take it: the action itself is done. An
        entry with the same `id` is replaced. `at_ms` is when it was done, if that is not now."""
        kept = _first(ids)
        changed = len(kept) if count is None else count
        if not changed:
            return ""
        now_ms = at_ms or self._now_ms()
        name = id or f"{now_ms:013d}-{secrets.token_hex(4)}"
        chosen = dict(conditions or {})
        made = LoggedAction(name, action, by, stamp(now_ms) or "", changed, kept, chosen, refused, is_running, cause)
        with suppress(BrokerError):
            self._catalog.put_document(KIND, name, msgspec.json.encode(made))
            if self._written % TRIM_EVERY == 0 or len(kept) > TRIM_EVERY:
                self._trim()
            self._written += 1
            return name
        return ""

    def all(self) -> list[LoggedAction]:
        """The newest first. One round trip."""
        return actions_in(self._catalog.documents(KIND))

    def _trim(self) -> None:
        kept = 0
        for number, one in enumerate(self.all()):
            kept += len(one.ids)
            if number and (number >= ACTIONS_MAX or kept > ALL_IDS_MAX):
                self._catalog.remove_document(KIND, one.id)


def actions_in(documents: Mapping[str, Document]) -> list[LoggedAction]:
    """The newest first."""
    return [one for _, one in sorted(readable(documents, LoggedAction).items(), reverse=True)]


def _first(ids: Iterable[str]) -> tuple[str, ...]:
    kept: list[str] = []
    size = 0
    for id in ids:
        size += len(id.encode(errors="replace")) + 3
        if len(kept) == IDS_MAX or size > IDS_BYTES:
            break
        kept.append(id)
    return tuple(kept)


def actions_on(log: Sequence[LoggedAction], job_id: str, batch_id: str | None) -> list[LoggedAction]:
    """Those that changed this job, the oldest first. `log` is as all() returns it."""
    return [one for one in reversed(log) if one.is_about(job_id, batch_id or "")]
