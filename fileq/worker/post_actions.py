"""What happens to a file once its job is settled: it is kept, deleted or moved (`worker.after`).

Acts only after the broker has accepted the settlement, never before. What a kill -9 leaves: files whose job is settled
and which are still in their folder; the ledger knows their version, so no producer enqueues them again. Or a moved file
whose record does not have its new path.
"""

from __future__ import annotations

import os
import queue
import shutil
import threading
from collections.abc import Callable, Sequence
from typing import TypeAlias

from msgspec import Struct

from fileq.config import MOVE, AfterSettings
from fileq.core.claim import Claim
from fileq.core.errors import BrokerError
from fileq.core.events import Emit, ignore
from fileq.core.file_events import FileKept
from fileq.core.job import Version
from fileq.core.settlement import Settlement, Verb
from fileq.files.paths import Paths
from fileq.files.version import signature_of

Relocate: TypeAlias = Callable[[Sequence[tuple[str, bytes]]], object]  # Broker.relocate


class PostActions:
    """Acts in a thread of its own, so that a slow disk does not delay the pump."""

    def __init__(self, rules: AfterSettings, paths: Paths, relocate: Relocate, emit: Emit = ignore) -> None:
        self._rules = {Verb.COMPLETE: rules.completed, Verb.BURY: rules.dead}
        self._paths = paths
        self._relocate = relocate
        self._emit = emit
        self._queue: queue.SimpleQueue[_Action | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None

    def add(self, settlement: Settlement, processed: str | None) -> None:
        """Does with the file what the rule for this settlement says.

        The file of a superseded job belongs to the job of its newer version, so it is kept. A file at the path of a
        vanished one is not the file of this job. `processed` is the
        signature of the version that was processed; a file that is another version now is kept too."""
        rule = self._rules.get(settlement.verb, "keep")
        job = settlement.claim.job
        if rule == "keep" or job is None or not job.filepath or settlement.superseded or settlement.vanished:
            return
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="post_actions", daemon=True)
            self._thread.start()
        path = self._paths.here(job.path)
        self._queue.put(_Action(job.id, rule, path, self._paths.allowed, processed))

    def close(self, timeout_s: float) -> None:
        """Waits for the actions that were added, but not longer than this."""
        if self._thread is not None:
            self._queue.put(None)
            self._thread.join(timeout_s)

    def _run(self) -> None:
        while (action := self._queue.get()) is not None:
            reason = ""
            try:
                moved_to = _perform(action)
                if moved_to:
                    self._relocate([(action.id, self._paths.there(moved_to))])
            except _Kept as kept:
                reason = str(kept)
            except BrokerError:
                continue  # the file is moved; only its record does not say so
            except FileNotFoundError:
                continue
            except (OSError, ValueError) as error:
                reason = str(error)
            if reason:
                self._emit(FileKept(os.fsdecode(action.path), action.rule, reason))


def version_left(path: bytes, claim: Claim) -> Version | None:
    """The version of the file after its handler ran, for handlers that change their file (`in_place`)."""
    if claim.job is None or not path:
        return None
    try:
        return Version(claim.job.path, signature_of(os.stat(path)))
    except OSError:
        return None


class _Kept(Exception):
    """Why the file is neither deleted nor moved."""


class _Action(Struct, frozen=True):
    id: str
    rule: str
    path: bytes
    roots: tuple[bytes, ...]
    processed: str | None


def _perform(action: _Action) -> bytes:
    """Returns the new path; b"" if the file was not moved."""
    # Every program that can push a job can name any path, and a job refused for its path is a dead job too.
    directory = os.path.realpath(os.path.dirname(action.path))
    if not any(_is_in(directory, os.path.realpath(root)) for root in action.roots):
        raise _Kept("it is outside the allowed roots")
    if action.processed is not None and signature_of(os.stat(action.path)) != action.processed:
        raise _Kept("it is another version now")
    if action.rule == "delete":
        os.unlink(action.path)
    elif (folder := _target(action, directory)) is not None:
        return _move(action.path, folder)
    return b""


def _target(action: _Action, directory: bytes) -> bytes | None:
    """The directory that the file is moved to: DIR, and below it the path that the file has below its root.

    None if the file is below DIR already. The path below another `move:DIR` counts as the path below the root. All
    links are resolved, so the path has no `..` in it and never leads out of DIR."""
    folder = os.path.abspath(os.fsencode(action.rule.removeprefix(MOVE)))
    bases = {os.path.realpath(base) for base in action.roots}
    base = max((base for base in bases if _is_in(directory, base)), key=len)
    if base == os.path.realpath(folder):
        return None
    return os.path.join(folder, directory[len(base) :].lstrip(b"/"))


def _is_in(directory: bytes, base: bytes) -> bool:
    """Whether the directory is the base or below it. Both are absolute, without links."""
    return directory == base or directory.startswith(base.rstrip(b"/") + b"/")


def _move(path: bytes, folder: bytes) -> bytes:
    """Moves the file into the folder, under its own name or a numbered one; never replaces another file. Returns its
    new path."""
    os.makedirs(folder, exist_ok=True)
    stem, extension = os.path.splitext(os.path.basename(path))
    target, n = os.path.join(folder, stem + extension), 0
    while os.path.lexists(target):
        n += 1
        target = os.path.join(folder, b"%s.%d%s" % (stem, n, extension))
    shutil.move(os.fsdecode(path), os.fsdecode(target))
    return target
