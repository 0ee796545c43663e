"""`fileq admin pause|resume|breaker reset`: stop and restart claiming from queues, close circuit breakers."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from typing import TYPE_CHECKING

from fileq.cli.arguments import argument, utf8_text
from fileq.cli.command import Invocation, command, declared
from fileq.cli.terminal import plural
from fileq.cli.worker_notes import print_reload_note
from fileq.core.text import printable
from fileq.core.units import two_units

if TYPE_CHECKING:
    from fileq.commands.admin.pauses import PauseResult
    from fileq.commands.admin.running_workers import BreakerReset

_FIELDS = declared(
    "fileq.commands.admin.pauses:PauseResult",
    more=(("queues[]", "instead of the others, if several queues were named: one such object for each"),),
)


_ARGUMENTS = argument("queues", nargs="+", metavar="QUEUE", help="one or more of worker.priorities, such as low")


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
    argument("--reason", type=_reason, default="", metavar="TEXT", help="why; others see it with your name"),
    json_fields=_FIELDS,
    only_confirms=True,
)
def _pause(invocation: Invocation) -> int:
    """Workers stop claiming from the queue within a second. Running jobs finish; new jobs are still accepted and stay
    pending. The queue stays paused, also across restarts, until `fileq resume`.

    Who paused it, when and with which reason is shown by `fileq stats`, by the console and in the audit. A reason
    for a queue that is paused already replaces the one before. The timelines of jobs that waited show the last 20
    pauses of a queue.

    $ fileq pause low  # process only urgent jobs for now
    $ fileq pause high low --reason 'the disk is being replaced'  # process nothing, and say why"""
    return _set_paused(invocation, paused=True)


@command("admin resume", "claim from paused queues again", _ARGUMENTS, json_fields=_FIELDS, only_confirms=True)
def _resume(invocation: Invocation) -> int:
    """Workers claim from the queue again at once. A queue that was not paused stays as it is.

    $ fileq resume low  # continue"""
    return _set_paused(invocation, paused=False)


def _pause_line(result: PauseResult, *, paused: bool) -> str:
    states = ("is paused", "is already paused") if paused else ("is resumed", "was not paused")
    state = states[0 if result.has_changed else 1]
    effect = "; running jobs finish, new ones stay pending" if paused else ""
    if paused and result.reason != result.old_reason and not result.has_changed:
        before = f" (before: {printable(result.old_reason)})" if result.old_reason else ""
        effect = f"; the reason is now: {printable(result.reason)}{before}"
    return f"{result.queue} {state}, {plural(result.waiting, 'job')} pending{effect}"


@command(
    "admin breaker reset",
    "try the jobs of a failing route again at once",
    argument("route", nargs="?", default="", type=utf8_text, metavar="ROUTE", help="a route (default: all of them)"),
    json_fields=declared("fileq.commands.admin.running_workers:BreakerReset"),
)
def _reset(invocation: Invocation) -> int:
    """Requests that every worker closes its circuit breaker of this route, or of all routes. Workers read the request
    at the next renewal of their heartbeats, at most a third of worker.heartbeat_ttl later. The jobs that were deferred
    then run at once. A breaker opens again if most attempts still fail. The name of a route is its `name`, else its
    type, else its glob; `fileq workers` shows those whose breaker is open. Exit code 2 if the name resembles a route
    that workers report or the configuration has, or if the configuration names all routes and this one is not among
    them.

    $ fileq breaker reset  # all routes, after the cause is fixed
    $ fileq breaker reset '**/*.pdf'  # one route"""
    from fileq.commands.admin.running_workers import reset_breaker

    result = reset_breaker(invocation.broker(), invocation.config, invocation.options.route)
    invocation.answer(result, lambda: _reset_lines(result))
    print_reload_note(invocation)
    return 0


def _reset_lines(result: BreakerReset) -> Iterator[str]:
    what = f"the breakers of {printable(result.route)}" if result.route else "all breakers"
    within = f"within {two_units(result.within_s)}"
    if result.open:
        yield f"workers close {what} {within}:"
    else:
        which = f"breaker of {printable(result.route)}" if result.route else "breaker"
        yield f"no worker reports an open {which}; one that has just opened is closed {within}"
        if result.route and not result.is_configured:
            unchecked = f"the name '{printable(result.route)}' could not be checked"
            yield f"{unchecked}: workers report only routes whose breaker is open or half-open"
    for one in result.open:
        which = f"{printable(one.host)} {one.pid}: {printable(one.route)}"
        yield f"{which} is {one.state}; last error: {printable(one.error)}"
