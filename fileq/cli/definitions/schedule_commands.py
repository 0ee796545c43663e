"""`fileq schedule list|show|add|remove|pause|resume|run|next`: jobs at certain times."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import msgspec
from msgspec.json import encode

from fileq.cli.arguments import argument, utf8_text, whole_number
from fileq.cli.command import Invocation, command, declared
from fileq.cli.terminal import Cell, Screen, record, screen_of_stdout, table, wrapped
from fileq.cli.worker_notes import print_payload_note, print_untaken_note
from fileq.core.errors import ConfigError
from fileq.core.text import printable, quoted_path
from fileq.core.units import format_duration

if TYPE_CHECKING:
    from fileq.brokers.catalog import Document
    from fileq.commands.admin.schedules import ScheduledTime, ScheduleView
    from fileq.config import Loaded

_TIMES = 5
_VIEW = declared("fileq.commands.admin.schedules:ScheduleView")
_AS_SHOWN = (("…", "the schedule, as `fileq schedule show --json` prints it"),)
_LINE = "fileq schedule add"  # where the definition comes from
_NAME = argument("name", type=utf8_text, metavar="SCHEDULE", help="name of the schedule")
_REMOVED = (("name, removed", "string, true"),)
_STYLES = {"broken": "red", "late": "red", "incomplete": "yellow", "paused": "yellow"}  # of a status


@command(
    "schedule list",
    "list schedules with their next runs",
    json_fields=(("schedules[]", "one object each, as `fileq schedule show --json` prints it"),),
)
def _list(invocation: Invocation) -> int:
    """Lists every schedule, from the configuration and from programs: status, expression and time zone, next run in
    that zone, status of its last job, and how many runs had a job or were missed. A schedule is late if it is overdue
    by more than a minute and no worker has fired it.

    $ fileq schedule list  # all schedules
    $ fileq schedule list --json  # as JSON"""
    from fileq.commands.admin.schedules import list_schedules

    schedules = list_schedules(invocation.broker())
    return invocation.answer({"schedules": schedules}, lambda: render_list(schedules, screen_of_stdout()))


@command("schedule show", "show one schedule in full", _NAME, json_fields=_VIEW)
def _show(invocation: Invocation) -> int:
    """Shows the definition of a schedule (also in plain words), its status and its next runs.

    $ fileq schedule show nightly-report  # one schedule"""
    from fileq.commands.admin.schedules import next_times, show_schedule

    broker, name = invocation.broker(), invocation.options.name
    schedule = show_schedule(broker, name)

    def text() -> list[str]:
        times = [] if schedule.status in ("broken", "paused") else next_times(broker, name, _TIMES)
        return render_one(schedule, times, screen_of_stdout())

    return invocation.answer(schedule, text)


@command(
    "schedule next",
    "show the next runs of a schedule",
    _NAME,
    argument("-n", type=whole_number(1, 1000), default=_TIMES, metavar="N", help="how many (default %(default)s)"),
    json_fields=declared("fileq.commands.admin.schedules:ScheduledTime", "times[]", "the next one first"),
)
def _next(invocation: Invocation) -> int:
    """Shows when a schedule is due next, ignoring a pause.

    $ fileq schedule next nightly-report -n 10  # the next ten runs"""
    from fileq.commands.admin.schedules import next_times

    times = next_times(invocation.broker(), invocation.options.name, invocation.options.n)
    return invocation.answer({"times": times}, lambda: render_times(times, screen_of_stdout()))


@command(
    "schedule add",
    "add or change a schedule",
    argument("name", type=utf8_text, metavar="NAME", help="letters, digits, '.', '_' and '-'"),
    argument("cron", metavar="CRON", help="'30 2 * * 1-5', @daily or '@every 15m'"),
    argument("--type", metavar="T", help="the type of the jobs"),
    argument("--payload", metavar="JSON", help="an object; each job gets it, plus scheduled_for and missed"),
    argument("--scan", metavar="DIR", help="instead of --type: enqueue the new files of this directory"),
    argument("--reprocess", metavar="GLOB", help="instead of --type: reprocess matching known files"),
    argument("--since", metavar="D", help="with --reprocess: only files modified within this time before the run"),
    argument("--timezone", default="UTC", metavar="ZONE", help="IANA name (default %(default)s)"),
    argument("--priority", default="", metavar="QUEUE", help="the queue of the jobs"),
    argument("--missed", metavar="POLICY", help="skip, last or all:N (default last)"),
    argument(
        "--overlap",
        choices=("allow", "skip", "queue", "cancel"),
        help="what to do if the previous job is unfinished (default skip)",
    ),
    argument("--within", metavar="D", help="grace period: a run later than this counts as missed (default 10m)"),
    argument("--max-retries", type=whole_number(), metavar="N", help="retries of its jobs"),
    argument("--timeout", metavar="D", help="time limit per attempt"),
    argument("--paused", action="store_const", const=True, help="add it paused"),
    json_fields=_AS_SHOWN,
    only_confirms=True,
)
def _add(invocation: Invocation) -> int:
    """Adds a schedule, which running workers fire from its next run on. Repeating the command changes nothing; with
    different options it replaces the definition and keeps the history. A paused schedule stays paused. Schedules from
    the configuration can't be changed here.

    Needs one of --type, --scan and --reprocess.

    $ fileq schedule add report '30 2 * * 1-5' --type report --timezone Asia/Tokyo  # on weekdays
    $ fileq schedule add inbox '@every 15m' --scan /srv/inbox  # enqueue the new files of a directory"""
    from fileq.brokers.schedule_definitions import KIND
    from fileq.client.options import WantedReprocess, WantedSchedule
    from fileq.client.schedule_changes import add_schedule

    given = invocation.options
    if given.since is not None and given.reprocess is None:
        raise ConfigError("--since needs --reprocess")
    reprocess = None if given.reprocess is None else WantedReprocess(given.reprocess, given.since)
    wanted = {name: value for name, value in vars(given).items() if name in WantedSchedule.__struct_fields__}
    scan = None if given.scan is None else os.path.abspath(given.scan)  # the working directory of a worker is another
    options = WantedSchedule(**{**wanted, "payload": _payload(given.payload), "reprocess": reprocess, "scan": scan})
    broker = invocation.broker(create=True)
    known = broker.documents(KIND).get(given.name)
    try:
        add_schedule(broker, invocation.config, given.name, options, where=_LINE)
    except ConfigError as error:
        raise ConfigError([_in_words_of_the_line(given.name, problem) for problem in error.problems]) from None
    if given.paused:
        _set_paused(invocation, is_paused=True)
    defined = broker.documents(KIND).get(given.name)
    _note_definition(invocation, "put_schedule", known, defined)
    _note_jobs(invocation)
    if given.scan is not None and not given.quiet:
        _warn_of_directory(invocation.loaded, given.scan)
    if known is not None and defined is not None and known.body == defined.body:
        return _confirm(invocation, "unchanged", has_words=True)
    return _confirm(invocation, "added" if known is None else "updated", has_words=True)


def _in_words_of_the_line(name: str, problem: str) -> str:
    """A problem of a configuration, about what was typed: `cron is 'x'` instead of `schedules.nightly.cron is 'x'`."""
    said = problem.removeprefix(f"{_LINE}: schedules.{name}")
    return problem if said == problem else said.removeprefix(".") if said.startswith(".") else f"schedule {name}{said}"


def _note_jobs(invocation: Invocation) -> None:
    """Warns of jobs that would be dead: no worker takes their type, or the task does not take their payload."""
    from fileq.client.schedule_changes import the_schedule
    from fileq.core.schedule import job_payload

    document = the_schedule(invocation.broker(), invocation.options.name).document
    if document is not None:
        type = document.definition.type
        print_untaken_note(invocation, [type])
        print_payload_note(invocation, [(type, encode(job_payload(document.definition, 0, 0)))])


def _warn_of_directory(loaded: Loaded, directory: str) -> None:
    """Only a warning: the directory may be on the machine of a worker, whose configuration may allow it."""
    from fileq.files.paths import directory_problem

    config = loaded.config
    path = config.paths.here(os.path.abspath(os.fsencode(directory)))
    if loaded.names_roots and not config.paths.allows(path):
        key = "worker.allowed_roots" if config.worker.allowed_roots else "producer.scan_dir"
        warning = f"is not below {key}; a worker with this configuration refuses its files"
    elif problem := directory_problem(path, is_listed=True):
        warning = f"{problem} here; a scan fails on a worker where that is so"
    else:
        return
    print(wrapped(f"fileq: --scan: {quoted_path(path)} {warning}", sys.stderr), file=sys.stderr)


def _payload(text: str | None) -> dict[str, Any]:
    from fileq.commands.enqueue import json_argument

    payload = {} if text is None else json_argument(text, "--payload", """'{"days": 7}'""")
    if not isinstance(payload, dict):
        raise ConfigError(f"--payload is {text!r:.80}; it must be a JSON object such as '{{\"days\": 7}}'")
    return payload


@command("schedule remove", "remove a schedule", _NAME, json_fields=_REMOVED, only_confirms=True)
def _remove(invocation: Invocation) -> int:
    """Removes a schedule added by `fileq schedule add` or by a program. Existing jobs are kept. A schedule from a
    worker's configuration must be removed there.

    $ fileq schedule remove nightly  # stop it"""
    from fileq.brokers.schedule_definitions import KIND
    from fileq.client.schedule_changes import remove_schedule

    name = invocation.options.name
    known = invocation.broker().documents(KIND).get(name)
    remove_schedule(invocation.broker(), invocation.config, name)
    _note_definition(invocation, "delete_schedule", known, None)
    return invocation.answer({"name": name, "removed": True}, lambda: [f"{name} removed; its jobs are kept"])


def _note_definition(invocation: Invocation, action: str, old: Document | None, new: Document | None) -> None:
    """The audit has what was changed. The same definition again is no change."""
    from fileq.commands.audit_entries import schedule_facts

    is_change = old is not None and new is not None
    before, after = schedule_facts(old, is_whole=is_change), schedule_facts(new, is_whole=is_change)
    if before != after or not is_change:
        invocation.note_change(action, f"/schedules/{invocation.options.name}", before, after)


@command("schedule pause", "pause a schedule", _NAME, json_fields=_AS_SHOWN, only_confirms=True)
def _pause(invocation: Invocation) -> int:
    """The schedule stops firing, even across restarts, until `fileq schedule resume`.

    $ fileq schedule pause nightly  # for now"""
    has_changed = _set_paused(invocation, is_paused=True)
    return _confirm(invocation, "paused" if has_changed else "is already paused")


@command("schedule resume", "resume a paused schedule", _NAME, json_fields=_AS_SHOWN, only_confirms=True)
def _resume(invocation: Invocation) -> int:
    """The schedule fires again from its next run on. Runs during the pause are neither made up nor counted.

    $ fileq schedule resume nightly  # continue"""
    has_changed = _set_paused(invocation, is_paused=False)
    return _confirm(invocation, "resumed" if has_changed else "was not paused")


def _set_paused(invocation: Invocation, *, is_paused: bool) -> bool:
    from fileq.client.schedule_changes import pause_schedule, resume_schedule

    name, verb = invocation.options.name, "pause" if is_paused else "resume"
    has_changed = (pause_schedule if is_paused else resume_schedule)(invocation.broker(), name)
    if has_changed:
        old, new = {"paused": not is_paused}, {"paused": is_paused}
        invocation.note_change(f"{verb}_one_schedule", f"/schedules/{name}/{verb}", old, new)
    return has_changed


def _confirm(invocation: Invocation, what: str, *, has_words: bool = False) -> int:
    from fileq.commands.admin.schedules import show_schedule

    schedule = show_schedule(invocation.broker(), invocation.options.name)
    when = f"; {schedule.words} ({schedule.timezone})" if has_words else ""
    next_time = f"; next {_shown(schedule.next.local)}" if schedule.next else ""
    paused = "; paused" if has_words and schedule.status == "paused" else ""
    return invocation.answer(schedule, lambda: [printable(f"{schedule.name} {what}{when}{paused or next_time}")])


@command(
    "schedule run",
    "enqueue a job of a schedule now",
    _NAME,
    json_fields=(("name, id", "strings: the schedule, and its new job"),),
    only_confirms=True,
)
def _run_now(invocation: Invocation) -> int:
    """Enqueues one extra job of the schedule now: the next run, the counters and the overlap rule are not affected.
    Works for a paused schedule too.

    $ fileq schedule run nightly  # try it"""
    from fileq.client.schedule_changes import run_now
    from fileq.commands.action_log import note_run

    name = invocation.options.name
    id = run_now(invocation.broker(), invocation.config, name)
    invocation.note(note_run, name, id)
    _note_jobs(invocation)
    text = [f"enqueued {id}; the next run of {name} is unchanged"]
    return invocation.answer({"name": name, "id": id}, lambda: text)


def render_list(schedules: Sequence[ScheduleView], screen: Screen) -> list[str]:
    if not schedules:
        return ["no schedules; add one with 'fileq schedule add' or under 'schedules' in the configuration"]
    rows: list[list[str | Cell]] = [["name", "status", "when", "next", "last job", "runs", "missed"]]
    for one in schedules:
        when = f"{one.cron} {one.timezone}".strip()
        row: list[str | Cell] = [one.name, Cell(one.status, _STYLES.get(one.status, ""))]
        row += [when, _shown(one.next.local) if one.next else "-", _newest_status(one) or "-"]
        rows.append([*row, str(one.runs), str(one.missed_count)])
    lines = table(rows, screen, right=(5, 6), flexible=2, from_left=False)
    return [*lines, *(printable(f"{one.name}: {one.problem}") for one in schedules if one.problem)]


def _newest_status(one: ScheduleView) -> str | None:
    """Of the last job, also if that was a run by hand."""
    is_by_hand = one.by_hand is not None and (one.last is None or one.by_hand.utc > one.last.utc)
    return one.by_hand_status if is_by_hand else one.last_status


def _shown(time: str) -> str:
    """A time of JSON as text output has it: 2026-11-20 00:42:02Z, or with the offset of its zone."""
    date, _, clock = time.partition("T")
    seconds, offset = clock[:8], re.sub(r"^[.\d]*", "", clock[8:])
    return f"{date} {seconds}{'Z' if offset == '+00:00' else offset}"


def render_one(one: ScheduleView, times: Sequence[ScheduledTime], screen: Screen) -> list[str]:
    rows = {
        "name": one.name,
        "status": f"{one.status}: {one.problem}" if one.problem else one.status,
        "from": one.source,
        "when": f"{one.cron} in {one.timezone}",
        "in words": one.words,
        "job type": one.type,
        "payload": msgspec.json.encode(one.payload).decode() if one.payload else "",
        "queue": one.priority,
        "missed": one.missed,
        "overlap": one.overlap,
        "within": format_duration(one.within_s),
        "max_retries": "" if one.max_retries is None else str(one.max_retries),
        "timeout": "" if one.timeout_s is None else format_duration(one.timeout_s),
        "last": f"{_shown(one.last.local)} ({_shown(one.last.utc)})" if one.last else "never",
        "last job": f"{one.last_job_id} ({one.last_status or 'record expired'})" if one.last_job_id else "",
        "manual run": f"{_shown(one.by_hand.local)} ({_shown(one.by_hand.utc)})" if one.by_hand else "",
        "manual job": f"{one.by_hand_job_id} ({one.by_hand_status or 'record expired'})" if one.by_hand else "",
        "runs": f"{one.runs}, missed {one.missed_count}",
    }
    lines = record(rows.items(), screen)
    return [*lines, *(["", "next runs", *render_times(times, screen)] if times else [])]


def render_times(times: Sequence[ScheduledTime], screen: Screen) -> list[str]:
    return table([["local", "UTC"], *([_shown(time.local), _shown(time.utc)] for time in times)], screen)
