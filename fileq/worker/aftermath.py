"""What happens to a file once its job is settled: kept, deleted or moved. After the settle, never before."""

from __future__ import annotations

import os
import queue
import shutil
import threading

from fileq.brokers.types import Settlement, Verb
from fileq.config import AfterEnd
from fileq.job import Claim, Version
from fileq.service import Emit
from fileq.worker.paths import Paths

MOVE = "move:"


class Aftermath:
    """Does its work in a thread of its own: a slow disk must not hold up the pump."""

    def __init__(self, rules: AfterEnd, emit: Emit = lambda event, **fields: None) -> None:
        self._rules = {Verb.COMPLETE: rules.completed, Verb.BURY: rules.dead}
        self._emit = emit
        self._orders: queue.SimpleQueue[tuple[str, bytes] | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None

    def version_left(self, path: bytes, claim: Claim) -> Version | None:
        """The version that a handler left which may change its file."""
        if claim.job is None or not path:
            return None
        try:
            status = os.stat(path)
        except OSError:
            return None
        return Version(claim.job.path, f"{status.st_size}-{status.st_mtime_ns}")

    def follow(self, settlement: Settlement, paths: Paths) -> None:
        """A superseded job's file belongs to the job of its newer version."""
        rule = self._rules.get(settlement.verb, "keep")
        job = settlement.claim.job
        if rule == "keep" or job is None or not job.filepath or settlement.superseded:
            return
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="aftermath", daemon=True)
            self._thread.start()
        self._orders.put((rule, paths.here(job.path)))

    def close(self, timeout_s: float) -> None:
        if self._thread is not None:
            self._orders.put(None)
            self._thread.join(timeout_s)

    def _run(self) -> None:
        while (order := self._orders.get()) is not None:
            rule, path = order
            try:
                if rule == "delete":
                    os.unlink(path)
                else:
                    _move(path, os.fsencode(rule.removeprefix(MOVE)))
            except FileNotFoundError:
                continue
            except OSError as error:
                self._emit("file.kept", level="warning", path=os.fsdecode(path), wanted=rule, error=str(error))


def _move(path: bytes, folder: bytes) -> None:
    """Into the folder under its own name; never over another file."""
    os.makedirs(folder, exist_ok=True)
    stem, extension = os.path.splitext(os.path.basename(path))
    target, n = os.path.join(folder, stem + extension), 0
    while os.path.lexists(target):
        n += 1
        target = os.path.join(folder, b"%s.%d%s" % (stem, n, extension))
    shutil.move(os.fsdecode(path), os.fsdecode(target))
