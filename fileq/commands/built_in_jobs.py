"""The jobs of fileq itself: `fileq.scan` and `fileq.reprocess`, which schedules make, and `fileq.delivery_check`, which
producers make. They run in the worker process.

All can be repeated, after a kill -9 too. A scan enqueues what the ledger does not know. Reprocessing skips files whose
job has not ended; if it is repeated, a file whose new job has ended meanwhile is processed once more.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from fileq.brokers.protocol import FullBroker
from fileq.client.job_filter import JobFilter
from fileq.commands.admin.reprocess import reprocess
from fileq.config import Config
from fileq.core.delivery import CHECK_TYPE, DeliveryCheck, problem_of, with_others
from fileq.core.errors import FileqError, Permanent
from fileq.core.events import Emit
from fileq.core.job import parse_time
from fileq.core.schedule import REPROCESS_TYPE, SCAN_TYPE
from fileq.handlers.before_enqueue import load_before_enqueue
from fileq.handlers.context import Context, JobView
from fileq.producer.producer import Producer
from fileq.runtime.produce_once import produce_once

if TYPE_CHECKING:
    from fileq.runtime.worker_build import BuiltInJobs


class ScanPayload(Struct, frozen=True):
    dir: str


class ReprocessPayload(Struct, frozen=True):
    match: str | None = None
    since_s: float | None = None
    scheduled_for: str = ""


def built_in_jobs(app_dir: str) -> BuiltInJobs:
    """`app_dir` is where functions with @fileq.before_enqueue are imported from."""

    def bound(broker: FullBroker, config: Config, emit: Emit) -> Mapping[str, Callable[..., Any]]:
        return {
            SCAN_TYPE: lambda job, context: scan(job, context, broker, config, emit, app_dir),
            CHECK_TYPE: lambda job, context: check_delivered(job, config),
            REPROCESS_TYPE: lambda job, context: reprocess_files(job, context, broker, config),
        }

    return bound


def scan(
    job: JobView[Any], context: Context, broker: FullBroker, config: Config, emit: Emit, app_dir: str
) -> dict[str, Any]:
    """Enqueues the files of a directory once, as `fileq producer --once DIR` does."""
    directory = _read(ScanPayload, job.payload).dir
    config = replace(config, producer=replace(config.producer, scan_dir=directory))
    before = load_before_enqueue(config, app_dir=app_dir)
    producer = Producer(config, broker, broker, emit=emit, is_once=True, before_enqueue=before)

    def check(_: Producer) -> None:
        if context.cancelled.is_set():
            raise InterruptedError("cancelled")

    try:
        summary = produce_once(producer, check)
    finally:
        producer.close()
    if producer.problem:
        raise FileqError(f"{producer.problem}; the scan is incomplete")
    return {
        "found": summary.found,
        "enqueued": summary.enqueued,
        "known": summary.known,
        "skipped": sum(summary.skipped.values()),
        "unstable": summary.unstable,
    }


def reprocess_files(job: JobView[Any], context: Context, broker: FullBroker, config: Config) -> dict[str, Any]:
    """Enqueues known files again, as `fileq reprocess` does."""
    wanted = _read(ReprocessPayload, job.payload)
    since_ms = None
    if wanted.since_s is not None:
        time = parse_time(wanted.scheduled_for) or datetime.now(UTC)
        since_ms = round((time.timestamp() - wanted.since_s) * 1000)
    report = reprocess(broker, config, wanted=JobFilter(match=wanted.match, since_ms=since_ms), here=config.paths.here)
    return {"enqueued": report.enqueued, "missing": report.missing, "unfinished": report.unfinished}


def check_delivered(job: JobView[Any], config: Config) -> dict[str, Any]:
    """Fails with what is wrong with a file of a delivery, if something is."""
    check: DeliveryCheck = _read(DeliveryCheck, job.payload)
    size, sha256 = None, ""
    if not check.incomplete:
        path = config.paths.here(os.fsencode(check.path))
        try:
            with open(path, "rb") as file:
                size = os.fstat(file.fileno()).st_size
                sha256 = hashlib.file_digest(file, "sha256").hexdigest() if check.sha256 else ""
        except (FileNotFoundError, NotADirectoryError):
            size = None
    if problem := problem_of(check, size, sha256):
        raise Permanent(with_others(problem, check))
    return {"path": check.path, "size": size}


def _read(kind: type[Any], payload: Any) -> Any:
    try:
        return msgspec.convert(payload, kind)
    except msgspec.ValidationError as error:
        raise Permanent(f"the payload can't be used: {error}") from error
