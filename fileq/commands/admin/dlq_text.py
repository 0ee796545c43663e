"""Dead jobs as text: three lines each, so that id, file and error are whole on a narrow terminal too."""

from __future__ import annotations

from fileq.commands.admin.dlq import Answer, DeadJobs
from fileq.commands.admin.jobs import JobView
from fileq.commands.admin.looking_text import ago, error_lines
from fileq.commands.admin.stats_text import name_of
from fileq.commands.admin.text import ERROR_SHOWN, Page, cut, number, plural
from fileq.core.text import printable

_SHOWN = 20  # of the jobs that were put back or deleted


def render_dead(dead: DeadJobs, page: Page, at_ms: int) -> list[str]:
    if not dead.jobs:
        return ["no dead jobs" if not dead.total else f"none of {plural(dead.total, 'dead job')} is like that"]
    lines = [line for job in dead.jobs for line in _job_lines(job, page, at_ms)]
    more = dead.total - len(dead.jobs)
    shown = f"{len(dead.jobs)} of " if more else ""
    what_next = "'fileq show ID' tells more, 'fileq dlq retry ID' puts it back"
    return [*lines, "", f"{shown}{plural(dead.total, 'dead job')}; {what_next}"]


def _job_lines(job: JobView, page: Page, at_ms: int) -> list[str]:
    facts = f"{ago(job.ended, at_ms)} ago, {plural(job.attempts, 'attempt')}, {printable(job.queue)}"
    name = name_of(job.filepath, job.type, "") if job.is_job else f"{plural(job.filesize, 'byte')} that are no job"
    error = cut(error_lines(job.error)[0], min(page.width - 2, ERROR_SHOWN))
    return [
        f"{page.paint(printable(job.id), 'bold')}  {facts}",
        f"  {cut(name, page.width - 2, from_left=True)}",
        f"  {page.paint(error, 'red')}",
    ]


def render_answer(answer: Answer, done: str, page: Page) -> list[str]:
    lines = []
    for result in answer.results[:_SHOWN]:
        id = printable(result.id)
        if result.reason:
            lines.append(f"{id}: {page.paint(result.result, 'red')}: {result.reason}")
        else:
            lines.append(f"{id}  {cut(printable(result.filepath), max(20, page.width - len(id) - 2), from_left=True)}")
    if len(answer.results) > _SHOWN:
        lines.append(f"and {number(len(answer.results) - _SHOWN)} more")
    would = "would be " if answer.is_dry_run else ""
    return [*lines, f"{plural(answer.count, 'job')} {would}{done}"]
