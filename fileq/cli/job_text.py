"""Jobs, what is known about one, the history of a file, dead jobs and what an action did with jobs, as text."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from typing import TYPE_CHECKING

import msgspec

from fileq.cli.terminal import (
    ERROR_SHOWN,
    Cell,
    Screen,
    age,
    cut,
    moment,
    name_of,
    number,
    plural,
    record,
    short_ids,
    table,
)
from fileq.core.job import DELAYED_STATES, parse_time, split_signature
from fileq.core.outcome import CRASH, WORKER_DIED, kind_of
from fileq.core.text import printable
from fileq.core.units import short_duration
from fileq.queries.documents import AttemptDocument, JobDocument

if TYPE_CHECKING:
    from fileq.commands.untaken_files import LocalTrace
    from fileq.core.batch import BatchFacts
    from fileq.queries.dead_jobs import DeadGroup, DeadGroups, DeadJobs
    from fileq.queries.job_queries import FileTrace, VersionTrace

_OUTCOME_STYLES = {"failed": "red", "died": "red", "completed": "green", "dead": "red", "retrying": "yellow"}
_MADE_SHOWN = 20  # files or jobs that a job made
_HASH_SHOWN = 12  # hex digits
_COUNTS = ("completed", "dead", "cancelled", "deleted")
# A part of the error → what it means. The first that is found is shown.
_HINTS = (
    ("exited with status", "by os._exit() or a native library; an exception or sys.exit() would be a failed attempt"),
    ("signal SIGKILL", "from outside: by the kernel if the machine ran out of memory (see dmesg), or by a user"),
    ("signal SIGTERM", "from outside, or by the handler itself"),
    ("signal SIG", "such as a defect in a native library"),
)
STATE_STYLES = {"dead": "red", "retrying": "yellow", "deferred": "yellow", "running": "green"}


def ago(text: str | None) -> str:
    """The time since a moment, which the clock of another machine may have written."""
    then = parse_time(text or "")
    return age(time.time() - then.timestamp()) if then is not None else "?"


def job_table(jobs: Sequence[JobDocument], screen: Screen) -> list[str]:
    """One line for each job, and one for each reason why jobs are deferred. A long path is cut on the left, where it
    matters least."""
    rows: list[list[str | Cell]] = [["id", "status", "age", "file or type"]]
    short = short_ids([job.id for job in jobs])
    reasons = list(dict.fromkeys(job.deferred for job in jobs if job.deferred))
    # A number says which of several reasons it is: a column with the reason would leave no room for the file.
    labels = {reason: f"deferred ({i})" if len(reasons) > 1 else "deferred" for i, reason in enumerate(reasons, 1)}
    for job in jobs:
        state = _state_cell(job, labels.get(job.deferred or ""))
        due = parse_time(job.scheduled_at or "") if job.status in DELAYED_STATES else None
        shown = f"in {age(due.timestamp() - time.time())}" if due is not None else ago(job.created_at)
        rows.append([short[job.id], state, shown, _name_of(job)])
    return [*table(rows, screen, right=(2,)), *(f"{labels[reason]}: {printable(reason)}" for reason in reasons)]


def _name_of(job: JobDocument) -> str:
    return name_of(job.path or "", job.type, "") if job.is_job else f"{plural(job.filesize, 'byte')}, not a job"


def _deferrals(job: JobDocument) -> str:
    """How often, and when: a list of jobs does not say when."""
    if not job.deferred_count:
        return ""
    count = plural(job.deferred_count, "time")
    if job.first_deferred_at is None:
        return count
    first, last = when(job.first_deferred_at), when(job.last_deferred_at)
    return f"{count}: {first}" if job.deferred_count == 1 else f"{count}: first {first}, last {last}"


def _state_cell(job: JobDocument, label: str | None = None) -> Cell:
    return Cell(label or job.status, STATE_STYLES.get(job.status, ""))


def render_peek(found: Mapping[str, Sequence[JobDocument]], queues: Sequence[str], screen: Screen) -> list[str]:
    lines = []
    for place, jobs in found.items():
        order = "next" if place in queues or place == "scheduled" else "newest"
        title = f"{place}: {f'the {order} {len(jobs)}' if jobs else 'empty'}"
        lines += [screen.paint(title, "bold"), *(job_table(jobs, screen) if jobs else [])]
    return lines


def render_job(job: JobDocument, screen: Screen) -> list[str]:
    is_stopping = job.is_cancel_requested and job.status == "running"
    state = Cell("running, cancelling", "yellow") if is_stopping else _state_cell(job)
    facts: list[tuple[str, str | Cell]] = [
        ("id", Cell(job.id, "bold")),
        ("status", state),
        *(("waits" if i == 0 else "", line) for i, line in enumerate(_waits(job))),
        ("file", job.path or ""),
        ("moved from", job.moved_from or ""),
        ("moved to", moved_to_of(job)),
        ("type", job.type or ""),
        ("size", plural(job.filesize, "byte") if job.path or not job.is_job else ""),
        ("version", job.signature or ""),
        ("queue", job.queue),
        ("batch", job.batch_id or ""),
        ("failed attempts", _failures(job)),
        ("deaths", deaths_text(job)),
        ("created", when(job.created_at)),
        ("deadline", when(job.deadline)),
        ("deferred", _deferrals(job)),
        ("started", when(job.started_at) if job.status == "running" else ""),
        ("worker", job.worker_id or "" if job.status == "running" else ""),
        ("ended", when(job.completed_at) if job.status in ("completed", "dead", "cancelled") else ""),
        ("callback", _callback(job.batch_facts)),
        ("payload", _json(job.payload)),
        ("result", _json(job.result)),
        *made_facts(job),
    ]
    lines = record(facts, screen)
    if job.error:
        lines += [screen.paint("error", "dim"), *(f"  {screen.paint(line, 'red')}" for line in error_lines(job.error))]
        hints = (hint for part, hint in _HINTS if part in job.error and kind_of(job.error) == CRASH)
        lines += [f"  ({hint})" for hint in islice(hints, 1)]
    return [*lines, *_attempts(job, screen)]


def _callback(facts: BatchFacts | None) -> str:
    if facts is None:
        return ""
    counts = ", ".join(f"{getattr(facts, name)} {name}" for name in _COUNTS if getattr(facts, name))
    first = f"; first {facts.first_dead}: {facts.first_error}" if facts.first_dead else ""
    return f"{facts.callback} of batch {facts.id}: {counts or 'no jobs'}{first}"


def _waits(job: JobDocument) -> list[str]:
    """Until when a job waits and why, and what else keeps it from running."""
    lines = []
    if job.status in DELAYED_STATES:
        why = "the last attempt failed" if job.status == "retrying" else "scheduled for then"
        lines.append(f"until {when(job.scheduled_at)}: {printable(job.deferred or '') or why}")
    return [*lines, *job.waits_for]


def moved_to_of(job: JobDocument) -> str:
    """ "" for a job that was put back after its file had been moved: it is for the file where it is now."""
    return printable(job.moved_to) if job.moved_to and job.moved_to != job.path else ""


def _failures(job: JobDocument) -> str:
    """Of this life of the job; its history below has the attempts of all."""
    count = job.retry_count
    is_put_back = sum(attempt.outcome == "failed" for attempt in job.attempts) > count
    return f"{count}{' since the manual retry' if is_put_back else ''}" if count or is_put_back else ""


def _attempts(job: JobDocument, screen: Screen) -> list[str]:
    if not job.attempts:
        return []
    lines = ["", screen.paint("attempts", "bold")]
    if forgotten := job.attempt_count - len(job.attempts):
        lines.append(f"  the first {forgotten} are no longer kept")
    for attempt, previous in _with_previous(job.attempts):
        # The job's own error, that of the last one, was printed above.
        is_printed = attempt.error == job.error
        lines += attempt_lines(attempt, previous, screen, with_error=not is_printed)
        # Repeated failures are often the same.
        earlier = (previous.traceback, previous.output) if previous is not None else ("", "")
        if attempt.traceback not in ("", earlier[0]):
            lines += [f"     {screen.paint(line, 'dim')}" for line in error_lines(attempt.traceback)]
        if attempt.output not in ("", earlier[1]):
            lines.append(f"     {screen.paint('printed:', 'dim')}")
            lines += [f"       {line}" for line in error_lines(attempt.output)]
    return lines


def _with_previous(attempts: Sequence[AttemptDocument]) -> Iterator[tuple[AttemptDocument, AttemptDocument | None]]:
    """Each attempt with the one before it: what both have in common is printed once, with the earlier one."""
    return zip(attempts, (None, *attempts), strict=False)


def attempt_lines(
    attempt: AttemptDocument, previous: AttemptDocument | None, screen: Screen, *, with_error: bool = True
) -> list[str]:
    outcome = screen.paint(attempt.outcome, _OUTCOME_STYLES.get(attempt.outcome, ""))
    at = (attempt.started_at or attempt.ended_at or "")[:19].replace("T", " ")  # what was refused never started
    after = f"after {short_duration(attempt.duration_s)}"
    if attempt.outcome == "died" and attempt.error.startswith(WORKER_DIED):
        # The worker died at an unknown time before that.
        after = f"(detected {short_duration(attempt.duration_s)} after it started)"
    line = f"  {attempt.number}  {at}Z  {outcome} {after}"
    is_repeated = previous is not None and bool(attempt.error) and previous.error == attempt.error
    line += ", same error" if is_repeated else ""
    where = f"on {printable(attempt.worker_id)}" if attempt.worker_id else "while pending"
    lines = [line, screen.paint(f"     {where}", "dim")]
    if attempt.reason:
        lines.append(f"     {attempt.reason}")
    if attempt.error and with_error and not is_repeated:
        lines.append(f"     {error_lines(attempt.error)[0]}")
    return lines


def error_lines(error: str) -> list[str]:
    return [printable(line) for line in error.splitlines()] or [""]


def when(text: str | None) -> str:
    then = parse_time(text or "")
    if then is None:
        return ""
    since_s = time.time() - then.timestamp()
    shown = moment(int(then.timestamp() * 1000))
    return f"{shown} ({age(since_s)} ago)" if since_s >= 0 else f"{shown} (in {age(-since_s)})"


def _json(value: object) -> str:
    return "" if value is None else msgspec.json.encode(value).decode()


def render_trace(trace: LocalTrace, screen: Screen) -> list[str]:
    lines = [screen.paint(printable(trace.path), "bold")]
    if trace.missing_since:
        lines.append(screen.paint(f"missing since {when(trace.missing_since)}", "yellow"))
    if (now := trace.untaken) is not None:
        facts = f"{plural(now.size, 'byte')}, modified {moment(now.modified_ns // 1_000_000)}"
        lines.append(screen.paint(f"changed since the newest known version: {facts}", "yellow"))
        lines.append(screen.paint(f"  not enqueued: {printable(now.reason)}", "yellow"))
    if (maker := trace.made_by) is not None:
        subject = printable(maker.path or maker.type or "")
        lines.append(f"created by job {printable(maker.job_id)}{f' ({subject})' if subject else ''}")
    for version in trace.versions:
        lines += ["", *_version_lines(version, _title_of(version, trace), screen)]
        if version.job is not None and version.job.path != trace.path:
            lines.append(f"  job path: {printable(version.job.path or '')}")
    return lines


def _title_of(version: VersionTrace, trace: FileTrace) -> str:
    if version.is_in_ledger:
        return "newest version" if version.is_newest else "earlier version"
    if version.job is not None and version.job.path != trace.path:
        return "job of a file moved here"
    if version is trace.versions[0]:
        return "newest job of this file" if len(trace.versions) > 1 else "job of this file"
    job, newest = version.job, trace.versions[0].job
    is_earlier = job is not None and newest is not None and (job.created_at or "") <= (newest.created_at or "")
    return "an earlier job of this file" if is_earlier else "another job of this file"


def _version_lines(version: VersionTrace, title: str, screen: Screen) -> list[str]:
    lines = [f"{screen.paint(title, 'bold')}{_facts(version)}", f"  job {printable(version.job_id)}"]
    if version.job is None:
        return [*lines, "  ended; the record has expired (worker.history_ttl) or was deleted"]
    job = version.job
    lines.append(f"  enqueued {when(job.created_at)} in queue {printable(job.queue)}")
    for attempt, previous in _with_previous(version.job.attempts):
        lines += attempt_lines(attempt, previous, screen)
    state = screen.paint(*_state_cell(job))
    ended = f" {when(job.completed_at)}" if job.status in ("completed", "dead", "cancelled") else ""
    due = f", due {when(job.scheduled_at)}" if job.status in DELAYED_STATES else ""
    on = f" on {printable(job.worker_id or '')} since {when(job.started_at)}" if job.status == "running" else ""
    why = f": {printable(job.deferred)}" if job.deferred else ""
    lines.append(f"  {state}{ended}{due}{on}{why}")
    if job.status == "dead" and (more := _only_in_show(version.job)):
        lines.append(f"  for {more}: 'fileq show {printable(job.id)}'")
    lines += [f"  waits: {reason}" for reason in version.job.waits_for]
    if moved_to := moved_to_of(job):
        lines.append(f"  moved to {moved_to}")
    return [*lines, *(f"  {name} {value}" for name, value in made_facts(version.job, repeats_name=True))]


def _only_in_show(job: JobDocument) -> str:
    """What `fileq show` prints of the attempts and `fileq trace` does not."""
    parts = ["the traceback"] if any(attempt.traceback for attempt in job.attempts) else []
    parts += ["the handler's output"] if any(attempt.output for attempt in job.attempts) else []
    return " and ".join(parts)


def _facts(version: VersionTrace) -> str:
    if version.size is None or version.modified_ns is None:
        return ""
    parts = split_signature(version.signature or "")
    inode = f", inode {parts.inode}" if parts.inode else ""
    content = f", content {parts.content[:_HASH_SHOWN]}" if parts.content else ""
    return f": {plural(version.size, 'byte')}, modified {moment(version.modified_ns // 1_000_000)}{inode}{content}"


def made_facts(job: JobDocument, *, repeats_name: bool = False) -> Iterator[tuple[str, str]]:
    """Pairs of a name and a value. A name that repeats is empty, unless `repeats_name`."""
    if job.parent_id:
        yield "created from", f"job {printable(job.parent_id)}"
    files = [f"{printable(one.path)} ({plural(one.size, 'byte')})" for one in job.outputs]
    jobs = [f"job {printable(id)}" for id in job.follow_ups]
    lines = [*_first(files, "file"), *_first(jobs, "job")]
    for i, line in enumerate(lines):
        yield "outputs" if i == 0 or repeats_name else "", line


def _first(lines: list[str], what: str) -> list[str]:
    more = len(lines) - _MADE_SHOWN
    return [*lines[:_MADE_SHOWN], f"and {plural(more, f'more {what}', f'more {what}s')}"] if more > 0 else lines


def deaths_text(job: JobDocument) -> str:
    """How often the process that ran the job died, and what fileq does then; "" if it never did."""
    if not job.recoveries:
        return ""
    if job.status == "dead" and job.attempts and job.attempts[-1].outcome == "died":
        return f"{job.recoveries}, more than worker.max_recoveries allows"
    return f"{job.recoveries}; more than worker.max_recoveries make the job dead"


# Dead jobs as text: three lines for each job, so that id, file and error fit on a narrow terminal. If its file was
# moved, further lines say where it came from and where it is.


def render_dead(dead: DeadJobs, screen: Screen) -> list[str]:
    if not dead.total:
        return ["no dead jobs"]
    if not dead.jobs:
        one = "the only dead job does not match"
        return [one if dead.total == 1 else f"none of the {number(dead.total)} dead jobs matches"]
    short = short_ids([job.id for job in dead.jobs])
    lines = [line for job in dead.jobs for line in _job_lines(job, short[job.id], screen)]
    more = dead.total - len(dead.jobs)
    shown = f"{len(dead.jobs)} of " if more else ""
    next_steps = "details: 'fileq show ID'; retry: 'fileq dlq retry ID'"
    return [*lines, "", f"{shown}{plural(dead.total, 'dead job')}; {next_steps}"]


def _job_lines(job: JobDocument, id: str, screen: Screen) -> list[str]:
    facts = f"{ago(job.completed_at)} ago, {plural(job.attempt_count, 'attempt')}, {printable(job.queue)}"
    error = cut(error_lines(job.error or "")[0], min(screen.width - 2, ERROR_SHOWN))
    moved_to, moved_from = moved_to_of(job), printable(job.moved_from or "")
    return [
        f"{screen.paint(printable(id), 'bold')}  {facts}",
        f"  {cut(_name_of(job), screen.width - 2, from_left=True)}",
        *([f"  moved to {cut(moved_to, screen.width - 11, from_left=True)}"] if moved_to else []),
        *([f"  moved from {cut(moved_from, screen.width - 13, from_left=True)}"] if moved_from else []),
        f"  {screen.paint(error, 'red')}",
    ]


def render_groups(found: DeadGroups, screen: Screen) -> list[str]:
    if not found.groups:
        return ["no dead jobs"]
    lines = [line for group in found.groups for line in _group_lines(group, screen)]
    shown = f"{len(found.groups)} of " if len(found.groups) < found.group_count else ""
    newest = f"the newest {number(found.scanned)} of " if found.is_partial else ""
    looked = newest + plural(found.total if found.is_partial else found.scanned, "dead job")
    next_step = "; retry a group: 'fileq dlq retry --all --fingerprint HEX'" if found.by == "fingerprint" else ""
    return [*lines, "", f"{shown}{plural(found.group_count, 'group')}, {looked}{next_step}"]


def _group_lines(group: DeadGroup, screen: Screen) -> list[str]:
    times = f"first {ago(group.first)} ago, last {ago(group.last)} ago"
    places = [f"{printable(one.name)} ({number(one.count)})" for one in (*group.directories, *group.extensions)]
    sample = f"{printable(group.sample_id)}  {name_of(group.sample_path, group.type, '')}"
    return [
        f"{screen.paint(printable(group.key) or '(none)', 'bold')}  {plural(group.count, 'job')}, {times}",
        f"  {screen.paint(cut(error_lines(group.error)[0], min(screen.width - 2, ERROR_SHOWN)), 'red')}",
        *([f"  {cut(', '.join(places), screen.width - 2)}"] if places else []),
        f"  for example {cut(sample, screen.width - 14)}",
    ]
