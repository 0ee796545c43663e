"""The jobs of fileq itself: `fileq.scan` and `fileq.reprocess`, which schedules make, and `fileq.delivery_check`, which
producers make. They run in the worker process.

A thread can't be stopped from outside, so each works in bounded steps and looks at `context.cancelled` between them. It
is set when the job is cancelled, its time is up or the worker stops. None holds more than a page or a chunk in memory,
but for the files of one delivery, which take at most `worker.max_memory`.

All can be repeated, after a kill -9 too. A scan enqueues what the ledger does not know. Reprocessing skips files whose
job has not ended; if it is repeated, a file whose new job has ended meanwhile is processed once more.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from io import FileIO
from typing import TYPE_CHECKING, Any

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from fileq.actions.reprocess import reprocess
from fileq.brokers.protocol import FullBroker
from fileq.config import Config
from fileq.core.delivery import CHECK_TYPE, DeliveryCheck, problem_of, unreadable, with_others
from fileq.core.errors import ConfigError, FileqError, Permanent
from fileq.core.events import Emit
from fileq.core.job import parse_time
from fileq.core.schedule import REPROCESS_TYPE, SCAN_TYPE
from fileq.files.beneath import LeadsOutside, open_directory, open_regular_in
from fileq.files.paths import advice_for, directory_problem
from fileq.handlers.context import Context, JobView
from fileq.handlers.extensions import load_before_enqueue
from fileq.producer.producer import Producer
from fileq.queries.job_filter import JobFilter
from fileq.runtime.produce_once import produce_once

if TYPE_CHECKING:
    from fileq.runtime.worker_build import BuiltInJobs

CHUNK_BYTES = 1 << 20  # of a file, between two looks at `cancelled`


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
            CHECK_TYPE: lambda job, context: check_delivered(job, context, config),
            REPROCESS_TYPE: lambda job, context: reprocess_files(job, context, broker, config),
        }

    return bound


def scan(
    job: JobView[Any], context: Context, broker: FullBroker, config: Config, emit: Emit, app_dir: str
) -> dict[str, Any]:
    """Enqueues the files of a directory once, as `fileq producer --once DIR` does."""
    directory = _read(ScanPayload, job.payload).dir
    if problem := directory_problem(os.fsencode(directory), is_listed=True):
        advice = f"{advice_for(problem)}, or change the schedule"
        raise ConfigError(f"the directory to scan is {directory!r}, which {problem} here; {advice}")
    config = replace(config, producer=replace(config.producer, scan_dir=directory))
    before = load_before_enqueue(config, app_dir=app_dir)
    max_memory = config.worker.max_memory
    producer = Producer(config, broker, emit=emit, is_once=True, before_enqueue=before, max_memory=max_memory)
    try:
        summary = produce_once(producer, lambda _: _continue(context))
    finally:
        producer.close()
    if producer.finder.problem:
        raise FileqError(f"{producer.finder.problem}; the scan is incomplete")
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
    chosen = JobFilter(match=wanted.match, since_ms=since_ms)
    report = reprocess(broker, config, wanted=chosen, on_entry=lambda: _continue(context))
    return {"enqueued": report.enqueued, "missing": report.missing, "unfinished": report.unfinished}


def check_delivered(job: JobView[Any], context: Context, config: Config) -> dict[str, Any]:
    """Fails with what is wrong with a file of a delivery, if something is. The file is opened below the directory of
    its delivery, and no link leads to another file: the error, with its checksum, is shown to those who sent it."""
    check: DeliveryCheck = _read(DeliveryCheck, job.payload)
    size, sha256 = None, ""
    if not check.incomplete:
        try:
            with open(_delivered(check, config), "rb", buffering=0) as file:
                size = os.fstat(file.fileno()).st_size
                if check.sha256 and check.size in (None, size):
                    sha256 = _sha256(file, size, context)
        except FileNotFoundError:
            # A worker may have moved or deleted it since it was compared: then what was wrong with it stays wrong.
            if problem_of(check, check.found_size, check.found_sha256):
                size, sha256 = check.found_size, check.found_sha256
        except OSError as error:
            raise Permanent(with_others(unreadable(check.path, error.strerror or str(error)), check)) from error
    if problem := problem_of(check, size, sha256):
        raise Permanent(with_others(problem, check))
    return {"path": check.path, "size": size}


def _sha256(file: FileIO, size: int, context: Context) -> str:
    """The checksum of this many bytes: a file that grows all the time has an end too."""
    digest = hashlib.sha256()
    while size > 0 and (chunk := file.read(min(size, CHUNK_BYTES))):
        digest.update(chunk)
        size -= len(chunk)
        _continue(context)
    return digest.hexdigest()


def _continue(context: Context) -> None:
    """Raises FileqError if the job is to stop. Which outcome that has, the executor knows."""
    if context.cancelled.is_set():
        raise FileqError("stopped early")


def _delivered(check: DeliveryCheck, config: Config) -> int:
    """A descriptor of the file, for reading. Raises Permanent if the delivery can't have it; OSError."""
    try:
        directory, path = (config.paths.here(os.fsencode(name)) for name in (check.directory, check.path))
        above = directory.rstrip(b"/") + b"/"
        if not path.startswith(above):
            raise LeadsOutside(path)
        opened = open_directory(directory, config.paths.allowed, follows_links=config.producer.follow_symlinks)
        try:
            return open_regular_in(opened, path[len(above) :])
        finally:
            os.close(opened)
    except ValueError as error:
        raise Permanent(f"no file can have this name: {error}") from None


def _read(kind: type[Any], payload: Any) -> Any:
    try:
        return msgspec.convert(payload, kind)
    except msgspec.ValidationError as error:
        raise Permanent(f"the payload can't be used: {error}") from error
