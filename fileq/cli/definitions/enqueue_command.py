"""`fileq try|enqueue`: run the handler of one file here; enqueue jobs for files, commands or a type."""

from __future__ import annotations

import argparse
import sys
import time
import uuid
from functools import partial
from typing import TYPE_CHECKING, Any

import msgspec

from fileq.cli.arguments import APP_DIR, argument, duration, utf8_text, whole_number, zoned_time
from fileq.cli.command import Invocation, command
from fileq.cli.definitions.batch_commands import CALLBACKS, planned_batch
from fileq.cli.terminal import age, remark
from fileq.cli.worker_notes import print_callback_note, print_payload_note, print_untaken_note
from fileq.core.errors import ConfigError, JobError
from fileq.core.job import State, rfc3339_ms
from fileq.core.text import printable, printable_json, printable_lines

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from fileq.client.job_endings import JobEndings
    from fileq.client.transport import Accepted, BatchRequest
    from fileq.commands.enqueue import RequestedJob
    from fileq.config import Config, Loaded
    from fileq.core.units import PointInTime
    from fileq.queries.documents import BatchDocument, JobDocument


_FILE = argument("path", metavar="PATH", help="the file")


@command("try", "run a file's handler here, without a queue", _FILE, APP_DIR)
def _try(invocation: Invocation) -> int:
    """Runs the handler that a worker would choose for this file, the way a worker would: in a child process, with the
    same timeout and memory limit. There is no queue, no retry and no record. Prints the handler's result to stdout as
    JSON, and everything else to stderr. For a file outside the roots, routes are matched against its name only. Ctrl-C
    stops the handler and the processes it started. Exit code 1 if the handler failed.

    The handler is loaded from its current source. Running workers keep the version they have loaded until SIGHUP or a
    restart.

    $ fileq try inbox/report.pdf  # shows the handler, its result and how long it takes
    $ fileq try ~/Desktop/sample.pdf  # a sample that is not in scan_dir"""
    return try_and_print(invocation.loaded, invocation.options.path, invocation.options.app_dir)


def try_and_print(loaded: Loaded, path: str, app_dir: str = "") -> int:
    """Prints the result to stdout and everything else to stderr; returns 0, or 1 if the handler failed."""
    from fileq.commands.try_handler import try_path

    def announce(text: str) -> None:
        print(printable(text), file=sys.stderr)

    trial = try_path(loaded, path, app_dir, announce=announce)
    if trial.stack:
        print(printable_lines(trial.stack), file=sys.stderr)
    if trial.failure:
        announce(f"failed after {trial.took}; {trial.failure}")
        return 1
    if trial.result:
        print(printable_json(msgspec.json.format(trial.result, indent=2).decode()))
    if trial.warning:
        announce(trial.warning)
    for line in trial.made:
        announce(line)
    announce(f"done in {trial.took}")
    return 0


def _due_time(parser: argparse.ArgumentParser) -> None:
    when = parser.add_mutually_exclusive_group()
    when.add_argument("--delay", type=duration, metavar="D", help="run after this delay, such as 10m")
    when.add_argument(
        "--at",
        type=zoned_time,
        metavar="TIME",
        help="not before 2026-01-31T18:00 (local time of this machine) or 2026-01-31T18:00Z",
    )


@command(
    "enqueue",
    "enqueue jobs for files, commands or a type",
    argument("subjects", nargs="*", metavar="PATH", help='a file; or a job as JSON: \'{"command": "…"}\''),
    argument("--type", metavar="T", help="enqueue one job of this type, without a file"),
    argument("--payload", metavar="JSON", help="payload of the --type job (job.payload)"),
    argument("--priority", metavar="QUEUE", help="the queue (default: the task's, or the producer's choice)"),
    _due_time,
    argument("--max-retries", type=whole_number(), metavar="N", help="overrides worker.max_retries"),
    argument("--timeout", type=duration, metavar="D", help="time limit per attempt; overrides worker.timeout"),
    argument("--id", metavar="ID", help="job id; if it is in use, nothing is enqueued"),
    argument(
        "--batch", type=utf8_text, metavar="NAME", help="form a batch with this name, or join the one with this id"
    ),
    *CALLBACKS,
    argument("--wait", action="store_true", help="wait until the jobs have ended and show their results"),
    json_fields=(
        ("jobs[]", "one object per job, in argument order, as in `fileq admin list --json`, and:"),
        ("jobs[].fate", "string: enqueued, or duplicate if a job with this id already exists"),
        (
            "batch_id",
            "string or null: the batch; without one, an id shared by all jobs of the call; null for a single job",
        ),
    ),
)
def _run(invocation: Invocation) -> int:
    """Enqueues one job per file, even if its version was processed before, and prints the job ids, one per line. The
    version is recorded as if a producer had found it, so a running producer does not enqueue it again. Files must be
    below worker.allowed_roots or, if that is not set, below producer.scan_dir.

    If another job for the same version is still pending, both run, one after the other. If worker.after moves or
    deletes the file after the first one, the second one does not run: it is completed as skipped.

    With --type: one job without a file, for the handler of that type. Its queue is that of its task, if a module of
    `imports` has the task and can be imported here, or else producer.default_priority.

    An argument that starts with a brace is a job in JSON. Its keys are `command`, or `type` and `payload`; and `id`,
    `priority`, `max_retries`, `timeout`, `delay` and `run_at` (same format as --at). Durations are seconds, or strings
    such as "5m". Unknown keys are refused, and so are options that contradict the JSON. Commands run only on workers
    with worker.allow_commands.

    --at without a zone is the local time of this machine; a note says which time that is. If the time has passed, a
    note says so and the job is due at once.

    All arguments are checked before the first job is enqueued. If the connection is lost, repeat the command with the
    same --id: an existing job is not enqueued twice. Its id is printed, and the exit code is 0.

    With --batch NAME the jobs form a new, sealed batch with that name: --then is enqueued once all are completed,
    --catch when the first dies, --finally when all have ended. If NAME is the id of an open batch, the jobs join it,
    and it stays open. `fileq batch show` shows its progress.

    With --wait the command waits until all its jobs have ended and prints the result or error of each. The exit code is
    0 if all were completed, 3 if one is dead, 1 if one was cancelled. Ctrl-C stops only the waiting; the jobs stay
    enqueued.

    $ fileq enqueue inbox/a.pdf inbox/b.pdf  # process these files (again)
    $ fileq enqueue inbox/big.zip --priority low --delay 10m  # in ten minutes, in the queue low
    $ fileq enqueue --type report --payload '{"month": 1}' --id report-2026-01
      # a job without a file, at most once under this id
    $ fileq enqueue inbox/a.pdf --wait  # process this file now and show the result
    $ fileq enqueue in/a.csv in/b.csv --batch nightly --then load_partition  # load when both are completed
    $ fileq enqueue '{"command": "df -h"}' --timeout 30s  # a shell command, run by a worker
    $ fileq enqueue '{"id": "sync", "command": "rsync -a a/ b/", "max_retries": 5}'  # a command with options of its own
    """
    from fileq.client.file_jobs import moved_to
    from fileq.commands.enqueue import COMMAND_TYPE, Enqueuing, endings_of_jobs, entries_for, job_of_type, requested

    options = invocation.options
    _check(options)
    subjects = requested(options.subjects)
    if options.type is not None:
        subjects = [job_of_type(options.type, options.payload)]
    config = invocation.config
    line = _line_options(options, config)
    _check_contradictions(line, subjects)
    plan = _batch(invocation) if options.batch is not None else None
    if plan is not None:
        line = {"priority": plan.priority, **line, "batch": plan.id}
    elif len(subjects) > 1:
        line["named_batch"] = str(uuid.uuid4())
    line["is_traced"] = config.observability.tracing.enabled
    entries = entries_for(config, subjects, line, partial(moved_to, invocation.broker))
    if any(entry.job.type == COMMAND_TYPE for entry in entries) and not config.worker.allow_commands:
        remark("worker.allow_commands is false here; workers with this setting reject the command")
    if not options.quiet:
        _remark_time("--at", options.at)
        for subject in subjects:
            _remark_time("run_at", None if isinstance(subject, str) else subject.run_at)
    broker = invocation.broker(create=True)
    endings = endings_of_jobs(broker, remark) if options.wait else None
    enqueuing = Enqueuing(broker, config)
    has_enqueued = False
    try:
        if plan is None:
            enqueuing.enqueue(entries)
        else:
            from fileq.client.transport import BatchRequest
            from fileq.commands.batches import fill

            is_new = isinstance(plan, BatchRequest)
            fill(broker, config, plan, entries, enqueuing, seals=is_new)
            if is_new and not options.quiet:
                remark(f"created and sealed batch {plan.id}; see 'fileq batch show {plan.id}'")
        has_enqueued = True
        # Before the ids are printed: who reads them may press Ctrl-C, which from then on only ends the wait.
        typed = (None if isinstance(one, str) or one.type == COMMAND_TYPE else one.type for one in subjects)
        named = (*typed, options.then, options.catch, options.finally_)
        print_untaken_note(invocation, named, (entry.job.path for entry in entries if entry.job.filepath))
        print_payload_note(invocation, ((entry.job.type, bytes(entry.job.payload or b"null")) for entry in entries))
        print_callback_note(invocation)
    finally:
        # Also after an outage: prints the jobs that were enqueued before it. The spans are sent first, because the
        # reader of stdout may exit early.
        try:
            if unsent := enqueuing.spans.send():
                remark(f"some trace spans of these jobs were not sent: {unsent}")
        finally:
            # With --wait one JSON document is printed, at the end of all jobs.
            if not options.json:
                for job in enqueuing.jobs:
                    print(job.id)
                    if job.fate == "duplicate":
                        remark(f"a job with the id {job.id} already exists; nothing was enqueued")
            elif enqueuing.jobs and not (endings is not None and has_enqueued):
                _print_documents(invocation, enqueuing.jobs, entries[0].job.batch_id, {})
    return 0 if endings is None else _wait(invocation, endings, enqueuing.jobs, entries[0].job.batch_id)


def _batch(invocation: Invocation) -> BatchRequest | BatchDocument:
    """The batch with this id; else a new one with this name."""
    from fileq.commands.batches import open_batch

    given = invocation.options
    batch = open_batch(invocation.broker(create=True), given.batch)
    if batch is None:
        return planned_batch(given, given.batch)
    if given.then or given.catch or given.finally_ or given.allow_failures:
        chosen = "its callbacks and --allow-failures were set when it was created"
        raise ConfigError(f"batch {given.batch} already exists; {chosen}")
    return batch


def _line_options(given: argparse.Namespace, config: Config) -> dict[str, Any]:
    """The options that the line sets, as fields of JobOptions."""
    from fileq.client.broker_transport import check_priority
    from fileq.core.job_options import EnqueueOptions, read_options
    from fileq.core.own_jobs import check_id

    wanted = EnqueueOptions(priority=given.priority, max_retries=given.max_retries, timeout=given.timeout, id=given.id)
    wanted |= {"delay": given.delay, "at": rfc3339_ms(given.at.ms) if given.at is not None else None}
    try:
        check_priority(config, given.priority or "")
        check_id(given.id or "")
        return read_options(wanted, EnqueueOptions)
    except (ConfigError, JobError) as error:
        problems = error.problems if isinstance(error, ConfigError) else (str(error),)
        raise ConfigError([f"--{problem}" for problem in problems]) from None


def _wait(invocation: Invocation, endings: JobEndings, jobs: list[Accepted], batch_id: str | None) -> int:
    is_json = invocation.options.json
    ended: dict[str, JobDocument] = {}
    try:
        sys.stdout.flush()
        for job in (ending.job for ending in endings.of([job.id for job in jobs])):
            ended[job.id] = job
            if not is_json:
                print(_ended_line(job), flush=True)
    except KeyboardInterrupt:
        remark(f"{len(jobs) - len(ended)} of {len(jobs)} jobs have not ended; they stay enqueued")
        raise
    finally:
        endings.close()
        if is_json:
            _print_documents(invocation, jobs, batch_id, ended)
            sys.stdout.flush()
    statuses = {job.status for job in ended.values()}
    return 3 if State.DEAD in statuses else 0 if statuses <= {State.COMPLETED} else 1


def _print_documents(
    invocation: Invocation, jobs: list[Accepted], batch_id: str | None, ended: Mapping[str, JobDocument]
) -> None:
    """Those that are not in `ended` as they are now."""
    from fileq.commands.enqueue import documents_of

    others = [job.id for job in jobs if job.id not in ended]
    known = {**ended, **dict(zip(others, documents_of(invocation.broker(), others) if others else (), strict=True))}
    shown = [{**msgspec.to_builtins(known[job.id]), "fate": job.fate} for job in jobs]
    invocation.print_json({"jobs": shown, "batch_id": batch_id})


def _ended_line(job: JobDocument) -> str:
    if job.status == "completed":
        result = "" if job.result is None else f": {msgspec.json.encode(job.result).decode()}"
        return printable(f"{job.id} completed{result}")
    return printable(f"{job.id} {job.status}: {job.error or ''}")


def _remark_time(name: str, given: PointInTime | None) -> None:
    """Says which zone was assumed, and that a time in the past means now."""
    if given is None:
        return
    if given.assumed:
        remark(f"{name} has no time zone; using local time: {given.assumed}")
    late_s = time.time() - given.ms / 1000
    if late_s > 0:
        remark(f"{name} is in the past, {age(late_s)} ago; the job is due at once")


def _check_contradictions(line: Mapping[str, Any], subjects: Sequence[str | RequestedJob]) -> None:
    """An option that says something else than the JSON of a job is refused: either may be the mistake."""
    names = {"timeout_s": "timeout", "delay_ms": "delay", "at_ms": "at"}
    for job in subjects:
        said = {} if isinstance(job, str) else job.options
        is_due = not said.keys().isdisjoint(("delay_ms", "at_ms"))
        for field, value in line.items():
            is_said = is_due if field in ("delay_ms", "at_ms") else field in said
            if is_said and said.get(field) != value:
                option = names.get(field, field).replace("_", "-")
                raise ConfigError(f"--{option} contradicts the JSON of a job; omit one of them")


def _check(options: argparse.Namespace) -> None:
    if options.type is not None and options.subjects:
        raise ConfigError(f"--type enqueues a job without a file; omit --type or {options.subjects[0]!r}")
    if options.type is None and options.payload is not None:
        raise ConfigError("--payload needs --type; see 'fileq enqueue --help'")
    if options.type is None and not options.subjects:
        raise ConfigError("nothing to enqueue; pass files or --type; see 'fileq enqueue --help'")
    if options.batch is None and (options.then or options.catch or options.finally_ or options.allow_failures):
        raise ConfigError("--then, --catch, --finally and --allow-failures need --batch; see 'fileq enqueue --help'")
    if options.id and len(options.subjects) > 1:
        count = len(options.subjects)
        raise ConfigError(f"--id is {options.id!r}, but there are {count} jobs to enqueue; --id is for a single job")
