"""Dead jobs as text: three lines for each job, so that id, file and error fit on a narrow terminal. If its file was
moved, further lines say where it came from and where it is."""

from __future__ import annotations

from fileq.commands.admin.dlq import DeadJobResult, DeadJobs, DlqReport
from fileq.commands.admin.formatting import ERROR_SHOWN, Screen, cut, number, plural
from fileq.commands.admin.queries_text import ago, error_lines, moved_to_of
from fileq.commands.admin.stats_text import name_of
from fileq.core.text import printable
from fileq.queries.dead_jobs import DeadGroup, DeadGroups
from fileq.queries.job_summary import JobSummary, short_ids

_SHOWN = 20  # jobs named in a report


def render_dead(dead: DeadJobs, screen: Screen, at_ms: int) -> list[str]:
    if not dead.jobs:
        return ["no dead jobs" if not dead.total else _none_matches(dead.total)]
    short = short_ids([job.id for job in dead.jobs])
    lines = [line for job in dead.jobs for line in _job_lines(job, short[job.id], screen, at_ms)]
    more = dead.total - len(dead.jobs)
    shown = f"{len(dead.jobs)} of " if more else ""
    next_steps = "'fileq show ID' for details, 'fileq dlq retry ID' to retry"
    return [*lines, "", f"{shown}{plural(dead.total, 'dead job')}; {next_steps}"]


def _none_matches(total: int) -> str:
    return "the only dead job does not match" if total == 1 else f"none of the {number(total)} dead jobs matches"


def _job_lines(job: JobSummary, id: str, screen: Screen, at_ms: int) -> list[str]:
    facts = f"{ago(job.ended, at_ms)} ago, {plural(job.attempts, 'attempt')}, {printable(job.queue)}"
    name = name_of(job.filepath, job.type, "") if job.is_job else f"{plural(job.filesize, 'byte')}, not a job"
    error = cut(error_lines(job.error)[0], min(screen.width - 2, ERROR_SHOWN))
    return [
        f"{screen.paint(printable(id), 'bold')}  {facts}",
        f"  {cut(name, screen.width - 2, from_left=True)}",
        *([f"  moved to {cut(moved_to, screen.width - 11, from_left=True)}"] if (moved_to := moved_to_of(job)) else []),
        *(
            [f"  came from {cut(printable(job.moved_from), screen.width - 12, from_left=True)}"]
            if job.moved_from
            else []
        ),
        f"  {screen.paint(error, 'red')}",
    ]


def render_groups(found: DeadGroups, screen: Screen, at_ms: int) -> list[str]:
    if not found.groups:
        return ["no dead jobs"]
    lines = [line for group in found.groups for line in _group_lines(group, screen, at_ms)]
    shown = f"{len(found.groups)} of " if len(found.groups) < found.group_count else ""
    looked = (
        f"the newest {number(found.scanned)} of {number(found.total)}" if found.is_partial else number(found.scanned)
    )
    next_step = "; 'fileq dlq retry --all --fingerprint HEX' to retry a group" if found.by == "fingerprint" else ""
    return [*lines, "", f"{shown}{plural(found.group_count, 'group')}, {looked} dead jobs{next_step}"]


def _group_lines(group: DeadGroup, screen: Screen, at_ms: int) -> list[str]:
    times = f"first {ago(group.first, at_ms)} ago, last {ago(group.last, at_ms)} ago"
    places = [f"{printable(one.name)} ({number(one.count)})" for one in (*group.directories, *group.extensions)]
    sample = f"{printable(group.sample_id)}  {name_of(group.sample_path, group.type, '')}"
    return [
        f"{screen.paint(printable(group.key) or '(none)', 'bold')}  {plural(group.count, 'job')}, {times}",
        f"  {screen.paint(cut(error_lines(group.error)[0], min(screen.width - 2, ERROR_SHOWN)), 'red')}",
        *([f"  {cut(', '.join(places), screen.width - 2)}"] if places else []),
        f"  for example {cut(sample, screen.width - 14)}",
    ]


def render_report(report: DlqReport, verb: str, screen: Screen) -> list[str]:
    lines = []
    short = short_ids([result.id for result in report.results[:_SHOWN]])
    for result in report.results[:_SHOWN]:
        id = printable(short[result.id])
        if result.reason:
            lines.append(f"{id}: {screen.paint(result.result, 'red')}: {result.reason}")
        else:
            path = cut(printable(result.filepath), max(20, screen.width - len(id) - 2), from_left=True)
            lines.append(f"{_would(result)}{id}  {path}")
    if len(report.results) > _SHOWN:
        lines.append(f"and {number(len(report.results) - _SHOWN)} more")
    would = "would be " if report.is_dry_run else ""
    return [*lines, f"{plural(report.count, 'job')} {would}{verb}"]


def _would(result: DeadJobResult) -> str:
    """What a dry run would do with this job: "would retry ", "would delete "; else ""."""
    return f"{result.result.replace('_', ' ')} " if result.result.startswith("would_") else ""
