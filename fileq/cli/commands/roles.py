"""`fileq producer`, `fileq worker`, `fileq all`: the roles, each as a word."""

from __future__ import annotations

import argparse

from fileq.cli.arguments import add_app_dir, whole
from fileq.cli.command import Command, Context


def _scanning(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("scan_dir", nargs="?", metavar="DIR", help="the directory of the files (producer.scan_dir)")
    add_app_dir(parser)
    parser.add_argument("--once", action="store_true", help="do what there is to do, then exit")


def _working(parser: argparse.ArgumentParser) -> None:
    _scanning(parser)
    parser.add_argument("--count", type=whole(1), metavar="N", help="jobs that run at the same time (worker.count)")


def _run(context: Context, role: str) -> int:
    options = context.options
    flags = {"producer.scan_dir": options.scan_dir, "worker.count": getattr(options, "count", None)}
    loaded = context.loaded(*(f"{key}={value}" for key, value in flags.items() if value is not None))
    if role == "producer":
        from fileq.runtime.roles import run_producer, run_producer_once

        return run_producer_once(loaded) if options.once else run_producer(loaded)
    if options.once:
        from fileq.runtime.once import run_once

        return run_once(loaded, options.app_dir, is_producing=role == "all")
    from fileq.runtime.roles import run_worker

    return run_worker(loaded, options.app_dir, is_producing=role == "all")


COMMANDS = (
    Command(
        words=("producer",),
        summary="find files and queue a job for each version of them",
        description="""\
Scans a directory, watches it, and queues one job for each version of a file once it is completely written, until a
signal comes. Rate-limited through the broker, together with every other producer.

With --once: one scan, a summary on stdout, and the end.""",
        examples=(
            ("fileq producer /srv/inbox", "watch /srv/inbox until SIGTERM or Ctrl-C"),
            ("fileq producer --once --set producer.rate_limit_per_sec=0", "one scan, as fast as it goes"),
        ),
        arguments=_scanning,
        run=lambda context: _run(context, "producer"),
    ),
    Command(
        words=("worker",),
        summary="run the handlers of queued jobs",
        description="""\
Claims jobs by priority, runs their handlers, settles them, until a signal comes. Also gives back the jobs of workers
that died and moves jobs whose time has come. The first SIGINT or SIGTERM lets running jobs finish, up to
worker.shutdown_timeout; the second ends them and gives them back.

With --once: process until nothing is pending, running or retrying, and exit with 0, or with 3 if a job died in this
run.""",
        examples=(
            ("fileq worker --count 8", "eight jobs at a time"),
            ("fileq worker --app-dir /opt/handlers --set redis.addr=redis:6379", "handlers from elsewhere"),
        ),
        arguments=_working,
        run=lambda context: _run(context, "worker"),
    ),
    Command(
        words=("all",),
        summary="producer and worker in one process",
        description="""\
Producer and worker together: enough for one machine.

With --once: scan once, process until nothing is pending, running or retrying, and exit with 0, or with 3 if a job died
in this run. Jobs scheduled for later and paused queues are left and reported; files still being written are waited
for up to a minute. For cron and CI.""",
        examples=(
            ("fileq all ./inbox", "process what is dropped into ./inbox, on an SQLite file and nothing else"),
            ("fileq all ./inbox --once", "process what is there now, then exit"),
        ),
        arguments=_working,
        run=lambda context: _run(context, "all"),
    ),
)
