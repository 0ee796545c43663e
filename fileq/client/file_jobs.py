"""Makes the jobs of files that a command or a client names. Checks the files; enqueues nothing.

The job is the one a producer would make, including its version in the ledger, so a running producer does not enqueue
that version again. Unlike a producer it enqueues versions that the ledger knows already.
"""

from __future__ import annotations

import os
import shlex
from collections.abc import Callable
from contextlib import suppress
from datetime import datetime

from fileq.brokers.protocol import FullBroker
from fileq.config import Config
from fileq.config.schema import priority_chooser
from fileq.core.errors import ConfigError, FileqError
from fileq.core.job import Job, Version, file_job, signature_text
from fileq.core.job_options import JobOptions
from fileq.core.outcome import Failed
from fileq.core.text import quoted_path
from fileq.files.globs import exact_glob
from fileq.files.status import found_at, keeps_inodes, mount_of, mounts
from fileq.queries.job_filter import file_place

_ADVICE = {
    "FileVanished": "there is no such file",
    "NotAFile": "it is not a regular file",
    "PermissionError": "this user has no permission to read it",
}


def moved_to(open_broker: Callable[[], FullBroker], path: bytes) -> bytes:
    """Where a worker moved the newest version of this file, or b"": also if the broker can't be asked."""
    with suppress(FileqError):
        broker = open_broker()
        [entry] = broker.lookup([path])
        records = broker.records([id for _, id in entry.versions[:1]] if entry is not None else [])
        place = next((file_place(record) for record in records if record is not None), path)
        return place if place != path else b""
    return b""


def _how_to_run_again(path: bytes) -> str:
    return f"to process it again: fileq reprocess --match {shlex.quote(exact_glob(os.fsdecode(path)))}"


class FileJobs:
    """Makes the jobs of files, under the path that the producer would use. ConfigError for one that can't be enqueued.

    `moved_to` is called for files that do not exist, and returns where a worker moved the file, or b"". Only a caller
    that `may_look` learns whether there is a file outside the roots: a person at this machine, no client of the API."""

    def __init__(
        self, config: Config, moved_to: Callable[[bytes], bytes] = lambda path: b"", *, may_look: bool = False
    ) -> None:
        from fileq.producer.finder.scan import DatabaseFiles  # imports events, which jobs of a type do not need

        self._config = config
        self._moved_to = moved_to
        self._may_look = may_look
        self._paths = config.paths
        self._priority_of = priority_chooser(config)
        self._database = DatabaseFiles(config)
        self._scan_dir = os.path.abspath(os.fsencode(config.producer.scan_dir))
        # On this machine a root may have the worker's path or the producer's.
        self._roots = tuple(dict.fromkeys((*self._paths.roots, *map(self._paths.there, self._paths.roots))))
        self._mounts = mounts()

    def job(self, name: str, options: JobOptions, now: datetime) -> tuple[Job, Version]:
        where, identity = os.path.abspath(os.fsencode(name)), self._config.producer.identity
        self._check(name, where)
        try:
            found = found_at(where, os.stat(where))
        except OSError as error:
            raise ConfigError(f"{quoted_path(name)} can't be enqueued: {error.strerror}") from error
        path = self._as_produced(where)
        mount = mount_of(os.path.realpath(os.path.dirname(where)), self._mounts) if path == where else None
        inode = found.inode if mount is not None and keeps_inodes(mount.kind) and identity != "stat" else 0
        queue, own_inode = options.priority or self._priority_of(path), inode if identity == "inode" else 0
        job = file_job(
            path, size=found.size, priority=queue, now=now, signature=found.signature, inode=own_inode, id=options.id
        )
        device = mount.device if mount is not None else "?" if path == where else ""
        # As the producer does: else it would read the file again, and take it for new after a touch.
        content = ""
        if identity == "content":
            from fileq.producer.content_check import content_of  # as check_file below

            content = content_of(found)
        return job, Version(path, signature_text(found.signature, inode, content), device)

    def _check(self, name: str, where: bytes) -> None:
        if not name:
            raise ConfigError("a path is empty; name a file")
        from fileq.handlers.job_file import check_file  # slow to import, and jobs of a type have no file

        refused = check_file(where, self._roots)
        if isinstance(refused, Failed):
            if refused.kind == "OutsideRoots" and where not in self._roots:  # before any look at what is there
                if any(where.startswith(dir + b"/") for dir in self._paths.folders):
                    moves = f"worker.after moves files there; {_how_to_run_again(where)}"
                    # Without the record of its job nothing knows where the file was.
                    raise ConfigError(
                        f"{refused.error}; {moves}; if that finds none, move it back and enqueue it there"
                    )
                if self._may_look and not os.path.lexists(where):
                    raise ConfigError(f"{quoted_path(name)} can't be enqueued: {_ADVICE['FileVanished']}")
                advice = "check the name, or set producer.scan_dir or worker.allowed_roots to its directory"
                raise ConfigError(f"{refused.error}; {advice}")
            if os.path.isdir(where):
                raise ConfigError(f"{quoted_path(name)} can't be enqueued: it is a directory; name the files in it")
            if refused.kind == "FileVanished" and (place := self._moved_to(path := self._as_produced(where))):
                moved = f"a worker moved it to {quoted_path(place)}"
                raise ConfigError(f"{quoted_path(name)} can't be enqueued: {moved}; {_how_to_run_again(path)}")
            raise ConfigError(f"{quoted_path(name)} can't be enqueued: {_ADVICE.get(refused.kind, refused.error)}")
        if self._database.owns(os.path.dirname(where), os.path.basename(where)):
            raise ConfigError(f"{quoted_path(name)} can't be enqueued: it belongs to fileq's own database")

    def _as_produced(self, where: bytes) -> bytes:
        """The path that a producer would use: the ledger identifies files by path, symbolic links unresolved."""
        if where.startswith(self._scan_dir.rstrip(b"/") + b"/"):
            return where
        real_dir, real = os.path.realpath(self._scan_dir), os.path.realpath(where)
        if real.startswith(real_dir.rstrip(b"/") + b"/"):
            return os.path.join(self._scan_dir, real[len(real_dir.rstrip(b"/")) + 1 :])
        return self._paths.there(where)
