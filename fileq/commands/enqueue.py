"""Enqueues jobs that an operator requests. Checks all of them before it enqueues the first.

The job of a file is the one a producer would make, including its version in the ledger, so a running producer does not
enqueue that version again. Unlike a producer it enqueues versions that the ledger knows already. After a kill -9 each
job is enqueued completely or not at all; repeated with the same --id, the command enqueues nothing twice.
"""

from __future__ import annotations

import os
import shlex
import time
import uuid
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from typing import Any

import msgspec
from msgspec import Struct

from fileq.brokers.protocol import FullBroker
from fileq.brokers.types import EnqueueResult, Entry
from fileq.commands.admin.job_summary import file_place
from fileq.config import Config
from fileq.core.errors import ConfigError, JobError
from fileq.core.job import Job, Version, file_job, rfc3339_ms, typed_job
from fileq.core.outcome import Failed
from fileq.core.signature import signature_text
from fileq.files.mounts import keeps_inodes, mount_of, mounts
from fileq.producer.finder.database_files import DatabaseFiles
from fileq.producer.finder.found_file import found_at
from fileq.producer.identity import CONTENT, INODE, STAT
from fileq.producer.priority import priority_chooser
from fileq.runtime.produce_spans import ProduceSpans

BATCH = 500  # jobs in one call of the broker
COMMAND_TYPE = "command"
_ADVICE = {
    "FileVanished": "there is no such file",
    "NotAFile": "it is not a regular file",
}


class JobOptions(Struct, frozen=True):
    """The options of `fileq enqueue`, applied to every job of one call."""

    priority: str = ""  # "": chosen by the extension of the file
    delay_ms: int = 0
    at_ms: int = 0
    max_retries: int | None = None
    timeout_s: float | None = None
    id: str = ""
    is_traced: bool = False

    def applied(self, job: Job, batch_id: str | None) -> Job:
        due_ms = self.at_ms or (time.time_ns() // 1_000_000 + self.delay_ms if self.delay_ms else 0)
        trace_id, span_id = "", ""
        if self.is_traced:
            from fileq.core.trace import new_ids  # slow to import: secrets, hashlib

            trace_id, span_id = new_ids()
        return job.but(
            trace_id=trace_id,
            span_id=span_id,
            max_retries=self.max_retries,
            timeout=self.timeout_s,
            process_at=rfc3339_ms(due_ms) if due_ms else None,
            batch_id=batch_id,
        )


class EnqueuedJob(Struct, frozen=True):
    """One job of the call, as `--json` prints it."""

    id: str
    fate: EnqueueResult
    filepath: str
    type: str | None
    priority: str
    process_at: str | None


class Enqueuing:
    """Enqueues entries in batches. `jobs` holds what the broker acknowledged, also after an outage in the middle."""

    def __init__(self, broker: FullBroker, config: Config) -> None:
        self._broker = broker
        self._spans = ProduceSpans(config)
        self.jobs: list[EnqueuedJob] = []

    def enqueue(self, entries: Sequence[Entry]) -> None:
        for start in range(0, len(entries), BATCH):
            batch = entries[start : start + BATCH]
            fates = self._broker.enqueue(batch).results
            self.jobs += map(_enqueued_job, batch, fates)
            self._spans.add([entry for entry, fate in zip(batch, fates, strict=True) if fate == "enqueued"])

    def send_spans(self) -> str:
        """Sends the `produce` spans; returns the reason why some were not sent, or ""."""
        return self._spans.send()


def _enqueued_job(entry: Entry, fate: EnqueueResult) -> EnqueuedJob:
    job = entry.job
    return EnqueuedJob(job.id, fate, job.filepath, job.type, job.priority, job.process_at)


def moved_to(broker: FullBroker, path: bytes) -> bytes:
    """Where a worker moved the newest version of this file, or b""."""
    [entry] = broker.lookup([path])
    ids = [id for _, id in entry.versions[:1]] if entry is not None else []
    for record in broker.records(ids):
        if record is not None:
            place = file_place(record)
            return place if place != path else b""
    return b""


def entries_for(
    config: Config, subjects: Sequence[str], options: JobOptions, moved_to: Callable[[bytes], bytes] = lambda path: b""
) -> list[Entry]:
    """One entry for each file, or command in JSON, in their order. ConfigError names everything that is wrong.

    `moved_to` is called for files that do not exist, and returns where a worker moved the file, or b""."""
    _check_options(config, options, len(subjects))
    files = _Files(config, moved_to)
    made: list[Entry] = []
    problems: list[str] = []
    batch_id = str(uuid.uuid4()) if len(subjects) > 1 else None
    for subject in subjects:
        try:
            if subject.lstrip().startswith("{"):
                made.append(_typed(config, COMMAND_TYPE, _command(subject), options, batch_id))
            else:
                made.append(files.entry(subject, options, batch_id))
        except ConfigError as error:
            problems += error.problems
    if problems:
        raise ConfigError(problems)
    return made


def entry_of_type(config: Config, type: str, payload: str | None, options: JobOptions) -> Entry:
    """The entry of a job without a file."""
    _check_options(config, options, 1)
    if not type or not type.isprintable():
        raise ConfigError(f"--type is {type!r}; it must be the type of a route, in printable characters")
    value = None if payload is None else _json(payload, "--payload", """'{"key": "value"}'""")
    return _typed(config, type, value, options, None)


def _check_options(config: Config, options: JobOptions, count: int) -> None:
    priorities = config.worker.priorities
    if options.priority and options.priority not in priorities:
        raise ConfigError(f"--priority is {options.priority!r}; it must be one of {', '.join(priorities)}")
    if options.id and count > 1:
        raise ConfigError(f"--id is {options.id!r}, but there are {count} jobs to enqueue; --id is for a single job")


def _typed(config: Config, type: str, payload: Any, options: JobOptions, batch_id: str | None) -> Entry:
    queue = options.priority or config.producer.default_priority
    try:
        job = typed_job(type, payload, priority=queue, now=datetime.now(UTC), id=options.id)
    except JobError as error:
        raise ConfigError(f"--{error}") from error
    job = options.applied(job, batch_id)
    return Entry(job, queue, always=True, delay_ms=options.delay_ms, at_ms=options.at_ms)


def _command(text: str) -> Any:
    value = _json(text, "the argument", """'{"command": "ls"}'; a file with such a name is given as ./{…""")
    line = value.get("command")
    is_list = isinstance(line, list) and bool(line) and all(isinstance(part, str) for part in line) and bool(line[0])
    if not is_list and not (isinstance(line, str) and line.strip()):
        raise ConfigError(
            f"the argument is {text!r:.200}; it must have a command, "
            """such as '{"command": "ls -l"}' or '{"command": ["ls", "-l"]}'"""
        )
    return value


def _json(text: str, what: str, example: str) -> Any:
    try:
        return msgspec.json.decode(text.encode())
    except (msgspec.DecodeError, UnicodeEncodeError, RecursionError) as error:
        raise ConfigError(f"{what} is {text!r:.200}; it must be JSON such as {example} ({error})") from None


def _how_to_run_again(path: bytes) -> str:
    from fileq.files.globs import exact_glob  # imports wcmatch

    return f"to process it again: fileq reprocess --match {shlex.quote(exact_glob(os.fsdecode(path)))}"


class _Files:
    """Makes entries for files, under the path that the producer would use."""

    def __init__(self, config: Config, moved_to: Callable[[bytes], bytes]) -> None:
        self._moved_to = moved_to
        self._paths = config.paths
        self._priority_of = priority_chooser(config)
        self._database = DatabaseFiles(config)
        self._scan_dir = os.path.abspath(os.fsencode(config.producer.scan_dir))
        # On this machine a root may have the worker's path or the producer's.
        self._roots = tuple(dict.fromkeys((*self._paths.roots, *map(self._paths.there, self._paths.roots))))
        self._mounts = mounts()
        self._identity = config.producer.identity

    def entry(self, name: str, options: JobOptions, batch_id: str | None) -> Entry:
        where = os.path.abspath(os.fsencode(name))
        self._check(name, where)
        try:
            found = found_at(where, os.stat(where))
        except OSError as error:
            raise ConfigError(f"{name!r} can't be enqueued: {error.strerror}") from error
        path = self._as_produced(where)
        mount = mount_of(os.path.realpath(os.path.dirname(where)), self._mounts) if path == where else None
        inode = found.inode if mount is not None and keeps_inodes(mount.kind) and self._identity != STAT else 0
        queue = options.priority or self._priority_of(path)
        try:
            job = file_job(
                path,
                size=found.size,
                priority=queue,
                now=datetime.now(UTC),
                signature=found.signature,
                inode=inode if self._identity == INODE else 0,
                id=options.id,
            )
        except JobError as error:
            raise ConfigError(f"--{error}") from error
        device = mount.device if mount is not None else "?" if path == where else ""
        # As the producer does: else it would read the file again, and take it for new after a touch.
        content = ""
        if self._identity == CONTENT:
            from fileq.producer.content_check import content_of  # as check_file below

            content = content_of(found, follows_links=True)
        version = Version(path, signature_text(found.signature, inode, content), device)
        job = options.applied(job, batch_id)
        return Entry(job, queue, version, always=True, delay_ms=options.delay_ms, at_ms=options.at_ms)

    def _check(self, name: str, where: bytes) -> None:
        if not name:
            raise ConfigError("a path is empty; name a file")
        if os.path.isdir(where):
            raise ConfigError(f"{name!r} can't be enqueued: it is a directory; name the files in it")
        from fileq.handlers.file_check import check_file  # slow to import, and jobs of a type have no file

        refused = check_file(where, self._roots)
        if isinstance(refused, Failed):
            if refused.kind == "OutsideRoots" and any(where.startswith(dir + b"/") for dir in self._paths.folders):
                raise ConfigError(f"{refused.error}; worker.after moves files there; {_how_to_run_again(where)}")
            if refused.kind == "OutsideRoots":
                raise ConfigError(f"{refused.error}; move the file there or add its directory to worker.allowed_roots")
            if refused.kind == "FileVanished" and (place := self._moved_to(path := self._as_produced(where))):
                moved = f"a worker moved it to {os.fsdecode(place)!r}"
                raise ConfigError(f"{name!r} can't be enqueued: {moved}; {_how_to_run_again(path)}")
            raise ConfigError(f"{name!r} can't be enqueued: {_ADVICE.get(refused.kind, refused.error)}")
        if self._database.owns(os.path.dirname(where), os.path.basename(where)):
            raise ConfigError(f"{name!r} can't be enqueued: it belongs to fileq's own database")

    def _as_produced(self, where: bytes) -> bytes:
        """The path that a producer would use: the ledger identifies files by path, symbolic links unresolved."""
        if where.startswith(self._scan_dir.rstrip(b"/") + b"/"):
            return where
        real_dir, real = os.path.realpath(self._scan_dir), os.path.realpath(where)
        if real.startswith(real_dir.rstrip(b"/") + b"/"):
            return os.path.join(self._scan_dir, real[len(real_dir.rstrip(b"/")) + 1 :])
        return self._paths.there(where)
