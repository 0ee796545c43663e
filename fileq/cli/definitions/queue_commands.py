"""`fileq admin pause|resume|breaker reset`: stop and restart claiming from queues, close circuit breakers."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from typing import TYPE_CHECKING

from fileq.cli.arguments import utf8_text
from fileq.cli.command import Command, Invocation
from fileq.cli.json_fields import declared
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


def _arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("queues", nargs="+", metavar="QUEUE", help="one or more of worker.priorities, such as low")


def _pause_arguments(parser: argparse.ArgumentParser) -> None:
    _arguments(parser)
    parser.add_argument("--reason", type=_reason, default="", metavar="TEXT", help="why; others see it with your name")


def _reason(text: str) -> str:
    from fileq.commands.admin.pauses import REASON_LENGTH

    if len(utf8_text(text)) > REASON_LENGTH:
        raise argparse.ArgumentTypeError(f"has {len(text)} characters; at most {REASON_LENGTH} are allowed")
    return text


def _set_paused(invocation: Invocation, *, paused: bool) -> int:
    from fileq.commands.action_log import note_pause
    from fileq.commands.admin.pauses import check_queues, set_paused
    from fileq.commands.audit_entries import command_line_user

    queues = invocation.loaded().config.worker.priorities
    named = list(dict.fromkeys(invocation.options.queues))
    check_queues(named, queues)
    broker, who = invocation.broker(), command_line_user()
    reason = invocation.options.reason if paused else ""
    results = [set_paused(broker, queue, queues, paused=paused, by=who, reason=reason) for queue in named]
    for result in results:
        invocation.note(
            note_pause,
            "queue",
            result.queue,
            is_paused=paused,
            has_changed=result.has_changed,
            reason=result.reason,
            old_reason=result.old_reason,
        )
    document = results[0] if len(results) == 1 else {"queues": results}
    return invocation.answer(document, lambda: [_pause_line(result, paused=paused) for result in results])


def _pause_line(result: PauseResult, *, paused: bool) -> str:
    states = ("is paused", "is already paused") if paused else ("is resumed", "was not paused")
    state = states[0 if result.has_changed else 1]
    effect = "; running jobs finish, new ones wait" if paused else ""
    if paused and result.reason != result.old_reason and not result.has_changed:
        before = f" (before: {printable(result.old_reason)})" if result.old_reason else ""
        effect = f"; the reason is now: {printable(result.reason)}{before}"
    return f"{result.queue} {state}, {plural(result.waiting, 'job')} waiting{effect}"


# `fileq admin breaker reset`: close circuit breakers before their cooldown ends.


def _breaker_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "route", nargs="?", default="", type=utf8_text, metavar="ROUTE", help="name of a route (default: all routes)"
    )


def _reset(invocation: Invocation) -> int:
    from fileq.commands.admin.running_workers import reset_breaker

    result = reset_breaker(invocation.broker(), invocation.loaded().config, invocation.options.route)
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


COMMANDS = (
    Command(
        words=("admin", "pause"),
        summary="stop claiming from one or more queues",
        description="""\
Workers stop claiming from the queue within a second. Running jobs finish; new jobs are still accepted and wait. The
queue stays paused, also across restarts, until `fileq resume`.

Who paused it, when and with which reason is shown by `fileq stats`, by the console and in the audit. A reason for a
queue that is paused already replaces the one before. The timelines of jobs that waited show the last 20 pauses of a
queue.""",
        examples=(
            ("fileq pause low", "process only urgent jobs for now"),
            ("fileq pause high low --reason 'the disk is being replaced'", "process nothing, and say why"),
        ),
        arguments=_pause_arguments,
        run=lambda invocation: _set_paused(invocation, paused=True),
        json_fields=_FIELDS,
        only_confirms=True,
    ),
    Command(
        words=("admin", "resume"),
        summary="claim from paused queues again",
        description="Workers claim from the queue again at once. A queue that was not paused stays as it is.",
        examples=(("fileq resume low", "continue"),),
        arguments=_arguments,
        run=lambda invocation: _set_paused(invocation, paused=False),
        json_fields=_FIELDS,
        only_confirms=True,
    ),
    Command(
        words=("admin", "breaker", "reset"),
        summary="try the jobs of a failing route again at once",
        description="""\
Requests that every worker closes its circuit breaker of this route, or of all routes. Workers read the request at the
next renewal of their heartbeats, at most a third of worker.heartbeat_ttl later. The jobs that were deferred then run at
once. A breaker opens again if most attempts still fail. The name of a route is its `name`, else its type, else its
glob; `fileq workers` shows those whose breaker is open. Exit code 2 if the name resembles a route that workers report
or the configuration has, or if the configuration names all routes and this one is not among them.""",
        examples=(
            ("fileq breaker reset", "all routes, after the cause is fixed"),
            ("fileq breaker reset '**/*.pdf'", "one route"),
        ),
        arguments=_breaker_arguments,
        run=_reset,
        json_fields=declared("fileq.commands.admin.running_workers:BreakerReset"),
    ),
)
