"""`fileq schedule list|show|add|remove|pause|resume|run|next`: jobs at certain times."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from fileq.cli.arguments import utf8_text, whole_number
from fileq.cli.command import Command, Invocation
from fileq.cli.json_fields import declared
from fileq.cli.terminal import Cell, Screen, screen_of_stdout, table, wrapped
from fileq.cli.worker_notes import print_payload_note, print_untaken_note
from fileq.core.errors import ConfigError
from fileq.core.text import printable
from fileq.core.units import format_duration

if TYPE_CHECKING:
    from fileq.brokers.catalog import Document
    from fileq.commands.admin.schedules import ScheduledTime, ScheduleView
    from fileq.config import Loaded

_TIMES, _TIMES_MAX = 5, 1000
_LINE = "fileq schedule add"  # where the definition comes from


def _name(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("name", type=utf8_text, metavar="SCHEDULE", help="name of the schedule")


def _next_arguments(parser: argparse.ArgumentParser) -> None:
    _name(parser)
    count = whole_number(1, _TIMES_MAX)
    parser.add_argument("-n", type=count, default=_TIMES, metavar="N", help="how many (default %(default)s)")


def _add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("name", type=utf8_text, metavar="NAME", help="letters, digits, '.', '_' and '-'")
    parser.add_argument("cron", metavar="CRON", help="'30 2 * * 1-5', @daily or '@every 15m'")
    parser.add_argument("--type", metavar="T", help="the type of the jobs")
    parser.add_argument("--payload", metavar="JSON", help="an object; jobs get it with scheduled_for and missed added")
    parser.add_argument("--scan", metavar="DIR", help="instead of --type: enqueue the new files of this directory")
    parser.add_argument("--reprocess", metavar="GLOB", help="instead of --type: process matching known files again")
    parser.add_argument("--since", metavar="D", help="with --reprocess: only files modified in this time before")
    parser.add_argument("--timezone", default="UTC", metavar="ZONE", help="IANA name (default %(default)s)")
    parser.add_argument("--priority", metavar="QUEUE", help="the queue of the jobs")
    parser.add_argument("--missed", metavar="POLICY", help="skip, last or all:N (default last)")
    parser.add_argument(
        "--overlap", choices=("allow", "skip", "queue", "cancel"), help="while the last job runs (default skip)"
    )
    parser.add_argument("--within", metavar="D", help="a time that is later than this is missed (default 10m)")
    parser.add_argument("--max-retries", type=whole_number(), metavar="N", help="of its jobs")
    parser.add_argument("--timeout", metavar="D", help="of one attempt of its jobs")
    parser.add_argument("--paused", action="store_true", help="define it, but do not fire it")


def _list(invocation: Invocation) -> int:
    from fileq.commands.admin.schedules import list_schedules

    schedules = list_schedules(invocation.broker())
    return invocation.answer({"schedules": schedules}, lambda: render_list(schedules, screen_of_stdout()))


def _show(invocation: Invocation) -> int:
    from fileq.commands.admin.schedules import next_times, show_schedule

    broker, name = invocation.broker(), invocation.options.name
    schedule = show_schedule(broker, name)

    def text() -> list[str]:
        times = [] if schedule.status in ("broken", "paused") else next_times(broker, name, _TIMES)
        return render_one(schedule, times, screen_of_stdout())

    return invocation.answer(schedule, text)


def _next(invocation: Invocation) -> int:
    from fileq.commands.admin.schedules import next_times

    times = next_times(invocation.broker(), invocation.options.name, invocation.options.n)
    return invocation.answer({"times": times}, lambda: render_times(times, screen_of_stdout()))


def _add(invocation: Invocation) -> int:
    from fileq.brokers.schedule_definitions import KIND
    from fileq.client.options import WantedReprocess, WantedSchedule
    from fileq.client.schedule_changes import add_schedule, pause_schedule

    given = invocation.options
    if given.since is not None and given.reprocess is None:
        raise ConfigError("--since goes with --reprocess; give both")
    reprocess = None if given.reprocess is None else WantedReprocess(given.reprocess, given.since)
    options = WantedSchedule(
        cron=given.cron,
        type=given.type,
        payload=_payload(given.payload),
        timezone=given.timezone,
        priority=given.priority or "",
        missed=given.missed,
        overlap=given.overlap,
        within=given.within,
        max_retries=given.max_retries,
        timeout=given.timeout,
        scan=given.scan,
        reprocess=reprocess,
        paused=given.paused or None,
    )
    broker = invocation.broker(create=True)
    known = broker.documents(KIND).get(given.name)
    try:
        add_schedule(broker, invocation.loaded().config, given.name, options, where=_LINE)
    except ConfigError as error:
        raise ConfigError([_in_words_of_the_line(given.name, problem) for problem in error.problems]) from None
    if given.paused:
        _note_pause(invocation, pause_schedule(broker, given.name), is_paused=True)
    defined = broker.documents(KIND).get(given.name)
    _note_definition(invocation, "put_schedule", known, defined)
    _note_jobs(invocation)
    if given.scan is not None and not given.quiet:
        _warn_of_directory(invocation.loaded(), given.scan)
    if known is not None and defined is not None and known.body == defined.body:
        return _confirm(invocation, "is as it was", has_words=True)
    return _confirm(invocation, "is defined" if known is None else "is changed", has_words=True)


def _in_words_of_the_line(name: str, problem: str) -> str:
    """A problem of a configuration, about what was typed: `cron is 'x'` instead of `schedules.nightly.cron is 'x'`."""
    said = problem.removeprefix(f"{_LINE}: schedules.{name}")
    return problem if said == problem else said.removeprefix(".") if said.startswith(".") else f"schedule {name}{said}"


def _note_jobs(invocation: Invocation) -> None:
    """Warns of jobs that would be dead: no worker takes their type, or the task does not take their payload."""
    from msgspec.json import encode

    from fileq.client.schedule_changes import the_schedule
    from fileq.core.schedule import job_payload

    document = the_schedule(invocation.broker(), invocation.options.name).document
    if document is not None:
        type = document.definition.type
        print_untaken_note(invocation, [type])
        print_payload_note(invocation, [(type, encode(job_payload(document.definition, 0, 0)))])


def _warn_of_directory(loaded: Loaded, directory: str) -> None:
    """Only a warning: the directory may be on the machine of a worker, whose configuration may allow it."""
    from fileq.core.text import quoted_path
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


def _remove(invocation: Invocation) -> int:
    from fileq.brokers.schedule_definitions import KIND
    from fileq.client.schedule_changes import remove_schedule

    name = invocation.options.name
    known = invocation.broker().documents(KIND).get(name)
    remove_schedule(invocation.broker(), invocation.loaded().config, name)
    _note_definition(invocation, "delete_schedule", known, None)
    return invocation.answer({"name": name, "removed": True}, lambda: [f"{name} is removed; its jobs stay"])


def _note_definition(invocation: Invocation, action: str, old: Document | None, new: Document | None) -> None:
    """The audit has what was changed. The same definition again is no change."""
    from fileq.commands.action_log import note_change
    from fileq.commands.audit_entries import schedule_facts

    is_change = old is not None and new is not None
    before, after = schedule_facts(old, is_whole=is_change), schedule_facts(new, is_whole=is_change)
    if before != after or not is_change:
        invocation.note(note_change, action, f"/schedules/{invocation.options.name}", before, after)


def _pause(invocation: Invocation) -> int:
    from fileq.client.schedule_changes import pause_schedule

    has_changed = pause_schedule(invocation.broker(), invocation.options.name)
    _note_pause(invocation, has_changed, is_paused=True)
    return _confirm(invocation, "is paused" if has_changed else "is already paused")


def _resume(invocation: Invocation) -> int:
    from fileq.client.schedule_changes import resume_schedule

    has_changed = resume_schedule(invocation.broker(), invocation.options.name)
    _note_pause(invocation, has_changed, is_paused=False)
    return _confirm(invocation, "is resumed" if has_changed else "was not paused")


def _note_pause(invocation: Invocation, has_changed: bool, *, is_paused: bool) -> None:
    from fileq.commands.action_log import note_pause

    if has_changed:
        invocation.note(note_pause, "one_schedule", invocation.options.name, is_paused=is_paused)


def _confirm(invocation: Invocation, what: str, *, has_words: bool = False) -> int:
    from fileq.commands.admin.schedules import show_schedule

    schedule = show_schedule(invocation.broker(), invocation.options.name)
    when = f"; {schedule.words} ({schedule.timezone})" if has_words else ""
    next_time = f"; next {schedule.next.local}" if schedule.next else ""
    paused = "; it is paused" if has_words and schedule.status == "paused" else ""
    return invocation.answer(schedule, lambda: [printable(f"{schedule.name} {what}{when}{paused or next_time}")])


def _run_now(invocation: Invocation) -> int:
    from fileq.client.schedule_changes import run_now
    from fileq.commands.action_log import note_run

    name = invocation.options.name
    id = run_now(invocation.broker(), invocation.loaded().config, name)
    invocation.note(note_run, name, id)
    _note_jobs(invocation)
    text = f"{id} is enqueued; the next time of {name} stays as it is"
    return invocation.answer({"name": name, "id": id}, lambda: [text])


COMMANDS = (
    Command(
        words=("schedule", "list"),
        summary="list schedules with their next times",
        description="""\
Lists every schedule, of the configuration and of programs: its status, its expression and zone, its next time in that
zone, the state of its last job, and how many times had a job or were missed. A schedule is late if its time has passed
by more than a minute and no worker has fired it.""",
        examples=(("fileq schedule list", "all schedules"), ("fileq schedule list --json", "for a program")),
        run=_list,
        json_fields=(("schedules[]", "one object each, as `fileq schedule show --json` prints it"),),
    ),
    Command(
        words=("schedule", "show"),
        summary="show one schedule in full",
        description="Shows the definition of a schedule, in plain words too, its state, and its next times.",
        examples=(("fileq schedule show nightly-report", "one schedule"),),
        arguments=_name,
        run=_show,
        json_fields=declared("fileq.commands.admin.schedules:ScheduleView"),
    ),
    Command(
        words=("schedule", "next"),
        summary="show the next times of a schedule",
        description="Shows when a schedule is due next. A pause is ignored.",
        examples=(("fileq schedule next nightly-report -n 10", "the next ten times"),),
        arguments=_next_arguments,
        run=_next,
        json_fields=declared("fileq.commands.admin.schedules:ScheduledTime", "times[]", "the next one first"),
    ),
    Command(
        words=("schedule", "add"),
        summary="define a schedule, or change one",
        description="""\
Defines a schedule on the broker; running workers fire it from its next time on. The same command again changes nothing;
with other options it replaces the definition and keeps what is known of the last times. A paused schedule stays paused.
A schedule that the configuration has can't be changed here.

Give --type with or without --payload, or --scan, or --reprocess.""",
        examples=(
            ("fileq schedule add report '30 2 * * 1-5' --type report --timezone Asia/Tokyo", "on working days"),
            ("fileq schedule add inbox '@every 15m' --scan /srv/inbox", "enqueue the new files of a directory"),
        ),
        arguments=_add_arguments,
        run=_add,
        json_fields=(("…", "the schedule, as `fileq schedule show --json` prints it"),),
        only_confirms=True,
    ),
    Command(
        words=("schedule", "remove"),
        summary="remove a schedule",
        description="""\
Removes a schedule that was defined by `fileq schedule add` or by a program. Its jobs stay. One that a worker has in its
configuration is removed there.""",
        examples=(("fileq schedule remove nightly", "it fires no more"),),
        arguments=_name,
        run=_remove,
        json_fields=(("name, removed", "string, true"),),
        only_confirms=True,
    ),
    Command(
        words=("schedule", "pause"),
        summary="stop firing a schedule",
        description="The schedule fires no more, also across restarts, until `fileq schedule resume`.",
        examples=(("fileq schedule pause nightly", "for now"),),
        arguments=_name,
        run=_pause,
        json_fields=(("…", "the schedule, as `fileq schedule show --json` prints it"),),
        only_confirms=True,
    ),
    Command(
        words=("schedule", "resume"),
        summary="fire a paused schedule again",
        description="The schedule fires from its next time on. Times in the pause are neither made up nor counted.",
        examples=(("fileq schedule resume nightly", "continue"),),
        arguments=_name,
        run=_resume,
        json_fields=(("…", "the schedule, as `fileq schedule show --json` prints it"),),
        only_confirms=True,
    ),
    Command(
        words=("schedule", "run"),
        summary="enqueue a job of a schedule now",
        description="""\
Enqueues one job of the schedule beside its times: the next time, the counters and the overlap rule are not affected. A
paused schedule can be run too.""",
        examples=(("fileq schedule run nightly", "try it"),),
        arguments=_name,
        run=_run_now,
        json_fields=(("name, id", "strings: the schedule, and its new job"),),
        only_confirms=True,
    ),
)


# The text of `fileq schedule list|show|next`.


_STYLES = {"broken": "red", "late": "red", "incomplete": "yellow", "paused": "yellow"}


def render_list(schedules: Sequence[ScheduleView], screen: Screen) -> list[str]:
    if not schedules:
        return ["no schedules; 'schedules' in the configuration or 'fileq schedule add' defines one"]
    rows: list[list[str | Cell]] = [["name", "status", "when", "next", "last job", "runs", "missed"]]
    for one in schedules:
        when = f"{one.cron} {one.timezone}".strip()
        row: list[str | Cell] = [printable(one.name), Cell(one.status, _STYLES.get(one.status, ""))]
        row += [printable(when), one.next.local if one.next else "-", one.last_status or "-"]
        rows.append([*row, str(one.runs), str(one.missed_count)])
    lines = table(rows, screen, right=(5, 6), flexible=2, from_left=False)
    return [*lines, *(printable(f"{one.name}: {one.problem}") for one in schedules if one.problem)]


def render_one(one: ScheduleView, times: Sequence[ScheduledTime], screen: Screen) -> list[str]:
    payload = msgspec.json.encode(one.payload).decode() if one.payload else ""
    last = f"{one.last.local} ({one.last.utc})" if one.last else "never"
    job = f"{one.last_job_id} ({one.last_status or 'its record is gone'})" if one.last_job_id else ""
    rows = {
        "name": one.name,
        "status": f"{one.status}: {one.problem}" if one.problem else one.status,
        "from": one.source,
        "when": f"{one.cron} in {one.timezone}",
        "in words": one.words,
        "job type": one.type,
        "payload": payload,
        "priority": one.priority,
        "missed": one.missed,
        "overlap": one.overlap,
        "within": format_duration(one.within_s),
        "max_retries": "" if one.max_retries is None else str(one.max_retries),
        "timeout": "" if one.timeout_s is None else format_duration(one.timeout_s),
        "last": last,
        "last job": job,
        "runs": f"{one.runs}, missed {one.missed_count}",
    }
    lines = [f"{name:<12} {printable(value)}" for name, value in rows.items() if value]
    return [*lines, *(["", "next times", *render_times(times, screen)] if times else [])]


def render_times(times: Sequence[ScheduledTime], screen: Screen) -> list[str]:
    rows = [["local", "UTC"], *([time.local, time.utc] for time in times)]
    return table(rows, screen)
