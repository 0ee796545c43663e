"""`fileq admin reprocess|fsck`: enqueue known files again, check the broker's consistency and repair it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fileq.cli.arguments import APP_DIR, DRY_RUN, ENDED, argument, check_filtered, check_named, filter_of, filters
from fileq.cli.command import Invocation, command, declared
from fileq.cli.terminal import Screen, number, plural, screen_of_stdout
from fileq.core.job import State
from fileq.core.text import printable

if TYPE_CHECKING:
    from fileq.actions.reprocess import ReprocessReport
    from fileq.commands.admin.fsck.report import Balance, Report

_SHOWN = 20  # files that the text of a dry run names; of each kind of problem


@command(
    "admin reprocess",
    "enqueue known files again",
    argument("--all", action="store_true", help="all known files; required if no filter is given"),
    DRY_RUN,
    filters(time="files modified", states=ENDED, has_batch=False),
    json_fields=declared("fileq.actions.reprocess:ReprocessReport"),
    only_confirms=True,
)
def _reprocess(invocation: Invocation) -> int:
    """Enqueues the newest known version of each file again, whether its last job was completed or is dead; for example,
    after you have fixed a handler. Skips and reports files that no longer exist, and files whose last job is
    unfinished. A filter or --all is required.

    --match, --since and --until apply to the files; --status, --type, --error and --queue apply to the last job of each
    file. A job whose record has expired (worker.history_ttl) matches none of these. A pattern with a slash also matches
    the path that worker.after moved a file to, until the record of its job expires.

    $ fileq reprocess --match '*.pdf' --since 2h --dry-run  # show which files would be enqueued
    $ fileq reprocess --status completed --queue high  # files whose last job was completed in this queue
    $ fileq reprocess --match '/srv/inbox/2026/**' --since 2026-11-01  # all files of a directory modified since then
    $ fileq reprocess --all --dry-run  # show that every known file would be enqueued"""
    from fileq.actions.reprocess import reprocess
    from fileq.commands.action_log import note_reprocess

    options, config = invocation.options, invocation.config
    wanted = filter_of(options, config.worker.priorities)
    check_filtered(options, wanted, "fileq admin reprocess", "files")
    why = "a file is enqueued again only after its last job has ended"
    wanted.states((State.COMPLETED, State.DEAD, State.CANCELLED), why)
    report = reprocess(invocation.broker(), config, wanted=wanted, is_dry_run=options.dry_run)
    check_named(invocation, report.enqueued + report.missing + report.unfinished)
    if not options.dry_run:
        invocation.note(note_reprocess, report.enqueued, wanted)
    if report.enqueued:
        invocation.note_stale_workers()
    return invocation.answer(report, lambda: render_reprocess(report))


@command(
    "admin fsck",
    "prove that no job was lost, or repair",
    argument("--repair", action="store_true", help="repair what can be repaired"),
    APP_DIR,
    json_fields=declared("fileq.commands.admin.fsck.report:Report"),
)
def _fsck(invocation: Invocation) -> int:
    """Proves, while workers are running, that every job that entered the broker is accounted for: enqueued + adopted =
    pending + scheduled + retrying + deferred + running + dead + completed + cancelled + deleted. Also checks that
    lists, records, slots and counters agree. Every problem is checked twice before it is reported, so a check that
    finds one takes a few seconds. Exit code 1 if there is a problem.

    With --repair: jobs of dead slots return to their queues; jobs that are missing from the list that their record
    names are restored; jobs without a record get one; files whose job left no trace are enqueued again; any remaining
    difference is counted as deleted or adopted. Each repair is one atomic step that checks again first. The command can
    be interrupted and repeated while workers are running. It lists its repairs. Exit code 0 if no problem remains.

    $ fileq fsck  # is anything lost?
    $ fileq fsck --repair  # repair it"""
    from fileq.commands.admin.fsck.check import fsck

    options = invocation.options
    report = fsck(invocation.broker(), invocation.config, is_repairing=options.repair, app_dir=options.app_dir)
    return invocation.answer(report, lambda: render_fsck(report, screen_of_stdout()), 0 if report.is_clean else 1)


def render_reprocess(report: ReprocessReport) -> list[str]:
    from fileq.actions.reprocess import WOULD_ENQUEUE

    lines = [f"missing: {printable(file.path)}" for file in report.files if file.result == "missing"]
    planned = [file for file in report.files if file.result == WOULD_ENQUEUE]
    lines += [f"would enqueue {printable(file.path)}" for file in planned[:_SHOWN]]
    if report.is_dry_run and report.enqueued > _SHOWN:
        lines.append(f"and {number(report.enqueued - _SHOWN)} more")
    would = "would be " if report.is_dry_run else ""
    skipped = f"; {plural(report.missing, 'file')} missing" if report.missing else ""
    skipped += f"; {plural(report.unfinished, 'file')} skipped, still unfinished" if report.unfinished else ""
    return [*lines, f"{plural(report.enqueued, 'file')} {would}enqueued again{skipped}"]


def render_fsck(report: Report, screen: Screen) -> list[str]:
    lines = [*_balance_lines(report.balance, screen), ""]
    if report.repairs:
        lines += [screen.paint("repairs", "bold")]
        for repair in report.repairs[:_SHOWN]:
            lines.append(f"  {repair.action} {printable(repair.id)}{': ' if repair.detail else ''}{repair.detail}")
        lines += _more(len(report.repairs), screen)
        lines.append("")
    for problem in report.problems[:_SHOWN]:
        lines.append(f"{screen.paint('problem', 'red')}: {problem.subject}: {problem.describe()}")
        if problem.path:
            lines.append(f"         {printable(problem.path)}")
    lines += _more(report.problem_count, screen)
    lines += [f"copies: job {printable(c.id)} {c.count}×; each will run" for c in report.duplicates[:_SHOWN]]
    lines += _more(len(report.duplicates), screen)
    if report.undecodable:
        undecodable = plural(report.undecodable, "list element is not a job", "list elements are not jobs")
        lines.append(f"note: {undecodable}; see 'fileq dlq list'")
    return [*lines, _verdict(report, screen)]


def _more(count: int, screen: Screen) -> list[str]:
    return [screen.paint(f"  and {number(count - _SHOWN)} more; --json lists them", "dim")] if count > _SHOWN else []


def _balance_lines(balance: Balance, screen: Screen) -> list[str]:
    left = balance.produced + balance.adopted
    names = ("pending", "scheduled", "running", "dead", "completed", "cancelled", "deleted")
    words = {"scheduled": "scheduled, retrying or deferred"}
    parts = [(getattr(balance, name), words.get(name, name)) for name in names]
    right = sum(count for count, _ in parts)
    lines = [f"{number(balance.produced)} enqueued + {number(balance.adopted)} adopted = {number(left)}"]
    line = f"{number(right)} ="
    for i, (count, name) in enumerate(parts):
        part = f" {'+ ' if i else ''}{number(count)} {name}"
        if len(line) + len(part) > min(screen.width, 80):
            lines.append(line)
            line = " " * 4
        line += part
    lines.append(line)
    if balance.unclaimed and balance.is_exact:
        lines.append(f"pending includes {number(balance.unclaimed)} pushed by other programs and not claimed yet")
    if balance.excess > 0:
        missing = plural(balance.excess, "job")
        lines.append(screen.paint(f"{missing} missing: entered the broker, not accounted for", "red"))
    elif balance.excess < 0:
        lines.append(screen.paint(f"{plural(-balance.excess, 'job')} surplus: more than entered the broker", "red"))
    return lines


def _verdict(report: Report, screen: Screen) -> str:
    batches = f", {plural(report.batches, 'batch', 'batches')}" if report.batches else ""
    checked = f"{plural(report.elements, 'element')}, {plural(report.records, 'record')}"
    checked += f", {plural(report.slots, 'slot')}{batches}"
    if report.is_clean:
        inexact = "" if report.balance.is_exact else "; too busy to count the jobs of other programs"
        return screen.paint(f"clean: checked {checked}{inexact}", "green")
    advice = "some problems could not be repaired" if report.is_repair else "to repair: 'fileq fsck --repair'"
    return screen.paint(f"not clean; {advice} (checked {checked})", "red")
