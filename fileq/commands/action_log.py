"""Which jobs people changed by hand, and who did it: one document of the catalog for each action. Decides nothing.

The timelines of jobs and files, and the page of an action, read it. A document is written after its action, so a kill
-9 leaves at most an action that is not in the log. The newest ones are kept, of each the ids of its first jobs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Any

from msgspec import Struct, to_builtins

from fileq.actions.bulk import JobAction
from fileq.brokers.catalog import CappedLog, Catalog, Document, entry_name
from fileq.commands.audit_entries import command_line_user, short, write_command
from fileq.core.errors import BrokerError
from fileq.core.job import stamp, wall_clock_ms
from fileq.queries.job_filter import JobFilter, conditions_of

IDS_KEPT = 5_000  # in the log, all of which is read at once; an action counts as IDS_EACH or more
IDS_EACH = 25
IDS_MAX, IDS_BYTES = 1_000, 40_000  # of one action


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


ACTIONS = CappedLog[LoggedAction]("job-actions", LoggedAction, IDS_KEPT, lambda action: max(IDS_EACH, len(action.ids)))


class ActionLog:
    def __init__(self, catalog: Catalog, now_ms: Callable[[], int] = wall_clock_ms) -> None:
        self._catalog = catalog
        self._now_ms = now_ms

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
        name = id or entry_name(now_ms)
        chosen = dict(conditions or {})
        made = LoggedAction(name, action, by, stamp(now_ms) or "", changed, kept, chosen, refused, is_running, cause)
        with suppress(BrokerError):
            ACTIONS.add(self._catalog, name, made)
            return name
        return ""

    def all(self) -> list[LoggedAction]:
        """The newest first. One round trip."""
        return ACTIONS.newest(self._catalog.documents(ACTIONS.kind))


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


# What a command of `fileq` did, for others: an entry of the audit and, of jobs, one of the log that timelines read.
#
# Both are written after the change. A kill -9 in between leaves the change, and no entry. A broker that does not take
# an entry raises: Invocation.note() says so, because the change is made, and a command may have to print a secret
# that is shown only once.


# As the API calls the same action on one job, and its target.
_ONE_JOB = {
    JobAction.CANCEL: ("cancel_job", "/jobs/{id}"),
    JobAction.RETRY: ("retry_job", "/jobs/{id}/retry"),
    JobAction.DELETE: ("delete_dead", "/dead/{id}"),
}


def note_command(
    catalog: Catalog, action: JobAction, jobs: Mapping[str, str], *, count: int, wanted: JobFilter | None = None
) -> None:
    """`jobs` are the paths of the first of the `count` jobs that were changed, by id. `wanted` is how they were
    chosen."""
    if not count:
        return
    conditions: dict[str, Any] = to_builtins(conditions_of(wanted)) if wanted is not None else {}
    action_id = ActionLog(catalog).add(action, command_line_user(), jobs, count=count, conditions=conditions)
    if count == 1 and len(jobs) == 1:
        [(id, path)] = jobs.items()
        name, target = _ONE_JOB[action]
        write_command(catalog, name, target.format(id=id), job_id=short(id), path=short(path))
        return
    detail = _in_words({"action": action.value, **conditions})
    write_command(catalog, "act_on_jobs", "/jobs/actions", count=count, detail=detail, action_id=action_id)


def note_batch(catalog: Catalog, action: JobAction, id: str, *, count: int = 1) -> None:
    """A whole batch was cancelled, or `count` dead jobs of it were put back."""
    if count:
        ActionLog(catalog).add(action, command_line_user(), count=count, conditions={"batch": id})
        write_command(catalog, f"{action.value}_one_batch", f"/batches/{id}/{action.value}", count=count)


def note_reprocess(catalog: Catalog, count: int, wanted: JobFilter) -> None:
    if count:
        detail = _in_words(to_builtins(conditions_of(wanted))) or "all"
        write_command(catalog, "reprocess_files", "/files/reprocess", count=count, detail=detail)


def note_run(catalog: Catalog, schedule: str, job_id: str) -> None:
    """A schedule was run by hand. The log of actions lets the job's timeline say who did it."""
    ActionLog(catalog).add(JobAction.RUN, command_line_user(), [job_id])
    detail, target = _in_words({"schedule": schedule}), f"/schedules/{schedule}/run"
    write_command(catalog, "run_schedule", target, job_id=short(job_id), detail=detail)


def _in_words(chosen: Mapping[str, Any]) -> str:
    return short(", ".join(f"{name}: {value}" for name, value in chosen.items()))


# Who uploaded which file: one document of the catalog for each upload. Decides nothing.
#
# The page of a file reads it. A document is written after its upload, so a kill -9 leaves at most an upload without
# one; the audit is the complete list. The newest ones are kept.


UPLOADS_MAX = 200  # all of them are read at once


class UploadNote(Struct, frozen=True):
    path: str
    by: str
    at: str


UPLOADS = CappedLog[UploadNote]("uploads", UploadNote, UPLOADS_MAX)


def note_upload(catalog: Catalog, path: str, by: str, now_ms: int) -> None:
    UPLOADS.add(catalog, entry_name(now_ms), UploadNote(path, by, stamp(now_ms) or ""))


def last_upload(path: str, documents: Mapping[str, Document]) -> UploadNote | None:
    """That of this file, among the documents of the kind."""
    return next((note for note in UPLOADS.newest(documents) if note.path == path), None)
