"""`fileq batch create|list|show|seal|cancel|retry`: jobs that are counted together."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from fileq.cli.arguments import argument, utf8_text, whole_number
from fileq.cli.command import Invocation, command, declared
from fileq.cli.terminal import plural, remark, screen_of_stdout
from fileq.cli.worker_notes import print_callback_note, print_untaken_note
from fileq.core.errors import BatchError, ConfigError
from fileq.core.text import printable

if TYPE_CHECKING:
    from fileq.client.transport import BatchRequest
    from fileq.queries.documents import BatchDocument

_AS_SHOWN = (("…", "the batch, as `fileq batch show --json` prints it"),)
CALLBACKS = (
    argument("--then", metavar="TASK", help="batch callback: enqueued once, when all jobs are completed"),
    argument("--catch", metavar="TASK", help="batch callback: enqueued once, when the first job dies"),
    argument(
        "--finally", dest="finally_", metavar="TASK", help="batch callback: enqueued once, when the batch is finished"
    ),
    argument("--allow-failures", action="store_true", help="a dead job does not cancel the rest of the batch"),
)
_ID = argument("id", type=utf8_text, metavar="BATCH", help="id of the batch")
_BATCH = declared("fileq.queries.documents:BatchDocument")


@command(
    "admin batch create",
    "create a batch, with or without files",
    argument("paths", nargs="*", metavar="PATH", help="a file to enqueue as a member"),
    argument("--name", default="", type=utf8_text, metavar="NAME", help="first part of the batch id"),
    argument("--manifest", metavar="FILE", help="enqueue the files in it: JSON, CSV, sha256sum output or plain paths"),
    *CALLBACKS,
    argument("--parent", default="", type=utf8_text, metavar="BATCH", help="make it a child of this batch"),
    argument("--priority", default="", metavar="QUEUE", help="the queue of its jobs"),
    argument("--open", action="store_true", help="leave it open for more jobs"),
    argument("--wait", action="store_true", help="wait until it is finished"),
    json_fields=_AS_SHOWN,
)
def _create(invocation: Invocation) -> int:
    """Creates a batch and prints its id. The jobs of a batch are tracked together: --then is enqueued once all of them
    are completed, --catch when the first one dies, --finally when all have ended. Unless --allow-failures is given, the
    first dead job cancels the rest.

    With paths or --manifest it enqueues one job per file, as `fileq enqueue` does, and seals the batch. Without them
    the batch stays open: `fileq enqueue --batch ID` adds jobs and `fileq batch seal ID` closes it to new ones. An open
    batch is cancelled if nothing is added for 24 hours.

    A manifest is a JSON array of {"path", "size", "sha256"} or one such object per line, CSV with these columns, the
    output of sha256sum, or one path per line. Relative paths are relative to its directory. Sizes and checksums are
    checked first; if a file is missing or differs, nothing is created.

    With --wait the command waits until the batch is finished; a terminal shows the progress. The exit code is 0 if all
    jobs were completed, 3 if one is dead, 1 if one was cancelled or deleted. Ctrl-C stops only the waiting.

    $ fileq batch create --name nightly --then load_partition  # an open batch; its id is printed
    $ fileq batch create --manifest in/files.json --then report --wait  # process these files together
    $ fileq batch create in/*.csv --allow-failures --finally report  # continue after failures"""
    from fileq.commands.batches import fill, manifest_paths
    from fileq.commands.enqueue import Enqueuing, entries_for, requested

    given, config = invocation.options, invocation.config
    paths = [*given.paths, *(manifest_paths(given.manifest) if given.manifest is not None else ())]
    is_sealed = bool(paths or given.manifest is not None) and not given.open
    if given.wait and not is_sealed:
        advice = "omit --open" if given.open else "pass files or --manifest"
        raise ConfigError(f"--wait would never end, because the batch stays open; {advice}")
    plan = planned_batch(given, given.name, given.parent)
    options = {"priority": given.priority, "batch": plan.id, "is_traced": config.observability.tracing.enabled}
    entries = entries_for(config, requested(paths), options) if paths else []
    broker = invocation.broker()
    enqueuing = Enqueuing(broker, config)
    fill(broker, config, plan, entries, enqueuing, seals=is_sealed)
    if unsent := enqueuing.spans.send():
        remark(f"some trace spans of these jobs were not sent: {unsent}")
    print_untaken_note(invocation, (given.then, given.catch, given.finally_))
    print_callback_note(invocation)
    if given.wait:
        return _wait(invocation, plan.id)
    if given.json:
        invocation.print_json(_report(invocation, plan.id))
        return 0
    print(plan.id)
    if is_sealed and not entries and not given.quiet:
        remark(f"{given.manifest} lists no files: the batch is empty and already finished")
    if not is_sealed and not given.quiet:
        then = f"then run 'fileq batch seal {plan.id}'"
        remark(f"the batch is open; add jobs with 'fileq enqueue … --batch {plan.id}', {then}")
    return 0


def planned_batch(given: argparse.Namespace, name: str, parent: str = "") -> BatchRequest:
    """A new batch with the callbacks of the line."""
    from fileq.client.batch_handle import BatchKeywords, batch_request

    options = BatchKeywords(then=given.then, catch=given.catch, finally_=given.finally_, parent=parent)
    options |= {"allow_failures": given.allow_failures, "priority": given.priority or ""}
    return batch_request(name, **options)


def _wait(invocation: Invocation, id: str) -> int:
    """Shows how far the batch is, on a terminal. Ctrl-C ends only the wait."""
    from fileq.cli.batch_text import ending_line, shown_wait

    if not invocation.options.json:
        print(id, flush=True)
    try:
        status = shown_wait(invocation.broker(), id)
    except KeyboardInterrupt:
        remark(f"batch {id} continues; see 'fileq batch show {id}'")
        raise
    report = _report(invocation, id)
    code = 3 if status.dead else 0 if status.is_success else 1
    return invocation.answer(report, lambda: [] if invocation.options.quiet else [ending_line(report)], code)


@command(
    "admin batch list",
    "list batches with their counts",
    argument("--unfinished", action="store_true", help="only batches that are not finished"),
    argument("--limit", type=whole_number(1), default=50, metavar="N", help="at most N (default: %(default)s)"),
    json_fields=(("batches[]", "one object each, as `fileq batch show --json`, without failures"),),
)
def _list(invocation: Invocation) -> int:
    """Lists the batches, newest first. Finished batches are kept for 30 days, unfinished ones forever.

    $ fileq batch list --unfinished  # what is in progress
    $ fileq batch list --json  # as JSON"""
    from fileq.cli.batch_text import render_batches
    from fileq.commands.batches import list_batches

    given = invocation.options
    batches = list_batches(invocation.broker(), given.limit, unfinished=given.unfinished)
    return invocation.answer({"batches": batches}, lambda: render_batches(batches, screen_of_stdout()))


@command("admin batch show", "show one batch: counts, callbacks, failures", _ID, json_fields=_BATCH)
def _show(invocation: Invocation) -> int:
    """Shows a batch: its status, the counts of its jobs, its callbacks with the statuses of their jobs, and the first
    dead jobs with their errors. A child batch is one member. `fileq list --batch ID` lists the jobs.

    $ fileq batch show nightly-3f9c12ab77de  # how far along is it?"""
    from fileq.cli.batch_text import render_batch

    report = _report(invocation, invocation.options.id)
    return invocation.answer(report, lambda: render_batch(report, screen_of_stdout()))


@command("admin batch seal", "close a batch to new jobs", _ID, json_fields=_AS_SHOWN, only_confirms=True)
def _seal(invocation: Invocation) -> int:
    """Seals an open batch, so that it can finish. After that only its own running jobs can add jobs. An empty batch
    finishes at once. Exit code 1 if it is not open.

    $ fileq batch seal nightly-3f9c12ab77de  # all jobs have been added"""
    from fileq.client.broker_transport import BrokerTransport

    id = invocation.options.id
    report = _report(invocation, id)
    if not BrokerTransport(invocation.broker(), invocation.config).seal_batch(id):
        raise BatchError(f"batch {id} is not open but {report.status}")
    return _confirm(invocation, "sealed")


@command("admin batch cancel", "cancel the unfinished jobs of a batch", _ID, json_fields=_AS_SHOWN, only_confirms=True)
def _cancel(invocation: Invocation) -> int:
    """Seals the batch and cancels its unfinished jobs: running ones within a second, the others at once or when they
    are claimed. Child batches are cancelled too. --then is not enqueued, --finally is. Exit code 1 if the batch is
    already finished or cancelled.

    $ fileq batch cancel nightly-3f9c12ab77de  # stop it"""
    from fileq.actions.bulk import JobAction
    from fileq.client.broker_transport import BrokerTransport
    from fileq.commands.action_log import note_batch

    id = invocation.options.id
    report = _report(invocation, id)
    if not BrokerTransport(invocation.broker(), invocation.config).cancel_batch(id):
        raise BatchError(f"batch {id} is already {'cancelled' if report.is_cancelled else report.status}")
    invocation.note(note_batch, JobAction.CANCEL, id)
    return _confirm(invocation, "cancelled")


@command(
    "admin batch retry",
    "retry the dead jobs of a batch",
    _ID,
    json_fields=(
        ("id, retried", "string, number: the batch, and how many jobs were retried"),
        ("left[]", "id and reason (strings) of each job that stays dead"),
    ),
    only_confirms=True,
)
def _retry(invocation: Invocation) -> int:
    """Returns the dead jobs of a batch to their queues; the batch is unfinished again and no longer cancelled. Without
    dead jobs nothing changes. Cancelled jobs stay cancelled, so --then is enqueued only if there are none. --catch and
    --finally are never enqueued a second time. Retry child batches by their own ids. Exit code 1 if a job stays dead.

    $ fileq batch retry nightly-3f9c12ab77de  # after the cause was fixed"""
    from fileq.actions.bulk import JobAction
    from fileq.client.broker_transport import BrokerTransport
    from fileq.commands.action_log import note_batch

    id = invocation.options.id
    _report(invocation, id)
    done = BrokerTransport(invocation.broker(), invocation.config).retry_batch(id)
    invocation.note(note_batch, JobAction.RETRY, id, count=done.count)
    left = [{"id": job_id, "reason": why} for job_id, why in done.left.items()]
    lines = [f"{plural(done.count, 'dead job')} of {printable(id)} retried"]
    lines += [printable(f"{job_id} stays dead: {why}") for job_id, why in done.left.items()]
    return invocation.answer({"id": id, "retried": done.count, "left": left}, lambda: lines, 1 if left else 0)


def _confirm(invocation: Invocation, what: str) -> int:
    report = _report(invocation, invocation.options.id)
    left = report.waiting + report.running
    now = "; finished" if report.is_finished else f"; {left} of {report.total} jobs unfinished"
    return invocation.answer(report, lambda: [printable(f"{report.id} {what}{now}")])


def _report(invocation: Invocation, id: str) -> BatchDocument:
    from fileq.commands.batches import show_batch

    return show_batch(invocation.broker(), id)
