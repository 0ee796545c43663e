"""`fileq tasks`: the tasks that this configuration has."""

from __future__ import annotations

import argparse
import sys
from typing import TYPE_CHECKING

from fileq.cli.arguments import add_app_dir, add_json
from fileq.cli.command import Command, Invocation
from fileq.cli.screen import print_lines, screen_of_stdout

if TYPE_CHECKING:
    from fileq.commands.list_tasks import TaskSummary


def _arguments(parser: argparse.ArgumentParser) -> None:
    add_app_dir(parser)
    add_json(parser)


def _run(invocation: Invocation) -> int:
    from fileq.commands.list_tasks import list_tasks

    tasks = list_tasks(invocation.loaded().config, invocation.options.app_dir)
    if invocation.options.json:
        invocation.print_json({"tasks": tasks})
        return 0
    if not tasks:
        print("no module in `imports` has a task; see docs/client.md")
        return 0
    _print(tasks)
    for task in tasks:
        if task.is_shadowed:
            text = f"fileq: a route in `handlers` takes the jobs of type {task.name}; the task never runs"
            print(text, file=sys.stderr)
    return 0


def _print(tasks: tuple[TaskSummary, ...]) -> None:
    from fileq.commands.admin.formatting import table
    from fileq.core.text import printable
    from fileq.core.units import format_duration

    rows = [["name", "function", "payload", "queue", "timeout", "retries", "gives up on"]]
    for task in tasks:
        gives_up = [*map(str, task.give_up_on), *(["retry_if"] if task.has_retry_if else [])]
        row = [task.name, task.function, task.payload, task.priority, format_duration(task.timeout_s)]
        rows.append(list(map(printable, [*row, str(task.max_retries), ", ".join(gives_up)])))
    print_lines(line.rstrip() for line in table(rows, screen_of_stdout(), right=(5,), flexible=1))


COMMANDS = (
    Command(
        words=("tasks",),
        summary="list the tasks that programs can enqueue by name",
        description="""\
Imports the modules that `imports` names, as a worker would, and lists the functions with @fileq.task: the name by which
jobs name them, the type of their payload, the queue of their jobs, and the options under which a worker runs them.""",
        examples=(
            ("fileq tasks", "the tasks of ./config.yaml"),
            ("fileq tasks --app-dir /opt/app --json", "of another directory, for a program"),
        ),
        arguments=_arguments,
        run=_run,
        json_fields=(
            ("tasks[]", "one object for each task, by name"),
            ("tasks[].name", "string: the type of its jobs"),
            ("tasks[].function", "string: module:function"),
            ("tasks[].payload", "string: the type of its payload; empty if it can be anything"),
            ("tasks[].priority", "string: the queue of its jobs if the caller names none"),
            ("tasks[].timeout_s, tasks[].max_retries", "number: limit of one attempt, retries after a failure"),
            ("tasks[].isolation", "string: process or thread"),
            ("tasks[].give_up_on", "list: exceptions after which a job is not retried"),
            ("tasks[].has_retry_if", "boolean: a function of the task decides about retries"),
            ("tasks[].is_shadowed", "boolean: a route of the configuration takes these jobs, so the task never runs"),
        ),
    ),
)
