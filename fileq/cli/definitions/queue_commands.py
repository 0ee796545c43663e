"""`fileq admin stats|workers|events|pause|resume|breaker reset`: queues and workers, and what happens to jobs."""

from __future__ import annotations

import argparse
import contextlib
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING

from fileq.cli.arguments import argument, utf8_text
from fileq.cli.command import Invocation, command, declared
from fileq.cli.terminal import plural, print_lines, remark, screen_of_stdout
from fileq.core.text import printable, printable_json
from fileq.core.units import two_units

if TYPE_CHECKING:
    from fileq.commands.admin.pauses import PauseResult
    from fileq.commands.admin.running_workers import BreakerReset
    from fileq.commands.admin.stats import Stats

REFRESH_S = 2.0
_FIELDS = declared(
    "fileq.commands.admin.pauses:PauseResult",
    more=(("queues[]", "with several queues, instead of the other fields: one such object each"),),
)
_ARGUMENTS = argument("queues", nargs="+", metavar="QUEUE", help="one or more of worker.priorities, such as low")


def _seconds(text: str) -> float:
    try:
        seconds = float(text.removesuffix("s"))
    except ValueError:
        seconds = 0.0
    if not 0.1 <= seconds <= 86_400:
        raise argparse.ArgumentTypeError(f"is {text!r}; it must be a number of seconds, 0.1 or more")
    return seconds


@command(
    "admin stats",
    "show queue lengths, rates, producers, workers and errors",
    argument(
        "--watch",
        nargs="?",
        type=_seconds,
        const=REFRESH_S,
        metavar="SECONDS",
        help=f"refresh until Ctrl-C, every {REFRESH_S:g} seconds by default; with --json one line each time",
    ),
    json_fields=declared("fileq.commands.admin.stats:Stats"),
)
def _stats(invocation: Invocation) -> int:
    """Shows the broker and its address; for each queue, how many jobs are pending and the age of the next one; the
    number of scheduled, processing, completed and dead jobs; the rates of this hour and the last, and when the backlog
    will be done at the last minute's rate; the producers; the workers and their running jobs; errors by kind. The cost
    to the broker does not depend on queue length.

    `processing` counts the jobs that slots hold. A job that cannot run yet, for example because of a limit, is counted
    for a few milliseconds each time it is due, until its worker has deferred it.

    `failed` counts failed attempts. `became dead` counts jobs that entered the dead-letter queue; `refused` counts
    those that did so without an attempt: bytes that are not a job, no handler, a vanished file. The errors by kind are
    those of failed attempts, of refused jobs, and of attempts whose process died, which do not count as failed: Crash
    (the handler's process) and WorkerDied (the whole worker).

    Each producer is shown with its directory, its last full scan and its state: scanning, watching, held (by the rate
    limit or by max_pending, and since when), lost (its directory cannot be read) or stuck (no progress for a minute).
    It reports this every few seconds. After a clean stop it is no longer listed; after a kill -9 it stays listed until
    worker.heartbeat_ttl has passed, on its own machine as gone.

    With --watch it refreshes in place until Ctrl-C and adds the rates over the last refreshes. It keeps running while
    the broker is unreachable, and says so.

    $ fileq stats  # print it once (`admin` is optional)
    $ fileq stats --watch  # refresh every 2 seconds, in place
    $ fileq stats --json | jq .dead  # one number, for scripts"""
    if invocation.options.watch is not None:
        return _watch(invocation, invocation.options.watch)
    from fileq.cli.stats_text import render
    from fileq.commands.admin.stats import gather

    stats = gather(invocation.broker())
    return invocation.answer(stats, lambda: render(stats, screen_of_stdout(is_endless=True)))


def _watch(invocation: Invocation, interval_s: float) -> int:
    """In place on a terminal; for files and pipes, one block of lines after another."""
    from fileq.cli.stats_text import refreshed, render

    refreshes = refreshed(invocation.broker, interval_s)
    with contextlib.suppress(KeyboardInterrupt):
        if sys.stdout.isatty() and not invocation.options.json:
            _show_in_place(refreshes)
        for stats, outage in refreshes:
            if outage:
                remark(outage)
            elif invocation.options.json:
                invocation.print_json(stats)
            elif stats is not None:
                print_lines([*render(stats, screen_of_stdout()), ""])
            sys.stdout.flush()
    return 0


def _show_in_place(refreshes: Iterator[tuple[Stats | None, str]]) -> None:
    from rich.live import Live
    from rich.text import Text

    from fileq.cli.stats_text import render

    with Live(auto_refresh=False, screen=True, vertical_overflow="crop") as live:
        for stats, outage in refreshes:
            screen = screen_of_stdout()
            lines = render(stats, screen._replace(height=screen.height - bool(outage))) if stats is not None else []
            if outage:
                lines.insert(0, screen.paint(outage[: screen.width], "red"))
            live.update(Text.from_ansi("\n".join(lines), no_wrap=True, overflow="crop"), refresh=True)


@command(
    "admin workers",
    "show worker processes, their slots and running jobs",
    json_fields=declared("fileq.commands.admin.running_workers:WorkerList", in_full=True),
)
def _workers(invocation: Invocation) -> int:
    """Lists every registered worker process: busy slots, the worst state of its circuit breakers, whether it is alive,
    draining (stopping, or replaced by a reload: it finishes its jobs and claims none), silent or gone, its last
    heartbeat and its uptime; then each missing root; each route with an open breaker, with the last error and the time
    of the next try; each route limit that jobs are waiting for; and each busy slot with its job and how long that has
    been running.

    A worker renews its heartbeat every third of worker.heartbeat_ttl. One that is overdue is silent, shown with the
    time since its last heartbeat: it was killed, hangs or cannot reach the broker. It keeps its jobs until the
    heartbeat expires. Then another worker's reaper removes it and requeues its jobs. A worker on this machine whose
    process has ended is gone, regardless of its heartbeat; the other workers on the machine remove it within two
    seconds. The removed process is listed as lost for an hour, with the number of jobs it had, and since when it was
    silent or when its process was found gone.

    $ fileq workers  # which job runs where, and for how long"""
    from fileq.cli.stats_text import render_workers
    from fileq.commands.admin.running_workers import workers

    found = workers(invocation.broker())
    return invocation.answer(found, lambda: render_workers(found, screen_of_stdout(is_endless=True)))


@command(
    "admin events",
    "follow job events until Ctrl-C",
    json_fields=(
        ("event", "string: job:created, job:started, job:completed, job:failed, job:dead, job:recovered, …"),
        ("job_id, type, filepath", "string: the job, its type (or null) and its file (or empty)"),
        ("priority, worker_id", "string: its queue, and the slot or empty"),
        ("duration_ms, retry_count", "number: duration of the attempt that ended; failed attempts so far"),
        ("error", "string: the error, or the reason of a deferral, otherwise empty"),
        ("at", "number: time of the transition on the broker's clock, ms since the epoch"),
    ),
)
def _events(invocation: Invocation) -> int:
    """Prints one line for each job transition (created, started, completed, failed, dead, recovered, cancelled,
    deferred) as it happens, in all processes that use the broker: time in UTC, event, file or type, queue, duration,
    the first characters of the id, and the error or reason. Lines are fitted to the terminal: long ones drop the queue,
    then leading directories of the path, then the middle of the error. Piped output is not cut. With --json each line
    is the JSON object that the broker publishes, with the full id; docs/events.md lists the names of these transitions
    in the log.

    A deferred job is claimed again from time to time: if it still cannot run, job:deferred is printed again, with the
    reason. Brokers publish job:started when a job is claimed, so --json has a job:started before each job:deferred;
    text output omits it, and for that prints job:started up to half a second late.

    Runs until Ctrl-C. If the broker becomes unreachable, it says so on stderr and reconnects; events published in the
    meantime are not shown. If the broker is unreachable at the start, the exit code is 4.

    $ fileq events  # what is happening now (`admin` is optional)
    $ fileq events --json | jq 'select(.event == "job:dead")'  # only dead jobs, for scripts"""
    from fileq.cli.follow_events import HOLD_S, EventFilter, event_line, follow

    is_json = invocation.options.json

    def show(event: bytes) -> None:
        # The width is asked for each line: the window may have changed.
        text = printable_json(event.decode()) if is_json else event_line(event, screen_of_stdout().width)
        print(text, flush=True)

    with contextlib.suppress(KeyboardInterrupt):
        follow(invocation.broker(), EventFilter(show, 0.0 if is_json else HOLD_S), remark)
    return 0


def _reason(text: str) -> str:
    from fileq.commands.admin.pauses import REASON_LENGTH

    if len(utf8_text(text)) > REASON_LENGTH:
        raise argparse.ArgumentTypeError(f"has {len(text)} characters; at most {REASON_LENGTH} are allowed")
    return text


def _set_paused(invocation: Invocation, *, paused: bool) -> int:
    from fileq.commands.admin.pauses import check_queues, set_paused
    from fileq.commands.audit_entries import command_line_user

    queues = invocation.config.worker.priorities
    named = list(dict.fromkeys(invocation.options.queues))
    check_queues(named, queues)
    broker, who = invocation.broker(), command_line_user()
    reason = invocation.options.reason if paused else ""
    results = [set_paused(broker, queue, queues, paused=paused, by=who, reason=reason) for queue in named]
    verb = "pause" if paused else "resume"
    for one in results:
        old = {"paused": paused != one.has_changed, "reason": one.old_reason}
        new = {"paused": paused, "reason": one.reason}
        if old != new:
            invocation.note_change(f"{verb}_queue", f"/queues/{one.queue}/{verb}", old, new)
    document = results[0] if len(results) == 1 else {"queues": results}
    return invocation.answer(document, lambda: [_pause_line(result, paused=paused) for result in results])


@command(
    "admin pause",
    "stop claiming from one or more queues",
    _ARGUMENTS,
    argument("--reason", type=_reason, default="", metavar="TEXT", help="reason, visible to everyone, with your name"),
    json_fields=_FIELDS,
    only_confirms=True,
)
def _pause(invocation: Invocation) -> int:
    """Workers stop claiming from the queue within a second. Running jobs finish; new jobs are still accepted and stay
    pending. The queue stays paused, even across restarts, until `fileq resume`.

    `fileq stats`, the console and the audit log show who paused it, when and why. A new reason for a paused queue
    replaces the old one. The timelines of jobs show the last 20 pauses of their queue.

    $ fileq pause low  # process only urgent jobs for now
    $ fileq pause high low --reason 'the disk is being replaced'  # process nothing, with a reason"""
    return _set_paused(invocation, paused=True)


@command("admin resume", "claim from paused queues again", _ARGUMENTS, json_fields=_FIELDS, only_confirms=True)
def _resume(invocation: Invocation) -> int:
    """Workers claim from the queue again at once. Does nothing if the queue is not paused.

    $ fileq resume low  # continue"""
    return _set_paused(invocation, paused=False)


def _pause_line(result: PauseResult, *, paused: bool) -> str:
    states = ("paused", "is already paused") if paused else ("resumed", "was not paused")
    state = states[0 if result.has_changed else 1]
    effect = "; running jobs finish, new ones stay pending" if paused else ""
    if paused and result.reason != result.old_reason and not result.has_changed:
        before = f" (before: {printable(result.old_reason)})" if result.old_reason else ""
        effect = f"; the reason is now: {printable(result.reason)}{before}"
    return f"{result.queue} {state}, {plural(result.waiting, 'job')} pending{effect}"


@command(
    "admin breaker reset",
    "close circuit breakers and run their deferred jobs now",
    argument("route", nargs="?", default="", type=utf8_text, metavar="ROUTE", help="a route (default: all of them)"),
    json_fields=declared("fileq.commands.admin.running_workers:BreakerReset"),
    only_confirms=True,
)
def _reset(invocation: Invocation) -> int:
    """Closes the circuit breaker of a route, or of all routes, in every worker. Workers pick this up with their next
    heartbeat, within a third of worker.heartbeat_ttl. Deferred jobs then run at once. A breaker opens
    again if most attempts still fail. The name of a route is its `name`, else its type, else its glob; `fileq workers`
    shows the routes with an open breaker. Exit code 2 if the name is misspelt, or if the configuration
    names all routes and this is not one of them.

    $ fileq breaker reset  # all routes, after the cause is fixed
    $ fileq breaker reset '**/*.pdf'  # one route"""
    from fileq.commands.admin.running_workers import reset_breaker

    result = reset_breaker(invocation.broker(), invocation.config, invocation.options.route)
    invocation.answer(result, lambda: _reset_lines(result))
    invocation.note_stale_workers()
    return 0


def _reset_lines(result: BreakerReset) -> Iterator[str]:
    what = f"the breakers of {printable(result.route)}" if result.route else "all breakers"
    within = f"within {two_units(result.within_s)}"
    if result.open:
        yield f"workers close {what} {within}:"
    else:
        which = f"breaker of {printable(result.route)}" if result.route else "breaker"
        yield f"no worker reports an open {which}; any that just opened closes {within}"
        if result.route and not result.is_configured:
            unchecked = f"the name '{printable(result.route)}' could not be checked"
            yield f"{unchecked}: workers report only routes whose breaker is open or half-open"
    for one in result.open:
        which = f"{printable(one.host)} {one.pid}: {printable(one.route)}"
        yield f"{which} is {one.state}; last error: {printable(one.error)}"
