"""What a command of `fileq` did, for others: an entry of the audit and, of jobs, one of the log that timelines read.

Both are written after the change. A kill -9 in between leaves the change, and no entry. A broker that does not take an
entry raises: Invocation.note() says so, because the change is made, and a command may have to print a secret that is
shown only once.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fileq.brokers.catalog import Catalog
from fileq.brokers.clocks import wall_clock_ms
from fileq.commands.action_log import ActionLog
from fileq.commands.audit_entries import changes_between, short, write_command
from fileq.commands.bulk_actions import JobAction
from fileq.commands.operator_name import command_line_user
from fileq.core.job import stamp
from fileq.queries.job_filter import JobFilter

# As the API calls the same action on one job, and its target.
_ONE_JOB = {
    JobAction.CANCEL: ("cancel_job", "/jobs/{id}"),
    JobAction.RETRY: ("retry_job", "/jobs/{id}/retry"),
    JobAction.DELETE: ("delete_dead", "/dead/{id}"),
}
_CONDITIONS = ("state", "type", "match", "error", "queue", "worker", "batch", "fingerprint")


def note_command(
    catalog: Catalog, action: JobAction, jobs: Mapping[str, str], *, count: int, wanted: JobFilter | None = None
) -> None:
    """`jobs` are the paths of the first of the `count` jobs that were changed, by id. `wanted` is how they were
    chosen."""
    if not count:
        return
    who, now_ms = command_line_user(), wall_clock_ms()
    ids, conditions = [*jobs], conditions_of(wanted)
    id = ActionLog(catalog, wall_clock_ms).add(action, who, ids, count=count, conditions=conditions)
    if count == 1 and len(ids) == 1:
        name, target = _ONE_JOB[action]
        write_command(
            catalog, who, name, target.format(id=ids[0]), now_ms, job_id=short(ids[0]), path=short(jobs[ids[0]])
        )
        return
    chosen = ", ".join(f"{name}: {value}" for name, value in {"action": action.value, **conditions}.items())
    more: dict[str, Any] = {"detail": short(chosen), "action_id": id}
    write_command(catalog, who, "act_on_jobs", "/jobs/actions", now_ms, count=count, **more)


def note_batch(catalog: Catalog, action: JobAction, id: str, *, count: int = 1) -> None:
    """A whole batch was cancelled, or `count` dead jobs of it were put back."""
    if not count:
        return
    who = command_line_user()
    ActionLog(catalog, wall_clock_ms).add(action, who, count=count, conditions={"batch": id})
    name, target = f"{action.value}_one_batch", f"/batches/{id}/{action.value}"
    write_command(catalog, who, name, target, wall_clock_ms(), count=count)


def note_pause(
    catalog: Catalog,
    kind: str,
    name: str,
    *,
    is_paused: bool,
    has_changed: bool = True,
    reason: str = "",
    old_reason: str = "",
) -> None:
    """`kind` is `queue` or `one_schedule`, as in the names of the API's actions. Without a change nothing is noted."""
    verb, area = "pause" if is_paused else "resume", f"{kind.removeprefix('one_')}s"
    old, new = {"paused": is_paused != has_changed, "reason": old_reason}, {"paused": is_paused, "reason": reason}
    if not (changes := changes_between(old, new)):
        return
    who, now_ms = command_line_user(), wall_clock_ms()
    write_command(catalog, who, f"{verb}_{kind}", f"/{area}/{name}/{verb}", now_ms, changes=changes)


def note_change(
    catalog: Catalog, /, action: str, target: str, old: Mapping[str, Any], new: Mapping[str, Any], **more: Any
) -> None:
    """`action` and `target` are those of the API. `more` are further fields of the entry."""
    changes = changes_between(old, new)
    write_command(catalog, command_line_user(), action, target, wall_clock_ms(), changes=changes, **more)


def note_reprocess(catalog: Catalog, count: int, wanted: JobFilter) -> None:
    """`count` files were enqueued again."""
    if not count:
        return
    given = conditions_of(wanted)
    given |= {name: stamp(ms) or "" for name, ms in (("since", wanted.since_ms), ("until", wanted.until_ms)) if ms}
    chosen = short(", ".join(f"{name}: {value}" for name, value in given.items()) or "all")
    note_change(catalog, "reprocess_files", "/files/reprocess", {}, {}, count=count, detail=chosen)


def note_run(catalog: Catalog, schedule: str, job_id: str) -> None:
    """A schedule was run by hand. The log of actions lets the job's timeline say who did it."""
    ActionLog(catalog, wall_clock_ms).add(JobAction.RUN, command_line_user(), [job_id])
    detail = short(f"schedule: {schedule}")
    note_change(catalog, "run_schedule", f"/schedules/{schedule}/run", {}, {}, job_id=short(job_id), detail=detail)


def conditions_of(wanted: JobFilter | None) -> dict[str, str]:
    """The conditions that are set, with the words of the API."""
    if wanted is None:
        return {}
    given = {name: getattr(wanted, name, None) for name in _CONDITIONS}
    return {"status" if name == "state" else name: str(value) for name, value in given.items() if value}
