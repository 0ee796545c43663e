"""What happens to a file once its job is settled: kept, deleted or moved. After the settle, never before."""

from __future__ import annotations

import os
import queue
import shutil
import threading

from msgspec import Struct

from fileq.config import AfterSettings
from fileq.core.claim import Claim
from fileq.core.events import Emit, FileKept, ignore
from fileq.core.job import Version
from fileq.core.settlement import Settlement, Verb
from fileq.files.paths import Paths
from fileq.files.version import signature_of

MOVE = "move:"


class Aftermath:
    """Does its work in a thread of its own: a slow disk must not hold up the pump."""

    def __init__(self, rules: AfterSettings, emit: Emit = ignore) -> None:
        self._rules = {Verb.COMPLETE: rules.completed, Verb.BURY: rules.dead}
        self._emit = emit
        self._orders: queue.SimpleQueue[_Order | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None

    def version_left(self, path: bytes, claim: Claim) -> Version | None:
        """The version that a handler left which may change its file."""
        if claim.job is None or not path:
            return None
        try:
            return Version(claim.job.path, signature_of(os.stat(path)))
        except OSError:
            return None

    def follow(self, settlement: Settlement, paths: Paths, processed: str | None) -> None:
        """A superseded job's file belongs to the job of its newer version; so does one that is no longer the version
        that was processed. Without a signature there is nothing to compare."""
        rule = self._rules.get(settlement.verb, "keep")
        job = settlement.claim.job
        if rule == "keep" or job is None or not job.filepath or settlement.superseded:
            return
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="aftermath", daemon=True)
            self._thread.start()
        self._orders.put(_Order(rule, paths.here(job.path), paths.roots, processed))

    def close(self, timeout_s: float) -> None:
        if self._thread is not None:
            self._orders.put(None)
            self._thread.join(timeout_s)

    def _run(self) -> None:
        while (order := self._orders.get()) is not None:
            try:
                reason = _do(order)
            except FileNotFoundError:
                continue
            except (OSError, ValueError) as error:
                reason = str(error)
            if reason:
                path = os.fsdecode(order.path)
                self._emit(FileKept(path, order.rule, reason))


class _Order(Struct, frozen=True):
    rule: str
    path: bytes
    roots: tuple[bytes, ...]
    processed: str | None


def _do(order: _Order) -> str:
    """Why it was not done; "" if it was."""
    # Anybody who can push a job can name any path, and a job that is refused for it is a dead job like others.
    folder = os.path.realpath(os.path.dirname(order.path)) + b"/"
    if not any(folder.startswith(os.path.realpath(root).rstrip(b"/") + b"/") for root in order.roots):
        return "it is outside the allowed roots"
    if order.processed is not None and signature_of(os.stat(order.path)) != order.processed:
        return "it is another version now"
    if order.rule == "delete":
        os.unlink(order.path)
    else:
        _move(order.path, os.fsencode(order.rule.removeprefix(MOVE)))
    return ""


def _move(path: bytes, folder: bytes) -> None:
    """Into the folder under its own name; never over another file."""
    os.makedirs(folder, exist_ok=True)
    stem, extension = os.path.splitext(os.path.basename(path))
    target, n = os.path.join(folder, stem + extension), 0
    while os.path.lexists(target):
        n += 1
        target = os.path.join(folder, b"%s.%d%s" % (stem, n, extension))
    shutil.move(os.fsdecode(path), os.fsdecode(target))
