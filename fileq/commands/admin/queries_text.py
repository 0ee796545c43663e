"""Jobs, their histories and the history of a file as text."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import zip_longest

from fileq.commands.admin.control import Cancellation, JobCancellation, describe
from fileq.commands.admin.crash_text import crash_hint, deaths_text
from fileq.commands.admin.formatting import ENDLESS, Cell, Screen, age, moment, number, plural, table
from fileq.commands.admin.made_text import made_facts, made_from
from fileq.commands.admin.stats_text import name_of
from fileq.core.batch import BatchFacts
from fileq.core.job import parse_time, split_signature
from fileq.core.outcome import WORKER_DIED
from fileq.core.text import printable
from fileq.core.units import short_duration
from fileq.queries.job_queries import FileTrace, VersionTrace
from fileq.queries.job_summary import AttemptSummary, JobHistory, JobSummary, short_ids

_OUTCOME_STYLES = {"failed": "red", "died": "red", "completed": "green", "dead": "red", "retrying": "yellow"}
_CANCELLED_SHOWN = 20  # jobs that the text of `cancel --all` names
_HASH_SHOWN = 12  # hex digits
_COUNTS = ("completed", "dead", "cancelled", "deleted")
STATE_STYLES = {"dead": "red", "retrying": "yellow", "running": "green"}


def ago(text: str | None, at_ms: int) -> str:
    """The time since a moment, which the clock of another machine may have written."""
    then = parse_time(text) if text else None
    return age(at_ms / 1000 - then.timestamp()) if then is not None else "?"


def job_table(jobs: Sequence[JobSummary], screen: Screen, at_ms: int, *, with_state: bool = True) -> list[str]:
    """One line for each job, and one for each reason why jobs are deferred. A long path is cut on the left, where it
    matters least."""
    header = ["id", *(["state"] if with_state else []), "age", "file or type"]
    rows: list[list[str | Cell]] = [[*header]]
    short = short_ids([job.id for job in jobs])
    reasons = list(dict.fromkeys(job.deferred for job in jobs if job.deferred))
    # A number says which of several reasons it is: a column with the reason would leave no room for the file.
    labels = {reason: f"deferred {i}" if len(reasons) > 1 else "deferred" for i, reason in enumerate(reasons, 1)}
    for job in jobs:
        state = [_state_cell(job, labels.get(job.deferred, ""))] if with_state else []
        name = name_of(job.filepath, job.type, "") if job.is_job else f"{plural(job.filesize, 'byte')}, not a job"
        rows.append([printable(short[job.id]), *state, _age_or_due(job, at_ms), name])
    notes = [f"{labels[reason]}: {printable(reason)}" for reason in reasons if with_state]
    return [*table(rows, screen, right=(2,) if with_state else (1,)), *notes]


def _deferrals(job: JobSummary, at_ms: int) -> str:
    """How often, and when if that was recorded."""
    if not job.deferred_count:
        return ""
    count = plural(job.deferred_count, "time")
    if job.first_deferred is None:
        return count
    first, last = when(job.first_deferred, at_ms), when(job.last_deferred, at_ms)
    return f"{count}: {first}" if job.deferred_count == 1 else f"{count}: first {first}, last {last}"


def _state_cell(job: JobSummary, label: str = "deferred") -> Cell:
    """The state. A retrying job that waits without having failed is `retrying (deferred)`."""
    return Cell(f"{job.state} ({label})" if job.deferred else job.state, STATE_STYLES.get(job.state, ""))


def _age_or_due(job: JobSummary, at_ms: int) -> str:
    due = parse_time(job.due) if job.due and job.state in ("scheduled", "retrying") else None
    return f"in {age(due.timestamp() - at_ms / 1000)}" if due is not None else ago(job.created, at_ms)


def render_peek(
    found: Mapping[str, Sequence[JobSummary]], queues: Sequence[str], screen: Screen, at_ms: int
) -> list[str]:
    lines = []
    for place, jobs in found.items():
        order = "next" if place in queues or place == "scheduled" else "newest"
        title = f"{place}: {f'the {order} {len(jobs)}' if jobs else 'empty'}"
        lines += [screen.paint(title, "bold"), *(job_table(jobs, screen, at_ms) if jobs else [])]
    return lines


def render_history(history: JobHistory, screen: Screen, at_ms: int) -> list[str]:
    job = history.job
    is_stopping = history.is_cancel_requested and job.state == "running"
    state = Cell("running, cancel requested", "yellow") if is_stopping else _state_cell(job)
    facts: list[tuple[str, str | Cell]] = [
        ("id", Cell(printable(job.id), "bold")),
        ("state", state),
        *(("waits" if i == 0 else "", line) for i, line in enumerate(_waits(history, at_ms))),
        ("file", printable(job.filepath)),
        ("came from", printable(job.moved_from)),
        ("moved to", moved_to_of(job)),
        ("type", printable(job.type or "")),
        ("size", plural(job.filesize, "byte") if job.filepath or not job.is_job else ""),
        ("version", printable(history.signature or "")),
        ("queue", printable(job.queue)),
        ("batch", printable(history.batch)),
        ("failed attempts", _failures(history)),
        ("deaths", deaths_text(history)),
        ("created", when(job.created, at_ms)),
        ("deferred", _deferrals(job, at_ms)),
        ("started", when(job.started, at_ms) if job.state == "running" else ""),
        ("worker", printable(job.worker) if job.state == "running" else ""),
        ("ended", when(job.ended, at_ms) if job.state in ("completed", "dead", "cancelled") else ""),
        ("callback", _callback(history.batch_facts)),
        ("payload", _json(history.payload)),
        ("result", _json(history.result)),
        *made_facts(history),
    ]
    rows = [(Cell(name, "dim"), value) for name, value in facts if value not in ("", Cell(""))]
    # Nothing is cut here, so that values can be copied.
    lines = table(rows, screen._replace(width=ENDLESS), has_header=False)
    if job.error and job.state != "completed":
        lines += [screen.paint("error", "dim"), *(f"  {screen.paint(line, 'red')}" for line in error_lines(job.error))]
        lines += [f"  {line}" for line in crash_hint(job.error)]
    return [*lines, *_attempts(history, screen)]


def _callback(facts: BatchFacts | None) -> str:
    if facts is None:
        return ""
    counts = ", ".join(f"{getattr(facts, name)} {name}" for name in _COUNTS if getattr(facts, name))
    first = f"; first {printable(facts.first_dead)}: {printable(facts.first_error)}" if facts.first_dead else ""
    return f"{facts.callback} of batch {printable(facts.id)}: {counts or 'no jobs'}{first}"


def _waits(history: JobHistory, at_ms: int) -> list[str]:
    """Until when a job waits and why, and what else keeps it from running."""
    job, lines = history.job, []
    if job.state in ("scheduled", "retrying"):
        why = "its last attempt failed" if job.state == "retrying" else "it was enqueued for that time"
        lines.append(f"until {when(job.due, at_ms)}: {printable(job.deferred) or why}")
    return [*lines, *history.waits_for]


def moved_to_of(job: JobSummary) -> str:
    """ "" for a job that was put back after its file had been moved: it is for the file where it is now."""
    return printable(job.moved_to) if job.moved_to != job.filepath else ""


def _failures(history: JobHistory) -> str:
    """Of this life of the job; its history below has the attempts of all."""
    count = history.job.retries
    is_put_back = sum(attempt.outcome == "failed" for attempt in history.attempts) > count
    return f"{count}{', since it was put back' if is_put_back else ''}" if count or is_put_back else ""


def _attempts(history: JobHistory, screen: Screen) -> list[str]:
    if not history.attempts:
        return []
    lines = ["", screen.paint("attempts", "bold")]
    if history.attempts_forgotten:
        lines.append(f"  the first {history.attempts_forgotten} are no longer recorded")
    for attempt, following in _with_next(history.attempts):
        # The error of the last one is the job's own and was printed above.
        is_printed = following is None and history.job.state != "completed"
        lines += attempt_lines(attempt, following, screen, with_error=not is_printed)
        if following is None or following.traceback != attempt.traceback:  # repeated failures are often the same
            lines += [f"     {screen.paint(line, 'dim')}" for line in _block(attempt.traceback)]
        if attempt.output and (following is None or following.output != attempt.output):
            lines.append(f"     {screen.paint('printed:', 'dim')}")
            lines += [f"       {line}" for line in _block(attempt.output)]
    return lines


def _with_next(attempts: Sequence[AttemptSummary]) -> Iterator[tuple[AttemptSummary, AttemptSummary | None]]:
    """Each attempt with the next one: what two of them have in common is printed once, with the later one."""
    return zip_longest(attempts, attempts[1:])


def _block(text: str) -> list[str]:
    return [printable(line) for line in text.splitlines()]


def attempt_lines(
    attempt: AttemptSummary, following: AttemptSummary | None, screen: Screen, *, with_error: bool = True
) -> list[str]:
    outcome = screen.paint(attempt.outcome, _OUTCOME_STYLES.get(attempt.outcome, ""))
    started = (attempt.started or "")[:19].replace("T", " ")
    after = f"after {short_duration(attempt.duration_s)}"
    if attempt.outcome == "died" and attempt.error.startswith(WORKER_DIED):
        # The worker died at an unknown time before that.
        after = f"(found {short_duration(attempt.duration_s)} after its start)"
    line = f"  {attempt.number}  {started}Z  {outcome} {after}"
    is_repeated = following is not None and bool(attempt.error) and following.error == attempt.error
    line += ", the same error as the next attempt" if is_repeated else ""
    where = f"on {printable(attempt.worker)}" if attempt.worker else "while it waited"
    lines = [line, screen.paint(f"     {where}", "dim")]
    if attempt.error and with_error and not is_repeated:
        lines.append(f"     {error_lines(attempt.error)[0]}")
    return lines


def error_lines(error: str) -> list[str]:
    return [printable(line) for line in error.splitlines()] or [""]


def when(text: str | None, at_ms: int) -> str:
    then = parse_time(text) if text else None
    if then is None:
        return ""
    since_s = at_ms / 1000 - then.timestamp()
    shown = moment(int(then.timestamp() * 1000))
    return f"{shown} ({age(since_s)} ago)" if since_s >= 0 else f"{shown} (in {age(-since_s)})"


def _json(value: object) -> str:
    import msgspec

    return "" if value is None else printable(msgspec.json.encode(value).decode())


def render_trace(trace: FileTrace, screen: Screen, at_ms: int) -> list[str]:
    lines = [screen.paint(printable(trace.filepath), "bold")]
    if trace.missing_since_ms:
        lines.append(screen.paint(f"missing since {moment(trace.missing_since_ms)}", "yellow"))
    if trace.made_by is not None:
        lines.append(made_from(trace.made_by))
    for version in trace.versions:
        lines += ["", *_version_lines(version, _title_of(version, trace), screen, at_ms)]
        if version.job is not None and version.job.job.filepath != trace.filepath:
            lines.append(f"  path of its job: {printable(version.job.job.filepath)}")
    return lines


def _title_of(version: VersionTrace, trace: FileTrace) -> str:
    if version.is_in_ledger:
        return "newest version" if version.is_newest else "earlier version"
    if version.job is not None and version.job.job.filepath != trace.filepath:
        return "job of a file that was moved here"
    if version is trace.versions[0]:
        return "newest job of this file" if len(trace.versions) > 1 else "job of this file"
    newest = trace.versions[0].job
    is_earlier = version.job is not None and newest is not None and _created(version.job) <= _created(newest)
    return "an earlier job of this file" if is_earlier else "another job of this file"


def _created(history: JobHistory) -> str:
    return history.job.created or ""


def _version_lines(version: VersionTrace, title: str, screen: Screen, at_ms: int) -> list[str]:
    lines = [f"{screen.paint(title, 'bold')}{_facts(version)}", f"  job {printable(version.job_id)}"]
    if version.job is None:
        return [*lines, "  ended; its record has expired (worker.history_ttl)"]
    job = version.job.job
    lines.append(f"  enqueued {when(job.created, at_ms)} in queue {printable(job.queue)}")
    for attempt, following in _with_next(version.job.attempts):
        lines += attempt_lines(attempt, following, screen)
    state = screen.paint(*_state_cell(job))
    ended = f" {when(job.ended, at_ms)}" if job.state in ("completed", "dead", "cancelled") else ""
    due = f", due {when(job.due, at_ms)}" if job.state in ("scheduled", "retrying") else ""
    on = f" on {printable(job.worker)} since {when(job.started, at_ms)}" if job.state == "running" else ""
    why = f": {printable(job.deferred)}" if job.deferred else ""
    lines.append(f"  now {state}{ended}{due}{on}{why}")
    if job.state == "dead" and (more := _only_in_show(version.job)):
        lines.append(f"  'fileq show {printable(job.id)}' has {more}")
    lines += [f"  waits: {obstacle}" for obstacle in version.job.waits_for]
    if moved_to := moved_to_of(job):
        lines.append(f"  moved to {moved_to}")
    return [*lines, *(f"  {name} {value}" for name, value in made_facts(version.job, repeats_name=True))]


def _only_in_show(history: JobHistory) -> str:
    """What `fileq show` prints of the attempts and `fileq trace` does not."""
    parts = ["the traceback"] if any(attempt.traceback for attempt in history.attempts) else []
    parts += ["what the handler printed"] if any(attempt.output for attempt in history.attempts) else []
    return " and ".join(parts)


def _facts(version: VersionTrace) -> str:
    if version.size is None or version.modified_ns is None:
        return ""
    parts = split_signature(version.signature or "")
    inode = f", inode {parts.inode}" if parts.inode else ""
    content = f", content {parts.content[:_HASH_SHOWN]}" if parts.content else ""
    return f": {plural(version.size, 'byte')}, modified {moment(version.modified_ns // 1_000_000)}{inode}{content}"


def render_cancellation(done: Cancellation, *, has_total: bool) -> list[str]:
    """One line for each job; with `has_total` for the first ones, and the number of all."""
    shown = done.results[:_CANCELLED_SHOWN] if has_total else done.results
    ids = short_ids([result.id for result in shown]) if has_total else {result.id: result.id for result in shown}
    lines = [f"{printable(ids[result.id])}: {describe(result, done.within_s)}{_file_of(result)}" for result in shown]
    if not has_total:
        return lines
    if done.count > len(shown):
        lines.append(f"and {number(done.count - len(shown))} more")
    return [*lines, f"{plural(done.count, 'job')} {'would be ' if done.is_dry_run else ''}cancelled"]


def _file_of(result: JobCancellation) -> str:
    return f"  {printable(result.filepath)}" if result.filepath else ""
