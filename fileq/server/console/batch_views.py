"""Batches with their progress, and one batch with its callbacks and failures. Only reads."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Annotated, Any

from markupsafe import Markup
from msgspec import Meta, Struct

from fileq.brokers.protocol import FullBroker
from fileq.commands.admin.pauses import NOTES, PauseNote
from fileq.core.api_key import Scope
from fileq.core.delivery import CHECK_TYPE
from fileq.core.job import DELAYED_STATES, State
from fileq.queries.documents import BatchDocument, JobDocument
from fileq.queries.job_filter import JobFilter
from fileq.queries.job_selection import job_page
from fileq.server.api.batch_endpoints import BatchListQuery, list_all_batches, show_one_batch
from fileq.server.console.view import ViewList, ViewRequest, mark_of_death
from fileq.server.route import NoQuery

VIEWS = ViewList()

ALSO = "; also: "  # before the other problems of a delivery, in each error of one
LISTED = 200  # jobs of paused queues that the list of batches looks at
MEMBERS, LOOKED_AT = 50, 2_000  # waiting members, and jobs, that are looked at to see why a batch waits


class BatchesQuery(BatchListQuery, frozen=True, forbid_unknown_fields=True):
    limit: Annotated[int, Meta(ge=1, le=100)] = 50


class BatchProgress(Struct, frozen=True):
    """`eta_s` is how long the rest takes at the mean speed so far; None if that is unknown. `word` is its state as
    people say it."""

    eta_s: float | None
    word: str
    bar: Markup


class DeferredMembers(Struct, frozen=True):
    """Members that are deferred for the same reason."""

    reason: str
    count: int


class PausedQueue(Struct, frozen=True):
    """A paused queue in which members wait, how many jobs wait in it, and who paused it; None if that is not known."""

    name: str
    waiting: int
    note: PauseNote | None = None


class BatchWait(Struct, frozen=True):
    """Why members wait: `paused` are queues that hold some of them. Of a large batch the first members tell it."""

    paused: tuple[PausedQueue, ...] = ()
    deferred: tuple[DeferredMembers, ...] = ()


@VIEWS.add("/batches", "Batches", "batches.html", is_scan=True, letter="b")
def batches(request: ViewRequest[BatchesQuery]) -> Mapping[str, Any]:
    """Three round trips, and a scan of waiting jobs while a queue is paused and a batch waits."""
    found = request.ask(list_all_batches, request.query)
    now_ms = request.services.now_ms()
    return {
        "rows": [(one, progress(one, now_ms)) for one in found.batches],
        "paused": paused_queues(request.broker, found.batches),
        "next_cursor": found.next_cursor,
    }


@VIEWS.add("/batches/{id:path}", "Batch", "batch.html", is_scan=True)
def batch(request: ViewRequest[NoQuery]) -> Mapping[str, Any]:
    """Three round trips, and a scan of waiting jobs while the batch has some. So which causes are known is
    what the overview or the view of dead jobs read last."""
    found = request.ask(show_one_batch)
    wrong_files, dead = failures_of(found, hides_paths=request.services.hides_paths)
    return {
        "batch": found,
        "progress": progress(found, request.services.now_ms()),
        "wait": request.shown(why_it_waits(request.broker, request.config.worker.priorities, found)),
        "wrong_files": wrong_files,
        "dead": dead,
        "marks": {
            one.id: mark_of_death(one.fingerprint, one.completed_at, request.services.known_causes) for one in dead
        },
        "may_seal": request.has(Scope.OPERATE) or request.has(Scope.ENQUEUE),
    }


def progress(batch: BatchDocument, now_ms: int) -> BatchProgress:
    left = batch.waiting + batch.running
    eta_s = None
    if batch.created_at and left and batch.ended and not batch.is_finished:
        elapsed_s = now_ms / 1000 - datetime.fromisoformat(batch.created_at).timestamp()
        eta_s = max(1.0, elapsed_s / batch.ended * left)
    return BatchProgress(eta_s, _word(batch), parts_bar(batch))


def parts_bar(batch: BatchDocument) -> Markup:
    """Completed members, then cancelled or deleted ones, then dead ones. A part above 0 is always visible."""
    gone = batch.cancelled + batch.deleted
    counts = {"a": batch.completed, "gone": gone, "b": batch.dead}
    widths = {name: max(1.0, 100 * count / batch.total) if count else 0.0 for name, count in counts.items()}
    parts, x, rest = [], 0.0, sum(widths.values())
    for name, width in widths.items():
        x = min(x, 100 - rest)  # small parts are wider than their share
        parts.append(Markup('<rect class="{}" x="{:.1f}" width="{:.1f}" height="8"/>').format(name, x, width))
        x, rest = x + width, rest - width
    words = f"{batch.completed} completed, {batch.dead} dead, {gone} cancelled or deleted, of {batch.total}"
    return Markup(
        '<svg class="chart parts" viewBox="0 0 100 8" preserveAspectRatio="none" role="img" aria-label="{}">'
        '<rect class="track" width="100" height="8"/>{}</svg>'
    ).format(words, Markup("").join(parts))


def why_it_waits(broker: FullBroker, queues: Sequence[str], batch: BatchDocument) -> BatchWait:
    """Looks at the first members that wait."""
    if not batch.waiting or batch.is_finished or batch.is_cancelled:
        return BatchWait()
    wanted = JobFilter(batch=batch.id)
    page = job_page(broker, queues, wanted, states=(State.PENDING, *DELAYED_STATES), limit=MEMBERS, scan_max=LOOKED_AT)
    homes = {job.home for job in page.jobs if job.state is State.PENDING} | {batch.priority}
    notes = NOTES.all(broker) if homes & page.paused and not batch.dead else {}  # dead members cost two round trips
    deferred = [job.record.deferred for job in page.jobs if job.state is State.DEFERRED and job.record is not None]
    paused = [queue for queue in queues if queue in homes & page.paused]
    return BatchWait(
        tuple(PausedQueue(queue, page.pending.get(queue, 0), notes.get(queue)) for queue in paused),
        tuple(DeferredMembers(reason, count) for reason, count in Counter(deferred).most_common()),
    )


def paused_queues(broker: FullBroker, batches: Sequence[BatchDocument]) -> dict[str, list[str]]:
    """The paused queues in which members of these batches wait, by the id of the batch. The first jobs of these queues
    tell it, so a batch far behind others may be left out."""
    waiting = {one.id: one for one in batches if one.waiting and not one.is_finished and not one.is_cancelled}
    paused = sorted(broker.census().paused) if waiting else []
    if not paused:
        return {}
    found = {id: {one.priority} & {*paused} for id, one in waiting.items()}
    page = job_page(broker, paused, JobFilter(), states=(State.PENDING,), limit=LISTED, scan_max=LISTED)
    for job in page.jobs:
        for id in {*job.batches} & found.keys():
            found[id].add(job.queue)
    return {id: sorted(queues) for id, queues in found.items()}


def _word(batch: BatchDocument) -> str:
    if batch.is_cancelled:
        return "cancelled"
    if not batch.is_finished and batch.status == "sealed":
        return "running" if batch.running else "waiting"
    if not batch.is_finished:
        return batch.status
    return "completed" if batch.is_success else "finished"


def failures_of(
    batch: BatchDocument, *, hides_paths: bool = False
) -> tuple[list[tuple[str, JobDocument]], list[JobDocument]]:
    """The files of a delivery that are missing or differ, each with its own problem; and the other dead members.
    A problem names its file, so with `hides_paths` only its kind is left, such as "missing"."""
    end = ":" if hides_paths else ALSO
    checks = [one for one in batch.failures if one.type == CHECK_TYPE]
    others = [one for one in batch.failures if one.type != CHECK_TYPE]
    return [((one.error or "").removeprefix("Permanent: ").partition(end)[0], one) for one in checks], others
