"""`fileq admin events`: follow what happens to jobs."""

from __future__ import annotations

import contextlib
import sys

from fileq.cli.arguments import add_json
from fileq.cli.command import Command, Invocation
from fileq.cli.screen import screen_of_stdout


def _run(invocation: Invocation) -> int:
    from fileq.commands.admin.follow_events import HOLD_S, EventFilter, event_line, follow
    from fileq.core.text import printable_json

    is_json = invocation.options.json

    def show(event: bytes) -> None:
        # The width is asked for each line: the window may have changed.
        text = printable_json(event.decode()) if is_json else event_line(event, screen_of_stdout().width)
        print(text, flush=True)

    def report(text: str) -> None:
        print(f"fileq: {text}", file=sys.stderr, flush=True)

    with contextlib.suppress(KeyboardInterrupt):
        follow(invocation.broker(), EventFilter(show, 0.0 if is_json else HOLD_S), report)
    return 0


COMMANDS = (
    Command(
        words=("admin", "events"),
        summary="follow what happens to jobs, until Ctrl-C",
        description="""\
Prints each transition of a job (created, started, completed, failed, dead, recovered, cancelled, deferred) as one line
when it happens, in all processes that use the broker: time in UTC, event, file or type, queue, duration, the first
characters of the id, and the error or the reason. Lines fit the terminal: one that is too long loses the queue, then
the first directories of the path, then the middle of the error. On a pipe nothing is cut. With --json each line is the
JSON object that the broker publishes, with the whole id; docs/events.md has the names that the same transitions have in
the log.

A job that a limit or another obstacle holds back is claimed again from time to time: each time job:deferred with the
reason is printed. Brokers publish job:started when a job is claimed, so --json has a job:started before each
job:deferred; the lines for people leave it out, and appear up to half a second later for it.

It follows until Ctrl-C. If the broker becomes unreachable it says so on stderr and connects again; events published in
between are not shown. A broker that is unreachable at the start is exit code 4.""",
        examples=(
            ("fileq events", "what happens now (`admin` may be left out)"),
            ("fileq events --json | jq 'select(.event == \"job:dead\")'", "only dead jobs, for scripts"),
        ),
        arguments=add_json,
        run=_run,
        json_fields=(
            ("event", "string: job:created, job:started, job:completed, job:failed, job:dead, job:recovered, …"),
            ("job_id, type, filepath", "string: the job, its type (or null) and its file (or empty)"),
            ("priority, worker_id", "string: its queue, and the slot or empty"),
            ("duration_ms, retry_count", "number: duration of the attempt that ended; failed attempts so far"),
            ("error", "string: the error, or the reason of a deferral, otherwise empty"),
            ("at", "number: time of the transition by the broker's clock, ms since the epoch"),
        ),
    ),
)
