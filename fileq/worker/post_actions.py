"""What happens to a file once its job is settled: it is kept, deleted or moved (`worker.after`).

Acts only after the broker has accepted the settlement, never before; file_action.py says how. What a kill -9 leaves:
files whose job is settled and which are still in their directory, one of them perhaps under its private name; the
ledger knows their version, so no producer enqueues them again. Or a moved file whose record does not have its new path.
"""

from __future__ import annotations

import os
import queue
import threading
from collections.abc import Callable, Sequence
from typing import TypeAlias

from fileq.config import AfterSettings
from fileq.core.claim import Claim
from fileq.core.errors import BrokerError
from fileq.core.events import Emit, ignore
from fileq.core.file_events import FileKept
from fileq.core.job import Version
from fileq.core.settlement import Settlement, Verb
from fileq.files.paths import Paths
from fileq.files.version import signature_of
from fileq.worker.file_action import FileAction, KeepFile

Relocate: TypeAlias = Callable[[Sequence[tuple[str, bytes]]], object]  # Broker.relocate


class PostActions:
    """Acts in a thread of its own, so that a slow disk does not delay the pump."""

    def __init__(self, rules: AfterSettings, paths: Paths, relocate: Relocate, emit: Emit = ignore) -> None:
        self._rules = {Verb.COMPLETE: rules.completed, Verb.BURY: rules.dead}
        self._paths = paths
        self._relocate = relocate
        self._emit = emit
        self._queue: queue.SimpleQueue[FileAction | None] = queue.SimpleQueue()
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
        self._queue.put(FileAction(job.id, rule, path, self._paths.allowed, processed))

    def close(self, timeout_s: float) -> None:
        """Waits for the actions that were added, but not longer than this."""
        if self._thread is not None:
            self._queue.put(None)
            self._thread.join(timeout_s)

    def _run(self) -> None:
        while (action := self._queue.get()) is not None:
            reason = ""
            try:
                moved_to = action.perform()
                if moved_to:
                    self._relocate([(action.id, self._paths.there(moved_to))])
            except KeepFile as kept:
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
