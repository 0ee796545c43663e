"""`fileq admin breaker reset`: close circuit breakers before their cooldown ends."""

from __future__ import annotations

import argparse

from fileq.cli.arguments import add_json, utf8_text
from fileq.cli.command import Command, Invocation
from fileq.cli.reload_note import print_reload_note
from fileq.cli.screen import print_lines
from fileq.commands.admin.json_schema import BREAKER_RESET_FIELDS


def _arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "route", nargs="?", default="", type=utf8_text, metavar="ROUTE", help="name of a route (default: all routes)"
    )
    add_json(parser)


def _reset(invocation: Invocation) -> int:
    from fileq.commands.admin.control import reset_breaker

    result = reset_breaker(invocation.broker(), invocation.loaded().config, invocation.options.route)
    if invocation.options.json:
        invocation.print_json(result)
        return 0
    from fileq.core.text import printable
    from fileq.core.units import two_units

    what = f"the breakers of {printable(result.route)}" if result.route else "all breakers"
    print(f"workers reset {what} within {two_units(result.within_s)}")
    if not result.open:
        print("no worker reports one of them as open; 'fileq workers' lists those that are")
        if result.route and not result.is_configured:
            unchecked = f"the name '{printable(result.route)}' could not be checked"
            print(f"{unchecked}: workers report only routes whose breaker is open or half-open")
    print_lines(
        f"{printable(one.host)} {one.pid}: {printable(one.route)} is {one.state} until then: {printable(one.error)}"
        for one in result.open
    )
    print_reload_note(invocation)
    return 0


COMMANDS = (
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
        arguments=_arguments,
        run=_reset,
        json_fields=BREAKER_RESET_FIELDS,
    ),
)
