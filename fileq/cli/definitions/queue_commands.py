"""`fileq admin pause|resume`: stop and restart claiming from one queue."""

from __future__ import annotations

import argparse

from fileq.cli.arguments import add_json
from fileq.cli.command import Command, Invocation
from fileq.commands.admin.json_schema import PAUSE_FIELDS


def _arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("queue", metavar="QUEUE", help="one of worker.priorities, such as low")
    add_json(parser)


def _set_paused(invocation: Invocation, *, paused: bool) -> int:
    from fileq.commands.admin.control import set_paused
    from fileq.commands.admin.formatting import plural

    queues = invocation.loaded().config.worker.priorities
    result = set_paused(invocation.broker(), invocation.options.queue, queues, paused=paused)
    if invocation.options.json:
        invocation.print_json(result)
        return 0
    state = f"{'' if result.has_changed else 'already '}{'paused' if paused else 'open'}"
    effect = "; running jobs finish, new ones wait" if paused else ""
    print(f"{result.queue} is {state}, {plural(result.waiting, 'job')} waiting{effect}")
    return 0


COMMANDS = (
    Command(
        words=("admin", "pause"),
        summary="stop claiming from a queue",
        description="""\
Workers stop claiming from the queue within a second. Running jobs finish; new jobs are still accepted and wait. The
queue stays paused, also across restarts, until `fileq resume`.""",
        examples=(("fileq pause low", "process only urgent jobs for now"),),
        arguments=_arguments,
        run=lambda invocation: _set_paused(invocation, paused=True),
        json_fields=PAUSE_FIELDS,
    ),
    Command(
        words=("admin", "resume"),
        summary="claim from a paused queue again",
        description="Workers claim from the queue again at once. A queue that was not paused stays as it is.",
        examples=(("fileq resume low", "continue"),),
        arguments=_arguments,
        run=lambda invocation: _set_paused(invocation, paused=False),
        json_fields=PAUSE_FIELDS,
    ),
)
