"""`fileq batch create|list|show|seal|cancel|retry`: jobs that are counted together."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from fileq.cli.arguments import utf8_text, whole_number
from fileq.cli.command import Command, Invocation
from fileq.cli.json_fields import declared
from fileq.cli.terminal import now_ms, plural, remark, screen_of_stdout
from fileq.cli.worker_notes import print_untaken_note
from fileq.core.errors import BatchError, ConfigError
from fileq.core.text import printable

if TYPE_CHECKING:
    from fileq.queries.documents import BatchDocument

_REDRAW_S = 0.25
_AS_SHOWN = (("…", "the batch, as `fileq batch show --json` prints it"),)


def add_callbacks(parser: argparse.ArgumentParser) -> None:
    """The options of a new batch that `fileq enqueue --batch` has too."""
    parser.add_argument("--then", metavar="TASK", help="of a batch: enqueued once, when all jobs are completed")
    parser.add_argument("--catch", metavar="TASK", help="of a batch: enqueued once, when the first job dies")
    parser.add_argument(
        "--finally", dest="finally_", metavar="TASK", help="of a batch: enqueued once, when it is finished"
    )
    parser.add_argument("--allow-failures", action="store_true", help="of a batch: a dead job does not cancel the rest")


def _create_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("paths", nargs="*", metavar="PATH", help="a file to enqueue as a member")
    parser.add_argument("--name", default="", type=utf8_text, metavar="NAME", help="the first part of its id")
    parser.add_argument(
        "--manifest", metavar="FILE", help="enqueue the files of this list: JSON, CSV, sha256sum output or plain paths"
    )
    add_callbacks(parser)
    parser.add_argument("--parent", default="", type=utf8_text, metavar="BATCH", help="make it a member of this batch")
    parser.add_argument("--priority", default="", metavar="QUEUE", help="the queue of its jobs")
    parser.add_argument("--open", action="store_true", help="do not seal it: more jobs are added later")
    parser.add_argument("--wait", action="store_true", help="wait until it is finished")


def _create(invocation: Invocation) -> int:
    from fileq.client.options import JobOptions
    from fileq.commands.batches import fill, manifest_paths, planned_batch
    from fileq.commands.enqueue import Enqueuing, entries_for, requested

    given, config = invocation.options, invocation.loaded().config
    paths = [*given.paths, *(manifest_paths(given.manifest) if given.manifest is not None else ())]
    is_sealed = bool(paths or given.manifest is not None) and not given.open
    if given.wait and not is_sealed:
        raise ConfigError("--wait would never end, because the batch stays open; name files, or leave out --open")
    plan = planned_batch(
        name=given.name,
        then=given.then,
        catch=given.catch,
        finally_=given.finally_,
        allow_failures=given.allow_failures,
        parent=given.parent,
        priority=given.priority,
    )
    is_traced = config.observability.tracing.enabled
    options = JobOptions(priority=given.priority, batch=plan.id, is_traced=is_traced)
    entries = entries_for(config, requested(paths), options) if paths else []
    broker = invocation.broker()
    enqueuing = Enqueuing(broker, config)
    fill(broker, config, plan, entries, enqueuing)
    if is_sealed:
        broker.seal_batch(plan.id)
    if unsent := enqueuing.send_spans():
        remark(f"not all spans of these jobs were sent: {unsent}")
    print_untaken_note(invocation, (given.then, given.catch, given.finally_))
    if given.wait:
        return _wait(invocation, plan.id)
    if given.json:
        invocation.print_json(_report(invocation, plan.id))
        return 0
    print(plan.id)
    if is_sealed and not entries and not given.quiet:
        remark(f"{given.manifest} names no file: the batch is empty, so it is finished")
    if not is_sealed and not given.quiet:
        remark(f"it is open: 'fileq enqueue … --batch {plan.id}' adds jobs, 'fileq batch seal {plan.id}' seals it")
    return 0


def _wait(invocation: Invocation, id: str) -> int:
    """Shows how far the batch is, on a terminal. Ctrl-C ends only the wait."""
    from fileq.cli.batch_text import ending_line, exit_code_of, shown_wait

    if not invocation.options.json:
        print(id, flush=True)
    try:
        status = shown_wait(invocation.broker(), id, remark, redraw_s=_REDRAW_S)
    except KeyboardInterrupt:
        remark(f"batch {id} goes on; 'fileq batch show {id}' shows it")
        raise
    report = _report(invocation, id)
    return invocation.answer(report, lambda: [ending_line(report)], exit_code_of(status))


def _list_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--unfinished", action="store_true", help="only batches that are not finished")
    parser.add_argument(
        "--limit", type=whole_number(1), default=50, metavar="N", help="at most N (default: %(default)s)"
    )


def _list(invocation: Invocation) -> int:
    from fileq.cli.batch_text import render_batches
    from fileq.commands.batches import list_batches

    given = invocation.options
    batches = list_batches(invocation.broker(), given.limit, unfinished=given.unfinished)
    return invocation.answer({"batches": batches}, lambda: render_batches(batches, screen_of_stdout(), now_ms()))


def _id(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("id", type=utf8_text, metavar="BATCH", help="id of the batch")


def _show(invocation: Invocation) -> int:
    from fileq.cli.batch_text import render_batch

    report = _report(invocation, invocation.options.id)
    return invocation.answer(report, lambda: render_batch(report, screen_of_stdout(), now_ms()))


def _seal(invocation: Invocation) -> int:
    from fileq.client.broker_batches import seal_batch

    id = invocation.options.id
    report = _report(invocation, id)
    if not seal_batch(invocation.broker(), id):
        raise BatchError(f"batch {id} is not open; it is {report.status}")
    return _confirm(invocation, "is sealed")


def _cancel(invocation: Invocation) -> int:
    from fileq.actions.bulk import JobAction
    from fileq.client.broker_batches import cancel_batch
    from fileq.commands.action_log import note_batch

    id, broker = invocation.options.id, invocation.broker()
    report = _report(invocation, id)
    if not cancel_batch(broker, invocation.loaded().config, id):
        status = "cancelled" if report.is_cancelled else report.status
        raise BatchError(f"batch {id} can't be cancelled: it is {status}")
    invocation.note(note_batch, JobAction.CANCEL, id)
    return _confirm(invocation, "is cancelled")


def _retry(invocation: Invocation) -> int:
    from fileq.actions.bulk import JobAction
    from fileq.client.broker_batches import retry_batch
    from fileq.commands.action_log import note_batch

    id = invocation.options.id
    _report(invocation, id)
    done = retry_batch(invocation.broker(), invocation.loaded().config, id)
    invocation.note(note_batch, JobAction.RETRY, id, count=done.count)
    left = [{"id": job_id, "reason": why} for job_id, why in done.left.items()]
    lines = [f"{plural(done.count, 'dead job')} of {printable(id)} put back"]
    lines += [printable(f"{job_id} stays dead: {why}") for job_id, why in done.left.items()]
    return invocation.answer({"id": id, "retried": done.count, "left": left}, lambda: lines, 1 if left else 0)


def _confirm(invocation: Invocation, what: str) -> int:
    report = _report(invocation, invocation.options.id)
    left = report.waiting + report.running
    now = "; it is finished" if report.is_finished else f"; {left} of {report.total} jobs have not ended"
    return invocation.answer(report, lambda: [printable(f"{report.id} {what}{now}")])


def _report(invocation: Invocation, id: str) -> BatchDocument:
    from fileq.commands.batches import show_batch

    return show_batch(invocation.broker(), id)


COMMANDS = (
    Command(
        words=("admin", "batch", "create"),
        summary="create a batch, with or without files",
        description="""\
Creates a batch and prints its id. Jobs of a batch are counted together: --then is enqueued once all of them are
completed, --catch when the first one dies, --finally when none is left. Unless --allow-failures is given, the first
dead job cancels the rest.

With paths or --manifest: one job for each file, as `fileq enqueue` makes it; then the batch is sealed. Without them it
stays open: `fileq enqueue --batch ID` adds jobs and `fileq batch seal ID` says that there are no more. An open batch
that nothing is added to for 24 hours is cancelled.

A manifest is a JSON array of {"path", "size", "sha256"} or one such object on each line, CSV with these columns, the
output of sha256sum, or one path on each line. Relative paths are relative to its directory. Sizes and checksums are
compared first; if a file is missing or different, nothing is created.

With --wait the command waits until the batch is finished; a terminal shows how far it is. The exit code is 0 if all
jobs were completed, 3 if one is dead, 1 if one was cancelled or deleted. Ctrl-C ends only the wait.""",
        examples=(
            ("fileq batch create --name nightly --then load_partition", "an open batch; its id is printed"),
            ("fileq batch create --manifest in/files.json --then report --wait", "process these files together"),
            ("fileq batch create in/*.csv --allow-failures --finally report", "go on after failures"),
        ),
        arguments=_create_arguments,
        run=_create,
        json_fields=_AS_SHOWN,
    ),
    Command(
        words=("admin", "batch", "list"),
        summary="list batches with their counts",
        description="Lists the batches, newest first. A finished one is kept for 30 days, an unfinished one for ever.",
        examples=(("fileq batch list --unfinished", "what is under way"), ("fileq batch list --json", "for a program")),
        arguments=_list_arguments,
        run=_list,
        json_fields=(("batches[]", "one object each, as `fileq batch show --json`, without failures"),),
    ),
    Command(
        words=("admin", "batch", "show"),
        summary="show one batch: counts, callbacks, failures",
        description="""\
Shows a batch: its state, how many of its jobs wait, run and have ended, its callbacks with the states of their jobs,
and the first dead jobs with their errors. A child batch is one member. `fileq list --batch ID` lists the jobs.""",
        examples=(("fileq batch show nightly-3f9c12ab77de", "how far is it?"),),
        arguments=_id,
        run=_show,
        json_fields=declared("fileq.queries.documents:BatchDocument"),
    ),
    Command(
        words=("admin", "batch", "seal"),
        summary="close a batch to new jobs",
        description="""\
Seals an open batch, so that it can finish. Only its own running jobs can still add jobs. An empty batch is finished by
it. Exit code 1 if it is not open.""",
        examples=(("fileq batch seal nightly-3f9c12ab77de", "all jobs are added"),),
        arguments=_id,
        run=_seal,
        json_fields=_AS_SHOWN,
        only_confirms=True,
    ),
    Command(
        words=("admin", "batch", "cancel"),
        summary="cancel what is left of a batch",
        description="""\
Seals the batch and cancels its jobs that have not ended: those that wait now, or when they are claimed; running ones
within a second. Child batches are cancelled too. --then is not enqueued, --finally is. Exit code 1 if the batch is
finished or was cancelled before.""",
        examples=(("fileq batch cancel nightly-3f9c12ab77de", "stop it"),),
        arguments=_id,
        run=_cancel,
        json_fields=_AS_SHOWN,
        only_confirms=True,
    ),
    Command(
        words=("admin", "batch", "retry"),
        summary="run the dead jobs of a batch again",
        description="""\
Puts the dead jobs of a batch back into their queues; the batch is unfinished again, and not cancelled any more. Without
dead jobs nothing changes. Jobs that were cancelled stay cancelled, so --then is enqueued only if there are none.
--catch and --finally are never enqueued a second time. Child batches are retried by their own ids. Exit code 1 if a
job stays dead.""",
        examples=(("fileq batch retry nightly-3f9c12ab77de", "after the cause was fixed"),),
        arguments=_id,
        run=_retry,
        json_fields=(
            ("id, retried", "string, number: the batch, and how many jobs were put back"),
            ("left[]", "id and reason (strings) of each job that stays dead"),
        ),
        only_confirms=True,
    ),
)
