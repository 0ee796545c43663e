"""What happens to a file once its job is settled: it is kept, deleted or moved (`worker.after`).

Acts only after the broker has accepted the settlement, never before; file_action.py says how. The settlement carries an
order, which the broker keeps until the action is done.

What a kill -9 leaves: orders on the broker. Another worker does them (order_recovery.py). Until then their files are in
their directories, one of them perhaps under its private name. The ledger knows their version, so no producer enqueues
them again.
"""

from __future__ import annotations

import os
import queue
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import TypeAlias

from msgspec.structs import replace

from fileq.config import AfterSettings
from fileq.core.claim import Claim
from fileq.core.errors import BrokerError
from fileq.core.events import Emit, FileKept, ignore
from fileq.core.job import Version
from fileq.core.settlement import Settlement, Verb
from fileq.files.paths import Paths
from fileq.files.version import signature_of
from fileq.worker.file_action import FileAction, KeepFile, NotPutBack
from fileq.worker.slot import Settling

FinishOrders: TypeAlias = Callable[[Sequence[tuple[str, bytes]]], object]  # Broker.finish_orders

FINISHED_AT_ONCE = 100  # orders of one round trip
KEEP = "keep"


class PostActions:
    """Acts in a thread of its own, so that a slow disk does not delay the pump."""

    def __init__(self, rules: AfterSettings, paths: Paths, finish_orders: FinishOrders, emit: Emit = ignore) -> None:
        self._rules = rules_of(rules)
        self._paths = paths
        self._finish_orders = finish_orders
        self._emit = emit
        self._queue: queue.SimpleQueue[FileAction | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None

    @property
    def has_rules(self) -> bool:
        return bool(self._rules)

    @property
    def takes_completed(self) -> bool:
        """Whether the file of a completed job is moved or deleted."""
        return Verb.COMPLETE in self._rules

    def with_order(self, settling: Settling) -> Settlement:
        """The settlement to send: with the order to act afterwards, if a rule says so."""
        return with_order(settling.settlement, settling.processed, self._rules)

    def add(self, settlement: Settlement, processed: str | None) -> None:
        """Does with the file what the rule for this settlement says.

        `processed` is the signature of the version that was processed; a file that is another version now is kept."""
        job = settlement.claim.job
        if job is None or not _applies(settlement, self._rules):
            return
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="post_actions", daemon=True)
            self._thread.start()
        paths, rule = self._paths, self._rules[settlement.verb]
        self._queue.put(FileAction(job.id, rule, paths.here(job.path), paths.allowed, paths.folders, processed))

    def close(self, timeout_s: float) -> None:
        """Waits for the actions that were added, but not longer than this."""
        if self._thread is not None:
            self._queue.put(None)
            self._thread.join(timeout_s)

    def _run(self) -> None:
        done: list[tuple[str, bytes]] = []
        while (action := self._queue.get()) is not None:
            moved_to = act(action, self._emit)
            if moved_to is not None:
                done.append((action.id, self._paths.there(moved_to) if moved_to else b""))
            if self._queue.empty() or len(done) >= FINISHED_AT_ONCE:
                self._finish(done)
                done = []
        self._finish(done)

    def _finish(self, done: list[tuple[str, bytes]]) -> None:
        try:
            if done:
                self._finish_orders(done)
        except BrokerError:
            pass  # the orders stay, and a worker finds later that they are done


def rules_of(after: AfterSettings) -> dict[Verb, str]:
    """The rule for each verb whose files are not kept."""
    rules = {Verb.COMPLETE: after.completed, Verb.BURY: after.dead}
    return {verb: rule for verb, rule in rules.items() if rule != KEEP}


def with_order(settlement: Settlement, processed: str | None, rules: Mapping[Verb, str]) -> Settlement:
    """The settlement with the order to act afterwards, if a rule says so."""
    job = settlement.claim.job
    if job is None or not _applies(settlement, rules):
        return settlement
    return replace(settlement, order=order_body(settlement.verb, processed, job.path))


def _applies(settlement: Settlement, rules: Mapping[Verb, str]) -> bool:
    """The file of a superseded job belongs to the job of its newer version, so it is kept. A file at the path of a
    vanished one is not the file of this job."""
    job = settlement.claim.job
    is_ours = job is not None and bool(job.filepath) and not settlement.superseded and not settlement.vanished
    return is_ours and settlement.verb in rules


def order_body(verb: Verb, processed: str | None, path: bytes) -> bytes:
    """What is to be done, as the broker keeps it. Without the rule: each worker follows its own configuration, so a
    program that can write to the broker cannot choose a directory."""
    return f"{verb.value} {processed or ''}\n".encode() + path


def act(action: FileAction, emit: Emit, *, looks_for_moved: bool = False) -> bytes | None:
    """Performs the action. Returns the new path, or b"" if there is none; None if it must be performed again."""
    try:
        return action.perform()
    except FileNotFoundError:
        return action.find_moved() if looks_for_moved else b""
    except NotPutBack as left:
        emit(FileKept(os.fsdecode(action.path), action.rule, str(left)))
        return None
    except (KeepFile, OSError, ValueError) as kept:
        emit(FileKept(os.fsdecode(action.path), action.rule, str(kept)))
        return b""


def version_left(path: bytes, claim: Claim) -> Version | None:
    """The version of the file after its handler ran, for handlers that change their file (`in_place`)."""
    if claim.job is None or not path:
        return None
    try:
        return Version(claim.job.path, signature_of(os.stat(path)))
    except OSError:
        return None
