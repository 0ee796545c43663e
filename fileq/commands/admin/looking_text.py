"""Jobs and their histories as text."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime

from fileq.commands.admin.jobs import AttemptView, JobHistory, JobView
from fileq.commands.admin.looking import FileTrace, VersionTrace
from fileq.commands.admin.stats_text import name_of
from fileq.commands.admin.text import ENDLESS, Cell, Page, age, moment, plural, table
from fileq.core.job import parse_time
from fileq.core.text import printable

_OUTCOMES = {"failed": "red", "died": "red", "completed": "green", "dead": "red", "retrying": "yellow"}
STATE_STYLES = {"dead": "red", "retrying": "yellow", "running": "green"}


def now_ms() -> int:
    return int(datetime.now(UTC).timestamp() * 1000)


def ago(text: str | None, at_ms: int) -> str:
    """How long since a moment that another machine's clock may have written."""
    then = parse_time(text) if text else None
    return age(at_ms / 1000 - then.timestamp()) if then is not None else "?"


def job_table(jobs: Sequence[JobView], page: Page, at_ms: int, *, with_state: bool = True) -> list[str]:
    """A line a job; the file's name gives way on the left, where it says least."""
    header = ["id", *(["state"] if with_state else []), "age", "file or type"]
    rows: list[list[str | Cell]] = [[*header]]
    for job in jobs:
        state = [Cell(job.state, STATE_STYLES.get(job.state, ""))] if with_state else []
        name = name_of(job.filepath, job.type, "") if job.is_job else f"{plural(job.filesize, 'byte')}, no job"
        rows.append([printable(job.id), *state, _age_or_due(job, at_ms), name])
    return table(rows, page, right=(2,) if with_state else (1,))


def _age_or_due(job: JobView, at_ms: int) -> str:
    due = parse_time(job.due) if job.due and job.state in ("scheduled", "retrying") else None
    return f"in {age(due.timestamp() - at_ms / 1000)}" if due is not None else ago(job.created, at_ms)


def render_history(told: JobHistory, page: Page, at_ms: int) -> list[str]:
    job = told.job
    facts: list[tuple[str, str | Cell]] = [
        ("id", Cell(printable(job.id), "bold")),
        ("state", Cell(job.state, STATE_STYLES.get(job.state, "")))
        if not told.is_cancel_requested or job.state != "running"
        else ("state", Cell("running, to be cancelled", "yellow")),
        ("file", printable(job.filepath)),
        ("type", printable(job.type or "")),
        ("size", plural(job.filesize, "byte") if job.filepath or not job.is_job else ""),
        ("version", printable(told.signature or "")),
        ("queue", printable(job.queue)),
        ("retries", str(job.retries) if job.is_job else ""),
        ("recoveries", str(job.recoveries) if job.recoveries else ""),
        ("created", _when(job.created, at_ms)),
        ("due", _when(job.due, at_ms) if job.state in ("scheduled", "retrying") else ""),
        ("started", _when(job.started, at_ms) if job.state == "running" else ""),
        ("worker", printable(job.worker) if job.state == "running" else ""),
        ("ended", _when(job.ended, at_ms) if job.state in ("completed", "dead", "cancelled") else ""),
        ("result", _json(told.result)),
    ]
    rows = [(Cell(name, "dim"), value) for name, value in facts if value not in ("", Cell(""))]
    # Nothing is cut here: this is where people copy from.
    lines = table(rows, page._replace(width=ENDLESS), has_header=False)
    if job.error and job.state != "completed":
        lines += [page.paint("error", "dim"), *(f"  {page.paint(line, 'red')}" for line in error_lines(job.error))]
    return [*lines, *_attempts(told, page)]


def _attempts(told: JobHistory, page: Page) -> list[str]:
    if not told.attempts:
        return []
    lines = ["", page.paint("attempts", "bold")]
    if told.attempts_forgotten:
        lines.append(f"  the first {told.attempts_forgotten} are forgotten")
    for attempt in told.attempts:
        lines += attempt_lines(attempt, page, last=attempt is told.attempts[-1] and told.job.state != "completed")
    return lines


def attempt_lines(attempt: AttemptView, page: Page, *, last: bool = False) -> list[str]:
    outcome = page.paint(attempt.outcome, _OUTCOMES.get(attempt.outcome, ""))
    started = (attempt.started or "")[:19].replace("T", " ")
    line = f"  {attempt.number}  {started}Z  {outcome} after {seconds(attempt.duration_s)}"
    lines = [line, page.paint(f"     on {printable(attempt.worker)}", "dim")]
    if attempt.error and not last:
        lines.append(f"     {error_lines(attempt.error)[0]}")
    return lines


def seconds(duration_s: float) -> str:
    if duration_s >= 60:
        return age(duration_s)
    return f"{duration_s:.1f}s" if duration_s >= 1 else f"{duration_s * 1000:.0f}ms"


def error_lines(error: str) -> list[str]:
    return [printable(line) for line in error.splitlines()] or [""]


def _when(text: str | None, at_ms: int) -> str:
    then = parse_time(text) if text else None
    if then is None:
        return ""
    away_s = at_ms / 1000 - then.timestamp()
    shown = moment(int(then.timestamp() * 1000))
    return f"{shown} ({age(away_s)} ago)" if away_s >= 0 else f"{shown} (in {age(-away_s)})"


def _json(value: object) -> str:
    import msgspec

    return "" if value is None else printable(msgspec.json.encode(value).decode())


def render_trace(told: FileTrace, page: Page, at_ms: int) -> list[str]:
    lines = [page.paint(printable(told.filepath), "bold")]
    if told.missing_since_ms:
        lines.append(page.paint(f"missing since {moment(told.missing_since_ms)}", "yellow"))
    for version in told.versions:
        lines += ["", *_version_lines(version, page, at_ms)]
    return lines


def _version_lines(version: VersionTrace, page: Page, at_ms: int) -> list[str]:
    what = "newest version" if version.is_newest else "earlier version" if version.is_in_ledger else "enqueued apart"
    lines = [f"{page.paint(what, 'bold')}{_facts(version)}", f"  job {printable(version.job_id)}"]
    if version.job is None:
        return [*lines, "  ended; its history has expired (worker.history_ttl)"]
    job = version.job.job
    lines.append(f"  enqueued {_when(job.created, at_ms)} to {printable(job.queue)}")
    for attempt in version.job.attempts:
        lines += attempt_lines(attempt, page)
    state = page.paint(job.state, STATE_STYLES.get(job.state, ""))
    ended = f" {_when(job.ended, at_ms)}" if job.state in ("completed", "dead", "cancelled") else ""
    due = f", due {_when(job.due, at_ms)}" if job.state in ("scheduled", "retrying") else ""
    on = f" on {printable(job.worker)} since {_when(job.started, at_ms)}" if job.state == "running" else ""
    lines.append(f"  now {state}{ended}{due}{on}")
    return lines


def _facts(version: VersionTrace) -> str:
    if version.size is None or version.modified_ns is None:
        return ""
    return f": {plural(version.size, 'byte')}, modified {moment(version.modified_ns // 1_000_000)}"
