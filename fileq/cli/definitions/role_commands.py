"""`fileq producer`, `fileq worker`, `fileq all`, `fileq serve`, `fileq start`: start a role."""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable
from typing import TYPE_CHECKING

from fileq.cli.arguments import APP_DIR, argument, whole_number
from fileq.cli.command import Invocation, command
from fileq.core.errors import ConfigError

NAME_LENGTH = 50

if TYPE_CHECKING:
    from fileq.brokers.protocol import FullBroker
    from fileq.config import Loaded
    from fileq.core.events import Emit
    from fileq.runtime.service import Service


_DIR = argument("scan_dir", nargs="?", metavar="DIR", help="directory with the files; must exist (producer.scan_dir)")
_ONCE = argument("--once", action="store_true", help="do what can be done now, then exit")
_COUNT = argument("--count", type=whole_number(1), metavar="N", help="number of concurrent jobs (worker.count)")


def _person(text: str) -> str:
    if not 0 < len(text) <= NAME_LENGTH or not text.isprintable():
        raise argparse.ArgumentTypeError(f"{text!r} can't be a name; use 1 to {NAME_LENGTH} printable characters")
    return text


SERVER_OPTIONS = (
    argument("--bind", metavar="ADDRESS", help="address to listen on (server.bind)"),
    argument("--port", type=whole_number(0), metavar="N", help="port to listen on (server.port)"),
    argument("--login-name", type=_person, metavar="NAME", help="name in the audit log (default: the system user)"),
)


def _loaded(invocation: Invocation) -> Loaded:
    """The configuration of a role with a DIR. A DIR that was typed must exist: it may be the verb of another program.
    A scan_dir from another source may be missing for a worker, whose volume can be mounted later; with a path_map the
    DIR may be the producer's."""
    from fileq.cli.parser import INSTEAD
    from fileq.producer.producer import check_scan_dir

    given = invocation.options.scan_dir
    if given in INSTEAD and not os.path.isdir(given):
        raise ConfigError(f"{given!r} is not a directory; {INSTEAD[given]}")
    loaded = invocation.loaded
    if given is not None and not loaded.config.worker.path_map:
        check_scan_dir(loaded.config)
    return loaded


def _work(
    invocation: Invocation, *, is_producing: bool, beside: Callable[[FullBroker, Emit], Service] | None = None
) -> int:
    from fileq.commands.built_in_jobs import built_in_jobs
    from fileq.runtime.once import run_once
    from fileq.runtime.roles import run_worker

    loaded, app_dir = _loaded(invocation), invocation.options.app_dir
    built_in = built_in_jobs(app_dir)
    if beside is None and invocation.options.once:
        return run_once(loaded, app_dir, is_producing=is_producing, built_in=built_in)
    read = invocation.load_again
    return run_worker(loaded, read, app_dir, is_producing=is_producing, built_in=built_in, beside=beside)


@command("producer", "find files and enqueue one job for each version", _DIR, APP_DIR, _ONCE)
def _producer(invocation: Invocation) -> int:
    """Scans and watches a directory until SIGTERM or Ctrl-C, and enqueues one job for each version of a file as soon as
    it is completely written. All producers of one broker share a rate limit.

    With --once: scans once, prints a summary to stdout and exits.

    $ fileq producer /srv/inbox  # watch /srv/inbox until SIGTERM or Ctrl-C
    $ fileq producer --once --set producer.rate_limit_per_sec=0  # one scan without a rate limit"""
    from fileq.runtime.roles import run_producer, run_producer_once

    loaded, app_dir = _loaded(invocation), invocation.options.app_dir
    if invocation.options.once:
        return run_producer_once(loaded, app_dir)
    return run_producer(loaded, invocation.load_again, app_dir)


@command("worker", "run the handlers of pending jobs", _DIR, APP_DIR, _ONCE, _COUNT)
def _worker(invocation: Invocation) -> int:
    """Claims jobs in queue order, runs their handlers and records the outcomes, until a signal stops it. Also requeues
    the jobs of dead workers and moves due jobs to their queues. After the first SIGINT or SIGTERM, running jobs have
    worker.shutdown_timeout to finish; a second signal stops them and returns them to their queues. SIGHUP reloads the
    handlers and the reloadable settings; running jobs finish with the old handlers. In a terminal SIGHUP stops the
    worker instead, because closing the window sends it.

    With --once: runs until no job is pending, running, retrying or deferred. Exit code 0, or 3 if a job became dead in
    this run. Does not wait for a missing root or for the cooldown of an open circuit breaker: its jobs stay deferred
    for the next run, an error says how many and why, and the exit code is 1, also if jobs became dead.
    Failed webhook deliveries are also reported and left for the next run.

    $ fileq worker --count 8  # eight jobs at a time
    $ fileq worker --app-dir /opt/handlers --set redis.addr=redis:6379  # handlers from another directory"""
    return _work(invocation, is_producing=False)


@command("all", "producer and worker in one process", _DIR, APP_DIR, _ONCE, _COUNT)
def _all(invocation: Invocation) -> int:
    """Runs producer and worker in one process: everything a single machine needs.

    With --once, for cron and CI: scans once, then runs until no job is pending, running, retrying or deferred. Exit
    code 0, or 3 if a job became dead in this run. Waits up to a minute for files that are still being written. Jobs
    scheduled for later, jobs in paused queues and failed webhook deliveries are reported and left for later. Does not
    wait for a missing root or for the cooldown of an open circuit breaker: its jobs stay deferred for the next run, an
    error says how many and why, and the exit code is 1, also if jobs became dead.

    $ fileq all ./inbox  # process files dropped into ./inbox; needs no server, only an SQLite file
    $ fileq all ./inbox --once  # process the files that are there now, then exit"""
    return _work(invocation, is_producing=True)


@command("serve", "serve the web console and the REST API", APP_DIR, *SERVER_OPTIONS)
def _serve(invocation: Invocation) -> int:
    """Serves the web console (docs/console.md) and the REST API (docs/api.md) until SIGTERM or Ctrl-C. Runs no jobs. On
    shutdown, event streams close at once and requests in progress have 5 s to finish.

    Every request needs a key (`fileq keys create`). Without any key it listens on loopback only and prints a one-time
    login link, valid for 10 minutes. `fileq login-link` prints a new one.

    First steps: start it and open the link that it prints. For a program, create a key in another terminal and send it:

      fileq keys create me --scope operate
      curl -H "X-API-Key: fq_…" http://127.0.0.1:8080/api/v1/stats

    `fileq doctor serve` checks its settings.

    $ fileq serve  # on http://127.0.0.1:8080
    $ fileq serve --bind 0.0.0.0 --port 80  # for other machines; needs a key"""
    from fileq.server.role import run_serve

    options = invocation.options
    return run_serve(invocation.loaded, invocation.load_again, options.app_dir, options.login_name or "")


@command("start", "producer, worker, console and API in one process", _DIR, APP_DIR, _COUNT, *SERVER_OPTIONS)
def _start(invocation: Invocation) -> int:
    """Runs what `fileq all` and `fileq serve` run, in one process: watches a directory, processes its files and serves
    the web console and the REST API.

    $ fileq start ./inbox  # process files dropped into ./inbox; open the link that it prints"""
    from fileq.server.role import server_beside

    def beside(broker: FullBroker, emit: Emit) -> Service:
        return server_beside(invocation.config, broker, emit, invocation.options.login_name or "")

    return _work(invocation, is_producing=True, beside=beside)
