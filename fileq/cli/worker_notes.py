"""Notes of commands that make jobs: no worker takes them, or a task does not take the payload."""

from __future__ import annotations

import sys
from collections.abc import Iterable

from fileq.cli.command import Invocation
from fileq.cli.terminal import wrapped
from fileq.core.errors import FileqError
from fileq.core.own_jobs import is_own_type


def print_untaken_note(invocation: Invocation, types: Iterable[str | None], paths: Iterable[bytes] = ()) -> None:
    """For commands that make jobs of a type, or for files, which no worker takes: another machine may have the task, or
    it may be misspelt. On stderr; not with -q. Says nothing if the workers can't be asked: what the command did stays
    done."""
    named, paths = [type for type in types if type], [path for path in paths if path]
    if not (named or paths) or invocation.options.quiet:
        return
    from fileq.queries.untaken_jobs import note_of_unknown_types, note_of_unrouted_files

    try:
        config, workers = invocation.config, invocation.broker().workers()
    except FileqError:
        return
    for note in note_of_unknown_types(named, config, workers), note_of_unrouted_files(paths, config, workers):
        if note:
            print(wrapped(f"fileq: {note}", sys.stderr), file=sys.stderr)


def print_callback_note(invocation: Invocation) -> None:
    """For the callbacks of the line, which have no payload: as print_payload_note()."""
    given = invocation.options
    print_payload_note(invocation, ((type, b"null") for type in (given.then, given.catch, given.finally_)))


def print_payload_note(invocation: Invocation, made: Iterable[tuple[str | None, bytes]]) -> None:
    """For jobs of these types and payloads, after they were enqueued: on stderr, not with -q. Imports the modules of
    `imports`, as a worker would; says nothing of tasks that can't be imported here."""
    jobs = dict.fromkeys((type, payload) for type, payload in made if type and not is_own_type(type))
    config = invocation.config
    if not jobs or not config.imports or invocation.options.quiet:
        return
    from fileq.handlers.importing import import_if_possible
    from fileq.handlers.registry import payload_fault

    import_if_possible(config.imports)
    for note in dict.fromkeys(payload_fault(type, payload) for type, payload in jobs):
        if note:
            print(wrapped(f"fileq: {note}; its jobs will die when a worker claims them", sys.stderr), file=sys.stderr)
