"""Batches with their progress, and one batch with its callbacks and failures. Only reads."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Annotated, Any

from msgspec import Meta, Struct

from fileq.commands.admin.batch_reports import BatchReport, FailureReport
from fileq.core.api_key import Scope
from fileq.core.delivery import CHECK_TYPE
from fileq.server.api.batch_endpoints import BatchListQuery, list_all_batches, show_one_batch
from fileq.server.console.page import PageRequest

ALSO = "; also: "  # before the other problems of a delivery, in each error of one


class BatchesQuery(Struct, frozen=True, forbid_unknown_fields=True):
    limit: Annotated[int, Meta(ge=1, le=100)] = 50
    cursor: Annotated[str, Meta(min_length=1, max_length=1000)] | None = None
    unfinished: bool = False


class BatchProgress(Struct, frozen=True):
    """`eta_s` is how long the rest takes at the mean speed so far; None if that is unknown. `word` is its state as
    people say it."""

    ended: int
    share: float
    eta_s: float | None
    word: str


def batches(request: PageRequest) -> Mapping[str, Any]:
    query: BatchesQuery = request.query
    found = request.ask(list_all_batches, BatchListQuery(query.limit, query.cursor, query.unfinished))
    now_ms = request.services.now_ms()
    return {
        "rows": [(one, progress(one, now_ms)) for one in found.batches],
        "next_cursor": found.next_cursor,
        "is_later_page": query.cursor is not None,
        "unfinished": query.unfinished,
    }


def batch(request: PageRequest) -> Mapping[str, Any]:
    found = request.ask(show_one_batch, id=request.params["id"])
    wrong_files, dead = failures_of(found, hides_paths=request.services.hides_paths)
    return {
        "batch": found,
        "progress": progress(found, request.services.now_ms()),
        "wrong_files": wrong_files,
        "dead": dead,
        "may_seal": request.has(Scope.OPERATE) or request.has(Scope.ENQUEUE),
        "may_operate": request.has(Scope.OPERATE),
    }


def progress(batch: BatchReport, now_ms: int) -> BatchProgress:
    left = batch.waiting + batch.running
    ended = batch.total - left
    share = ended / batch.total if batch.total else float(batch.finished is not None)
    eta_s = None
    if batch.created and left and ended and batch.finished is None:
        elapsed_s = now_ms / 1000 - datetime.fromisoformat(batch.created).timestamp()
        eta_s = max(0.0, elapsed_s) / ended * left
    return BatchProgress(ended, share, eta_s, _word(batch))


def _word(batch: BatchReport) -> str:
    if batch.is_cancelled:
        return "cancelled"
    if batch.finished is None:
        return batch.state
    return "completed" if batch.is_success else "finished"


def failures_of(
    batch: BatchReport, *, hides_paths: bool = False
) -> tuple[list[tuple[str, FailureReport]], list[FailureReport]]:
    """The files of a delivery that are missing or differ, each with its own problem; and the other dead members.
    A problem names its file, so with `hides_paths` only its kind is left, such as "missing"."""
    end = ":" if hides_paths else ALSO
    checks = [one for one in batch.failures if one.type == CHECK_TYPE]
    others = [one for one in batch.failures if one.type != CHECK_TYPE]
    return [(one.error.removeprefix("Permanent: ").partition(end)[0], one) for one in checks], others
