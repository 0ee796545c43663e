"""`fileq producer`, `fileq worker`, `fileq all`, `fileq serve`, `fileq start`: start a role."""

from __future__ import annotations

import argparse
import os
from typing import TYPE_CHECKING

from fileq.cli.arguments import add_app_dir, whole_number
from fileq.cli.command import Command, Invocation
from fileq.core.errors import ConfigError

NAME_LENGTH = 50

if TYPE_CHECKING:
    from fileq.config import Loaded


def _producer_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "scan_dir", nargs="?", metavar="DIR", help="directory of the files; it must exist (producer.scan_dir)"
    )
    add_app_dir(parser)
    parser.add_argument("--once", action="store_true", help="do what can be done now, then exit")


def _worker_arguments(parser: argparse.ArgumentParser) -> None:
    _producer_arguments(parser)
    parser.add_argument(
        "--count", type=whole_number(1), metavar="N", help="jobs that run at the same time (worker.count)"
    )


def _person(text: str) -> str:
    if not 0 < len(text) <= NAME_LENGTH or not text.isprintable():
        raise argparse.ArgumentTypeError(f"{text!r} can't be a name; use 1 to {NAME_LENGTH} printable characters")
    return text


def server_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--bind", metavar="ADDRESS", help="address to listen on (server.bind)")
    parser.add_argument("--port", type=whole_number(0), metavar="N", help="port to listen on (server.port)")
    parser.add_argument(
        "--login-name",
        type=_person,
        metavar="NAME",
        help="name shown in the audit log (default: the user of the system)",
    )


def _serve_arguments(parser: argparse.ArgumentParser) -> None:
    add_app_dir(parser)
    server_arguments(parser)


def _start_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "scan_dir", nargs="?", metavar="DIR", help="directory of the files; it must exist (producer.scan_dir)"
    )
    add_app_dir(parser)
    parser.add_argument(
        "--count", type=whole_number(1), metavar="N", help="jobs that run at the same time (worker.count)"
    )
    server_arguments(parser)


def given_settings(invocation: Invocation) -> list[str]:
    """The flags that stand for a setting."""
    names = {"scan_dir": "producer.scan_dir", "count": "worker.count", "bind": "server.bind", "port": "server.port"}
    given = {key: getattr(invocation.options, name, None) for name, key in names.items()}
    return [f"{key}={value}" for key, value in given.items() if value is not None]


def _loaded(invocation: Invocation, sets: list[str]) -> Loaded:
    """The configuration of a role with a DIR. A DIR that was typed must exist: it may be the verb of another program.
    A scan_dir from another source may be missing for a worker, whose volume can be mounted later; with a path_map the
    DIR may be the producer's."""
    from fileq.cli.parser import INSTEAD
    from fileq.producer.producer import check_scan_dir

    given = invocation.options.scan_dir
    if given in INSTEAD and not os.path.isdir(given):
        raise ConfigError(f"{given!r} is not a directory; {INSTEAD[given]}")
    loaded = invocation.loaded(*sets)
    if given is not None and not loaded.config.worker.path_map:
        check_scan_dir(loaded.config)
    return loaded


def _serve(invocation: Invocation) -> int:
    from fileq.server.role import run_serve

    sets, options = given_settings(invocation), invocation.options
    loaded = invocation.loaded(*sets)
    return run_serve(loaded, lambda: invocation.load_again(*sets), options.app_dir, options.login_name or "")


def _start(invocation: Invocation) -> int:
    from fileq.commands.built_in_jobs import built_in_jobs
    from fileq.runtime.roles import run_worker
    from fileq.server.role import server_beside

    sets, app_dir, login_name = (
        given_settings(invocation),
        invocation.options.app_dir,
        invocation.options.login_name or "",
    )
    loaded = _loaded(invocation, sets)
    return run_worker(
        loaded,
        lambda: invocation.load_again(*sets),
        app_dir,
        is_producing=True,
        built_in=built_in_jobs(app_dir),
        beside=lambda broker, emit: server_beside(loaded.config, broker, emit, login_name),
    )


def _run(invocation: Invocation, role: str) -> int:
    options = invocation.options
    sets = given_settings(invocation)
    loaded = _loaded(invocation, sets)

    def read() -> Loaded:
        return invocation.load_again(*sets)

    if role == "producer":
        from fileq.runtime.roles import run_producer, run_producer_once

        app_dir = options.app_dir
        return run_producer_once(loaded, app_dir) if options.once else run_producer(loaded, read, app_dir)
    from fileq.commands.built_in_jobs import built_in_jobs

    built_in = built_in_jobs(options.app_dir)
    if options.once:
        from fileq.runtime.once import run_once

        return run_once(loaded, options.app_dir, is_producing=role == "all", built_in=built_in)
    from fileq.runtime.roles import run_worker

    return run_worker(loaded, read, options.app_dir, is_producing=role == "all", built_in=built_in)


COMMANDS = (
    Command(
        words=("producer",),
        summary="find files and queue one job for each version",
        description="""\
Scans and watches a directory until SIGTERM or Ctrl-C, and queues one job for each version of a file as soon as the file
is completely written. All producers of one broker share a rate limit.

With --once: scans once, prints a summary to stdout and exits.""",
        examples=(
            ("fileq producer /srv/inbox", "watch /srv/inbox until SIGTERM or Ctrl-C"),
            ("fileq producer --once --set producer.rate_limit_per_sec=0", "one scan without a rate limit"),
        ),
        arguments=_producer_arguments,
        run=lambda invocation: _run(invocation, "producer"),
    ),
    Command(
        words=("worker",),
        summary="run the handlers of queued jobs",
        description="""\
Claims jobs in the order of their priority, runs their handlers and records the outcomes, until a signal arrives. Also
returns the jobs of dead workers to their queues and queues jobs that are due. After the first SIGINT or SIGTERM running
jobs may finish, up to worker.shutdown_timeout; after the second they are stopped and returned to their queues. SIGHUP
reloads the handlers and the settings that can change; running jobs finish with the old handlers. In a terminal SIGHUP
stops the worker instead, because closing the window sends it.

With --once: runs until no job is pending, running, retrying or deferred. Exit code 0, or 3 if a job became a dead
letter. Does not wait for a missing root or for the cooldown of an open circuit breaker: its jobs stay deferred for the
next run, an error says how many and why, and the exit code is 1. Webhook deliveries that failed are left to the next
run too, and reported.""",
        examples=(
            ("fileq worker --count 8", "eight jobs at a time"),
            ("fileq worker --app-dir /opt/handlers --set redis.addr=redis:6379", "handlers from another directory"),
        ),
        arguments=_worker_arguments,
        run=lambda invocation: _run(invocation, "worker"),
    ),
    Command(
        words=("all",),
        summary="producer and worker in one process",
        description="""\
Runs producer and worker in one process: all that a single machine needs.

With --once, for cron and CI: scans once, then runs until no job is pending, running, retrying or deferred. Exit code 0,
or 3 if a job became dead in this run. Waits up to a minute for files that are still being written. Leaves and reports
jobs that are scheduled for later or are in paused queues, and webhook deliveries that failed. Does not wait for a
missing root or for the cooldown of an open circuit breaker: its jobs stay deferred for the next run, an error says how
many and why, and the exit code is 1.""",
        examples=(
            ("fileq all ./inbox", "process files dropped into ./inbox; needs no server, only an SQLite file"),
            ("fileq all ./inbox --once", "process the files that are there now, then exit"),
        ),
        arguments=_worker_arguments,
        run=lambda invocation: _run(invocation, "all"),
    ),
    Command(
        words=("serve",),
        summary="serve the web console and the REST API",
        description="""\
Serves the web console (docs/console.md) and the REST API (docs/api.md) until SIGTERM or Ctrl-C. Runs no jobs. Event
streams are closed at once when it stops, and requests in progress have 5 s.

Every request needs a key (`fileq keys create`). Without any key it listens on loopback only, and prints a link that
logs a browser in once, within 10 minutes. `fileq login-link` prints a new one.

First steps: start it and open the link that it prints. For a program, create a key in another terminal, and send it:

  fileq keys create me --scope operate
  curl -H "X-API-Key: fq_…" http://127.0.0.1:8080/api/v1/stats

`fileq doctor serve` checks its settings.""",
        examples=(
            ("fileq serve", "on http://127.0.0.1:8080"),
            ("fileq serve --bind 0.0.0.0 --port 80", "for other machines; needs a key"),
        ),
        arguments=_serve_arguments,
        run=_serve,
    ),
    Command(
        words=("start",),
        summary="producer, worker, console and API in one process",
        description="""\
Runs what `fileq all` and `fileq serve` run, in one process: watches a directory, processes its files and serves the
web console and the REST API.""",
        examples=(("fileq start ./inbox", "process files dropped into ./inbox; open the link that it prints"),),
        arguments=_start_arguments,
        run=_start,
    ),
)
